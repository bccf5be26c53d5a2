"""The filters on tensors: each judges the whole vocabulary of many rows at once, by a few integers of each row.

Row scalars (masses, thresholds) pass through Python integers, B of them per step: exact without 128-bit arithmetic on
the device, and the same on every shard, so that all shards take the same way. The rules for them, and what each step
means, are in `tirage.operators`; SPEC.md, rules S-O.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import pad

from tirage.backends.torch.rule import FLT_MAX, clamped, cleaned, exponents, floats, integers, joined, keys, split_sum
from tirage.backends.torch.rule import values as values_of
from tirage.backends.torch.sort_keys import ABOVE_ALL, ABSENT, SortedTokens, highest, with_ties
from tirage.backends.torch.state import FilterState
from tirage.exact import numbers
from tirage.exact.weights import Q_LIMIT
from tirage.operators import FIRST_FILTER, OPERATIONS, Operation, p_less, top_n_sigma, top_p, typical, xtc
from tirage.operators.eta import ETA
from tirage.operators.min_p import MIN_P, MIN_P_LOGIT
from tirage.operators.p_less import P_LESS
from tirage.operators.row import share
from tirage.operators.temperature import DYNAMIC_TEMPERATURE, GREEDY, TEMPERATURE, entropy_fraction, factor
from tirage.operators.top_h import TOKENS as TOP_H_TOKENS
from tirage.operators.top_h import TOP_H, prefix
from tirage.operators.top_k import TOP_K
from tirage.operators.top_n_sigma import TOP_N_SIGMA
from tirage.operators.top_p import TOP_P
from tirage.operators.typical import TYPICAL
from tirage.operators.xtc import XTC

_GATHERED = 200
"""Up to this k, gathering each shard's k highest sort keys costs fewer bytes than a search, and one round."""
_FIRST = 64
"""Tokens among which top-p looks before it searches all: one round in place of thirteen where they suffice."""
_DISTANCE_BITS = 32
_FURTHEST = (1 << _DISTANCE_BITS) - 1
_FAR = 1 << 62
"""More than any mass."""

Operands = NDArray[np.int64]
"""[G, 5]: a..e of one step for each row."""


def run(state: FilterState, programs: NDArray[np.int64]) -> list[FilterState]:
    """`state` after every filter of `programs` [G, S, 6], whose rows share one list of operations.

    With XTC among them there are two: the rows without it and, parted where it occurs, the rows with it.
    """
    branches = [state]
    for s, op in enumerate(programs[0, :, 0].tolist()):
        if op == XTC and len(branches) == 1:
            branches.append(state.with_xtc())
        if op >= FIRST_FILTER:
            for branch in branches:
                STEPS[OPERATIONS[op]](branch, programs[:, s, 1:])
    return branches


def _columns(a: Operands, *at: int) -> list[list[int]]:
    """Some operands of the rows, as a list [G] each."""
    return [a[:, k].tolist() for k in at]


def _float(a: Operands, at: int) -> NDArray[np.float32]:
    """An operand of each row that is the bits of a float32, [G]."""
    return a[:, at].astype(np.int32).view(np.float32)


def _bounds(rule: Callable[..., int], *columns: Iterable[Any], like: Tensor) -> Tensor:
    """`rule` of each row's numbers, one from each of `columns`: int64 [G], held in range where it exceeds any mass."""
    return integers([min(rule(*row), _FAR) for row in zip(*columns, strict=True)], like)


def _greedy(state: FilterState, a: Operands) -> None:
    """Keep the lowest id among the largest keys."""
    best = state.kept & _is_top(state)
    ids = state.shard.ids(state.x)
    # The lowest id is the largest of the negated ones: one round.
    token = -state.shard.comm.max(torch.where(best, -ids, -ABOVE_ALL).amax(1))
    state.keep(ids == token[:, None])
    state.greedy = True


def _temperature(state: FilterState, a: Operands) -> None:
    state.rebase(floats(_float(a, 0), state.x), floats(_float(a, 1), state.x))


def _dynamic_temperature(state: FilterState, a: Operands) -> None:
    """T between T min and T max by the entropy of the set: rule S-O9."""
    unit = torch.full_like(state.c, float(numbers.temperature_constant(1.0)))
    state.rebase(unit, torch.ones_like(unit))
    mean, (total, count) = state.mean(state.w(), state.kept.sum(1))
    low, *exponent = _columns(a, 2, 3, 4)
    fractions = map(entropy_fraction, mean, total, count, *exponent)
    r = np.array(list(map(factor, low, fractions)), np.float32)
    with np.errstate(over="ignore"):
        c, inverse_t = (np.minimum(_float(a, at) * r, np.float32(FLT_MAX)) for at in (0, 1))
    state.rebase(floats(c, state.x), floats(inverse_t, state.x))


