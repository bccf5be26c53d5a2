"""Text in, text out: a model, its tokenizer and the engine behind one object."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tirage.batch import Batch
from tirage.engine import (
    AnyPrompt,
    Completion,
    Constrained,
    Delta,
    Engine,
    EngineRequest,
    Prompt,
    as_prompt,
    astream,
    check_embeds,
    check_ids,
    checked_salt,
    finish,
    is_one_prompt,
    masks_of,
    sampling_of,
    split_parts,
    stream,
)
from tirage.errors import ModelError, ParamsError
from tirage.guided import BYTES, Compiler, CompletionFinder, Vocabulary
from tirage.models import (
    Inputs,
    Model,
    find_folder,
    open_model,
    read_generation_config,
    read_template,
    read_tokenizer_settings,
)
from tirage.params import BeamSearchParams, GuidedDecodingParams, SamplingParams
from tirage.text import ChatTemplate, Tokenizer, load_tokenizer, wrap_tokenizer

if TYPE_CHECKING:
    from tirage.tracing import Explanation

__all__ = ["LLM", "Completion", "Delta", "Prompt"]

CLOSED = 8
"""Constraints whose searches for short ways are kept."""
_log = logging.getLogger("tirage")


Message = Mapping[str, Any]


class LLM:
    """A model that writes text.

    `model` is a bundled name (`"tiny"`), a local Hugging Face folder, or an object that implements
    `tirage.models.Model`; the last needs a `tokenizer`, which is a `tokenizers` or Hugging Face object or any
    with `encode` and `decode`. Nothing is downloaded. `backend` is "auto" (PyTorch where it is installed, but
    NumPy for the bundled model), "torch", "numpy" or "jax"; the last two know Llamas. `chat_template` names a Jinja
    file that replaces the model's own. `generation_config` gives EOS ids and sampling defaults where no folder does.
    At most `max_running` samples and beams run at once; more wait their turn, or with `max_waiting` no more requests
    than that, and the next is refused with an UnavailableError.

    No request may fill more than `cache_length` positions, prompt and output together; None is the model's context.

    For folders on PyTorch: `dtype` "auto" (as stored), "float32", "bfloat16", "float16" or "int8" (CPU);
    `device`; `adapters`, LoRA folders by the name that prompts give; `prefix_bytes`, the memory in which earlier
    requests serve later ones that begin alike (256 MiB; 0 is off).

    Calls may come from any thread and any event loop; one thread of the engine owns the model. Leaving a `with`
    block closes it.
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
        max_waiting: int | None = None,
        dtype: str | None = None,
        device: str | None = None,
        adapters: Mapping[str, str | Path] | None = None,
        prefix_bytes: int | None = None,
        cache_length: int | None = None,
    ) -> None:
        check_places(max_running, max_waiting)
        check_cache_length(cache_length)
        self.cache_length = cache_length
        self.max_running = max_running
        self._compilers: dict[str, Compiler] = {}
        self._closed: dict[GuidedDecodingParams, CompletionFinder] = {}
        self.generation_config: dict[str, Any] = {}
        self.folder: Path | None
        options = {"dtype": dtype, "device": device, "adapters": adapters, "prefix_bytes": prefix_bytes}
        if isinstance(model, (str, Path)):
            self._open_folder(find_folder(model), tokenizer, backend, options)
        else:
            self._take_model(model, tokenizer)
        self.generation_config |= generation_config or {}
        source = None if chat_template is None else read_template(Path(chat_template))
        self.chat_template = ChatTemplate(self.tokenizer, source)
        self.engine = Engine(self.model, self.tokenizer, max_running=max_running, max_waiting=max_waiting)

    def _open_folder(self, folder: Path, tokenizer: Any, backend: str, options: Mapping[str, Any]) -> None:
        self.model, self.folder = open_model(folder, backend=backend, **options), folder
        settings = read_tokenizer_settings(folder)
        if tokenizer is None:
            tokenizer = load_tokenizer(folder / "tokenizer.json", settings)
        self.tokenizer: Tokenizer = wrap_tokenizer(tokenizer)
        self.generation_config = read_generation_config(folder)
        self._add_tokenizer_eos()

    def _take_model(self, model: Model, tokenizer: Any) -> None:
        missing = [name for name in ("prefill", "decode", "vocab_size", "max_length") if not hasattr(model, name)]
        if missing:
            raise ModelError(f"model must be a name, a folder or a tirage.models.Model, got {model!r:.60}")
        if tokenizer is None:
            raise ModelError("tokenizer must be given with a Model object, got None; pass tokenizer=...")
        self.model, self.tokenizer, self.folder = model, wrap_tokenizer(tokenizer), None
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
        return_hidden_states: bool = False,
    ) -> list[Completion]:
        """One Completion per prompt, in prompt order.

        A prompt is a text, a list of ids or a `Prompt`; `params` are for all prompts or one per prompt. Without
        them the model's own sampling defaults apply, where its folder gives any. A request that runs into bad
        logits ends with finish reason "error" and the others go on. Raises ParamsError, before anything runs,
        for parameters or prompts that break a rule. `progress` shows a bar on a terminal's stderr.

        With `return_hidden_states` each sample has `hidden_states` float32 [T, hidden]: the last layer's states
        of every token that was read, which are the prompt's and all but the last drawn.
        """
        listed = [prompts] if is_one_prompt(prompts) else list(prompts)  # type: ignore[arg-type]
        requests = [
            self.request(prompt, each, hidden_states=return_hidden_states)
            for prompt, each in zip(listed, spread(params, len(listed)), strict=True)
        ]
        return finish(self.engine, requests, progress=progress)

    def stream(self, prompt: AnyPrompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """Deltas of one prompt's samples as text appears.

        Their texts, put together per sample, are the sample's text; only an unfinished character and what a
        stop may still claim is held back. Raises ParamsError at the call, not at the first delta.
        """
        return stream(self.engine, self._stream_request(prompt, params))

    async def astream(self, prompt: AnyPrompt, params: SamplingParams | None = None) -> AsyncIterator[Delta]:
        """The deltas of `stream`, for an event loop; any number may run at once."""
        request = await asyncio.to_thread(self._stream_request, prompt, params)
        async for delta in astream(self.engine, request):
            yield delta

    def chat(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Completion:
        """The assistant's next message in a conversation of {"role", "content"} messages.

        A content is a text or a list of parts in OpenAI's form: {"type": "text", "text": ...}, {"type": "image",
        "image": ...}, {"type": "audio", "audio": ...}, where an image is a PIL image, uint8 [H, W, 3], or the bytes or
        data URL of a PNG, JPEG, WebP or GIF, and a sound is floats [samples] at the model's rate or a WAV; "image_url",
        "audio_url" and "input_audio" are taken too. No file and no URL is opened.

        The text stands alone, without the space that would join it to a prompt. Without `params` the model's
        sampling defaults apply and the reply may fill the context.
        """
        return finish(self.engine, [self.chat_request(messages, params)], progress=False)[0]

    def chat_stream(self, messages: Sequence[Message], params: SamplingParams | None = None) -> Iterator[Delta]:
        """The deltas of `chat`."""
        return stream(self.engine, checked_stream(self.chat_request(messages, params)))

    def beam_search(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        params: BeamSearchParams,
        *,
        sampling: SamplingParams | None = None,
    ) -> list[Completion]:
        """One Completion per prompt, whose `samples` are the hypotheses, best first, each with its `score`.

        `params.num_return_sequences` of them, all `beam_width` unless it says less.

        `sampling` adds stops, penalties, masks, processors and logprobs; a parameter of it that says how to draw is
        refused by name. Under its `semantics="hf"` penalties change log-probabilities, as in transformers' beams;
        otherwise they change logits. Nothing is random. A search takes the places of `beam_width` samples; one that
        is wider than `max_running` runs alone. Raises ParamsError before anything runs.
        """
        listed = [prompts] if is_one_prompt(prompts) else list(prompts)  # type: ignore[arg-type]
        requests = [self.beam_request(prompt, params, sampling=sampling) for prompt in listed]
        return finish(self.engine, requests, progress=False)

    def beam_search_stream(
        self, prompt: AnyPrompt, params: BeamSearchParams, *, sampling: SamplingParams | None = None
    ) -> Iterator[Delta]:
        """The deltas of one prompt's beam search; parameters and errors are those of `beam_search`.

        While it runs, deltas with index 0 bring the beginning of the best text, as far as all hypotheses that may still
        come back agree. At its end each hypothesis has one delta with a finish reason, best first: the rest of the best
        text, then the whole of each other. The last one has the completion. `output_kind=FINAL_ONLY` gives that alone.
        """
        if not is_one_prompt(prompt):
            raise ParamsError(f"prompt must be one text, list of ids or Prompt, got {prompt!r:.60}; use beam_search")
        return stream(self.engine, self.beam_request(prompt, params, sampling=sampling))

    def explain(self, prompt: AnyPrompt, params: SamplingParams | None = None, *, position: int = -1) -> Explanation:
        """Every stage of the draw of the token that follows the prompt's token at `position`.

        -1, the default, is the prompt's last token, so the next token to be drawn is explained. The tokens up
        to the position are a prompt, and the draw is the first after it: penalties that read the output alone
        (frequency and presence, by default) find none. `tirage.explain` takes a history of both.
        """
        from tirage.tracing import explain

        resolved = self._resolve(params)
        request = self._open(prompt, resolved)
        ids = request.prompt_ids
        if isinstance(position, bool) or not isinstance(position, int) or not -len(ids) <= position < len(ids):
            raise ParamsError(f"position must be in [{-len(ids)}, {len(ids)}), got {position!r}")
        ids = ids[: position % len(ids) + 1]
        logits = self.engine.call(lambda: self._next_logits(ids))
        mask = masks_of(request.samples[:1], self.model.vocab_size)
        return explain(logits, request.params, tokenizer=self.tokenizer, history=[(ids, [])], mask=mask)

    def request(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        hidden_states: bool = False,
        standalone: bool = False,
    ) -> EngineRequest:
        """A checked request for `engine.submit`, which gives finer control than `generate` and `stream`.

        Parameters and errors are those of `generate`. A request is submitted once. The text of a `standalone` one does
        not join the prompt's, as a chat's reply does not.
        """
        opened = self._open(prompt, self._resolve(params), hidden_states=hidden_states, standalone=standalone)
        return self._checked(opened)

    def beam_request(
        self, prompt: AnyPrompt, params: BeamSearchParams, *, sampling: SamplingParams | None = None
    ) -> EngineRequest:
        """A checked request for a beam search; parameters and errors are those of `beam_search`."""
        if not isinstance(params, BeamSearchParams):
            raise ParamsError(f"params must be a BeamSearchParams, got {type(params).__name__}")
        resolved = self._resolve(sampling_of(params, sampling))
        return self._checked(self._open(prompt, resolved, beams=params))

    def chat_request(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        salt: str = "",
        adapter: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        beams: BeamSearchParams | None = None,
    ) -> EngineRequest:
        """A checked request for the assistant's next message; parameters and errors are those of `chat`.

        `salt` and `adapter` are those of `Prompt`. `tools` are function definitions in OpenAI's form, `arguments`
        further variables of the chat template. With `beams` it is a beam search, and `params` are its `sampling`.
        """
        resolved = self._resolve(params if beams is None else sampling_of(beams, params), max_tokens=None)
        if self.chat_template.is_plain:
            _log.info("the model has no chat template; using plain `role: content` lines")
        given = {"tools": tools, "arguments": arguments}
        parts = split_parts(messages, sampling_rate=self.engine.model.sampling_rate)
        read = Inputs(token_ids=())
        if parts.images or parts.audio:
            model = self.engine.model
            text = self.chat_template.text_with_media(parts.messages, marks=model.media_marks, **given)
            media = {"images": parts.images, "audio": parts.audio}
            read = model.read_media(text, media, special=self.chat_template.is_plain)
        ids = read.token_ids or self.chat_template.encode(parts.messages, **given)
        return self._checked(
            EngineRequest(
                resolved,
                self.tokenizer,
                ids,
                max_length=self.model.max_length,
                context_ids=(),
                inputs=replace(read, salt=checked_salt(salt), adapter=adapter),
                constrained=self._constrain(resolved),
                cache_length=self.cache_length,
                beams=beams,
            )
        )

    def close(self, *, drain_s: float = 0.0) -> None:
        """Ends the engine: requests have `drain_s` seconds to finish, then they are aborted; no more are taken."""
        self.engine.close(drain_s=drain_s)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resolve(self, params: SamplingParams | None, **defaults: Any) -> SamplingParams:
        """The parameters with what the model adds: EOS ids always, sampling defaults when there are none."""
        if params is not None and not isinstance(params, SamplingParams):
            raise ParamsError(f"params must be a SamplingParams, got {type(params).__name__}")
        base = SamplingParams(**defaults) if params is None else params.unwrapped
        check_closing(base)
        known = base.update_with_generation_config(self.generation_config, adopt_sampling=params is None)
        return known.update_with_tokenizer(self.tokenizer)

    def _next_logits(self, token_ids: Sequence[int]) -> Any:
        logits, row = self.engine.model.prefill(token_ids)
        self.engine.model.close(row, reuse=False)
        return logits

    def _stream_request(self, prompt: AnyPrompt, params: SamplingParams | None) -> EngineRequest:
        if not is_one_prompt(prompt):
            raise ParamsError(f"prompt must be one text, list of ids or Prompt, got {prompt!r:.60}; use generate")
        return checked_stream(self.request(prompt, params))

    def _open(
        self,
        prompt: AnyPrompt,
        params: SamplingParams,
        *,
        hidden_states: bool = False,
        standalone: bool = False,
        beams: BeamSearchParams | None = None,
    ) -> EngineRequest:
        given = as_prompt(prompt)
        ids, inputs = self._read_prompt(given)
        return EngineRequest(
            params,
            self.tokenizer,
            ids,
            max_length=self.model.max_length,
            prompt=given.text,
            context_ids=() if standalone else None,
            inputs=replace(inputs, adapter=given.adapter, salt=given.salt, hidden_states=hidden_states),
            constrained=self._constrain(params),
            cache_length=self.cache_length,
            beams=beams,
        )

    def constrain(self, params: SamplingParams) -> None:
        """Compiles the constraint of the parameters, which requests that come later then find ready.

        Nothing happens without one. Safe to call from any thread; takes at most about 2 s, the first time also as long
        as it takes to read the vocabulary. Raises ParamsError and GrammarError as `generate` does.
        """
        self._constrain(self._resolve(params))

    def grammar_stats(self) -> dict[str, int]:
        """Counts since the start: `grammars` and `bytes` kept now, and how many were `compiled` and found (`hits`)."""
        stats = [compiler.stats() for compiler in list(self._compilers.values())]
        return {name: sum(each[name] for each in stats) for name in ("grammars", "bytes", "compiled", "hits")}

    def _constrain(self, params: SamplingParams) -> Constrained | None:
        """The compiled constraint of the parameters; GrammarError when there is none that can be enforced."""
        guided = params.guided_decoding
        if guided is None:
            return None
        grammar = self._compiler("tokens").compile(guided)
        if not params.close_grammar:
            return Constrained(grammar)
        by_byte = self._compiler("bytes").compile(guided)
        return Constrained(grammar, by_byte, self._shortest(guided, by_byte.backend))

    def _shortest(self, guided: GuidedDecodingParams, backend: str) -> CompletionFinder:
        """The search for short ways of a constraint, kept for the constraints closed most recently."""
        finder = self._closed.pop(guided, None)
        if finder is None or finder.is_full:
            finder = CompletionFinder(guided, backend, self._compiler("tokens").vocabulary)
        self._closed[guided] = finder
        while len(self._closed) > CLOSED:
            self._closed.pop(next(iter(self._closed)), None)
        return finder

    def _compiler(self, kind: str) -> Compiler:
        """The compiler of constraints for this model's tokens, or for bytes; made when first needed."""
        if kind not in self._compilers:
            vocabulary = BYTES if kind == "bytes" else Vocabulary.of(self.tokenizer, self.model.vocab_size)
            self._compilers.setdefault(kind, Compiler(vocabulary))
        return self._compilers[kind]

    def _checked(self, request: EngineRequest) -> EngineRequest:
        # The batch knows which ids and parameters fit the vocabulary; asking it now keeps a bad request from
        # failing when others have already run.
        Batch(self.model.vocab_size, 1).add(request.params, request.prompt_ids)
        self.engine.model.check(request.inputs)
        return request

    def _read_prompt(self, given: Prompt) -> tuple[list[int], Inputs]:
        """The prompt's ids, and what the model reads besides them."""
        if len(given.images) or len(given.audio):
            if given.text is None:
                raise ParamsError("prompt images and audio must come with a text, whose marks they stand for")
            read = self.engine.model.read_media(given.text, {"images": given.images, "audio": given.audio})
            return list(read.token_ids), read
        if given.embeds is not None:
            return [], Inputs(token_ids=(), embeds=check_embeds(given.embeds))
        if given.token_ids is not None:
            return check_ids(given.token_ids, self.model.vocab_size), Inputs(token_ids=())
        return self.tokenizer.encode(given.text or ""), Inputs(token_ids=())


def check_places(max_running: Any, max_waiting: Any) -> None:
    """ParamsError for numbers of requests that are none."""
    if isinstance(max_running, bool) or not isinstance(max_running, int) or max_running < 1:
        raise ParamsError(f"max_running must be a positive integer, got {max_running!r}")
    bad = isinstance(max_waiting, bool) or not isinstance(max_waiting, int) or max_waiting < 0
    if max_waiting is not None and bad:
        raise ParamsError(f"max_waiting must be an integer of at least 0 or None, got {max_waiting!r}")


def check_cache_length(cache_length: Any) -> None:
    """ParamsError for a number of positions that is none."""
    if cache_length is None:
        return
    if isinstance(cache_length, bool) or not isinstance(cache_length, int) or cache_length < 1:
        raise ParamsError(f"cache_length must be a positive integer or None, got {cache_length!r}")


def checked_stream(request: EngineRequest) -> EngineRequest:
    """The request, if its samples can be shown while they grow."""
    params = request.params
    if params.best_of is not None and params.best_of > params.n:
        raise ParamsError(f"best_of must be n or None to stream, got {params.best_of}; use generate")
    return request


def spread(params: SamplingParams | Sequence[SamplingParams] | None, count: int) -> Sequence[SamplingParams | None]:
    """One entry per prompt."""
    if params is None or isinstance(params, SamplingParams):
        return [params] * count
    if isinstance(params, (str, bytes)) or not isinstance(params, Sequence) or len(params) != count:
        got = f"{len(params)} of them" if isinstance(params, Sequence) else type(params).__name__
        raise ParamsError(f"params must be one SamplingParams or one per prompt ({count}), got {got}")
    return params


def check_closing(params: SamplingParams) -> None:
    """ParamsError for a request to close a constraint that is not there."""
    if params.close_grammar and params.guided_decoding is None:
        raise ParamsError("close_grammar must go with guided_decoding, got no constraint; leave it out")
