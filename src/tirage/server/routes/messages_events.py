"""Anthropic's message objects and the events of their streams."""

from __future__ import annotations

import base64
import hashlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from tirage.engine import Completion, EngineRequest, Sample
from tirage.server.errors import anthropic_envelope
from tirage.server.request_group import RequestGroup
from tirage.server.routes.call_json import read_text
from tirage.server.routes.message_answer import MessageAnswer, NamedEvent
from tirage.server.routes.openai_answer import NewText
from tirage.server.routes.openai_request import OpenAIRequest
from tirage.server.routes.openai_shapes import usage
from tirage.server.routes.reasoning import MessageReader
from tirage.server.routes.toolcalls import Content, MessagePart, Reasoning, ToolCall, ToolCallArguments
from tirage.server.sse import StreamStyle, named

_CLOSERS = {"{": "}", "[": "]"}
_MEMBERS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}
"""The member of a block that a delta of each type adds to."""


class AnthropicAnswer(MessageAnswer):
    """Builds Anthropic's message: blocks of thinking, text and tool use in the order in which the model wrote them."""

    def __init__(
        self, request: OpenAIRequest, group: RequestGroup, reader: MessageReader, *, model: str, request_id: str
    ) -> None:
        super().__init__(request, group, reader)
        self._model, self._request_id = model, request_id
        self._blocks, self._kind, self._has_calls = 0, "", False
        self._thought = hashlib.sha256()
        self._omitted = (request.fields["thinking"] or {}).get("display") == "omitted"

    @property
    def style(self) -> StreamStyle:
        error = partial(anthropic_envelope, request_id=self._request_id)
        return StreamStyle(head=named, error=error, last=b"")

    def opening(self) -> Iterator[NamedEvent]:
        prompt, cached = self.running.request.inputs.length, self.running.request.cached_tokens
        message = {
            "id": f"msg_{self.running.id}",
            "type": "message",
            "role": "assistant",
            "model": self._model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {**input_usage(prompt, cached), "output_tokens": 0},
        }
        yield {"type": "message_start", "message": message}
        yield {"type": "ping"}

    def events(self, parts: Sequence[MessagePart], new: NewText) -> Iterator[NamedEvent]:
        for part in parts:
            match part:
                case Content(text):
                    yield from self._begin("text", {"text": ""})
                    yield self._delta("text_delta", text=text)
                case Reasoning(text) if self.reader.included:
                    yield from self._begin("thinking", {"thinking": "", "signature": ""})
                    self._thought.update(text.encode("utf-8", "surrogatepass"))
                    if not self._omitted:
                        yield self._delta("thinking_delta", thinking=text)
                case ToolCall(_, call_id, name, arguments):
                    self._has_calls = True
                    yield from self._begin("tool_use", {"id": call_id, "name": name, "input": {}}, new=True)
                    yield self._delta("input_json_delta", partial_json=arguments)
                case ToolCallArguments(_, arguments):
                    yield self._delta("input_json_delta", partial_json=arguments)
                case _:
                    pass

    def closing(self, completion: Completion, sample: Sample) -> Iterator[NamedEvent]:
        yield from self._end()
        reason, sequence = stop_of(sample, has_calls=self._has_calls)
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        yield {
            "type": "message_delta",
            "delta": delta,
            "usage": usage_of(completion, self.running.request, self.reader),
        }
        yield {"type": "message_stop"}

    def assembled(self, events: Iterable[NamedEvent]) -> dict[str, Any]:
        return assemble(events)

    def _begin(self, kind: str, block: Mapping[str, Any], *, new: bool = False) -> Iterator[NamedEvent]:
        """Begins a block, unless the open one is of this kind."""
        if kind == self._kind and not new:
            return
        yield from self._end()
        self._kind = kind
        yield {"type": "content_block_start", "index": self._blocks, "content_block": {"type": kind, **block}}

    def _end(self) -> Iterator[NamedEvent]:
        """Ends the open block."""
        if not self._kind:
            return
        if self._kind == "thinking":
            yield self._delta("signature_delta", signature=base64.b64encode(self._thought.digest()).decode())
        yield {"type": "content_block_stop", "index": self._blocks}
        self._blocks, self._kind = self._blocks + 1, ""

    def _delta(self, kind: str, **more: str) -> NamedEvent:
        return {"type": "content_block_delta", "index": self._blocks, "delta": {"type": kind, **more}}


