"""Lists of log-probabilities that are made when they are read, and the memory of answers that have a million."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tirage
from tirage import LLM, SamplingParams
from tirage.engine.completion import LogprobEntry
from tirage.engine.entry_lists import GivenLogprobs, TopEntries, entry, given_logprobs, ranks_of, top_entries


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
