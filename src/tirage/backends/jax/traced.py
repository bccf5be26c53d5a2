"""One draw inside a trace: the stages of a program, the token, and everything a Draw reports (S-W5, S-L1 ... S-L5)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends import Drawn, View
from tirage.backends.jax import wide
from tirage.backends.jax.filters import FILTERS, xtc
from tirage.backends.jax.passes import count, largest
from tirage.backends.jax.program import TracedProgram
from tirage.backends.jax.rule import (
    bits_of,
    exponents,
    is_neg_inf,
    keys,
    locate,
    product,
    uniform,
    values,
    weights,
)
from tirage.backends.jax.steps import TracedState, edited, entered, masked, padded, status
from tirage.backends.jax.sums import top_entries
from tirage.backends.jax.wide import OCTAVE, Wide
from tirage.exact import numbers
from tirage.exact.keys import NEG_INF_KEY
from tirage.exact.philox import Domain
from tirage.stages import FIRST_FILTER, Op

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


class _Law(NamedTuple):
    """Rows after all filters on both sides of the coin; without XTC there is only the first."""

    off: TracedState
    on: TracedState | None
    coin: XtcSplit | None


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
    x = masked(padded(logits), program)
    state = status(x)
    off = entered(edited(x, program))
    off, on, coin = _filtered(off, program, 0)
    token, branch = _token(off, on, coin, program)
    logprobs = _branch_logprobs(branch, token[:, None])[:, 0]
    if on is not None and coin is not None:
        logprobs = jnp.where(coin.mixed, _mixture(off, on, coin, token[:, None])[:, 0], logprobs)

    def report(view: View) -> dict[str, Array]:
        described = _sampled(_Law(off, on, coin)) if view == View.SAMPLED else _described(logits, off, view)
        return _reported(described, program, token)

    found: dict[str, Any] = {
        "token_ids": token,
        "sampled_logprobs": logprobs,
        "support": _support(off, on, coin),
        **by_view(program, token.shape[0], report),
    }
    return Drawn(status=cast("Any", state), **_without_bad_rows(found, state))


def _filtered(
    state: TracedState, program: TracedProgram, at: int
) -> tuple[TracedState, TracedState | None, XtcSplit | None]:
    """The state after the filters from stage `at` on; after an XTC stage, the states without it and with it."""
    for i in range(at, len(program.stages)):
        stage, given, on = program.stages[i], program.columns[i], jnp.asarray(program.on[i])
        if stage.op < FIRST_FILTER:
            continue
        given = {name: jnp.asarray(column) for name, column in given.items()}
        if stage.op == Op.XTC:
            cut = xtc(state, stage, given, on, program.tables["protected"])
            return _filtered(state, program, i + 1)[0], _filtered(cut, program, i + 1)[0], _coin(given, on, program)
        state = FILTERS[stage.op](state, stage, given, on, program.widths[0])
    return state, None, None


def _coin(given: dict[str, Any], on: Array, program: TracedProgram) -> XtcSplit:
    share = given["coin"][:, 0], given["coin"][:, 1]
    tossed = _uniform(program, Domain.XTC)[1]
    return XtcSplit(share=share, mixed=on, heads=on & wide.less(wide.wide(tossed, 2), share))


def _uniform(program: TracedProgram, domain: int) -> Wide:
    words = jnp.asarray(program.keys)
    return uniform((words[:, 0], words[:, 1]), words[:, 2], words[:, 3], domain)


def _token(
    off: TracedState, on: TracedState | None, coin: XtcSplit | None, program: TracedProgram
) -> tuple[Array, TracedState]:
    """The token, first in id order whose running weight exceeds floor(U * W / 2^64), and the branch it is from."""
    state = off
    if on is not None and coin is not None:
        state = _either(coin.heads, on, off)
    mass = state.mass()
    rest = wide.mul(_uniform(program, Domain.DRAW), mass.total())[2:]
    return locate(mass, rest), state


def _either(condition: Array, a: TracedState, b: TracedState) -> TracedState:
    def pick(x: Array, y: Array) -> Array:
        return jnp.where(condition.reshape(-1, *[1] * (x.ndim - 1)), x, y)

    arrays = {
        name: jax.tree.map(pick, getattr(a, name), getattr(b, name))
        for name in TracedState.__slots__
        if name != "special"
    }
    return TracedState(**arrays, special=a.special or b.special)


def _support(off: TracedState, on: TracedState | None, coin: XtcSplit | None) -> Array:
    possible = _possible(off)
    if on is not None and coin is not None:
        with_xtc = _possible(on)
        always = coin.share[1] != 0
        mixed = (possible & ~always[:, None]) | with_xtc
        possible = jnp.where(coin.mixed[:, None], mixed, possible)
    return count(possible)


def _possible(state: TracedState) -> Array:
    """Tokens with a weight above 0; a truncated top-p leaves its last token at least 1."""
    return state.kept & (((state.w.high | state.w.low) != 0) | state.greedy[:, None])


# --- logprobs ---------------------------------------------------------------------------------------------------


def _logprobs(x: Array, m: Array, inverse_t: Array, total: Wide) -> Array:
    """ln p of logits [B, n]; the total's logarithm is [B]. Rule S-L2."""
    log_mass = wide.ln_fixed(wide.ilog2(total) - 40 * OCTAVE)
    distance = product(m[:, None] - x, inverse_t[:, None]) + log_mass[:, None]
    # 0 - v, without leaving it to the compiler whether that can be -0.0.
    lp = jnp.where(bits_of(distance) & 0x7FFFFFFF == 0, np.float32(0), -distance)
    return jnp.where(is_neg_inf(x), -np.inf, lp)


