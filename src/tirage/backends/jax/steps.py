"""Rows on their way through the stages: the state that every stage reads and changes, and the edits of the logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax.passes import largest, smallest
from tirage.backends.jax.program import TracedProgram
from tirage.backends.jax.rule import (
    NO_KEY,
    Mass,
    bits_of,
    clamped,
    cleaned,
    exponents,
    is_neg_inf,
    keys,
    mass_of,
    product,
    values,
    weights,
)
from tirage.backends.jax.wide import Wide, u32
from tirage.exact import numbers
from tirage.exact.keys import NEG_INF_KEY, POS_INF_KEY
from tirage.stages import SCOPES, Op

_UNIT = numbers.temperature_constant(1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedState:
    """[B, N] logits and sets of B rows, N a padded V; per-row numbers [B]. Names as in the plain path's Row.

    `q` and `w` are the exponents and weights of all tokens at that `m` and `c`; `kept` are the tokens still in, `base`
    what the last temperature stage saw. `trimmed` is the token (or -1) whose weight a truncated top-p cut to `left`.
    `greedy`: rows whose one token was chosen. `special`: whether the program has stages that do either; without them
    the weights are simply `w`.
    """

    x: Array
    key: Array
    kept: Array
    base: Array
    m: Array
    c: Array
    inverse_t: Array
    q: Array
    w: Mass
    trimmed: Array
    left: Wide
    greedy: Array
    special: bool = False

    @property
    def ids(self) -> Array:
        """Token ids of the columns, int32 [1, N]."""
        return lax.broadcasted_iota(jnp.int32, (1, self.x.shape[1]), 1)

    def mass(self) -> Mass:
        """Weights of the tokens still in, a truncated one included; 0 for the others."""
        if not self.special:
            return self.w.where(self.kept)
        left = mass_of(self.left)
        cut = self.ids == self.trimmed[:, None]
        w = Mass(*(jnp.where(cut, part[:, None], whole) for part, whole in zip(left, self.w, strict=True)))
        one = self.greedy[:, None]
        return Mass(jnp.where(one, jnp.uint32(1 << 20), w.high), jnp.where(one, 0, w.low)).where(self.kept)

    def top(self) -> Array:
        """The largest key of the tokens still in, [B]."""
        return largest(jnp.where(self.kept, self.key, NO_KEY))

    def first(self, chosen: Array) -> Array:
        """The lowest id where bool [B, N] holds, [B]; a minimum, because XLA's argmax is slow on a CPU."""
        return smallest(jnp.where(chosen, self.ids, self.x.shape[1] - 1))

    def keep(self, kept: Array, on: Array) -> TracedState:
        """Rows that are `on` without the tokens that are not `kept`."""
        return replace(self, kept=self.kept & (kept | ~on[:, None]))

    def weighed(self) -> TracedState:
        """With `q` and `w` of the present m and c."""
        q = exponents(self.x, self.m, self.c)
        return replace(self, q=q, w=weights(q))

    def rebased(self, on: Array) -> TracedState:
        """Rows that are `on` with the set still in as what the temperature stage sees."""
        if self.kept is self.base:
            return self
        return replace(
            self,
            base=jnp.where(on[:, None], self.kept, self.base),
            m=jnp.where(on, values(self.top()), self.m),
        )


def padded(x: Array) -> Array:
    """Logits [B, V] with -inf columns added, up to a multiple of 1024 (of 32 when V <= 1024)."""
    size = 32 if x.shape[1] <= 1024 else 1024
    return jnp.pad(x, ((0, 0), (0, -x.shape[1] % size)), constant_values=-np.inf)


def masked(x: Array, program: TracedProgram) -> Array:
    """Logits with the hard masks applied: the bitmask and the banned ids."""
    if program.mask is not None:
        words = u32(program.mask)
        allowed = (words[:, :, None] >> lax.broadcasted_iota(jnp.uint32, (1, 1, 32), 2)) & 1
        allowed = allowed.reshape(words.shape[0], -1)[:, : x.shape[1]] == 1
        room = ((0, 0), (0, x.shape[1] - allowed.shape[1]))
        x = jnp.where(jnp.pad(allowed, room, constant_values=True), x, -np.inf)
    banned = jnp.asarray(program.tables["banned"])
    return _put(x, banned, jnp.full(banned.shape, -np.inf, jnp.float32)) if banned.shape[1] else x


