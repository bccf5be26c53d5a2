"""One draw inside a trace: the stages of a program, the token, and everything a Draw reports (S-W5, S-L1 ... S-L5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.axis import ONE_DEVICE, Axis
from tirage.backends.jax.candidates import block_maxima
from tirage.backends.jax.filters import FILTERS, PLAIN, xtc
from tirage.backends.jax.narrowing import narrow
from tirage.backends.jax.parts import by_parts
from tirage.backends.jax.passes import largest
from tirage.backends.jax.program import TracedProgram
from tirage.backends.jax.rule import Random, bits_of, exponents, keys, product, random_words, values, weights
from tirage.backends.jax.searches import Placed, apart, run_of, searched, settled
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
from tirage.operators.min_keep import FLOORED
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import TOP_P
from tirage.operators.typical import TYPICAL
from tirage.operators.xtc import COINS
from tirage.sampling_metadata import Drawn, View

_UNIT = numbers.temperature_constant(1.0)
_NAN = np.float32(np.nan)
_POINT = 63
_FIELDS = Drawn.__slots__
_CHANGED = ("m", "c", "inverse_t", "trimmed", "left", "greedy")
"""What filters may change of a state whose columns stay, besides the tokens that are kept."""
_REPORTED = ("logprobs", "ranks", "top_ids", "top_logprobs", "asked_logprobs")


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
        known, value = self.known(ids)
        return jnp.where(key > NEG_INF_KEY, jnp.where(known, value, lp), -np.inf)

    def known(self, ids: Array) -> tuple[Array, Array]:
        """Which of the tokens [B, n] have another weight than their logits say, and the logprobs of these."""
        state = self.state
        cut = wide.ln_fixed(wide.ilog2(_at_least_one(state.left)) - wide.ilog2(_at_least_one(self.total)))
        one = state.greedy[:, None]
        return one | (ids == state.trimmed[:, None]), jnp.where(one, np.float32(0), cut[:, None])


class _Measured(NamedTuple):
    """What the logprob of each row's token is made of: all but its logarithm, of which a program needs one alone.

    `number` is the mass of all tokens, or in rows that are `mixed` the token's probability in units of 2^-63. Tokens
    that are `known` have their `logprob`. All are [B].
    """

    key: Array
    m: Array
    inverse_t: Array
    number: Wide
    mixed: Array
    known: Array
    logprob: Array

    def logprobs(self) -> Array:
        """The logprob of each row's token."""
        unit = jnp.where(self.mixed, np.int32(_POINT), np.int32(40)) * OCTAVE
        log = wide.ln_fixed(wide.ilog2(self.number) - unit)
        lp = jnp.where(self.mixed, log, _log_share(self.key, self.m, self.inverse_t, log))
        lp = jnp.where(self.known, self.logprob, lp)
        return jnp.where(self.key > NEG_INF_KEY, lp, -np.inf)


class _Ends(NamedTuple):
    """The temperature that rows end at, as the float32 [B] of their state, and whether they are greedy, bool [B]."""

    c: Array
    inverse_t: Array
    greedy: Array


class _Split(NamedTuple):
    """Rows split in two by XTC, after all filters: without it, with it, and which of the two is drawn from."""

    off: _Branch
    on: _Branch
    coin: XtcSplit


class _Law(NamedTuple):
    """Rows after all filters; `off` is the state on the side without XTC, the only one if `split` is None."""

    off: TracedState
    split: _Split | None = None


