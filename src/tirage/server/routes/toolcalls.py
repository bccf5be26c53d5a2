"""Calls of functions in what a model writes: found in the text as it comes, and told apart from what it says.

A parser takes text and gives back pieces in order: content, new calls, and further text of a call's arguments. Text
that looks like a call but is none (unknown name, broken JSON) stays content.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

_DECODER = json.JSONDecoder()
_BETWEEN = re.compile(r"[\s;,]*")
_NAMED = re.compile(r"([a-zA-Z0-9_.-]{1,64})(?:\[ARGS\])?\s*(?=\{)")


@dataclass(frozen=True, slots=True)
class Content:
    """Text that the model says."""

    text: str


@dataclass(frozen=True, slots=True)
class Thought:
    """Text that the model thinks."""

    text: str


@dataclass(frozen=True, slots=True)
class Begun:
    """A call, with the text of its arguments so far; `index` counts the calls of a message."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Continued:
    """More text of a call's arguments."""

    index: int
    arguments: str


Piece = Content | Thought | Begun | Continued


class ToolCallParser(Protocol):
    """Finds calls in a growing text."""

    def feed(self, text: str) -> list[Piece]:
        """What the new text makes certain."""
        ...

    def finish(self) -> list[Piece]:
        """What is left at the end."""
        ...


class PlainText:
    """No tools: everything is content."""

    def feed(self, text: str) -> list[Piece]:
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


class Calls:
    """Numbers calls and gives them ids; refuses names that no tool has, and a second call where one is allowed."""

    def __init__(self, names: Collection[str], *, parallel: bool, new_id: Callable[[], str]) -> None:
        self._names, self._parallel, self._new_id = frozenset(names), parallel, new_id
        self.count = 0

    def knows(self, found: list[tuple[str, str]]) -> bool:
        """Whether there are calls and each names a tool."""
        return bool(found) and all(name in self._names for name, _ in found)

    def begin(self, found: list[tuple[str, str]]) -> list[Piece]:
        """The calls as pieces; without parallel calls only the message's first."""
        pieces: list[Piece] = []
        for name, arguments in found:
            if self.count == 0 or self._parallel:
                pieces.append(Begun(self.count, self._new_id(), name, arguments))
                self.count += 1
        return pieces


class Named:
    """The whole text is the arguments of one call."""

    def __init__(self, calls: Calls, name: str) -> None:
        self._calls, self._name = calls, name

    def feed(self, text: str) -> list[Piece]:
        if not text:
            return []
        if not self._calls.count:
            return self._calls.begin([(self._name, text)])
        return [Continued(0, text)]

    def finish(self) -> list[Piece]:
        return [] if self._calls.count else self._calls.begin([(self._name, "")])


class Listed:
    """The whole text is a JSON list of calls; each comes when it is complete."""

    def __init__(self, calls: Calls) -> None:
        self._calls, self._text, self._at = calls, "", 0

    def feed(self, text: str) -> list[Piece]:
        self._text += text
        return self._read() if "}" in text else []

    def finish(self) -> list[Piece]:
        return self._read()

    def _read(self) -> list[Piece]:
        pieces: list[Piece] = []
        start = re.compile(r"[\s\[,]*")
        while (begin := start.match(self._text, self._at)) is not None:
            try:
                value, end = _DECODER.raw_decode(self._text, begin.end())
            except (ValueError, RecursionError):
                break
            self._at = end
            call = call_of(value)
            pieces += [] if call is None else self._calls.begin([call])
        return pieces


class Marked:
    """Text with calls after a mark, up to another mark or, where there is none, to the end.

    Space around calls is not content.
    """

    def __init__(self, calls: Calls, begin: str, end: str | None) -> None:
        self._calls, self._begin, self._end = calls, begin, end
        self._held, self._inside = "", False

    def feed(self, text: str) -> list[Piece]:
        self._held += text
        pieces: list[Piece] = []
        while (piece := self._step()) is not None:
            pieces += piece
        return pieces

    def finish(self) -> list[Piece]:
        rest, self._held = self._held, ""
        if self._inside:
            return self._close(rest, self._begin + rest)
        return [] if not rest.strip() and self._calls.count else PlainText().feed(rest)

    def _step(self) -> list[Piece] | None:
        """Pieces up to the next mark; None when more text is needed."""
        if self._inside:
            inner, mark, rest = self._held.partition(self._end) if self._end else (self._held, "", "")
            if not mark:
                return None
            self._held, self._inside = rest, False
            return self._close(inner, self._begin + inner + mark)
        before, mark, rest = self._held.partition(self._begin)
        if mark:
            self._held, self._inside = rest, True
            return PlainText().feed(before.rstrip())
        certain = self._certain()
        said, self._held = self._held[:certain], self._held[certain:]
        return [Content(said)] if said else None

    def _certain(self) -> int:
        """How much of the text cannot belong to a mark or to the space before one."""
        certain = len(self._held) - overlap(self._held, self._begin)
        return len(self._held[:certain].rstrip())

    def _close(self, inner: str, whole: str) -> list[Piece]:
        found = read_calls(inner)
        return self._calls.begin(found) if self._calls.knows(found) else [Content(whole)]


class Whole:
    """A text that is nothing but calls, one JSON object after another, or else all content."""

    def __init__(self, calls: Calls, mark: str) -> None:
        self._calls, self._mark = calls, mark
        self._held, self._open = "", True

    def feed(self, text: str) -> list[Piece]:
        if not self._open:
            return PlainText().feed(text)
        self._held += text
        start = self._held.lstrip()
        if start.startswith("{") or self._mark.startswith(start[: len(self._mark)]):
            return []
        return self._give_up()

    def finish(self) -> list[Piece]:
        found = read_calls(self._held.strip().removeprefix(self._mark)) if self._open else []
        return self._calls.begin(found) if self._calls.knows(found) else self._give_up()

    def _give_up(self) -> list[Piece]:
        said, self._held, self._open = self._held, "", False
        return PlainText().feed(said)


def overlap(text: str, mark: str) -> int:
    """How many of the last characters of a text may be the beginning of a mark."""
    return next((count for count in range(len(mark), 0, -1) if text.endswith(mark[:count])), 0)


def read_calls(text: str) -> list[tuple[str, str]]:
    """The (name, arguments as JSON text) of every call in a text of nothing else; none when it is anything else."""
    found: list[tuple[str, str]] = []
    for value in read_values(text):
        each = value if isinstance(value, list) else [value]
        calls = [call_of(one) for one in each]
        if None in calls:
            return []
        found += [call for call in calls if call is not None]
    return found


def read_values(text: str) -> Iterator[Any]:
    """JSON values one after another, also written as a name before an object; None stands for anything else."""
    at = skip(text, 0)
    while at < len(text):
        named = _NAMED.match(text, at)
        try:
            value, end = _DECODER.raw_decode(text, named.end() if named else at)
        except (ValueError, RecursionError):
            yield None
            return
        yield {"name": named[1], "arguments": value} if named else value
        at = skip(text, end)


def skip(text: str, at: int) -> int:
    """Where the next value begins."""
    found = _BETWEEN.match(text, at)
    return at if found is None else found.end()


def call_of(value: Any) -> tuple[str, str] | None:
    """The (name, arguments as JSON text) of an object with a name and with `arguments` or `parameters`."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return None
    arguments = value.get("arguments", value.get("parameters", {}))
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return name, text


def new_id() -> str:
    """An id as OpenAI writes them."""
    return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """Nine letters and digits, which Mistral's templates ask for."""
    return secrets.token_hex(5)[:9]
