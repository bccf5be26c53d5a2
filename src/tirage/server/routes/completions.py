"""`POST /v1/completions`: OpenAI's text completions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tirage.dialects import DialectError
from tirage.engine import Delta, Prompt, Sample
from tirage.engine.completion import LogprobEntry
from tirage.fields.rules import shown
from tirage.server.engine_input import EngineInput
from tirage.server.http_request import in_worker_thread, is_lenient, manager_of, read_json
from tirage.server.request_group import RequestGroup, RunningRequest
from tirage.server.request_manager import RequestManager
from tirage.server.routes.openai_answer import AnswerBuilder, ChoiceBuilder, NewText, new_metadata
from tirage.server.routes.openai_request import COMPLETIONS, OpenAIRequest, read_request
from tirage.server.routes.openai_shapes import TextLogprobs, joined, prompt_logprobs, with_top
from tirage.server.routes.openai_submit import adapter_of, submit
from tirage.text import Tokenizer, open_detokenizer

router = APIRouter(tags=["openai"])
KIND = "text_completion"


@router.post("/v1/completions", openapi_extra=COMPLETIONS.body)
async def completions(raw_request: Request) -> Response:
    """Completions of one or more prompts, as JSON or as a stream."""
    manager, body = manager_of(raw_request), await read_json(raw_request)
    lenient = is_lenient(raw_request)
    request = await in_worker_thread(
        raw_request, read_request, COMPLETIONS, body, manager.options, manager.llm, lenient=lenient
    )
    inputs = engine_inputs_of(request, manager)
    source = "prompt" if request.fields["prompt_token_ids"] is None else "prompt_token_ids"
    group = await submit(inputs, request, manager, raw_request, prompt=source)
    return answer_of(request, group, manager).response()


def answer_of(request: OpenAIRequest, group: RequestGroup, manager: RequestManager) -> AnswerBuilder:
    """The builder of the answer to a request that runs."""
    texts = CompletionTexts(request, manager.llm.tokenizer)

    def new_choice(index: int, running: RunningRequest) -> CompletionChoice:
        return CompletionChoice(index, running, request, texts)

    metadata = new_metadata("cmpl", group, manager)
    return AnswerBuilder(metadata, group, request, new_choice, kind=KIND, chunk_kind=KIND)


def engine_inputs_of(request: OpenAIRequest, manager: RequestManager) -> list[EngineInput]:
    """The engine input of every prompt."""
    params = request.params
    if request.fields["echo"] and params.logprobs is not None and params.prompt_logprobs is None:
        params = params.replace(prompt_logprobs=params.logprobs)
    adapter = adapter_of(request, manager)
    prompts = [Prompt(adapter=adapter, **prompt) for prompt in prompts_of(request)]
    more = {"params": params, "beams": request.beams, "cache_salt": request.fields["cache_salt"]}
    return [EngineInput(prompt=prompt, **more) for prompt in prompts]


def prompts_of(request: OpenAIRequest) -> list[dict[str, Any]]:
    """The prompts of a request as arguments of Prompt; FastDeploy's clients may send ids beside an empty text.

    Raises DialectError for anything that is no prompt.
    """
    ids, prompt = request.fields["prompt_token_ids"], request.fields["prompt"]
    if ids is None:
        return read_prompts(prompt)
    if prompt:
        raise DialectError("prompt_token_ids must stand alone, got a prompt too; give one", "prompt_token_ids")
    found = read_prompts(ids, "prompt_token_ids")
    if any("text" in each for each in found):
        raise DialectError(f"prompt_token_ids must be token ids, got {shown(ids)}; use prompt", "prompt_token_ids")
    return found


def read_prompts(prompt: Any, field: str = "prompt") -> list[dict[str, Any]]:
    """The prompts of a field, a text, ids, or a list of either, as arguments of Prompt; else raises DialectError."""
    many = prompt if is_many(prompt) else [prompt]
    found = [read_prompt(each) for each in many]
    if None in found:
        place = f"[{found.index(None)}]" if many is prompt else ""
        rule = "a text, a list of texts, a list of token ids or a list of such lists"
        raise DialectError(f"{field} must be {rule}, got {shown(prompt)}", f"{field}{place}")
    return [each for each in found if each is not None]


def is_many(prompt: Any) -> bool:
    """Whether a value is a list of texts or of lists."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], (str, list))


