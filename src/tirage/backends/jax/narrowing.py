"""Rows whose top-k is data, and small: the program that draws them from their candidates alone.

A program whose top-k is known keeps only so many columns. In a batch k is an array, and a row may have none, so that a
trace holds two ways: the one for any row, and one without the filters that the rows at hand do not have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import Array

from tirage.backends.jax.program import TracedProgram, TracedStage
from tirage.operators import FIRST_FILTER
from tirage.operators.min_p import MIN_P
from tirage.operators.temperature import GREEDY, TEMPERATURE
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import TOP_P

FEW, MOST = 64, 256
"""How many candidates are looked for: `FEW` where no k is larger, else `MOST`, beyond which all columns stay."""
_LONG = 4096
_UNCUT = frozenset({TEMPERATURE, GREEDY})


class Narrow(NamedTuple):
    """A program that a top-k leaves `MOST` columns at most, and whether it draws what the whole one does, bool []."""

    program: TracedProgram
    serves: Array


def narrow(program: TracedProgram, size: int) -> Narrow | None:
    """The Narrow of a program for rows of `size`; None where it has no top-k whose k is data, or rows are short."""
    stages = program.stages
    at = next((i for i, stage in enumerate(stages) if _is_cut(stage)), None)
    if at is None or program.widths[0] or size <= _LONG:
        return None
    held = [i for i, stage in enumerate(stages) if i == at or _is_held(stage, after=i > at)]
    # A greedy step is its row's last, and what it looks for is among any candidates.
    order = sorted(held, key=lambda i: (stages[i].op == GREEDY, i))
    has = _RowsWith(program)
    k = jnp.where(has.any([at]), program.columns[at]["k"], 1)
    some = replace(
        program,
        stages=tuple(stages[i] for i in order),
        columns=tuple({"k": k} if i == at else program.columns[i] for i in order),
        on=tuple(None if i == at else program.on[i] for i in order),
        widths=(MOST, program.widths[1]),
    )
    return Narrow(some, jnp.all(_served(stages, at, held, has) & (k <= MOST)))


def _served(stages: Sequence[TracedStage], at: int, held: list[int], has: _RowsWith) -> Array:
    """Which rows, bool [B], have none but the stages `held`, and a top-k, or no filter at all and are greedy."""
    other = [i for i, stage in enumerate(stages) if stage.op >= FIRST_FILTER and i not in held]
    cuts = [i for i in held if stages[i].op not in _UNCUT]
    greedy = [i for i in held if stages[i].op == GREEDY]
    served = (has.any([at]) | (has.any(greedy) & ~has.any(cuts))) & ~has.any(other)
    for i in greedy:
        served &= ~(has.any([i]) & has.any([j for j in cuts if j > i]))
    return served


def _is_cut(stage: TracedStage) -> bool:
    return stage.op == TOP_K and not stage.option("ties")


def _is_held(stage: TracedStage, *, after: bool) -> bool:
    """Whether the narrow program has a stage that stands before or after its top-k."""
    if stage.op == TOP_P:
        return after and not stage.option("joint")
    return stage.op in _UNCUT or (after and stage.op == MIN_P)


class _RowsWith:
    """Which rows have which stages of a program."""

    def __init__(self, program: TracedProgram) -> None:
        self._on: Sequence[Any] = program.on
        self._all = jnp.ones(jnp.asarray(program.views).shape, bool)

    def any(self, stages: Sequence[int]) -> Array:
        """bool [B]: rows that have at least one of the stages."""
        found = ~self._all
        for i in stages:
            found |= self._all if self._on[i] is None else jnp.asarray(self._on[i])
        return found
