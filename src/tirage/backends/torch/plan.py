"""What is known of rows before any logit is read: their filters and keys as integers, one row of a table each.

The kernels read this table where it lies; nothing here needs Triton. A row's filters are steps as in SamplingMetadata.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.exact import numbers
from tirage.operators import FIRST_FILTER
from tirage.operators.adaptive_p import ADAPTIVE_P
from tirage.operators.epsilon import EPSILON
from tirage.operators.eta import ETA
from tirage.operators.min_keep import FLOORED
from tirage.operators.min_p import MIN_P, MIN_P_LOGIT
from tirage.operators.mirostat import MIROSTAT, MIROSTAT_V2
from tirage.operators.p_less import P_LESS
from tirage.operators.smoothing import SMOOTH
from tirage.operators.temperature import DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED, GREEDY, TEMPERATURE
from tirage.operators.tfs import TFS
from tirage.operators.top_a import TOP_A
from tirage.operators.top_h import TOP_H
from tirage.operators.top_k import TOP_K
from tirage.operators.top_n_sigma import TOP_N_SIGMA
from tirage.operators.top_p import RULES, TOP_P
from tirage.operators.typical import TYPICAL, TYPICAL_BY_RANK
from tirage.operators.xtc import COINS
from tirage.sampling_metadata import STEP_WIDTH, SamplingMetadata, View

HEADER = 9
"""What stands before a row's program: seed, step, sample, the constants c of the first and the last temperature as
bits, how the row is drawn (`BY_PASSES`, `GREEDILY`, `AS_SET`), the first operation of `SUMMED`, for which the
whole row may be summed, or 0, how many tokens a dynamic temperature counts at least, and a 0 that the kernels count
from while they run."""
BINS = 512
"""Lanes of the histogram of a row's logits."""
SEED, STEP, SAMPLE, IS_GREEDY = 0, 1, 2, 5
"""Columns of the header that are read or written outside of the kernels."""
LAWS, LAW = 11, 32
SUMS = LAWS + 2 * LAW + 1
"""Numbers of a row that the kernels sum up, int64. From `LAWS` on they tell what a row was drawn from, for its
logprobs: `LAW` numbers of each of two sets, and how often the second is (`told`)."""
BY_PASSES, GREEDILY, AS_SET = range(3)
"""How a row is drawn: by passes over blocks of it, by its largest logit, or by a thread block of its own that runs any
steps."""

FEW = 4096
"""Tokens that are listed and summed sooner than a whole row is."""
LISTS, MARKS, ORDERS, APART, REWRITES, COUNTS = (1 << at for at in range(6))
"""What rows need that are drawn as sets, a bit each: a list of tokens; with XTC, marks of those that can be drawn
without it; with tail-free, room for its counters, and bits of tokens where other steps may list them before it; with a
smoothing, logits that may be changed; a histogram where that tells how some row is cut."""
DYNAMIC = (DYNAMIC_TEMPERATURE, DYNAMIC_TEMPERATURE_LISTED)
"""The temperatures that follow from a set."""
_CLEARING = (TOP_P, MIN_P, MIN_P_LOGIT, EPSILON, TOP_A, ETA, P_LESS)
"""Filters after which llama.cpp lists no token at -inf."""
_BEHIND_LEVELS = (TOP_K, TOP_P, MIN_P, EPSILON, TEMPERATURE)
"""The filters that may stand behind a typical of a set that is listed."""
_ALL = (1 << 31) - 1

