"""The pipeline in plain NumPy, one row at a time: what every step does, readable, for any stage list.

It serves `law` and `explain`, answers `sample` while the Numba kernels compile, and is what they are tested
against. Slow (it sorts), never wrong: SPEC.md rules S-N, S-W and S-O in the order of the steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tirage.backends import Process
from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX, NEG_INF_KEY, POS_INF_KEY, clamped, cleaned, keys, value
from tirage.exact.logs import OCTAVE, ilog2
from tirage.exact.weights import Q_LIMIT, exponents, weights
from tirage.history import Counts
from tirage.stages import SCOPES, Op, Step

OK, NON_FINITE, NO_TOKEN = 0, 1, 2

Observer = Callable[[Step, "RowState"], None]

_UNIT = numbers.temperature_constant(1.0)
_ZERO, _ONE = np.float32(0), np.float32(1)
_TOP_H_TOKENS = 100
_NO_KEYS = np.zeros(0, np.int32)
_NO_TOKENS = np.zeros(0, np.int64)


@dataclass(slots=True, kw_only=True)
class RowState:
    """One row on its way through the steps.

    `x` are the logits as edited so far, `key` their keys, `ids` the tokens still in (ascending). `m`, `c` and
    `inverse_t` are those of the last temperature stage; `base` is the set that it saw, on which joint filters judge.
    `trimmed` is the token whose weight a truncated top-p cut, with the weight left.
    """

    x: NDArray[np.float32]
    masked: NDArray[np.bool_]
    counts: Counts | None
    edit_ids: NDArray[np.int32]
    edit_values: NDArray[np.float32]
    process: Process | None = None
    coin: bool = False
    protected: NDArray[np.int32] | None = None
    status: int = OK
    key: NDArray[np.int32] = field(default_factory=lambda: _NO_KEYS)
    ids: NDArray[np.int64] = field(default_factory=lambda: _NO_TOKENS)
    base: NDArray[np.int64] = field(default_factory=lambda: _NO_TOKENS)
    m: np.float32 = _ZERO
    c: np.float32 = _UNIT
    inverse_t: np.float32 = _ONE
    trimmed: tuple[int, int] | None = None
    greedy: bool = False

    def q(self) -> NDArray[np.int32]:
        """Exponents of the tokens still in."""
        return exponents(self.x[self.ids], self.m, self.c)

    def w(self) -> NDArray[np.uint64]:
        """Integer weights of the tokens still in, a truncated one included."""
        if self.greedy:
            return np.full(self.ids.size, 1 << 40, np.uint64)
        w = weights(self.q())
        if self.trimmed is not None:
            w[np.searchsorted(self.ids, self.trimmed[0])] = self.trimmed[1]
        return w

    def keep(self, kept: NDArray[np.bool_]) -> None:
        """Drop the tokens still in that are not `kept`."""
        self.ids = self.ids[kept]

    def ranked(self) -> NDArray[np.int64]:
        """Positions into `ids`, (key descending, id ascending): the order of every cut (S-W3)."""
        return np.argsort(-self.key[self.ids].astype(np.int64), kind="stable")


def run(row: RowState, steps: Iterable[Step], observe: Observer | None = None) -> RowState:
    """`row` after all `steps`; `observe` is called after each. A bad row stops early with its status."""
    entered = False
    checked = False
    for step in steps:
        if not checked and step.op != Op.BAN:
            checked = _check_finite(row)
        if not entered and step.op >= Op.GREEDY:
            entered = _enter(row)
        if row.status != OK:
            return row
        _RUN[step.op](row, step)
        if observe is not None:
            observe(step, row)
    if not checked:
        _check_finite(row)
    if not entered:
        _enter(row)
    return row


def start(x: NDArray[np.float32], allowed: NDArray[np.bool_] | None) -> tuple[NDArray, NDArray]:
    """A private copy of the logits with the hard mask applied, and which tokens that mask took."""
    masked = np.zeros(x.size, bool) if allowed is None else ~allowed
    return np.where(masked, np.float32(-np.inf), x).astype(np.float32), masked


def _check_finite(row: RowState) -> bool:
    key = keys(row.x)
    if row.status == OK and ((key >= POS_INF_KEY) | (key < NEG_INF_KEY)).any():
        row.status = NON_FINITE
    return True


def _enter(row: RowState) -> bool:
    """Logits are final: the candidates are the tokens above -inf (S-N4)."""
    row.key = keys(row.x)
    row.ids = np.flatnonzero(row.key > NEG_INF_KEY)
    if row.ids.size == 0:
        row.status = row.status or NO_TOKEN
    else:
        _rebase(row)
    return True


def _rebase(row: RowState) -> None:
    row.base = row.ids
    row.m = value(row.key[row.ids].max())


# --- edits: rule S-N7, on candidates they touch only ------------------------------------------------------


def _ban(row: RowState, step: Step) -> None:
    ids = row.edit_ids[step.a : step.b]
    row.x[ids] = -np.inf
    row.masked[ids] = True


def _add(row: RowState, step: Step) -> None:
    ids = row.edit_ids[step.a : step.b]
    _write(row, ids, lambda v: v + row.edit_values[step.a : step.b])


def _write(row: RowState, ids: NDArray, change: Callable[[NDArray], NDArray]) -> None:
    old = row.x[ids]
    with np.errstate(over="ignore", invalid="ignore"):
        new = clamped(change(cleaned(old)))
    row.x[ids] = np.where(old == -np.inf, old, new)


def _seen(row: RowState, scope: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    if row.counts is None:
        return np.zeros(0, np.int32), np.zeros(0, np.float32)
    n = row.counts.seen(SCOPES[scope])
    return row.counts.ids[n > 0], n[n > 0].astype(np.float32)


def _repetition(row: RowState, step: Step) -> None:
    ids, _ = _seen(row, step.a)
    r, inverse = numbers.from_bits(step.b), numbers.from_bits(step.c)
    _write(row, ids, lambda v: np.minimum(v * np.where(v > 0, inverse, r), FLT_MAX))


def _frequency(row: RowState, step: Step) -> None:
    ids, n = _seen(row, step.a)
    penalty = numbers.from_bits(step.b)
    _write(row, ids, lambda v: v - np.minimum(penalty * n, FLT_MAX))


def _presence(row: RowState, step: Step) -> None:
    ids, _ = _seen(row, step.a)
    penalty = numbers.from_bits(step.b)
    _write(row, ids, lambda v: v - penalty)


def _scale(row: RowState, step: Step) -> None:
    factor = numbers.from_bits(step.a)
    _write(row, np.arange(row.x.size), lambda v: np.minimum(v * factor, FLT_MAX))


def _process(row: RowState, step: Step) -> None:
    if row.process is not None:
        row.x = np.where(row.masked, np.float32(-np.inf), row.process(row.x)).astype(np.float32)
        _check_finite(row)


# --- filters ----------------------------------------------------------------------------------------------


def _greedy(row: RowState, step: Step) -> None:
    row.ids = row.ids[np.argmax(row.key[row.ids])][None]
    row.greedy = True


def _temperature(row: RowState, step: Step) -> None:
    row.c, row.inverse_t = numbers.from_bits(step.a), numbers.from_bits(step.b)
    _rebase(row)


def _dynamic_temperature(row: RowState, step: Step) -> None:
    """T between T min and T max by the entropy of the set, in integers: rule S-O9."""
    _rebase(row)
    fraction = _entropy_fraction(row, step.d, step.e)
    t = step.c + (((1 << 32) - step.c) * fraction >> 32)
    r = np.float32((1 << 62) // max(t, 1 << 9)) * np.float32(2.0**-30)
    row.c = np.float32(min(numbers.from_bits(step.a) * r, FLT_MAX))
    row.inverse_t = np.float32(min(numbers.from_bits(step.b) * r, FLT_MAX))


def _entropy_fraction(row: RowState, e: int, s: int) -> int:
    """(H / H max) ** exponent in units of 2^-32, entropies at T = 1 over the current set."""
    q = exponents(row.x[row.ids], row.m, _UNIT)
    w = weights(q)
    entropy = mean_exponent(q, w) + ilog2(mass(w)) - 40 * OCTAVE
    most = ilog2(row.ids.size)
    if entropy <= 0 or most <= 0:
        return 0
    octaves = max(ilog2(most) - ilog2(entropy), 0)
    power = np.array([min(octaves * e >> s, Q_LIMIT)], np.int32)
    return int(weights(power)[0]) >> 8


def _top_n_sigma(row: RowState, step: Step) -> None:
    """Keep x >= max - n * standard deviation, in row-relative fixed point: rule S-O6."""
    x = row.x[row.ids]
    top = value(row.key[row.ids].max())
    with np.errstate(over="ignore"):
        distance = cleaned(np.minimum(top - x, FLT_MAX))
    widest = distance.max()
    if widest == 0:
        return
    shift = 29 - (math.frexp(float(widest))[1] - 1)
    v = np.ldexp(distance.astype(np.float64), shift).astype(np.int64)
    n, s1, s2 = v.size, int(v.sum()), _sum_of_products(v.astype(np.uint64), v.astype(np.uint64))
    deviation = math.isqrt((n * s2 - s1 * s1) // (n * n) << 2)
    row.keep(v <= step.a * deviation >> (step.b + 1))


def _top_k(row: RowState, step: Step) -> None:
    if step.a < row.ids.size:
        _keep_prefix(row, row.ranked(), step.a, bool(step.b))


def _keep_prefix(row: RowState, order: NDArray[np.int64], n: int, ties: bool) -> None:
    kept = np.zeros(row.ids.size, bool)
    kept[order[:n]] = True
    if ties:
        key = row.key[row.ids]
        kept |= key >= key[order[n - 1]]
    row.keep(kept)


def _top_p(row: RowState, step: Step) -> None:
    order = row.ranked()
    w = row.w()[order]
    reached = np.cumsum(w)
    base = mass(weights(exponents(row.x[row.base], row.m, row.c))) if step.d else int(reached[-1])
    if step.b == 1:
        n = int(np.searchsorted(reached - w, np.uint64(step.a * base >> 32), side="right"))
    else:
        n = int(np.searchsorted(reached, np.uint64(target_mass(step.a, base)), side="left")) + 1
    n = min(max(n, 1), w.size)
    if step.b == 2:
        _truncate(row, order, reached, n, target_mass(step.a, base))
    _keep_prefix(row, order, n, bool(step.c))


def _truncate(row: RowState, order: NDArray, reached: NDArray, n: int, target: int) -> None:
    before = int(reached[n - 2]) if n > 1 else 0
    row.trimmed = (int(row.ids[order[n - 1]]), min(target, int(reached[n - 1])) - before)


def _min_p(row: RowState, step: Step) -> None:
    q = row.q()
    row.keep(q - q.min() <= step.a)


def _min_p_logit(row: RowState, step: Step) -> None:
    key = row.key[row.ids]
    bound = clamped(np.array([numbers.from_bits(step.a) * value(key.max())]))
    row.keep((key >= keys(bound)) | (key == key.max()))


def _typical(row: RowState, step: Step) -> None:
    q, w = row.q(), row.w()
    distance = np.abs(q.astype(np.int64) - mean_exponent(q, w))
    order = np.argsort(distance, kind="stable")
    reached = np.cumsum(w[order])
    total = int(reached[-1])
    target = (step.a * total >> 32) + 1 if step.b else target_mass(step.a, total)
    last = order[min(int(np.searchsorted(reached, np.uint64(target), side="left")), w.size - 1)]
    row.keep(distance <= distance[last])


def _epsilon(row: RowState, step: Step) -> None:
    w, key = row.w(), row.key[row.ids]
    row.keep((w >= _share(step.a, step.b, mass(w))) | (key == key.max()))


def _eta(row: RowState, step: Step) -> None:
    q, w, key = row.q(), row.w(), row.key[row.ids]
    likely = w >= _share(step.a, step.b, mass(w))
    row.keep(likely | (q <= mean_exponent(q, w) + step.c) | (key == key.max()))


def _top_h(row: RowState, step: Step) -> None:
    """Among the first 100 tokens, the prefix that holds the share H of their entropy: rule S-O7."""
    order = row.ranked()[:_TOP_H_TOKENS]
    q, w = row.q()[order], row.w()[order]
    log_mass = ilog2(mass(w)) - 40 * OCTAVE
    entropy = np.cumsum([int(wi) * (int(qi) + log_mass) for qi, wi in zip(q, w, strict=True)], dtype=object)
    kept = [(int(reached) << 32) <= step.a * int(entropy[-1]) for reached in entropy]
    n = kept.index(False) if False in kept else len(kept)
    _keep_prefix(row, order, max(n, 1), False)


def _xtc(row: RowState, step: Step) -> None:
    """Remove every token at or above the threshold but the least likely of them: rule S-O8."""
    if not row.coin:
        return
    w = row.w()
    share = _share(step.b, step.c, mass(w))
    if step.d:
        share = (step.b * mass(w) >> step.c) + 1
    order = row.ranked()
    above = order[w[order] >= max(1, share)]
    if above.size < 2:
        return
    kept = np.ones(row.ids.size, bool)
    kept[above[:-1]] = False
    if row.protected is not None:
        kept |= np.isin(row.ids, row.protected)
    row.keep(kept)


_RUN: dict[Op, Callable[[RowState, Step], None]] = {
    Op.BAN: _ban,
    Op.ADD: _add,
    Op.REPETITION: _repetition,
    Op.FREQUENCY: _frequency,
    Op.PRESENCE: _presence,
    Op.SCALE: _scale,
    Op.PROCESS: _process,
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


# --- integer sums and thresholds --------------------------------------------------------------------------


def mass(w: NDArray[np.uint64]) -> int:
    """The sum of integer weights; exact, since V * 2^40 <= 2^60."""
    return int(w.sum(dtype=np.uint64))


def target_mass(p: int, total: int) -> int:
    """max(1, ceil(P * W / 2^32)): the mass that a top-p prefix must reach (S-W4)."""
    return max(1, -(-p * total >> 32))


def mean_exponent(q: NDArray[np.int32], w: NDArray[np.uint64]) -> int:
    """floor(sum(w * q) / sum(w)): the entropy's part that needs no logarithm."""
    return _sum_of_products(w, q.astype(np.uint64)) // mass(w)


def _sum_of_products(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> int:
    # w * q stays below 2^63, but a vocabulary of them does not: add high and low halves apart.
    product = a * b
    return (int((product >> np.uint64(32)).sum()) << 32) + int((product & np.uint64(0xFFFFFFFF)).sum())


def _share(e: int, s: int, total: int) -> int:
    return -(-e * total >> s)


def steps_of(program: NDArray[np.int64]) -> Sequence[Step]:
    """The steps packed in one row of `Rows.programs`."""
    rows = (step for step in program.tolist() if step[0])
    return [Step(Op(op), a, b, c, d, e) for op, a, b, c, d, e in rows]