def _top_n_sigma(state: FilterState, a: Operands) -> None:
    """Keep x >= max - n * standard deviation, in row-relative fixed point: rule S-O6."""
    top = values_of(state.top())
    distance = cleaned((top[:, None] - state.x).clamp_(max=FLT_MAX)).nan_to_num_()
    bits = distance.view(torch.int32) * state.kept
    exponent = bits >> 23
    widest = state.shard.comm.max(exponent.amax(1).to(torch.int64))
    # v = floor(d * 2^(29 - e)) from the bits of d: the significand, moved by how far d is below the widest.
    significand = ((bits & 0x7FFFFF) | 0x800000).to(torch.int64) << 6
    v = torch.where(bits == 0, 0, significand >> (widest[:, None] - exponent).clamp_(0, 62))
    n, s1, *squares = state.shard.comm.sum(torch.stack([state.kept.sum(1), v.sum(1), *split_sum(v * v)])).tolist()
    limits = _bounds(top_n_sigma.limit, n, s1, joined(*squares), *_columns(a, 0, 1), like=v)
    state.keep(v <= limits[:, None])


def _top_k(state: FilterState, a: Operands) -> None:
    k = integers(a[:, 0], state.x)
    most = int(a[:, 0].max())
    if most <= _GATHERED:
        cut = highest(state.shard.comm, state.remaining(), most).gather(1, k[:, None] - 1)[:, 0]
    else:
        cut, _ = state.in_order().cut(state.shard.comm, state.kept.to(torch.int64), goal=k)
    state.keep(_at_or_above(state, cut, a[:, 1]))


def _at_or_above(state: FilterState, cut: Tensor, ties: Operands) -> Tensor:
    """bool [G, N]: the tokens at or above a cut [G] and, where `ties` [G], all that equal the one on it."""
    low = torch.where(integers(ties, cut) > 0, with_ties(cut), cut) if ties.any() else cut
    return state.sort_key >= low[:, None]


def _top_p(state: FilterState, a: Operands) -> None:
    w = state.w()
    judged = w
    if a[:, 3].any():
        judged = torch.where(integers(a[:, 3], w)[:, None] > 0, state.all_weights * state.base, w)
    goal = _bounds(top_p.goal, *_columns(a, 0, 1), state.mass(judged)[0], like=w)
    cut, above = _among_first(state, goal) or state.in_order().cut(state.shard.comm, w, goal=goal)
    if (a[:, 1] == 2).any():
        _trim(state, a, w, cut, goal - above)
    state.keep(_at_or_above(state, cut, a[:, 2]))


def _among_first(state: FilterState, goal: Tensor) -> tuple[Tensor, Tensor] | None:
    """What `SortedTokens.cut` gives, if every row's first tokens reach the goal (or it has none); else None."""
    first = highest(state.shard.comm, state.remaining(), _FIRST)
    reached = state.known(first)[1].cumsum(1)
    n = (reached < goal[:, None]).sum(1).masked_fill(first[:, 0] == ABSENT, 0)
    # Every shard sees the same numbers here, so all of them take the same way.
    if bool((n == _FIRST).any()):
        return None
    return first.gather(1, n[:, None])[:, 0], pad(reached, (1, 0)).gather(1, n[:, None])[:, 0]


def _trim(state: FilterState, a: Operands, w: Tensor, cut: Tensor, needed: Tensor) -> None:
    """Cut the weight of the last token of each truncated prefix to what the target still lacks, `needed` [G]."""
    comm = state.shard.comm
    if a[:, 3].any():
        # Under joint scope the goal may lie beyond all that is left: then the last token of all keeps its weight.
        last = -comm.max(torch.where(state.kept, -state.sort_key, -ABOVE_ALL).amax(1))
        needed = torch.where(cut == 0, ABOVE_ALL, needed)
        cut = torch.where(cut == 0, last, cut)
    whole = comm.max(torch.where(state.sort_key == cut[:, None], w, 0).amax(1))
    state.trimmed = torch.where(integers(a[:, 1], w) == 2, cut, ABSENT)
    state.left = torch.minimum(needed, whole)


def _min_p(state: FilterState, a: Operands) -> None:
    least = exponents(values_of(state.top())[:, None], state.m, state.c)
    state.keep(state.q - least <= integers(a[:, 0], state.q)[:, None])


