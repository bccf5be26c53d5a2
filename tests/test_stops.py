"""Where a text ends: the same place however it was cut into tokens, and no later than it must be known."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from tries import tries

from tirage.text import Stop, StopChecker


def run_stops(checker: StopChecker, pieces: Sequence[str]) -> tuple[list[str], Stop | None]:
    released = []
    for count, piece in enumerate(pieces, start=1):
        text, stop = checker.feed(piece, count)
        released.append(text)
        if stop is not None:
            return released, stop
    return [*released, checker.finish()], None


def cuts(text: str, places: list[int]) -> list[str]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[a:b] for a, b in itertools.pairwise(edges)]


LETTERS = st.text(alphabet="ab\n", max_size=14)
STOPS = st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), min_size=1, max_size=3)
PLACES = st.lists(st.integers(0, 20), max_size=8)


def first_match(text: str, stops: list[str]) -> tuple[int, int] | None:
    """End and start of the match that is complete first, by looking at every character."""
    for end in range(len(text) + 1):
        starts = [end - len(s) for s in stops if text[:end].endswith(s)]
        if starts:
            return end, min(starts)
    return None


@given(LETTERS, STOPS, PLACES, st.booleans())
def test_the_match_completed_first_ends_the_text_however_it_is_cut(
    text: str, stops: list[str], places: list[int], include: bool
) -> None:
    released, stop = run_stops(StopChecker(strings=stops, include=include), cuts(text, places))
    match = first_match(text, stops)
    if match is None:
        assert (text, None) == ("".join(released), stop)
        return
    end, start = match
    assert text[: end if include else start] == "".join(released)
    assert stop == Stop(kind="string", matched=text[start:end], matched_text=text[start:end])


@given(LETTERS, STOPS)
def test_no_more_is_held_back_than_a_stop_may_claim(text: str, stops: list[str]) -> None:
    checker, shown = StopChecker(strings=stops), ""
    for count, letter in enumerate(text, start=1):
        piece, stop = checker.feed(letter, count)
        if stop is not None:
            return
        shown += piece
        held = text[len(shown) : count]
        endings = [text[count - n : count] for n in range(count + 1)]
        assert held == max((e for e in endings if any(s.startswith(e) for s in stops)), key=len)


def test_a_stop_inside_one_token_drops_the_rest_of_it() -> None:
    assert (["one "], Stop(kind="string", matched="two", matched_text="two")) == run_stops(
        StopChecker(strings=["two"]), ["one two three"]
    )


def test_of_two_stops_complete_together_the_longer_wins() -> None:
    released, stop = run_stops(StopChecker(strings=["b", "ab"]), ["xab"])
    assert (released, stop and stop.matched) == (["x"], "ab")


def test_included_stop_strings_hold_nothing_back() -> None:
    checker = StopChecker(strings=["abc"], include=True)
    assert checker.feed("ab", 1) == ("ab", None)
    assert checker.feed("cd", 2)[0] == "c"


def test_min_tokens_passes_over_strings_completed_by_the_first_tokens() -> None:
    checker = StopChecker(strings=["ab"], min_tokens=2)
    assert tuple_of(run_stops(checker, ["ab", "xab", "yab", "z"])) == (["ab", "xab", "y"], "ab")


def test_min_tokens_lets_a_match_start_early_and_end_late() -> None:
    checker = StopChecker(strings=["abc"], min_tokens=2)
    assert tuple_of(run_stops(checker, ["xa", "b", "c"])) == (["x", "", ""], "abc")


def tuple_of(result: tuple[list[str], Stop | None]) -> tuple[list[str], Any]:
    return result[0], result[1] and result[1].matched


def test_token_stops_wait_for_min_tokens() -> None:
    checker = StopChecker(token_ids=[7], eos_ids=[2], min_tokens=3)
    assert [checker.check_token(t, n) for t in (7, 2) for n in (1, 2, 3)] == [None] * 6
    assert Stop(kind="token", matched=7) == checker.check_token(7, 4)
    assert Stop(kind="eos", matched=2) == checker.check_token(2, 4)
    assert checker.check_token(5, 4) is None


def test_an_id_that_is_eos_and_stop_counts_as_eos() -> None:
    assert Stop(kind="eos", matched=2) == StopChecker(token_ids=[2], eos_ids=[2]).check_token(2, 1)


PATTERNS = [r"a+b", r"\n\n", r"b|ab", r"^a", r"(?<=b)a", r"a{2}", r"ab*\n", r"b$"]


@tries()
@given(LETTERS, PLACES, st.sampled_from(PATTERNS), st.booleans())
def test_a_pattern_stops_at_the_first_character_that_completes_it(
    text: str, places: list[int], pattern: str, include: bool
) -> None:
    checker = StopChecker(pattern=pattern, include=include)
    released, stop = run_stops(checker, cuts(text, places))
    for end in range(len(text) + 1):
        match = re.search(pattern, text[:end])
        if match is not None:
            assert text[: end if include else match.start()] == "".join(released)
            assert stop == Stop(kind="regex", matched=pattern, matched_text=match[0])
            return
    assert (text, None) == ("".join(released), stop)


def test_a_pattern_holds_back_no_more_than_it_may_claim() -> None:
    checker = StopChecker(pattern=r"\d\d\n")
    assert checker.feed("abc12d3", 1) == ("abc12d", None)
    assert checker.feed("4", 2) == ("", None)
    assert checker.feed("5", 3) == ("3", None)
    assert checker.finish() == "45"


def test_a_pattern_may_match_more_text_than_any_window() -> None:
    text = "a<" + "b" * 3000 + ">c"
    released, stop = run_stops(StopChecker(pattern="<.*>"), cuts(text, list(range(0, 3000, 7))))
    assert "".join(released) == "a"
    assert stop == Stop(kind="regex", matched="<.*>", matched_text=text[1:-1])


def test_a_pattern_sees_the_start_of_the_text_once() -> None:
    text = "b" + "a" * 900
    released, stop = run_stops(StopChecker(pattern=r"^a"), cuts(text, list(range(0, 900, 50))))
    assert (text, None) == ("".join(released), stop)


def test_a_string_and_a_pattern_compete_by_their_ends() -> None:
    checker = StopChecker(strings=["cd"], pattern="b.?d?")
    assert tuple_of(run_stops(checker, ["abcd"])) == (["a"], "b.?d?")
    checker = StopChecker(strings=["bc"], pattern="b.d")
    assert tuple_of(run_stops(checker, ["abcd"])) == (["a"], "bc")


def slow_stop(
    pieces: list[str], strings: list[str], pattern: str | None, minimum: int, include: bool
) -> tuple[str, Stop | None]:
    """Text and stop by trying every piece of the text at every character, after each token."""
    text, compiled = "".join(pieces), pattern and re.compile(pattern)
    lengths = list(itertools.accumulate(map(len, pieces)))
    for end in range(1, len(text) + 1):
        count = 1 + sum(length < end for length in lengths)
        for start in range(end):
            found = text[start:end]
            by_string = found in strings
            if count > minimum and (by_string or (compiled and compiled.fullmatch(text, start, end))):
                stop = Stop(
                    kind="string" if by_string else "regex",
                    matched=found if by_string else pattern,
                    matched_text=found,
                )
                return text[: end if include else start], stop
    return text, None


@tries(300)
@given(
    st.lists(LETTERS, max_size=5),
    st.lists(st.text(alphabet="ab\n", min_size=1, max_size=4), max_size=3, unique=True),
    st.none() | st.sampled_from([*PATTERNS, r"a\b", r"(?i)B+A", r"(a|b)*\n", r"(?<!a)b\Z"]),
    st.integers(0, 4),
    st.booleans(),
)
def test_all_kinds_of_text_stops_together_equal_a_slow_search(
    pieces: list[str], strings: list[str], pattern: str | None, minimum: int, include: bool
) -> None:
    checker = StopChecker(strings=strings, pattern=pattern, min_tokens=minimum, include=include)
    released, stop = run_stops(checker, pieces)
    assert slow_stop(pieces, strings, pattern, minimum, include) == ("".join(released), stop)


def test_a_copy_of_a_checker_goes_its_own_way() -> None:
    checker = StopChecker(strings=["abc"], pattern="x+y")
    assert checker.feed("xab", 1) == ("x", None)
    other = checker.copy()
    assert checker.feed("c", 2) == ("", Stop(kind="string", matched="abc", matched_text="abc"))
    assert other.feed("xy", 2) == ("ab", Stop(kind="regex", matched="x+y", matched_text="xy"))
