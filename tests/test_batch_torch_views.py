"""Logprobs, ranks and top lists of rows on a device: those of NumPy, bit for bit, and nothing read by the host."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from platforms import needs_newest_triton, needs_triton
from steady_steps import counted

import tirage
from tirage import Batch, ParamsError, SamplingParams, Status
from tirage.backends.torch import told
from tirage.backends.torch.device import ops, report
from tirage.backends.torch.device.rows import DeviceRows
from tirage.backends.torch.log_op import log_mass
from tirage.backends.torch.plan import COUNTS, LAW, LAWS, LISTS, MARKS, ORDERS, REWRITES
from tirage.batch.torch import TorchBatch
from tirage.exact import logs
from tirage.exact.keys import POS_INF_KEY
from tirage.semantics import PRESETS

V, CAPACITY = 40, 9
ASKED = (
    SamplingParams(temperature=0.7, top_p=0.8, logprobs=3),
    SamplingParams(temperature=0.7, top_k=6, logprobs=5, logprobs_mode="processed", repetition_penalty=1.3),
    SamplingParams(temperature=0, logprobs=2, logprobs_mode="processed"),
    SamplingParams(temperature=1.3, logprobs=0),
    SamplingParams(min_p=0.1),
    SamplingParams(semantics="vllm", temperature=0.4, logprobs=V, allowed_token_ids=range(7), logit_bias={3: 2.0}),
    SamplingParams(semantics="gemma-topk", temperature=2.0, top_k=3, logprobs=1, logprobs_mode="processed"),
    SamplingParams(no_repeat_ngram_size=1, logprobs=4, logprobs_mode="processed"),
)
OF_DRAWS = (
    SamplingParams(temperature=0.7, top_p=0.8, logprobs=7),
    SamplingParams(top_k=6, logprobs=9),
    SamplingParams(temperature=0, logprobs=3, logit_bias={5: 4.0}),
    SamplingParams(temperature=1.6, logprobs=V),
    SamplingParams(top_p=0.8),
    SamplingParams(min_p=0.2, top_k=4, temperature=0.4, semantics="llamacpp", logprobs=6, presence_penalty=0.5),
    SamplingParams(dynatemp_range=0.5, top_p=0.9, logprobs=3, semantics="llamacpp"),
    SamplingParams(temperature=1e-3, min_keep=3, top_p=0.3, logprobs=5, semantics="llamacpp"),
    SamplingParams(eta_cutoff=0.02, epsilon_cutoff=0.01, logprobs=8),
    SamplingParams(dynatemp_range=0.5, logprobs=4, semantics="llamacpp"),
)
"""What is told of the set that a row was drawn from: no more tokens than that holds, those without weight too."""
NAMED = (
    SamplingParams(logprob_token_ids=[1]),
    SamplingParams(temperature=0.7, top_p=0.8, logprobs=2, logprob_token_ids=[*range(V - 1, -1, -1)]),
    SamplingParams(top_k=6, logprob_token_ids=[39, 3, 3, 0], logprobs_mode="processed", repetition_penalty=1.3),
    SamplingParams(temperature=0, logprob_token_ids=[5, 6, 7], logprobs_mode="processed", logprobs=1),
    SamplingParams(min_p=0.1, temperature=0.6),
    SamplingParams(allowed_token_ids=range(0, V, 2), logprob_token_ids=range(9), logprobs_mode="processed"),
    SamplingParams(temperature=0.6, top_k=9, logprob_token_ids=range(3, V), logprobs_mode="sampled"),
    SamplingParams(logprobs=3, temperature=1.4),
    SamplingParams(dynatemp_range=0.5, logprob_token_ids=[8, 1], logprobs_mode="processed", semantics="llamacpp"),
)
"""Requests that name tokens: one, all, one twice, some that are masked, cut or drawn; beside some that name none."""
AS_SETS = (
    SamplingParams(typical_p=0.7),
    SamplingParams(top_p=0.8, logprobs=2),
    SamplingParams(
        smoothing_factor=0.3, smoothing_curve=2.0, logprobs=5, logprobs_mode="processed", frequency_penalty=0.4
    ),
    SamplingParams(temperature=0.7, tfs=0.9, top_h=0.8, logprobs=3),
    SamplingParams(temperature=0.8, xtc_probability=0.5, xtc_threshold=0.05, min_keep=2, semantics="llamacpp"),
    SamplingParams(xtc_probability=0.7, xtc_threshold=0.03, xtc_protected_ids=[*range(0, V, 3)], top_p=0.9, logprobs=1),
    SamplingParams(temperature=0, typical_p=0.5),
    SamplingParams(top_n_sigma=1.5, dynatemp_range=0.5, typical_p=0.8, min_keep=4, semantics="llamacpp"),
)
"""What the kernels draw as sets, beside a row that they do not; with smoothing, whose logits are told."""
LLAMA: Any = {"semantics": "llamacpp"}
_STAGES = [stage for stage in PRESETS["canonical"].stages if stage not in ("top_p", "adaptive_p")]
TRUNCATED = replace(PRESETS["canonical"], name="cut last", stages=(*_STAGES, "top_p"), top_p_rule="truncated")
DRAWN_AS_SETS = (
    SamplingParams(typical_p=0.6, temperature=0.8, logprobs=6),
    SamplingParams(typical_p=0.4, top_k=9, logprobs=V, semantics="llamacpp", min_keep=3),
    SamplingParams(top_h=0.6, temperature=1.5, logprobs=9, logprob_token_ids=range(V)),
    SamplingParams(temperature=1.2, tfs=0.8, logprobs=5),
    SamplingParams(mirostat=2, logprobs=4, mirostat_tau=2.0),
    SamplingParams(mirostat=1, logprobs=4, mirostat_tau=3.0, semantics="llamacpp"),
    SamplingParams(temperature=0, typical_p=0.5, logprobs=2),
    SamplingParams(typical_p=0.9, logprob_token_ids=range(V), frequency_penalty=0.5),
)
"""What is told of sets that need not be prefixes."""
MIXED = (
    SamplingParams(xtc_probability=0.5, xtc_threshold=0.05, logprobs=7, logprob_token_ids=range(V)),
    SamplingParams(xtc_probability=1.0, xtc_threshold=0.03, top_p=0.9, temperature=0.7, logprobs=V),
    SamplingParams(xtc_probability=0.3, xtc_threshold=0.05, logprobs=5, temperature=0.6, **LLAMA),
    SamplingParams(xtc_probability=0.7, xtc_threshold=0.03, xtc_protected_ids=[*range(0, V, 3)], logprobs=8),
    SamplingParams(typical_p=0.8, xtc_probability=0.4, xtc_threshold=0.04, logprobs=V, min_keep=2, **LLAMA),
    SamplingParams(adaptive_target=0.2, logprobs=9, logprob_token_ids=range(V), **LLAMA),
    SamplingParams(adaptive_target=0.4, xtc_probability=0.5, xtc_threshold=0.05, min_p=0.02, logprobs=V, **LLAMA),
    SamplingParams(adaptive_target=0.1, typical_p=0.8, temperature=1.4, logprobs=3, **LLAMA),
)
"""What is told of mixtures, and of adaptive-p: tokens are in the order of their logprobs."""
CUT = (
    SamplingParams(top_p=0.9, semantics="fastdeploy-base", logprobs=V),
    SamplingParams(top_p=0.6, temperature=0.7, semantics="fastdeploy-base", logprob_token_ids=range(V)),
    SamplingParams(top_p=0.5, typical_p=0.9, semantics=TRUNCATED, logprobs=V),
)
"""What is told where a top-p cuts a weight."""
HOSTED = (
    SamplingParams(typical_p=0.7, return_kept=True),
    SamplingParams(typical_p=0.7, logprobs=7, return_kept=True),
    SamplingParams(top_k=5, logprob_token_ids=[1, 3], logprobs=1, logprobs_mode="sampled", return_kept=True),
    SamplingParams(top_h=0.4, return_kept=True),
    SamplingParams(mirostat=2, return_kept=True),
)
"""What needs the host: without and with logprobs, longer lists than others have, single tokens, a record, a state."""
FIELDS = ("token_ids", "sampled_logprobs", "status", "logprobs", "ranks", "top_token_ids", "top_logprobs")
OF_SETS = ("kept_ids", "kept_offsets", "kept_logmass", "raw_logprobs", "processed_logprobs", "states")
MASSES = (1, 2, 3, (1 << 31) - 1, 1 << 31, (1 << 32) + 1, 1 << 40, (1 << 40) + 12345, (1 << 55) - 1, (1 << 62) - 7)


def _batches(params: tuple[SamplingParams, ...] = ASKED) -> tuple[Any, Any]:
    like = torch.zeros(1, V)
    batches = TorchBatch(V, CAPACITY, like=like), Batch(V, CAPACITY, like=like)
    for batch in batches:
        for seed, each in enumerate(params):
            batch.add(each.replace(seed=seed), (1, 2, 3))
    return batches


def _logits(step: int, rows: int) -> torch.Tensor:
    """Logits with many ties, zeros of both signs, some at -inf, now and then NaN."""
    r = np.random.default_rng(step)
    x = np.round(r.standard_normal((rows, V)) * 3).astype(np.float32)
    x[r.random(x.shape) < 0.1] = -np.inf
    x[r.random(x.shape) < 0.05] = np.float32(-0.0)
    x[r.random(x.shape) < 0.003] = np.nan
    x[r.random(x.shape) < 0.003] = np.inf
    return torch.from_numpy(x)


def assert_same_named(drawn: Any, expected: Any) -> None:
    """A tensor on the device of what a batch on the host has as tuples, NaN past each row's own."""
    found, wanted = drawn.given_logprobs, expected.given_logprobs
    if wanted is None:
        assert found is None
        return
    wide = np.full((len(wanted), max(map(len, wanted))), np.nan, np.float32)
    for row, values in zip(wide, wanted, strict=True):
        row[: len(values)] = values
    assert (found.dtype, found.shape) == (torch.float32, wide.shape)
    np.testing.assert_array_equal(found.numpy(), wide)
    np.testing.assert_array_equal(np.signbit(found.numpy()[wide == 0]), np.signbit(wide[wide == 0]))


