"""`POST /v1/chat/completions`: OpenAI's chats, with tools, and with the fields of vLLM's and FastDeploy's servers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tirage.dialects import DialectError
from tirage.engine import Completion, Delta, Prompt, Sample
from tirage.engine.completion import LogprobEntry
from tirage.params import RequestOutputKind, SamplingParams
from tirage.server import sse
from tirage.server.engine_input import EngineInput
from tirage.server.http_request import in_worker_thread, is_lenient, manager_of, media_of, read_json
from tirage.server.media import load_messages
from tirage.server.options import REASONING_PARSERS
from tirage.server.request_group import RequestGroup
from tirage.server.request_manager import RequestManager
from tirage.server.routes.fields import body_schema
from tirage.server.routes.openai_answer import adapter_of, admitted, extras_of, headers_of, new_head
from tirage.server.routes.openai_request import CHAT, OpenAIRequest, read_request
from tirage.server.routes.openai_shapes import (
    Head,
    asked_for,
    bare_start,
    chat_logprobs,
    prompt_logprobs,
    raise_failed,
    stops_of,
    text_entries,
    usage,
)
from tirage.server.routes.openai_stream import ChoiceStream, ChunkFormatter
from tirage.server.routes.reasoning import Marks, ReasoningReader, is_begun, mark_ids, marks_of
from tirage.server.routes.toolcalls import Begun, Content, Continued, Piece, Thought, ToolCallParser
from tirage.server.routes.tools import Tools, form_of, read_tools

router = APIRouter(tags=["openai"])


@router.post("/v1/chat/completions", openapi_extra=body_schema(CHAT.fields, CHAT.openai))
async def chat(request: Request) -> Response:
    """The assistant's next message, as JSON or as a stream."""
    desk, body = manager_of(request), await read_json(request)
    asked = await in_worker_thread(
        request, read_request, CHAT, body, desk.options, desk.llm, lenient=is_lenient(request)
    )
    own = asked.own
    tools = read_tools(
        own["tools"], own["tool_choice"], own["parallel_tool_calls"], form=form_of(desk.llm.chat_template.source)
    )
    messages = None if own["messages"] is None else await load_messages(media_of(request), own["messages"])
    marks = marks_of(own, desk.options)
    call = call_of(asked, messages, tools, marks, desk)
    prompt = "messages" if messages is not None else "prompt_token_ids"
    visit = await admitted([call], asked, desk, request, prompt=prompt, worded=tools.worded)
    reader = reader_of(asked, visit, tools, marks, desk)
    head, headers = new_head("chatcmpl", visit, desk), headers_of(asked)
    if own["stream"]:
        return sse.EventStream(visit, ChatFormatter(head, asked, visit, reader), headers=headers)
    return sse.JsonAnswer(visit, lambda results: answer(results[0], head, asked, visit, reader), headers=headers)


def reader_of(
    asked: OpenAIRequest, visit: RequestGroup, tools: Tools, marks: Marks | None, desk: RequestManager
) -> ReasoningReader:
    """How the messages of an answer are read."""
    [ticket] = visit.tickets
    guided = ticket.call.params.guided_decoding
    # What must be JSON from its first letter on is no thought, whatever the prompt has begun.
    is_free = guided is None or guided.structural_tag is not None
    begun = is_free and is_begun(marks, ticket.request.prompt_ids, desk.llm.tokenizer)
    shown = asked.own["include_reasoning"]
    return ReasoningReader(tools=tools, marks=marks, begun=begun, shown=shown, tokenizer=desk.llm.tokenizer)


def call_of(
    asked: OpenAIRequest, messages: Sequence[Any] | None, tools: Tools, marks: Marks | None, desk: RequestManager
) -> EngineInput:
    """The call of a chat; DialectError for fields that contradict each other."""
    own = asked.own
    params, adapter = params_of(asked, tools, marks, desk), adapter_of(asked, desk)
    if own["prompt_token_ids"] is not None:
        if messages:
            raise DialectError("prompt_token_ids must stand alone, got messages too; give one", "prompt_token_ids")
        for name in ("enable_thinking", "reasoning_effort", "chat_template_kwargs"):
            if own[name]:
                raise DialectError(f"{name} must go with messages, got prompt_token_ids; leave it out", name)
        prompt = Prompt(token_ids=own["prompt_token_ids"], adapter=adapter)
        return EngineInput(prompt=prompt, params=params, beams=asked.beams)
    if messages is None:
        raise DialectError("messages must be given, got none", "messages")
    arguments = template_args(asked, desk)
    return EngineInput(
        messages=messages,
        tools=tools.shown,
        template_args=arguments,
        params=params,
        adapter=adapter,
        beams=asked.beams,
    )


