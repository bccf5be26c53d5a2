"""One draw inside a trace: the stages of a program, the token, and everything a Draw reports (S-W5, S-L1 ... S-L5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.axis import ONE_DEVICE, Axis
from tirage.backends.jax.candidates import block_maxima
from tirage.backends.jax.filters import FILTERS, xtc
from tirage.backends.jax.passes import largest
from tirage.backends.jax.program import TracedProgram
from tirage.backends.jax.rule import bits_of, exponents, keys, product, uniform, values, weights
from tirage.backends.jax.steps import (
    EDITS,
    TracedState,
    Weighing,
    edited,
    either,
    entered,
    masked,
    padded,
    status,
)
from tirage.backends.jax.wide import OCTAVE, Wide
from tirage.exact import numbers
from tirage.exact.keys import NEG_INF_KEY
from tirage.exact.philox import Domain
from tirage.operators import FIRST_FILTER, Operation
from tirage.operators.xtc import XTC
from tirage.sampling_metadata import Drawn, View

_UNIT = numbers.temperature_constant(1.0)
_NAN = np.float32(np.nan)
_POINT = 63
_FIELDS = Drawn.__slots__


@dataclass(frozen=True, slots=True, kw_only=True)
class XtcSplit:
    """Rows split in two by XTC: how often it is on (two limbs, units of 2^-32), where, and whether it is now."""

    share: Wide
    mixed: Array
    heads: Array


class _Branch(NamedTuple):
    """Rows after all filters, and the mass of what is left, two limbs [B]."""

    state: TracedState
    total: Wide

    def logprobs(self, key: Array, ids: Array) -> Array:
        """Logprobs [B, n] of tokens by key and id; -inf for the key of -inf."""
        state = self.state
        lp = _logprobs(key, state.m, state.inverse_t, self.total)
        if not state.special:
            return lp
        cut = wide.ln_fixed(wide.ilog2(_at_least_one(state.left)) - wide.ilog2(_at_least_one(self.total)))
        lp = jnp.where(ids == state.trimmed[:, None], cut[:, None], lp)
        lp = jnp.where(state.greedy[:, None], np.float32(0), lp)
        return jnp.where(key > NEG_INF_KEY, lp, -np.inf)


class _Law(NamedTuple):
    """Rows after all filters on both sides of the coin; without XTC there is only the first."""

    off: TracedState
    on: TracedState | None = None
    coin: XtcSplit | None = None


def operations() -> frozenset[Operation]:
    """What a trace runs, by its tables; rows with anything else are drawn on the host."""
    return frozenset({*EDITS, *FILTERS, XTC})


AT_ONCE = 1 << 19
"""Logits that are worked on at once: four rows of 128k. More of them leave the caches, fewer pay for more turns, and
rows that are searched together are done when the last of them is."""


def draw(logits: Array, program: TracedProgram) -> Drawn:
    """One token for each row of float32 logits [B, V], with what a Draw reports, as traced arrays.

    `token_ids`, `support`, `ranks` and `top_ids` are int32; `asked_logprobs` is [B, A], padded.
    """
    rows, size = logits.shape
    few = _divisor(rows, AT_ONCE // size)
    if few == rows:
        return _drawn(logits, program)
    parts = jax.tree.map(lambda a: jnp.reshape(a, (rows // few, few, *a.shape[1:])), (logits, program))
    found = lax.map(lambda part: {name: getattr(drawn, name) for drawn in [_drawn(*part)] for name in _FIELDS}, parts)
    whole: dict[str, Any] = {name: jnp.reshape(value, (rows, *value.shape[2:])) for name, value in found.items()}
    return Drawn(**whole)


def _divisor(rows: int, most: int) -> int:
    """The most rows, up to `most`, that divide all rows evenly; at least 1."""
    return next((few for few in range(min(rows, most), 1, -1) if rows % few == 0), min(rows, 1))


def _drawn(logits: Array, program: TracedProgram) -> Drawn:
    return draw_on(ONE_DEVICE, logits, program)


def draw_on(axis: Axis, logits: Array, program: TracedProgram) -> Drawn:
    """One token for each row of the float32 logits [B, N] that a device of the axis has, as `draw` gives them."""
    raw = padded(logits)
    x = masked(axis, raw, program)
    maxima = block_maxima(x)
    code = status(axis.max(largest(maxima)))
    final = edited(axis, x, program)
    # Rows without edits are read for their maxima once.
    whole = entered(axis, final, maxima if final is x else block_maxima(final))
    law = _filtered(whole, program, 0)
    token, key, branch = _token(law, program)
    logprobs = branch.logprobs(key[:, None], token[:, None])[:, 0]
    if law.coin is not None:
        logprobs = jnp.where(law.coin.mixed, _mixture(law, token[:, None])[:, 0], logprobs)

    def report(view: View) -> dict[str, Array]:
        described = _sampled(law, branch) if view == View.SAMPLED else _described(raw, whole, law.off, view)
        return _reported(described, program, token)

    found: dict[str, Any] = {
        "token_ids": token,
        "sampled_logprobs": logprobs,
        "support": _support(law),
        **by_view(program, token.shape[0], report),
    }
    return Drawn(status=cast("Any", code), **_without_bad_rows(found, code))


def _filtered(state: TracedState, program: TracedProgram, at: int) -> _Law:
    """The state after the filters from stage `at` on; after an XTC stage, the states without it and with it."""
    for i in range(at, len(program.stages)):
        stage, given = program.stages[i], program.columns[i]
        on = None if program.on[i] is None else jnp.asarray(program.on[i])
        if stage.op < FIRST_FILTER:
            continue
        given = {name: jnp.asarray(column) for name, column in given.items()}
        if stage.op == XTC:
            state = replace(state, narrows=False)
            cut = xtc(state, stage, given, on, program.tables["protected"])
            off, on_side = (_filtered(side, program, i + 1).off for side in (state, cut))
            return _Law(off, on_side, _coin(given, on, program))
        state = FILTERS[stage.op](state, stage, given, on, program.widths[0])
    return _Law(state)


def _coin(given: dict[str, Any], on: Array | None, program: TracedProgram) -> XtcSplit:
    share = given["coin"][:, 0], given["coin"][:, 1]
    tossed = _uniform(program, Domain.XTC)[1]
    heads = wide.less(wide.wide(tossed, 2), share)
    on = jnp.ones_like(heads) if on is None else on
    return XtcSplit(share=share, mixed=on, heads=on & heads)


def _uniform(program: TracedProgram, domain: int) -> Wide:
    words = jnp.asarray(program.keys)
    return uniform((words[:, 0], words[:, 1]), words[:, 2], words[:, 3], domain)


def _token(law: _Law, program: TracedProgram) -> tuple[Array, Array, _Branch]:
    """The token, first in id order whose running weight exceeds floor(U * W / 2^64), its key, and its branch."""
    state = law.off
    if law.on is not None and law.coin is not None:
        state = _either(law.coin.heads, law.on, law.off)
    mass = state.mass()
    branch = _Branch(state, state.total(mass))
    rest = wide.mul(_uniform(program, Domain.DRAW), branch.total)[2:]
    # A row without a token has none to point at.
    token = jnp.maximum(state.pick(mass, rest), 0)
    return token, state.key_at(state.key, token[:, None])[:, 0], branch


def _either(condition: Array, a: TracedState, b: TracedState) -> TracedState:
    """Row by row the one state or the other, of the same columns."""
    names = ("kept", "m", "c", "inverse_t", "trimmed", "greedy")
    picked: dict[str, Any] = {name: either(condition, getattr(a, name), getattr(b, name)) for name in names}
    weighing = a.weighing if a.weighing is b.weighing else Weighing(a.x, picked["m"], picked["c"])
    left = wide.select(condition, a.left, b.left)
    return replace(a, **picked, left=left, weighing=weighing, special=a.special or b.special)


def _support(law: _Law) -> Array:
    possible = _possible(law.off)
    if law.on is not None and law.coin is not None:
        with_xtc = _possible(law.on)
        always = law.coin.share[1] != 0
        mixed = (possible & ~always[:, None]) | with_xtc
        possible = jnp.where(law.coin.mixed[:, None], mixed, possible)
    return law.off.count(possible)


def _possible(state: TracedState) -> Array:
    """Tokens with a weight above 0; a truncated top-p leaves its last token at least 1."""
    return state.kept & (((state.w.high | state.w.low) != 0) | state.greedy[:, None])


# --- logprobs ---------------------------------------------------------------------------------------------------


def _logprobs(key: Array, m: Array, inverse_t: Array, total: Wide) -> Array:
    """ln p of tokens by key [B, n]; the rest are [B]. -inf for the key of -inf. Rule S-L2."""
    log_mass = wide.ln_fixed(wide.ilog2(total) - 40 * OCTAVE)
    distance = product(m[:, None] - values(key), inverse_t[:, None]) + log_mass[:, None]
    # 0 - v, without leaving it to the compiler whether that can be -0.0.
    lp = jnp.where(bits_of(distance) & 0x7FFFFFFF == 0, np.float32(0), -distance)
    return jnp.where(key > NEG_INF_KEY, lp, -np.inf)


def _at_least_one(a: Wide) -> Wide:
    return wide.select(wide.is_zero(a), wide.constant(1, a[0], len(a)), a)


def _mixture(law: _Law, ids: Array | None) -> Array:
    """Logprobs over both sides of the coin, in units of 2^-63, of tokens [B, n], or of all columns if None (S-L4)."""
    assert law.on is not None
    assert law.coin is not None
    sides = [_weight_and_total(state, ids) for state in (law.off, law.on)]
    # One quotient for both sides, so that it is compiled once.
    weight, total = (tuple(map(jnp.stack, zip(*part, strict=True))) for part in zip(*sides, strict=True))
    points = wide.fraction(weight, total, _POINT)
    off, on = (tuple(limb[side] for limb in points) for side in (0, 1))
    share: Wide = tuple(limb[:, None] for limb in law.coin.share)
    rest = wide.sub(wide.constant(1 << 32, share[0], 2), share)
    mixed = [wide.mul(p, _broadcast(part, p[0])) for p, part in ((off, rest), (on, share))]
    possible = ~wide.is_zero(mixed[0]) | ~wide.is_zero(mixed[1])
    whole = _at_least_one(wide.right(wide.add(*mixed), 32)[:2])
    return jnp.where(possible, wide.ln_fixed(wide.ilog2(whole) - _POINT * OCTAVE), -np.inf)


def _weight_and_total(state: TracedState, ids: Array | None) -> tuple[Wide, Wide]:
    """The weights of tokens [B, n] in one branch and, as often, that of all; two limbs each."""
    mass = state.mass()
    some = mass if ids is None else state.mass_of(state.key_at(state.kept_key(), ids), ids)
    return some.wide(), _broadcast(tuple(limb[:, None] for limb in state.total(mass)), some.low)


def _broadcast(number: Wide, like: Array) -> Wide:
    return tuple(jnp.broadcast_to(limb, like.shape) for limb in number)


# --- views ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Described:
    """One view: keys [B, N] to rank by, that of -inf for tokens it does not hold, the state whose columns these are,
    and logprobs [B, n] of tokens by key and id."""

    key: Array
    state: TracedState
    logprobs: Callable[[Array, Array], Array]


def by_view(program: TracedProgram, count: int, report: Callable[[View], dict[str, Array]]) -> dict[str, Array]:
    """What each of `count` rows reports, [B, ...]: its own of `report(view)`, sentinels where it asks for no view."""
    asked, n = jnp.asarray(program.asked), program.widths[1]
    out = {
        "logprobs": jnp.full(count, _NAN),
        "ranks": jnp.zeros(count, jnp.int32),
        "top_ids": jnp.full((count, n), -1, jnp.int32),
        "top_logprobs": jnp.full((count, n), -np.inf, jnp.float32),
        "asked_logprobs": jnp.full(asked.shape, _NAN),
    }
    for view in map(View, program.modes):
        found, chosen = report(view), jnp.asarray(program.views) == view
        out = {
            name: jnp.where(chosen.reshape(-1, *[1] * (old.ndim - 1)), found[name], old) for name, old in out.items()
        }
    return out


def _described(raw: Array, whole: TracedState, off: TracedState, view: View) -> Described:
    x = raw if view == View.RAW else whole.x
    finite = (bits_of(x) & 0x7F800000) != 0x7F800000
    key = jnp.where(finite, keys(x), NEG_INF_KEY)
    plain = jnp.ones_like(off.greedy) if view == View.RAW else off.greedy
    c = jnp.where(plain, _UNIT, off.c)
    inverse_t = jnp.where(plain, np.float32(1), off.inverse_t)
    m = values(whole.axis.max(largest(key)))
    total = whole.total(weights(exponents(jnp.where(finite, x, -np.inf), m, c)))
    return Described(key, whole, lambda key, ids: _logprobs(key, m, inverse_t, _at_least_one(total)))


def _sampled(law: _Law, branch: _Branch) -> Described:
    """The law that is drawn from; a mixture is ranked by its logprobs, and worked out for every token."""
    off, key = law.off, law.off.kept_key()
    if law.coin is None:
        return Described(key, off, branch.logprobs)
    unmixed = _Branch(off, off.total(off.mass()))
    mixed = law.coin.mixed[:, None]
    mixture = jnp.where(mixed, keys(_mixture(law, None)), key)

    def logprobs(key: Array, ids: Array) -> Array:
        # The key that a mixture is ranked by is its logprob.
        return jnp.where(mixed, values(key), unmixed.logprobs(key, ids))

    return Described(mixture, off, logprobs)


def _reported(view: Described, program: TracedProgram, token: Array) -> dict[str, Array]:
    asked, n = jnp.asarray(program.asked), program.widths[1]
    ids = jnp.concatenate([token[:, None], jnp.maximum(asked, 0)], 1)
    own = view.state.key_at(view.key, ids)
    top_key, top = view.state.ranked(view.key, n)
    top_key, top = (jnp.pad(each, ((0, 0), (0, n - each.shape[1]))) for each in (top_key, top))
    held = (top_key > NEG_INF_KEY) & (jnp.arange(n, dtype=jnp.int32) < jnp.asarray(program.top_n)[:, None])
    # One call for all, so that it is compiled once.
    lp = view.logprobs(jnp.concatenate([own, top_key], 1), jnp.concatenate([ids, top], 1))
    given, ranked = lp[:, 1 : ids.shape[1]], lp[:, ids.shape[1] :]
    return {
        "logprobs": lp[:, 0],
        "ranks": 1 + view.state.count(view.key > own[:, :1]),
        "top_ids": jnp.where(held, top, -1),
        "top_logprobs": jnp.where(held, ranked, -np.inf),
        "asked_logprobs": jnp.where(asked >= 0, given, _NAN),
    }


def _without_bad_rows(found: dict[str, Any], status: Array) -> dict[str, Any]:
    """`found` with what a row reports that has no token (S-N6)."""
    ok = status == 0
    blank = {"token_ids": -1, "support": 0, "ranks": 0, "top_ids": -1}
    return {
        name: jnp.where(ok.reshape(-1, *[1] * (value.ndim - 1)), value, blank.get(name, _NAN))
        for name, value in found.items()
    }
