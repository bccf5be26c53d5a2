"""The filters over shards: each judges the whole vocabulary by a few integers that the shards exchange.

What each step means is written in `backends/numpy/plain.py` and in SPEC.md, rules S-O. Row scalars pass through
Python integers, the same on every shard, so all shards take the same way.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from tirage.backends.sharded.part import Operands, ShardState, column
from tirage.backends.sharded.places import BEYOND, NOWHERE, Ladder, best, level
from tirage.backends.torch.chain import (
    dynamic_factors,
    entropy_fraction,
    entropy_prefix,
    share,
    sigma_limit,
    top_p_goals,
    typical_goals,
    xtc_share,
)
from tirage.backends.torch.rule import (
    clamped,
    cleaned,
    exponents,
    floats,
    host,
    joined,
    keys,
    per_row,
    split_sum,
    values,
    weights,
)
from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX
from tirage.exact.weights import Q_LIMIT
from tirage.stages import FIRST_FILTER, Op

GATHERED = 200
"""Up to this k, gathering each shard's k best places costs fewer bytes than a search, and one round."""
FIRST = 64
"""Tokens among which top-p looks before it searches all: one round in place of thirteen where they suffice."""
_TOP_H_TOKENS = 100
_DISTANCE_BITS = 32
_FURTHEST = (1 << _DISTANCE_BITS) - 1


def run(part: ShardState, programs: Operands) -> ShardState:
    """`part` after every filter of `programs` [G, S, 6], whose rows share one list of operations."""
    for s, op in enumerate(programs[0, :, 0].tolist()):
        if op >= FIRST_FILTER:
            STEPS[Op(op)](part, programs[:, s, 1:])
    return part


def _float(a: Operands, at: int, part: ShardState) -> Tensor:
    return floats(a[:, at].astype(np.int32).view(np.float32), part.x)


def _greedy(part: ShardState, a: Operands) -> None:
    part.keep(part.place == best(part.comm, _standing(part), 1))
    part.greedy = True


def _standing(part: ShardState) -> Tensor:
    """Places of the tokens still in, NOWHERE for the others."""
    return torch.where(part.kept, part.place, NOWHERE)


def _temperature(part: ShardState, a: Operands) -> None:
    part.rebase(_float(a, 0, part), _float(a, 1, part))


def _dynamic_temperature(part: ShardState, a: Operands) -> None:
    """T between T min and T max by the entropy of the set: rule S-O9."""
    unit = torch.full_like(part.c, float(numbers.temperature_constant(1.0)))
    part.rebase(unit, torch.ones_like(unit))
    mean, (total, count) = part.mean(part.w(), part.kept.sum(1))
    c, inverse_t = dynamic_factors(a, per_row(entropy_fraction, mean, total, count, column(a, 3), column(a, 4)))
    part.rebase(floats(c, part.x), floats(inverse_t, part.x))


def _top_n_sigma(part: ShardState, a: Operands) -> None:
    """Keep x >= max - n * standard deviation, in row-relative fixed point: rule S-O6."""
    top = values(part.top())
    distance = cleaned((top[:, None] - part.x).clamp(max=float(FLT_MAX))).nan_to_num()
    bits = distance.view(torch.int32) * part.kept
    exponent = bits >> 23
    widest = part.comm.max(exponent.amax(1).to(torch.int64))
    # v = floor(d * 2^(29 - e)) from the bits of d: the significand, moved by how far d is below the widest.
    significand = ((bits & 0x7FFFFF) | 0x800000).to(torch.int64) << 6
    v = torch.where(bits == 0, 0, significand >> (widest[:, None] - exponent).clamp(0, 62))
    n, s1, high, low = part.comm.sum(torch.stack([part.kept.sum(1), v.sum(1), *split_sum(v * v)]))
    limits = per_row(sigma_limit, n.tolist(), s1.tolist(), joined(high, low), column(a, 0), column(a, 1))
    part.keep(v <= host(limits, v)[:, None])


def _top_k(part: ShardState, a: Operands) -> None:
    k = host(a[:, 0], part.place)
    if a[:, 0].max() <= GATHERED:
        cut = best(part.comm, _standing(part), int(a[:, 0].max())).gather(1, k[:, None] - 1)[:, 0]
    else:
        cut, _ = part.ladder().find(part.comm, part.kept.to(torch.int64), k)
    part.keep(_from(part, cut, a[:, 1]))


def _from(part: ShardState, cut: Tensor, ties: Operands) -> Tensor:
    """The tokens at or above a cut and, where `ties`, all that equal the one on it."""
    low = torch.where(host(ties, cut) > 0, level(cut), cut)
    return part.place >= low[:, None]


def _top_p(part: ShardState, a: Operands) -> None:
    w = part.w()
    judged = w
    if a[:, 3].any():
        judged = torch.where(host(a[:, 3], w)[:, None] > 0, weights(part.q) * part.base, w)
    goal = host(top_p_goals(a, part.mass(judged)[0]), w)
    cut, above = _among_first(part, goal) or part.ladder().find(part.comm, w, goal)
    if (a[:, 1] == 2).any():
        _trim(part, a, w, cut, goal - above)
    part.keep(_from(part, cut, a[:, 2]))


