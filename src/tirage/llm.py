"""`LLM`: a model, its tokenizer and the engine behind one object, from text to text."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypedDict, Unpack

from tirage.engine import (
    AnyPrompt,
    Completion,
    Delta,
    Engine,
    EngineRequest,
    Prompt,
    RequestConstraints,
    SchedulerConfig,
    SpeculativeConfig,
    as_prompt,
    astream,
    check_cache_length,
    check_constraint_options,
    check_ids,
    checked_salt,
    checked_stream,
    finish,
    is_one_prompt,
    listed_prompts,
    one_per_prompt,
    open_draft,
    read_prompt,
    sampling_of,
    split_parts,
    stream,
)
from tirage.errors import ModelError, ParamsError, nearest
from tirage.models import (
    BatchingModel,
    Inputs,
    Model,
    ShardedModel,
    find_model,
    is_gguf,
    open_model,
    read_generation_config,
    read_template,
    read_tokenizer_settings,
)
from tirage.params import BeamSearchParams, SamplingParams, takes_params
from tirage.providers import load_provider
from tirage.text import ChatTemplate, Tokenizer, final_text, generation_prompt, load_tokenizer, wrap_tokenizer

if TYPE_CHECKING:
    from tirage.tracing import Comparison, Explanation, TextExplanation

__all__ = ["LLM", "Completion", "Delta", "Prompt"]

_log = logging.getLogger("tirage")


Message = Mapping[str, Any]


class ServerOptions(TypedDict, total=False):
    """Options that go with the address of a server; `tirage.remote.RemoteLLM` says what each means."""

    dialect: str
    sampler: str
    model_name: str | None
    api_key: str | None
    timeout_s: float
    retries: int


class LLM:
    """A model that generates text.

    `model` is a bundled name (`"tiny"`), a local Hugging Face folder, a GGUF file, or an object that implements
    `tirage.models.Model` or `tirage.models.BatchingModel`; an object needs a `tokenizer`, which is a `tokenizers` or
    Hugging Face object or any with `encode` and `decode`. Nothing is downloaded. `backend` is "auto" (PyTorch where it
    is installed, but NumPy for the bundled model), "torch", "vllm", "numpy" or "jax"; the last two run Llamas.
    `chat_template` is a Jinja file that replaces the model's own. `generation_config` adds to the EOS ids and sampling
    defaults of the folder, or replaces them. At most `max_running` samples and beams run at once and the others wait;
    with `max_waiting`, at most so many requests wait, and the next one is refused with an UnavailableError.

    A call of a custom logits processor that takes more than `processor_timeout` seconds ends its request, and others go
    on meanwhile; with None, the default, a call may take any time, and all requests wait for it.

    `reasoning_parser` names the tags around the reasoning of the model ("qwen3", "deepseek-r1", ...), for requests that
    name none: a constraint then holds after the end tag.

    No request may have more than `cache_length` tokens, prompt and output together; None is the model's context.

    `speculative_config` has the model read drafts ahead, which changes no token (docs/speculation.md): a mapping with
    fields of `tirage.engine.SpeculativeConfig`, such as {"method": "ngram"}. `draft` is a smaller model of the same
    vocabulary to make them, as `model` is given.

    With the address of a server, `LLM("http://...", dialect="vllm")` is a `tirage.remote.RemoteLLM`, which has
    `generate`, `stream`, `astream`, `chat` and `chat_stream`; the options of `server` are for it alone.

    For folders on PyTorch: `dtype` "auto" (as stored), "float32", "bfloat16", "float16" or "int8" (CPU); `device`;
    `adapters`, LoRA folders by the names that prompts use; `enable_lora`, so that `engine.load_adapter` may add more;
    `prefix_bytes`, the size of the prefix cache (256 MiB; 0 is off); `prefill_batch_tokens`, most tokens, padding
    included, in one pass over several short prompts (256; 0 prefills each prompt alone); `tp_plan="auto"` cuts the
    model over the processes of a `torch.distributed` group, each of which makes the same calls. For folders on vLLM:
    `dtype` too, and `engine_args`, fields of vLLM's EngineArgs such as `max_model_len`.

    Calls may come from any thread and any event loop; one thread of the engine owns the model. Leaving a `with` block
    closes it. Raises ParamsError for an option that breaks a rule, and ModelError for a model that cannot be used.
    """

    def __new__(cls, model: Any = "tiny", *_: Any, **options: Any) -> Self:
        """The object itself; for the address of a server, that of another class with the same methods."""
        return load_provider("RemoteLLM")(model, **options) if is_address(model) else object.__new__(cls)

    def __init__(
        self,
        model: str | Path | Model | BatchingModel = "tiny",
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
        enable_lora: bool | None = None,
        prefix_bytes: int | None = None,
        prefill_batch_tokens: int | None = None,
        cache_length: int | None = None,
        tp_plan: str | None = None,
        engine_args: Mapping[str, Any] | None = None,
        processor_timeout: float | None = None,
        reasoning_parser: str | None = None,
        speculative_config: Mapping[str, Any] | SpeculativeConfig | None = None,
        draft: str | Path | Model | None = None,
        **server: Unpack[ServerOptions],
    ) -> None:
        check_server_options(server, model)
        # Refuses an unknown name as requests do.
        self.reasoning_parser = SamplingParams(reasoning_parser=reasoning_parser).reasoning_parser
        config = SchedulerConfig(max_running=max_running, max_waiting=max_waiting, processor_timeout=processor_timeout)
        check_cache_length(cache_length)
        self.speculative_config = SpeculativeConfig.of(speculative_config, draft)
        self.cache_length = cache_length
        self.max_running = max_running
        self.generation_config: dict[str, Any] = {}
        self.folder: Path | None
        options = {
            "dtype": dtype,
            "device": device,
            "adapters": adapters,
            "enable_lora": enable_lora,
            "prefix_bytes": prefix_bytes,
            "prefill_batch_tokens": prefill_batch_tokens,
            "tp_plan": tp_plan,
            "engine_args": engine_args,
        }
        if isinstance(model, (str, Path)):
            path = find_model(model)
            (self._open_gguf if is_gguf(path) else self._open_folder)(path, tokenizer, backend, options)
        else:
            self._set_model(model, tokenizer)
        self.generation_config |= generation_config or {}
        source = None if chat_template is None else read_template(Path(chat_template))
        self.chat_template = ChatTemplate(self.tokenizer, source)
        self.constraints = RequestConstraints(self.tokenizer, self.model.vocab_size)
        self.engine = self._open_engine(config, backend, options)

    def _open_engine(self, config: SchedulerConfig, backend: str, options: Mapping[str, Any]) -> Engine:
        speculation, width = self.speculative_config, self.model.vocab_size
        draft = open_draft(speculation, self.tokenizer, vocab_size=width, backend=backend, options=options)
        return Engine(self.model, self.tokenizer, config=config, speculative_config=speculation, draft=draft)

    def _open_folder(self, folder: Path, tokenizer: Any, backend: str, options: Mapping[str, Any]) -> None:
        self.model, self.folder = open_model(folder, backend=backend, max_running=self.max_running, **options), folder
        settings = read_tokenizer_settings(folder)
        if tokenizer is None:
            tokenizer = load_tokenizer(folder / "tokenizer.json", settings)
        self.tokenizer: Tokenizer = wrap_tokenizer(tokenizer)
        self.generation_config = read_generation_config(folder)
        self._add_tokenizer_eos()

    def _open_gguf(self, path: Path, tokenizer: Any, backend: str, options: Mapping[str, Any]) -> None:
        from tirage.models.gguf import open_gguf

        opened = open_gguf(path, backend=backend, **options)
        self.model, self.folder = opened, path
        own = Tokenizer(opened.tokenizer, opened.tokenizer.settings(opened.header.metadata))
        self.tokenizer = own if tokenizer is None else wrap_tokenizer(tokenizer)
        self.generation_config = opened.generation_config()

    def _set_model(self, model: Model | BatchingModel, tokenizer: Any) -> None:
        ways = ("step", "add") if hasattr(model, "step") else ("prefill", "decode")
        if not all(hasattr(model, name) for name in (*ways, "vocab_size", "max_length")):
            raise ModelError(f"model must be a name, a folder or a tirage.models.Model, got {model!r:.60}")
        if tokenizer is None:
            raise ModelError("tokenizer must be given with a Model object, got None; pass tokenizer=...")
        self.model, self.tokenizer, self.folder = model, wrap_tokenizer(tokenizer), None
        self._add_tokenizer_eos()

    def _add_tokenizer_eos(self) -> None:
        if self.generation_config.get("eos_token_id") is None:
            self.generation_config["eos_token_id"] = self.tokenizer.eos_token_id

    @takes_params
    def generate(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        progress: bool = False,
        return_hidden_states: bool = False,
    ) -> list[Completion]:
        """One Completion per prompt, in prompt order.

        A prompt is a text, a list or array [T] of ids, or a `Prompt`; `params` are for all prompts or one per prompt.
        Without them the model's own sampling defaults apply, if its folder has any. A request that gets bad logits ends
        with finish reason "error", and the others go on. `progress` shows a bar on a terminal's stderr. Before anything
        runs, raises ParamsError for parameters or prompts that break a rule, GrammarError for a constraint that cannot
        be enforced, and UnavailableError when the queue is full.

        With `return_hidden_states` each sample has `hidden_states` float32 [T, hidden]: the last layer's states of the
        tokens of the prompt and of all but the last one drawn.
        """
        listed = listed_prompts(prompts)
        requests = [
            self.request(prompt, each, hidden_states=return_hidden_states)
            for prompt, each in zip(listed, one_per_prompt(params, len(listed)), strict=True)
        ]
        return finish(self.engine, requests, progress=progress)

    @takes_params
    def stream(self, prompt: AnyPrompt, params: SamplingParams | None = None) -> Iterator[Delta]:
        """The deltas of one prompt's samples while they run.

        The texts of a sample's deltas, joined, are its text; only an unfinished character and what may become a stop
        string are held back. The errors are those of `generate`; ParamsError is raised by the call, not by the first
        delta.
        """
        return stream(self.engine, self._stream_request(prompt, params))

    @takes_params
    async def astream(self, prompt: AnyPrompt, params: SamplingParams | None = None) -> AsyncIterator[Delta]:
        """The deltas of `stream`, for an event loop; any number of streams may run at once."""
        request = await asyncio.to_thread(self._stream_request, prompt, params)
        async for delta in astream(self.engine, request):
            yield delta

    @takes_params
    def chat(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
    ) -> Completion:
        """The assistant's next message in a conversation of {"role", "content"} messages.

        A content is a text or a list of parts in OpenAI's form: {"type": "text", "text": ...}, {"type": "image",
        "image": ...}, {"type": "audio", "audio": ...}, where an image is a PIL image, uint8 [H, W, 3], or the bytes or
        data URL of a PNG, JPEG, WebP or GIF, and audio is floats [samples] at the model's rate or a WAV; "image_url",
        "audio_url" and "input_audio" are taken too. No file and no URL is opened.

        The text is a message of its own: it does not begin with the space that would join it to a prompt. Without
        `params` the model's sampling defaults apply and the reply may fill the context.

        With `continue_final_message` the last message is an assistant's, the text goes on where that ends, and only
        what is new comes back; a constraint holds for what is new. `add_generation_prompt` is true for other chats;
        false leaves out the header of the assistant's message. Raises ParamsError for messages that the template
        refuses or that cannot be continued, for both options at once, and the errors of `generate`.
        """
        ending = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        return finish(self.engine, [self.chat_request(messages, params, **ending)], progress=False)[0]

    @takes_params
    def chat_stream(
        self,
        messages: Sequence[Message],
        params: SamplingParams | None = None,
        *,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
    ) -> Iterator[Delta]:
        """The deltas of `chat`, with its parameters; the errors are raised by the call, not by the first delta."""
        ending = {"add_generation_prompt": add_generation_prompt, "continue_final_message": continue_final_message}
        return stream(self.engine, checked_stream(self.chat_request(messages, params, **ending)))

    def beam_search(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        params: BeamSearchParams,
        *,
        sampling: SamplingParams | None = None,
    ) -> list[Completion]:
        """One Completion per prompt, whose `samples` are the hypotheses, best first, each with its `score`.

        There are `params.num_return_sequences` of them, by default all `beam_width`.

        `sampling` adds stops, penalties, masks, processors and logprobs; one of its parameters that says how to draw is
        refused by name. Under its `semantics="hf"` penalties change log-probabilities, as in transformers' beam search;
        otherwise they change logits. Nothing is random. A search takes the slots of `beam_width` samples; one that is
        wider than `max_running` runs alone. Raises ParamsError and the other errors of `generate` before anything runs.
        """
        listed = listed_prompts(prompts)
        requests = [self.beam_request(prompt, params, sampling=sampling) for prompt in listed]
        return finish(self.engine, requests, progress=False)

    def beam_search_stream(
        self, prompt: AnyPrompt, params: BeamSearchParams, *, sampling: SamplingParams | None = None
    ) -> Iterator[Delta]:
        """The deltas of one prompt's beam search; parameters and errors are those of `beam_search`.

        While it runs, deltas with index 0 bring the common beginning of all hypotheses that may still be returned. At
        the end each hypothesis has one delta with a finish reason, best first: the rest of the best text, then the
        whole of each other. The last one has the completion. `output_kind=FINAL_ONLY` gives that alone.
        """
        if not is_one_prompt(prompt):
            raise ParamsError(f"prompt must be one text, list of ids or Prompt, got {prompt!r:.60}; use beam_search")
        return stream(self.engine, self.beam_request(prompt, params, sampling=sampling))

    def explain(self, prompt: AnyPrompt, params: SamplingParams | None = None, *, position: int = -1) -> Explanation:
        """Every stage of the draw of the token that follows the prompt's token at `position`.

        -1, the default, is the prompt's last token, and the only one of a prompt with images, audio, embeddings or
        `output_ids`. The tokens up to the position are a prompt and the draw is the first one after it, so penalties
        that read the output alone, by default frequency and presence, find nothing but `output_ids`; `tirage.explain`
        takes a history of prompt and output. Raises ParamsError for a position outside the prompt, and the errors of
        `generate`.
        """
        from tirage.explained_requests import explain_at

        request = self._new_request(prompt, self._resolve(params))
        return explain_at(self.engine, request, position, tokenizer=self.tokenizer)

    def compare(self, prompt: AnyPrompt, params: Sequence[SamplingParams], *, top: int = 10) -> Comparison:
        """The draw of the token that follows the prompt, under each of two or more `params` over the same logits.

        Those without a seed take the first one's. `top` is that of `tirage.explain`. Raises ParamsError for fewer
        params, and the errors of `generate`.
        """
        from tirage.explained_requests import compare_requests

        if len(params) < 2:
            raise ParamsError(f"params must hold two SamplingParams or more, got {len(params)}; use explain for one")
        seed = self.request(prompt, params[0]).seed
        requests = [self.request(prompt, each if each.seed is not None else each.replace(seed=seed)) for each in params]
        return compare_requests(self.engine, requests, tokenizer=self.tokenizer, top=top)

    def explain_text(
        self, prompt: AnyPrompt, params: SamplingParams | None = None, *, output_ids: Sequence[int] | None = None
    ) -> TextExplanation:
        """Every token of the text that follows the prompt: the text that is drawn or, if given, `output_ids`.

        Each is explained as the draw with `params` at its place, of the first of the samples that they ask for. Raises
        ParamsError where the text ends before its last token, or breaks its constraint, and the errors of `generate`.
        """
        from tirage.explained_requests import explain_text

        lone = self._resolve(params).replace_unchecked(n=1, best_of=None)
        request = self._new_request(prompt, lone)
        if output_ids is None:
            drawn = finish(self.engine, [request], progress=False)[0]
            output_ids = drawn.token_ids[len(as_prompt(prompt).output_ids) :]
            request = self._new_request(prompt, lone.replace_unchecked(seed=drawn.seed))
        return explain_text(self.engine, request, output_ids, tokenizer=self.tokenizer)

    def request(
        self,
        prompt: AnyPrompt,
        params: SamplingParams | None = None,
        *,
        hidden_states: bool = False,
        standalone: bool = False,
        begun: str = "",
    ) -> EngineRequest:
        """A checked request for `engine.submit`, which gives finer control than `generate` and `stream`.

        Parameters and errors are those of `generate`. A request is submitted once. The text of a `standalone` one is
        not joined to the prompt, as that of a chat's reply is not. `begun` is the text of the message in which the
        prompt ends, where it goes on with one.
        """
        chat: dict[str, Any] = {"standalone": standalone, "begun": begun}
        return self._new_request(prompt, self._resolve(params), hidden_states=hidden_states, **chat)

    def beam_request(
        self,
        prompt: AnyPrompt,
        params: BeamSearchParams,
        *,
        sampling: SamplingParams | None = None,
        standalone: bool = False,
        begun: str = "",
    ) -> EngineRequest:
        """A checked request for a beam search; parameters and errors are those of `beam_search`, or of `request`."""
        if not isinstance(params, BeamSearchParams):
            raise ParamsError(f"params must be a BeamSearchParams, got {type(params).__name__}")
        resolved = self._resolve(sampling_of(params, sampling))
        return self._new_request(prompt, resolved, standalone=standalone, begun=begun, beams=params)

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
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
    ) -> EngineRequest:
        """A checked request for the assistant's next message; parameters and errors are those of `chat`.

        `salt` and `adapter` are those of `Prompt`. `tools` are function definitions in OpenAI's form, `arguments`
        more variables for the chat template. With `beams` it is a beam search, and `params` are its `sampling`.
        """
        resolved = self._resolve(params if beams is None else sampling_of(beams, params), max_tokens=None)
        if self.chat_template.is_plain:
            _log.info("the model has no chat template; using plain `role: content` lines")
        inputs = self.chat_inputs(
            messages,
            tools=tools,
            arguments=arguments,
            add_generation_prompt=add_generation_prompt,
            continue_final_message=continue_final_message,
        )
        ids, inputs = inputs.token_ids, replace(inputs, salt=checked_salt(salt), adapter=adapter)
        begun = final_text(messages) if continue_final_message else ""
        resolved = self.constraints.continuing(resolved, ids, begun)
        standalone = not continue_final_message
        return self._make_request(resolved, ids, inputs, standalone=standalone, beams=beams, begun=begun)

    def chat_inputs(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool | None = None,
        continue_final_message: bool = False,
    ) -> Inputs:
        """The prompt of a conversation, of any length; parameters and errors are those of `chat_request`."""
        given = {
            "tools": tools,
            "arguments": arguments,
            "add_generation_prompt": generation_prompt(add_generation_prompt, continue_final_message),
            "continue_final_message": continue_final_message,
        }
        model = self.engine.model
        parts = split_parts(messages, sampling_rate=model.sampling_rate)
        inputs = Inputs(token_ids=())
        if parts.images or parts.audio:
            text = self.chat_template.text_with_media(parts.messages, marks=model.media_marks, **given)
            media = {"images": parts.images, "audio": parts.audio}
            inputs = model.read_media(text, media, special=self.chat_template.is_plain)
        return replace(inputs, token_ids=inputs.token_ids or tuple(self.chat_template.encode(parts.messages, **given)))

    def close(self, *, drain_s: float = 0.0) -> None:
        """Ends the engine: it accepts no more requests and aborts those that do not finish in `drain_s` seconds."""
        self.engine.close(drain_s=drain_s)

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _resolve(self, params: SamplingParams | None, **defaults: Any) -> SamplingParams:
        """The parameters with what the model adds: EOS ids, ids of words, sampling defaults if there are none."""
        if params is not None and not isinstance(params, SamplingParams):
            raise ParamsError(f"params must be a SamplingParams, got {type(params).__name__}")
        base = SamplingParams(**defaults) if params is None else params.unwrapped
        check_constraint_options(base)
        if base.reasoning_parser is None and self.reasoning_parser is not None:
            base = base.replace_unchecked(reasoning_parser=self.reasoning_parser)
        known = base.update_with_generation_config(self.generation_config, adopt_sampling=params is None)
        return known.update_with_tokenizer(self.tokenizer)

    def _stream_request(self, prompt: AnyPrompt, params: SamplingParams | None) -> EngineRequest:
        if not is_one_prompt(prompt):
            raise ParamsError(f"prompt must be one text, list of ids or Prompt, got {prompt!r:.60}; use generate")
        return checked_stream(self.request(prompt, params))

    def _new_request(
        self,
        prompt: AnyPrompt,
        params: SamplingParams,
        *,
        hidden_states: bool = False,
        standalone: bool = False,
        begun: str = "",
        beams: BeamSearchParams | None = None,
    ) -> EngineRequest:
        given = as_prompt(prompt)
        ids, inputs = read_prompt(given, self.engine.model, self.tokenizer)
        inputs = replace(inputs, adapter=given.adapter, salt=given.salt, hidden_states=hidden_states)
        output_ids = check_ids(given.output_ids, self.model.vocab_size, name="output_ids")
        return self._make_request(
            self.constraints.continuing(params, ids, begun),
            ids,
            inputs,
            text=given.text,
            standalone=standalone,
            beams=beams,
            begun=begun,
            output_ids=output_ids,
        )

    def _make_request(
        self,
        params: SamplingParams,
        ids: Sequence[int],
        inputs: Inputs,
        *,
        standalone: bool,
        text: str | None = None,
        beams: BeamSearchParams | None = None,
        begun: str = "",
        output_ids: Sequence[int] = (),
    ) -> EngineRequest:
        """A request whose parameters, ids and inputs are known to fit the model; nothing has run yet."""
        if inputs.hidden_states and params.forcing is not None:
            raise ParamsError("forcing must be None where hidden states are returned, got 'canonical'; leave one out")
        constraint = self.constraints.compile(params, () if standalone else ids)
        if params.seed is None and isinstance(self.model, ShardedModel):
            params = params.replace_unchecked(seed=self.model.fresh_seed())
        request = EngineRequest(
            params,
            self.tokenizer,
            ids,
            vocab_size=self.model.vocab_size,
            max_length=self.model.max_length,
            prompt=text,
            context_ids=() if standalone else None,
            inputs=inputs,
            constraint=constraint,
            reasoning=self.constraints.begin_reasoning(params, ids, begun=begun),
            output_ids=output_ids,
            cache_length=self.cache_length,
            beams=beams,
        )
        self.engine.check(request)
        return request

    def constrain(self, params: SamplingParams) -> None:
        """Compiles the constraint of the parameters, if they have one, so that later requests need not.

        May be called from any thread. Takes at most about 2 s, the first time also as long as it takes to read the
        vocabulary. Raises ParamsError and GrammarError as `generate` does.
        """
        self.constraints.compile(self._resolve(params))

    def grammar_stats(self) -> dict[str, int]:
        """Counts of grammars: number and `bytes` of the cached `grammars`, how many were `compiled` and `hits`."""
        return self.constraints.stats()


# What shows signatures asks `__new__` first, which passes everything on.
functools.update_wrapper(LLM.__new__, LLM.__init__, assigned=(), updated=())


def is_address(model: Any) -> bool:
    """Whether a model is named by the address of a server."""
    return isinstance(model, str) and model.lower().startswith(("http://", "https://"))


def check_server_options(server: Mapping[str, Any], model: Any) -> None:
    """Raises ParamsError for options of a server, as the model is none; TypeError for unknown ones."""
    for name in server:
        if name not in ServerOptions.__annotations__:
            hint = nearest(name, inspect.signature(LLM.__init__).parameters)
            raise TypeError(f"LLM() got an unexpected keyword argument {name!r}{hint}")
        raise ParamsError(f"{name} must go with the address of a server, got the model {model!r:.60}; leave it out")