def params_of(asked: OpenAIRequest, tools: Tools, marks: Marks | None, desk: RequestManager) -> SamplingParams:
    """The sampling parameters with the constraint of the tools."""
    stream = asked.own["stream"]
    params = asked.params.replace(output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY)
    constraint = tools.constraint()
    if constraint is not None:
        if params.guided_decoding is not None:
            name, rule = ("tools", "be strict") if tools.mode == "auto" else ("tool_choice", "force a call")
            raise DialectError(f"{name} must not {rule} under another constraint, got both; leave one out", name)
        params = params.replace(guided_decoding=constraint)
    for name in ("reasoning_max_tokens", "thinking_token_budget"):
        if asked.own[name] not in {None, -1}:
            params = with_thinking_budget(params, name, asked.own[name], marks, desk)
    if desk.llm.tokenizer.special_spellings & {tools.mark, *(marks or ())}:
        # A mark is a special token of this model; left out of the text, calls and thoughts could not be told.
        params = params.replace(skip_special_tokens=False)
    return params


def with_thinking_budget(
    params: SamplingParams, name: str, most: int, marks: Marks | None, desk: RequestManager
) -> SamplingParams:
    """The parameters with a processor that ends the model's thoughts after so many tokens."""
    marks = marks or REASONING_PARSERS["think"]
    ids = mark_ids(marks, desk.llm.tokenizer)
    if None in ids:
        raise DialectError(
            f"{name} must be left out for a model that has no tokens {' and '.join(marks)}, got {most}", name
        )
    given = {"thinking_budget": most, "think_start_id": ids[0], "think_end_id": ids[1]}
    return params.replace(logits_processors=(*params.logits_processors, ("thinking_budget", given)))


def template_args(asked: OpenAIRequest, desk: RequestManager) -> dict[str, Any]:
    """The variables for the chat template; DialectError for a field that it does not heed."""
    own = asked.own
    named = {name: own[name] for name in ("enable_thinking", "reasoning_effort") if own[name] is not None}
    for name, value in named.items():
        if not desk.llm.chat_template.takes(name, value):
            raise DialectError(
                f"{name} must be left out for a model whose chat template has no such variable, got {value!r:.40}", name
            )
    return {**(own["chat_template_kwargs"] or {}), **named}


def answer(
    result: Completion, head: Head, asked: OpenAIRequest, visit: RequestGroup, reader: ReasoningReader
) -> dict[str, Any]:
    """The answer as one object."""
    raise_failed([result])
    choices = [
        {"index": index, **choice_of(sample, result, asked, reader)} for index, sample in enumerate(result.samples)
    ]
    more = extras_of(asked, visit.tickets)
    if asked.params.prompt_logprobs is not None:
        more = {**more, "prompt_logprobs": prompt_logprobs(result.prompt_logprobs)}
    if asked.own["return_token_ids"]:
        more = {**more, "prompt_token_ids": list(result.prompt_token_ids)}
    return head.of("chat.completion", choices, usage=chat_usage(result, reader), **more)


def chat_usage(result: Completion, reader: ReasoningReader) -> dict[str, Any]:
    """Tokens of an answer; those of thoughts are told apart where the thoughts are."""
    found = usage([result])
    if reader.marks is None:
        return found
    thoughts = sum(reader.count(sample.token_ids) for sample in result.samples)
    return {**found, "completion_tokens_details": {"reasoning_tokens": thoughts}}


def choice_of(sample: Sample, result: Completion, asked: OpenAIRequest, reader: ReasoningReader) -> dict[str, Any]:
    """One choice: the message, with its thoughts and the calls that it makes."""
    parser = reader.parser()
    pieces = [*parser.feed(sample.text), *parser.finish()]
    content = "".join(piece.text for piece in pieces if isinstance(piece, Content))
    calls = [tool_call(piece) for piece in pieces if isinstance(piece, Begun)]
    message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
    message |= {"refusal": None, **fastdeploy_fields(sample, result, asked), **({"tool_calls": calls} if calls else {})}
    if reader.marks is not None and reader.shown:
        message["reasoning_content"] = "".join(piece.text for piece in pieces if isinstance(piece, Thought)) or None
    shown = None
    if sample.logprobs is not None:
        entries = text_entries(sample, included=asked.params.include_stop_str_in_output)
        shown = logprobs_of(entries, len(sample.text), asked, reader)
    choice = {
        "message": message,
        "logprobs": shown,
        "finish_reason": finish_reason(sample.finish_reason, called=bool(calls)),
        **stops_of(sample.stop, sample.token_ids),
    }
    return {**choice, "token_ids": list(sample.token_ids)} if asked.own["return_token_ids"] else choice


def fastdeploy_fields(sample: Sample, result: Completion, asked: OpenAIRequest) -> dict[str, Any]:
    """What FastDeploy's messages hold besides OpenAI's keys."""
    if not asked.fastdeploy:
        return {}
    wanted = asked.own["return_token_ids"]
    return {
        "reasoning_content": None,
        "tool_calls": None,
        "prompt_token_ids": list(result.prompt_token_ids) if wanted else None,
        "completion_token_ids": list(sample.token_ids) if wanted else None,
    }


