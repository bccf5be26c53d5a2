"""`POST /v1/chat/completions`: OpenAI's chats, with tools, and with the fields of vLLM's and FastDeploy's servers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tirage.dialects import DialectError
from tirage.engine import Delta, Prompt, Sample
from tirage.engine.completion import LogprobEntry
from tirage.params import SamplingParams
from tirage.server.engine_input import EngineInput
from tirage.server.http_request import in_worker_thread, is_lenient, manager_of, media_of, read_json
from tirage.server.media import load_messages
from tirage.server.request_group import RequestGroup, RunningRequest
from tirage.server.request_manager import RequestManager
from tirage.server.routes.budgets import with_budget
from tirage.server.routes.openai_answer import AnswerBuilder, ChoiceBuilder, NewText, new_metadata
from tirage.server.routes.openai_request import CHAT, OpenAIRequest, read_request
from tirage.server.routes.openai_shapes import bare_start, chat_logprobs, prompt_logprobs, with_top
from tirage.server.routes.openai_submit import adapter_of, submit
from tirage.server.routes.reasoning import MessageReader, ReasoningSplit, prompt_opens_reasoning, split_of
from tirage.server.routes.toolcalls import Content, MessagePart, Reasoning, ToolCall, ToolCallArguments
from tirage.server.routes.tools import Tools, read_tools, tool_call_format

router = APIRouter(tags=["openai"])
_TEMPLATE_FIELDS = ("enable_thinking", "reasoning_effort")


@router.post("/v1/chat/completions", openapi_extra=CHAT.body)
async def chat(raw_request: Request) -> Response:
    """The assistant's next message, as JSON or as a stream."""
    manager, body = manager_of(raw_request), await read_json(raw_request)
    lenient = is_lenient(raw_request)
    request = await in_worker_thread(
        raw_request, read_request, CHAT, body, manager.options, manager.llm, lenient=lenient
    )
    prompt = "prompt_token_ids" if request.fields["messages"] is None else "messages"
    running = await submit_chat(request, raw_request, prompt=prompt)
    return answer_of(request, running.group, running.reader, manager).response()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatInput:
    """A chat as the engine takes it, and what its answer is parsed by."""

    engine_input: EngineInput
    tools: Tools
    split: ReasoningSplit | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningChat:
    """A chat that the engine runs: one prompt, and how the messages of its answer are parsed."""

    group: RequestGroup
    reader: MessageReader


async def read_chat(request: OpenAIRequest, raw_request: Request) -> ChatInput:
    """The chat of a request, of whichever API: its `fields` hold those of chat completions.

    Loads images and audio. Raises DialectError and ParamsError for fields that contradict each other.
    """
    manager, fields = manager_of(raw_request), request.fields
    tools = tools_of(request, manager)
    messages = None if fields["messages"] is None else await load_messages(media_of(raw_request), fields["messages"])
    split = split_of(fields, request.params, manager.options)
    engine_input = engine_input_of(request, messages, tools, split, manager)
    return ChatInput(engine_input=engine_input, tools=tools, split=split)


def tools_of(request: OpenAIRequest, manager: RequestManager) -> Tools:
    """The tools of a chat, whose calls have the format that the operator chose, or that of the model's template."""
    fields, parser = request.fields, manager.options.tool_call_parser
    asked = fields["tools"], fields["tool_choice"], fields["parallel_tool_calls"]
    tool_format = tool_call_format(manager.llm.chat_template.for_tools.source, parser)
    return read_tools(*asked, tool_format=tool_format, formatted=parser is not None)


async def submit_chat(
    request: OpenAIRequest, raw_request: Request, *, prompt: str, must_fit: bool = True
) -> RunningChat:
    """The running chat of a request, as `read_chat` reads it; raises what `read_chat` and `submit` raise.

    `prompt` is the field that errors about the prompt name; `must_fit` is that of `submit`.
    """
    manager, found = manager_of(raw_request), await read_chat(request, raw_request)
    options = {"prompt": prompt, "reworded": found.tools.reworded, "must_fit": must_fit}
    group = await submit([found.engine_input], request, manager, raw_request, **options)
    return RunningChat(group=group, reader=reader_of(request, group, found.tools, found.split, manager))


def answer_of(
    request: OpenAIRequest, group: RequestGroup, reader: MessageReader, manager: RequestManager
) -> AnswerBuilder:
    """The builder of the answer to a request that runs."""

    def new_choice(index: int, running: RunningRequest) -> ChatChoice:
        return ChatChoice(index, running, request, reader)

    return AnswerBuilder(
        new_metadata("chatcmpl", group, manager),
        group,
        request,
        new_choice,
        kind="chat.completion",
        chunk_kind="chat.completion.chunk",
        reasoning_tokens=reader.count if reader.separates else None,
    )


