"""Custom processors over shards: the logits of their rows are gathered, and the draw is that of whole rows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from gloo_process import REPORTED
from numpy.typing import NDArray

import tirage
from tirage import SamplingParams, Status
from tirage.backends import sharded
from tirage.backends.sharded.agreement import is_one_kind
from tirage.backends.sharded.communicators import Metered, ThreadGroup
from tirage.draw import Draw

SIZE = 41
SPANS = [(20, 41), (0, 7), (7, 7), (7, 20)]
"""Bounds by rank: out of order, one of them empty."""


class Calls:
    """A processor that reverses the logits, and remembers what it was called with."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def __call__(self, logits: NDArray[np.float32], args: Any) -> NDArray[np.float32]:
        self.shapes.append(logits.shape)
        return logits[:, ::-1]


def broken(logits: Any, args: Any) -> Any:
    raise ValueError("on purpose")


def named(name: str, **fields: Any) -> SamplingParams:
    return SamplingParams(logits_processors=((f"shards test: {name}", {}),), **fields)


@pytest.fixture
def calls() -> Calls:
    calls = Calls()
    tirage.register_processor("shards test: reversed", calls, replace=True)
    tirage.register_processor("shards test: broken", broken, replace=True)
    return calls


def rows() -> tuple[NDArray[np.float32], list[SamplingParams]]:
    params = [
        SamplingParams(seed=1, top_p=0.9, logprobs=2),
        named("reversed", seed=2, top_p=0.8, repetition_penalty=1.5, logprobs=4, logprobs_mode="sampled"),
        named("broken", seed=3, logprobs=1),
        named("reversed", seed=4, temperature=0.0, logprob_token_ids=[0, 40]),
        SamplingParams(seed=5),
        named("reversed", seed=6),
    ]
    logits = np.random.default_rng(9).standard_normal((len(params), SIZE)).astype(np.float32) * 3
    logits[5, 30] = np.nan
    return logits, params


def history(count: int) -> list[Any]:
    return [([1, 2], [30])] * count


def assert_same_draw(expected: Draw, actual: Draw) -> None:
    for name in (*REPORTED, "seeds"):
        np.testing.assert_array_equal(np.asarray(getattr(actual, name)), np.asarray(getattr(expected, name)), name)
    np.testing.assert_equal(actual.given_logprobs, expected.given_logprobs)


@pytest.mark.parametrize("convert", [np.asarray, torch.from_numpy])
def test_rows_with_processors_and_their_neighbours_draw_what_whole_rows_draw(
    calls: Calls, convert: Callable[..., Any]
) -> None:
    logits, params = rows()
    expected = tirage.sample(logits, params, history=history(6))
    assert expected.status.tolist() == [0, 0, Status.processor_failed, 0, 0, Status.non_finite_logits]
    called = len(calls.shapes)
    parts = sharded.Shards([convert(logits[:, :7]), convert(logits[:, 7:7]), convert(logits[:, 7:])])
    assert_same_draw(expected, tirage.sample(parts, params, history=history(6)))
    assert calls.shapes == [(1, SIZE)] * 2 * called


def test_every_process_of_a_group_gets_the_draw_of_the_first(calls: Calls) -> None:
    logits, params = rows()
    expected = tirage.sample(logits, params, history=history(6))
    called = len(calls.shapes)
    group = ThreadGroup(len(SPANS))

    def work(comm: Any, span: tuple[int, int]) -> Draw:
        part = torch.from_numpy(logits[:, slice(*span)].copy())
        shard = sharded.Shard(logits=part, start=span[0], vocab_size=SIZE, group=comm)
        return tirage.sample(shard, params, history=history(6))

    each = group.run([partial(work, comm, span) for comm, span in zip(group.communicators(), SPANS, strict=True)])
    for drawn in each:
        assert_same_draw(expected, drawn)
    assert calls.shapes == [(1, SIZE)] * 2 * called


def test_a_processor_that_never_repeats_itself_cannot_part_the_shards() -> None:
    rng = np.random.default_rng()
    tirage.register_processor("shards test: noise", lambda x, args: rng.standard_normal(x.shape), replace=True)
    group = ThreadGroup(3)

    def work(comm: Any) -> list[int]:
        shard = sharded.Shard(logits=torch.zeros(8, 30), start=30 * comm.rank, vocab_size=90, group=comm)
        return tirage.sample(shard, [named("noise", seed=seed) for seed in range(8)]).token_ids.tolist()

    first, *others = group.run([partial(work, comm) for comm in group.communicators()])
    assert others == [first, first]


def test_only_the_logits_of_the_rows_that_need_it_cross(calls: Calls) -> None:
    def sent(params: list[SamplingParams]) -> int:
        group = ThreadGroup(2)
        meters = [Metered(comm) for comm in group.communicators()]

        def work(meter: Metered) -> Draw:
            shard = sharded.Shard(logits=torch.zeros(3, 500), start=500 * meter.rank, vocab_size=1000, group=meter)
            return tirage.sample(shard, params)

        group.run([partial(work, meter) for meter in meters])
        return meters[1].sent

    plain = [SamplingParams(seed=seed) for seed in range(3)]
    drawn_in_parts, fields_told = 16 + 24, 8 * 6
    changed = 4 * 500 + fields_told - drawn_in_parts
    assert sent([plain[0], named("reversed", seed=1), plain[2]]) == sent(plain) + changed


def test_kernels_draw_shards_on_gpus_of_one_kind_alone() -> None:
    assert all(is_one_kind(kinds) for kinds in ([90], [80, 80, 80]))
    assert not any(is_one_kind(kinds) for kinds in ([0], [0, 0], [90, 0], [80, 90]))
