"""Patterns: Python's answers, in work that the pattern's size bounds."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tries import tries

from tirage.patterns import MAX_STATES, PatternError, PatternMatcher, compile_pattern, search

TEXTS = st.text(alphabet="ab_\né ", max_size=9)
ATOMS = st.sampled_from(["a", "b", "é", ".", r"\w", r"\W", r"\s", "[^a]", "[ab_]", r"\n", "(?:)", "(?i:A)", "(?a:\\w)"])
PLACES = st.sampled_from(["^", "$", r"\A", r"\Z", r"\b", r"\B", "(?<=a)", "(?<!b)", "(?<=^a)", "(?m:^)", "(?m:$)"])
REPEATS = st.sampled_from(["*", "+", "?", "*?", "+?", "{2}", "{1,2}", "{0,3}?", "{2,}"])


def joined(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    either = st.tuples(parts, parts).map(lambda pair: f"(?:{pair[0]}|{pair[1]})")
    repeated = st.tuples(parts, REPEATS).map(lambda pair: f"(?:{pair[0]}){pair[1]}")
    return st.tuples(parts, parts).map("".join) | either | repeated


def slow_search(pattern: str, text: str) -> tuple[int, int] | None:
    """The match that ends first, and of those the longest, by Python's `re` on every piece of the text."""
    compiled = re.compile(pattern)
    pieces = ((start, end) for end in range(1, len(text) + 1) for start in range(end))
    return next((piece for piece in pieces if compiled.fullmatch(text, *piece)), None)


@pytest.mark.slow
@tries(400)
@given(st.recursive(ATOMS | PLACES, joined, max_leaves=6), TEXTS)
def test_a_match_is_one_of_pythons_own(pattern: str, text: str) -> None:
    assert slow_search(pattern, text) == search(compile_pattern(pattern), text)


@pytest.mark.parametrize("flags", ["", "(?i)", "(?m)", "(?s)", "(?a)", "(?ims)"])
@pytest.mark.parametrize("pattern", [r"a.b", r"A\b", r"^B$", r"\w\n^", r"[A-b]\Z", r"(?-i:B)a", r"a$\nb"])
@pytest.mark.parametrize("text", ["a\nb", "éAba\n", "b\nab", "AB", "bé\na"])
def test_flags_mean_what_they_mean_to_python(flags: str, pattern: str, text: str) -> None:
    assert slow_search(flags + pattern, text) == search(compile_pattern(flags + pattern), text)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("a(?=b)", "without look-ahead"),
        ("a(?!b)", "without look-ahead"),
        (r"(a)\1", "without back-references"),
        ("(a)?(?(1)b|c)", "without conditional groups"),
        ("(?>a)", "without atomic groups"),
        ("a++", "without possessive repeats"),
        (r"(?<=a\b)c", "look-behinds hold no"),
        ("(", "that compiles"),
        ("a{2001}", "at most 2000 states"),
        ("(a{50}){50}", "at most 2000 states"),
        ("(?:){65535}", "at most 2000 states"),
        ("(?<=a{1500})(?<=b{1500})c", "at most 2000 states"),
    ],
)
def test_what_has_no_bound_is_refused_by_name(pattern: str, reason: str) -> None:
    with pytest.raises(PatternError, match=reason):
        compile_pattern(pattern)


HOSTILE = [r"(a+)+$x", "(a|a)*b", "(a?){200}a{200}b", r"(.*)*(.*)*x", r"(\w{1,200}){1,3}!", r"(\b|\B|a)*c"]


@pytest.mark.parametrize("pattern", HOSTILE)
def test_a_hostile_pattern_visits_each_state_at_most_once_per_character(pattern: str) -> None:
    compiled = compile_pattern(pattern)
    needs = 8  # combinations of what assertions leave to the next character, far fewer than possible
    matcher = PatternMatcher(compiled)
    for letter in "a" * 300:
        matcher.feed(letter)
        assert len(matcher._seen) <= needs * len(compiled.states) <= needs * (MAX_STATES + 1)


def test_text_is_claimed_from_the_earliest_match_that_may_still_end() -> None:
    matcher, claims = PatternMatcher(compile_pattern("ab+c|b")), []
    for letter in "xab":
        matcher.feed(letter)
        claims.append(matcher.claimed_from)
    assert claims == [1, 1, 1]
    assert matcher.feed("x") is None
    assert matcher.claimed_from == 4


def test_nothing_is_claimed_for_a_match_that_can_only_end_here() -> None:
    matcher = PatternMatcher(compile_pattern("^$|$a|a$b|x"))
    matcher.feed("a")
    assert matcher.claimed_from == 1


def test_a_copy_goes_its_own_way() -> None:
    matcher = PatternMatcher(compile_pattern("(?<=a)bc|bd"))
    matcher.feed("a")
    matcher.feed("b")
    other = matcher.copy()
    assert [matcher.feed("c"), other.feed("d")] == [1, 1]
    assert [matcher.feed("b"), other.feed("a"), matcher.feed("c"), other.feed("b"), other.feed("c")][2:] == [
        None,
        None,
        4,
    ]