def same(steps: int = 25, params: tuple[SamplingParams, ...] = ASKED, fields: tuple[str, ...] = FIELDS) -> Any:
    """The batch on the device, after so many steps that are those of NumPy."""
    there, here = _batches(params)
    for step in range(steps):
        rows = (len(there), CAPACITY)[step % 2]
        drawn, expected = there.sample(_logits(step, rows)), here.sample(_logits(step, rows))
        for field in fields:
            if getattr(expected, field) is None:
                assert getattr(drawn, field) is None, field
                continue
            found, wanted = (np.asarray(getattr(each, field)) for each in (drawn, expected))
            assert found.dtype == wanted.dtype
            assert found.tobytes() == wanted.tobytes() or np.array_equal(found, wanted, equal_nan=True), (step, field)
        assert_same_named(drawn, expected)
        for batch in (there, here):
            batch.advance(drawn)
            if step == 12:
                batch.remove(min(5, len(params) - 1))
    return there


@pytest.mark.parametrize("first", range(len(HOSTED)))
def test_a_batch_with_requests_for_the_host_gives_what_numpy_gives(first: int) -> None:
    """Each beside others that report something, and beside others that do not."""
    fields = (*FIELDS, *OF_SETS, "seeds", "support_sizes")
    for others in (ASKED[:4], ASKED[4:5] * 2):
        there = same(26, (others[0], HOSTED[first], *others[1:], HOSTED[first - 1]), fields)
        assert there._hosted


