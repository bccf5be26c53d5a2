"""From requests to `SamplingMetadata`: what each row asks, packed into the arrays that kernels read."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import accumulate, chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.compiled_params import CompiledParams, Program, compiled
from tirage.errors import ParamsError, RowError
from tirage.history import Counts, History
from tirage.operators import OPERATIONS, Step
from tirage.operators.row import Process
from tirage.params import SamplingParams, require_tokenized
from tirage.processors import AbandonedError, find_processor
from tirage.sampling_metadata import STEP_WIDTH, SamplingMetadata, View
from tirage.token_records import TokenRecords

_VIEWS = {"raw": View.RAW, "processed": View.PROCESSED, "sampled": View.SAMPLED}
_NONE = np.zeros(0, np.int32)
_NO_COUNTS = Counts(np.zeros((3, 0), np.int32))
_NO_MASKS = np.zeros((0, 0), np.int32)
_LISTS = np.zeros(1 + max(OPERATIONS), bool)
_LISTS[[op for op, each in OPERATIONS.items() if each.lists]] = True
"""By operation: whether its operands a and b are positions in the edit arrays."""


@dataclass(slots=True, eq=False)
class SamplingRow:
    """A request in flight: compiled parameters, history, seed, sample index; `step` overrides the history's.

    `state` is what it carries from token to token (S-C1), None where no stage does; `drawn` the token that it drew last
    with the state after it, until a token joins its history.
    """

    compiled: CompiledParams
    history: History
    seed: int
    sample_index: int = 0
    step: int | None = None
    state: float | None = None
    drawn: tuple[int, float] | None = None

    @classmethod
    def of(
        cls, params: SamplingParams, history: History, *, sample_index: int = 0, step: int | None = None
    ) -> SamplingRow:
        """The row of `params`; without a seed it gets a fresh one, which is reported with the draw."""
        require_tokenized(params)
        seed = int.from_bytes(os.urandom(8)) >> 1 if params.seed is None else params.seed
        each = compiled(params.unwrapped)
        return cls(each, history, seed, sample_index, step, each.initial_state)

    @property
    def params(self) -> SamplingParams:
        return self.compiled.params

    @property
    def carrier_name(self) -> str:
        """The parameter of the stage whose state it carries."""
        return "" if self.compiled.carrier is None else next(iter(self.compiled.carrier.fields))

    @property
    def at(self) -> int:
        """The Philox step: the override, or the number of output tokens."""
        return self.history.step if self.step is None else self.step

    def lower(self) -> Program:
        """The steps of this row now."""
        return self.compiled.lower(self.history, self.at, self.state)

    def append(self, token: int) -> None:
        """Adds a token to the history; the state moves with one that was drawn, and with no other (S-C1)."""
        self.history.append(token)
        self.follow(token)

    def follow(self, token: int) -> None:
        """Moves the state past a token, if it is the one that the row drew last."""
        if self.drawn is not None and self.drawn[0] == token:
            self.state = self.drawn[1]
        self.drawn = None


@dataclass(slots=True, eq=False)
class SamplingBatch:
    """The requests of one call or of many: everything about them that a step does not change, packed once.

    `base` is the packed form, brought up to date by `metadata`. `fixed`: no request's steps depend on its history;
    `counted`: some penalty reads counts; `guided`: the parameter of some request that needs a mask, or "";
    `carried`: the rows that carry a state; `masked`: the last call had one; `lowered`: the history lengths, positions
    and states that the steps hold for. `table` is where the counts of all requests lie side by side, kept because
    fresh memory is slow to touch.
    """

    states: Sequence[SamplingRow]
    vocab_size: int
    base: SamplingMetadata
    processes: tuple[Process | None, ...] | None
    wants_logprobs: bool
    fixed: bool
    counted: bool
    guided: str
    carried: list[int]
    masked: bool = False
    lowered: list[tuple[int, int, float | None]] | None = None
    table: NDArray[np.int32] = field(default_factory=lambda: np.empty((3, 0), np.int32))

    @classmethod
    def of(cls, states: Sequence[SamplingRow], vocab_size: int) -> SamplingBatch:
        """The batch of checked requests over one vocabulary."""
        each = distinct(states)
        custom = any(one.params.logits_processors for one in each)
        fixed = all(one.fixed is not None for one in each)
        carried = any(one.carrier is not None for one in each)
        base = _base(states, each, vocab_size, fixed)
        batch = cls(
            states=states,
            vocab_size=vocab_size,
            base=base,
            processes=tuple(processors_of(state) for state in states) if custom else None,
            wants_logprobs=base.wants_logprobs,
            fixed=fixed,
            counted=any(one.needs_counts for one in each),
            guided=next((name for one in each if (name := needs_mask(one.params))), ""),
            carried=[r for r, state in enumerate(states) if state.compiled.carrier is not None] if carried else [],
        )
        batch._mask(None)
        return batch

    def follow(self, token_ids: NDArray[Any], logprobs: NDArray[Any]) -> NDArray[np.float64]:
        """The state of each row after its draw, float64 [B]; NaN for rows that carry none.

        `token_ids` [B] and sampled `logprobs` [B] are those of the draw; a row without a token keeps its state.
        """
        after = np.full(len(self.states), np.nan)
        for r in self.carried:
            row, token = self.states[r], int(token_ids[r])
            assert row.state is not None
            row.drawn, after[r] = None, row.state
            if token >= 0:
                chance = math.nan if self.base.chances is None else float(self.base.chances[r])
                after[r] = row.compiled.next_state(row.state, float(logprobs[r]), chance)
                row.drawn = token, float(after[r])
        return after

    @property
    def unseeded(self) -> list[int]:
        """Rows whose parameters name no seed."""
        return [r for r, state in enumerate(self.states) if state.params.seed is None]

    def asked(self) -> bytes:
        """Bytes that are equal where all parameters, histories and sample indices are."""
        from hashlib import blake2b

        hashed = blake2b()
        for state in self.states:
            tokens = state.history.tokens()
            hashed.update(f"{state.sample_index} {state.at} {state.history.prompt_length} {tokens.size} ".encode())
            hashed.update(tokens.tobytes())
            hashed.update(_named(state.compiled))
        return hashed.digest()

    @property
    def checks_masks(self) -> NDArray[np.bool_]:
        """bool [B]: rows whose semantics applies a mask only after the draw."""
        return np.array([state.compiled.semantics.mask_mode == "resample" for state in self.states], bool)

    def metadata(self, mask: NDArray[np.int32] | None) -> SamplingMetadata:
        """The metadata of this moment, valid until the next call; `mask` is the caller's int32 [B, ceil(V / 32)].

        Raises ParamsError where a row's constraint needs a mask and there is none.
        """
        if mask is None and self.guided:
            raise ParamsError(
                f"{self.guided} must come with a mask of the tokens it allows, got mask None; "
                "pass mask=, or generate through tirage.LLM"
            )
        rows = self.base
        # `at` of each, spelled out: between two forward passes every call finds its code out of the caches.
        steps = [state.history.step if state.step is None else state.step for state in self.states]
        rows.steps = np.array(steps, np.int64)
        if rows.records is not None:
            rows.records = rows.records.anew()
        if rows.chances is not None:
            rows.chances = np.full(rows.chances.size, np.nan)
        if not self.fixed:
            self._lower(steps)
        if self.counted:
            self._count()
        if mask is not None or self.masked:
            self._mask(mask)
        return rows

    def _lower(self, steps: list[int]) -> None:
        """Lowers the steps anew where a history has grown; a second draw of the same moment finds them."""
        now = [(state.history.length, step, state.state) for state, step in zip(self.states, steps, strict=True)]
        if now == self.lowered:
            return
        rows, self.lowered = self.base, now
        rows.programs, rows.edit_ids, rows.edit_values = packed([state.lower() for state in self.states])
        rows.memo.clear()

    def _count(self) -> None:
        tables = [(state.compiled.counts(state.history) or _NO_COUNTS).table for state in self.states]
        start = starts([table.shape[1] for table in tables])
        if start[-1] > self.table.shape[1]:
            self.table = np.empty((3, int(start[-1]) * 2), np.int32)
        for table, at, end in zip(tables, start, start[1:], strict=False):
            self.table[:, at:end] = table
        self.base.count_start = start
        self.base.count_ids, self.base.prompt_counts, self.base.output_counts = self.table[:, : start[-1]]

    def _mask(self, mask: NDArray[np.int32] | None) -> None:
        """Set hard masks, and those that llama.cpp's order only checks; a row's own mask decides which it is."""
        self.masked = mask is not None
        self.base.memo.clear()
        restricted = [r for r, state in enumerate(self.states) if state.compiled.allowed is not None]
        resample = self._resampled(mask)
        words = -(-self.vocab_size // 32)
        hard = checks = _NO_MASKS
        if restricted or (mask is not None and not resample.all()):
            hard = np.full((len(self.states), words), -1, np.int32) if mask is None else mask.copy()
            hard[resample] = -1
        if mask is not None and resample.any():
            checks = mask
        for r in restricted:
            hard[r] &= _bitmask(tuple(self.states[r].params.allowed_token_ids or ()), words)
        self.base.masks, self.base.checks, self.base.resample = hard, checks, resample

    def _resampled(self, mask: NDArray[np.int32] | None) -> NDArray[np.bool_]:
        """Which rows resample: their semantics says so and their own mask forbids something."""
        resample = np.zeros(len(self.states), bool)
        for r, state in enumerate(self.states if mask is not None else ()):
            if mask is not None and state.compiled.semantics.mask_mode == "resample":
                bits = np.unpackbits(mask[r].view(np.uint8), bitorder="little")
                resample[r] = not bits[: self.vocab_size].all()
        return resample


def distinct(states: Sequence[SamplingRow]) -> list[CompiledParams]:
    """The compiled parameters of rows, each once: rows of one SamplingParams share theirs, and are asked together."""
    return list({id(state.compiled): state.compiled for state in states}.values())


@lru_cache(maxsize=1024)
def _named(compiled: CompiledParams) -> bytes:
    """A digest of the parameters, with stops and everything else that a draw does not read."""
    from hashlib import blake2b

    return blake2b(compiled.params.to_json().encode()).digest()


def needs_mask(params: SamplingParams) -> str:
    """The name of a parameter that only a mask from outside can enforce, or ""."""
    if params.guided_decoding is not None:
        return "guided_decoding"
    return "bad_words_level 'text'" if params.bad_words and params.bad_words_level == "text" else ""


def _base(
    states: Sequence[SamplingRow], each: Sequence[CompiledParams], vocab_size: int, fixed: bool
) -> SamplingMetadata:
    """Rows without counts and masks, and without steps unless they are fixed; `each` of their parameters once."""
    programs, edit_ids, edit_values = packed([state.lower() for state in states] if fixed else [])
    return SamplingMetadata(
        programs=programs,
        edit_ids=edit_ids,
        edit_values=edit_values,
        count_start=np.zeros(len(states) + 1, np.int64),
        count_ids=_NONE,
        prompt_counts=_NONE,
        output_counts=_NONE,
        masks=_NO_MASKS,
        checks=_NO_MASKS,
        resample=np.zeros(len(states), bool),
        seeds=np.array([state.seed for state in states], np.int64),
        steps=np.zeros(len(states), np.int64),
        samples=np.array([state.sample_index for state in states], np.int64),
        records=_records(states) if any(one.params.return_kept for one in each) else None,
        chances=np.full(len(states), np.nan) if any(one.needs_chances for one in each) else None,
        **_asked(states, vocab_size),
    )


def packed(lowered: Sequence[Program]) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Programs [B, S, 6], with operands of operations that list tokens moved to positions in the joined edit arrays."""
    longest = max((len(low.steps) for low in lowered), default=0) + 1
    programs = np.zeros((len(lowered), longest, STEP_WIDTH), np.int64)
    if len({*map(id, lowered)}) == 1 and not lowered[0].edit_ids.size:
        programs[:, : longest - 1] = _table(lowered[0].steps) if longest > 1 else 0
        return programs, _NONE, np.zeros(0, np.float32)
    moved = 0
    for r, low in enumerate(lowered):
        n = len(low.steps)
        if n:
            programs[r, :n] = _table(low.steps)
        if low.edit_ids.size:
            op = programs[r, :n, 0]
            programs[r, :n, 1:3][_LISTS[op]] += moved
            moved += low.edit_ids.size
    with_edits = [low for low in lowered if low.edit_ids.size]
    values = np.concatenate([low.edit_values for low in with_edits]) if with_edits else np.zeros(0, np.float32)
    return programs, joined([low.edit_ids for low in with_edits]), values


