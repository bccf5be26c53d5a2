"""What is known of rows before any logit is read: their filters and keys as integers, one row of a table each.

The kernels read this table where it lies; nothing here needs Triton. A row's filters are steps as in SamplingMetadata.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.exact import numbers
from tirage.operators import FIRST_FILTER
from tirage.operators.epsilon import EPSILON
from tirage.operators.eta import ETA
from tirage.operators.min_keep import FLOORED
from tirage.operators.min_p import MIN_P, MIN_P_LOGIT
from tirage.operators.p_less import P_LESS
from tirage.operators.temperature import DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED, GREEDY, TEMPERATURE
from tirage.operators.top_a import TOP_A
from tirage.operators.top_k import TOP_K
from tirage.operators.top_n_sigma import TOP_N_SIGMA
from tirage.operators.top_p import RULES, TOP_P
from tirage.operators.xtc import COINS
from tirage.sampling_metadata import STEP_WIDTH, SamplingMetadata, View

HEADER = 9
"""What stands before a row's program: seed, step, sample, the constants c of the first and the last temperature as
bits, whether the row is greedy, the operation of `SUMMED` for which the whole row is summed, or 0, how many tokens a
dynamic temperature counts at least, and a 0 that the kernels count from while they run."""
BINS = 512
"""Lanes of the histogram of a row's logits."""
SEED, STEP, SAMPLE, IS_GREEDY = 0, 1, 2, 5
"""Columns of the header that are read or written outside of the kernels."""

DYNAMIC = (DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED)
"""The temperatures that follow from a set."""
_CLEARING = (TOP_P, MIN_P, MIN_P_LOGIT, EPSILON, TOP_A, ETA, P_LESS)
"""Filters after which llama.cpp lists no token at -inf."""
_ALL = (1 << 31) - 1