def _among_first(part: ShardState, goal: Tensor) -> tuple[Tensor, Tensor] | None:
    """What `Ladder.find` gives, if the row's first tokens reach the goal in every row that has any; else None."""
    first = best(part.comm, _standing(part), FIRST)
    reached = part.known(first)[1].cumsum(1)
    n = (reached < goal[:, None]).sum(1).masked_fill(first[:, 0] == NOWHERE, 0)
    # Every shard sees the same numbers here, so all of them take the same way.
    if bool((n == FIRST).any()):
        return None
    before = torch.nn.functional.pad(reached, (1, 0))
    return first.gather(1, n[:, None])[:, 0], before.gather(1, n[:, None])[:, 0]


def _trim(part: ShardState, a: Operands, w: Tensor, cut: Tensor, needed: Tensor) -> None:
    """Cut the weight of the last token of each truncated prefix to what the target still lacks."""
    if a[:, 3].any():
        # Under joint scope the goal may lie beyond all that is left: then the last token of all keeps its weight.
        last = -part.comm.max(torch.where(part.kept, -part.place, -BEYOND).amax(1))
        needed = torch.where(cut == 0, BEYOND, needed)
        cut = torch.where(cut == 0, last, cut)
    whole = part.comm.max(torch.where(part.place == cut[:, None], w, 0).amax(1))
    part.trimmed = torch.where(host(a[:, 1], w) == 2, cut, NOWHERE)
    part.left = torch.minimum(needed, whole)


def _min_p(part: ShardState, a: Operands) -> None:
    least = exponents(values(part.top())[:, None], part.m, part.c)
    part.keep(part.q - least <= host(a[:, 0], part.q)[:, None])


def _min_p_logit(part: ShardState, a: Operands) -> None:
    top = part.top()
    bound = keys(clamped(_float(a, 0, part) * values(top)))
    part.keep((part.key >= bound[:, None]) | (part.key == top[:, None]))


def _typical(part: ShardState, a: Operands) -> None:
    w = part.w()
    mean, (total,) = part.mean(w)
    distance = (part.q - host(mean, part.q)[:, None]).abs()
    nearness = _FURTHEST - distance.clamp(max=Q_LIMIT)
    goal = host(typical_goals(a, total), w)
    cut, _ = Ladder.of(nearness, _DISTANCE_BITS).find(part.comm, w, goal)
    part.keep_without_top(nearness >= cut[:, None])


def _likely(part: ShardState, a: Operands, w: Tensor, total: list[int]) -> Tensor:
    """Tokens whose share of the mass is at least E / 2^s, and those equal to the largest."""
    shares = per_row(share, column(a, 0), column(a, 1), total)
    return (w >= host(shares, w)[:, None]) | (part.key == part.top()[:, None])


def _epsilon(part: ShardState, a: Operands) -> None:
    w = part.w()
    part.keep(_likely(part, a, w, part.mass(w)[0]))


def _eta(part: ShardState, a: Operands) -> None:
    w = part.w()
    mean, (total,) = part.mean(w)
    bound = host(mean, w) + host(a[:, 2], w)
    part.keep(_likely(part, a, w, total) | (part.q <= bound[:, None]))


def _top_h(part: ShardState, a: Operands) -> None:
    """Among the first 100 tokens, the prefix that holds the share H of their entropy: rule S-O7."""
    first = best(part.comm, _standing(part), _TOP_H_TOKENS)
    counts = (first != NOWHERE).sum(1).tolist()
    q, w = part.known(first)
    n = per_row(entropy_prefix, q.tolist(), w.tolist(), counts, column(a, 0))
    cut = first.gather(1, host(n, first)[:, None] - 1)[:, 0]
    part.keep(part.place >= cut[:, None])


def _xtc(part: ShardState, a: Operands) -> None:
    """Remove every token at or above the threshold but the least likely of them: rule S-O8."""
    if not part.coin:
        return
    w = part.w()
    shares = per_row(xtc_share, column(a, 1), column(a, 2), column(a, 3), part.mass(w)[0])
    above = part.kept & (w >= host(shares, w)[:, None])
    # The last in order is the largest of the negated places: one round for it and for how many there are.
    last = torch.where(above, -part.place, -BEYOND).amax(1)
    each = part.comm.gather(torch.stack([last, above.sum(1)]))
    last, count = -each[:, 0].amax(0), each[:, 1].sum(0)
    kept = ~above | (part.place == last[:, None]) | (count < 2)[:, None]
    if part.protected is not None:
        kept = kept | part.protected
    part.keep_without_top(kept)


STEPS: dict[Op, Callable[[ShardState, Operands], None]] = {
    Op.GREEDY: _greedy,
    Op.TEMPERATURE: _temperature,
    Op.DYNAMIC_TEMPERATURE: _dynamic_temperature,
    Op.TOP_N_SIGMA: _top_n_sigma,
    Op.TOP_K: _top_k,
    Op.TOP_P: _top_p,
    Op.MIN_P: _min_p,
    Op.MIN_P_LOGIT: _min_p_logit,
    Op.TYPICAL: _typical,
    Op.EPSILON: _epsilon,
    Op.ETA: _eta,
    Op.TOP_H: _top_h,
    Op.XTC: _xtc,
}
