"""Rows without a filter: drawn by the masses of the blocks, then within one block (SPEC.md S-W5)."""

from __future__ import annotations

import torch
from torch import Tensor

from tirage.backends.head.passes import FirstReading, RowBlocks
from tirage.backends.head.plan import Plan
from tirage.backends.torch.eager import uniforms
from tirage.backends.torch.report import logprobs
from tirage.backends.torch.rule import exponents, floats, integers, weights
from tirage.backends.torch.state import logit_of
from tirage.exact.philox import Domain
from tirage.sampling_metadata import Drawn


def draw_weighed(out: Drawn, blocks: RowBlocks, plan: Plan, read: FirstReading) -> None:
    """Draws rows that keep every token; two readings, the second of the blocks that tokens were drawn from."""
    m, c = logit_of(read.first), floats(plan.c, read.first)
    masses = torch.zeros(read.tops.shape, dtype=torch.int64, device=m.device)
    support = torch.zeros(len(m), dtype=torch.int64, device=m.device)
    for block in blocks:
        w = weights(exponents(block.x, m, c))
        masses[block.at] = w.sum(1)
        support += (w > 0).sum(1)
    totals = masses.sum(0).tolist()
    goals = [u * total >> 64 for u, total in zip(uniforms(blocks.rows, Domain.DRAW), totals, strict=True)]
    where, rest = _located(masses, integers(goals, masses))
    token, x = torch.zeros_like(rest), torch.zeros_like(m)
    for at in where.unique().tolist():
        block, mine = blocks.block(at), torch.nonzero(where == at)[:, 0]
        reached = weights(exponents(block.x, m, c))[mine].cumsum(1)
        column = torch.searchsorted(reached, rest[mine, None], right=True)
        token[mine], x[mine] = block.start + column[:, 0], block.x[mine].gather(1, column)[:, 0]
    at = integers(plan.which, masses)
    results: dict[str, Tensor] = {
        "token_ids": token,
        "sampled_logprobs": logprobs(x[:, None], m, floats(plan.inverse_t, m), totals)[:, 0],
        "support": support,
    }
    for name, values in results.items():
        getattr(out, name)[at] = values


def _located(masses: Tensor, goal: Tensor) -> tuple[Tensor, Tensor]:
    """(the block whose running mass first exceeds a goal, what of the goal is left there), int64 [G].

    `masses` int64 [blocks, G], `goal` int64 [G] below their sums.
    """
    reached = masses.T.cumsum(1).contiguous()
    where = torch.searchsorted(reached, goal[:, None], right=True)
    before = reached.gather(1, where) - masses.T.gather(1, where)
    return where[:, 0], goal - before[:, 0]