@lru_cache(maxsize=4096)
def _table(steps: tuple[Step, ...]) -> NDArray[np.int64]:
    return np.array([step[:STEP_WIDTH] for step in steps], np.int64)


def _asked(states: Sequence[SamplingRow], vocab_size: int) -> dict[str, Any]:
    """The columns that say which logprobs each row wants, and which ids XTC must spare."""
    params = [state.params for state in states]
    asked = [p.logprob_token_ids for p in params]
    spared = [state.params.xtc_protected_ids if state.compiled.coin else () for state in states]
    return {
        "views": np.array([view_of(p) for p in params], np.int8),
        "top_n": np.array([min(p.logprobs or 0, vocab_size) for p in params], np.int32),
        "asked_start": starts(list(map(len, asked))),
        "asked_ids": np.array(list(chain.from_iterable(asked)), np.int32),
        "protected_start": starts(list(map(len, spared))),
        "protected_ids": np.array(list(chain.from_iterable(spared)), np.int32),
    }


def _records(states: Sequence[SamplingRow]) -> TokenRecords:
    limits = [state.params.max_kept_ids if state.params.return_kept else 0 for state in states]
    return TokenRecords.of(np.array(limits, np.int64))


def view_of(params: SamplingParams) -> View:
    """Which distribution the logprobs that a request asks for describe."""
    return _VIEWS[params.logprobs_mode] if params.lists_logprobs else View.NONE


