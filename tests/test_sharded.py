"""Vocabulary shards: together they draw what whole rows draw, bit for bit, and they say little to each other."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from gloo_process import REPORTED, ROWS, draw_and_tell, rows_to_share
from numpy.typing import NDArray
from preset_rows import requests, states
from random_rows import assert_same, expected_drawn, random_case

import tirage
from tirage import SamplingParams
from tirage.backends import sharded
from tirage.backends.sharded.agreement import ShardLayout
from tirage.backends.sharded.communicators import Metered, ThreadGroup
from tirage.backends.sharded.shard_draw import draw_shard
from tirage.backends.torch.communicator import LocalComm
from tirage.backends.torch.dispatch import draw_on_device
from tirage.backends.torch.sort_keys import SortedTokens, id_of, key_of, sort_keys, with_ties
from tirage.draw import Draw
from tirage.errors import ParamsError
from tirage.operators.xtc import XTC
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn, SamplingMetadata, View
from tirage.semantics import PRESETS


def spans(edges: Sequence[int]) -> list[tuple[int, int]]:
    """[0, 3, 3, 8] -> [(0, 3), (3, 3), (3, 8)]."""
    return list(pairwise(edges))


def column_of(logits: NDArray[np.float32], span: tuple[int, int]) -> torch.Tensor:
    start, stop = span
    part = logits[:, start:stop] if stop > start else np.full((len(logits), 1), -np.inf, np.float32)
    return torch.from_numpy(np.ascontiguousarray(part))


def by_shards(logits: NDArray[np.float32], rows: SamplingMetadata, bounds: Sequence[tuple[int, int]]) -> Drawn:
    """What shards of packed rows draw; all of them must say the same."""
    group, layout = ThreadGroup(len(bounds)), ShardLayout.of(bounds, logits.shape[1])
    each = group.run([
        partial(draw_shard, comm, layout, column_of(logits, span), rows)
        for comm, span in zip(group.communicators(), bounds, strict=True)
    ])
    first, *others = [drawn.moved(torch.Tensor.numpy) for drawn in each]
    for other in others:
        assert_same(first, other)
    return first


def assert_draws_equal(expected: Draw, actual: Draw) -> None:
    for name in (*REPORTED, "seeds"):
        np.testing.assert_array_equal(np.asarray(getattr(actual, name)), np.asarray(getattr(expected, name)), name)
    np.testing.assert_equal(actual.given_logprobs, expected.given_logprobs)


# --- the same draw ------------------------------------------------------------------------------------------------


def check_random_programs(seed: int, size: int, count: int) -> None:
    logits, rows = random_case(seed, size)
    cuts = np.random.default_rng(seed).integers(0, size + 1, count - 1)
    with np.errstate(all="ignore"):
        expected = expected_drawn(logits, rows)
    assert_same(expected, by_shards(logits, rows, spans([0, *sorted(cuts.tolist()), size])))


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("size", [1, 33, 1000])
def test_random_programs_draw_what_whole_rows_draw(size: int, count: int) -> None:
    check_random_programs(700_000 + 100 * size + count, size, count)


@pytest.mark.exhaustive
@pytest.mark.parametrize("size", [1, 2, 5, 33, 100, 1000, 5000])
def test_many_random_programs_draw_what_whole_rows_draw(size: int) -> None:
    for seed in range(60):
        check_random_programs(800_000 + 100 * size + seed, size, 1 + seed % 8)


def with_mixtures(rows: SamplingMetadata, size: int, seed: int) -> SamplingMetadata:
    """`rows` of which half check a random mask after the draw, and of which those with XTC report any view."""
    r = np.random.default_rng(seed)
    checks = r.integers(-(2**31), 2**31, (rows.count, -(-size // 32))).astype(np.int32)
    checks |= np.where(r.random((rows.count, 1)) < 0.5, np.roll(checks, 1, axis=0), 0)
    xtc = (rows.programs[:, :, 0] == XTC).any(axis=1) & (rows.views != View.NONE)
    views = np.where(xtc, r.integers(1, 4, rows.count), rows.views).astype(np.int8)
    return replace(rows, checks=checks, resample=r.random(rows.count) < 0.5, views=views)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("size", "seeds"),
    [
        (2, range(2)),
        (33, range(2, 4)),
        *[pytest.param(s, range(4, 8), marks=pytest.mark.slow) for s in (1, 33, 400)],
        *[pytest.param(s, range(8, 24), marks=pytest.mark.exhaustive) for s in (1, 33, 400)],
    ],
)
def test_random_mixtures_draw_what_whole_rows_draw(size: int, seeds: range) -> None:
    for seed in seeds:
        logits, rows = random_case(910_000 + 100 * size + seed, size)
        rows = with_mixtures(rows, size, seed)
        cuts = np.random.default_rng(seed).integers(0, size + 1, seed % 4)
        with np.errstate(all="ignore"):
            expected = expected_drawn(logits, rows)
        assert_same(expected, by_shards(logits, rows, spans([0, *sorted(cuts.tolist()), size])))
        whole = draw_on_device(torch.from_numpy(logits), rows)
        assert_same(expected, whole.moved(torch.Tensor.numpy))


@pytest.mark.slow
@pytest.mark.parametrize("preset", sorted(PRESETS))
def test_every_operator_of_every_preset_draws_what_whole_rows_draw(preset: str) -> None:
    params, size = [p for p in requests(PRESETS[preset]) if not p.logits_processors], 60
    rng = np.random.default_rng(5)
    logits = np.round(rng.standard_normal((len(params), size)) * 8).astype(np.float32) / 4
    mask = rng.integers(-(2**31), 2**31, (len(params), 2)).astype(np.int32) if preset == "llamacpp" else None
    rows = SamplingBatch.of(states(params, size), size).metadata(mask)
    with np.errstate(all="ignore"):
        expected = expected_drawn(logits, rows)
    assert_same(expected, by_shards(logits, rows, spans([0, 23, size])))


def test_rows_of_two_draws_in_one_do_not_disturb_their_neighbours() -> None:
    logits = np.random.default_rng(2).standard_normal((4, 40)).astype(np.float32) * 2
    params = [
        SamplingParams(seed=1, top_p=0.9, logprobs=3),
        SamplingParams(seed=2, xtc_probability=0.6, xtc_threshold=0.05, logprobs=5, logprobs_mode="sampled"),
        SamplingParams(seed=3, semantics="llamacpp", logprobs=5, logprobs_mode="sampled", logprob_token_ids=[0, 7]),
        SamplingParams(seed=4, semantics="llamacpp", xtc_probability=0.5, temperature=0.7, logprobs=4),
    ]
    mask = np.array([[-1, -1], [-1, -1], [0x0F0F0F0F, 0], [0x33333333, 0]], np.int32)
    parts = sharded.Shards([logits[:, :11], logits[:, 11:11], logits[:, 11:]])
    assert_draws_equal(tirage.sample(logits, params, mask=mask), tirage.sample(parts, params, mask=mask))
    alone = tirage.sample(sharded.Shards([logits[:1, :11], logits[:1, 11:]]), params[0], mask=mask[:1])
    assert_draws_equal(tirage.sample(logits[:1], params[0], mask=mask[:1]), alone)


@pytest.mark.slow
@pytest.mark.parametrize("edges", [[0, 40], [0, 13, 40], [0, 0, 1, 1, 39, 40], [0, 5, 10, 15, 20, 25, 30, 35, 40]])
def test_rows_whose_logits_all_tie_fall_on_the_lowest_ids(edges: list[int]) -> None:
    logits = np.full((4, 40), 1.5, np.float32)
    params = [SamplingParams(top_k=7, seed=s, logprobs=9, logprobs_mode="sampled") for s in (0, 1)]
    params += [SamplingParams(top_p=0.5, seed=2, logprobs=2), SamplingParams(temperature=0, logprobs=2)]
    drawn = tirage.sample(sharded.Shards([logits[:, a:b] for a, b in spans(edges)]), params)
    assert_draws_equal(tirage.sample(logits, [p.replace(seed=p.seed or 0) for p in params]), _seeded(drawn, 3))
    assert drawn.support_sizes.tolist() == [7, 7, 20, 1]
    assert drawn.token_ids[3] == 0
    assert drawn.top_token_ids[0].tolist() == [0, 1, 2, 3, 4, 5, 6, -1, -1]


def _seeded(drawn: Draw, row: int) -> Draw:
    drawn.seeds[row] = 0
    return drawn


def test_more_shards_than_tokens_and_shards_of_minus_infinity_change_nothing() -> None:
    logits = np.array([[0.5, -np.inf, 1.0], [-np.inf, -np.inf, 2.0], [-np.inf] * 3], np.float32)
    params = [SamplingParams(seed=3, top_p=0.9, logprobs=3)] * 3
    parts = [logits[:, a:b] for a, b in spans([0, 0, 1, 1, 2, 2, 3, 3])]
    assert_draws_equal(tirage.sample(logits, params), tirage.sample(sharded.Shards(parts), params))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_arrays_of_every_type_and_library_are_drawn_alike(dtype: str) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, None) or dtype)
    logits = (np.random.default_rng(1).standard_normal((3, 50)) * 3).astype(kind)
    params = SamplingParams(top_k=9, top_p=0.8, seed=5, logprobs=4, repetition_penalty=1.3, logprob_token_ids=[0, 49])
    given: dict[str, Any] = {"history": [((1, 30), (2,)), ((), ()), ((49,), (49, 0))], "step": [4, 0, 9]}
    mask = np.random.default_rng(2).integers(-(2**31), 2**31, (3, 2)).astype(np.int32)
    expected = tirage.sample(logits, params, mask=mask, **given)
    assert_draws_equal(
        expected, tirage.sample(sharded.Shards([logits[:, :37], logits[:, 37:]]), params, mask=mask, **given)
    )
    whole = torch.from_numpy(logits.astype(np.float64)).to(getattr(torch, dtype))
    parts = sharded.Shards([whole[:, :7], whole[:, 7:40], whole[:, 40:]])
    drawn = tirage.sample(parts, params, mask=torch.from_numpy(mask), **given)
    assert isinstance(drawn.token_ids, torch.Tensor)
    assert_draws_equal(expected, drawn)


def test_one_row_without_a_batch_axis_is_a_batch_of_one() -> None:
    row = np.arange(6, dtype=np.float32)
    drawn = tirage.sample(sharded.Shards([row[:2], row[2:]]), SamplingParams(seed=1, top_p=0.7))
    assert drawn.token_ids.tolist() == tirage.sample(row, SamplingParams(seed=1, top_p=0.7)).token_ids.tolist()


@pytest.mark.parametrize("bad", [np.nan, -np.nan, np.inf])
def test_what_is_not_finite_on_one_shard_ends_its_row_alone(bad: float) -> None:
    logits = np.random.default_rng(4).standard_normal((3, 30)).astype(np.float32)
    logits[1, 29] = bad
    params = SamplingParams(seed=6, top_k=4, logprobs=2)
    drawn = tirage.sample(sharded.Shards(np.split(logits, 3, axis=1)), params)
    assert drawn.status.tolist() == [0, 1, 0]
    assert_draws_equal(tirage.sample(logits, params), drawn)
    masked = params.replace(logit_bias={29: -float("inf")})
    assert_draws_equal(
        tirage.sample(logits, masked), tirage.sample(sharded.Shards(np.split(logits, 3, axis=1)), masked)
    )


def test_a_batch_takes_shards_for_logits() -> None:
    rng = np.random.default_rng(8)
    whole, shards = (tirage.Batch(24, 4) for _ in range(2))
    for batch in (whole, shards):
        batch.add(SamplingParams(seed=1, presence_penalty=0.5), [3, 4])
        batch.add(SamplingParams(seed=2, top_p=0.6), [5])
    for _ in range(4):
        logits = rng.standard_normal((2, 24)).astype(np.float32)
        expected, drawn = whole.sample(logits), shards.sample(sharded.Shards([logits[:, :5], logits[:, 5:]]))
        np.testing.assert_array_equal(drawn.token_ids, expected.token_ids)
        whole.advance(expected)
        shards.advance(drawn)


# --- what crosses -------------------------------------------------------------------------------------------------

CALL, ROW = 48, 16 + 24
"""Bytes that a shard contributes to any draw: per call (meeting, digest), and per row (entry, the draw)."""


def metered(
    params: SamplingParams, size: int, rows: int = 3, count: int = 4, *, mask: Any = None
) -> list[tuple[int, int]]:
    """(rounds, bytes) of each shard for one draw."""
    logits = np.random.default_rng(size).standard_normal((rows, size)).astype(np.float32)
    group = ThreadGroup(count)
    meters = [Metered(comm) for comm in group.communicators()]
    edges = np.linspace(0, size, count + 1).astype(int).tolist()

    def work(meter: Metered, span: tuple[int, int]) -> Draw:
        shard = sharded.Shard(logits=column_of(logits, span), start=span[0], vocab_size=size, group=meter)
        return tirage.sample(shard, params, history=[((), ())] * rows, mask=mask)

    group.run([partial(work, meter, span) for meter, span in zip(meters, spans(edges), strict=True)])
    return [(meter.rounds, meter.sent) for meter in meters]


@pytest.mark.parametrize(
    ("fields", "per_row", "rounds"),
    [
        ({}, 0, 0),
        ({"temperature": 0.7}, 0, 0),
        ({"temperature": 0.0}, 8, 1),
        ({"top_k": 50}, 8 * 50, 1),
        ({"top_k": 201}, 1664, 13),
        ({"top_p": 0.9}, 8 + 512 + 1664, 15),
        ({"top_p": 0.05}, 8 + 512, 2),
        ({"top_p": 0.9, "semantics": "fastdeploy-air"}, 8 + 512 + 1664 + 8, 16),
        ({"min_p": 0.1}, 0, 0),
        ({"typical_p": 0.5}, 24 + 1024, 9),
        ({"epsilon_cutoff": 0.01}, 8, 1),
        ({"top_a": 0.2}, 8, 1),
        ({"eta_cutoff": 0.01}, 24, 1),
        ({"top_n_sigma": 1.0}, 40, 2),
        ({"top_h": 0.5}, 800, 1),
        ({"dynatemp_range": 0.5}, 32, 1),
        ({"xtc_probability": 0.5}, 24 + 24, 2),
        ({"top_k": 50, "xtc_probability": 0.5}, 8 * 50 + 24 + 24, 3),
        ({"repetition_penalty": 1.2, "logit_bias": {1: 2.0}}, 0, 0),
        ({"logprobs": 5, "logprobs_mode": "sampled"}, 16 + 8 * 5, 3),
        ({"logprobs": 5, "logprobs_mode": "processed"}, 24 + 8 * 5, 4),
        ({"logprobs": 5}, 32 + 8 * 5, 5),
        ({"logprob_token_ids": [1, 2]}, 32 + 8 * 2, 4),
    ],
)
def test_a_shard_contributes_the_stated_bytes_whatever_the_vocabulary(
    fields: dict[str, Any], per_row: int, rounds: int
) -> None:
    expected = [(4 + rounds, CALL + 3 * (ROW + per_row))] * 4
    params = SamplingParams(**fields, seed=1)
    assert metered(params, 300) == expected
    assert metered(params, 1500) == expected


def test_a_fresh_seed_costs_a_row_8_bytes() -> None:
    assert metered(SamplingParams(), 40) == [(5, CALL + 3 * (ROW + 8))] * 4


@pytest.mark.parametrize(
    ("fields", "drawing", "rounds"), [({}, 80, 7), ({"xtc_probability": 0.5}, 80 + 40 + 2 * (24 + 8), 7 + 2 * (2 + 1))]
)
def test_a_row_that_is_drawn_again_costs_its_entry_and_filters_twice(
    fields: dict[str, Any], drawing: int, rounds: int
) -> None:
    params, mask = SamplingParams(semantics="llamacpp", seed=1, **fields), np.full((3, 2), 5, np.int32)
    assert metered(params, 40, mask=mask) == [(rounds, CALL + 3 * (2 * 16 + drawing))] * 4


def test_a_sort_key_ranks_like_a_key_and_then_an_id() -> None:
    key = torch.tensor([5, 5, -7, 2**31 - 1, -(2**31) + 1], dtype=torch.int32)
    ids = torch.tensor([9, 2**20 - 1, 0, 3, 4])
    ranked = sort_keys(key, ids)
    assert torch.argsort(ranked, descending=True).tolist() == [3, 0, 1, 2, 4]
    assert (key_of(ranked).tolist(), id_of(ranked).tolist()) == (key.tolist(), ids.tolist())
    assert with_ties(ranked)[0] == with_ties(ranked)[1] == sort_keys(key[:1], torch.tensor([2**20 - 1]))[0]


CUTS = [(1, 200, 0), (7, 200, 0), (8, 130, 7), (10, 130, 7), (11, 3, 10), (14, 3, 10), (15, 0, 14)]


@pytest.mark.parametrize(("goal", "cut", "above"), CUTS)
def test_the_highest_cut_that_reaches_the_goal_is_found_here_or_over_shards(goal: int, cut: int, above: int) -> None:
    def found(comm: Any, order: list[int], w: list[int]) -> list[list[int]]:
        tokens = SortedTokens.of(torch.tensor([order]), bits=8)
        return [part.tolist() for part in tokens.cut(comm, torch.tensor([w]), goal=torch.tensor([goal]))]

    assert found(LocalComm(), [3, 200, 130], [4, 7, 3]) == [[cut], [above]]
    group = ThreadGroup(2)
    first, second = group.communicators()
    work = [partial(found, first, [3], [4]), partial(found, second, [200, 130], [7, 3])]
    assert group.run(work) == [[[cut], [above]]] * 2


def test_a_single_shard_sends_nothing() -> None:
    values = torch.arange(6).reshape(2, 3)
    comm = LocalComm()
    assert comm.max(values) is comm.sum(values) is values
    assert (comm.rank, comm.size, comm.gather(values).data_ptr()) == (0, 1, values.data_ptr())
    assert torch.equal(comm.gather(values), values[None])


# --- what is refused ----------------------------------------------------------------------------------------------

Call = Callable[[], Any]


def errors_of(calls: Sequence[Call]) -> list[str]:
    """The ParamsError of each shard, as text; "" where there is none. A shard left waiting would fail the test."""

    def text(call: Call) -> str:
        try:
            call()
        except ParamsError as error:
            return str(error)
        return ""

    return waiting(ThreadGroup(len(calls))).run([partial(text, call) for call in calls])


def waiting(group: ThreadGroup) -> ThreadGroup:
    """The group, in which nobody waits for ever."""
    group.barrier = threading.Barrier(len(group.values), timeout=30)
    return group


def meeting(
    parts: Sequence[Any],
    starts: Sequence[int],
    sizes: Sequence[int],
    params: Sequence[Any] | None = None,
    **given: Any,
) -> list[str]:
    """What each shard of a group complains of."""
    each = params or [SamplingParams(seed=1)] * len(parts)
    group = waiting(ThreadGroup(len(parts)))
    shards = [
        sharded.Shard(logits=part, start=start, vocab_size=size, group=comm)
        for part, start, size, comm in zip(parts, starts, sizes, group.communicators(), strict=True)
    ]
    return errors_of([partial(tirage.sample, shard, p, **given) for shard, p in zip(shards, each, strict=True)])


@pytest.mark.parametrize(
    ("starts", "sizes", "message"),
    [
        ([0, 3], [8, 8], r"shards must cover \[0, 8\) once, without gap or overlap, got \[0, 4\), \[3, 7\)"),
        ([0, 5], [9, 9], r"shards must cover \[0, 9\) once, without gap or overlap, got \[0, 4\), \[5, 9\)"),
        ([0, 4], [9, 9], r"shards must cover \[0, 9\) once"),
        ([0, 0], [4, 4], r"shards must cover \[0, 4\) once"),
        ([0, 4], [8, 9], r"the same vocab_size, got \[8, 9\] by rank"),
        ([0, 4], [2**21, 2**21], r"vocab_size must be in \[1, 1048576\], got 2097152"),
    ],
)
def test_bounds_that_do_not_fit_are_an_error_on_every_shard(starts: list[int], sizes: list[int], message: str) -> None:
    complaints = meeting([torch.zeros(2, 4)] * 2, starts, sizes)
    assert [bool(re.search(message, text)) for text in complaints] == [True, True]


def test_shards_may_come_in_any_order() -> None:
    whole = np.random.default_rng(3).standard_normal((2, 12)).astype(np.float32)
    order = [(8, 12), (0, 3), (3, 8)]
    group = ThreadGroup(3)

    def work(comm: Any, span: tuple[int, int]) -> list[int]:
        shard = sharded.Shard(logits=column_of(whole, span), start=span[0], vocab_size=12, group=comm)
        return tirage.sample(shard, SamplingParams(seed=4)).token_ids.tolist()

    found = group.run([partial(work, comm, span) for comm, span in zip(group.communicators(), order, strict=True)])
    assert found == [tirage.sample(whole, SamplingParams(seed=4)).token_ids.tolist()] * 3


def test_rows_that_differ_in_number_are_an_error_on_every_shard() -> None:
    complaints = meeting([torch.zeros(2, 4), torch.zeros(3, 4)], [0, 4], [8, 8])
    assert ["the same number of rows, got [2, 3] by rank" in text for text in complaints] == [True, True]


@pytest.mark.parametrize(
    "other",
    [
        {"temperature": 0.7},
        {"seed": 2},
        {"top_k": 3},
        {"logit_bias": {0: 1.0}},
        {"logprobs": 2},
        {"allowed_token_ids": [1]},
        {"stop": "end"},
        {"stop_token_ids": [3]},
        {"max_tokens": 3},
    ],
)
def test_params_that_differ_are_an_error_on_every_shard(other: dict[str, Any]) -> None:
    params = [SamplingParams(seed=1), SamplingParams(**{"seed": 1, **other}), SamplingParams(seed=1)]
    complaints = meeting([torch.zeros(1, 4)] * 3, [0, 4, 8], [12] * 3, params)
    assert ["must be equal on every shard, got others on [1] than on 0" in text for text in complaints] == [True] * 3


def test_logits_that_one_shard_refuses_are_an_error_on_every_shard() -> None:
    complaints = meeting([torch.zeros(1, 4), torch.zeros(1, 4, dtype=torch.int64)], [0, 4], [8, 8])
    refused = "shard 1 refused: logits must be float16, bfloat16, float32 or float64, got torch.int64"
    assert [refused in text for text in complaints] == [True, True]
    assert "start must be a whole number of at least 0, got -1" in meeting([torch.zeros(1, 4)], [-1], [4])[0]


WRONG: dict[str, dict[str, Any]] = {
    "params must hold one entry per row (2), got 3": {"params": [SamplingParams(seed=1)] * 3},
    "params must be a SamplingParams or a sequence of 2, got int": {"params": 5},
    "repetition_penalty must come with the tokens so far, got history None": {
        "params": SamplingParams(seed=1, repetition_penalty=2)
    },
    "history must be a list of 2 (prompt_ids, output_ids) pairs, got 1": {"history": [((), ())]},
    "history output ids must lie in [0, 12), got 12": {"history": [((), ()), ((), (12,))]},
    "step must be an integer in [0, 2^32), got -1": {"step": -1},
    "mask must have shape [2, 1] for logits [2, 12], got [2, 9]": {"mask": np.zeros((2, 9), np.int32)},
    "guided_decoding must come with a mask": {
        "params": SamplingParams(seed=1, guided_decoding=tirage.GuidedDecodingParams(regex="a"))
    },
    "n must be 1 for a row of logits": {"params": SamplingParams(seed=1, n=2)},
}


@pytest.mark.parametrize("message", WRONG)
def test_what_one_shard_turns_down_all_turn_down_and_the_next_call_works(message: str) -> None:
    group = waiting(ThreadGroup(3))
    whole = np.random.default_rng(3).standard_normal((2, 12)).astype(np.float32)

    def work(comm: Any) -> tuple[str, list[int]]:
        start = 4 * comm.rank
        shard = sharded.Shard(logits=column_of(whole, (start, start + 4)), start=start, vocab_size=12, group=comm)
        given: dict[str, Any] = {"params": SamplingParams(seed=1), **(WRONG[message] if comm.rank == 1 else {})}
        with pytest.raises(ParamsError) as refused:
            tirage.sample(shard, **given)
        return str(refused.value), tirage.sample(shard, SamplingParams(seed=4)).token_ids.tolist()

    found = group.run([partial(work, comm) for comm in group.communicators()])
    tokens = tirage.sample(whole, SamplingParams(seed=4)).token_ids.tolist()
    assert len({text for text, _ in found}) == 1
    assert found[0][0].startswith("every shard must accept its arguments, shard 1 refused: " + message)
    assert [drawn for _, drawn in found] == [tokens] * 3


def test_an_error_that_is_no_params_error_is_told_too() -> None:
    group = waiting(ThreadGroup(2))

    class Broken(list[Any]):
        def __iter__(self) -> Any:
            raise ZeroDivisionError("on purpose")

    def work(comm: Any) -> None:
        shard = sharded.Shard(logits=torch.zeros(1, 4), start=4 * comm.rank, vocab_size=8, group=comm)
        history: Any = [((), Broken() if comm.rank else ())]
        with pytest.raises(ParamsError, match=r"shard 1 refused: on purpose$"):
            tirage.sample(shard, SamplingParams(), history=history)

    group.run([partial(work, comm) for comm in group.communicators()])


@pytest.mark.parametrize("history", [[((1,), (2,))], [((), (2, 1))], [((2, 1), ())], [((), (1, 3))]])
def test_histories_that_differ_are_an_error_on_every_shard_read_or_not(history: list[Any]) -> None:
    group = waiting(ThreadGroup(2))

    def work(comm: Any) -> str:
        shard = sharded.Shard(logits=torch.zeros(1, 4), start=4 * comm.rank, vocab_size=8, group=comm)
        given = [((), (1, 2))] if comm.rank == 0 else history
        with pytest.raises(ParamsError) as refused:
            tirage.sample(shard, SamplingParams(seed=1), history=given, step=0)
        return str(refused.value)

    found = group.run([partial(work, comm) for comm in group.communicators()])
    assert ["must be equal on every shard, got others on [1] than on 0" in text for text in found] == [True, True]


def test_a_batch_that_one_shard_cannot_fit_is_an_error_on_every_shard() -> None:
    group = waiting(ThreadGroup(2))

    def work(comm: Any) -> tuple[str, list[int]]:
        batch = tirage.Batch(8, 2)
        batch.add(SamplingParams(seed=1))
        shard = sharded.Shard(logits=torch.zeros(1, 4), start=4 * comm.rank, vocab_size=8, group=comm)
        with pytest.raises(ParamsError) as refused:
            batch.sample(shard, mask=np.zeros((1, 1 + comm.rank), np.int32))
        return str(refused.value), batch.sample(shard).token_ids.tolist()

    (text, tokens), other = group.run([partial(work, comm) for comm in group.communicators()])
    assert other == (text, tokens)
    assert "shard 1 refused: mask must have shape [1, 1] for logits [1, 8], got [1, 2]" in text


def test_rows_without_a_seed_share_a_fresh_one() -> None:
    group = ThreadGroup(3)

    def work(comm: Any) -> tuple[list[int], list[int]]:
        shard = sharded.Shard(logits=torch.zeros(4, 50), start=50 * comm.rank, vocab_size=150, group=comm)
        drawn = tirage.sample(shard, [SamplingParams(), SamplingParams(seed=9), SamplingParams(), SamplingParams()])
        return drawn.token_ids.tolist(), drawn.seeds.tolist()

    first, *others = group.run([partial(work, comm) for comm in group.communicators()])
    assert others == [first, first]
    assert first[1][1] == 9
    assert len(set(first[1])) == 4


@pytest.mark.parametrize("call", [tirage.law, tirage.explain])
def test_what_reads_whole_rows_refuses_shards(call: Callable[..., Any]) -> None:
    parts = sharded.Shards([np.zeros((1, 3), np.float32)] * 2)
    with pytest.raises(ParamsError, match="logits must be whole rows here, got shards"):
        call(parts, SamplingParams())


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([], "parts must be a list of arrays, got list"),
        (np.zeros((2, 3), np.float32), "parts must be a list of arrays, got numpy.ndarray"),
        ([np.zeros((2, 3), np.float32), np.zeros((1, 3), np.float32)], r"the same number of rows, got \[2, 1\]"),
        ([np.zeros((2, 3), np.int32)], "logits must be float16, bfloat16, float32 or float64"),
        ([[0.0, 1.0]], "logits must be a dense torch.Tensor with data, got list"),
        ([np.zeros((2, 0), np.float32)], r"vocab_size must be in \[1, 1048576\], got 0"),
    ],
)
def test_parts_that_are_no_logits_are_refused(parts: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        tirage.sample(sharded.Shards(parts), SamplingParams())


def test_a_group_must_exist() -> None:
    shard = sharded.Shard(logits=torch.zeros(1, 4), start=0, vocab_size=4)
    with pytest.raises(ParamsError, match=r"call torch.distributed.init_process_group first"):
        tirage.sample(shard, SamplingParams())


def test_a_shard_that_fails_does_not_leave_the_others_waiting() -> None:
    group = ThreadGroup(2)

    def fail() -> None:
        raise ZeroDivisionError("on purpose")

    with pytest.raises(ZeroDivisionError, match="on purpose"):
        group.run([partial(group.communicators()[0].sum, torch.zeros(1)), fail])


# --- torch.distributed --------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_three_processes_over_gloo_draw_what_one_draws(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(draw_and_tell, (str(tmp_path),), nprocs=3)
    expected = tirage.sample(rows_to_share(), ROWS, history=[((1, 25), (25, 50))] * len(ROWS))
    for rank in range(3):
        seen = np.load(tmp_path / f"{rank}.npz")
        for name in REPORTED:
            np.testing.assert_array_equal(seen[name], np.asarray(getattr(expected, name)), name)
        assert "shards must cover [0, 57) once" in seen["complaints"][0]
        equal = "must be equal on every shard, got others on "
        assert f"{equal}[1, 2] than on 0" in seen["complaints"][1]
        for at, refused in ((2, "params must hold one entry per row (6), got 7"), (3, "mask must have shape [6, 2]")):
            assert seen["complaints"][at].startswith(
                f"every shard must accept its arguments, shard 1 refused: {refused}"
            )
        assert [f"{equal}[1] than on 0" in text for text in seen["complaints"][4:]] == [True, True]