def reader_of(
    request: OpenAIRequest, group: RequestGroup, tools: Tools, split: ReasoningSplit | None, manager: RequestManager
) -> MessageReader:
    """How the messages of an answer are parsed."""
    [running] = group.requests
    guided, tokenizer = running.engine_input.params.guided_decoding, manager.llm.tokenizer
    # What must keep a constraint from its first character on is no reasoning, whatever the prompt has opened.
    is_free = guided is None or not guided.enable_in_reasoning or guided.structural_tag is not None
    begun = running.engine_input.begun
    tags = None if split is None else split.tags
    opened = is_free and prompt_opens_reasoning(tags, running.request.prompt_ids, tokenizer, begun=begun)
    return MessageReader(
        tools=tools,
        tags=tags,
        separated=split is None or split.separated,
        opened=opened,
        answering=not opened and bool(begun.strip()),
        included=request.fields["include_reasoning"],
        tokenizer=tokenizer,
    )


def engine_input_of(
    request: OpenAIRequest,
    messages: Sequence[Any] | None,
    tools: Tools,
    split: ReasoningSplit | None,
    manager: RequestManager,
) -> EngineInput:
    """The engine input of a chat; raises DialectError for fields that contradict each other."""
    fields = request.fields
    params, adapter = params_of(request, tools, split, manager), adapter_of(request, manager)
    if fields["prompt_token_ids"] is not None:
        if messages:
            raise DialectError("prompt_token_ids must stand alone, got messages too; give one", "prompt_token_ids")
        for name in (*_TEMPLATE_FIELDS, "chat_template_kwargs", "continue_final_message"):
            if fields[name]:
                raise DialectError(f"{name} must go with messages, got prompt_token_ids; leave it out", name)
        prompt = Prompt(token_ids=fields["prompt_token_ids"], adapter=adapter)
        return EngineInput(prompt=prompt, params=params, beams=request.beams, cache_salt=fields["cache_salt"])
    if messages is None:
        raise DialectError("messages must be given, got none", "messages")
    return EngineInput(
        messages=messages,
        tools=tools.shown,
        template_args=template_args(request, manager),
        add_generation_prompt=fields["add_generation_prompt"],
        continue_final_message=fields["continue_final_message"],
        params=params,
        adapter=adapter,
        beams=request.beams,
        cache_salt=fields["cache_salt"],
    )


def params_of(
    request: OpenAIRequest, tools: Tools, split: ReasoningSplit | None, manager: RequestManager
) -> SamplingParams:
    """The sampling parameters with what tools and reasoning add to them; raises DialectError for two constraints."""
    params, changes = request.params, dict[str, Any]()
    budget = request.fields["reasoning_max_tokens"]
    if budget is not None:
        params = with_budget(params, "reasoning_max_tokens", budget)
    constraint = tools.constraint()
    if constraint is not None:
        if params.guided_decoding is not None:
            name, rule = ("tools", "be strict") if tools.mode == "auto" else ("tool_choice", "force a call")
            raise DialectError(f"{name} must not {rule} under another constraint, got both; leave one out", name)
        changes["guided_decoding"] = constraint
    if split is not None and params.reasoning_parser is None and manager.options.reasoning_parser is None:
        changes["reasoning_parser"] = "think"
    tags = split.tags if split is not None and (split.separated or tools.mode != "none") else ()
    if manager.llm.tokenizer.special_spellings & {*tools.markers, *tags}:
        # This model's markers are special tokens; a text without them could not be parsed.
        changes["skip_special_tokens"] = False
    return params.replace(**changes) if changes else params


def template_args(request: OpenAIRequest, manager: RequestManager) -> dict[str, Any]:
    """The variables for the chat template; raises DialectError for a field that the template does not use."""
    fields = request.fields
    named = {name: fields[name] for name in _TEMPLATE_FIELDS if fields[name] is not None}
    template = manager.llm.chat_template.for_tools if fields["tools"] else manager.llm.chat_template
    for name, value in named.items():
        if not template.takes(name, value):
            raise DialectError(
                f"{name} must be left out for a model whose chat template has no such variable, got {value!r:.40}", name
            )
    return {**(fields["chat_template_kwargs"] or {}), **named}


