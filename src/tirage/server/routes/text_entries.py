"""The log-probabilities of the tokens that spell a message's text, told from those of its reasoning and calls."""

from __future__ import annotations

from collections.abc import Sequence

from tirage.engine.completion import LogprobEntry
from tirage.server.routes.openai_answer import NewText
from tirage.server.routes.reasoning import MessageReader
from tirage.server.routes.toolcalls import Content, MessagePart


class TextEntries:
    """Sorts entries by the text they spell; texts are numbered from 0, and a call or reasoning lies between two.

    The message is parsed again token by token, so that the result does not depend on how its text arrives.
    """

    def __init__(self, reader: MessageReader) -> None:
        self._parser = None if reader.is_plain else reader.parser()
        self._text, self._start = "", 0
        self._waiting = list[LogprobEntry]()
        self._spelled = list[tuple[LogprobEntry, int]]()
        self._number, self._between = -1, True

    def feed(self, new: NewText, *, last: bool) -> dict[int, list[LogprobEntry]]:
        """The entries that are certain now, by the number of their text; all of them at the end."""
        if self._parser is None:
            return {0: list(new.entries)} if new.entries else {}
        self._text += new.text
        self._waiting += new.entries
        found: dict[int, list[LogprobEntry]] = {}
        while self._waiting and (last or self._is_complete()):
            self._spell(self._waiting.pop(0), found, finish=last and not self._waiting)
        return found

    def _is_complete(self) -> bool:
        """Whether all of the text that the first entry spells has come, which the next one tells."""
        end = self._waiting[1].offset if len(self._waiting) > 1 else None
        return end is not None and end <= self._start + len(self._text)

    def _spell(self, entry: LogprobEntry, found: dict[int, list[LogprobEntry]], *, finish: bool) -> None:
        assert self._parser is not None
        end = self._waiting[0].offset if self._waiting else None
        size = len(self._text) if finish or end is None else max(end - self._start, 0)
        piece, self._text = self._text[:size], self._text[size:]
        self._start += len(piece)
        self._spelled.append((entry, len(piece)))
        self._sort([*self._parser.feed(piece), *(self._parser.finish() if finish else ())], found)

    def _sort(self, parts: Sequence[MessagePart], found: dict[int, list[LogprobEntry]]) -> None:
        for part in parts:
            if isinstance(part, Content):
                self._number += self._between
                self._between = False
                found.setdefault(self._number, []).extend(self._last(len(part.text)))
            else:
                self._between = True
            self._spelled.clear()

    def _last(self, length: int) -> list[LogprobEntry]:
        """The last entries that spell so many characters."""
        taken = list[LogprobEntry]()
        for entry, size in reversed(self._spelled):
            if length <= 0:
                break
            taken.append(entry)
            length -= size
        return taken[::-1]
