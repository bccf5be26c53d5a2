"""Rows on their way through the stages: the state that every stage reads and changes, and the edits of the logits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from tirage.backends.jax import wide
from tirage.backends.jax.axis import ONE_DEVICE, Axis, Cut
from tirage.backends.jax.candidates import in_id_order
from tirage.backends.jax.passes import count, entries, largest, padded_size
from tirage.backends.jax.program import TracedProgram
from tirage.backends.jax.rule import (
    NO_KEY,
    FloatMass,
    Mass,
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
from tirage.backends.jax.wide import Wide
from tirage.exact import numbers
from tirage.exact.keys import NEG_INF_KEY, POS_INF_KEY
from tirage.operators.frequency import FREQUENCY
from tirage.operators.logit_bias import ADD
from tirage.operators.masks import BAN
from tirage.operators.presence import PRESENCE
from tirage.operators.repetition import REPETITION
from tirage.operators.row import SCOPES
from tirage.operators.scale import SCALE
from tirage.operators.smoothing import SMOOTH
from tirage.sampling_metadata import MAX_VOCAB

_UNIT = numbers.temperature_constant(1.0)


class Weighing:
    """Exponents and weights of logits [B, N] for m and c [B], worked out when first asked for."""

    __slots__ = ("_known", "_of")

    def __init__(self, x: Array, m: Array, c: Array) -> None:
        self._of, self._known = (x, m, c), None

    def __call__(self) -> tuple[Array, FloatMass]:
        """q int32 [B, N] and the weights."""
        if self._known is None:
            q = exponents(*self._of)
            self._known = q, weights(q)
        return self._known


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedState:
    """[B, N] logits and sets of B rows; per-row numbers [B]. Names as in the plain path's Row.

    `kept` are the tokens still in. `columns` are the ids of the columns, None where these are the axis's own, in order.
    `judged` gives the mass of what the last temperature stage saw. `uncut`: no filter has cut since `m` was found.
    `trimmed` is the token (or -1) whose weight a truncated top-p cut to `left`. `greedy`: rows whose one token was
    chosen. `special`: whether the program has stages that do either; without them weights are those of `weighing`.
    `narrows`: whether a top-k may leave its candidates as the only columns. `maxima`: the `block_maxima` of x, None
    once a filter has cut.
    """

    axis: Axis
    x: Array
    key: Array
    kept: Array
    m: Array
    c: Array
    inverse_t: Array
    weighing: Callable[[], tuple[Array, FloatMass]]
    judged: Callable[[], Wide]
    trimmed: Array
    left: Wide
    greedy: Array
    maxima: Array | None
    columns: Array | None = None
    uncut: bool = True
    special: bool = False
    narrows: bool = True

    @property
    def ids(self) -> Array:
        """Token ids of the columns, int32 [B, N] or [1, N]."""
        own = lax.broadcasted_iota(jnp.int32, (1, self.x.shape[1]), 1) + self.axis.start
        return own if self.columns is None else self.columns

    @property
    def q(self) -> Array:
        """Exponents of all columns at the present m and c, int32 [B, N]."""
        return self.weighing()[0]

    @property
    def w(self) -> Mass:
        """Weights of all columns at the present m and c, [B, N]."""
        return self.weighing()[1].mass()

    def mass(self) -> Mass:
        """Weights [B, N] of the tokens still in, a truncated one included; 0 for the others."""
        return self.compact_mass().mass()

    def compact_mass(self) -> Mass | FloatMass:
        """As `mass`, in the least that holds it."""
        if self.special:
            return self._special(self.w, self.ids).where(self.kept)
        return self.weighing()[1].where(self.kept)

    def mass_of(self, key: Array, ids: Array) -> Mass:
        """Weights of tokens still in by key and id, [B, n]; 0 for the key of -inf."""
        w = weights(exponents(values(key), self.m, self.c))
        return self._special(w.mass(), ids).where(key > NO_KEY)

    def _special(self, w: Mass, ids: Array) -> Mass:
        if not self.special:
            return w
        cut = ids == self.trimmed[:, None]
        w = Mass(*(jnp.where(cut, part[:, None], whole) for part, whole in zip(mass_of(self.left), w, strict=True)))
        one = self.greedy[:, None]
        return Mass(jnp.where(one, jnp.uint32(1 << 20), w.high), jnp.where(one, 0, w.low))

    def kept_key(self) -> Array:
        """Keys [B, N] of the tokens still in, that of -inf for the others."""
        return jnp.where(self.kept, self.key, NO_KEY)

    def top(self) -> Array:
        """The largest key of the tokens still in, [B]."""
        return self.axis.max(largest(self.kept_key()))

    def count(self, chosen: Array) -> Array:
        """How many tokens are chosen, bool [B, N]: int32 [B]."""
        return self.axis.sum(count(chosen))

    def total(self, mass: Mass) -> Wide:
        """The sum of weights [B, N], two limbs [B]."""
        return self.axis.sum_wide(mass.total())

    def total_and_count(self, mass: Mass) -> tuple[Wide, Array]:
        """As `total`, and how many of the weights are above 0, int32 [B]."""
        total, number = mass.total_and_count()
        return self.axis.sum_wide(total), self.axis.sum(number)

    def key_at(self, key: Array, ids: Array) -> Array:
        """Of keys [B, N], those of the tokens `ids` [B, n]; that of -inf for tokens without a column."""
        if self.columns is None:
            return self.axis.key_at(key, ids)
        same = self.columns[:, None, :] == ids[:, :, None]
        return largest(jnp.where(same, key[:, None, :], NO_KEY))

    def ranked(self, key: Array, n: int) -> tuple[Array, Array]:
        """The n largest of keys [B, N] and their ids, [B, n], in (key descending, id ascending) order."""
        key, at = self.axis.top(key, n)
        return key, at if self.columns is None else entries(self.columns, at)

    def first(self, n: int) -> tuple[Array, Array]:
        """Keys and ids [B, n] of the first n tokens still in, in (key descending, id ascending) order."""
        if self.maxima is None:
            return self.ranked(self.kept_key(), n)
        return self.axis.top_logits(self.x, self.maxima, n)

    def reach(
        self, coarse: Callable[[], Array], key: Callable[[], Array], mass: Mass | FloatMass, goal: Wide
    ) -> tuple[Cut, Wide]:
        """As `Axis.reach`, among the tokens still in."""
        cut, before = self.axis.reach(coarse, key, self.kept, mass, goal)
        return self._with_ids(cut), before

    def kth(self, k: Array) -> Cut:
        """As `Axis.kth`, among the tokens still in."""
        return self._with_ids(self.axis.kth(self.key, self.kept, k))

    def _with_ids(self, cut: Cut) -> Cut:
        return cut if self.columns is None else Cut(cut.key, wide.column(self.columns, cut.id))

    def pick(self, mass: Mass, rest: Wide) -> Array:
        """The token [B], first in id order whose running weight exceeds `rest` [B]."""
        at = self.axis.pick(mass, rest)
        return at if self.columns is None else wide.column(self.columns, at)

    def keep(self, kept: Array, on: Array | None) -> TracedState:
        """Rows that are `on` (None: all) without the tokens that are not `kept`."""
        kept = self.kept & (kept if on is None else kept | ~on[:, None])
        return replace(self, kept=kept, uncut=False, maxima=None)

    def keep_to(self, cut: Cut, on: Array | None, *, ties: bool = False) -> TracedState:
        """Rows that are `on` without the tokens beyond a cut; with ties, all that share its key stay."""
        level = self.key == cut.key[:, None]
        level = level if ties else level & (self.ids <= cut.id[:, None])
        return self.keep((self.key > cut.key[:, None]) | level, on)

    def weighed(self, m: Array, c: Array, inverse_t: Array, on: Array | None) -> TracedState:
        """At another temperature: what is still in is what it sees, in rows that are `on`."""
        weighing, kept, before = Weighing(self.x, m, c), self.kept, self.judged

        def judged() -> Wide:
            seen = self.total(weighing()[1].where(kept).mass())
            return seen if on is None else wide.select(on, seen, before())

        uncut = self.uncut or on is None
        return replace(self, m=m, c=c, inverse_t=inverse_t, weighing=weighing, judged=judged, uncut=uncut)

    def highest_value(self, on: Array | None) -> Array:
        """The largest logit still in, [B], of rows that are `on`; the others' m."""
        return self.m if self.uncut else either(on, values(self.top()), self.m)

    def marked(self, chosen: Array, ids: Array) -> Array:
        """bool [B, N] with the columns of token ids [B, n] set."""
        if not ids.shape[1]:
            return chosen
        if self.columns is not None:
            return chosen | jnp.any(self.columns[:, :, None] == ids[:, None, :], -1)
        rows = lax.broadcasted_iota(jnp.int32, ids.shape, 0)
        return chosen.at[rows, self.axis.local(ids, chosen.shape[1])].set(True, mode="drop")

    def narrowed(self, key: Array, ids: Array) -> TracedState:
        """With the tokens of these keys and ids [B, n] as the only columns, on every device; -inf's key is none."""
        key, ids = in_id_order(key, jnp.where(key > NO_KEY, ids, MAX_VOCAB))
        room = ((0, 0), (0, -key.shape[1] % 32))
        key = jnp.pad(key, room, constant_values=NO_KEY)
        x = values(key)
        return replace(
            self,
            axis=ONE_DEVICE,
            x=x,
            key=key,
            kept=key > NO_KEY,
            weighing=Weighing(x, self.m, self.c),
            columns=jnp.pad(ids, room, constant_values=MAX_VOCAB),
            maxima=None,
            uncut=False,
        )


