"""Hazards of tensor arithmetic: what the guarded code gives, and that without its guard it would be something else."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from platforms import needs_triton
from random_rows import Program, assert_same, expected_drawn, rows_of
from torch import Tensor

from tirage.backends.torch import eager, edits, filters, report, rule, sort_keys, state
from tirage.backends.torch.dispatch import draw_on_device
from tirage.backends.torch.edits import edited
from tirage.exact import numbers
from tirage.exact.weights import COEFFICIENTS
from tirage.exact.weights import weights as exact_weights
from tirage.operators.frequency import FREQUENCY
from tirage.operators.logit_bias import ADD
from tirage.operators.temperature import GREEDY, TEMPERATURE
from tirage.operators.top_k import TOP_K
from tirage.operators.typical import TYPICAL
from tirage.sampling_metadata import Drawn, SamplingMetadata

TEMPERATURE = TEMPERATURE, numbers.bits(numbers.temperature_constant(0.7)), numbers.bits(numbers.reciprocal(0.7))


def rows(*programs: Program, **given: Any) -> SamplingMetadata:
    return rows_of(list(programs), np.random.default_rng(0), **given)


def drawn(logits: Tensor, packed: SamplingMetadata) -> Drawn:
    return draw_on_device(logits, packed).moved(torch.Tensor.numpy)


def agrees(logits: Tensor, packed: SamplingMetadata) -> bool:
    """Whether tensor operations draw what the plain path draws, in every field."""
    try:
        with np.errstate(all="ignore"):
            assert_same(expected_drawn(logits.numpy(), packed), drawn(logits, packed))
    except AssertionError:
        return False
    return True


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape).astype(np.float32))


def everywhere(monkeypatch: pytest.MonkeyPatch, name: str, replacement: Callable[..., Any]) -> None:
    """Replace a function of the rule in every module that imported it."""
    modules: tuple[ModuleType, ...] = (rule, edits, sort_keys, state, filters, report, eager)
    for module in modules:
        if hasattr(module, name):
            monkeypatch.setattr(module, name, replacement)


# --- multiply-add that rounds once ------------------------------------------------------------------------------------


def fused_weights(q: Tensor) -> Tensor:
    f = ((q & 0x7FFFFF) | 0x3F800000).view(torch.float32) - 1.0
    r = torch.full_like(f, float(COEFFICIENTS[5]))
    for b in COEFFICIENTS[4::-1]:
        r = torch.addcmul(torch.full_like(f, float(b)), r, f)
    return (r.view(torch.int32) - (q & -0x800000)).view(torch.float32).to(torch.int64)


@pytest.mark.slow
def test_the_polynomial_of_the_weights_rounds_twice_a_step() -> None:
    q = torch.arange(0, 1 << 23, 7, dtype=torch.int32)
    expected = exact_weights(q.numpy())
    np.testing.assert_array_equal(expected, rule.weights(q).numpy())
    assert (expected != fused_weights(q).numpy()).mean() > 0.01


def penalised(penalty: float) -> tuple[Tensor, SamplingMetadata]:
    ids, counts = np.arange(500, dtype=np.int32), np.full(500, 3, np.int32)
    table = {"count_ids": ids, "prompt_counts": counts, "output_counts": counts, "count_start": np.array([0, 500])}
    bits = numbers.bits(np.float32(penalty))
    return normal(1, 500), rows([(FREQUENCY, 1, bits), TEMPERATURE], **table)


def test_a_frequency_penalty_rounds_its_product_before_it_subtracts(monkeypatch: pytest.MonkeyPatch) -> None:
    x, packed = penalised(0.7)
    expected = x - np.float32(0.7) * np.float32(3)
    assert torch.equal(expected, edited(x, packed).x)

    def fused(state: edits.EditedLogits, packed: SamplingMetadata, at: Any, a: Any) -> None:
        state.x = torch.sub(state.own(), torch.full_like(state.x, 3.0), alpha=float(np.float32(0.7)))

    monkeypatch.setitem(edits.STEPS, FREQUENCY, fused)
    assert not torch.equal(expected, edited(x, packed).x)


@pytest.mark.slow
@needs_triton
@pytest.mark.parametrize(
    ("kernel", "fusion", "fused"),
    [("unguarded", True, True), ("guarded", True, False), ("unguarded", False, False), ("guarded", False, False)],
)
def test_the_minimum_around_a_product_or_the_launch_option_stops_triton_from_fusing(
    kernel: str, fusion: bool, fused: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    import fused_kernels

    assert fused == (fused_operations(fused_kernels, kernel, fusion=fusion) > 0)


@needs_triton
@pytest.mark.slow
def test_a_forgotten_launch_option_fuses_nothing_in_our_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    from tirage.backends.torch import kernels

    names = ("weigh", "bound", "split", "split_first", "resolve")
    assert {name: fused_operations(kernels, name, fusion=True) for name in names} == dict.fromkeys(names, 0)


def fused_operations(module: ModuleType, name: str, *, fusion: bool) -> int:
    from ptx import compiled

    return len(re.findall(r"\bfma\.rn\.f32", compiled(getattr(module, name), fusion=fusion)))


# --- the order of a sum, and sums that leave 64 bits ------------------------------------------------------------------


def test_sums_of_weights_do_not_depend_on_their_order() -> None:
    w = rule.weights((normal(1, 50_000).abs() * (1 << 23)).to(torch.int32))
    orders = [w, w.flip(1), w.sort(1).values]
    assert len({each.sum(1).item() for each in orders}) == 1
    assert len({each.to(torch.float32).sum(1).item() for each in orders}) > 1


def test_the_mean_exponent_of_a_row_does_not_overflow(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(4, 3000) * 0.5
    packed = rows(*[[TEMPERATURE, (TYPICAL, numbers.mass_fraction(0.5), 0)]] * 4)
    assert agrees(x, packed)
    everywhere(monkeypatch, "split_sum", lambda products: (torch.zeros_like(products[:, 0]), products.sum(1)))
    assert not agrees(x, packed)


def edge_uniform(tokens: int, k: int) -> int:
    """The largest U that still draws token k - 1 of `tokens` equal ones: one more draws token k."""
    return -(-(k << 64) // tokens) - 1


@pytest.mark.parametrize("unguarded", ["float64", "int64"])
def test_the_product_of_uniform_and_mass_keeps_its_128_bits(unguarded: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens, k = 3000, 2999
    monkeypatch.setattr(eager, "uniform64", lambda *key: edge_uniform(tokens, k))
    x, packed = torch.zeros(1, tokens), rows([TEMPERATURE])
    assert drawn(x, packed).token_ids.tolist() == [k - 1]

    def located(self: Any, weights: list[Tensor], *_: Any) -> tuple[Tensor, Tensor]:
        u, total = edge_uniform(tokens, k), int(weights[0].sum())
        signed = u - (1 << 64) if u >> 63 else u
        wrapped = int((torch.tensor(signed) * torch.tensor(total)).item()) >> 32
        r = int(u / 2.0**64 * total) if unguarded == "float64" else wrapped
        column = (weights[0].cumsum(1) <= r).sum(1, keepdim=True).clamp(max=tokens - 1)
        return torch.ones_like(column[:, 0]) > 0, column

    monkeypatch.setattr(eager.RowGroup, "_located", located)
    assert drawn(x, packed).token_ids.tolist() != [k - 1]


# --- functions that differ from library to library --------------------------------------------------------------------


def test_weights_do_not_come_from_a_library_s_exponential() -> None:
    q = np.arange(0, 30 << 23, 9973, dtype=np.int32)
    octaves = q.astype(np.float32) * np.float32(2.0**-23)
    np.testing.assert_array_equal(exact_weights(q), rule.weights(torch.from_numpy(q)).numpy())
    assert (np.exp2(-octaves) != torch.exp2(torch.from_numpy(-octaves)).numpy()).any()
    assert (np.exp(-octaves) != torch.exp(torch.from_numpy(-octaves)).numpy()).any()


def test_logprobs_do_not_come_from_a_library_s_logarithm(monkeypatch: pytest.MonkeyPatch) -> None:
    x, packed = normal(40, 300) * 3, rows(*[[TEMPERATURE]] * 40)
    assert agrees(x, packed)
    monkeypatch.setattr(
        report, "log_mass", lambda total: torch.tensor(float(total)).log().item() - 40 * float(np.log(2))
    )
    assert not agrees(x, packed)


# --- ties, signed zeros, numbers that are none ------------------------------------------------------------------------


def test_ties_at_a_cut_are_broken_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    x, packed = (normal(20, 60) * 2).round(), rows(*[[TEMPERATURE, (TOP_K, 7, 0)]] * 20)
    assert agrees(x, packed)
    ranked = sort_keys.sort_keys
    everywhere(monkeypatch, "sort_keys", lambda key, ids: ranked(key, (1 << 20) - 1 - ids))
    assert not agrees(x, packed)


@pytest.mark.parametrize("program", [[(GREEDY,)], [TEMPERATURE, (TOP_K, 2, 0)]])
def test_zeros_of_either_sign_are_equal(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    x, packed = torch.tensor([[-1.0, -0.0, 0.0, -0.0, 0.0]]), rows(program, views=np.array([1], np.int8))
    assert agrees(x, packed)

    def ordered_bits(x: Tensor) -> Tensor:
        bits = x.view(torch.int32)
        return torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF)

    everywhere(monkeypatch, "keys", ordered_bits)
    assert not agrees(x, packed)


def test_a_negative_nan_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    x = normal(1, 8)
    x.view(torch.int32)[0, 3] = -0x400000
    packed = rows([TEMPERATURE])
    assert torch.isnan(x[0, 3])
    assert drawn(x, packed).status.tolist() == [1]
    everywhere(monkeypatch, "not_finite", lambda key: key >= rule.keys(torch.tensor(torch.inf)))
    assert drawn(x, packed).status.tolist() == [0]


# --- subnormal numbers on processors that flush them to zero ----------------------------------------------------------

TINY = torch.tensor([[-1e-40, 1e-40, 2e-40, -2e-39]])


def flushed(action: Callable[[], Any]) -> Any:
    assert torch.set_flush_denormal(True)
    try:
        return action()
    finally:
        torch.set_flush_denormal(False)


def test_greedy_compares_integers_which_nothing_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = rows([(GREEDY,)])
    assert flushed(lambda: drawn(TINY, packed).token_ids.tolist()) == [2]
    assert flushed(lambda: TINY.argmax(1).tolist()) != [2]


def test_edits_of_subnormal_numbers_give_the_same_with_and_without_flushing(monkeypatch: pytest.MonkeyPatch) -> None:
    table = {
        "edit_ids": np.arange(4, dtype=np.int32),
        "edit_values": np.array([3e-39, 1e-39, -1e-39, 1e-39], np.float32),
    }
    packed = rows([(ADD, 0, 4), (GREEDY,)], **table)

    def bits() -> list[list[int]]:
        return edited(TINY, packed).x.view(torch.int32).tolist()

    assert bits() == flushed(bits)
    everywhere(monkeypatch, "cleaned", lambda x: x)
    assert bits() != flushed(bits)
