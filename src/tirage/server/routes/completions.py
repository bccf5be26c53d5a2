"""`POST /v1/completions`: OpenAI's text completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tirage.dialects import DialectError
from tirage.engine import Completion, Delta, Prompt
from tirage.engine.completion import LogprobEntry
from tirage.fields.rules import shown
from tirage.params import RequestOutputKind
from tirage.server import sse
from tirage.server.engine_input import EngineInput
from tirage.server.http_request import in_worker_thread, is_lenient, manager_of, read_json
from tirage.server.request_group import RequestGroup, RunningRequest
from tirage.server.request_manager import RequestManager
from tirage.server.routes.fields import body_schema
from tirage.server.routes.openai_answer import adapter_of, admitted, extras_of, headers_of, new_head
from tirage.server.routes.openai_request import COMPLETIONS, OpenAIRequest, read_request
from tirage.server.routes.openai_shapes import (
    Head,
    TextLogprobs,
    asked_for,
    joined,
    prompt_logprobs,
    raise_failed,
    stops_of,
    text_entries,
    usage,
)
from tirage.server.routes.openai_stream import ChoiceStream, ChunkFormatter
from tirage.text import Tokenizer, open_detokenizer

router = APIRouter(tags=["openai"])
KIND = "text_completion"


@router.post("/v1/completions", openapi_extra=body_schema(COMPLETIONS.fields, COMPLETIONS.openai))
async def completions(request: Request) -> Response:
    """Completions of one or more prompts, as JSON or as a stream."""
    desk, body = manager_of(request), await read_json(request)
    asked = await in_worker_thread(
        request, read_request, COMPLETIONS, body, desk.options, desk.llm, lenient=is_lenient(request)
    )
    calls = calls_of(asked, desk)
    source = "prompt" if asked.own["prompt_token_ids"] is None else "prompt_token_ids"
    visit = await admitted(calls, asked, desk, request, prompt=source)
    head, headers = new_head("cmpl", visit, desk), headers_of(asked)
    texts = CompletionTexts(asked, desk.llm.tokenizer)
    if asked.own["stream"]:
        return sse.EventStream(visit, CompletionFormatter(head, asked, visit, texts), headers=headers)

    def answer(results: Sequence[Completion]) -> dict[str, Any]:
        raise_failed(results)
        pairs = zip(results, visit.tickets, strict=True)
        choices = [choice for result, ticket in pairs for choice in texts.choices(result, ticket)]
        numbered = [{"index": index, **choice} for index, choice in enumerate(choices)]
        return head.of(KIND, numbered, usage=usage(results), **extras_of(asked, visit.tickets))

    return sse.JsonAnswer(visit, answer, headers=headers)


def calls_of(asked: OpenAIRequest, desk: RequestManager) -> list[EngineInput]:
    """A call for every prompt."""
    params = asked.params
    stream, echo = asked.own["stream"], asked.own["echo"]
    if echo and params.logprobs is not None and params.prompt_logprobs is None:
        params = params.replace(prompt_logprobs=params.logprobs)
    params = params.replace(output_kind=RequestOutputKind.DELTA if stream else RequestOutputKind.FINAL_ONLY)
    adapter = adapter_of(asked, desk)
    more = {"params": params, "beams": asked.beams, "echo": echo}
    return [EngineInput(prompt=Prompt(adapter=adapter, **prompt), **more) for prompt in prompts_of(asked)]


def prompts_of(asked: OpenAIRequest) -> list[dict[str, Any]]:
    """The prompts of a request; FastDeploy's clients may send ids in a field of their own, beside an empty text."""
    ids, prompt = asked.own["prompt_token_ids"], asked.own["prompt"]
    if ids is None:
        return read_prompts(prompt)
    if prompt:
        raise DialectError("prompt_token_ids must stand alone, got a prompt too; give one", "prompt_token_ids")
    found = read_prompts(ids, "prompt_token_ids")
    if any("text" in each for each in found):
        raise DialectError(f"prompt_token_ids must be token ids, got {shown(ids)}; use prompt", "prompt_token_ids")
    return found


def read_prompts(prompt: Any, field: str = "prompt") -> list[dict[str, Any]]:
    """The prompts of a field: a text, ids, or a list of either, as arguments of Prompt."""
    many = prompt if is_many(prompt) else [prompt]
    found = [read_prompt(each) for each in many]
    if None in found:
        place = f"[{found.index(None)}]" if many is prompt else ""
        rule = "a text, a list of texts, a list of token ids or a list of such lists"
        raise DialectError(f"{field} must be {rule}, got {shown(prompt)}", f"{field}{place}")
    return [each for each in found if each is not None]