class ChatChoice(ChoiceBuilder):
    """A choice of a chat. Every delta of a stream has a text `content`, because clients print it unconditionally."""

    text_member = "content"

    def __init__(self, index: int, running: RunningRequest, request: OpenAIRequest, reader: MessageReader) -> None:
        super().__init__(index, running, request)
        self._reader, self._parser, self._has_calls = reader, reader.parser(), False
        self.is_plain = reader.is_plain

    def opening(self) -> Iterable[dict[str, Any]]:
        prompt = {"prompt_token_ids": self.running.request.prompt_ids}
        return [self.choice({"delta": {**self._fastdeploy(prompt), "role": "assistant", "content": ""}})]

    def shared(self) -> dict[str, Any]:
        """The prompt's ids and log-probabilities, where the request wants them."""
        found: dict[str, Any] = {}
        if self.request.params.prompt_logprobs is not None:
            found["prompt_logprobs"] = prompt_logprobs(self.running.request.prompt_logprobs)
        if self.request.fields["return_token_ids"]:
            found["prompt_token_ids"] = list(self.running.request.prompt_ids)
        return found

    def text_choice(self, text: str | None) -> dict[str, Any]:
        return self._delta({"content": text})

    def parts(self, new: NewText) -> Iterable[dict[str, Any]]:
        deltas = [delta for part in self._parser.feed(new.text) for delta in self._deltas(part)]
        if not deltas and (new.entries or (new.ids and self.request.fields["return_token_ids"])):
            deltas = [{"content": ""}]
        for number, delta in enumerate(deltas):
            if number:
                yield self._delta(delta)
            else:
                ids = self._fastdeploy({"completion_token_ids": new.ids})
                yield self.choice({"delta": {**ids, **delta}}, logprobs=self._logprobs(new.entries), new=new)

    def last(self, delta: Delta) -> Iterable[dict[str, Any]]:
        for part in self._parser.finish():
            yield from map(self._delta, self._deltas(part))
        yield self.choice({"delta": {**self._fastdeploy({}), "content": ""}}, end=delta)

    def complete(self, new: NewText, sample: Sample) -> dict[str, Any]:
        parts = [*self._parser.feed(new.text), *self._parser.finish()]
        message = self._message(parts, new)
        return self.choice({"message": message}, logprobs=self._logprobs(new.entries), end=sample, new=new)

    def finish_reason(self, reason: str | None) -> str | None:
        return "tool_calls" if self._has_calls and reason == "stop" else reason

    def _message(self, parts: Sequence[MessagePart], new: NewText) -> dict[str, Any]:
        """The whole message, with its reasoning and its tool calls."""
        content = "".join(part.text for part in parts if isinstance(part, Content))
        calls = [tool_call(part) for part in parts if isinstance(part, ToolCall)]
        self._has_calls = bool(calls)
        message = {"role": "assistant", "content": content if content or not calls else None, "refusal": None}
        prompt = self.running.request.prompt_ids
        message |= self._fastdeploy({"prompt_token_ids": prompt, "completion_token_ids": new.ids}, "tool_calls")
        if calls:
            message["tool_calls"] = calls
        if self._reader.separates and self._reader.included:
            reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
            message["reasoning_content"] = reasoning or None
        return message

    def _deltas(self, part: MessagePart) -> Iterable[dict[str, Any]]:
        """What a part changes in the message."""
        match part:
            case Content(text):
                yield {"content": text}
            case Reasoning(text):
                if self._reader.included:
                    yield {"content": "", "reasoning_content": text}
            case ToolCall():
                self._has_calls = True
                yield {"content": "", "tool_calls": [{"index": part.index, **tool_call(part)}]}
            case ToolCallArguments(index, arguments):
                yield {"content": "", "tool_calls": [{"index": index, "function": {"arguments": arguments}}]}

    def _delta(self, delta: dict[str, Any]) -> dict[str, Any]:
        return self.choice({"delta": {**self._fastdeploy({}), **delta}})

    def _fastdeploy(self, ids: Mapping[str, Sequence[int]], *more: str) -> dict[str, Any]:
        """FastDeploy's members of a message or delta: None, but for ids that the request wants."""
        if not self.request.fastdeploy:
            return {}
        members = dict.fromkeys(("reasoning_content", *more, "prompt_token_ids", "completion_token_ids"))
        wanted = ids if self.request.fields["return_token_ids"] else {}
        return members | {name: list(each) for name, each in wanted.items()}

    def _logprobs(self, entries: Sequence[LogprobEntry]) -> dict[str, Any] | None:
        """The logprobs of the last tokens, if the request wants them."""
        if self.request.params.logprobs is None:
            return None
        shown = bare_start(with_top(entries, self.request.params, self._reader.tokenizer), self.length)
        return chat_logprobs(shown, as_id=self.request.fields["return_tokens_as_token_ids"])


def tool_call(call: ToolCall) -> dict[str, Any]:
    """A tool call as OpenAI writes it."""
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
