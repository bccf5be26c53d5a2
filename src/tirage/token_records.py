"""What rows record beside their tokens: the ids that could have been drawn, and the logprobs of the one that was.

Every path that draws a row leaves its record here, in NumPy, whatever library the logits belong to. SPEC.md S-R.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

_NO_IDS = np.zeros(0, np.int32)


@dataclass(slots=True, eq=False)
class TokenRecords:
    """The records of B rows while they are drawn.

    `limits` int64 [B]: most ids that the record of a row may hold, 0 for a row that asks for none; `widest` is the
    largest of them. Filled in by the draw, and left empty or NaN for rows without a token: `kept`, the ids int32 [n] of
    each row, ascending, and `numbers` float32 [3, B]. These are `logmass`, ln of the share of the mass that the ids
    hold, and `raw` and `processed`, the logprobs of the drawn token in these views.
    """

    limits: NDArray[np.int64]
    widest: int
    numbers: NDArray[np.float32]
    _kept: list[NDArray[np.int32]] | None = field(default=None, init=False)
    _joined: tuple[NDArray[np.int32], NDArray[np.int64]] | None = field(default=None, init=False)

    @classmethod
    def of(cls, limits: NDArray[np.int64]) -> TokenRecords:
        """Empty records of rows with these `limits` int64 [B]."""
        return cls(limits, int(limits.max(initial=0)), _blank(limits.size))

    def anew(self) -> TokenRecords:
        """Empty records of the same rows."""
        return TokenRecords(self.limits, self.widest, _blank(self.limits.size))

    @property
    def kept(self) -> list[NDArray[np.int32]]:
        """The ids int32 [n] of each row, ascending."""
        if self._kept is None and self._joined is None:
            self._kept = [_NO_IDS] * self.limits.size
        elif self._kept is None and self._joined is not None:
            ids, offsets = self._joined
            self._kept = [ids[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]
        assert self._kept is not None
        return self._kept

    @property
    def logmass(self) -> NDArray[np.float32]:
        """ln of the share of the mass that the kept ids of each row hold, float32 [B]."""
        return self.numbers[0]

    @property
    def raw(self) -> NDArray[np.float32]:
        """The logprob of each row's token in the raw view, float32 [B]."""
        return self.numbers[1]

    @property
    def processed(self) -> NDArray[np.float32]:
        """The logprob of each row's token in the processed view, float32 [B]."""
        return self.numbers[2]

    def put(
        self, row: int, *, kept: NDArray[np.int32], logmass: np.float32, raw: np.float32, processed: np.float32
    ) -> None:
        """Leaves the record of a row: `kept` int32 [n] ascending, and its numbers."""
        self.kept[row] = kept
        self._joined = None
        self.numbers[:, row] = logmass, raw, processed

    def take(self, ids: NDArray[np.int32], offsets: NDArray[np.int64]) -> None:
        """Takes over the ids of all rows, int32 [N], those of row r from `offsets[r]` to `offsets[r + 1]`."""
        self._kept, self._joined = None, (ids, offsets)

    def fill(self, rows: NDArray[np.int64], some: TokenRecords) -> None:
        """Takes over the records of `some`, drawn for the rows `rows` [n] alone."""
        kept, self._joined = self.kept, None
        for row, ids in zip(rows.tolist(), some.kept, strict=True):
            kept[row] = ids
        self.numbers[:, rows] = some.numbers

    def taken(self, rows: NDArray[np.int64]) -> TokenRecords:
        """Empty records of the rows `rows` [n] alone, with their limits."""
        return TokenRecords.of(self.limits[rows])

    @property
    def ids(self) -> NDArray[np.int32]:
        """The ids of all rows, one row after the other, int32 [N]."""
        if self._joined is not None:
            return self._joined[0]
        return np.concatenate(self.kept) if self.kept else _NO_IDS

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the ids of each row begin, and where the last end: int64 [B + 1]."""
        if self._joined is not None:
            return self._joined[1]
        sizes = np.fromiter((ids.size for ids in self.kept), np.int64, len(self.kept))
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])


def _blank(rows: int) -> NDArray[np.float32]:
    numbers = np.empty((3, rows), np.float32)
    numbers.fill(np.nan)
    return numbers