def read_prompt(prompt: Any) -> dict[str, Any] | None:
    """One prompt as an argument of Prompt; None for anything else."""
    if isinstance(prompt, str):
        return {"text": prompt}
    if isinstance(prompt, list) and prompt and all(type(token) is int for token in prompt):
        return {"token_ids": prompt}
    return None


@dataclass(frozen=True, slots=True)
class CompletionTexts:
    """The echoed prompts and the logprobs in the choices of one answer."""

    request: OpenAIRequest
    tokenizer: Tokenizer

    def echo(self, running: RunningRequest) -> str:
        """The text of the prompt, or of what was left of it, if the request wants it echoed."""
        if not self.request.fields["echo"]:
            return ""
        given = running.engine_input.prompt
        if given is not None and given.text is not None and not running.request.is_cut:
            return given.text
        return self.tokenizer.decode(running.request.prompt_ids)

    def echoed(self, running: RunningRequest, echo: str) -> dict[str, Any] | None:
        """The logprobs of an echoed prompt, if the request wants them."""
        count = self.request.params.logprobs
        if count is None or not self.request.fields["echo"]:
            return None
        ids, entries = running.request.prompt_ids, running.request.prompt_logprobs
        # The engine may have scored the prompt with more of the likeliest, for prompt_logprobs.
        shown = [None if one is None else replace(one, top=one.top[:count]) for one in entries or [None] * len(ids)]
        return self._logprobs.prompt(ids, shown, self._spelled(ids, len(echo)))

    def output(self, entries: Sequence[LogprobEntry], start: int) -> dict[str, Any] | None:
        """The logprobs of new text, if the request wants them; the output begins at `start` of the choice's text."""
        if self.request.params.logprobs is None:
            return None
        return self._logprobs.output(with_top(entries, self.request.params, self.tokenizer), start=start)

    @property
    def _logprobs(self) -> TextLogprobs:
        return TextLogprobs(as_id=self.request.fields["return_tokens_as_token_ids"])

    def _spelled(self, ids: Sequence[int], length: int) -> list[tuple[str, int]]:
        """Every token's own text, and where it starts in the prompt's."""
        detokenizer = open_detokenizer(self.tokenizer)
        spelled, place = [], 0
        for token in ids:
            own, new = self.tokenizer.token_bytes(token).decode("utf-8", "replace"), detokenizer.push(token)
            # A text that begins with a word lacks the space that its first token has.
            own = new if place == 0 and own == f" {new}" else own
            spelled.append((own, min(place, length)))
            place += len(new)
        return spelled


class CompletionChoice(ChoiceBuilder):
    """A choice of a text completion."""

    text_member = "text"

    def __init__(self, index: int, running: RunningRequest, request: OpenAIRequest, texts: CompletionTexts) -> None:
        super().__init__(index, running, request)
        self._texts, self._has_ids = texts, False
        self._echo = texts.echo(running)

    def lead(self) -> Iterable[dict[str, Any]]:
        """The echoed prompt with its logprobs."""
        if not self.request.fields["echo"]:
            return []
        return [self.choice({"text": self._echo}, logprobs=self._texts.echoed(self.running, self._echo))]

    def text_choice(self, text: str | None) -> dict[str, Any]:
        return self.choice({"text": text})

    def parts(self, new: NewText) -> Iterable[dict[str, Any]]:
        if not new.text and not new.entries and not self.request.fields["return_token_ids"]:
            return []
        return [self.choice({"text": new.text}, logprobs=self._texts.output(new.entries, len(self._echo)), new=new)]

    def last(self, delta: Delta) -> Iterable[dict[str, Any]]:
        return [self.choice({"text": ""}, end=delta)]

    def complete(self, new: NewText, sample: Sample) -> dict[str, Any]:
        before = self._texts.echoed(self.running, self._echo)
        logprobs = joined(before, self._texts.output(new.entries, len(self._echo)))
        found = self.choice({"text": self._echo + new.text}, logprobs=logprobs, end=sample, new=new)
        if self.request.params.prompt_logprobs is not None:
            found["prompt_logprobs"] = prompt_logprobs(self.running.request.prompt_logprobs)
        return found

    def ids(self, new: NewText) -> dict[str, Any]:
        """The new ids, and with the first of them the prompt's."""
        prompt = None if self._has_ids else list(self.running.request.prompt_ids)
        self._has_ids = True
        more = {"completion_token_ids": list(new.ids)} if self.request.fastdeploy else {}
        return {**super().ids(new), "prompt_token_ids": prompt, **more}
