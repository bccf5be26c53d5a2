"""Rows with a typical that passes over split blocks draw: programs around it, and shares at a token's bound."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from random_rows import FILTERS, rows_of

from tirage.backends.numpy import distribution
from tirage.backends.torch import as_logits, plan
from tirage.operators import Step
from tirage.operators.min_p import MIN_P
from tirage.operators.temperature import TEMPERATURE
from tirage.operators.top_k import TOP_K
from tirage.operators.typical import TYPICAL, TYPICAL_BY_RANK, most_typical
from tirage.params import SamplingParams

LEVELS = {
    "typical": SamplingParams(typical_p=0.9),
    "low typical": SamplingParams(typical_p=0.2, temperature=0.7),
    "typical by rank": SamplingParams(typical_p=0.9, top_k=40, semantics="llamacpp"),
    "typical behind others": SamplingParams(temperature=0.7, top_k=50, top_p=0.95, typical_p=0.9, semantics="hf"),
}
"""Requests whose typical passes draw, and of which the reads are counted."""


def programs_with_typical(
    logits: torch.Tensor, kind: int, r: np.random.Generator, *, far: Sequence[float]
) -> list[list[tuple[int, ...]]]:
    """A program for each row of logits [B, V] of one order of filters: a typical alone, or behind a top-k.

    Its mass mostly is that of the nearest tokens up to one. Some rows have a few logits far below all others, which are
    changed to some of `far`.
    """
    op, is_listed = (TYPICAL, TYPICAL_BY_RANK)[kind % 2], kind // 2 % 2 > 0
    before = [each for each in (TEMPERATURE, MIN_P, TOP_K) if is_listed and (each == TOP_K or r.random() < 0.3)]
    behind = [each for each in plan._BEHIND_LEVELS if is_listed and r.random() < 0.3]
    if not is_listed and r.random() < 0.5:
        before = [TEMPERATURE]
    programs = []
    for row in logits:
        size = row.numel()
        if r.random() < 0.2:
            row[r.choice(size, min(size, int(r.integers(1, 4))), replace=False)] = float(r.choice(far))
        begun = [(int(each), *FILTERS[each](r)) for each in before]
        share, exceed = FILTERS[op](r)
        if r.random() < 0.7:
            share = share_at_level(as_logits(row[None])[0].numpy(), begun, r) or share
        programs.append([*begun, (int(op), share, exceed), *((int(each), *FILTERS[each](r)) for each in behind)])
    return programs


def share_at_level(x: np.ndarray, begun: list[tuple[int, ...]], r: np.random.Generator) -> int:
    """What share of the mass, in 2^-32, the most typical tokens up to a random one have, or the next one up or down; 0
    where no token can be drawn."""
    given = distribution.request_of(x[None], rows_of([begun], r), 0)
    with np.errstate(all="ignore"):
        row = given.run(coin=False)
    if row.status:
        return 0
    first = most_typical(row, Step(TYPICAL, 1, 0))
    reached = np.cumsum(row.w()[first])
    share = (int(reached[r.integers(reached.size)]) << 32) // int(reached[-1]) + int(r.integers(-1, 2))
    return min(max(share, 1), (1 << 32) - 1)