def operations() -> frozenset[Operation]:
    """What a trace runs, by its tables; rows with anything else are drawn on the host."""
    return frozenset({*EDITS, *FILTERS, *COINS, *(FLOORED[op] for op in COINS)})


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

    def part(given: tuple[Array, TracedProgram]) -> dict[str, Any]:
        drawn = _drawn(*given)
        return {name: getattr(drawn, name) for name in _FIELDS}

    return Drawn(**by_parts(part, (logits, program), rows // few))


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
    maxima = maxima if final is x else block_maxima(final)
    whole = entered(axis, final, maxima)
    found = _chosen(whole, maxima, program)
    found["sampled_logprobs"] = found.pop("measured").logprobs()
    ends = _Ends(*(found.pop(name) for name in _Ends._fields))
    sampled = {name: found.pop(name) for name in _REPORTED if name in found}

    def report(view: View) -> dict[str, Array]:
        if view == View.SAMPLED:
            return sampled
        described = _described(raw, whole, ends, view)
        return _reported(described, program, found["token_ids"])

    found |= by_view(program, logits.shape[0], report)
    return Drawn(status=cast("Any", code), **_without_bad_rows(found, code))


def _chosen(whole: TracedState, maxima: Array, program: TracedProgram) -> dict[str, Any]:
    """What the filters decide of rows [B, N] with these `block_maxima`, as `_after_filters` gives it."""
    small, random = narrow(program, whole.x.shape[1]), _random(program)
    if small is None:
        return _after_filters(whole, program, random)

    def chosen(program: TracedProgram) -> dict[str, Any]:
        # Entered anew on either side: what a side is given from outside would be written to memory for it.
        return _after_filters(entered(whole.axis, whole.x, maxima), program, random)

    return lax.cond(small.serves, lambda: chosen(small.program), lambda: chosen(program))


def _after_filters(whole: TracedState, program: TracedProgram, random: Random) -> dict[str, Any]:
    """The token of each row, by its uniform; what its logprob is made of, its support and `_Ends`; and its sampled view
    if one is asked."""
    law = _filtered(whole, program, random)
    branch, support = _drawn_from(law)
    token, key = _token(branch, random.uniform(0))
    ends = {name: getattr(law.off, name) for name in _Ends._fields}
    viewed = View.SAMPLED in program.modes
    return {
        "token_ids": token,
        "measured": _measured(law, branch, token, key),
        "support": support,
        **ends,
        **(_reported(_sampled(law, branch), program, token) if viewed else {}),
    }


def _filtered(state: TracedState, program: TracedProgram, random: Random) -> _Law:
    """The state after the filters; after an XTC stage, the states without it and with it."""
    steps = [
        Placed(stage, {name: jnp.asarray(column) for name, column in given.items()}, active)
        for stage, given, active in zip(program.stages, program.columns, map(_active, program.on), strict=True)
        if stage.op >= FIRST_FILTER
    ]
    at = next((i for i, step in enumerate(steps) if step.stage.op.base in COINS), len(steps))
    state = _after(state, steps[:at], program)
    if at == len(steps):
        return _Law(state)
    stage, given, on = steps[at]
    state = replace(state, narrows=False)
    cut = xtc(state, stage, given, on, program.tables["protected"])
    sides = _both(state, cut, steps[at + 1 :], program)
    return _Law(sides[0].state, _Split(*sides, _coin(given, on, random.uniform(1)[1])))


def _active(on: Any) -> Array | None:
    return None if on is None else jnp.asarray(on)


def _after(state: TracedState, steps: Sequence[Placed], program: TracedProgram) -> TracedState:
    """The state after filters without XTC."""

    def apply(state: TracedState, step: Placed) -> TracedState:
        return FILTERS[step.stage.op](state, step.stage, step.given, step.on, program.widths[0])

    ranks = 0 < program.widths[0] <= state.axis.most
    searches = {TOP_P, TYPICAL} if ranks else {TOP_P, TYPICAL, TOP_K}

    while steps:
        loop = run_of(steps, searches, PLAIN)
        state = searched(state, loop, apply) if loop else apply(state, steps[0])
        steps = steps[len(loop) or 1 :]
    return state


def _both(
    off: TracedState, on: TracedState, steps: Sequence[Placed], program: TracedProgram
) -> tuple[_Branch, _Branch]:
    """Two states of the same columns and weights after the filters that are left, which are compiled once for both."""
    start = replace(settled(off, steps), maxima=None, uncut=False)

    def changed(kept: Array) -> tuple[dict[str, Any], Wide]:
        before, now = apart(replace(start, kept=kept), steps)
        end = _after(before, now, program)
        found = {name: getattr(end, name) for name in _CHANGED if getattr(end, name) is not getattr(before, name)}
        return found | {"kept": end.kept}, end.total(end.mass())

    found, totals = lax.map(changed, jnp.stack([off.kept, on.kept]))
    special = start.special or not found.keys().isdisjoint(("trimmed", "greedy"))

    def side(n: int) -> _Branch:
        state = replace(start, **jax.tree.map(lambda both: both[n], found), special=special)
        if not found.keys().isdisjoint(("m", "c")):
            state = replace(state, weighing=Weighing(state.x, state.m, state.c))
        return _Branch(state, tuple(limb[n] for limb in totals))

    return side(0), side(1)


def _coin(given: dict[str, Any], on: Array | None, tossed: Array) -> XtcSplit:
    share = given["coin"][:, 0], given["coin"][:, 1]
    heads = wide.less(wide.wide(tossed, 2), share)
    on = jnp.ones_like(heads) if on is None else on
    return XtcSplit(share=share, mixed=on, heads=on & heads)


def _random(program: TracedProgram) -> Random:
    """What rows draw by, and what they toss XTC's coin by if they have one."""
    tosses = any(stage.op.base in COINS for stage in program.stages)
    return random_words(jnp.asarray(program.keys), [Domain.DRAW, Domain.XTC][: 1 + tosses])


def _token(branch: _Branch, random: Wide) -> tuple[Array, Array]:
    """The token, first in id order whose running weight exceeds floor(U * W / 2^64), and its key."""
    state = branch.state
    rest = wide.mul(random, branch.total)[2:]
    # A row without a token has none to point at.
    token = jnp.maximum(state.pick(state.mass(), rest), 0)
    return token, state.key_at(state.key, token[:, None])[:, 0]


def _drawn_from(law: _Law) -> tuple[_Branch, Array]:
    """The branch of each row, and how many tokens its law can draw, [B]."""
    if law.split is None:
        total, support = law.off.total_and_count(law.off.mass())
        return _Branch(law.off, total), support
    off, on, coin = law.split
    branch = _Branch(_either(coin.heads, on.state, off.state), wide.select(coin.heads, on.total, off.total))
    return branch, _support(law.split)


def _either(condition: Array, a: TracedState, b: TracedState) -> TracedState:
    """Row by row the one state or the other, of the same columns."""
    names = ("kept", "m", "c", "inverse_t", "trimmed", "greedy")
    picked: dict[str, Any] = {name: either(condition, getattr(a, name), getattr(b, name)) for name in names}
    weighing = a.weighing if a.weighing is b.weighing else Weighing(a.x, picked["m"], picked["c"])
    left = wide.select(condition, a.left, b.left)
    return replace(a, **picked, left=left, weighing=weighing, special=a.special or b.special)


def _support(law: _Split) -> Array:
    off, on, coin = law
    possible, with_xtc = _possible(off.state), _possible(on.state)
    always = coin.share[1] != 0
    mixed = (possible & ~always[:, None]) | with_xtc
    return off.state.count(jnp.where(coin.mixed[:, None], mixed, possible))


def _possible(state: TracedState) -> Array:
    """Tokens with a weight above 0; a truncated top-p leaves its last token at least 1."""
    return state.kept & (((state.w.high | state.w.low) != 0) | state.greedy[:, None])


# --- logprobs ---------------------------------------------------------------------------------------------------


def _logprobs(key: Array, m: Array, inverse_t: Array, total: Wide) -> Array:
    """ln p of tokens by key [B, n]; the rest are [B]. -inf for the key of -inf. Rule S-L2."""
    log_mass = wide.ln_fixed(wide.ilog2(total) - 40 * OCTAVE)
    lp = _log_share(key, *(each[:, None] for each in (m, inverse_t, log_mass)))
    return jnp.where(key > NEG_INF_KEY, lp, -np.inf)


def _log_share(key: Array, m: Array, inverse_t: Array, log_mass: Array) -> Array:
    """ln p of tokens by key, for the logarithm of the mass of all; of any one shape."""
    distance = product(m - values(key), inverse_t) + log_mass
    # 0 - v, without leaving it to the compiler whether that can be -0.0.
    return jnp.where(bits_of(distance) & 0x7FFFFFFF == 0, np.float32(0), -distance)


def _measured(law: _Law, branch: _Branch, token: Array, key: Array) -> _Measured:
    """What the logprobs of the tokens [B], by id and key, are made of; one side of a coin can draw each."""
    state, number, none = branch.state, branch.total, jnp.zeros(key.shape, bool)
    mixed, known, logprob = none, none, jnp.zeros(key.shape, jnp.float32)
    if law.split is not None:
        mixed = law.split.coin.mixed
        _, point = _points(law.split, token[:, None])
        number = wide.select(mixed, tuple(limb[:, 0] for limb in point), number)
    if state.special:
        of_weight, value = (each[:, 0] for each in branch.known(token[:, None]))
        known, logprob = of_weight & ~mixed, jnp.where(of_weight, value, logprob)
    return _Measured(key, state.m, state.inverse_t, number, mixed, known, logprob)


def _at_least_one(a: Wide) -> Wide:
    return wide.select(wide.is_zero(a), wide.constant(1, a[0], len(a)), a)


def _mixture(law: _Split) -> Array:
    """Logprobs over both sides of the coin, of all columns (S-L4)."""
    possible, whole = _points(law, None)
    return jnp.where(possible, wide.ln_fixed(wide.ilog2(whole) - _POINT * OCTAVE), -np.inf)


def _points(law: _Split, ids: Array | None) -> tuple[Array, Wide]:
    """Which of the tokens [B, n], or of all columns if None, either side of the coin can draw, and their probabilities
    over both, in units of 2^-63 and at least 1 (S-L4)."""
    sides = law.off.state, law.on.state
    listed = [side.kept_key() if ids is None else side.key_at(side.kept_key(), ids) for side in sides]
    known = sides[0].ids if ids is None else ids
    # The rows of one side below those of the other, so that their weights and quotients are compiled once.
    key, known = jnp.concatenate(listed), known if known.shape[0] == 1 else jnp.concatenate([known, known])
    total = tuple(jnp.concatenate(limbs) for limbs in zip(law.off.total, law.on.total, strict=True))
    weight = _beside(*sides).mass_of(key, known).wide()
    points = wide.fraction(weight, _broadcast(tuple(limb[:, None] for limb in total), key), _POINT)
    off, on = (tuple(jnp.split(limb, 2)[side] for limb in points) for side in (0, 1))
    share: Wide = tuple(limb[:, None] for limb in law.coin.share)
    rest = wide.sub(wide.constant(1 << 32, share[0], 2), share)
    mixed = [wide.mul(p, _broadcast(part, p[0])) for p, part in ((off, rest), (on, share))]
    possible = ~wide.is_zero(mixed[0]) | ~wide.is_zero(mixed[1])
    return possible, _at_least_one(wide.right(wide.add(*mixed), 32)[:2])


def _beside(off: TracedState, on: TracedState) -> TracedState:
    """A state that weighs tokens [2 B, n], those of one side below those of the other."""
    parts = [tuple(getattr(side, name) for name in ("m", "c", "trimmed", "left", "greedy")) for side in (off, on)]
    m, c, trimmed, left, greedy = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), *parts)
    special = off.special or on.special
    return replace(off, m=m, c=c, trimmed=trimmed, left=left, greedy=greedy, special=special)


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


def _described(raw: Array, whole: TracedState, ends: _Ends, view: View) -> Described:
    x = raw if view == View.RAW else whole.x
    finite = (bits_of(x) & 0x7F800000) != 0x7F800000
    key = jnp.where(finite, keys(x), NEG_INF_KEY)
    plain = jnp.ones_like(ends.greedy) if view == View.RAW else ends.greedy
    c = jnp.where(plain, _UNIT, ends.c)
    inverse_t = jnp.where(plain, np.float32(1), ends.inverse_t)
    m = values(whole.axis.max(largest(key)))
    total = whole.total(weights(exponents(jnp.where(finite, x, -np.inf), m, c)).mass())
    return Described(key, whole, lambda key, ids: _logprobs(key, m, inverse_t, _at_least_one(total)))


def _sampled(law: _Law, branch: _Branch) -> Described:
    """The law that is drawn from; a mixture is ranked by its logprobs, and worked out for every token."""
    off, key = law.off, law.off.kept_key()
    if law.split is None:
        return Described(key, off, branch.logprobs)
    unmixed, mixed = law.split.off, law.split.coin.mixed[:, None]
    mixture = jnp.where(mixed, keys(_mixture(law.split)), key)

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