def assemble(events: Iterable[NamedEvent]) -> dict[str, Any]:
    """The message that the events of a stream come to."""
    message: dict[str, Any] = {}
    inputs: dict[int, str] = {}
    for event in events:
        match event:
            case {"type": "message_start", "message": begun}:
                message = {**begun, "content": []}
            case {"type": "content_block_start", "content_block": block}:
                message["content"].append(dict(block))
            case {"type": "content_block_delta", "index": index, "delta": {"type": "input_json_delta"} as delta}:
                inputs[index] = inputs.get(index, "") + delta["partial_json"]
            case {"type": "content_block_delta", "index": index, "delta": delta}:
                message["content"][index][_MEMBERS[delta["type"]]] += delta[_MEMBERS[delta["type"]]]
            case {"type": "message_delta", "delta": delta, "usage": used}:
                message |= {**delta, "usage": {**message["usage"], **used}}
            case _:
                pass
    for index, text in inputs.items():
        message["content"][index]["input"] = read_input(text)
    return message


def read_input(text: str) -> Any:
    """The value of a JSON text; of one that was cut off or holds what is no JSON, its longest complete beginning."""
    if not text.strip():
        return {}
    try:
        return read_text(text)
    except ValueError:
        pass
    for end, closers in reversed(ends(text)):
        try:
            return read_text(text[:end] + closers)
        except ValueError:
            continue
    return {}


def ends(text: str) -> deque[tuple[int, str]]:
    """The last places at which a JSON text may be cut off, each with the brackets that are open there."""
    found, closers = deque[tuple[int, str]](maxlen=8), ""
    in_string = escaped = False
    for at, character in enumerate(text):
        if in_string:
            in_string, escaped = escaped or character != '"', character == "\\" and not escaped
            if not in_string:
                found.append((at + 1, closers))
        elif character == '"':
            in_string = True
        elif character in _CLOSERS:
            closers = _CLOSERS[character] + closers
            found.append((at + 1, closers))
        elif character in "}]":
            closers = closers[1:]
            found.append((at + 1, closers))
        elif character == ",":
            found.append((at, closers))
    return found


def stop_of(sample: Sample, *, has_calls: bool) -> tuple[str, str | None]:
    """Anthropic's `stop_reason` and `stop_sequence` of a sample that has ended."""
    kind = None if sample.stop is None else sample.stop.kind
    if sample.finish_reason == "length":
        return "max_tokens" if kind == "max_tokens" else "model_context_window_exceeded", None
    if has_calls:
        return "tool_use", None
    if sample.stop is not None and kind in {"string", "regex"}:
        return "stop_sequence", sample.stop.matched_text if kind == "regex" else str(sample.stop.matched)
    return "end_turn", None


def input_usage(prompt: int, cached: int) -> dict[str, int]:
    """The usage of a prompt: what was computed, and what came from the prefix cache."""
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
    }


def usage_of(completion: Completion, request: EngineRequest, reader: MessageReader) -> dict[str, Any]:
    """The usage of a whole message, with the tokens of its thoughts where they are told apart."""
    count = reader.count if reader.separates else None
    found = usage([completion], [request], reasoning_tokens=count)
    cached = found["prompt_tokens_details"]["cached_tokens"]
    told = {**input_usage(found["prompt_tokens"], cached), "output_tokens": found["completion_tokens"]}
    if not reader.separates:
        return told
    return {
        **told,
        "output_tokens_details": {"thinking_tokens": found["completion_tokens_details"]["reasoning_tokens"]},
    }
