"""Lines of a chat on a terminal: broken between words, whatever pieces the text comes in."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from tirage.cli.wrapping import WordWrapper, without_controls

LETTERS = "ab \nÄ東京。」éx\u0301\u200d👩-"


def wrapped(pieces: list[str], width: int) -> str:
    wrapper = WordWrapper(lambda: width)
    return "".join([*map(wrapper.feed, pieces), wrapper.finish()])


@pytest.mark.parametrize(
    ("text", "width", "expected"),
    [
        ("one two three", 7, "one two\nthree"),
        ("one two three", 80, "one two three"),
        ("one  two", 5, "one\ntwo"),
        ("    indented", 12, "    indented"),
        ("a\n  b\n\nc", 9, "a\n  b\n\nc"),
        ("incomprehensibilities", 8, "incompre\nhensibil\nities"),
        ("an incomprehensible", 8, "an\nincompre\nhensible"),
        ("東京は日本の首都", 7, "東京は\n日本の\n首都"),
        ("東京は。日本", 6, "東京\nは。日\n本"),
        ("ab東京cd", 4, "ab東\n京cd"),
        ("a\tb", 80, "a    b"),
        ("", 5, ""),
    ],
)
def test_lines_end_between_words(text: str, width: int, expected: str) -> None:
    assert wrapped([text], width) == expected
    assert wrapped(list(text), width) == expected


@given(st.lists(st.text(LETTERS, max_size=12), max_size=8), st.integers(4, 30))
def test_pieces_do_not_matter_and_nothing_is_lost(pieces: list[str], width: int) -> None:
    text, shown = "".join(pieces), wrapped(pieces, width)
    assert shown == wrapped([text], width)
    assert "".join(shown.split()) == "".join(text.split())
    assert all(cell_len(line) <= width for line in shown.split("\n"))


def test_a_word_is_shown_as_soon_as_it_is_complete() -> None:
    wrapper = WordWrapper(lambda: 80)
    assert [wrapper.feed(piece) for piece in ("Hel", "lo", " wor", "ld", "!\n")] == ["", "", "Hello", "", " world!\n"]


def test_a_model_cannot_control_the_terminal() -> None:
    assert without_controls("a\x1b[31m\x07\x9b2J\r\n\tb\x7f") == "a\ufffd[31m\ufffd\ufffd2J\ufffd\n\tb\ufffd"
    assert "\x1b" not in wrapped(["a \x1b[2J b"], 20)
