"""Text on a terminal: broken between words at its width while it arrives, without what would control the terminal."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len

_JOINER = "\u200d"
_NOT_FIRST = frozenset("、。，．！？」』）】》〉：；ー…")
"""Characters of two columns with which no line begins."""
_CONTROLS = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def without_controls(text: str) -> str:
    """The text with U+FFFD for every control character but line feeds and tabs: a model may write any."""
    return text.translate(_CONTROLS)


class WordWrapper:
    """Breaks a text between words so that no line has more than `width()` columns, in pieces as it arrives.

    A word is held back until it is complete, or wider than a line. A character of two columns is a word of its own, but
    that no line begins with a closing one; spaces at which a line is broken are left out.
    """

    def __init__(self, width: Callable[[], int]) -> None:
        self._width = width
        self._column, self._space, self._word = 0, "", ""

    def feed(self, text: str) -> str:
        """What can be shown once this has come, too."""
        return "".join(self._add(letter) for letter in without_controls(text).replace("\t", "    "))

    def finish(self) -> str:
        """What was held back; the next text goes on behind it."""
        return self._end_word()

    def _add(self, letter: str) -> str:
        if letter == "\n":
            shown = self._end_word()
            self._column, self._space = 0, ""
            return f"{shown}\n"
        if letter == " ":
            shown = self._end_word()
            self._space += letter
            return shown
        shown = self._end_word() if self._breaks_before(letter) else ""
        if self._word and cell_len(self._word + letter) > self._width():
            shown += f"{self._end_word()}\n"
            self._column = 0
        self._word += letter
        return shown

    def _breaks_before(self, letter: str) -> bool:
        """Whether a line may end between the word so far and its next letter."""
        if not self._word or self._word.endswith(_JOINER) or letter in _NOT_FIRST or cell_len(letter) == 0:
            return False
        return cell_len(letter) > 1 or cell_len(self._word[-1]) > 1

    def _end_word(self) -> str:
        word, self._word = self._word, ""
        if not word:
            return ""
        space, self._space = self._space, ""
        columns = cell_len(space) + cell_len(word)
        if self._column + columns <= self._width():
            self._column += columns
            return space + word
        begun, self._column = self._column, cell_len(word)
        return f"\n{word}" if begun else word
