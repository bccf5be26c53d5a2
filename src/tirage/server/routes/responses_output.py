"""The output of `/v1/responses`: items that grow, and the events that tell of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from tirage.engine import LogprobEntry
from tirage.server.routes.message_answer import NamedEvent
from tirage.server.routes.openai_shapes import ChatEntries
from tirage.server.routes.toolcalls import ToolCall

Entries = Sequence[LogprobEntry]


class OutputItem(ABC):
    """An item that grows; `index` is its place in the output. Its events carry all but their `sequence_number`."""

    def __init__(self, id: str, index: int) -> None:
        self.id, self.index, self.text = id, index, ""

    @abstractmethod
    def item(self, status: str) -> dict[str, Any]:
        """The item as it is now."""

    @abstractmethod
    def opened(self) -> Iterator[NamedEvent]:
        """Events of the item that follow its being added."""

    @abstractmethod
    def grown(self, text: str) -> Iterator[NamedEvent]:
        """Events of new text."""

    @abstractmethod
    def closed(self) -> Iterator[NamedEvent]:
        """Events of the end of the item's text."""

    def added(self) -> NamedEvent:
        """The event of the item itself."""
        return {"type": "response.output_item.added", "output_index": self.index, "item": self.item("in_progress")}

    def done(self, status: str) -> NamedEvent:
        """The event of the whole item."""
        return {"type": "response.output_item.done", "output_index": self.index, "item": self.item(status)}

    def event(self, kind: str, **more: Any) -> NamedEvent:
        """An event of the item."""
        return {"type": f"response.{kind}", "item_id": self.id, "output_index": self.index, **more}


class MessageItem(OutputItem):
    """Text of the answer, with the log-probabilities of its tokens where the request asks for them.

    These tell tokens by their ids if `as_id`.
    """

    def __init__(self, id: str, index: int, *, as_id: bool) -> None:
        super().__init__(id, index)
        self._entries, self._as_id = list[LogprobEntry](), as_id

    def item(self, status: str) -> dict[str, Any]:
        content = [] if status == "in_progress" else [self._part()]
        return {"id": self.id, "type": "message", "status": status, "role": "assistant", "content": content}

    def opened(self) -> Iterator[NamedEvent]:
        yield self.event("content_part.added", content_index=0, part=self._part())

    def grown(self, text: str, entries: Entries = ()) -> Iterator[NamedEvent]:
        self.text += text
        self._entries += entries
        yield self.event("output_text.delta", content_index=0, delta=text, logprobs=self._told(entries))

    def closed(self) -> Iterator[NamedEvent]:
        told = self._told(self._entries)
        yield self.event("output_text.done", content_index=0, text=self.text, logprobs=told)
        yield self.event("content_part.done", content_index=0, part=self._part())

    def _told(self, entries: Entries) -> ChatEntries:
        """Log-probabilities as events of texts carry them."""
        return ChatEntries(entries, as_id=self._as_id, spelled=False)

    def _part(self) -> dict[str, Any]:
        logprobs = ChatEntries([*self._entries], as_id=self._as_id)
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": logprobs}


class ReasoningItem(OutputItem):
    """What the model reasons, as the content of the item or, with `summary`, as its summary."""

    def __init__(self, id: str, index: int, *, summary: bool) -> None:
        super().__init__(id, index)
        self._kind = "summary_text" if summary else "reasoning_text"
        self._events = "reasoning_summary" if summary else "reasoning"
        self._place: dict[str, int] = {"summary_index": 0} if summary else {"content_index": 0}
        self._parts = "reasoning_summary_part" if summary else "content_part"

    def item(self, status: str) -> dict[str, Any]:
        parts = [] if status == "in_progress" else [self._part()]
        rest = {"summary": parts} if self._kind == "summary_text" else {"summary": [], "content": parts}
        return {"id": self.id, "type": "reasoning", "status": status, **rest}

    def opened(self) -> Iterator[NamedEvent]:
        yield self.event(f"{self._parts}.added", **self._place, part=self._part())

    def grown(self, text: str) -> Iterator[NamedEvent]:
        self.text += text
        yield self.event(f"{self._events}_text.delta", **self._place, delta=text)

    def closed(self) -> Iterator[NamedEvent]:
        yield self.event(f"{self._events}_text.done", **self._place, text=self.text)
        yield self.event(f"{self._parts}.done", **self._place, part=self._part())

    def _part(self) -> dict[str, Any]:
        return {"type": self._kind, "text": self.text}


class CallItem(OutputItem):
    """A call of a function; its text are the arguments."""

    def __init__(self, id: str, index: int, call: ToolCall) -> None:
        super().__init__(id, index)
        self._call = call

    def item(self, status: str) -> dict[str, Any]:
        named = {"call_id": self._call.id, "name": self._call.name, "arguments": self.text}
        return {"id": self.id, "type": "function_call", "status": status, **named}

    def opened(self) -> Iterator[NamedEvent]:
        return iter(())

    def grown(self, text: str) -> Iterator[NamedEvent]:
        self.text += text
        yield self.event("function_call_arguments.delta", delta=text)

    def closed(self) -> Iterator[NamedEvent]:
        # Clients of version 2 want the name, those of version 3 do not know it.
        yield self.event("function_call_arguments.done", name=self._call.name, arguments=self.text)


class Output:
    """The items of a response, of which the last one may be open; `response_id` makes their ids."""

    def __init__(self, response_id: str, *, summary: bool, as_id: bool) -> None:
        self._suffix, self._summary, self._as_id = response_id.partition("_")[2], summary, as_id
        self.items = list[dict[str, Any]]()
        self.open: OutputItem | None = None
        self.messages = 0

    def say(self, text: str, entries: Entries = ()) -> Iterator[NamedEvent]:
        """Events of text of the answer."""
        item = self.open
        if not isinstance(item, MessageItem):
            self.messages += 1
            item = MessageItem(*self._next("msg"), as_id=self._as_id)
            yield from self._add(item)
        yield from item.grown(text, entries)

    def reason(self, text: str) -> Iterator[NamedEvent]:
        """Events of reasoning."""
        item = self.open
        if not isinstance(item, ReasoningItem):
            item = ReasoningItem(*self._next("rs"), summary=self._summary)
            yield from self._add(item)
        yield from item.grown(text)

    def call(self, call: ToolCall) -> Iterator[NamedEvent]:
        """Events of a new call, with the beginning of its arguments."""
        item = CallItem(*self._next("fc"), call)
        yield from self._add(item)
        if call.arguments:
            yield from item.grown(call.arguments)

    def argue(self, arguments: str) -> Iterator[NamedEvent]:
        """Events of further arguments of the last call."""
        assert isinstance(self.open, CallItem)
        yield from self.open.grown(arguments)

    def close(self, status: str = "completed") -> Iterator[NamedEvent]:
        """Events of the end of the open item, if there is one."""
        if self.open is not None:
            yield from self.open.closed()
            done = self.open.done(status)
            self.items.append(done["item"])
            self.open = None
            yield done

    @property
    def is_saying(self) -> bool:
        """Whether the open item is text of the answer."""
        return isinstance(self.open, MessageItem)

    def _next(self, prefix: str) -> tuple[str, int]:
        index = len(self.items) + (self.open is not None)
        return f"{prefix}_{self._suffix}_{index}", index

    def _add(self, item: OutputItem) -> Iterator[NamedEvent]:
        yield from self.close()
        self.open = item
        yield item.added()
        yield from item.opened()