def test_views_are_those_of_numpy() -> None:
    assert not same()._hosted


def test_views_of_what_was_drawn_from_are_those_of_numpy() -> None:
    asked = tuple(each.replace(logprobs_mode="sampled") for each in OF_DRAWS)
    for params in (asked[:8], (*asked[:2], *ASKED[:2], AS_SETS[0], *asked[6:])):
        assert not same(40, params)._hosted


@pytest.mark.parametrize("most", [64, 0])
@pytest.mark.parametrize("params", [DRAWN_AS_SETS, MIXED, CUT, (*MIXED[:3], *DRAWN_AS_SETS[:2], CUT[0], ASKED[0])])
def test_views_of_sets_and_mixtures_are_those_of_numpy(
    params: tuple[SamplingParams, ...], most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ops, "MOST_LISTED", most)
    for mode in ("sampled", "processed"):
        asked = tuple(each.replace(logprobs_mode=mode) for each in params)
        assert not same(40 if most else 12, asked)._hosted


@pytest.mark.parametrize(
    ("at", "number", "params"),
    [
        (told.IS_LISTED, 0, MIXED),
        (told.LEFT, 1, CUT),
        (told.TRIMMED, -1, CUT),
        (told.SHARE, -1, MIXED),
        (told.TARGET, -1, MIXED),
        (told.BASIS, 0, DRAWN_AS_SETS),
        (told.FIRST_KEY, POS_INF_KEY, DRAWN_AS_SETS),
        (told.TOTAL, 1 << 40, DRAWN_AS_SETS),
    ],
)
def test_each_number_of_a_law_is_told(
    at: int, number: int, params: tuple[SamplingParams, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ops.tell_sets

    def wrong(sets: torch.Tensor, *rest: Any) -> None:
        right(sets, *rest)
        for begin in (LAWS, LAWS + LAW) if at != told.SHARE else (0,):
            sets[:, begin + at] = int(number)

    monkeypatch.setattr(ops, "tell_sets", wrong)
    with pytest.raises(AssertionError):
        same(25, tuple(each.replace(logprobs_mode="sampled") for each in params))


def test_processed_views_of_a_dynamic_temperature_are_those_of_numpy() -> None:
    asked = tuple(each.replace(logprobs_mode="processed") for each in (*OF_DRAWS[6:7], *OF_DRAWS[9:]))
    assert not same(40, (*asked, ASKED[1], AS_SETS[0]))._hosted


def test_logprobs_of_named_tokens_are_those_of_numpy() -> None:
    there = same(40, NAMED)
    assert not there._hosted
    assert there._there.layout.asked == 64


def test_logprobs_of_named_tokens_beside_longer_lists_are_those_of_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "MOST_LISTED", 0)
    assert not same(20, NAMED)._hosted
    assert same(20, (*NAMED[1:3], HOSTED[2], *NAMED[4:6], HOSTED[0]))._hosted


@pytest.mark.parametrize("others", [NAMED[:2], NAMED[4:5], ASKED[:2]])
def test_named_tokens_beside_requests_for_the_host_are_those_of_numpy(others: tuple[SamplingParams, ...]) -> None:
    """Where both, only one, or none of the parts names tokens; and where the host draws the whole batch."""
    for hosted in (HOSTED[1], HOSTED[2]):
        assert same(14, (*others, hosted, NAMED[5]))._hosted
        assert same(14, (hosted, *others))._hosted
        assert len(same(12, (hosted, hosted.replace(logprob_token_ids=range(5))))._hosted) == 2


def test_requests_that_name_tokens_come_and_go() -> None:
    """The table of named tokens grows with them; what is told is as wide as the longest list of those that are left."""
    like, r = torch.zeros(1, V), np.random.default_rng(3)
    there: Any = TorchBatch(V, 5, like=like)
    here, widths = Batch(V, 5, like=like), []
    for step in range(60):
        for batch in (there, here) if len(here) < 5 else ():
            own = np.random.default_rng(step)
            ids = own.permutation(V)[: own.integers(0, 3) * own.integers(0, 1 + min(V, step))].tolist()
            batch.add(NAMED[step % len(NAMED)].replace(logprob_token_ids=ids, logprobs=step % 3, seed=step), [1, 2])
        if step % 3 == 2:
            slot = int(r.choice(here.slots))
            order = [*(each for each in here.slots if each != slot)][::-1]
            for batch in (there, here):
                batch.remove(slot)
                batch.reorder(order)
        x = _logits(step, 5 if step % 2 else len(here))
        drawn, expected = there.sample(x), here.sample(x)
        assert drawn.token_ids.tolist() == expected.token_ids.tolist()
        assert_same_named(drawn, expected)
        widths.append(drawn.given_logprobs.shape[1])
        for batch in (there, here):
            batch.advance(drawn)
    assert not there._hosted
    assert min(widths) < 10
    assert there._there.layout.asked == 64


def test_an_empty_batch_names_none() -> None:
    there, here = _batches(NAMED[:1])
    for batch in (there, here):
        batch.remove(0)
        assert batch.sample(_logits(0, CAPACITY)).given_logprobs is None
    for wrong in (V, V + 3):
        with pytest.raises(ParamsError, match="logprob_token_ids"):
            there.add(SamplingParams(logprob_token_ids=[1, wrong]))
    with pytest.raises(ParamsError, match="logprob_token_ids"):
        SamplingParams(logprob_token_ids=[-1])
    assert not len(there)


def test_as_many_tokens_as_can_be_named() -> None:
    size = 1 << 18
    x = torch.randn(2, size, generator=torch.Generator().manual_seed(2))
    params = SamplingParams(logprob_token_ids=range(size), seed=1, logprobs=0, top_k=3, temperature=0.5)
    there: Any = TorchBatch(size, 2, like=x)
    for mode in ("raw", "sampled"):
        there.add(params.replace(logprobs_mode=mode))
    drawn, expected = there.sample(x), tirage.sample(x, [params, params.replace(logprobs_mode="sampled")])
    assert not there._hosted
    assert_same_named(drawn, expected)
    picked = drawn.given_logprobs.gather(1, drawn.token_ids[:, None])[:, 0]
    assert picked.tolist() == drawn.logprobs.tolist()
    assert drawn.given_logprobs[1].isfinite().sum() == 3


def test_rows_of_any_filters_stay_on_the_device() -> None:
    there = same(30, AS_SETS, (*FIELDS, "support_sizes", "seeds"))
    assert not there._hosted
    assert there._there.layout.set_needs == LISTS | MARKS | ORDERS | REWRITES | COUNTS


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("log_mass", lambda right: lambda mass: right(mass) * 1.0001),
        ("sort_keys", lambda right: lambda key, ids: right(key, ids.flip(0))),
        ("logit_of", lambda right: lambda top: right(top) + 1),
    ],
    ids=["logarithm", "ties", "largest"],
)
def test_a_view_that_is_a_little_off_is_seen(name: str, wrong: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, name, wrong(getattr(report, name)))
    with pytest.raises(AssertionError):
        same()