def status(x: Array) -> Array:
    """int8 [B] after the hard masks: 1 for NaN or +inf, 2 when nothing is above -inf, else 0 (S-N4, S-N5)."""
    most = _most(x)
    return jnp.where(most >= POS_INF_KEY, 1, jnp.where(most <= NEG_INF_KEY, 2, 0)).astype(jnp.int8)


def _most(x: Array) -> Array:
    """The largest key, [B]; NaN of either sign counts as the largest of all."""
    bad = ((bits_of(x) & 0x7FFFFFFF) >= POS_INF_KEY) & ~is_neg_inf(x)
    return largest(jnp.where(bad, jnp.int32(0x7FFFFFFF), keys(x)))


def entered(x: Array) -> TracedState:
    """The State of rows whose logits are final: everything above -inf is in (S-N4)."""
    key = keys(x)
    kept = key > NEG_INF_KEY
    rows = x.shape[0]
    zero = jnp.zeros(rows, jnp.uint32)
    state = TracedState(
        x=x,
        key=key,
        kept=kept,
        base=kept,
        # The maximum that `status` asks for, so that rows without edits are read for it once.
        m=values(_most(x)),
        c=jnp.full(rows, _UNIT, jnp.float32),
        inverse_t=jnp.ones(rows, jnp.float32),
        q=key,
        w=Mass(key, key),
        trimmed=jnp.full(rows, -1, jnp.int32),
        left=(zero, zero),
        greedy=jnp.zeros(rows, bool),
    )
    return state.weighed()


# --- edits: rule S-N7, on candidates they touch only ------------------------------------------------------------


def edited(x: Array, program: TracedProgram) -> Array:
    """Logits after the stages that change them, in the program's order."""
    stages = zip(program.stages, program.columns, program.on, strict=True)
    for stage, given, active in stages:
        on = jnp.asarray(active)
        if stage.op == Op.ADD:
            ids, added = map(jnp.asarray, program.tables[f"added {stage.nth}"])
            x = _write(x, ids, on[:, None] & (ids < x.shape[1]), lambda v, added=added: v + added)
        elif stage.op == Op.SCALE:
            x = _changed(x, lambda v, given=given: product(v, given["factor"][:, None]), on[:, None])
        elif stage.op in _PENALTIES:
            counts = jnp.asarray(program.tables["counts"])
            n = _seen(counts, stage.option("scope"))
            change = _PENALTIES[stage.op](given, n.astype(jnp.float32))
            x = _write(x, counts[:, 0], on[:, None] & (n > 0), change)
    return x


def _seen(counts: Array, scope: int) -> Array:
    if SCOPES[scope] == "both":
        return counts[:, 1] + counts[:, 2]
    return counts[:, 1] if SCOPES[scope] == "prompt" else counts[:, 2]


def _repetition(given: dict[str, Any], n: Array) -> Callable[[Array], Array]:
    r, inverse = given["r"][:, None], given["inverse"][:, None]
    return lambda v: product(v, jnp.where(v > 0, inverse, r))


def _frequency(given: dict[str, Any], n: Array) -> Callable[[Array], Array]:
    return lambda v: v - product(jnp.asarray(given["penalty"])[:, None], n)


def _presence(given: dict[str, Any], n: Array) -> Callable[[Array], Array]:
    return lambda v: v - given["penalty"][:, None]


_PENALTIES = {Op.REPETITION: _repetition, Op.FREQUENCY: _frequency, Op.PRESENCE: _presence}


def _write(x: Array, ids: Array, on: Array, change: Callable[[Array], Array]) -> Array:
    """`x` with the entries `ids` [B, n] changed where `on`; ids beyond the row are padding and are dropped."""
    if not ids.shape[1]:
        return x
    old = jnp.take_along_axis(x, jnp.minimum(ids, x.shape[1] - 1), 1)
    return _put(x, ids, _changed(old, change, on))


def _changed(old: Array, change: Callable[[Array], Array], on: Array) -> Array:
    return jnp.where(is_neg_inf(old) | ~on, old, clamped(change(cleaned(old))))


def _put(x: Array, ids: Array, new: Array) -> Array:
    rows = lax.broadcasted_iota(jnp.int32, ids.shape, 0)
    return x.at[rows, ids].set(new, mode="drop")
