"""Logits and steps for tail-free: shares of the curvature that stand at a token, and rows that have a head.

Imported by processes that run under TRITON_INTERPRET.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from random_rows import FILTERS, random_filters, rows_of, varied

from tirage.backends.numpy import distribution
from tirage.backends.torch import plan
from tirage.operators.adaptive_p import ADAPTIVE_P
from tirage.operators.temperature import TEMPERATURE
from tirage.operators.tfs import TFS
from tirage.operators.xtc import XTC


def clustered(r: np.random.Generator, size: int) -> NDArray[np.float32]:
    """Logits [size] most of which are near each other, at one place or a few, or lie on a grid, or fall off evenly."""
    n, kind = r.standard_normal(size), int(r.integers(6))
    few = r.choice(r.standard_normal(4) * r.choice([0.1, 3.0]), size)
    x = (few, few + n * 10.0 ** -r.integers(2, 8), np.round(n * 8) / 8, -30 * r.random(size))[min(kind, 3)]
    if kind == 4:
        x = -(10.0 ** (-7 * r.random(size)))
    elif kind == 5:
        x = np.where(r.random(size) < 0.5, 0.25, n)
    if r.random() < 0.3:
        x[r.random(size) < 0.1] = r.choice([-np.inf, -25.0, -28.0, -100.0])
    return x.astype(np.float32)


def falling(r: np.random.Generator, size: int) -> NDArray[np.float32]:
    """Logits [size] whose weights fall off by octaves: some tie, and some weigh nothing, or a few units."""
    n, kind = r.standard_normal(size) * r.choice([1.5, 3.0, 6.0]), int(r.integers(5))
    x = (n, np.round(n * 2) / 2, -3 * np.log(1 + r.permutation(size)), np.round(n / 3) * 3, n)[kind]
    if kind == 4:
        # Two dozen octaves and more below a few.
        x = np.where(r.random(size) < 0.02, x / 20, -16 - 12 * r.random(size))
    if r.random() < 0.3:
        x[r.random(size) < 0.1] = r.choice([-np.inf, -25.0, -28.0, -100.0])
    return x.astype(np.float32)


def around_tail(r: np.random.Generator, *, early: bool) -> tuple[list[tuple[int, ...]], list[tuple[int, ...]]]:
    """What may stand before a tail-free step, and behind it; before one whose rows are cut `early`, often an XTC."""
    kept = set(plan.SETS) - {ADAPTIVE_P, TFS}
    before = [] if r.random() < 0.5 else [(int(op), *FILTERS[op](r)) for op in FILTERS if op in kept]
    before = [before[int(r.integers(len(before)))]] if before else []
    if early and r.random() < 0.3:
        before = [(int(XTC), 1 << 32, *FILTERS[XTC](r)[1:])]
    return before, random_filters(r, kept, most=1) if r.random() < 0.3 else []


def program_with_tail(
    x: NDArray[np.float32],
    before: list[tuple[int, ...]],
    behind: list[tuple[int, ...]],
    r: np.random.Generator,
    *,
    early: bool,
) -> list[tuple[int, ...]]:
    """Steps of a row of logits [V] with a tail-free one whose share of the curvature is mostly that up to a rank.

    It is mostly that of one of the first ranks where the row is to be cut `early`.
    """
    begun = [(int(TEMPERATURE), *FILTERS[TEMPERATURE](r))] if r.random() < 0.5 - 0.3 * early else []
    begun += varied(before, r, options=True)
    share, scale = FILTERS[TFS](r)
    if r.random() < 0.8:
        share, scale = _share_at_rank(x, begun, r, early=early) or share, 32
    return [*begun, (int(TFS), share, scale), *varied(behind, r, options=True)]


def _share_at_rank(x: NDArray[np.float32], begun: list[tuple[int, ...]], r: np.random.Generator, *, early: bool) -> int:
    """What share of the curvature, in 2^-32, the weights up to a random rank have, or a little less or more; 0 where no
    token can be drawn or there is none."""
    given = distribution.request_of(x[None], rows_of([begun], r), 0)
    with np.errstate(all="ignore"):
        row = given.run(coin=False)
    if row.status or row.ids.size < 3:
        return 0
    reached = np.cumsum(np.abs(np.diff(row.w()[row.ranked()].astype(np.int64), n=2)))
    at = reached[int(reached.size * r.random() ** 4)] if early else r.choice(reached)
    share = -(-(int(at) << 32) // max(int(reached[-1]), 1)) + int(r.integers(-1, 2))
    return min(max(share, 0), (1 << 32) - 1)
