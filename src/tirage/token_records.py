"""What rows record beside their tokens: the ids that could have been drawn, and the logprobs of the one that was.

Every path that draws a row leaves its record here, in NumPy, whatever library the logits belong to. SPEC.md S-R.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_NO_IDS = np.zeros(0, np.int32)


@dataclass(slots=True, eq=False)
class TokenRecords:
    """The records of B rows while they are drawn.

    `limits` int64 [B]: most ids that the record of a row may hold, 0 for a row that asks for none. Filled in by the
    draw, and left empty or NaN for rows without a token: `kept`, the ids int32 [n] of each row, ascending; `logmass`
    float32 [B], ln of the share of the mass that they hold; `raw` and `processed` float32 [B], the logprobs of the
    drawn token in these views.
    """

    limits: NDArray[np.int64]
    kept: list[NDArray[np.int32]]
    logmass: NDArray[np.float32]
    raw: NDArray[np.float32]
    processed: NDArray[np.float32]

    @classmethod
    def of(cls, limits: NDArray[np.int64]) -> TokenRecords:
        """Empty records of rows with these `limits` int64 [B]."""
        blank = (np.full(limits.size, np.nan, np.float32) for _ in range(3))
        return cls(limits, [_NO_IDS] * limits.size, *blank)

    def put(
        self, row: int, *, kept: NDArray[np.int32], logmass: np.float32, raw: np.float32, processed: np.float32
    ) -> None:
        """Leaves the record of a row: `kept` int32 [n] ascending, and its numbers."""
        self.kept[row] = kept
        self.logmass[row], self.raw[row], self.processed[row] = logmass, raw, processed

    def fill(self, rows: NDArray[np.int64], some: TokenRecords) -> None:
        """Takes over the records of `some`, drawn for the rows `rows` [n] alone."""
        for at, row in enumerate(rows.tolist()):
            self.kept[row] = some.kept[at]
        for name in ("logmass", "raw", "processed"):
            getattr(self, name)[rows] = getattr(some, name)

    def taken(self, rows: NDArray[np.int64]) -> TokenRecords:
        """Empty records of the rows `rows` [n] alone, with their limits."""
        return TokenRecords.of(self.limits[rows])

    @property
    def ids(self) -> NDArray[np.int32]:
        """The ids of all rows, one row after the other, int32 [N]."""
        return np.concatenate(self.kept) if self.kept else _NO_IDS

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where the ids of each row begin, and where the last end: int64 [B + 1]."""
        return np.cumsum([0, *(ids.size for ids in self.kept)], dtype=np.int64)
