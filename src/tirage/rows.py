"""From requests to `Rows`: what each row asks, packed into the arrays that kernels read."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tirage.backends import STEP_WIDTH, Rows, View
from tirage.history import Counts, History
from tirage.params import SamplingParams
from tirage.stages import Lowered, Plan, plan

_VIEWS = {"raw": View.RAW, "processed": View.PROCESSED, "sampled": View.SAMPLED}
_NONE = np.zeros(0, np.int32)


@dataclass(slots=True)
class RowState:
    """One request in flight: its plan, history, seed and sample index; `step` overrides the history's."""

    plan: Plan
    history: History
    seed: int
    sample_index: int = 0
    step: int | None = None

    @classmethod
    def of(
        cls, params: SamplingParams, history: History, *, sample_index: int = 0, step: int | None = None
    ) -> RowState:
        """A RowState for `params`; without a seed it gets a fresh one, which is reported with the draw."""
        seed = secrets.randbits(63) if params.seed is None else params.seed
        return cls(plan(params), history, seed, sample_index, step)

    @property
    def params(self) -> SamplingParams:
        return self.plan.params

    @property
    def at(self) -> int:
        """The Philox step: the override, or the number of output tokens."""
        return self.history.step if self.step is None else self.step

    def lower(self) -> Lowered:
        """The steps of this row now."""
        return self.plan.lower(self.history, self.at)


def pack(states: Sequence[RowState], vocab_size: int, mask: NDArray[np.int32] | None) -> Rows:
    """`states` as Rows; `mask` is the caller's bitmask int32 [B, ceil(V / 32)], combined with allowed ids."""
    lowered = [state.lower() for state in states]
    counts = [low.counts for low in lowered]
    programs, edit_ids, edit_values = _programs(lowered)
    return Rows(
        programs=programs,
        edit_ids=edit_ids,
        edit_values=edit_values,
        count_start=_starts([0 if c is None else c.ids.size for c in counts]),
        count_ids=_joined([c.ids for c in counts if c is not None]),
        prompt_counts=_joined([c.prompt for c in counts if c is not None]),
        output_counts=_joined([c.output for c in counts if c is not None]),
        seeds=np.array([state.seed for state in states], np.int64),
        steps=np.array([state.at for state in states], np.int64),
        samples=np.array([state.sample_index for state in states], np.int64),
        **_asked(states),
        **_masks(states, vocab_size, mask),
    )


def _programs(lowered: Sequence[Lowered]) -> tuple[NDArray[np.int64], NDArray[np.int32], NDArray[np.float32]]:
    """Programs [B, S, 6] with operands of BAN and ADD moved to positions in the joined edit arrays."""
    longest = max((len(low.steps) for low in lowered), default=0) + 1
    programs = np.zeros((len(lowered), longest, STEP_WIDTH), np.int64)
    moved = 0
    for r, low in enumerate(lowered):
        n = len(low.steps)
        if n:
            programs[r, :n] = _table(low.steps)
        if low.edit_ids.size:
            slices = (programs[r, :n, 0] == 1) | (programs[r, :n, 0] == 2)
            programs[r, :n, 1:3][slices] += moved
            moved += low.edit_ids.size
    with_edits = [low for low in lowered if low.edit_ids.size]
    ids = _joined([low.edit_ids for low in with_edits])
    values = np.concatenate([low.edit_values for low in with_edits]) if with_edits else np.zeros(0, np.float32)
    return programs, ids, values


@lru_cache(maxsize=4096)
def _table(steps: tuple) -> NDArray[np.int64]:
    return np.array([step[:STEP_WIDTH] for step in steps], np.int64)


def _asked(states: Sequence[RowState]) -> dict[str, NDArray]:
    """The columns that say which logprobs each row wants, and which ids XTC must spare."""
    params = [state.params for state in states]
    wants = [p.logprobs is not None or bool(p.logprob_token_ids) for p in params]
    asked = [np.array(p.logprob_token_ids, np.int32) for p in params]
    spared = [
        np.array(p.xtc_protected_ids if s.plan.coin else (), np.int32) for p, s in zip(params, states, strict=True)
    ]
    return {
        "views": np.array(
            [_VIEWS[p.logprobs_mode] if w else View.NONE for p, w in zip(params, wants, strict=True)], np.int8
        ),
        "top_n": np.array([p.logprobs or 0 for p in params], np.int32),
        "asked_start": _starts([ids.size for ids in asked]),
        "asked_ids": _joined(asked),
        "protected_start": _starts([ids.size for ids in spared]),
        "protected_ids": _joined(spared),
    }


def _starts(sizes: Sequence[int]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64) if sizes else np.zeros(1, np.int64)


def _joined(arrays: Sequence[NDArray[np.int32]]) -> NDArray[np.int32]:
    return np.concatenate(arrays) if arrays else _NONE


def _masks(states: Sequence[RowState], vocab_size: int, mask: NDArray[np.int32] | None) -> dict[str, NDArray]:
    """Hard masks, and the masks that llama.cpp's order only checks; a row's own mask alone decides which it is."""
    words = -(-vocab_size // 32)
    resample = _checked_rows(states, vocab_size, mask)
    restricted = [r for r, state in enumerate(states) if state.plan.allowed is not None]
    hard = checks = np.zeros((0, 0), np.int32)
    if restricted or (mask is not None and not resample.all()):
        hard = np.full((len(states), words), -1, np.int32) if mask is None else mask.copy()
        hard[resample] = -1
    if mask is not None and resample.any():
        checks = mask
    for r in restricted:
        hard[r] &= _bitmask(states[r].params.allowed_token_ids or (), words)
    return {"masks": hard, "checks": checks, "resample": resample}


def _checked_rows(states: Sequence[RowState], vocab_size: int, mask: NDArray[np.int32] | None) -> NDArray[np.bool_]:
    """Which rows resample: their semantics says so and their own mask forbids something."""
    resample = np.array([state.plan.semantics.mask_mode == "resample" for state in states], bool)
    if mask is None:
        return resample & False
    for r in np.flatnonzero(resample):
        resample[r] = not np.unpackbits(mask[r].view(np.uint8), bitorder="little")[:vocab_size].all()
    return resample


@lru_cache(maxsize=256)
def _bitmask(ids: tuple[int, ...], words: int) -> NDArray[np.int32]:
    flags = np.zeros(words * 32, np.uint8)
    flags[list(ids)] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


def no_counts() -> Counts:
    """Counts of an empty history."""
    return Counts(_NONE, _NONE, _NONE)