def logprobs_of(
    entries: Sequence[LogprobEntry], length: int, asked: OpenAIRequest, reader: ReasoningReader
) -> dict[str, Any]:
    """The `logprobs` of the last tokens of a text of that length."""
    shown = bare_start(asked_for(entries, asked.params, reader.tokenizer), length)
    return chat_logprobs(shown, as_id=asked.own["return_tokens_as_token_ids"])


def finish_reason(reason: str | None, *, called: bool) -> str | None:
    """OpenAI's word for the end of a choice."""
    return "tool_calls" if called and reason == "stop" else reason


def tool_call(call: Begun) -> dict[str, Any]:
    """A call as OpenAI writes it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


class ChatFormatter(ChunkFormatter):
    """Chunks of a chat. Every one has a text `content`, because clients print it unasked."""

    kind = "chat.completion.chunk"

    def __init__(self, head: Head, asked: OpenAIRequest, visit: RequestGroup, reader: ReasoningReader) -> None:
        super().__init__(head, asked, visit)
        self._parsers: dict[int, ToolCallParser] = {choice.index: reader.parser() for choice in self._choices.values()}
        self._called: set[int] = set()
        self._reader = reader
        self._molds: dict[int, sse.JsonTemplate] = {}
        names = ("reasoning_content", "prompt_token_ids", "completion_token_ids") if asked.fastdeploy else ()
        self._nothing: dict[str, Any] = dict.fromkeys(names)

    def first(self, choice: ChoiceStream) -> Iterable[dict[str, Any]]:
        delta: dict[str, Any] = {"role": "assistant", "content": ""}
        if self._asked.fastdeploy and self._asked.own["return_token_ids"]:
            delta["prompt_token_ids"] = list(choice.ticket.request.prompt_ids)
        return [self._choice(delta)]

    def told_once(self, choice: ChoiceStream) -> dict[str, Any]:
        if not self._asked.own["return_token_ids"]:
            return {}
        return {"prompt_token_ids": list(choice.ticket.request.prompt_ids)}

    def plain(self, choice: ChoiceStream, text: str) -> sse.Event | None:
        own = self._asked.own
        if not self._reader.is_plain or not text or own["return_token_ids"]:
            return None
        if self._asked.stream_options["continuous_usage_stats"]:
            return None
        if choice.index not in self._molds:
            self._molds[choice.index] = sse.JsonTemplate(
                self.chunk(choice, self._choice({"content": None})), ["content"]
            )
        return self._molds[choice.index].fill(sse.dump(text))

    def parts(
        self, choice: ChoiceStream, text: str, ids: Sequence[int], entries: Sequence[LogprobEntry]
    ) -> Iterable[dict[str, Any]]:
        pieces = self._parsers[choice.index].feed(text)
        deltas = [delta for piece in pieces for delta in self._deltas(choice, piece)]
        wants_ids = self._asked.own["return_token_ids"]
        if not deltas and (entries or (wants_ids and ids)):
            deltas = [{"content": ""}]
        found = [self._choice(delta) for delta in deltas]
        if found and self._asked.params.logprobs is not None:
            found[0]["logprobs"] = logprobs_of(entries, choice.length, self._asked, self._reader)
        if found and wants_ids:
            found[0]["token_ids"] = list(ids)
            if self._asked.fastdeploy:
                found[0]["delta"]["completion_token_ids"] = list(ids)
        return found

    def last(self, choice: ChoiceStream, delta: Delta) -> Iterable[dict[str, Any]]:
        for piece in self._parsers[choice.index].finish():
            yield from map(self._choice, self._deltas(choice, piece))
        reason = finish_reason(delta.finish_reason, called=choice.index in self._called)
        yield {**self._choice({"content": ""}), "finish_reason": reason, **stops_of(delta.stop, choice.last_ids)}

    def _choice(self, delta: dict[str, Any]) -> dict[str, Any]:
        return {"delta": {**self._nothing, **delta}, "logprobs": None, "finish_reason": None}

    def usage(self, completions: Sequence[Completion]) -> dict[str, Any]:
        return chat_usage(completions[0], self._reader)

    def _deltas(self, choice: ChoiceStream, piece: Piece) -> Iterable[dict[str, Any]]:
        """What changes in the message."""
        match piece:
            case Content(text):
                yield {"content": text}
            case Thought(text):
                if self._reader.shown:
                    yield {"content": "", "reasoning_content": text}
            case Begun():
                self._called.add(choice.index)
                yield {"content": "", "tool_calls": [{"index": piece.index, **tool_call(piece)}]}
            case Continued(index, arguments):
                yield {"content": "", "tool_calls": [{"index": index, "function": {"arguments": arguments}}]}
