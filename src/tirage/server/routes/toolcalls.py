"""Parsers that find tool calls in a model's text as it grows.

A parser takes text and returns the parts of the message in order: content, new calls, and further text of a call's
arguments. Text that looks like a call but is none (unknown name, broken JSON, arguments that are no object) stays
content.
"""

from __future__ import annotations

import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from tirage.server.routes.call_json import arguments_of, read_value

_BETWEEN = re.compile(r"(?:[\s;,]|\[TOOL_CALLS\])*")
_NAMED = re.compile(r"([a-zA-Z0-9_.-]{1,64})(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*(?=\{)")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*("?)', re.DOTALL)
_BEFORE_VALUE = re.compile(r"[\s\[,]*")
_SPACE = " \n\t\r"


@dataclass(frozen=True, slots=True)
class Content:
    """Text of the answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Text of the reasoning before it."""

    text: str


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A new tool call with the beginning of its arguments; `index` counts the calls of a message."""

    index: int
    id: str
    name: str
    arguments: str


@dataclass(frozen=True, slots=True)
class ToolCallArguments:
    """Further text of a call's arguments."""

    index: int
    arguments: str


MessagePart = Content | Reasoning | ToolCall | ToolCallArguments


CallReader = Callable[[str], list[tuple[str, str]]]
"""The (name, arguments as JSON text) of every call in a text of calls alone; an empty list for any other text."""


class EndFinder(Protocol):
    """Finds the end of a call."""

    def __call__(self, text: str, mark: str, *, last: bool) -> int:
        """Where the mark that ends a call stands in a text, -1 if it has not come; no more text follows the `last`."""
        ...


class ToolCallParser(Protocol):
    """Finds tool calls in a growing text."""

    def feed(self, text: str) -> list[MessagePart]:
        """The parts that are certain after this text."""
        ...

    def finish(self) -> list[MessagePart]:
        """The remaining parts, at the end of the text."""
        ...


class ContentParser:
    """Parses a text without tools: everything is content."""

    def feed(self, text: str) -> list[MessagePart]:
        return [Content(text)] if text else []

    def finish(self) -> list[MessagePart]:
        return []


class ToolCallFactory:
    """Makes the tool calls of one message: their numbers and ids. Without `parallel` only the first call counts."""

    def __init__(self, names: Collection[str], *, parallel: bool, new_id: Callable[[], str]) -> None:
        self._names, self._parallel, self._new_id = frozenset(names), parallel, new_id
        self.count = 0

    def knows(self, found: list[tuple[str, str]]) -> bool:
        """Whether there are calls, and each names a tool."""
        return bool(found) and all(name in self._names for name, _ in found)

    def begin(self, found: list[tuple[str, str]]) -> list[MessagePart]:
        """The calls as parts of the message; without parallel calls only its first."""
        pieces: list[MessagePart] = []
        for name, arguments in found:
            if self.count == 0 or self._parallel:
                pieces.append(ToolCall(self.count, self._new_id(), name, arguments))
                self.count += 1
        return pieces


class NamedToolParser:
    """Parses a text that is the arguments of one call."""

    def __init__(self, calls: ToolCallFactory, name: str) -> None:
        self._calls, self._name = calls, name

    def feed(self, text: str) -> list[MessagePart]:
        if not text:
            return []
        if not self._calls.count:
            return self._calls.begin([(self._name, text)])
        return [ToolCallArguments(0, text)]

    def finish(self) -> list[MessagePart]:
        return [] if self._calls.count else self._calls.begin([(self._name, "")])


class JsonListParser:
    """Parses a text that is a JSON list of calls; each is reported when it is complete.

    What is no call is content, but not the beginning of one, with which the text may end.
    """

    def __init__(self, calls: ToolCallFactory) -> None:
        self._calls, self._text, self._at = calls, "", 0

    def feed(self, text: str) -> list[MessagePart]:
        self._text += text
        return self._read() if "}" in text else []

    def finish(self) -> list[MessagePart]:
        pieces, rest = self._read(), self._text[self._at :]
        bare = rest.strip(_SPACE + "[,]")
        return pieces if not bare or bare.startswith("{") else [*pieces, Content(rest)]

    def _read(self) -> list[MessagePart]:
        pieces: list[MessagePart] = []
        while (begin := _BEFORE_VALUE.match(self._text, self._at)) is not None:
            try:
                value, end = read_value(self._text, begin.end())
            except ValueError:
                break
            self._at = end
            call = call_of(value)
            pieces += [Content(self._text[begin.end() : end])] if call is None else self._calls.begin([call])
        return pieces


class BufferedParser(ABC):
    """A parser that holds back text until it can tell what it is."""

    _buffer = ""

    def feed(self, text: str) -> list[MessagePart]:
        self._buffer += text
        pieces: list[MessagePart] = []
        while (piece := self._step()) is not None:
            pieces += piece
        return pieces

    @abstractmethod
    def _step(self) -> list[MessagePart] | None:
        """The next parts of the text that is held back; None when more text is needed."""


class MarkerParser(BufferedParser):
    """Parses a text with calls after a start marker, up to the end marker or, if there is none, the end of the text.

    Space around calls is not content, but before what only looks like one it is. `read` gives the calls between the
    markers, and `find_end` tells an end marker from one inside a string of their arguments.
    """

    def __init__(
        self,
        calls: ToolCallFactory,
        begin: str,
        end: str | None,
        *,
        read: CallReader | None = None,
        find_end: EndFinder | None = None,
    ) -> None:
        self._calls, self._begin, self._end = calls, begin, end
        self._read, self._find_end = read or read_calls, find_end or end_outside_strings
        self._inside, self._space, self._is_last = False, "", False

    def finish(self) -> list[MessagePart]:
        self._is_last = True
        pieces = self.feed("")
        rest, self._buffer = self._buffer, ""
        if self._inside:
            return [*pieces, *self._close(rest, self._begin + rest)]
        return pieces if not rest.strip() and self._calls.count else [*pieces, *ContentParser().feed(rest)]

    def _step(self) -> list[MessagePart] | None:
        """The parts up to the next marker; None when more text is needed."""
        if self._inside:
            end = -1 if self._end is None else self._find_end(self._buffer, self._end, last=self._is_last)
            if end < 0:
                return None
            inner, self._buffer, self._inside = (
                self._buffer[:end],
                self._buffer[end:].removeprefix(self._end or ""),
                False,
            )
            return self._close(inner, f"{self._begin}{inner}{self._end}")
        before, marker, rest = self._buffer.partition(self._begin)
        if marker:
            said = before.rstrip()
            self._buffer, self._inside, self._space = rest, True, before[len(said) :]
            return ContentParser().feed(said)
        certain = self._certain()
        content, self._buffer = self._buffer[:certain], self._buffer[certain:]
        return [Content(content)] if content else None

    def _certain(self) -> int:
        """How many characters of the text cannot belong to a marker or to the space before one."""
        certain = len(self._buffer) - overlap(self._buffer, self._begin)
        return len(self._buffer[:certain].rstrip())

    def _close(self, inner: str, whole: str) -> list[MessagePart]:
        found = self._read(inner)
        return self._calls.begin(found) if self._calls.knows(found) else [Content(self._space + whole)]


class WholeTextParser:
    """Parses a text that is either all calls or all content, as its first character tells.

    Before the calls there may be `marker`, and after them `end`.
    """

    def __init__(
        self, calls: ToolCallFactory, first: str, marker: str, *, end: str = "", read: CallReader | None = None
    ) -> None:
        self._calls, self._first, self._marker, self._end = calls, first, marker, end
        self._read = read or read_calls
        self._buffer, self._open = "", True

    def feed(self, text: str) -> list[MessagePart]:
        if not self._open:
            return ContentParser().feed(text)
        self._buffer += text
        start = self._buffer.lstrip(_SPACE)
        if start.startswith(self._first) or self._marker.startswith(start[: len(self._marker)]):
            return []
        return self._give_up()

    def finish(self) -> list[MessagePart]:
        inner = self._buffer.strip(_SPACE).removeprefix(self._marker).removesuffix(self._end)
        found = self._read(inner) if self._open else []
        return self._calls.begin(found) if self._calls.knows(found) else self._give_up()

    def _give_up(self) -> list[MessagePart]:
        content, self._buffer, self._open = self._buffer, "", False
        return ContentParser().feed(content)


class HarmonyParser(BufferedParser):
    """Parses the messages of OpenAI's open models: analysis, answers, and calls of functions.

    A call is reported when it is complete. Text that is no message is content; it is held back only where it may be the
    header of one, which is no longer than `_LONGEST` characters.
    """

    _OPENINGS = tuple(start + rest for start in ("", "<|start|>assistant") for rest in (" to=", "<|channel|>"))
    _OPENING = re.compile("|".join(map(re.escape, sorted(_OPENINGS, key=len, reverse=True))))
    # Words that follow a recipient are none of its header if a channel follows them.
    _HEADER = re.compile(r"<\|channel\|>.*| to=[^\s<]*(?:\s*<\|.*|[^<]*)", re.DOTALL)
    _HEADER_END = re.compile(r"<\|(?:message|start|end|call|return)\|>")
    _MESSAGE = "<|message|>"
    _LONGEST = 256
    _LAST = ("<|end|>", "<|call|>", "<|return|>")

    def __init__(self, calls: ToolCallFactory, *, separate: bool) -> None:
        self._calls, self._separate = calls, separate
        self._header = ""

    def finish(self) -> list[MessagePart]:
        rest, self._buffer = self._buffer, ""
        return self._close(rest) if self._header else ContentParser().feed(rest)

    def _step(self) -> list[MessagePart] | None:
        if not self._header:
            return self._begin()
        ends = [at for at in map(self._buffer.find, self._LAST) if at >= 0]
        if not ends:
            return self._release()
        body, rest = self._buffer[: min(ends)], self._buffer[min(ends) :]
        self._buffer = rest.partition("|>")[2]
        pieces = self._close(body)
        self._header = ""
        return pieces

    def _begin(self) -> list[MessagePart] | None:
        """Content up to the next message, or the header of a message that begins here."""
        found = self._OPENING.search(self._buffer)
        if found is None:
            return self._say(len(self._buffer) - max(overlap(self._buffer, each) for each in self._OPENINGS))
        if found.start():
            return self._say(found.start())
        end = self._HEADER_END.search(self._buffer, found.end())
        size = (len(self._buffer) - len(self._MESSAGE) if end is None else end.start()) - found.end()
        if end is None and size <= self._LONGEST:
            return None
        header = "" if end is None else self._buffer[: end.start()].removeprefix("<|start|>assistant")
        if end is None or size > self._LONGEST or end[0] != self._MESSAGE or not self._HEADER.fullmatch(header):
            return self._say(found.end())
        self._header, self._buffer = header, self._buffer[end.end() :]
        return []

    def _say(self, size: int) -> list[MessagePart] | None:
        """So many characters as content; None for none."""
        text, self._buffer = self._buffer[:size], self._buffer[size:]
        return ContentParser().feed(text) or None

    def _release(self) -> list[MessagePart] | None:
        """The text of an unfinished message that is certain; calls are kept until they are complete."""
        if self._recipient() is not None:
            return None
        certain = len(self._buffer) - max(overlap(self._buffer, each) for each in self._LAST)
        text, self._buffer = self._buffer[:certain], self._buffer[certain:]
        return self._said(text) or None

    def _close(self, body: str) -> list[MessagePart]:
        name = self._recipient()
        if name is None:
            return self._said(body)
        found = [] if arguments_of(body) is None else [(name, body)]
        return self._calls.begin(found) if self._calls.knows(found) else ContentParser().feed(body)

    def _said(self, text: str) -> list[MessagePart]:
        is_analysis = self._separate and "<|channel|>analysis" in self._header
        return ([Reasoning(text)] if is_analysis else [Content(text)]) if text else []

    def _recipient(self) -> str | None:
        found = re.search(r" to=functions\.([a-zA-Z0-9_.-]{1,64})", self._header)
        return None if found is None else found[1]


def end_outside_strings(text: str, mark: str, *, last: bool) -> int:
    """Where a mark stands outside the strings of JSON, -1 if it has not come."""
    at = text.find(mark)
    while at >= 0 and is_in_string(text[:at]):
        at = text.find(mark, at + 1)
    return at


def is_in_string(text: str) -> bool:
    """Whether a text of JSON ends inside a string."""
    return any(not found[1] for found in _STRING.finditer(text))


def overlap(text: str, marker: str) -> int:
    """How many characters at the end of a text may be the beginning of a marker."""
    return next((count for count in range(len(marker), 0, -1) if text.endswith(marker[:count])), 0)


def read_calls(text: str) -> list[tuple[str, str]]:
    """The (name, arguments as JSON text) of every call in a text of calls alone; an empty list for any other text."""
    found: list[tuple[str, str]] = []
    for value in read_values(text):
        each = value if isinstance(value, list) else [value]
        calls = [call_of(one) for one in each]
        if None in calls:
            return []
        found += [call for call in calls if call is not None]
    return found


def read_values(text: str) -> Iterator[Any]:
    """The JSON values of a text, one after another; `name {...}` is one too, and None stands for anything else."""
    at = skip(text, 0)
    while at < len(text):
        named = _NAMED.match(text, at)
        try:
            value, end = read_value(text, named.end() if named else at)
        except ValueError:
            yield None
            return
        yield {"name": named[1], "arguments": value} if named else value
        at = skip(text, end)


def skip(text: str, at: int) -> int:
    """Where the next value begins."""
    found = _BETWEEN.match(text, at)
    return at if found is None else found.end()


def call_of(value: Any) -> tuple[str, str] | None:
    """The (name, arguments as JSON text) of an object with a name and with `arguments` or `parameters`, else None."""
    name = value.get("name") if isinstance(value, dict) else None
    if not isinstance(name, str):
        return None
    arguments = arguments_of(value.get("arguments", value.get("parameters", {})))
    return None if arguments is None else (name, arguments)


def new_id() -> str:
    """A random id in OpenAI's form."""
    return f"call_{secrets.token_hex(12)}"


def short_id() -> str:
    """A random id of nine letters and digits, the form that Mistral's templates require."""
    return secrets.token_hex(5)[:9]
