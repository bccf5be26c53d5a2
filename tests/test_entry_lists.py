"""Lists of log-probabilities that are made when they are read, and the memory of answers that have a million."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from small_tokenizers import Letters

import tirage
from tirage import LLM, BeamSearchParams, SamplingParams
from tirage.engine.completion import LogprobEntry
from tirage.engine.entry_lists import (
    GivenLogprobs,
    TopEntries,
    entry,
    given_logprobs,
    groups_of,
    ranks_of,
    top_entries,
)


def drawn(count: int, **more: Any) -> tirage.Draw:
    """A draw of one row, whose first two tokens are equally likely."""
    logits = np.array([[3.0, 3.0, 1.0, 2.0, -np.inf, 0.0]], np.float32)
    return tirage.sample(logits, SamplingParams(seed=1, logprobs=count, **more))


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("tiny")


@pytest.mark.parametrize("count", [0, 1, 3, 5, 6])
def test_the_entries_are_those_of_the_draw(count: int, llm: LLM) -> None:
    found = drawn(count)
    listed = top_entries(found, 0, count, llm.tokenizer)
    ids = [] if found.top_token_ids is None else [int(i) for i in found.top_token_ids[0][:count] if i >= 0]
    values = [] if found.top_logprobs is None else [float(value) for value in found.top_logprobs[0][: len(ids)]]
    expected = tuple(entry(llm.tokenizer, *each) for each in zip(ids, values, ranks_of(values), strict=True))
    assert tuple(listed) == expected
    assert len(listed) == len(expected)
    assert [each.rank for each in listed] == [1, 1, 3, 4, 5, 6][: len(listed)]


def test_they_are_a_sequence_like_a_tuple(llm: LLM) -> None:
    listed = top_entries(drawn(4), 0, 4, llm.tokenizer)
    same = tuple(listed)
    assert isinstance(listed, TopEntries)
    assert (listed, same) == (same, listed)
    assert hash(listed) == hash(same)
    assert repr(listed) == repr(same)
    assert listed != same[:3]
    assert listed != list(same)
    assert (listed[0], listed[-1], listed[1:3], tuple(listed[:2])) == (same[0], same[-1], same[1:3], same[:2])
    assert isinstance(listed[:2], TopEntries)
    assert same[1] in listed
    assert listed.index(same[2]) == 2
    with pytest.raises(IndexError):
        listed[4]


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
def test_a_copy_is_a_tuple_and_takes_no_tokenizer_along(copied: Any, llm: LLM) -> None:
    one = entry(
        llm.tokenizer, 3, -1.0, 2, top=top_entries(drawn(2), 0, 2, llm.tokenizer), given=given_logprobs((1,), [0.5])
    )
    assert copied(one) == one
    assert (type(copied(one).top), type(copied(one).given)) == (tuple, tuple)
    assert len(pickle.dumps(one)) < 2000


def test_given_logprobs_are_pairs() -> None:
    found = given_logprobs((7, 3), np.array([-1.5, -np.inf], np.float32))
    assert isinstance(found, GivenLogprobs)
    assert found == ((7, -1.5), (3, -np.inf))
    assert dict(found) == {7: -1.5, 3: -np.inf}
    assert given_logprobs((), []) == ()


def test_the_values_are_not_those_of_an_array_that_changes(llm: LLM) -> None:
    values, found = np.array([-1.0, -2.0], np.float32), drawn(2)
    given, listed = given_logprobs((1, 2), values), top_entries(found, 0, 2, llm.tokenizer)
    before = tuple(listed)
    values[:] = 0
    found.top_logprobs[:] = 0
    assert given == ((1, -1.0), (2, -2.0))
    assert listed == before


def test_a_completion_lists_what_it_did_when_it_held_each_entry(llm: LLM) -> None:
    params = SamplingParams(seed=2, max_tokens=6, logprobs=3, logprob_token_ids=(5, 9), prompt_logprobs=2)
    [found] = llm.generate("Once upon a time", params)
    for each in (*(found.logprobs or ()), *(one for one in found.prompt_logprobs or () if one is not None)):
        assert all(isinstance(top, LogprobEntry) for top in each.top)
        assert replace(each, top=tuple(each.top), given=tuple(each.given)) == each
        assert [token for token, _ in each.given] == [5, 9]
    assert [len(each.top) for each in found.logprobs or ()] == [3] * 6


class NearTies:
    """Logits that differ by less than their log-probabilities can: those of the letters b, c, d, and two equal ones."""

    vocab_size, max_length = 128, 50

    def __init__(self) -> None:
        self.logits = np.full(128, -1, np.float32)
        self.logits[[ord(letter) for letter in "cbd"]] = 0.0, -1e-9, -2e-9
        self.logits[[ord("x"), ord("y")]] = -0.5

    def prefill(self, token_ids: Sequence[int]) -> tuple[NDArray[np.float32], list[int]]:
        return self.logits, [*token_ids]

    def decode(self, token_ids: Sequence[int], caches: Sequence[list[int]]) -> NDArray[np.float32]:
        return np.stack([self.logits for _ in token_ids])

    def fork(self, cache: list[int]) -> list[int]:
        return [*cache]

    def score(self, token_ids: Sequence[int]) -> NDArray[np.float32]:
        return np.stack([self.logits for _ in token_ids])


RANKS = {"c": 1, "b": 2, "d": 3, "x": 4, "y": 4}


def ranks_in(found: LogprobEntry | None) -> dict[str, int]:
    """The ranks of an entry's top list, and of its token."""
    assert found is not None
    return {each.text: each.rank for each in (*found.top, found)}


