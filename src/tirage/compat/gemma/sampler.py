"""`Sampler`: prompts in, texts out, the state of the conversation handed over by the caller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tirage.compat.gemma.forward import Reader, reader_of
from tirage.compat.gemma.images import Images, blindness, images_of
from tirage.compat.gemma.keys import Source, sources_of
from tirage.compat.gemma.methods import Greedy, SamplingMethod, check_method, choose
from tirage.compat.gemma.state import Row, SamplerOutput, SamplingState
from tirage.compat.gemma.words import Words, check_pair, listed, tokenizer_of
from tirage.draw import Status
from tirage.errors import ParamsError
from tirage.text import Detokenizer


@dataclass(slots=True, kw_only=True)
class Turn:
    """One prompt's turn as it runs."""

    row: Row
    source: Source
    detokenizer: Detokenizer
    images: Images | None
    text: str = ""
    fresh: str = ""


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
    _forbidden: tuple[int, ...] = field(init=False, repr=False)
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
        never = (*words.forbidden, *([] if reader.vision is None else [reader.vision.token]))
        computed = {
            "tokenizer": tokenizer,
            "_words": words,
            "_buckets": tuple(whole_number(bucket, "pad_length", low=1) for bucket in buckets),
            "_forbidden": (*forbidden, *(token for token in never if token < vocab_size)),
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
        steps, batched = self.start(
            prompt,
            images=images,
            max_new_tokens=max_new_tokens,
            sampling=sampling,
            rng=rng,
            last_state=last_state,
            sharding=sharding,
        )
        if stream:
            return self._outputs(steps, batched, return_state)
        *_, turns = steps
        return self._output(turns, [turn.text for turn in turns], batched, return_state)

    def start(self, prompt: Any, *, show_end: bool = True, **options: Any) -> tuple[Iterator[list[Turn]], bool]:
        """The steps of a call, checked and not yet run, and whether it has a list of prompts.

        The first item, before any step, has the turns as they begin. `show_end` keeps an end token's text.
        """
        method = self.sampling if options["sampling"] is None else check_method(options["sampling"])
        limit = self._limit(options["max_new_tokens"])
        reader = self._reader(options["sharding"], check_state(options["last_state"]))
        prompts, batched = listed(prompt)
        if options["images"] is not None and reader.vision is None:
            raise ParamsError(f"images must be None with this model, which {blindness(self.model)}, got images")
        images = images_of(options["images"], len(prompts), batched=batched)
        rows = self._rows(prompts, images, reader, options["last_state"])
        sources = sources_of(options["rng"], len(rows))
        turns = [
            Turn(row=row, source=source, detokenizer=self._words.detokenizer(), images=seen)
            for row, source, seen in zip(rows, sources, images, strict=True)
        ]
        return self._steps(turns, reader, method, limit, show_end), batched

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

    def _rows(
        self, prompts: Sequence[Any], images: Sequence[Images | None], reader: Reader, last: SamplingState | None
    ) -> list[Row]:
        if last is not None and len(last.rows) != len(prompts):
            raise ParamsError(f"prompt must hold {len(last.rows)} prompts, as many as last_state, got {len(prompts)}")
        rows = []
        for index, prompt in enumerate(prompts):
            ids = self._words.ids(prompt, first=last is None, vocab_size=reader.vocab_size)
            if reader.vision is not None:
                reader.vision.check(ids, images[index])
            before = None if last is None else last.rows[index]
            rows.append(begin(reader, ids, before))
        return rows

    def _steps(
        self, turns: list[Turn], reader: Reader, method: SamplingMethod, limit: int, show_end: bool
    ) -> Iterator[list[Turn]]:
        yield turns
        while any(turn.row.finish_reason is None for turn in turns):
            for turn in turns:
                turn.fresh = ""
                if turn.row.finish_reason is None:
                    self._step(turn, reader, method, limit, show_end)
            yield turns

    def _step(self, turn: Turn, reader: Reader, method: SamplingMethod, limit: int, show_end: bool) -> None:
        """One token for one prompt."""
        row = turn.row
        logits, cache = reader.read(row.cache, row.token_ids, row.read, row.slots, turn.images)
        slots, turn.images = row.slots + slots_of(reader, row.token_ids[row.read :]), None
        row = replace(row, cache=cache, read=len(row.token_ids), slots=slots)
        token = self._choose(logits, method, turn, reader)
        if isinstance(token, Status):
            turn.row = replace(row, finish_reason="error")
            turn.fresh = turn.detokenizer.finish()
        else:
            ids, output = (*row.token_ids, token), (*row.output_ids, token)
            ended = token in self._ends
            reason = "stop" if ended else "length" if len(output) == limit else None
            if reason is None and slots + 1 >= reader.capacity:
                reason = "cache_full"
            turn.fresh = turn.detokenizer.push(token) if show_end or not ended else ""
            turn.fresh += turn.detokenizer.finish() if reason is not None else ""
            turn.row = replace(row, token_ids=ids, output_ids=output, finish_reason=reason)
        turn.text += turn.fresh

    def _choose(self, logits: Any, method: SamplingMethod, turn: Turn, reader: Reader) -> int | Status:
        if self._forbidden:
            logits = logits.copy()
            logits[list(self._forbidden)] = -np.inf
        return choose(method, logits, turn.source, len(turn.row.output_ids), jax=reader.uses_jax)

    def _outputs(self, steps: Iterator[list[Turn]], batched: bool, return_state: bool) -> Iterator[Any]:
        next(steps)
        for turns in steps:
            yield self._output(turns, [turn.fresh for turn in turns], batched, return_state)

    def _output(self, turns: Sequence[Turn], texts: list[str], batched: bool, return_state: bool) -> Any:
        text = texts if batched else texts[0]
        if not return_state:
            return text
        return SamplerOutput(text=text, state=self.state_of(turns))

    def state_of(self, turns: Sequence[Turn]) -> SamplingState:
        """The state of turns, as they stand."""
        rows = tuple(turn.row for turn in turns)
        length = rows[0].cache_length if rows else self.cache_length
        return SamplingState(rows=rows, max_out_length=self.max_out_length, cache_length=length)


def begin(reader: Reader, ids: Sequence[int], before: Row | None) -> Row:
    """A conversation with a new prompt at its end; ParamsError when there is nothing to read or no room to answer."""
    token_ids = (*(before.token_ids if before else ()), *ids)
    read, slots = (before.read, before.slots) if before else (0, 0)
    if len(token_ids) == read:
        raise ParamsError("prompt must hold at least one token, got none; begin it with a BOS token or some text")
    length = slots + slots_of(reader, token_ids[read:])
    if length >= reader.capacity:
        raise ParamsError(
            f"prompt must leave room for an answer in cache_length, which is {reader.capacity}, got a conversation of "
            f"{length} tokens; raise cache_length or begin a new conversation"
        )
    cache = reader.share(before.cache) if before else reader.start()
    return Row(
        token_ids=token_ids,
        slots=slots,
        read=read,
        cache=cache,
        cache_length=reader.capacity,
        output_ids=(),
        finish_reason=None,
    )


def check_state(last: Any) -> SamplingState | None:
    """The state; ParamsError for another object."""
    if last is not None and not isinstance(last, SamplingState):
        raise ParamsError(f"last_state must be a SamplingState or None, got {type(last).__name__}")
    return last


def slots_of(reader: Reader, ids: Sequence[int]) -> int:
    """Slots that ids take in a cache, images written out."""
    return len(ids) if reader.vision is None else reader.vision.slots(ids)


def whole_number(value: Any, name: str, *, low: int) -> int:
    """A checked integer."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or value < low:
        raise ParamsError(f"{name} must be an integer >= {low}, got {value!r}")
    return int(value)
