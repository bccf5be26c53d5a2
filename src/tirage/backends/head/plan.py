"""What rows need to know of their logits, from the first filter of their programs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.backends.groups import Ids
from tirage.backends.torch import edits, filters
from tirage.exact import numbers
from tirage.operators import FIRST_FILTER, OPERATIONS, Operation
from tirage.operators.min_p import MIN_P
from tirage.operators.temperature import GREEDY, TEMPERATURE
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import RULES, TOP_P
from tirage.sampling_metadata import SamplingMetadata

MOST_RUNNING = 1024
"""Up to this k the highest tokens are kept while the blocks are read."""
_TRUNCATED = RULES.index("truncated")


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rows `which` [G] of one list of operations, whose filters begin at column `start` of their `programs` [G, S, 6].

    `first` is their first filter behind the temperature, with its operands [G, 5], or None. `c` and `inverse_t`
    float32 [G] are the temperature's. `most`: how many of the highest tokens are enough for the first filter, 0 where
    that is not known beforehand.
    """

    which: Ids
    programs: NDArray[np.int64]
    start: int
    first: Operation | None
    operands: NDArray[np.int64]
    c: NDArray[np.float32]
    inverse_t: NDArray[np.float32]
    most: int

    def of(self, rows: Ids) -> Plan:
        """The plan of some of its rows."""
        return Plan(
            which=self.which[rows],
            programs=self.programs[rows],
            start=self.start,
            first=self.first,
            operands=self.operands[rows],
            c=self.c[rows],
            inverse_t=self.inverse_t[rows],
            most=self.most,
        )

    def programs_of_candidates(self) -> NDArray[np.int64]:
        """The programs int64 [G, S, 6] for rows cut down to what the first filter keeps, or a little more.

        Top-p is left out, as its mass is that of the whole row; the others cut the same again.
        """
        kept = self.programs[:, self.start :]
        if self.first == TOP_P:
            kept = np.delete(kept, np.flatnonzero(kept[0, :, 0] == TOP_P)[0], axis=1)
        return np.ascontiguousarray(np.concatenate([kept, np.zeros_like(self.programs[:, :1])], axis=1))


def plan(rows: SamplingMetadata, group: Ids) -> Plan | None:
    """The plan of the rows `group` [G], which run one list of operations; None where they need their whole logits."""
    programs = rows.programs[group]
    ops = [OPERATIONS[op] for op in programs[0, :, 0].tolist() if op]
    start = sum(op < FIRST_FILTER for op in ops)
    at = start + (ops[start : start + 1] == [TEMPERATURE])
    first = ops[at] if at < len(ops) else None
    operands = programs[:, min(at, programs.shape[1] - 1), 1:]
    recorded = rows.records is not None and rows.records.limits[group].any()
    if recorded or rows.views[group].any() or rows.resample[group].any():
        return None
    # Operations that tensors do not run may look at more than the candidates, as at tokens that are forbidden.
    if not set(ops) <= {*edits.STEPS, *filters.STEPS}:
        return None
    if not _can_be_cut(first, operands) or _looks_back(programs, at):
        return None
    heat = programs[:, start, 1:3] if at > start else np.tile(_UNIT, (len(group), 1))
    c, inverse_t = (heat[:, k].astype(np.int32).view(np.float32) for k in (0, 1))
    return Plan(
        which=group,
        programs=programs,
        start=start,
        first=first,
        operands=operands,
        c=c,
        inverse_t=inverse_t,
        most=_most(first, operands),
    )


_UNIT = np.array([numbers.bits(numbers.temperature_constant(1.0)), numbers.bits(np.float32(1.0))], np.int64)
"""The operands of T = 1."""


def _can_be_cut(first: Operation | None, operands: NDArray[np.int64]) -> bool:
    """Whether what the first filter keeps follows from thresholds."""
    if first == TOP_P:
        return not (operands[:, 1] == _TRUNCATED).any()
    return first is None or first in (GREEDY, TOP_K, MIN_P)


def _looks_back(programs: NDArray[np.int64], at: int) -> bool:
    """Whether a filter behind the first judges the tokens that the first removed: top-p of joint scope."""
    later = programs[:, at + 1 :]
    return bool(((later[:, :, 0] == TOP_P) & (later[:, :, 4] > 0)).any())


def _most(first: Operation | None, operands: NDArray[np.int64]) -> int:
    if first == GREEDY:
        return 1
    if first == TOP_K and not operands[:, 1].any() and operands[:, 0].max() <= MOST_RUNNING:
        return int(operands[:, 0].max())
    return 0
