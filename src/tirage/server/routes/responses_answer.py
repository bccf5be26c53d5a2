"""The answer to `/v1/responses`: the events of a stream, and the response that they come to."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from tirage.engine import Completion, LogprobEntry, Sample
from tirage.server.errors import Refusal
from tirage.server.replay import effective
from tirage.server.routes.chat import RunningChat
from tirage.server.routes.message_answer import MessageAnswer, NamedEvent
from tirage.server.routes.openai_answer import NewText
from tirage.server.routes.openai_request import OpenAIRequest
from tirage.server.routes.openai_shapes import bare_start, usage, with_top
from tirage.server.routes.responses_output import Output
from tirage.server.routes.responses_request import ResponsesRequest
from tirage.server.routes.responses_tools import shown_tools
from tirage.server.routes.text_entries import TextEntries
from tirage.server.routes.toolcalls import Content, MessagePart, Reasoning, ToolCall, ToolCallArguments
from tirage.server.sse import StreamStyle, in_parts, named, pieces

Keep = Callable[[str, Sequence[bytes]], None]
"""Keeps a response that has ended: its id, and its JSON in parts."""


class ResponseAnswer(MessageAnswer):
    """Builds the response to a request, of which `chat` is what runs.

    `model` is the name of the model that answers. Without `keep` the response is not kept.
    """

    def __init__(
        self, request: ResponsesRequest, chat: OpenAIRequest, running: RunningChat, *, model: str, keep: Keep | None
    ) -> None:
        super().__init__(chat, running.group, running.reader)
        self.id, self._sent, self._model, self._keep = f"resp_{self.running.id}", request, model, keep
        self._created, self._count = int(time.time()), 0
        as_id = chat.fields["return_tokens_as_token_ids"]
        self._output = Output(self.id, summary=request.summary is not None, as_id=as_id)
        wanted = chat.params.logprobs is not None
        self._entries = TextEntries(running.reader) if wanted else None
        self._found = dict[int, list[LogprobEntry]]()

    @property
    def style(self) -> StreamStyle:
        return StreamStyle(head=named, error=self._failed, last=b"")

    def begin(self) -> Iterator[NamedEvent]:
        yield self._numbered({"type": "response.created", "response": self._response("in_progress")})
        yield self._numbered({"type": "response.in_progress", "response": self._response("in_progress")})

    def opening(self) -> Iterable[NamedEvent]:
        return ()

    def events(self, parts: Sequence[MessagePart], new: NewText) -> Iterator[NamedEvent]:
        self._sort(new, last=False)
        for part in parts:
            yield from map(self._numbered, self._grown(part))
        yield from map(self._numbered, self._late_logprobs())

    def closing(self, completion: Completion, sample: Sample) -> Iterator[NamedEvent]:
        cut = sample.finish_reason == "length"
        status = "incomplete" if cut else "completed"
        if not self._output.items and self._output.open is None:
            yield from map(self._numbered, self._output.say(""))
        self._sort(NewText("", (), ()), last=True)
        yield from map(self._numbered, self._late_logprobs())
        yield from map(self._numbered, self._output.close(status))
        response = self._response(status, completion)
        if self.request.fields["stream"] and self._keep is not None:
            self._keep(self.id, [*in_parts(pieces(response))])
        yield self._numbered({"type": f"response.{status}", "response": response})

    def encoded(self, parts: Sequence[bytes]) -> None:
        if self._keep is not None:
            self._keep(self.id, parts)

    def assembled(self, events: Iterable[NamedEvent]) -> dict[str, Any]:
        *_, last = events
        return last["response"]

    def _grown(self, part: MessagePart) -> Iterator[NamedEvent]:
        """What a part of the message changes in the output."""
        match part:
            case Content(text):
                number = self._output.messages - self._output.is_saying
                return self._output.say(text, self._found.pop(number, ()))
            case Reasoning(text):
                return self._output.reason(text) if self.reader.included else iter(())
            case ToolCall():
                return self._output.call(part)
            case ToolCallArguments(_, arguments):
                return self._output.argue(arguments)

    def _sort(self, new: NewText, *, last: bool) -> None:
        """Keeps the log-probabilities of new text until its events are made."""
        if self._entries is None:
            return
        shown = bare_start(with_top(new.entries, self.request.params, self.reader.tokenizer), self.unsent.length)
        for number, entries in self._entries.feed(new._replace(entries=shown), last=last).items():
            self._found.setdefault(number, []).extend(entries)

    def _late_logprobs(self) -> Iterator[NamedEvent]:
        """An event without text for log-probabilities of the open text that have come after it."""
        number = self._output.messages - 1
        if self._output.is_saying and number in self._found:
            yield from self._output.say("", self._found.pop(number))

    def _numbered(self, event: NamedEvent) -> NamedEvent:
        number, self._count = self._count, self._count + 1
        return {"type": event["type"], "sequence_number": number, **event}

    def _failed(self, refusal: Refusal) -> NamedEvent:
        """The event that ends a stream whose sample has failed."""
        code = "invalid_prompt" if refusal.status == 400 else "server_error"
        response = self._response("failed") | {"error": {"code": code, "message": refusal.message}}
        return self._numbered({"type": "response.failed", "response": response})

    def _response(self, status: str, completion: Completion | None = None) -> dict[str, Any]:
        """The response as it is now, with what is known of it at its end."""
        found = {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": {"reason": "max_output_tokens"} if status == "incomplete" else None,
            **self._asked(),
            "output": [*self._output.items],
            "usage": None,
        }
        if completion is None:
            return found
        return {**found, "completed_at": int(time.time()), "usage": self._usage(completion), **self._extras(completion)}

    def _asked(self) -> dict[str, Any]:
        """What the request has asked for, and the defaults where it was silent."""
        fields, params, sent = self._sent.own.fields, self.running.request.params, self._sent
        return {
            "instructions": fields["instructions"],
            "max_output_tokens": sent.body.get("max_output_tokens"),
            "max_tool_calls": None,
            "metadata": fields["metadata"] or {},
            "model": self._model,
            "parallel_tool_calls": fields["parallel_tool_calls"] is not False,
            "previous_response_id": fields["previous_response_id"],
            "reasoning": {"effort": sent.effort, "summary": sent.summary},
            "service_tier": "default",
            "store": self._keep is not None,
            "temperature": params.temperature,
            "text": {"format": (sent.body.get("text") or {}).get("format") or {"type": "text"}},
            "tool_choice": fields["tool_choice"] or "auto",
            "tools": shown_tools(self.request.fields["tools"]),
            "top_logprobs": params.logprobs or 0,
            "top_p": params.top_p,
            "truncation": "disabled",
        }

    def _usage(self, completion: Completion) -> dict[str, Any]:
        """The token counts by the names of this API."""
        found = usage([completion], [self.running.request], reasoning_tokens=self.reader.count)
        return {
            "input_tokens": found["prompt_tokens"],
            "input_tokens_details": {"cache_write_tokens": 0, **found["prompt_tokens_details"]},
            "output_tokens": found["completion_tokens"],
            "output_tokens_details": found["completion_tokens_details"],
            "total_tokens": found["total_tokens"],
        }

    def _extras(self, completion: Completion) -> dict[str, Any]:
        """What the response holds besides OpenAI's members because the request wants it."""
        fields, found = self.request.fields, dict[str, Any]()
        if fields["return_token_ids"]:
            found["prompt_token_ids"] = list(self.running.request.prompt_ids)
            found["token_ids"] = list(completion.samples[0].token_ids)
        if fields["return_effective_params"]:
            found["effective_params"] = [effective(self.running)]
        return found