LEVELS = (TYPICAL, TYPICAL_BY_RANK)
"""The filters that keep tokens at the lowest distances from the mean exponent."""
SUMMED = (ETA, P_LESS, TOP_N_SIGMA, *DYNAMIC, *LEVELS)
"""The filters whose thresholds, or temperatures, follow from more sums of a set than its mass."""
CUTS = (
    *(TOP_K, TOP_P, MIN_P, MIN_P_LOGIT, FLOORED[TOP_P], FLOORED[MIN_P], FLOORED[MIN_P_LOGIT]),
    *(EPSILON, TOP_A, ETA, P_LESS, TOP_N_SIGMA, TOP_H),
)
"""The filters that keep a prefix of (key descending, id ascending), all of which the kernels run."""
FILTERS = (GREEDY, TEMPERATURE, *DYNAMIC, *CUTS, *COINS)
"""The filters that passes over split blocks run, where `can_run` says so."""
_COINS = (*COINS, *(FLOORED[op] for op in COINS))
SETS = (
    *(*FILTERS, *LEVELS, TFS, MIROSTAT, MIROSTAT_V2, ADAPTIVE_P),
    *(FLOORED[op] for op in (TYPICAL, TYPICAL_BY_RANK, *COINS)),
)
"""The filters that the kernels run in any order: those of rows that are drawn as a set."""


