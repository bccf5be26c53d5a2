"""Which sequences of finished requests are kept for later prompts, and where; llama-cpp-python is not needed."""

from __future__ import annotations

import numpy as np

from tirage.models.gguf.prefixes import MOST, SHORTEST, KeptSequence, KeptSequences


def kept_of(first: int, count: int = 20, *, sequence: int | None = 0, size: int = 1, salt: str = "") -> KeptSequence:
    return KeptSequence(np.arange(first, first + count, dtype=np.int32), salt, size, sequence)


def test_the_longest_common_beginning_is_found() -> None:
    kept, short, long = KeptSequences(100), kept_of(0, 20), kept_of(0, 40)
    long.token_ids[30:] = 7
    for each in (long, short, kept_of(500)):
        assert kept.add(each) == []
    assert kept.find(range(25), "") == (long, 25)
    assert kept.find(range(40), "") == (long, 30)
    assert kept.find(range(SHORTEST - 1), "") is None
    assert kept.find(range(25), "another") is None


def test_of_equals_the_one_in_the_context_is_found() -> None:
    kept, here, there = KeptSequences(100), kept_of(0, 20), kept_of(0, 20, sequence=None)
    here.token_ids[18:], there.token_ids[18:] = 7, 8
    kept.add(here)
    kept.add(there)
    assert kept.find(range(18), "") == (here, 18)


def test_what_a_sequence_continues_goes() -> None:
    kept, first, other = KeptSequences(100), kept_of(0, 20), kept_of(0, 20, salt="another")
    kept.add(first)
    kept.add(other)
    assert kept.add(kept_of(0, 30)) == [first]
    assert len(kept) == 2


def test_the_least_recently_used_goes_beyond_the_budget() -> None:
    kept, first, second = KeptSequences(2), kept_of(0), kept_of(100)
    kept.add(first)
    kept.add(second)
    kept.find(range(25), "")
    assert kept.add(kept_of(200)) == [second]
    assert kept.add(large := kept_of(300, size=3))[-1] is large
    assert len(kept) == 0


def test_there_is_a_most_of_them() -> None:
    kept = KeptSequences(1 << 40)
    all_ = [kept_of(100 * at) for at in range(MOST + 1)]
    assert [kept.add(each) for each in all_] == [[]] * MOST + [[all_[0]]]


def test_room_is_made_in_the_context_first() -> None:
    kept, saved, here = KeptSequences(100), kept_of(0, sequence=None), kept_of(100)
    kept.add(saved)
    kept.add(here)
    assert kept.resident == [here]
    assert [kept.take_oldest(), kept.take_oldest()] == [here, saved]
    assert len(kept) == 0
