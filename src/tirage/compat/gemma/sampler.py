"""`Sampler`: prompts in, texts out, the state of the conversation handed over by the caller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tirage.compat.gemma.images import Images, images_of, why_no_images
from tirage.compat.gemma.keys import sources_of
from tirage.compat.gemma.media import Media
from tirage.compat.gemma.methods import Chooser, Greedy, SamplingMethod, check_method
from tirage.compat.gemma.run import Run, Turn, start_turn
from tirage.compat.gemma.runner import ForbiddenMask, ModelRunner
from tirage.compat.gemma.select_runner import runner_of
from tirage.compat.gemma.state import SamplerOutput, SamplingState
from tirage.compat.gemma.tokenization import PromptTokenizer, check_same_version, prompt_list, tokenizer_of
from tirage.errors import ParamsError

Prompt = tuple[list[int], Images | Media | None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Sampler:
    """A model that continues texts, as `gm.text.Sampler`; holds nothing between calls.

    `model` is a TransformerLike with its `params`, or a `tirage.models.Model`. `tokenizer` None takes the one that
    the model's INFO names. `forbidden_tokens` and `stop_tokens` are ids or texts of exactly one token. A conversation
    holds at most `cache_length` tokens, a turn writes at most `max_out_length`. `pad_length`: prompts are padded to
    the smallest of these lengths that fits, so that fewer lengths are compiled; it never changes a result.

    Logits are sampled in float32. What a prompt gives depends on it, its state and its seed, not on its neighbours.
    """

    model: Any = field(repr=False)
    params: Any = field(default=None, repr=False)
    tokenizer: Any = field(default=None, repr=False)
    sampling: SamplingMethod = field(default_factory=Greedy)
    forbidden_tokens: Sequence[str | int] | None = None
    stop_tokens: Sequence[str | int] | None = None
    cache_length: int = 4096
    max_out_length: int = 2048
    pad_length: int | Sequence[int] | None = (256, 512, 1024)
    _tokenizer: PromptTokenizer = field(init=False, repr=False)
    _buckets: tuple[int, ...] = field(init=False, repr=False)
    _forbidden_mask: ForbiddenMask = field(init=False, repr=False)
    _ends: frozenset[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_method(self.sampling)
        for name in ("cache_length", "max_out_length"):
            check_integer(getattr(self, name), name, low=1)
        buckets = () if self.pad_length is None else self.pad_length
        buckets = (buckets,) if not isinstance(buckets, Sequence) else buckets
        tokenizer = tokenizer_of(self.model) if self.tokenizer is None else self.tokenizer
        check_same_version(self.model, tokenizer)
        prompt_tokenizer = PromptTokenizer(tokenizer)
        runner = self._runner()
        vocab_size = runner.vocab_size
        forbidden = prompt_tokenizer.token_ids(self.forbidden_tokens, "forbidden_tokens")
        stops = prompt_tokenizer.token_ids(self.stop_tokens, "stop_tokens")
        for name, ids in (("forbidden_tokens", forbidden), ("stop_tokens", stops)):
            if ids and max(ids) >= vocab_size:
                raise ParamsError(f"{name} must lie in [0, {vocab_size}), got {max(ids)}")
        # An image token that the model wrote itself would stand for no image.
        image_tokens = [] if runner.vision is None else [runner.vision.token]
        forbidden_mask = np.zeros(vocab_size, bool)
        never = (*forbidden, *prompt_tokenizer.forbidden, *image_tokens)
        forbidden_mask[[token for token in never if token < vocab_size]] = True
        computed = {
            "tokenizer": tokenizer,
            "_tokenizer": prompt_tokenizer,
            "_buckets": tuple(check_integer(bucket, "pad_length", low=1) for bucket in buckets),
            "_forbidden_mask": forbidden_mask,
            "_ends": prompt_tokenizer.ends.union(stops),
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    @property
    def takes_images(self) -> bool:
        """Whether the model takes images."""
        return self._runner().vision is not None

    def sample(
        self,
        prompt: Any,
        *,
        images: Any = None,
        max_new_tokens: int | None = None,
        stream: bool = False,
        sampling: SamplingMethod | None = None,
        rng: Any = None,
        return_state: bool = False,
        last_state: SamplingState | None = None,
        sharding: Any = None,
    ) -> Any:
        """The text that follows a prompt, or a list of texts for a list of prompts.

        `prompt`: text, a `dialog` Conversation, token ids, or a list of these; BOS is added on the first turn.
        `max_new_tokens` None or 0 is `max_out_length`. `sampling` replaces the sampler's method for this call. `rng`:
        see `sources_of`. `images`: uint8, one per image token of the prompt, all of the size that the model wants.
        `stream` gives an iterator, one item per step, of new text ("" where a prompt has nothing new); joined, they
        are the text. `return_state` gives SamplerOutput instead of text; its `state`, passed as `last_state`,
        continues the conversation as if it had been one prompt. `sharding` goes to the model's cache.

        Raises ParamsError, before the model runs, for arguments that break a rule and for a conversation that would
        not fit `cache_length`; one that fills it ends with finish reason "cache_full".
        """
        run = self.start(
            prompt,
            images=images,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            rng=rng,
            last_state=last_state,
            sharding=sharding,
        )
        return self._output(run, stream=stream, return_state=return_state)

    def _output(self, run: Run, *, stream: bool, return_state: bool) -> Any:
        """What `sample` returns for a call: an iterator, or the texts at its end."""
        return stream_of(run, return_state) if stream else output(run, run.finish(self._tokenizer.decode), return_state)

    def start(self, prompt: Any, *, show_end: bool = True, **options: Any) -> Run:
        """A call that was checked and not yet run; `show_end` keeps the text of an end token."""
        method = self.sampling if options["sampling"] is None else check_method(options["sampling"])
        limit = self._limit(options["max_new_tokens"])
        last = check_state(options["last_state"])
        runner = self._runner(options["sharding"], last)
        prompts, batched = prompt_list(prompt)
        ids = [self._tokenizer.ids(one, first=last is None, vocab_size=runner.vocab_size) for one in prompts]
        turns = self._turns(self._with_images(ids, options, runner, batched=batched), runner, last)
        sources = sources_of(options["rng"], len(turns))
        return Run(
            turns=turns,
            runner=runner,
            cache=runner.start(len(turns)) if last is None else runner.share(last.cache),
            chooser=Chooser(method, sources, runner.vocab_size, jax=runner.uses_jax),
            sources=sources,
            ends=self._ends,
            forbidden_mask=self._forbidden_mask,
            limit=limit,
            max_out_length=self.max_out_length,
            batched=batched,
            show_end=show_end,
        )

    def _runner(self, sharding: Any = None, last: SamplingState | None = None) -> ModelRunner:
        buckets = getattr(self, "_buckets", ())
        length = self.cache_length if last is None else last.cache_length
        return runner_of(self.model, self.params, cache_length=length, buckets=buckets, sharding=sharding)

    def _limit(self, max_new_tokens: Any) -> int:
        if max_new_tokens is None:
            return self.max_out_length
        limit = check_integer(max_new_tokens, "max_new_tokens", low=0) or self.max_out_length
        if limit > self.max_out_length:
            raise ParamsError(
                f"max_new_tokens must be at most max_out_length, which is {self.max_out_length}, got {limit}; "
                "make a Sampler with a larger one"
            )
        return limit

    def _with_images(
        self, prompts: list[list[int]], options: dict[str, Any], runner: ModelRunner, *, batched: bool
    ) -> list[Prompt]:
        """The ids of each prompt with its images; raises ParamsError where their numbers differ."""
        if options["images"] is not None and runner.vision is None:
            raise ParamsError(f"images must be None with this model, which {why_no_images(self.model)}, got images")
        images = images_of(options["images"], len(prompts), batched=batched)
        if runner.vision is not None:
            for ids, media in zip(prompts, images, strict=True):
                runner.vision.check(ids, media)
        return list(zip(prompts, images, strict=True))

    def _turns(self, prompts: Sequence[Prompt], runner: ModelRunner, last: SamplingState | None) -> list[Turn]:
        before = [None] * len(prompts) if last is None else last.rows
        if len(before) != len(prompts):
            raise ParamsError(f"prompt must hold {len(before)} prompts, as many as last_state, got {len(prompts)}")
        return [
            start_turn(runner, ids, row, images=media, detokenizer=self._tokenizer.detokenizer())
            for (ids, media), row in zip(prompts, before, strict=True)
        ]


def stream_of(run: Run, return_state: bool) -> Iterator[Any]:
    """The new text of each step, as soon as there is any."""
    for _ in run.steps():
        yield output(run, [turn.new_text for turn in run.turns], return_state)


def output(run: Run, texts: list[str], return_state: bool) -> Any:
    """The text, or a list of texts for a list of prompts, with the state or without."""
    text = texts if run.batched else texts[0]
    return SamplerOutput(text=text, state=run.state()) if return_state else text


def check_state(last: Any) -> SamplingState | None:
    """The state or None; raises ParamsError for another object."""
    if last is not None and not isinstance(last, SamplingState):
        raise ParamsError(f"last_state must be a SamplingState or None, got {type(last).__name__}")
    return last


def check_integer(value: Any, name: str, *, low: int) -> int:
    """The value as an int; raises ParamsError for one below `low`, and for what is no integer."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < low:
        raise ParamsError(f"{name} must be an integer >= {low}, got {value!r}")
    return int(value)
