"""Forced text beside others: how much of it is found and read in a step, and that its tokens do not depend on it."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from tirage import LLM, GuidedDecodingParams, SamplingParams
from tirage.engine import Tenant, forced_turns
from tirage.engine.fairness import FairnessKey

pytestmark = pytest.mark.slow

LONG = "The friendly old boy went to the river and saw a bridge. "
SCHEMA = {
    "type": "object",
    "properties": {"title": {"const": LONG}, "age": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["title", "age"],
    "additionalProperties": False,
}
GUIDED = GuidedDecodingParams(json=SCHEMA, disable_any_whitespace=True)
FORCED = SamplingParams(guided_decoding=GUIDED, forcing="canonical", max_tokens=120, seed=1)


@pytest.fixture(scope="module")
def tiny() -> LLM:
    return LLM("tiny")


@pytest.fixture
def reads(tiny: LLM, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The number of the step and the number of tokens of each pass that reads forced tokens."""
    found: list[tuple[int, int]] = []
    extend_row = tiny.engine.model.extend_row  # type: ignore[attr-defined]  # tiny has it

    def counted(row: Any, token_ids: Sequence[int]) -> Any:
        found.append((tiny.engine.progress().steps, len(token_ids)))
        return extend_row(row, token_ids)

    monkeypatch.setattr(tiny.engine.model, "extend_row", counted)
    return found


def test_a_step_reads_a_part_of_what_many_samples_were_forced(tiny: LLM, reads: list[tuple[int, int]]) -> None:
    [reply] = tiny.generate("Once", FORCED.replace(n=128))
    assert all(json.loads(sample.text)["title"] == LONG for sample in reply.samples)
    read = Counter[int]()
    for step, count in reads:
        read[step] += count
    longest = max(count for _, count in reads)
    assert sum(read.values()) > 128 * 10
    assert max(read.values()) < forced_turns.READ_TOKENS + longest


@pytest.mark.parametrize(("slice_s", "tokens"), [(0.0, 1), (0.0, 1 << 20), (60.0, 1), (60.0, 1 << 20)])
def test_tokens_do_not_depend_on_whose_turn_it_was(
    tiny: LLM, monkeypatch: pytest.MonkeyPatch, slice_s: float, tokens: int
) -> None:
    prompts = ["Once", "One day", "The fox: ", "A story. "]
    params = [FORCED.replace(seed=seed, n=3) for seed in range(3)] + [SamplingParams(seed=9, max_tokens=30)]
    expected = [[s.token_ids for s in tiny.generate(*each)[0].samples] for each in zip(prompts, params, strict=True)]
    monkeypatch.setattr(forced_turns, "SLICE_S", slice_s)
    monkeypatch.setattr(forced_turns, "READ_TOKENS", tokens)
    found = tiny.generate(prompts, params)
    assert [[sample.token_ids for sample in reply.samples] for reply in found] == expected


def test_a_neighbour_gets_its_tokens_between_the_parts(tiny: LLM, reads: list[tuple[int, int]]) -> None:
    stream = tiny.stream("Once upon a time", SamplingParams(seed=3, max_tokens=100, ignore_eos=True))
    next(iter(stream))
    other = tiny.stream("Once", FORCED.replace(n=64))
    next(iter(other))
    steps = [tiny.engine.progress().steps for _ in stream]
    for _ in other:
        pass
    busy = {step for step, _ in reads}
    # The reads of 64 samples take more steps than one, and in these the neighbour has drawn.
    assert len(busy) > 64 * 10 / forced_turns.READ_TOKENS
    assert len(busy & {*steps, *(step - 1 for step in steps)}) > 2


def test_finding_takes_a_part_of_a_step_and_one_sample_at_least() -> None:
    key = FairnessKey(Tenant(), 1)
    waiting: list[Any] = [SimpleNamespace(may_force=True, group=SimpleNamespace(key=key)) for _ in range(9)]
    for tick, expected in ((forced_turns.SLICE_S * 0.75, 2), (forced_turns.SLICE_S * 5, 1), (0.0, 9)):
        clock = itertools.count(step=tick)
        turns = forced_turns.ForcedTurns(clock=lambda clock=clock: next(clock))
        assert len([*turns.to_find(waiting)]) == expected


def test_requests_take_turns(tiny: LLM, reads: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """A request of one sample does not wait for all samples of another one."""
    monkeypatch.setattr(forced_turns, "READ_TOKENS", 1)
    many = tiny.stream("Once", FORCED.replace(n=40))
    next(iter(many))
    one = tiny.stream("The fox: ", FORCED.replace(seed=5))
    texts = [delta.text for delta in one]
    read_by_then = len(reads)
    for _ in many:
        pass
    assert json.loads("".join(texts))["title"] == LONG
    assert read_by_then < len(reads) / 2