def test_requests_that_ask_for_nothing_get_nothing() -> None:
    there, _ = _batches((SamplingParams(), SamplingParams(logprobs=2)))
    assert there.sample(_logits(0, 2)).top_logprobs.shape == (2, 2)
    there.remove(1)
    drawn = there.sample(_logits(0, 1))
    assert drawn.logprobs is None
    assert drawn.given_logprobs is None


def test_a_row_without_a_token_reports_none() -> None:
    there, here = _batches((SamplingParams(logprobs=1),))
    x = torch.full((1, V), -torch.inf)
    drawn, expected = there.sample(x), here.sample(x)
    assert drawn.status.tolist() == [Status.no_allowed_token]
    assert np.isnan(drawn.top_logprobs.numpy()).all()
    assert drawn.top_token_ids.tolist() == expected.top_token_ids.tolist()


@pytest.mark.parametrize("asked", [(*ASKED, ASKED[0]), NAMED])
def test_a_steady_step_asks_for_the_same_each_time_and_waits_for_nothing(asked: tuple[SamplingParams, ...]) -> None:
    there, _ = _batches(asked)
    x = _logits(0, CAPACITY).nan_to_num(0.0)
    for _ in range(2):
        there.advance(there.sample(x))
    found = counted(lambda: there.advance(there.sample(x)), 8)
    assert all(each == found[0] for each in found)
    assert +found[0][0] == {"tirage.draw_slots": 1, "tirage.report_slots": 1, "tirage.append": 1}


