"""Masks and edits on tensors: the logits that filters see, and which rows hold NaN or +inf (S-N5, S-N7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.groups import Ids, ranges
from tirage.backends.torch.rule import FLT_MAX, clamped, cleaned, floats, integers, keys, smoothed
from tirage.exact.keys import NEG_INF_KEY, POS_INF_KEY
from tirage.operators import FIRST_FILTER, OPERATIONS, Operation
from tirage.operators.frequency import FREQUENCY
from tirage.operators.logit_bias import ADD
from tirage.operators.masks import BAN
from tirage.operators.presence import PRESENCE
from tirage.operators.repetition import REPETITION
from tirage.operators.scale import SCALE
from tirage.operators.smoothing import SMOOTH
from tirage.sampling_metadata import SamplingMetadata


@dataclass(slots=True)
class EditedLogits:
    """Logits float32 [G, N] on their way through the edits, and the rows that are not finite, `bad` bool [G].

    `owned` says that `x` is a private copy. Finiteness is judged when the hard masks are done and before anything else
    changes a logit, so an edit looks at what it overwrites; who reads the finished logits looks at the rest.
    """

    x: Tensor
    bad: Tensor
    owned: bool = False

    def own(self) -> Tensor:
        """The logits [G, N], safe to write to."""
        if not self.owned:
            self.x, self.owned = self.x.clone(), True
        return self.x

    def write(self, rows: Tensor, ids: Tensor, change: Callable[[Tensor], Tensor]) -> None:
        """Change the tokens `ids` of `rows`, int64 [n] each; `change` takes and returns float32 [n]; -inf stays."""
        x = self.own()
        old = x[rows, ids]
        self.bad[rows[not_finite(keys(old))]] = True
        x[rows, ids] = torch.where(keys(old) == NEG_INF_KEY, old, clamped(change(cleaned(old))))


def not_finite(key: Tensor) -> Tensor:
    """Where an int32 key is that of +inf or of a NaN of either sign, bool, same shape."""
    return (key >= POS_INF_KEY) | (key < NEG_INF_KEY)


def edited(logits: Tensor, rows: SamplingMetadata, smooths: NDArray[np.bool_] | None = None) -> EditedLogits:
    """float32 `logits` [B, N] after the masks and edits of `rows`; they are not changed themselves.

    Token ids in `rows` count columns; every operation of `rows` that is an edit must be in `STEPS`, or smoothing, which
    is left to what comes after but for the rows that `smooths` bool [B] names.
    """
    state = EditedLogits(logits, torch.zeros(rows.count, dtype=torch.bool, device=logits.device))
    if rows.masks.size:
        state.x, state.owned = torch.where(unpacked(rows.masks, logits), logits, -torch.inf), True
    for s in range(rows.programs.shape[1]):
        ops = rows.programs[:, s, 0]
        for op in np.unique(ops[(ops > 0) & (ops < FIRST_FILTER) & (ops != SMOOTH)]).tolist():
            at = np.flatnonzero(ops == op)
            STEPS[OPERATIONS[op]](state, rows, at, rows.programs[at, s, 1:])
        if smooths is not None and (smooths & (ops == SMOOTH)).any():
            at = np.flatnonzero(smooths & (ops == SMOOTH))
            _smooth(state, at, rows.programs[at, s, 1:])
    return state


def unpacked(masks: NDArray[np.int32], like: Tensor) -> Tensor:
    """Bitmasks int32 [B, ceil(N / 32)], least significant bit first, as bool [B, N] like `like` [B, N]."""
    words = torch.from_numpy(masks).to(like.device)
    bits = (words[:, :, None] >> torch.arange(32, dtype=torch.int32, device=like.device)) & 1
    return bits.flatten(1)[:, : like.shape[1]] != 0


# --- the edits: `a` [n, 5] are the operands of one step for the rows `at` [n] ---------------------------------------


def _ban(state: EditedLogits, rows: SamplingMetadata, at: Ids, a: Ids) -> None:
    row, position = ranges(a[:, 0], a[:, 1])
    state.own()[integers(at[row], state.x), integers(rows.edit_ids[position], state.x)] = -torch.inf


def _add(state: EditedLogits, rows: SamplingMetadata, at: Ids, a: Ids) -> None:
    row, position = ranges(a[:, 0], a[:, 1])
    added = floats(rows.edit_values[position], state.x)
    state.write(integers(at[row], state.x), integers(rows.edit_ids[position], state.x), lambda v: v + added)


def _seen(state: EditedLogits, rows: SamplingMetadata, at: Ids, scope: Ids) -> tuple[Ids, Tensor, Tensor, Tensor]:
    """Tokens that a penalty touches: the entry of `at` they belong to, their rows, ids, and counts as float32."""
    row, position = ranges(rows.count_start[at], rows.count_start[at + 1])
    n = rows.prompt_counts[position] * (scope[row] != 1) + rows.output_counts[position] * (scope[row] != 2)
    row, position, n = row[n > 0], position[n > 0], n[n > 0]
    return row, integers(at[row], state.x), integers(rows.count_ids[position], state.x), floats(n, state.x)


def _bits(column: Ids, row: Ids, like: Tensor) -> Tensor:
    """A step's float32 operand for each touched token."""
    return floats(column[row].astype(np.int32).view(np.float32), like)


def _repetition(state: EditedLogits, rows: SamplingMetadata, at: Ids, a: Ids) -> None:
    row, rows_, ids, _ = _seen(state, rows, at, a[:, 0])
    r, inverse = _bits(a[:, 1], row, state.x), _bits(a[:, 2], row, state.x)
    state.write(rows_, ids, lambda v: (v * torch.where(keys(v) > 0, inverse, r)).clamp(max=FLT_MAX))


def _frequency(state: EditedLogits, rows: SamplingMetadata, at: Ids, a: Ids) -> None:
    row, rows_, ids, n = _seen(state, rows, at, a[:, 0])
    penalty = _bits(a[:, 1], row, state.x)
    state.write(rows_, ids, lambda v: v - (penalty * n).clamp(max=FLT_MAX))


def _presence(state: EditedLogits, rows: SamplingMetadata, at: Ids, a: Ids) -> None:
    row, rows_, ids, _ = _seen(state, rows, at, a[:, 0])
    penalty = _bits(a[:, 1], row, state.x)
    state.write(rows_, ids, lambda v: v - penalty)


def _scale(state: EditedLogits, rows: SamplingMetadata, at: Ids, a: Ids) -> None:
    touched = integers(at, state.x)
    old = state.own()[touched]
    state.bad[touched] |= not_finite(keys(old)).any(1)
    factor = _bits(a[:, 0], np.arange(at.size), state.x)
    scaled = clamped((cleaned(old) * factor[:, None]).clamp(max=FLT_MAX))
    state.x[touched] = torch.where(keys(old) == NEG_INF_KEY, old, scaled)


def _smooth(state: EditedLogits, at: Ids, a: Ids) -> None:
    touched = integers(at, state.x)
    old = state.own()[touched]
    state.bad[touched] |= not_finite(keys(old)).any(1)
    square, cube = (_bits(a[:, which], np.arange(at.size), state.x)[:, None] for which in (0, 1))
    state.x[touched] = smoothed(old, square, cube)


STEPS: dict[Operation, Callable[[EditedLogits, SamplingMetadata, Ids, Ids], None]] = {
    BAN: _ban,
    ADD: _add,
    REPETITION: _repetition,
    FREQUENCY: _frequency,
    PRESENCE: _presence,
    SCALE: _scale,
}
"""Every edit that tensors can run; rows with any other are drawn on the host."""
