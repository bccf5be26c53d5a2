"""The record of a draw: the same on every path, and what an independent reading of the law says."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import tirage
from tirage import ParamsError, SamplingParams
from tirage.backends import sharded
from tirage.backends.numpy import distribution
from tirage.backends.torch.dispatch import draw_on_device
from tirage.draw import Draw, Status
from tirage.operators import OPERATORS
from tirage.sampling import row_states
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn

V = 97
STATE = 2.5
"""What rows that carry a state carry."""
FIELDS = ("token_ids", "status", "support_sizes", "sampled_logprobs", *(
    "kept_ids", "kept_offsets", "kept_logmass", "raw_logprobs", "processed_logprobs",
))  # fmt: skip
_COMBINED: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"top_p": 0.9, "temperature": 0.7},
    {"top_p": 0.8, "min_p": 0.02, "semantics": "sglang"},
    {"top_k": 12, "top_p": 0.7, "temperature": 0.6, "semantics": "llamacpp"},
    {"top_k": 30, "top_p": 0.8, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    {"top_p": 0.8, "allowed_token_ids": tuple(range(5, 90)), "logit_bias": {7: 2.0, 8: -3.0}},
    {"xtc_probability": 0.5, "xtc_threshold": 0.05, "top_p": 0.9},
    {"xtc_probability": 1.0, "xtc_threshold": 0.05, "temperature": 1.4},
    {"top_p": 0.8, "logprobs": 3, "logprobs_mode": "sampled"},
    {"top_p": 0.999, "max_kept_ids": 2},
]


def cases() -> list[SamplingParams]:
    """Every operator alone, as gently as it names itself, and what combines several."""
    alone = [dict(operator.gentle) for operator in OPERATORS.values() if operator.gentle]
    return [SamplingParams(seed=row, return_kept=True, **params) for row, params in enumerate([*alone, *_COMBINED])]


def logits_of(count: int, *, seed: int = 0, scale: float = 3.0) -> NDArray[np.float32]:
    x = (np.random.default_rng(seed).normal(size=(count, V)) * scale).astype(np.float32)
    x[:, ::7] = np.round(x[:, ::7])
    return x


def histories(count: int) -> list[tuple[list[int], list[int]]]:
    return [([1, 2, 3, 1, 2], [4, 5, 4, 5]) for _ in range(count)]


def plain(x: NDArray[np.float32], params: list[SamplingParams]) -> dict[str, NDArray[Any]]:
    """The fields of `FIELDS` by the plain path alone."""
    rows = SamplingBatch.of(row_states(x.shape, params, histories(len(x)), None, 0, STATE), V).metadata(None)
    drawn = distribution.draw(x, rows, Drawn.empty(rows))
    return _fields(drawn, rows)


def _fields(drawn: Drawn, rows: Any) -> dict[str, NDArray[Any]]:
    records = rows.records
    values = (drawn.token_ids, drawn.status, drawn.support, drawn.sampled_logprobs)
    kept = (records.ids, records.offsets, records.logmass, records.raw, records.processed)
    return {name: np.asarray(value) for name, value in zip(FIELDS, (*values, *kept), strict=True)}


def assert_same(found: Draw | dict[str, Any], expected: dict[str, NDArray[Any]]) -> None:
    for name, value in expected.items():
        mine = found[name] if isinstance(found, dict) else getattr(found, name)
        np.testing.assert_array_equal(np.asarray(mine), value, err_msg=name)


def sets_of(drawn: Draw) -> list[NDArray[np.int64]]:
    ids, offsets = np.asarray(drawn.kept_ids), np.asarray(drawn.kept_offsets)
    return [ids[a:b] for a, b in itertools.pairwise(offsets)]


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy, jnp.asarray])
@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"return_kept": True},
        {"logprobs": 3},
        {"logprob_token_ids": (1, 2)},
        {"logprobs": 99, "adaptive_target": 0.3},
    ],
)
def test_no_rows_have_the_fields_that_their_parameters_ask_for(library: Any, asked: dict[str, Any]) -> None:
    params = SamplingParams(seed=1, **asked)

    def fields_of(rows: int) -> dict[str, Any]:
        drawn = tirage.sample(library(np.zeros((rows, 5), np.float32)), params)
        return {name: getattr(drawn, name) for name in Draw.__slots__}

    one, none = fields_of(1), fields_of(0)
    for name, value in one.items():
        if hasattr(value, "shape"):
            assert none[name].dtype == value.dtype, name
            # Where the ids of the last row end, there being none.
            rows = 0 if name != "kept_offsets" else 1
            assert none[name].shape == (rows, *value.shape[1:]), name
        else:
            assert none[name] == (() if name == "given_logprobs" and value is not None else None), name


def test_no_rows_have_their_logprobs_inside_jit() -> None:
    params = SamplingParams(seed=1, logprobs=3, logprob_token_ids=(1, 2))
    one, none = (jax.jit(lambda x: tirage.sample(x, params))(jnp.zeros((rows, 5))) for rows in (1, 0))
    for name in ("logprobs", "ranks", "top_token_ids", "top_logprobs", "given_logprobs"):
        given, empty = getattr(one, name), getattr(none, name)
        assert (empty.shape, empty.dtype) == ((0, *given.shape[1:]), given.dtype), name


def test_the_kept_ids_are_those_that_the_law_gives_a_probability() -> None:
    params, x = cases(), logits_of(len(cases()))
    drawn = tirage.sample(x, params, history=histories(len(x)), state=STATE)
    laws = tirage.law(x, params, history=histories(len(x)), state=STATE)
    for row, kept in enumerate(sets_of(drawn)):
        if drawn.status[row] == Status.ok:
            np.testing.assert_array_equal(kept, np.flatnonzero(laws[row] > 0), err_msg=str(params[row]))
            assert kept.size == drawn.support_sizes[row]
            assert drawn.token_ids[row] in kept


def test_logprobs_of_one_call_are_those_of_the_three_modes() -> None:
    params, x = cases(), logits_of(len(cases()))
    drawn = tirage.sample(x, params, history=histories(len(x)), state=STATE)
    for mode, found in (("raw", drawn.raw_logprobs), ("processed", drawn.processed_logprobs)):
        asked = [p.replace(return_kept=False, logprobs=0, logprobs_mode=mode) for p in params]
        listed = tirage.sample(x, asked, history=histories(len(x)), state=STATE)
        same = drawn.status == Status.ok
        np.testing.assert_array_equal(found[same], listed.logprobs[same])


def test_the_sampled_logprob_is_the_processed_one_less_the_mass() -> None:
    x = logits_of(6)
    settings = [
        {"top_p": 0.9},
        {"top_k": 5},
        {"min_p": 0.1, "temperature": 0.5},
        {},
        {"typical_p": 0.6},
        {"top_h": 0.4},
    ]
    params = [SamplingParams(seed=row, return_kept=True, **each) for row, each in enumerate(settings)]
    drawn = tirage.sample(x, params)
    np.testing.assert_allclose(drawn.sampled_logprobs, drawn.processed_logprobs - drawn.kept_logmass, atol=2e-6)
    bare = [p.replace(top_p=1.0, top_k=0, min_p=0.0, typical_p=1.0, top_h=0.0) for p in params]
    shares = [law[kept].sum() for law, kept in zip(tirage.law(x, bare), sets_of(drawn), strict=True)]
    np.testing.assert_allclose(np.exp(drawn.kept_logmass), shares, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("scale", [0.1, 3.0, 12.0])
def test_kernels_and_tensors_leave_the_records_of_the_plain_path(scale: float) -> None:
    tirage.warmup()
    params = cases()
    x = logits_of(len(params), scale=scale)
    expected, history = plain(x, params), histories(len(params))
    assert_same(tirage.sample(x, params, history=history, state=STATE), expected)
    assert_same(tirage.sample(torch.from_numpy(x), params, history=history, state=STATE), expected)
    assert_same(tirage.sample(jnp.asarray(x), params, history=history, state=STATE), expected)
    rows = SamplingBatch.of(row_states(x.shape, params, history, None, 0, STATE), V).metadata(None)
    drawn = draw_on_device(torch.from_numpy(x), rows)
    assert_same(_fields(drawn, rows), expected)
    assert_same(
        tirage.sample(sharded.Shards([x[:, :40], x[:, 40:40], x[:, 40:]]), params, history=history, state=STATE),
        expected,
    )


def test_a_mask_that_counts_after_the_draw_leaves_the_same_record_everywhere() -> None:
    params = [SamplingParams(seed=row, return_kept=True, semantics="llamacpp", top_k=9) for row in range(4)]
    x = logits_of(4)
    mask = np.random.default_rng(1).integers(-(2**31), 2**31, (4, -(-V // 32))).astype(np.int32)
    laws, drawn = tirage.law(x, params, mask=mask), tirage.sample(x, params, mask=mask)
    for law, kept in zip(laws, sets_of(drawn), strict=True):
        np.testing.assert_array_equal(kept, np.flatnonzero(law > 0))
    rows = SamplingBatch.of(row_states(x.shape, params, None, None, 0), V).metadata(mask)
    found = _fields(draw_on_device(torch.from_numpy(x), rows), rows)
    assert_same({name: getattr(drawn, name) for name in FIELDS}, found)
    assert_same(tirage.sample(sharded.Shards([x[:, :64], x[:, 64:]]), params, mask=mask), found)


def test_a_row_alone_leaves_the_record_that_it_leaves_in_a_batch() -> None:
    params, x = cases(), logits_of(len(cases()))
    whole = tirage.sample(x, params, history=histories(len(x)), state=STATE)
    for row in range(len(x)):
        alone = tirage.sample(x[row], params[row], history=histories(1), state=STATE)
        np.testing.assert_array_equal(alone.kept_ids, sets_of(whole)[row])
        for name in ("kept_logmass", "raw_logprobs", "processed_logprobs", "sampled_logprobs"):
            np.testing.assert_array_equal(getattr(alone, name)[0], getattr(whole, name)[row], err_msg=name)


def test_a_record_changes_no_token() -> None:
    params, x = cases(), logits_of(len(cases()))
    drawn = tirage.sample(x, params, history=histories(len(x)), state=STATE)
    without = tirage.sample(x, [p.replace(return_kept=False) for p in params], history=histories(len(x)), state=STATE)
    same = drawn.status != Status.kept_too_wide
    for name in ("token_ids", "sampled_logprobs", "support_sizes"):
        np.testing.assert_array_equal(getattr(drawn, name)[same], getattr(without, name)[same])
    assert without.kept_ids is None
    assert without.kept_logmass is None
    assert without.raw_logprobs is None


def test_a_law_too_wide_to_record_ends_its_row_alone() -> None:
    x = logits_of(3)
    wide, plain_row = SamplingParams(seed=1, return_kept=True, max_kept_ids=3), SamplingParams(seed=1)
    drawn = tirage.sample(x, [plain_row, wide, wide.replace(top_k=3)])
    assert drawn.status.tolist() == [Status.ok, Status.kept_too_wide, Status.ok]
    assert drawn.token_ids[1] == -1
    assert np.isnan(drawn.sampled_logprobs[1])
    assert drawn.support_sizes[1] == 0
    assert np.diff(drawn.kept_offsets).tolist() == [0, 0, 3]
    assert np.isnan(drawn.kept_logmass[:2]).all()


def test_a_batch_spreads_its_records_over_the_slots() -> None:
    flight, x = tirage.Batch(V, 4), logits_of(4)
    for row in range(3):
        flight.add(SamplingParams(seed=row, top_k=row + 2, return_kept=row != 1))
    flight.remove(0)
    drawn = flight.sample(x)
    assert np.diff(drawn.kept_offsets).tolist() == [0, 0, 4, 0]
    assert np.isnan(drawn.kept_logmass).tolist() == [True, True, False, True]


def test_inside_jit_a_record_is_refused_by_name() -> None:
    params = SamplingParams(seed=1, top_k=3, return_kept=True)
    with pytest.raises(ParamsError, match=r"return_kept must be False inside jit, got True for rows \[0\]"):
        jax.jit(lambda x: tirage.sample(x, params).token_ids)(jnp.zeros(V))
    flight = tirage.Batch(V, 2, like=jnp.zeros(1))
    with pytest.raises(ParamsError, match="return_kept must be False in a batch like a JAX array"):
        flight.add(params)


@pytest.mark.parametrize("threads", [2, 3, 5])
def test_shares_of_rows_on_threads_leave_the_records_of_one(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from tirage.backends.numpy.kernels import pool

    x = np.random.default_rng(5).normal(size=(4, 3000)).astype(np.float32)
    params = [
        tirage.SamplingParams(top_p=0.9, seed=1, return_kept=True),
        tirage.SamplingParams(top_p=0.9, seed=2, return_kept=True, max_kept_ids=2),
        tirage.SamplingParams(top_p=0.9, seed=3),
        tirage.SamplingParams(min_p=0.01, seed=4, return_kept=True),
    ]
    tirage.warmup()
    alone = tirage.sample(x, params)
    monkeypatch.setattr(pool, "_SMALL", 0)
    monkeypatch.setattr(pool, "_threads", threads)
    shared = tirage.sample(x, params)
    for name in ("kept_ids", "kept_offsets", "kept_logmass", "token_ids", "status"):
        np.testing.assert_array_equal(getattr(shared, name), getattr(alone, name))
    assert np.diff(alone.kept_offsets).tolist() == [alone.support_sizes[0], 0, 0, alone.support_sizes[3]]
    assert (np.diff(alone.kept_ids[: alone.kept_offsets[1]]) > 0).all()
