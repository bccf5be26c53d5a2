"""Text in, text out: a model, its tokenizer and the engine behind one object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

import numpy as np
from numpy.typing import NDArray

from tirage.batch import Batch
from tirage.engine import Completion, Delta, Request, run
from tirage.engine.sample import GrowingSample
from tirage.errors import ModelError, ParamsError
from tirage.models import (
    Model,
    find_folder,
    load,
    read_generation_config,
    read_template,
    read_tokenizer_settings,
)
from tirage.params import RequestOutputKind, SamplingParams
from tirage.text import ChatTemplate, Tokenizer, load_tokenizer, wrap_tokenizer

if TYPE_CHECKING:
    from tirage.tracing import Explanation

__all__ = ["LLM", "Completion", "Delta", "Prompt"]

_log = logging.getLogger("tirage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """What a completion continues: exactly one of `text`, `token_ids` and `embeds`.

    `images`, `audio` and `adapter` go with models that take them; the bundled one refuses them by name.
    """

    text: str | None = None
    token_ids: Sequence[int] | NDArray[np.integer[Any]] | None = None
    embeds: Any = None
    images: Sequence[Any] = ()
    audio: Sequence[Any] = ()
    adapter: str | None = None


AnyPrompt = str | Sequence[int] | NDArray[np.integer[Any]] | Prompt
Message = Mapping[str, Any]


class LLM:
    """A model that writes text.

    `model` is a bundled name (`"tiny"`), a local Hugging Face folder, or an object that implements
    `tirage.models.Model`; the last needs a `tokenizer`, which is a `tokenizers` or Hugging Face object or any
    with `encode` and `decode`. Nothing is downloaded. `backend` is "auto" or "numpy". `chat_template` names a
    Jinja file that replaces the model's own. `generation_config` gives EOS ids and sampling defaults where no
    folder does. At most `max_running` samples run at once.

    Holds nothing between calls, so calls from several threads do not disturb each other.
    """

    def __init__(
        self,
        model: str | Path | Model = "tiny",
        *,
        tokenizer: Any = None,
        backend: str = "auto",
        chat_template: str | Path | None = None,
        generation_config: Mapping[str, Any] | None = None,
        max_running: int = 32,
    ) -> None:
        if backend not in {"auto", "numpy"}:
            raise ParamsError(f"backend must be 'auto' or 'numpy', got {backend!r}")
        if isinstance(max_running, bool) or not isinstance(max_running, int) or max_running < 1:
            raise ParamsError(f"max_running must be a positive integer, got {max_running!r}")
        self.max_running = max_running
        self.generation_config: dict[str, Any] = {}
        if isinstance(model, (str, Path)):
            self._open_folder(find_folder(model), tokenizer)
        else:
            self._take_model(model, tokenizer)
        self.generation_config |= generation_config or {}
        source = None if chat_template is None else read_template(Path(chat_template))
        self.chat_template = ChatTemplate(self.tokenizer, source)

    def _open_folder(self, folder: Path, tokenizer: Any) -> None:
        self.model = load(folder)
        settings = read_tokenizer_settings(folder)
        if tokenizer is None:
            tokenizer = load_tokenizer(folder / "tokenizer.json", settings)
        self.tokenizer: Tokenizer = wrap_tokenizer(tokenizer)
        self.generation_config = read_generation_config(folder)
        self._add_tokenizer_eos()
        _log.info("%s runs on the NumPy backend", folder.name)

    def _take_model(self, model: Model, tokenizer: Any) -> None:
        missing = [name for name in ("prefill", "decode", "vocab_size", "max_length") if not hasattr(model, name)]
        if missing:
            raise ModelError(f"model must be a name, a folder or a tirage.models.Model, got {model!r:.60}")
        if tokenizer is None:
            raise ModelError("tokenizer must be given with a Model object, got None; pass tokenizer=...")
        self.model, self.tokenizer = model, wrap_tokenizer(tokenizer)
        self._add_tokenizer_eos()

    def _add_tokenizer_eos(self) -> None:
        if self.generation_config.get("eos_token_id") is None:
            self.generation_config["eos_token_id"] = self.tokenizer.eos_token_id

    def generate(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
    ) -> list[Completion]:
        """One Completion per prompt, in prompt order.

        A prompt is a text, a list of ids or a `Prompt`; `params` are for all prompts or one per prompt. Without
        them the model's own sampling defaults apply, where its folder gives any. A request that runs into bad
        logits ends with finish reason "error" and the others go on. Raises ParamsError, before anything runs,
        for parameters or prompts that break a rule. `progress` shows a bar on a terminal's stderr.
        """
        listed = [prompts] if is_one_prompt(prompts) else list(prompts)  # type: ignore[arg-type]
        requests = [
            self._request(prompt, each) for prompt, each in zip(listed, spread(params, len(listed)), strict=True)
        ]
        self._finish(requests, progress)
        return [request.completion() for request in requests]

    def stream(self, prompt: AnyPrompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Deltas of one prompt's samples as text appears.

        Their texts, put together per sample, are the sample's text; only an unfinished character and what a
        stop may still claim is held back. Raises ParamsError at the call, not at the first delta.
        """
        if not is_one_prompt(prompt):
            raise ParamsError(f"prompt must be one text, list of ids or Prompt, got {prompt!r:.60}; use generate")
        request = self._request(prompt, params)
        return self._stream(request)

    async def astream(self, prompt: AnyPrompt, params: SamplingParams | None = None) -> AsyncIterator[Delta]:
        """The deltas of `stream`, computed in a worker thread so that the event loop stays free."""
        deltas = await asyncio.to_thread(self.stream, prompt, params)
        while (delta := await asyncio.to_thread(next, deltas, None)) is not None:
            yield delta

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Completion:
        """The assistant's next message in a conversation of {"role", "content"} messages.

        The text stands alone, without the space that would join it to a prompt. Without `params` the model's
        sampling defaults apply and the reply may fill the context.
        """
        request = self._chat_request(messages, params)
        self._finish([request], progress=False)
        return request.completion()

    def chat_stream(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Iterator[Delta]:
        """The deltas of `chat`."""
        return self._stream(self._chat_request(messages, params))

    def explain(self, prompt: AnyPrompt, params: SamplingParams | None = None, *, position: int = -1) -> Explanation:
        """Every stage of the draw of the token that follows the prompt's token at `position`.

        -1, the default, is the prompt's last token, so the next token to be drawn is explained. The tokens up
        to the position are the history that penalties see.
        """
        from tirage.tracing import explain

        resolved = self._resolve(params)
        request = self._open(prompt, resolved)
        ids = request.prompt_ids
        if isinstance(position, bool) or not isinstance(position, int) or not -len(ids) <= position < len(ids):
            raise ParamsError(f"position must be in [{-len(ids)}, {len(ids)}), got {position!r}")
        ids = ids[: position % len(ids) + 1]
        logits, _ = self.model.prefill(ids)
        return explain(logits, request.params, tokenizer=self.tokenizer, history=[(ids, [])])

    def _resolve(self, params: SamplingParams | None, **defaults: Any) -> SamplingParams:
        """The parameters with what the model adds: EOS ids always, sampling defaults when there are none."""
        if params is not None and not isinstance(params, SamplingParams):
            raise ParamsError(f"params must be a SamplingParams, got {type(params).__name__}")
        base = SamplingParams(**defaults) if params is None else params
        refuse_later(base)
        known = base.update_with_generation_config(self.generation_config, adopt_sampling=params is None)
        return known.update_with_tokenizer(self.tokenizer)

    def _request(self, prompt: AnyPrompt, params: SamplingParams | None) -> Request:
        return self._checked(self._open(prompt, self._resolve(params)))

    def _open(self, prompt: AnyPrompt, params: SamplingParams) -> Request:
        text, ids = self._read_prompt(prompt)
        return Request(params, self.tokenizer, ids, max_length=self.model.max_length, prompt=text)

    def _chat_request(self, messages: Sequence[Message], params: SamplingParams | None) -> Request:
        resolved = self._resolve(params, max_tokens=None)
        if self.chat_template.is_plain:
            _log.info("the model has no chat template; using plain `role: content` lines")
        ids = self.chat_template.encode(messages)
        limit = self.model.max_length
        return self._checked(Request(resolved, self.tokenizer, ids, max_length=limit, context_ids=()))

    def _checked(self, request: Request) -> Request:
        # The batch knows which ids and parameters fit the vocabulary; asking it now keeps a bad request from
        # failing when others have already run.
        Batch(self.model.vocab_size, 1).add(request.params, request.prompt_ids)
        return request

    def _read_prompt(self, prompt: AnyPrompt) -> tuple[str | None, list[int]]:
        """Text, if the prompt was one, and ids."""
        given = prompt if isinstance(prompt, Prompt) else as_prompt(prompt)
        for name in ("embeds", "images", "audio", "adapter"):
            value = getattr(given, name)
            if value is not None and (name == "embeds" or value):
                raise ParamsError(f"prompt {name} must not be given, this model takes text and token ids only")
        if (given.text is None) == (given.token_ids is None):
            raise ParamsError("prompt must have exactly one of text and token_ids")
        if given.token_ids is not None:
            return None, check_ids(given.token_ids, self.model.vocab_size)
        text = given.text or ""
        return text, self.tokenizer.encode(text)

    def _stream(self, request: Request) -> Iterator[Delta]:
        params = request.params
        if params.best_of is not None and params.best_of > params.n:
            raise ParamsError(f"best_of must be n or None to stream, got {params.best_of}; use generate")
        return deltas(request, run(self.model, self.tokenizer, [request], max_running=self.max_running))

    def _finish(self, requests: Sequence[Request], progress: bool) -> None:
        steps = run(self.model, self.tokenizer, requests, max_running=self.max_running)
        for _ in show_progress(steps, len(requests)) if progress else steps:
            pass


def deltas(request: Request, steps: Iterator[tuple[Request, GrowingSample]]) -> Iterator[Delta]:
    """The deltas of a running request, in the kind it asked for."""
    kind = request.params.output_kind
    shown = {sample.index: (0, 0) for sample in request.samples}
    open_samples = len(shown)
    for _, sample in steps:
        open_samples -= sample.stop is not None
        chars, tokens = shown[sample.index]
        silent = request.params.detokenize and len(sample.text) == chars and sample.stop is None
        if silent or kind is RequestOutputKind.FINAL_ONLY:
            continue
        shown[sample.index] = (len(sample.text), len(sample.token_ids))
        whole = kind is RequestOutputKind.CUMULATIVE or not open_samples
        yield delta(request, sample, chars, tokens, whole=whole)
    if kind is RequestOutputKind.FINAL_ONLY:
        yield delta(request, request.samples[0], 0, 0, whole=True)


def delta(request: Request, sample: GrowingSample, chars: int, tokens: int, *, whole: bool) -> Delta:
    """What a sample has beyond its first `chars` characters and `tokens` tokens."""
    return Delta(
        text=sample.text[chars:],
        token_ids=tuple(sample.token_ids[tokens:]),
        index=sample.index,
        logprobs=tuple(sample.entries[tokens:]) if sample.entries else None,
        finish_reason=sample.finish_reason,
        stop=sample.stop,
        completion=request.completion() if whole else None,
    )


def show_progress(
    steps: Iterator[tuple[Request, GrowingSample]], total: int
) -> Iterator[tuple[Request, GrowingSample]]:
    """The same steps, with a bar of finished prompts on stderr when that is a terminal."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        task, done = bar.add_task("prompts", total=total), set[int]()
        for request, sample in steps:
            if sample.stop is not None and request.finished:
                done.add(id(request))
                bar.update(task, completed=len(done))
            yield request, sample


def is_one_prompt(prompts: Any) -> TypeGuard[AnyPrompt]:
    """True for a text, a Prompt or a non-empty list of integers."""
    if isinstance(prompts, (str, Prompt)):
        return True
    if isinstance(prompts, np.ndarray):
        return prompts.ndim == 1
    return isinstance(prompts, Sequence) and len(prompts) > 0 and isinstance(prompts[0], (int, np.integer))


def as_prompt(prompt: Any) -> Prompt:
    """A Prompt of a text or of ids; ParamsError for anything else."""
    if isinstance(prompt, str):
        return Prompt(text=prompt)
    if isinstance(prompt, (np.ndarray, Sequence)) and not isinstance(prompt, bytes):
        return Prompt(token_ids=prompt)  # type: ignore[arg-type]
    raise ParamsError(f"prompt must be a text, a list of token ids or a Prompt, got {type(prompt).__name__}")


def check_ids(token_ids: Sequence[int] | NDArray[Any], vocab_size: int) -> list[int]:
    """The ids as Python integers; ParamsError for one outside the model's vocabulary."""
    for i in token_ids:
        if isinstance(i, (bool, np.bool_)) or not isinstance(i, (int, np.integer)) or not 0 <= i < vocab_size:
            raise ParamsError(f"prompt token ids must be integers in [0, {vocab_size}), got {i!r}")
    return [int(i) for i in token_ids]


def spread(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams | None]:
    """One entry per prompt."""
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if isinstance(params, (str, bytes)) or not isinstance(params, Sequence) or len(params) != count:
        got = f"{len(params)} of them" if isinstance(params, Sequence) else type(params).__name__
        raise ParamsError(f"params must be one SamplingParams or one per prompt ({count}), got {got}")
    return params


def refuse_later(params: SamplingParams) -> None:
    """ParamsError for a parameter that this engine cannot enforce."""
    for name in ("guided_decoding", "close_grammar"):
        value = getattr(params, name)
        if value:
            raise ParamsError(f"{name} must be off, got {value!r:.60}; this version has no constraint engine")