def test_rows_that_report_nothing_cost_nothing() -> None:
    """The memory that a step asks for grows with the rows that want long lists."""
    asked = []
    for count in (0, 1, 4):
        batch: Any = TorchBatch(4000, 4, like=torch.zeros(1, 4000))
        for seed in range(4):
            batch.add(SamplingParams(seed=seed, logprobs=65 if seed < count else None))
        x = torch.randn(4, 4000)
        batch.advance(batch.sample(x))
        ((_, nbytes),) = counted(lambda batch=batch, x=x: batch.sample(x), 1)
        asked.append(nbytes)
    none, one, every = asked
    assert none < 4 * 4000
    assert one - none < 0.35 * (every - none)


@pytest.mark.parametrize("asked", [ASKED, NAMED])
def test_rows_of_fixed_size_report_thesame(asked: tuple[SamplingParams, ...]) -> None:
    there: Any = TorchBatch(V, CAPACITY, like=torch.zeros(1, V), history_capacity=32)
    alone, _ = _batches(asked)
    for seed, each in enumerate(asked):
        there.add(each.replace(seed=seed), (1, 2, 3))
    rows = there.device_rows()
    for step in range(6):
        (token, *_), told = rows.step_reported(_logits(step, CAPACITY), most=max(each.logprobs or 0 for each in asked))
        drawn = alone.sample(_logits(step, CAPACITY))
        alone.advance(drawn)
        assert torch.equal(token, drawn.token_ids)
        assert torch.equal(told.top_ids, drawn.top_token_ids)
        np.testing.assert_array_equal(told.logprobs, drawn.logprobs)
        wide = drawn.given_logprobs.shape[1]
        np.testing.assert_array_equal(told.asked_logprobs[:, :wide], drawn.given_logprobs)
        assert told.asked_logprobs[:, wide:].isnan().all()
        assert told.asked_logprobs.shape[1] == rows.layout.asked == (64 if asked is NAMED else 0)


