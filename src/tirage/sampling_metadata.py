"""B rows as arrays: what every backend is given to draw from, and what it gives back.

A backend may be as fast as it likes, but it must agree bit for bit with `backends/numpy/plain.py` on every field.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.token_records import TokenRecords

STEP_WIDTH = 6
"""int64 columns of one step: the operation and its operands a..e."""


class View(IntEnum):
    """Which distribution `logprobs` describes: the model's own, the edited one, or the one drawn from."""

    NONE = 0
    RAW = 1
    PROCESSED = 2
    SAMPLED = 3


MAX_VOCAB = 1 << 20
"""Largest vocabulary: above it the integer sums could leave 64 bits (S-N6)."""


@dataclass(slots=True, kw_only=True, eq=False)
class SamplingMetadata:
    """B rows ready to be drawn: steps, tables and keys of the randomness, as plain arrays.

    `programs` int64 [B, S, 6]: steps as (op, a, b, c, d, e), ended by op 0. `edit_ids` int32 [E] and
    `edit_values` float32 [E]: what steps that list ids refer to (operands are absolute positions). Sparse counts of
    row r are columns `count_start[r] : count_start[r + 1]` of `count_ids`, `prompt_counts`, `output_counts`.
    `masks` int32 [B, ceil(V / 32)], least significant bit first, 1 = allowed, or shape (0, 0) when no row has one.
    `seeds`, `steps`, `samples` int64 [B] key the uniforms (S-W7). `views` int8 [B] holds View codes, `top_n`
    int32 [B] how many top entries a row asks for; the ids whose logprobs row r asks for are
    `asked_ids[asked_start[r] : asked_start[r + 1]]`. `protected_ids` (with `protected_start`) survive XTC.
    `checks` int32 [B, ceil(V / 32)] or (0, 0): where `resample` bool [B] is set, a mask that counts only when the
    token drawn without it is not allowed. `memo` is for what a backend works out from programs, views and masks; it
    is emptied when they change. `records` is where rows that ask for it leave their record; None when none does.
    `chances` float64 [B] is where rows with adaptive-p leave the chance of their token before it (S-O15), or None.
    """

    programs: NDArray[np.int64]
    edit_ids: NDArray[np.int32]
    edit_values: NDArray[np.float32]
    count_start: NDArray[np.int64]
    count_ids: NDArray[np.int32]
    prompt_counts: NDArray[np.int32]
    output_counts: NDArray[np.int32]
    masks: NDArray[np.int32]
    seeds: NDArray[np.int64]
    steps: NDArray[np.int64]
    samples: NDArray[np.int64]
    views: NDArray[np.int8]
    top_n: NDArray[np.int32]
    asked_start: NDArray[np.int64]
    asked_ids: NDArray[np.int32]
    protected_start: NDArray[np.int64]
    protected_ids: NDArray[np.int32]
    checks: NDArray[np.int32]
    resample: NDArray[np.bool_]
    memo: dict[str, Any] = field(default_factory=dict)
    records: TokenRecords | None = None
    chances: NDArray[np.float64] | None = None

    @property
    def count(self) -> int:
        """B."""
        return self.programs.shape[0]

    def take_back(self, which: NDArray[np.int64], part: SamplingMetadata) -> None:
        """Takes over what `part`, the rows `which` [n] alone, recorded while they were drawn."""
        if self.records is not None and part.records is not None:
            self.records.fill(which, part.records)
        if self.chances is not None and part.chances is not None:
            self.chances[which] = part.chances

    @property
    def recorded(self) -> NDArray[np.int64]:
        """int64 [n]: the rows that ask for a record."""
        return np.zeros(0, np.int64) if self.records is None else np.flatnonzero(self.records.limits)

    @property
    def wants_logprobs(self) -> bool:
        """True when some row has a view."""
        return bool(self.views.any())


@dataclass(slots=True, eq=False)
class Drawn:
    """What drawing B rows gives: plain arrays, with sentinels where a row asked for nothing.

    `token_ids` int64 [B] (-1 for a bad row), `sampled_logprobs` float32 [B] (NaN for a bad row), `support` int64 [B],
    `status` int8 [B] (0 ok, 1 non-finite logits, 2 no allowed token). In each row's view: `logprobs` float32 [B] and
    `ranks` int64 [B] of the drawn token, `top_ids` int64 [B, N] (-1 beyond) and `top_logprobs` float32 [B, N]
    (-inf beyond) in (key descending, id ascending) order, `asked_logprobs` float32 [A], one per asked id.
    Rows without a view hold NaN, 0, -1, -inf, NaN there; bad rows NaN, 0, -1, NaN, NaN.
    """

    token_ids: NDArray[np.int64]
    sampled_logprobs: NDArray[np.float32]
    support: NDArray[np.int64]
    status: NDArray[np.int8]
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int64]
    top_ids: NDArray[np.int64]
    top_logprobs: NDArray[np.float32]
    asked_logprobs: NDArray[np.float32]

    @classmethod
    def empty(cls, rows: SamplingMetadata, *, keep: bool = False) -> Drawn:
        """A Drawn of the right shapes, filled with the sentinels of rows that asked for nothing.

        With `keep`, rows without any view are given the same arrays for views each time: nothing but their sentinels
        may be written there, and they must not be handed out.
        """
        kept = rows.memo.get("empty") if keep else None
        if kept is None:
            kept = _empty(rows)
            if not keep or rows.wants_logprobs:
                return cls(*kept)
            rows.memo["empty"] = kept
        # Copies take half the time of arrays that are filled anew.
        tokens, sampled, support, status, *views = kept
        return cls(tokens.copy(), sampled.copy(), support.copy(), status.copy(), *views)

    def moved(self, move: Callable[[NDArray], Any], *, viewed: bool = True) -> Drawn:
        """This Drawn with its arrays passed through `move`, into another library or onto another device.

        Unless some row is `viewed`, logprobs, ranks and top entries hold sentinels only and stay where they are.
        """
        views: list[Any] = [self.logprobs, self.ranks, self.top_ids, self.top_logprobs, self.asked_logprobs]
        return Drawn(
            move(self.token_ids),
            move(self.sampled_logprobs),
            move(self.support),
            move(self.status),
            *(map(move, views) if viewed else views),
        )


def _empty(rows: SamplingMetadata) -> tuple[NDArray[Any], ...]:
    """The arrays of a Drawn, filled with sentinels."""
    b, n = rows.count, max(rows.top_n.tolist(), default=0)
    return (
        _filled(b, -1, np.int64),
        _filled(b, np.nan, np.float32),
        np.zeros(b, np.int64),
        np.zeros(b, np.int8),
        _filled(b, np.nan, np.float32),
        np.zeros(b, np.int64),
        _filled((b, n), -1, np.int64),
        _filled((b, n), -np.inf, np.float32),
        _filled(rows.asked_ids.size, np.nan, np.float32),
    )


def _filled(shape: int | tuple[int, int], value: float, dtype: type[np.generic]) -> NDArray[Any]:
    # What np.full does, without its wrapper: several of them were a sixth of a small draw.
    array = np.empty(shape, dtype)
    array.fill(value)
    return array