def _min_p_logit(state: FilterState, a: Operands) -> None:
    top = state.top()
    bound = keys(clamped(floats(_float(a, 0), state.x) * values_of(top)))
    state.keep((state.key >= bound[:, None]) | (state.key == top[:, None]))


def _typical(state: FilterState, a: Operands) -> None:
    """Keep the tokens whose exponents are nearest to the mean one, up to the mass P: rule S-O4."""
    w = state.w()
    mean, (total,) = state.mean(w)
    distance = (state.q - integers(mean, w)[:, None]).abs_()
    nearness = _FURTHEST - distance.clamp_(max=Q_LIMIT)
    goal = _bounds(typical.goal, *_columns(a, 0, 1), total, like=w)
    cut, _ = SortedTokens.of(nearness, bits=_DISTANCE_BITS).cut(state.shard.comm, w, goal=goal)
    state.keep_without_top(nearness >= cut[:, None])


def _is_top(state: FilterState) -> Tensor:
    """bool [G, N]: the tokens equal to the largest still in."""
    return state.key == state.top()[:, None]


def _by_weight(op: Operation) -> Callable[[FilterState, Operands], None]:
    """The step of a filter that keeps what has at least some weight, and the tokens equal to the largest."""
    rule = op.weight_bound
    assert rule is not None

    def run_op(state: FilterState, a: Operands) -> None:
        w = state.w()
        bound = _bounds(rule, map(tuple, a.tolist()), state.mass(w)[0], state.largest(w).tolist(), like=w)
        state.keep((w >= bound[:, None]) | _is_top(state))

    return run_op


def _eta(state: FilterState, a: Operands) -> None:
    w = state.w()
    mean, (total,) = state.mean(w)
    least = _bounds(share, *_columns(a, 0, 1), total, like=w)
    furthest = integers(mean, w) + integers(a[:, 2], w)
    state.keep((w >= least[:, None]) | (state.q <= furthest[:, None]) | _is_top(state))


def _p_less(state: FilterState, a: Operands) -> None:
    w = state.w()
    high, low = w >> p_less.HALF, w & ((1 << p_less.HALF) - 1)
    sums = ((high * high).sum(1), (high * low).sum(1), (low * low).sum(1), state.kept.sum(1))
    total, *parts, count = state.mass(w, *sums)
    least = _bounds(p_less.bound, *_columns(a, 0), map(p_less.joined, *parts), total, count, like=w)
    state.keep((w >= least[:, None]) | _is_top(state))


def _top_h(state: FilterState, a: Operands) -> None:
    """Among the first 100 tokens, the prefix that holds the share H of their entropy: rule S-O7."""
    first = highest(state.shard.comm, state.remaining(), TOP_H_TOKENS)
    counts = (first != ABSENT).sum(1).tolist()
    q, w = state.known(first)
    n = _bounds(prefix, q.tolist(), w.tolist(), counts, *_columns(a, 0), like=first)
    cut = first.gather(1, n[:, None] - 1)[:, 0]
    state.keep(state.sort_key >= cut[:, None])


def _xtc(state: FilterState, a: Operands) -> None:
    """Remove every token at or above the threshold but the least likely of them: rule S-O8."""
    if not state.xtc:
        return
    w = state.w()
    bound = _bounds(xtc.bound, *_columns(a, 1, 2, 3), state.mass(w)[0], like=w)
    above = state.kept & (w >= bound[:, None])
    # The last in order is the largest of the negated sort keys: one round for it and for how many there are.
    last = torch.where(above, -state.sort_key, -ABOVE_ALL).amax(1)
    each = state.shard.comm.gather(torch.stack([last, above.sum(1)]))
    last, count = -each[:, 0].amax(0), each[:, 1].sum(0)
    kept = ~above | (state.sort_key == last[:, None]) | (count < 2)[:, None]
    if state.protected is not None:
        kept = kept | state.protected
    state.keep_without_top(kept)


STEPS: dict[Operation, Callable[[FilterState, Operands], None]] = {
    GREEDY: _greedy,
    TEMPERATURE: _temperature,
    DYNAMIC_TEMPERATURE: _dynamic_temperature,
    TOP_N_SIGMA: _top_n_sigma,
    TOP_K: _top_k,
    TOP_P: _top_p,
    MIN_P: _min_p,
    MIN_P_LOGIT: _min_p_logit,
    TYPICAL: _typical,
    ETA: _eta,
    P_LESS: _p_less,
    TOP_H: _top_h,
    XTC: _xtc,
    **{op: _by_weight(op) for op in OPERATIONS.values() if op.weight_bound is not None},
}
"""Every filter that tensors can run; rows with any other are drawn on the host."""