@pytest.mark.parametrize("most", [2, 65])
def test_rows_without_values_can_report(most: int) -> None:
    there, _ = _batches(NAMED)
    there.sample(_logits(0, CAPACITY))
    rows = DeviceRows(CAPACITY, V + 60, torch.device("meta"), 64)
    rows.grow(there._there.layout)
    (token, *_), told = rows.step_reported(torch.zeros(CAPACITY, V + 60, device="meta"), most=most)
    assert token.shape == (CAPACITY,)
    assert told.top_ids.shape == (CAPACITY, most)
    assert (told.asked_logprobs.shape, told.asked_logprobs.dtype) == ((CAPACITY, 64), torch.float32)


# --- the logarithm ----------------------------------------------------------------------------------------------------


def test_pytorch_finds_nothing_wrong_with_the_logarithm() -> None:
    mass = torch.tensor(MASSES)
    found = torch.library.opcheck(torch.ops.tirage.log_mass.default, (mass,))
    assert set(found.values()) == {"SUCCESS"}
    assert log_mass(mass).tolist() == [float(logs.log_mass(each)) for each in MASSES]


_KERNEL = """
import json, sys, torch
from tirage.backends.torch.triton import log_masses
print(json.dumps(log_masses(torch.tensor(json.loads(sys.argv[1]))).tolist()))
"""


@needs_triton
@needs_newest_triton
def test_the_kernel_of_the_logarithm_has_the_bits_of_the_rule() -> None:
    masses = [*MASSES, *np.random.default_rng(0).integers(1, 1 << 62, 40).tolist()]
    done = subprocess.run(
        [sys.executable, "-c", _KERNEL, json.dumps(masses)],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [float(logs.log_mass(each)) for each in masses]
