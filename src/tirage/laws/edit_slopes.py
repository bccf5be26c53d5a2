"""How edits move logits with the model's own, in float64: the first half of a law's slope (SPEC.md S-R5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy.distribution import RowInput
from tirage.errors import ParamsError
from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX
from tirage.operators import Operation, Step
from tirage.operators.frequency import FREQUENCY
from tirage.operators.logit_bias import ADD
from tirage.operators.masks import BAN
from tirage.operators.presence import PRESENCE
from tirage.operators.processors import PROCESS
from tirage.operators.repetition import REPETITION
from tirage.operators.row import RowState
from tirage.operators.scale import SCALE
from tirage.operators.smoothing import SMOOTH

Doubles = NDArray[np.float64]
Ids = NDArray[np.int64]


@dataclass(slots=True)
class RowSlopes:
    """Logits float64 [V] after edits, and by how much each changes with the model's own, float64 [V].

    After smoothing each also changes with the model's logit of the token `top`, by `by_top` float64 [V].
    """

    x: Doubles
    slope: Doubles
    top: int = -1
    by_top: Doubles | None = None

    def scale(self, ids: NDArray[np.integer], factor: Doubles | float) -> None:
        """Multiplies the logits of `ids` [n]."""
        self.x[ids] *= factor
        self.slope[ids] *= factor
        if self.by_top is not None:
            self.by_top[ids] *= factor

    def add(self, ids: NDArray[np.integer], values: Doubles | float) -> None:
        """Adds to the logits of `ids` [n]."""
        self.x[ids] += values

    def hold(self) -> None:
        """Holds the logits where those of a draw are held, in [-FLT_MAX, FLT_MAX]; one that is held moves no more."""
        beyond = np.flatnonzero(np.isfinite(self.x) & (np.abs(self.x) > FLT_MAX))
        self.x[beyond] = np.copysign(FLT_MAX, self.x[beyond])
        self.slope[beyond] = 0.0
        if self.by_top is not None:
            self.by_top[beyond] = 0.0

    def by_model(self, ids: Ids, by_edited: Doubles) -> tuple[Ids, Doubles]:
        """Slopes by the model's logits of something with the slopes float64 [n] by edited logits of `ids` [n].

        They belong to the ids that come with them: `ids`, and `top` where that is another one.
        """
        slopes = by_edited * self.slope[ids]
        if self.by_top is None:
            return ids, slopes
        at = np.flatnonzero(ids == self.top)
        if not at.size:
            ids, slopes, at = np.append(ids, self.top), np.append(slopes, 0.0), np.array([ids.size])
        slopes[at] += by_edited @ self.by_top[ids[: by_edited.size]]
        return ids, slopes


def _ban(edited: RowSlopes, row: RowState, step: Step) -> None:
    edited.x[row.edit_ids[step.a : step.b]] = -np.inf


def _add(edited: RowSlopes, row: RowState, step: Step) -> None:
    edited.add(row.edit_ids[step.a : step.b], row.edit_values[step.a : step.b].astype(np.float64))


def _repetition(edited: RowSlopes, row: RowState, step: Step) -> None:
    ids, _ = row.seen(step.a)
    r, inverse = float(numbers.from_bits(step.b)), float(numbers.from_bits(step.c))
    edited.scale(ids, np.where(edited.x[ids] > 0, inverse, r))


def _frequency(edited: RowSlopes, row: RowState, step: Step) -> None:
    ids, n = row.seen(step.a)
    edited.add(ids, -float(numbers.from_bits(step.b)) * n.astype(np.float64))


def _presence(edited: RowSlopes, row: RowState, step: Step) -> None:
    edited.add(row.seen(step.a)[0], -float(numbers.from_bits(step.b)))


def _scale(edited: RowSlopes, row: RowState, step: Step) -> None:
    edited.scale(np.arange(edited.x.size), float(numbers.from_bits(step.a)))


def _smooth(edited: RowSlopes, row: RowState, step: Step) -> None:
    square, cube = float(numbers.from_bits(step.a)), float(numbers.from_bits(step.b))
    edited.top = int(np.argmax(edited.x))
    d = np.where(np.isfinite(edited.x), edited.x[edited.top] - edited.x, 0.0)
    edited.x -= d * d * (square + cube * d) - d
    by_own = d * (2.0 * square + 3.0 * cube * d)
    edited.by_top = (1.0 - by_own) * edited.slope[edited.top]
    edited.slope *= by_own


SLOPES: dict[Operation, Callable[[RowSlopes, RowState, Step], None]] = {
    BAN: _ban,
    ADD: _add,
    REPETITION: _repetition,
    FREQUENCY: _frequency,
    PRESENCE: _presence,
    SCALE: _scale,
    SMOOTH: _smooth,
}
"""What each edit does to logits in float64 and to their slopes; rows with any other edit are refused."""


def check_steps(steps: Sequence[Step]) -> None:
    """Raises ParamsError for an edit whose slope is not known, such as a custom processor."""
    for step in steps:
        if not step.op.is_filter and step.op not in SLOPES:
            name = "logits_processors" if step.op == PROCESS else step.op.name
            raise ParamsError(
                f"{name} must be off in log_law, got it on; its slope is not known: change the logits before"
            )


def edited_logits(request: RowInput, logits: Doubles) -> RowSlopes:
    """The `logits` float64 [V] of a row after its edits and its mask."""
    row = RowState(
        x=request.logits, masked=_NO_MASK, counts=request.counts,
        edit_ids=request.edit_ids, edit_values=request.edit_values,
    )  # fmt: skip
    edited = RowSlopes(logits.copy(), np.ones(logits.size))
    if request.allowed is not None:
        edited.x[~request.allowed] = -np.inf
    for step in request.steps:
        if not step.op.is_filter:
            SLOPES[step.op](edited, row, step)
            edited.hold()
    return edited


_NO_MASK = np.zeros(0, bool)