@dataclass(frozen=True, slots=True)
class DrawPlan:
    """What the kernels need to know of rows: `meta` int64 [B, columns], and what has to be done for some of them.

    The columns are those of the header and six for each step. `draws`, `filters` and `sums`: whether a row that is
    drawn by passes draws, filters, or is one that `is_weighed` or `is_behind`. `set_needs`: what those need that are
    drawn as sets, bits of `LISTS` to `COUNTS`.
    """

    meta: NDArray[np.int64]
    draws: bool
    filters: bool
    sums: bool
    set_needs: int = 0

    @classmethod
    def of(cls, rows: SamplingMetadata) -> DrawPlan:
        """The plan of rows whose filters are all in `SETS`."""
        programs = rows.programs
        ops = programs[:, :, 0]
        kind = np.where((ops == GREEDY).any(axis=1), GREEDILY, BY_PASSES)
        known = np.isin(ops, (*FILTERS, *LEVELS)) | ((ops < FIRST_FILTER) & (ops != SMOOTH))
        # What XTC spares, and what a typical keeps, stands in no order: sets with it are marked, which is for rows that
        # are drawn as sets.
        unordered = (np.diff(rows.protected_start) > 0) | np.isin(ops, LEVELS).any(axis=1)
        is_marked = unordered & (rows.views == View.SAMPLED)
        kind = np.where(known.all(axis=1) & can_run(programs) & ~is_marked, kind, AS_SET)
        first, last = constants(programs)
        sums = summed(programs)
        header = (rows.seeds, rows.steps, rows.samples, first, last, kind, sums, listed(programs), 0)
        meta = np.empty((rows.count, HEADER + programs[0].size), np.int64)
        for at, column in enumerate(header):
            meta[:, at] = column
        meta[:, HEADER:] = programs.reshape(rows.count, -1)
        filters = np.isin(ops, (*CUTS, *DYNAMIC, *COINS, *LEVELS)).any(axis=1) | (first != last)
        draws = kind == BY_PASSES
        weighed = is_weighed(ops, sums) | is_behind(programs, sums)
        some = [bool(which.any()) for which in (draws, filters & draws, weighed & draws)]
        return cls(meta, *some, set_needs=set_needs_of(ops[kind == AS_SET]))

    def without_smoothing(self, which: NDArray[np.bool_]) -> DrawPlan:
        """The plan for rows `which` bool [B] whose logits are smoothed already: nothing runs in the place of it."""
        at = HEADER + STEP_WIDTH * np.arange((self.meta.shape[1] - HEADER) // STEP_WIDTH)
        ops = self.meta[:, at]
        ops[which[:, None] & (ops == SMOOTH)] = 0
        meta = self.meta.copy()
        meta[:, at] = ops
        return replace(self, meta=meta)

    @property
    def needs(self) -> dict[str, Any]:
        """What has to be done, by name."""
        return {"draws": self.draws, "filters": self.filters, "sums": self.sums, "set_needs": self.set_needs}

    def on(self, device: torch.device) -> Tensor:
        """`meta` [B, columns] on a device, in one copy that waits for nothing."""
        host = torch.from_numpy(self.meta)
        return host.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else host


def set_needs_of(ops: NDArray[np.int64]) -> int:
    """What rows of `ops` [B, S] need that are drawn as sets, bits of `LISTS` to `COUNTS`; 0 where there are none."""
    if not len(ops):
        return 0
    is_cut = (ops >= FIRST_FILTER) & ~np.isin(ops, (TEMPERATURE, *DYNAMIC))
    needs = {
        LISTS: True,
        MARKS: np.isin(ops, _COINS),
        ORDERS: ops == TFS,
        APART: (ops == TFS) & (np.cumsum(is_cut, axis=1) > 1),
        REWRITES: ops == SMOOTH,
        COUNTS: is_cut & ~np.isin(ops, (TFS, MIROSTAT_V2, ADAPTIVE_P)),
    }
    return sum(bit for bit, rows in needs.items() if np.any(rows))


def smooths_last(programs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [B]: rows of `programs` [B, S, 6] in which no other edit stands behind the smoothing."""
    ops = programs[:, :, 0]
    behind = np.cumsum(ops == SMOOTH, axis=1) > 0
    return ~(behind & (ops != SMOOTH) & (ops < FIRST_FILTER) & (ops > 0)).any(axis=1)


def summed(programs: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first operation of each of `programs` [B, S, 6] that is in `SUMMED`, or 0: [B].

    There is none where it is a temperature behind a top-k of few tokens, or a top-h, which are summed once they are
    listed.
    """
    ops = programs[:, :, 0]
    found = np.isin(ops, SUMMED)
    at = np.argmax(found, axis=1)[:, None]
    first = np.take_along_axis(ops, at, axis=1)[:, 0]
    is_few = (_leaves_few(programs) | (ops == TOP_H)) & (np.arange(ops.shape[1]) < at)
    return np.where(found.any(axis=1) & ~(np.isin(first, (*DYNAMIC, *LEVELS)) & is_few.any(axis=1)), first, 0)


def is_weighed(ops: NDArray[np.int64], sums: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [B]: rows of `ops` [B, S] that are read before it is known what has to be looked at, or may be.

    These have a temperature by sums of the row, or another filter behind a threshold by them, or a typical: by sums of
    the row or not, it takes more registers than other filters.
    """
    behind = np.cumsum(ops == sums[:, None], axis=1) - (ops == sums[:, None]) > 0
    cuts = (behind & (ops >= FIRST_FILTER) & (ops != TEMPERATURE)).any(axis=1)
    return np.isin(sums, DYNAMIC) | np.isin(ops, LEVELS).any(axis=1) | ((sums > 0) & cuts)


def is_behind(programs: NDArray[np.int64], sums: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [B]: rows of `programs` [B, S, 6] that may be read for the sums of a set which other filters cut: that of
    their first eta or p-less, where no step before it leaves few tokens, or is a top-h."""
    ops = programs[:, :, 0]
    before = np.isin(sums, (ETA, P_LESS))[:, None] & (np.cumsum(ops == sums[:, None], axis=1) == 0)
    is_listed = (before & (_leaves_few(programs) | (ops == TOP_H))).any(axis=1)
    return (before & np.isin(ops, CUTS)).any(axis=1) & ~is_listed


def _leaves_few(programs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [B, S]: the steps of `programs` [B, S, 6] that leave few tokens, which are listed."""
    return (programs[:, :, 0] == TOP_K) & (programs[:, :, 1] <= FEW)


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
    filters but for a temperature, as others behind it would need sums of both of its sets, and a top-p that cuts a
    weight is the last of all.
    """
    ops = programs[:, :, 0]
    dynamic = np.isin(ops, DYNAMIC).sum(axis=1)
    alone = (dynamic == 1) & ~(ops == TEMPERATURE).any(axis=1) & _knows_listed(ops)
    able = np.where(dynamic > 0, alone, has_two_temperatures(programs))
    # The kernels keep a bit for each step, which only filters need.
    able &= (ops[:, 31:] < FIRST_FILTER).all(axis=1)
    return able & _ends_with_xtc(programs) & _ends_truncated(programs) & _knows_levels(programs)


def _knows_levels(programs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [B]: rows of `programs` [B, S, 6] without a typical, or with one whose set is the row, or is listed.

    Behind one of the row there is no other filter; behind a listed one there are only such as need no sums, nor the
    mass of another set.
    """
    ops = programs[:, :, 0]
    is_level, is_filter = np.isin(ops, LEVELS), ops >= FIRST_FILTER
    behind = np.cumsum(is_level, axis=1) - is_level > 0
    first = np.argmax(is_filter, axis=1)[:, None]
    is_begun = is_filter & (np.arange(ops.shape[1]) == first) & (ops == TEMPERATURE)
    is_alone = ~(is_filter & ~is_begun & ~is_level).any(axis=1)
    is_few = (np.cumsum(_leaves_few(programs), axis=1) > 0) | ~is_level
    is_joint = (ops == TOP_P) & (programs[:, :, 4] > 0)
    is_able = np.isin(ops, _BEHIND_LEVELS) & ~is_joint
    is_last = ~(is_filter & behind & ~is_able).any(axis=1) & ~np.isin(ops, DYNAMIC).any(axis=1)
    return ~is_level.any(axis=1) | ((is_level.sum(axis=1) == 1) & (is_alone | (is_few.all(axis=1) & is_last)))


def _ends_with_xtc(programs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [B]: rows of `programs` [B, S, 6] without XTC, or with one behind all others, none of which cut a weight.

    A temperature may stand behind it.
    """
    ops = programs[:, :, 0]
    is_xtc = np.isin(ops, COINS)
    last = _last((ops >= FIRST_FILTER) & (ops != TEMPERATURE))
    is_last = (is_xtc.sum(axis=1) == 1) & is_xtc[np.arange(len(programs)), last]
    return ~is_xtc.any(axis=1) | (is_last & ~_truncates(programs).any(axis=1))


def _ends_truncated(programs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [B]: rows of `programs` [B, S, 6] in which no filter stands behind one that cuts a weight."""
    truncates = _truncates(programs)
    truncates[np.arange(len(programs)), _last(programs[:, :, 0] >= FIRST_FILTER)] = False
    return np.logical_not(truncates.any(axis=1))


def _truncates(programs: NDArray[np.int64]) -> NDArray[np.bool_]:
    """bool [B, S]: the steps of `programs` [B, S, 6] that cut a weight."""
    is_top_p = np.isin(programs[:, :, 0], (TOP_P, FLOORED[TOP_P]))
    return is_top_p & (programs[:, :, 2] == RULES.index("truncated"))


def _last(which: NDArray[np.bool_]) -> NDArray[np.int64]:
    """int64 [B]: where the last of `which` [B, S] stands, the last step if there is none."""
    return which.shape[1] - 1 - np.argmax(which[:, ::-1], axis=1)


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


def metadata_of(
    meta: NDArray[np.int64],
    chances: NDArray[np.float64] | None = None,
    spared: NDArray[np.bool_] | None = None,
) -> SamplingMetadata:
    """The rows of a plan's `meta` int64 [B, columns] as SamplingMetadata, without edits, masks, views or records.

    Where there are `chances` [B], a draw of them writes there what it leaves in those of SamplingMetadata. `spared`
    [B, V] are the tokens that XTC never removes, None for none.
    """
    count = meta.shape[0]
    none, starts = np.zeros(0, np.int32), np.zeros(count + 1, np.int64)
    flags = np.zeros((count, 0), bool) if spared is None else spared
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
        protected_start=np.concatenate([[0], np.cumsum(flags.sum(1))]).astype(np.int64),
        protected_ids=np.nonzero(flags)[1].astype(np.int32),
        chances=chances,
    )