def starts(sizes: Sequence[int]) -> NDArray[np.int64]:
    """Where each of several parts begins when they are joined, and where the last ends: int64 [n + 1]."""
    return np.array([0, *accumulate(sizes)], np.int64)


def joined(arrays: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    """The arrays [n] one after the other, int32 [N]."""
    return np.concatenate(arrays) if arrays else _NONE


@lru_cache(maxsize=16)  # a key may hold a vocabulary
def _bitmask(ids: tuple[int, ...], words: int) -> NDArray[np.int32]:
    flags = np.zeros(words * 32, np.uint8)
    flags[list(ids)] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


def processors_of(state: SamplingRow) -> Process | None:
    """The custom processors that a row names, as one function of its logits; None when it names none."""
    return partial(_run_processors, state) if state.params.logits_processors else None


def passes(error: BaseException) -> bool:
    """Whether what a processor raises is not its own: an interrupt of the program, or the end of an abandoned call."""
    interrupt = isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()
    return interrupt or isinstance(error, AbandonedError)


def _run_processors(state: SamplingRow, x: NDArray[np.float32]) -> NDArray[np.float32]:
    extra = state.params.extra_args
    for name, args in state.params.logits_processors:
        processor = find_processor(name)
        try:
            result = np.asarray(processor.run(x, args, extra, state.history.past))
        except BaseException as error:
            if passes(error):
                raise
            raise RowError(f"logits processor {name!r} failed: {type(error).__name__}: {error}") from error
        if result.shape != (1, x.size) or result.dtype.kind not in "fiu":
            raise RowError(
                f"logits processor {name!r} must return floats of shape [rows, V] = [1, {x.size}], "
                f"got {result.dtype} of shape {list(result.shape)}"
            )
        with np.errstate(all="ignore"):
            x = result[0].astype(np.float32)
    return x
