"""Rows with a top-h for the Triton kernels: programs around it, logits with many ties, shares at a token's bound."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from random_rows import FILTERS, rows_of, varied

from tirage.backends.numpy import distribution
from tirage.backends.torch import as_logits, plan
from tirage.exact.logs import OCTAVE, ilog2
from tirage.operators.temperature import GREEDY, TEMPERATURE
from tirage.operators.top_h import TOKENS, TOP_H
from tirage.operators.xtc import XTC, XTC_TIES_KEPT

Program = list[tuple[int, ...]]


def programs_with_top_h(logits: torch.Tensor, r: np.random.Generator, *, alone: bool) -> list[Program]:
    """A program for each row of logits [B, V], of one order of filters, and half of the rows changed to many ties.

    The share of top-h is mostly that up to one of the first tokens, or a little less or more. Unless it is `alone`,
    other filters stand before it and behind, an XTC at the end, and temperatures anywhere.
    """
    program: Program = [(int(TOP_H), 1)]
    while not alone and not _is_by_passes(program := _around_top_h(r)):
        pass
    at = next(place for place, step in enumerate(program) if step[0] == TOP_H)
    programs = []
    for row in logits:
        if r.random() < 0.5:
            row[:] = torch.from_numpy(_tied(r, row.numel())).to(row.dtype)
        before, (top_h, *behind) = (varied(part, r, options=True) for part in (program[:at], program[at:]))
        if r.random() < 0.7:
            share = _share_of_first(as_logits(row[None])[0].numpy(), before, r)
            top_h = (int(TOP_H), share or top_h[1])
        programs.append([*before, top_h, *behind])
    return programs


def _around_top_h(r: np.random.Generator) -> Program:
    """A random order of filters, a top-h among them."""
    ops = (*(op for op in plan.CUTS if op != TOP_H), TEMPERATURE, *plan.DYNAMIC)
    cuts = [tuple(ops[at] for at in r.permutation(len(ops))[: int(r.integers(3))]) for _ in range(2)]
    ends = ((), (), (XTC,), (XTC_TIES_KEPT,), (XTC, TEMPERATURE), (TEMPERATURE,), (GREEDY,))
    program = (*cuts[0], TOP_H, *cuts[1], *ends[int(r.integers(len(ends)))])
    return [(int(op), *(FILTERS[op](r) if op != GREEDY else ())) for op in program]


def _is_by_passes(program: Program) -> bool:
    """Whether passes over split blocks run a program of known filters."""
    return bool(plan.can_run(rows_of([program], np.random.default_rng(0)).programs).all())


def _tied(r: np.random.Generator, size: int) -> NDArray[np.float32]:
    """Logits [size] many of which are equal: all of them, those at the top, at a few levels, or on a grid."""
    n, kind = r.standard_normal(size), int(r.integers(5))
    top = np.where(np.arange(size) < r.choice([1, 2, 60, 99, 100, 101, 120]), 1.5, np.minimum(n, 1.4))
    plateaus = np.where(n > r.choice([0.0, 1.0]), 1.5, r.choice([0.5, -25.0]))
    few = r.choice(r.standard_normal(4) * r.choice([0.1, 3.0]), size)
    x = r.permutation((n * 0 + 0.25, top, plateaus, few, np.round(n * 8) / 8)[kind])
    if r.random() < 0.3:
        x[r.random(size) < r.choice([0.1, 0.7])] = r.choice([-np.inf, -100.0])
    return x.astype(np.float32)


def _share_of_first(x: np.ndarray, begun: Program, r: np.random.Generator) -> int:
    """What share of their entropy, in 2^-32, the first tokens up to one of them have, or a little less or more; 0 where
    no token can be drawn, or one is certain."""
    given = distribution.request_of(x[None], rows_of([begun], r), 0)
    with np.errstate(all="ignore"):
        row = given.run(coin=False)
    if row.status:
        return 0
    first = row.ranked()[:TOKENS]
    w = row.w()[first].tolist()
    log_mass = ilog2(max(sum(w), 1)) - 40 * OCTAVE
    reached = np.cumsum([a * (b + log_mass) for a, b in zip(w, row.q()[first].tolist(), strict=True)], dtype=object)
    share = (int(r.choice(reached)) << 32) // max(int(reached[-1]), 1) + int(r.integers(-1, 2))
    return min(max(share, 0), 1 << 32)