def either(on: Array | None, a: Array, b: Array) -> Array:
    """a [B, ...] in rows that are `on` (None: all), b in the others."""
    return a if on is None else jnp.where(on.reshape(-1, *[1] * (a.ndim - 1)), a, b)


def padded(x: Array) -> Array:
    """Logits [B, V] with -inf columns added, up to `padded_size`."""
    return jnp.pad(x, ((0, 0), (0, padded_size(x.shape[1]) - x.shape[1])), constant_values=-np.inf)


def masked(axis: Axis, x: Array, program: TracedProgram) -> Array:
    """Logits [B, N] with the hard masks applied: the bitmask and the banned ids."""
    if program.mask is not None:
        x = jnp.where(axis.allowed(jnp.asarray(program.mask), x.shape[1]), x, -np.inf)
    banned = jnp.asarray(program.tables["banned"])
    if not banned.shape[1]:
        return x
    return _put(x, axis.local(banned, x.shape[1]), jnp.full(banned.shape, -np.inf, jnp.float32))


def status(most: Array) -> Array:
    """int8 [B] by the largest key after the hard masks: 1 NaN or +inf, 2 nothing above -inf, else 0 (S-N4, S-N5)."""
    return jnp.where(most >= POS_INF_KEY, 1, jnp.where(most <= NEG_INF_KEY, 2, 0)).astype(jnp.int8)


