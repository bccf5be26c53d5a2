"""Histories: counts that grow, and the three rules that read the order of the tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from tries import tries

from tirage import ParamsError
from tirage.history import Counts, History
from tirage.operators.bad_words import completing
from tirage.operators.dry import penalties as dry_penalties
from tirage.operators.dry import unbroken
from tirage.operators.no_repeat_ngram import repeating

IDS = st.lists(st.integers(0, 5), max_size=25)


def ids(*tokens: int) -> NDArray[np.int32]:
    return np.array(tokens, np.int32)


def as_dict(counts: Counts) -> dict[int, tuple[int, int]]:
    """Token -> (times in the prompt, times in the output)."""
    return {int(i): (int(p), int(o)) for i, p, o in counts.table.T}


def counted(prompt: list[int], output: list[int]) -> dict[int, tuple[int, int]]:
    return {token: (prompt.count(token), output.count(token)) for token in {*prompt, *output}}


# --- tokens and counts -------------------------------------------------------------------------------------------


@pytest.mark.slow
@tries(60)
@given(prompt=IDS, output=IDS, more=IDS, count_first=st.booleans())
def test_counts_kept_up_to_date_equal_counts_from_scratch(
    prompt: list[int], output: list[int], more: list[int], count_first: bool
) -> None:
    history = History.of(prompt, output, vocab_size=6)
    if count_first:
        history.counts()
    for n, token in enumerate(more, 1):
        history.append(token)
        if n % 3:
            assert as_dict(history.counts()) == counted(prompt, output + more[:n])
    assert history.tokens().tolist() == prompt + output + more
    assert history.output().tolist() == output + more
    assert history.step == len(output + more)


@tries(60)
@given(prompt=IDS, output=IDS, window=st.integers(1, 60))
def test_a_window_counts_the_last_tokens_whichever_side_they_came_from(
    prompt: list[int], output: list[int], window: int
) -> None:
    history = History.of(prompt, output, vocab_size=6)
    tail = (prompt + output)[-window:]
    assert as_dict(history.counts(window)) == counted(tail, [])


def test_counts_grow_past_any_room_set_aside() -> None:
    history = History.of([999], vocab_size=1000)
    history.counts()
    for token in [*range(500), *range(250)]:
        history.append(token)
    assert as_dict(history.counts()) == counted([999], [*range(500), *range(250)])


def test_scopes_count_prompt_output_or_both() -> None:
    counts = History.of([1, 1, 2], [2, 3], vocab_size=4).counts()
    assert counts.ids.tolist() == [1, 2, 3]
    assert [counts.seen(scope).tolist() for scope in ("prompt", "output", "both")] == [[2, 1, 0], [0, 1, 1], [2, 2, 1]]


def test_an_empty_history_has_no_counts_and_step_zero() -> None:
    history = History.of([], vocab_size=4)
    assert as_dict(history.counts()) == as_dict(history.counts(5)) == {}
    assert history.step == 0


def test_a_history_does_not_share_the_callers_arrays() -> None:
    prompt = np.arange(20, dtype=np.int32)
    history = History.of(prompt[:3], [], vocab_size=20)
    for token in (19, 18):
        history.append(token)
    assert prompt.tolist() == list(range(20))
    prompt[:] = 0
    assert history.tokens().tolist() == [0, 1, 2, 19, 18]


def test_a_copy_goes_its_own_way() -> None:
    first = History.of([1, 2], [3], vocab_size=9)
    first.counts()
    second = first.copy()
    first.append(4)
    second.append(5)
    assert [first.tokens().tolist(), second.tokens().tolist()] == [[1, 2, 3, 4], [1, 2, 3, 5]]
    assert [as_dict(h.counts()) for h in (first, second)] == [counted([1, 2], [3, 4]), counted([1, 2], [3, 5])]


def test_ids_must_lie_in_the_vocabulary() -> None:
    for bad in (-1, 9):
        with pytest.raises(ParamsError) as error:
            History.of([0], [8, bad], vocab_size=9)
        assert str(error.value) == f"history output ids must lie in [0, 9), got {bad}; drop padding before the call"


# --- bad words and n-grams ---------------------------------------------------------------------------------------


def test_a_word_is_banned_at_its_last_token_once_the_rest_has_been_said() -> None:
    words = [(7,), (1, 2), (3, 1, 5), (1, 1, 6)]
    assert completing(words, ids()) == [7]
    assert completing(words, ids(1)) == [7, 2]
    assert completing(words, ids(9, 3, 1)) == [7, 2, 5]
    assert completing(words, ids(1, 9)) == [7]
    assert completing(words, ids(1, 1)) == [7, 2, 6]


@tries(60)
@given(tokens=IDS, words=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=3).map(tuple), max_size=5))
def test_a_token_is_banned_exactly_when_it_would_end_a_bad_word(
    tokens: list[int], words: list[tuple[int, ...]]
) -> None:
    text = tokens[:]
    for token in tokens:
        ended = [word for word in words if tuple([*text, token][-len(word) :]) == word]
        assert (token in completing(words, ids(*text))) == bool(ended)
        text.append(token)


def test_an_ngram_is_banned_at_its_last_token() -> None:
    said = ids(1, 2, 3, 1, 2)
    assert repeating(3, said).tolist() == [3]
    assert repeating(2, said).tolist() == [3]
    assert repeating(1, said).tolist() == [1, 2, 3]
    assert repeating(4, said).tolist() == []
    assert repeating(2, ids(1, 1, 1)).tolist() == [1]
    assert repeating(2, ids(1, 2, 1, 3, 1)).tolist() == [2, 3]


@tries()
@given(tokens=IDS, size=st.integers(1, 5))
def test_exactly_the_tokens_that_repeat_an_ngram_are_banned(tokens: list[int], size: int) -> None:
    grams = {tuple(tokens[i : i + size]) for i in range(len(tokens) - size + 1)}
    head = tokens[len(tokens) - size + 1 :] if size > 1 else []
    expected = [token for token in range(6) if len(tokens) >= size - 1 and (*head, token) in grams]
    assert repeating(size, ids(*tokens)).tolist() == expected


# --- DRY ---------------------------------------------------------------------------------------------------------


def dry(
    tokens: list[int], *breakers: int, allowed_length: int = 2, last_n: int = -1, **options: float
) -> dict[int, float]:
    penalties = dry_penalties(
        ids(*tokens),
        multiplier=options.get("multiplier", 1.0),
        base=options.get("base", 2.0),
        allowed_length=allowed_length,
        last_n=last_n,
        breakers=frozenset(breakers),
    )
    return {token: float(penalty) for token, penalty in penalties.items()}


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([1, 2, 3, 1, 2], {3: 1.0}),  # "1 2" was followed by 3: length 2 is 2^(2-2)
        ([1, 2, 3, 4, 1, 2, 3], {4: 2.0}),  # length 3
        ([1, 2, 3, 1, 4, 1], {}),  # length 1 only
        ([1, 2, 3, 1, 2, 4, 1, 2], {3: 1.0, 4: 1.0}),  # two ways to go on
        ([9, 1, 2, 3, 8, 1, 2, 3, 9, 1, 2], {3: 2.0}),  # the longer of two matches counts
        ([5, 5, 5, 5], {5: 2.0}),  # matches may overlap: "5 5 5" was followed by 5
        ([1, 2], {}),
        ([], {}),
    ],
)
def test_dry_by_hand(tokens: list[int], expected: dict[int, float]) -> None:
    assert dry(tokens) == expected


def test_dry_takes_multiplier_base_and_allowed_length() -> None:
    said = [1, 2, 3, 4, 1, 2, 3]
    assert dry(said, multiplier=0.5, base=3.0) == {4: 1.5}
    assert dry(said, allowed_length=1) == {4: 4.0}
    assert dry(said, allowed_length=3) == {4: 1.0}
    assert dry(said, allowed_length=4) == {}
    assert dry([1, 2, 1], allowed_length=1) == {2: 1.0}


def test_a_dry_match_does_not_cross_a_breaker() -> None:
    said = [1, 0, 2, 3, 4, 1, 0, 2, 3]
    assert dry(said) == {4: 4.0}
    assert dry(said, 0) == {4: 1.0}
    assert dry(said, 2) == {}
    assert dry(said, 3) == {}


@pytest.mark.parametrize("place", [0, 1, 62, 63, 64, 65, 199])
def test_the_last_breaker_is_found_however_far_back_it_is(place: int) -> None:
    said = np.ones(200, np.int32)
    said[199 - place] = 7
    assert unbroken(said, {7, 8}) == place
    assert unbroken(said, {8}) == unbroken(said, ()) == 200


def test_dry_never_penalises_a_breaker() -> None:
    assert dry([1, 2, 0, 1, 2]) == {0: 1.0}
    assert dry([1, 2, 0, 1, 2], 0) == {}


def test_dry_looks_back_only_as_far_as_told() -> None:
    said = [1, 2, 3, 4, 1, 2, 3]
    assert [dry(said, last_n=n) for n in (0, 3, 6, 7, 99)] == [{}, {}, {4: 1.0}, {4: 2.0}, {4: 2.0}]


def test_a_dry_penalty_never_overflows() -> None:
    (penalty,) = dry([1] * 3000, base=1e30, multiplier=1e30).values()
    assert penalty == float(np.finfo(np.float32).max)


def slow_dry(tokens: list[int], breakers: set[int], allowed_length: int, last_n: int) -> dict[int, float]:
    """The rule as written: for each token that may come next, the longest suffix that it followed before."""
    window = tokens if last_n < 0 else tokens[len(tokens) - min(last_n, len(tokens)) :]
    longest: dict[int, int] = {}
    for place in range(1, len(window)):
        length = 0
        while length < place and window[place - 1 - length] == window[len(window) - 1 - length]:
            if window[place - 1 - length] in breakers:
                break
            length += 1
        if length >= allowed_length and window[place] not in breakers:
            longest[window[place]] = max(length, longest.get(window[place], 0))
    return {token: 2.0 ** (length - allowed_length) for token, length in longest.items()}


@pytest.mark.slow
@tries(300)
@given(
    tokens=st.lists(st.integers(0, 2), max_size=40),
    breakers=st.sets(st.integers(0, 3), max_size=1),
    allowed_length=st.integers(1, 4),
    last_n=st.integers(-1, 45),
)
def test_dry_equals_the_slow_way(tokens: list[int], breakers: set[int], allowed_length: int, last_n: int) -> None:
    expected = slow_dry(tokens, breakers, allowed_length, last_n)
    assert dry(tokens, *breakers, allowed_length=allowed_length, last_n=last_n) == expected