def is_many(prompt: Any) -> bool:
    """True for a list of texts or of lists."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], (str, list))


def read_prompt(prompt: Any) -> dict[str, Any] | None:
    """One prompt as an argument of Prompt; None for what is no prompt."""
    if isinstance(prompt, str):
        return {"text": prompt}
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return {"token_ids": prompt}
    return None


class CompletionTexts:
    """Choices of completions: their text, with the prompt where it is echoed, and their logprobs."""

    def __init__(self, asked: OpenAIRequest, tokenizer: Tokenizer) -> None:
        self._asked, self._tokenizer = asked, tokenizer
        as_id = asked.own["return_tokens_as_token_ids"]
        self._logprobs = None if asked.params.logprobs is None else TextLogprobs(as_id=as_id)

    def choices(self, completion: Completion, ticket: RunningRequest) -> Iterable[dict[str, Any]]:
        """The choices of one prompt, without their index."""
        echo = self.echo(ticket)
        included = self._asked.params.include_stop_str_in_output
        for sample in completion.samples:
            logprobs = None
            if self._logprobs is not None:
                before = self.echoed(completion.prompt_logprobs, ticket, echo)
                entries = text_entries(sample, included=included)
                logprobs = joined(before, self.output(entries, len(echo)))
            more = self.ids(sample.token_ids, completion.prompt_token_ids)
            if self._asked.params.prompt_logprobs is not None:
                more = {**more, "prompt_logprobs": prompt_logprobs(completion.prompt_logprobs)}
            stops = stops_of(sample.stop, sample.token_ids)
            reason = {"finish_reason": sample.finish_reason, **stops}
            yield {"text": echo + sample.text, "logprobs": logprobs, **reason, **more}

    def echo(self, ticket: RunningRequest) -> str:
        """The text of the prompt, where it is to be echoed."""
        if not self._asked.own["echo"]:
            return ""
        given = ticket.call.prompt
        if given is not None and given.text is not None:
            return given.text
        return self._tokenizer.decode(ticket.request.prompt_ids)

    def echoed(
        self, entries: Sequence[LogprobEntry | None] | None, ticket: RunningRequest, echo: str
    ) -> dict[str, Any] | None:
        """The logprobs of an echoed prompt."""
        if self._logprobs is None or not self._asked.own["echo"]:
            return None
        ids, count = ticket.request.prompt_ids, self._asked.params.logprobs or 0
        # A prompt may be scored for more of the likeliest, by prompt_logprobs.
        shown = [None if one is None else replace(one, top=one.top[:count]) for one in entries or [None] * len(ids)]
        return self._logprobs.prompt(ids, shown, self._spelled(ids, len(echo)))

    def output(self, entries: Sequence[LogprobEntry], start: int) -> dict[str, Any] | None:
        """The logprobs of new text."""
        if self._logprobs is None:
            return None
        return self._logprobs.output(asked_for(entries, self._asked.params, self._tokenizer), start=start)

    def ids(self, drawn: Sequence[int], prompt: Sequence[int] | None) -> dict[str, Any]:
        """The token ids, where they were asked for; a chunk after the first has none of the prompt's."""
        if not self._asked.own["return_token_ids"]:
            return {}
        theirs = {"completion_token_ids": list(drawn)} if self._asked.fastdeploy else {}
        return {"token_ids": list(drawn), "prompt_token_ids": prompt and list(prompt), **theirs}

    def _spelled(self, ids: Sequence[int], length: int) -> list[tuple[str, int]]:
        """Every token's own text, and where it starts in the prompt's."""
        detokenizer = open_detokenizer(self._tokenizer)
        spelled, place = [], 0
        for token in ids:
            own, new = self._tokenizer.token_bytes(token).decode("utf-8", "replace"), detokenizer.push(token)
            # A text that begins with a word has dropped the space that its first token has.
            own = new if place == 0 and own == f" {new}" else own
            spelled.append((own, min(place, length)))
            place += len(new)
        return spelled


class CompletionFormatter(ChunkFormatter):
    """Chunks of text completions."""

    kind = KIND

    def __init__(self, head: Head, asked: OpenAIRequest, visit: RequestGroup, texts: CompletionTexts) -> None:
        super().__init__(head, asked, visit)
        self._texts = texts
        self._starts: dict[int, int] = {}
        self._molds: dict[int, sse.JsonTemplate] = {}
        self._told: set[int] = set()

    def lead(self, choice: ChoiceStream) -> Iterable[dict[str, Any]]:
        """The echoed prompt with its logprobs."""
        echo = self._texts.echo(choice.ticket)
        self._starts[choice.index] = len(echo)
        logprobs = self._texts.echoed(choice.ticket.request.prompt_logprobs, choice.ticket, echo)
        return [{**worded(echo), "logprobs": logprobs}] if echo else []

    def plain(self, choice: ChoiceStream, text: str) -> sse.Event | None:
        own = self._asked.own
        if not text or self._asked.stream_options["continuous_usage_stats"] or own["return_token_ids"]:
            return None
        if choice.index not in self._molds:
            self._molds[choice.index] = sse.JsonTemplate(self.chunk(choice, {**worded(""), "text": None}), ["text"])
        return self._molds[choice.index].fill(sse.dump(text))

    def parts(
        self, choice: ChoiceStream, text: str, ids: Sequence[int], entries: Sequence[LogprobEntry]
    ) -> Iterable[dict[str, Any]]:
        if not text and not entries and not self._asked.own["return_token_ids"]:
            return []
        logprobs = self._texts.output(entries, self._starts[choice.index])
        return [{**worded(text), "logprobs": logprobs, **self._texts.ids(ids, self._untold(choice))}]

    def last(self, choice: ChoiceStream, delta: Delta) -> Iterable[dict[str, Any]]:
        return [{**worded(""), "finish_reason": delta.finish_reason, **stops_of(delta.stop, choice.last_ids)}]

    def _untold(self, choice: ChoiceStream) -> Sequence[int] | None:
        """The prompt's ids, which the first chunk of a choice holds."""
        if choice.index in self._told:
            return None
        self._told.add(choice.index)
        return choice.ticket.request.prompt_ids


def worded(text: str) -> dict[str, Any]:
    """A choice with a text alone."""
    return {"text": text, "logprobs": None, "finish_reason": None}