def entered(axis: Axis, x: Array, maxima: Array) -> TracedState:
    """The state of rows whose logits [B, N], and their `block_maxima`, are final: all above -inf are in (S-N4)."""
    key = keys(x)
    kept = key > NEG_INF_KEY
    rows = x.shape[0]
    zero = jnp.zeros(rows, jnp.uint32)
    m, c = values(axis.max(largest(maxima))), jnp.full(rows, _UNIT, jnp.float32)
    weighing = Weighing(x, m, c)
    return TracedState(
        axis=axis,
        x=x,
        key=key,
        kept=kept,
        m=m,
        c=c,
        inverse_t=jnp.ones(rows, jnp.float32),
        weighing=weighing,
        judged=lambda: axis.sum_wide(weighing()[1].where(kept).mass().total()),
        trimmed=jnp.full(rows, -1, jnp.int32),
        left=(zero, zero),
        greedy=jnp.zeros(rows, bool),
        maxima=maxima,
    )


# --- edits: rule S-N7, on candidates they touch only ------------------------------------------------------------


def edited(axis: Axis, x: Array, program: TracedProgram) -> Array:
    """Logits [B, V] after the stages that change them, in the program's order."""
    stages = zip(program.stages, program.columns, program.on, strict=True)
    for stage, given, active in stages:
        on = True if active is None else jnp.asarray(active)[:, None]
        if stage.op == ADD:
            ids, added = map(jnp.asarray, program.tables[f"added {stage.nth}"])
            ids = axis.local(ids, x.shape[1])
            x = _write(x, ids, (ids < x.shape[1]) & on, lambda v, added=added: v + added)
        elif stage.op == SCALE:
            x = _changed(x, lambda v, given=given: product(v, jnp.asarray(given["factor"])[:, None]), on)
        elif stage.op == SMOOTH:
            x = _smoothed(axis, x, given, on)
        elif stage.op in _PENALTIES:
            counts = jnp.asarray(program.tables["counts"])
            n = _seen(counts, stage.option("scope"))
            change = _PENALTIES[stage.op](given, n.astype(jnp.float32))
            x = _write(x, axis.local(counts[:, 0], x.shape[1]), (n > 0) & on, change)
    return x


def _smoothed(axis: Axis, x: Array, given: dict[str, Any], on: Array | bool) -> Array:
    """Logits [B, V] at a distance of (square + cube * d) * d^2 from the largest of their row (S-N8)."""
    top = cleaned(values(axis.max(largest(keys(x)))))[:, None]
    square, cube = (jnp.asarray(given[name])[:, None] for name in ("square", "cube"))

    def change(v: Array) -> Array:
        d = clamped(top - v)
        return top - clamped(clamped(square + clamped(cube * d)) * clamped(d * d))

    return _changed(x, change, on)


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


_PENALTIES = {REPETITION: _repetition, FREQUENCY: _frequency, PRESENCE: _presence}
EDITS = frozenset({BAN, ADD, SCALE, SMOOTH, *_PENALTIES})
"""The edits that a trace runs."""


def _write(x: Array, ids: Array, on: Array, change: Callable[[Array], Array]) -> Array:
    """`x` with the entries `ids` [B, n] changed where `on`; ids beyond the row are padding and are dropped."""
    if not ids.shape[1]:
        return x
    old = jnp.take_along_axis(x, jnp.minimum(ids, x.shape[1] - 1), 1)
    return _put(x, ids, _changed(old, change, on))


def _changed(old: Array, change: Callable[[Array], Array], on: Array | bool) -> Array:
    return jnp.where(~is_neg_inf(old) & on, clamped(change(cleaned(old))), old)


def _put(x: Array, ids: Array, new: Array) -> Array:
    rows = lax.broadcasted_iota(jnp.int32, ids.shape, 0)
    return x.at[rows, ids].set(new, mode="drop")