SUMMED = (ETA, P_LESS, TOP_N_SIGMA, *DYNAMIC)
"""The filters whose thresholds, or temperatures, follow from more sums of a set than its mass."""
CUTS = (
    *(TOP_K, TOP_P, MIN_P, MIN_P_LOGIT, FLOORED[TOP_P], FLOORED[MIN_P], FLOORED[MIN_P_LOGIT]),
    *(EPSILON, TOP_A, ETA, P_LESS, TOP_N_SIGMA),
)
"""The filters that keep a prefix of (key descending, id ascending), all of which the kernels run."""
FILTERS = (GREEDY, TEMPERATURE, *DYNAMIC, *CUTS, *COINS)
"""The filters that the kernels run, where `can_run` says so."""


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """What the kernels need to know of rows: `meta` int64 [B, columns], and whether any row draws, filters or is
    summed.

    The columns are those of the header and six for each step.
    """

    meta: NDArray[np.int64]
    draws: bool
    filters: bool
    sums: bool

    @classmethod
    def of(cls, rows: SamplingMetadata) -> DrawPlan:
        """The plan of rows whose filters are all in `FILTERS`."""
        programs = rows.programs
        ops = programs[:, :, 0]
        greedy = (ops == GREEDY).any(axis=1)
        first, last = constants(programs)
        sums = summed(ops)
        header = (rows.seeds, rows.steps, rows.samples, first, last, greedy, sums, listed(programs), 0)
        meta = np.empty((rows.count, HEADER + programs[0].size), np.int64)
        for at, column in enumerate(header):
            meta[:, at] = column
        meta[:, HEADER:] = programs.reshape(rows.count, -1)
        filters = np.isin(ops, (*CUTS, *DYNAMIC, *COINS)).any(axis=1) | (first != last)
        return cls(meta, not greedy.all(), bool((filters & ~greedy).any()), bool((sums > 0).any()))

    def on(self, device: torch.device) -> Tensor:
        """`meta` [B, columns] on a device, in one copy that waits for nothing."""
        host = torch.from_numpy(self.meta)
        return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def summed(ops: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first operation of each row of `ops` [B, S] that is in `SUMMED`, or 0: [B]."""
    found = np.isin(ops, SUMMED)
    first = np.take_along_axis(ops, np.argmax(found, axis=1)[:, None], axis=1)[:, 0]
    return np.where(found.any(axis=1), first, 0)


def constants(programs: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Bits of c of each row of `programs` [B, S, 6] until something is filtered, and at its end, int32 [B] each.

    They are those of a temperature stage, else of T = 1.
    """
    ops, operands = programs[:, :, 0], programs[:, :, 1]
    at = np.arange(programs.shape[0])
    unit = numbers.bits(numbers.temperature_constant(1.0))
    first = np.argmax(ops >= FIRST_FILTER, axis=1)
    is_first = ops[at, first] == TEMPERATURE
    last = ops.shape[1] - 1 - np.argmax(ops[:, ::-1] == TEMPERATURE, axis=1)
    begun = np.where(is_first, operands[at, first], unit)
    ended = np.where(ops[at, last] == TEMPERATURE, operands[at, last], begun)
    return begun.astype(np.int32), ended.astype(np.int32)


def listed(programs: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many tokens a dynamic temperature counts at least, of the vocabulary's, by rows of `programs` [B, S, 6]: [B].

    That is more than its set where tokens at -inf are in llama.cpp's list: all before the first filter, and behind a
    top-k so many that there are k.
    """
    ops = programs[:, :, 0]
    at, place = np.nonzero(ops == DYNAMIC_TEMPERATURE_LISTED)
    counted = np.zeros(len(programs), np.int64)
    before = programs[at, np.maximum(place - 1, 0)]
    is_top_k = (place > 0) & (before[:, 0] == TOP_K)
    counted[at] = np.where(is_top_k, before[:, 1], np.where(_is_begun(ops, at, place), 0, _ALL))
    return counted


def _is_begun(ops: NDArray[np.int64], at: NDArray[np.int64], place: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [n]: whether a filter stands before the steps at `place` [n] of the rows `at` [n] of `ops` [B, S]."""
    return (place > 0) & (ops[at, np.maximum(place - 1, 0)] >= FIRST_FILTER)


def can_run(programs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [B]: rows of `programs` [B, S, 6], all of whose filters are in `FILTERS`, that the kernels run.

    Blocks are weighed by two temperatures, and a dynamic one is the second of them, after T = 1. XTC is the last of the
    filters, as those behind it would need sums of both of its sets.
    """
    ops = programs[:, :, 0]
    dynamic = np.isin(ops, DYNAMIC).sum(axis=1)
    alone = (dynamic == 1) & ~(ops == TEMPERATURE).any(axis=1) & _knows_listed(ops)
    return np.where(dynamic > 0, alone, has_two_temperatures(programs)) & _ends_with_xtc(programs)


def _ends_with_xtc(programs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [B]: rows of `programs` [B, S, 6] without XTC, or with one behind all others, none of which cut a weight."""
    ops = programs[:, :, 0]
    is_xtc = np.isin(ops, COINS)
    last = ops.shape[1] - 1 - np.argmax(ops[:, ::-1] >= FIRST_FILTER, axis=1)
    is_last = (is_xtc.sum(axis=1) == 1) & is_xtc[np.arange(len(ops)), last]
    truncates = (np.isin(ops, (TOP_P, FLOORED[TOP_P])) & (programs[:, :, 2] == RULES.index("truncated"))).any(axis=1)
    return ~is_xtc.any(axis=1) | (is_last & ~truncates)


def _knows_listed(ops: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [B]: rows of `ops` [B, S] without a dynamic temperature whose list of tokens at -inf takes counting."""
    at, place = np.nonzero(ops == DYNAMIC_TEMPERATURE_LISTED)
    before = ops[at, np.maximum(place - 1, 0)]
    is_known = ~_is_begun(ops, at, place) | np.isin(before, _CLEARING)
    is_known |= (before == TOP_K) & ~_is_begun(ops, at, place - 1)
    known = np.ones(len(ops), bool)
    known[at] = is_known
    return known


def has_two_temperatures(programs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [B]: rows with at most one temperature besides the first one, or T = 1."""
    ops = programs[:, :, 0]
    is_first = np.take_along_axis(ops, np.argmax(ops >= FIRST_FILTER, axis=1)[:, None], axis=1)[:, 0] == TEMPERATURE
    return (ops == TEMPERATURE).sum(axis=1) <= 1 + is_first


def metadata_of(meta: NDArray[np.int64]) -> SamplingMetadata:
    """The rows of a plan's `meta` int64 [B, columns] as SamplingMetadata, without edits, masks, views or records."""
    count = meta.shape[0]
    none, starts = np.zeros(0, np.int32), np.zeros(count + 1, np.int64)
    return SamplingMetadata(
        programs=np.ascontiguousarray(meta[:, HEADER:]).reshape(count, -1, STEP_WIDTH),
        edit_ids=none,
        edit_values=np.zeros(0, np.float32),
        count_start=starts,
        count_ids=none,
        prompt_counts=none,
        output_counts=none,
        masks=np.zeros((0, 0), np.int32),
        checks=np.zeros((0, 0), np.int32),
        resample=np.zeros(count, bool),
        seeds=np.ascontiguousarray(meta[:, SEED]),
        steps=np.ascontiguousarray(meta[:, STEP]),
        samples=np.ascontiguousarray(meta[:, SAMPLE]),
        views=np.full(count, View.NONE, np.int8),
        top_n=np.zeros(count, np.int32),
        asked_start=starts,
        asked_ids=none,
        protected_start=starts,
        protected_ids=none,
    )
