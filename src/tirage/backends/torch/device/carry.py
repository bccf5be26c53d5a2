"""What rows carry from token to token, Mirostat's mu or adaptive-p's mean, as a table on a device (SPEC.md S-C1, S-C2).

A draw notes its token and the state after it. When a token joins the row, `move` takes that state over where it is the
one that was drawn, and writes what follows from the state into the row's steps, so that draws read the steps alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.torch.plan import HEADER
from tirage.compiled_params import CompiledParams
from tirage.exact import numbers
from tirage.exact.logs import OCTAVE
from tirage.operators import Step
from tirage.operators.adaptive_p import ADAPTIVE_P, ONE
from tirage.operators.mirostat import LIMIT, LOG2E, MIROSTAT, MIROSTAT_V2
from tirage.sampling_batch import SamplingRow
from tirage.sampling_metadata import STEP_WIDTH

KIND, COLUMN, STATE, AIM, RATE, TOKEN, NEXT = range(7)
"""What the table holds of a row, int64: by what its state moves, or 0; the column of its numbers that follows from the
state, or 0; the state, what it is steered to and how fast, as bits of float64; the token drawn last, or -1; the state
after it."""
WIDTH = 7
BY_SURPRISE, BY_CHANCE = 1, 2
"""By what a state moves: how unlikely a token was, or the chance that it had before adaptive-p."""
STEERED = (MIROSTAT, MIROSTAT_V2, ADAPTIVE_P)
"""The steps whose first operand follows from the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarryForm:
    """How the state of a request moves: `kind`, `column`, `aim` and `rate` as the table holds them."""

    kind: int
    column: int
    aim: float
    rate: float

    @classmethod
    def of(cls, given: CompiledParams, steps: Sequence[Step]) -> CarryForm | None:
        """That of a request whose plan holds these steps, or None where it carries nothing."""
        if given.carrier is None:
            return None
        params = given.params
        is_mean = given.needs_chances
        aim, rate = (
            (params.adaptive_target, params.adaptive_decay) if is_mean else (params.mirostat_tau, params.mirostat_eta)
        )
        place = next((place for place, step in enumerate(steps) if step.op in STEERED), None)
        return cls(
            kind=BY_CHANCE if is_mean else BY_SURPRISE,
            # A greedy row has no such step, and carries its state all the same.
            column=0 if place is None else HEADER + STEP_WIDTH * place + 1,
            aim=float(numbers.f32(aim)),
            rate=float(numbers.f32(rate)),
        )


def blank_carry(*, carries: bool) -> NDArray[np.int64]:
    """The row of the table of a request that carries nothing: [WIDTH], or [0] where none does."""
    blank = np.zeros(WIDTH if carries else 0, np.int64)
    blank[TOKEN : TOKEN + 1] = -1
    return blank


def fill_carry(out: Mapping[str, NDArray[Any]], form: CarryForm, row: SamplingRow) -> None:
    """Writes what a request carries now into its row of tables, `carry` int64 [WIDTH] and `meta` int64 [columns]."""
    assert row.state is not None
    token, after = (-1, 0.0) if row.drawn is None else row.drawn
    bits = np.array([row.state, form.aim, form.rate, after]).view(np.int64)
    out["carry"][[KIND, COLUMN, TOKEN]] = form.kind, form.column, token
    out["carry"][[STATE, AIM, RATE, NEXT]] = bits
    if form.column:
        steps = row.compiled.filters_at(row.state)
        out["meta"][form.column] = next(step.a for step in steps if step.op in STEERED)


def states_of(carry: NDArray[np.int64]) -> list[tuple[float, tuple[int, float] | None]]:
    """The state of each row of a table [B, WIDTH], and the token drawn last with the state after it, or None."""
    floats = carry.view(np.float64)
    return [
        (float(values[STATE]), (int(row[TOKEN]), float(values[NEXT])) if row[TOKEN] >= 0 else None)
        for row, values in zip(carry, floats, strict=True)
    ]


def follow(carry: Tensor, token: Tensor, logprob: Tensor, chance: Tensor) -> Tensor:
    """The state float64 [B] of each row of `carry` [B, WIDTH] after its draw, noted there; NaN where it has none.

    `token` [B], `logprob` float32 [B] and `chance` float64 [B] are those of the draw; a row without a token keeps its
    state.
    """
    numbers_of = carry.view(torch.float64)
    state, aim, rate = (numbers_of[:, at] for at in (STATE, AIM, RATE))
    surprised = state - rate * (logprob.to(torch.float64) * -LOG2E - aim)
    seen = torch.where(chance.isnan(), state, chance * (1.0 - rate) + state * rate)
    after = torch.where(carry[:, KIND] == BY_CHANCE, seen, surprised)
    after = torch.where(token >= 0, after, state)
    carry[:, TOKEN] = token
    numbers_of[:, NEXT] = after
    return after.masked_fill(carry[:, KIND] == 0, torch.nan)


def move(carry: Tensor, meta: Tensor, token: Tensor, new: Tensor) -> None:
    """Moves the states of rows of `carry` [B, WIDTH] past tokens int64 [B] where they are `new` bool [B].

    What follows from a state is written into `meta` [B, columns].
    """
    numbers_of = carry.view(torch.float64)
    is_drawn = new & (carry[:, TOKEN] == token)
    numbers_of[:, STATE] = torch.where(is_drawn, numbers_of[:, NEXT], numbers_of[:, STATE])
    carry[:, TOKEN] = torch.where(new, -1, carry[:, TOKEN])
    steers = new & (carry[:, COLUMN] > 0)
    at = carry[:, COLUMN, None]
    meta.scatter_(1, at, torch.where(steers[:, None], _operand(carry)[:, None], meta.gather(1, at)))


def _operand(carry: Tensor) -> Tensor:
    """The operand int64 [B] of each row's step in its state."""
    numbers_of = carry.view(torch.float64)
    state, aim = numbers_of[:, STATE], numbers_of[:, AIM]
    mu = (state * float(OCTAVE)).clamp(-float(LIMIT), float(LIMIT)).floor()
    target = ((2.0 * aim - state).clamp(0.0, 1.0) * ONE).round()
    return torch.where(carry[:, KIND] == BY_CHANCE, target, mu).to(torch.int64)