def _branch_logprobs(state: TracedState, ids: Array) -> Array:
    """Logprobs of the tokens `ids` [B, n] under the law of one branch; -inf for those that are out."""
    mass = state.mass()
    total = mass.total()
    lp = _logprobs(jnp.take_along_axis(state.x, ids, 1), state.m, state.inverse_t, total)
    cut = wide.ln_fixed(wide.ilog2(_at_least_one(state.left)) - wide.ilog2(total))
    lp = jnp.where(ids == state.trimmed[:, None], cut[:, None], lp)
    lp = jnp.where(state.greedy[:, None], np.float32(0), lp)
    return jnp.where(jnp.take_along_axis(state.kept, ids, 1), lp, -np.inf)


def _at_least_one(a: Wide) -> Wide:
    return wide.select(wide.is_zero(a), wide.constant(1, a[0], len(a)), a)


def _mixture(off: TracedState, on: TracedState, coin: XtcSplit, ids: Array) -> Array:
    """Logprobs of the tokens `ids` [B, n] over both sides of the coin, in units of 2^-63; -inf where neither (S-L4)."""
    share: Wide = tuple(limb[:, None] for limb in coin.share)
    rest = wide.sub(wide.constant(1 << 32, share[0], 2), share)
    points = [_points(state, ids) for state in (off, on)]
    mixed = [wide.mul(p, _broadcast(part, ids)) for p, part in zip(points, (rest, share), strict=True)]
    possible = ~wide.is_zero(mixed[0]) | ~wide.is_zero(mixed[1])
    total = _at_least_one(wide.right(wide.add(*mixed), 32)[:2])
    return jnp.where(possible, wide.ln_fixed(wide.ilog2(total) - _POINT * OCTAVE), -np.inf)


def _points(state: TracedState, ids: Array) -> Wide:
    """Probability of the tokens `ids` [B, n] in one branch, in units of 2^-63, two limbs."""
    mass = state.mass()
    weight = tuple(jnp.take_along_axis(limb, ids, 1) for limb in mass.wide())
    total: Wide = tuple(limb[:, None] for limb in mass.total())
    return wide.divide(wide.left(wide.resized(weight, 4), _POINT), _broadcast(total, ids))[:2]


def _broadcast(number: Wide, like: Array) -> Wide:
    return tuple(jnp.broadcast_to(limb, like.shape) for limb in number)


# --- views ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Described:
    """One view: keys [B, N] to rank by, that of -inf for tokens it does not hold, and logprobs of ids [B, n]."""

    key: Array
    logprobs: Callable[[Array], Array]


def by_view(program: TracedProgram, count: int, report: Callable[[View], dict[str, Array]]) -> dict[str, Array]:
    """What each of `count` rows reports: its own of `report(view)`, sentinels where it asks for no view."""
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


def _described(logits: Array, off: TracedState, view: View) -> Described:
    x = padded(logits) if view == View.RAW else off.x
    finite = (bits_of(x) & 0x7F800000) != 0x7F800000
    x = jnp.where(finite, x, -np.inf)
    plain = jnp.full(off.greedy.shape, view == View.RAW) | off.greedy
    c = jnp.where(plain, _UNIT, off.c)
    inverse_t = jnp.where(plain, np.float32(1), off.inverse_t)
    m = values(largest(keys(x)))
    total = weights(exponents(x, m, c)).total()
    return Described(keys(x), lambda ids: _logprobs(jnp.take_along_axis(x, ids, 1), m, inverse_t, total))


def _sampled(law: _Law) -> Described:
    """The law that is drawn from; a mixture is ranked by its logprobs, and worked out for every token."""
    off, on, coin = law
    key = jnp.where(off.kept, off.key, NEG_INF_KEY)
    if on is None or coin is None:
        return Described(key, lambda ids: _branch_logprobs(off, ids))
    ids = jnp.broadcast_to(off.ids, off.x.shape)
    lp = jnp.where(coin.mixed[:, None], _mixture(off, on, coin, ids), _branch_logprobs(off, ids))
    return Described(jnp.where(coin.mixed[:, None], keys(lp), key), lambda ids: jnp.take_along_axis(lp, ids, 1))


def _reported(view: Described, program: TracedProgram, token: Array) -> dict[str, Array]:
    own = jnp.take_along_axis(view.key, token[:, None], 1)
    asked, n = jnp.asarray(program.asked), program.widths[1]
    top_key, top = top_entries(view.key, n)
    held = (top_key > NEG_INF_KEY) & (jnp.arange(n, dtype=jnp.int32) < jnp.asarray(program.top_n)[:, None])
    given = view.logprobs(jnp.maximum(asked, 0))
    return {
        "logprobs": view.logprobs(token[:, None])[:, 0],
        "ranks": 1 + count(view.key > own),
        "top_ids": jnp.where(held, top, -1),
        "top_logprobs": jnp.where(held, view.logprobs(top), -np.inf),
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
