"""`Sampler`: prompts in, texts out, the state of the conversation handed over by the caller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tirage.compat.gemma.forward import Never, Reader
from tirage.compat.gemma.images import Images, blindness, images_of
from tirage.compat.gemma.keys import sources_of
from tirage.compat.gemma.media import Media
from tirage.compat.gemma.methods import Chooser, Greedy, SamplingMethod, check_method
from tirage.compat.gemma.readers import reader_of
from tirage.compat.gemma.run import Run, Turn, begin
from tirage.compat.gemma.state import SamplerOutput, SamplingState
from tirage.compat.gemma.words import Words, check_pair, listed, tokenizer_of
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
    _words: Words = field(init=False, repr=False)
    _buckets: tuple[int, ...] = field(init=False, repr=False)
    _never: Never = field(init=False, repr=False)
    _ends: frozenset[int] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_method(self.sampling)
        for name in ("cache_length", "max_out_length"):
            whole_number(getattr(self, name), name, low=1)
        buckets = () if self.pad_length is None else self.pad_length
        buckets = (buckets,) if not isinstance(buckets, Sequence) else buckets
        tokenizer = tokenizer_of(self.model) if self.tokenizer is None else self.tokenizer
        check_pair(self.model, tokenizer)
        words = Words(tokenizer)
        reader = self._reader()
        vocab_size = reader.vocab_size
        forbidden = words.named(self.forbidden_tokens, "forbidden_tokens")
        stops = words.named(self.stop_tokens, "stop_tokens")
        for name, ids in (("forbidden_tokens", forbidden), ("stop_tokens", stops)):
            if ids and max(ids) >= vocab_size:
                raise ParamsError(f"{name} must lie in [0, {vocab_size}), got {max(ids)}")
        # An image token that the model wrote itself would stand for no image.
        blank = [] if reader.vision is None else [reader.vision.token]
        never = np.zeros(vocab_size, bool)
        never[[token for token in (*forbidden, *words.forbidden, *blank) if token < vocab_size]] = True
        computed = {
            "tokenizer": tokenizer,
            "_words": words,
            "_buckets": tuple(whole_number(bucket, "pad_length", low=1) for bucket in buckets),
            "_never": never,
            "_ends": words.ends.union(stops),
        }
        for name, value in computed.items():
            object.__setattr__(self, name, value)

    @property
    def sees(self) -> bool:
        """Whether the model takes images."""
        return self._reader().vision is not None

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
        return stream_of(run, return_state) if stream else output(run, run.finish(self._words.decode), return_state)

    def start(self, prompt: Any, *, show_end: bool = True, **options: Any) -> Run:
        """A call that is checked and not yet run; `show_end` keeps an end token's text."""
        method = self.sampling if options["sampling"] is None else check_method(options["sampling"])
        limit = self._limit(options["max_new_tokens"])
        last = check_state(options["last_state"])
        reader = self._reader(options["sharding"], last)
        prompts, batched = listed(prompt)
        ids = [self._words.ids(one, first=last is None, vocab_size=reader.vocab_size) for one in prompts]
        turns = self._turns(self._with_images(ids, options, reader, batched=batched), reader, last)
        sources = sources_of(options["rng"], len(turns))
        return Run(
            turns=turns,
            reader=reader,
            cache=reader.start(len(turns)) if last is None else reader.share(last.cache),
            chooser=Chooser(method, sources, reader.vocab_size, jax=reader.uses_jax),
            sources=sources,
            ends=self._ends,
            never=self._never,
            limit=limit,
            max_out_length=self.max_out_length,
            batched=batched,
            show_end=show_end,
        )

    def _reader(self, sharding: Any = None, last: SamplingState | None = None) -> Reader:
        buckets = getattr(self, "_buckets", ())
        length = self.cache_length if last is None else last.cache_length
        return reader_of(self.model, self.params, cache_length=length, buckets=buckets, sharding=sharding)

    def _limit(self, max_new_tokens: Any) -> int:
        if max_new_tokens is None:
            return self.max_out_length
        limit = whole_number(max_new_tokens, "max_new_tokens", low=0) or self.max_out_length
        if limit > self.max_out_length:
            raise ParamsError(
                f"max_new_tokens must be at most max_out_length, which is {self.max_out_length}, got {limit}; "
                "make a Sampler with a larger one"
            )
        return limit

    def _with_images(
        self, prompts: list[list[int]], options: dict[str, Any], reader: Reader, *, batched: bool
    ) -> list[Prompt]:
        """The ids of each prompt with its images; ParamsError where they do not fit together."""
        if options["images"] is not None and reader.vision is None:
            raise ParamsError(f"images must be None with this model, which {blindness(self.model)}, got images")
        images = images_of(options["images"], len(prompts), batched=batched)
        if reader.vision is not None:
            for ids, seen in zip(prompts, images, strict=True):
                reader.vision.check(ids, seen)
        return list(zip(prompts, images, strict=True))

    def _turns(self, prompts: Sequence[Prompt], reader: Reader, last: SamplingState | None) -> list[Turn]:
        before = [None] * len(prompts) if last is None else last.rows
        if len(before) != len(prompts):
            raise ParamsError(f"prompt must hold {len(before)} prompts, as many as last_state, got {len(prompts)}")
        return [
            begin(reader, ids, row, images=seen, detokenizer=self._words.detokenizer())
            for (ids, seen), row in zip(prompts, before, strict=True)
        ]


def stream_of(run: Run, return_state: bool) -> Iterator[Any]:
    """The new text of each step, as it is made."""
    for _ in run.steps():
        yield output(run, [turn.fresh for turn in run.turns], return_state)


def output(run: Run, texts: list[str], return_state: bool) -> Any:
    """Texts as the call wants them: a list for a list of prompts, with the state or without."""
    text = texts if run.batched else texts[0]
    return SamplerOutput(text=text, state=run.state()) if return_state else text


def check_state(last: Any) -> SamplingState | None:
    """The state; ParamsError for another object."""
    if last is not None and not isinstance(last, SamplingState):
        raise ParamsError(f"last_state must be a SamplingState or None, got {type(last).__name__}")
    return last


def whole_number(value: Any, name: str, *, low: int) -> int:
    """A checked integer."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < low:
        raise ParamsError(f"{name} must be an integer >= {low}, got {value!r}")
    return int(value)
