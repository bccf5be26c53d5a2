"""Many seeds from one, for rows that must not draw alike (S-S6)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.exact.philox import Domain, philox4x32

MOST = 1 << 20
_WORD = 0xFFFFFFFF


def seeds(base: int | np.integer[Any], n: int | np.integer[Any]) -> list[int]:
    """`n` different seeds in [0, 2^63) that follow from `base`, for `SamplingParams.seed`: one per row of a batch.

    Rows with one seed share their uniforms and so draw alike; rows with these do not. The same `base` gives the same
    seeds everywhere and always, and the first of many are those of few. `base` is any int64, `n` in [0, 2^20];
    anything else raises ParamsError. SPEC.md S-S6.
    """
    start = _integer(base, "base", -(1 << 63), (1 << 63) - 1)
    count = _integer(n, "n", 0, MOST)
    found = np.zeros(0, np.uint64)
    drawn = 0
    while found.size < count:
        more = count - found.size
        found = _distinct(np.concatenate([found, _block(start, drawn, drawn + more)]))
        drawn += more
    return found.tolist()


def _block(base: int, start: int, stop: int) -> NDArray[np.uint64]:
    steps = np.arange(start, stop, dtype=np.uint64)
    high, low, _, _ = philox4x32((steps, 0, int(Domain.SEED), 0), (base & _WORD, (base >> 32) & _WORD))
    return (high << 32 | low) >> 1


def _distinct(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`values` without those that came before, in their order."""
    _, first = np.unique(values, return_index=True)
    return values[np.sort(first)]


def _integer(value: Any, name: str, low: int, high: int) -> int:
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)) or not low <= value <= high:
        raise ParamsError(f"{name} must be an integer in [{low}, {high}], got {value!r}")
    return int(value)