@pytest.fixture(scope="module")
def near() -> LLM:
    return LLM(NearTies(), tokenizer=Letters())


def test_ranks_are_those_of_logits_in_a_view_that_nothing_has_edited(near: LLM) -> None:
    plain = SamplingParams(seed=1, max_tokens=2, logprobs=5, logprobs_mode="processed", temperature=0.7, top_k=40)
    for params in (plain, plain.replace(temperature=0), plain.replace(logit_bias={ord("a"): -float("inf")})):
        for found in near.generate("p", params)[0].logprobs or ():
            assert ranks_in(found) == RANKS | {found.text: found.rank}
            assert RANKS.get(found.text, found.rank) == found.rank


@pytest.mark.parametrize("letter", RANKS)
def test_ranks_are_those_of_logits_whose_logprobs_are_equal(near: LLM, letter: str) -> None:
    params = SamplingParams(seed=1, max_tokens=2, logprobs=5, allowed_token_ids=[ord(letter)])
    for found in near.generate("p", params)[0].logprobs or ():
        assert (found.text, found.rank) == (letter, RANKS[letter])
        assert ranks_in(found) == RANKS
        assert len({each.logprob for each in found.top[:3]}) == 1


def test_ranks_in_prompts_and_beams_are_those_of_logits(near: LLM) -> None:
    done = near.generate("p" + "".join(RANKS), SamplingParams(seed=1, max_tokens=1, prompt_logprobs=5))[0]
    for letter, found in zip(RANKS, (done.prompt_logprobs or ())[1:], strict=True):
        assert found is not None
        assert (found.text, found.rank) == (letter, RANKS[letter])
        assert ranks_in(found) == RANKS
    for mode in ("raw", "processed"):
        sampling = SamplingParams(logprobs=5, logprobs_mode=mode)
        beams = near.beam_search("p", BeamSearchParams(beam_width=4, max_tokens=1), sampling=sampling)[0]
        for sample in beams.samples:
            [found] = sample.logprobs or ()
            assert (ranks_in(found), found.rank) == (RANKS, RANKS[found.text])


@pytest.mark.parametrize("letter", RANKS)
def test_the_token_of_a_step_has_one_rank_in_any_view(near: LLM, letter: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=1, logprobs=5, logprobs_mode="processed")
    asked = params.replace(logit_bias={ord(letter): 1.0}, semantics="canonical")
    [found] = near.generate("p", asked)[0].logprobs or ()
    assert (found.text, found.rank) == (letter, 1)
    assert [each.rank for each in found.top if each.text == letter] == [1]


def test_groups_follow_from_what_is_known_of_equal_values() -> None:
    ids, values = np.array([5, 6, 2, 9, 4]), np.array([-1.0, -1.0, -1.0, -1.0, -2.0])
    # Equal logits are listed by ascending ids.
    assert ranks_of(groups_of(ids, values, None).tolist()) == [1, 1, 3, 3, 5]
    # The rank of a token says where its equals begin.
    assert ranks_of(groups_of(ids, values, (6, 2)).tolist()) == [1, 2, 3, 3, 5]
    assert ranks_of(groups_of(ids, values, (9, 4)).tolist()) == [1, 1, 3, 4, 5]
    assert ranks_of(groups_of(ids, values, (6, 1)).tolist()) == [1, 1, 3, 3, 5]
    assert ranks_of(groups_of(ids, values, (7, 3)).tolist()) == [1, 1, 3, 3, 5]
    assert groups_of(ids[:0], values[:0], (7, 3)).size == 0
