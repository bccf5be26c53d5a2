"""Values that are kept while they are used."""

from __future__ import annotations

import pytest

from tirage.recently_used import RecentlyUsed


def sized(values: RecentlyUsed[str], text: str) -> str:
    """The text, kept by its first letter with its length as the size; made anew where nothing is kept."""
    return values.get(text[0], lambda: text, len)


def test_the_least_recently_used_goes_first_beyond_the_number() -> None:
    values = RecentlyUsed[str](most=2, size=100)
    assert [sized(values, text) for text in ("a1", "b1", "a2", "c1", "b2", "a3")] == [
        "a1", "b1", "a1", "c1", "b2", "a3",
    ]  # fmt: skip
    assert len(values) == 2


@pytest.mark.parametrize(("last", "kept"), [("c" * 4, 3), ("c" * 5, 2), ("c" * 8, 2), ("c" * 9, 1), ("c" * 99, 1)])
def test_their_sizes_together_are_bounded_but_the_last_is_kept(last: str, kept: int) -> None:
    values = RecentlyUsed[str](most=9, size=10)
    for text in ("a" * 4, "b" * 2, last):
        assert sized(values, text) == text
    assert len(values) == kept
    assert sized(values, "c") == last


def test_a_value_put_again_replaces_the_first_and_its_size() -> None:
    values = RecentlyUsed[str](most=9, size=10)
    for size in (9, 1, 9, 1):
        values.put("a", "x" * size, size)
    values.put("b", "y" * 9, 9)
    assert (len(values), sized(values, "a")) == (2, "x")
    values.clear()
    assert (len(values), sized(values, "a")) == (0, "a")


def test_what_cannot_be_made_is_not_kept() -> None:
    values = RecentlyUsed[str](most=9, size=10)
    with pytest.raises(ValueError, match="no"):
        values.get("a", fail, len)
    assert len(values) == 0


def fail() -> str:
    """Raises ValueError."""
    raise ValueError("no")
