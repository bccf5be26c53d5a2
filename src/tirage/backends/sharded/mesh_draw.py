"""One draw on the devices of a mesh axis: inside `shard_map`, each with its part of the vocabulary.

`backends/jax/traced.py` for rows that no device holds whole; everything returned is the same on every device.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from tirage.backends import View
from tirage.backends.jax import wide
from tirage.backends.jax.program import TracedProgram
from tirage.backends.jax.rule import bits_of, exponents, is_neg_inf, keys, product, uniform, values, weights
from tirage.backends.jax.steps import TracedState, edited, entered, masked, padded, status
from tirage.backends.jax.traced import by_view
from tirage.backends.jax.wide import OCTAVE, Wide, u32
from tirage.backends.sharded.axis import Axis
from tirage.backends.sharded.mesh_filters import FILTERS
from tirage.exact import numbers
from tirage.exact.keys import NEG_INF_KEY
from tirage.exact.philox import Domain
from tirage.stages import FIRST_FILTER

_UNIT = numbers.temperature_constant(1.0)
_NAN = np.float32(np.nan)
_NO_TOKEN = -(1 << 21)
"""An id that stays negative from the first token of any device on."""
_BLANK = {"token_ids": -1, "support": 0, "ranks": 0, "top_ids": -1}


def draw(axis: Axis, logits: Array, program: TracedProgram) -> dict[str, Array]:
    """The fields of a Drawn for rows [B, N] of this device's logits; `asked_logprobs` is [B, A], padded."""
    raw = padded(logits)
    program = localised(axis, program, raw.shape[1])
    x = masked(_allowed(axis, raw, program), replace(program, mask=None))
    code = _status(axis, status(x))
    state = entered(edited(x, program))
    nowhere = jnp.full_like(state.trimmed, _NO_TOKEN)
    state = replace(state, m=values(axis.max(jnp.max(state.key, -1))), trimmed=nowhere).weighed()
    first = state.m
    for stage, given, on in zip(program.stages, program.columns, program.on, strict=True):
        if stage.op >= FIRST_FILTER:
            columns = {name: jnp.asarray(column) for name, column in given.items()}
            state = FILTERS[stage.op](axis, state, stage, columns, jnp.asarray(on), program.widths[0])
    mass = state.mass()
    words = jnp.asarray(program.keys)
    law = MeshLaw.drawn(axis, state, axis.total(mass))
    u = uniform((words[:, 0], words[:, 1]), words[:, 2], words[:, 3], Domain.DRAW)
    token = jnp.maximum(axis.pick(mass, wide.mul(u, law.total)[2:]), 0)

    def report(view: View) -> dict[str, Array]:
        key, its = _described(axis, raw, state, first, law, view)
        return _reported(axis, key, its, program, token)

    drawn = {
        "token_ids": token,
        "sampled_logprobs": law.logprobs(axis.key_at(state.key, token[:, None]), token[:, None])[:, 0],
        "support": axis.count((mass.high | mass.low) != 0),
        **by_view(program, token.shape[0], report),
    }
    return {"status": code, **_without_bad_rows(drawn, code)}


def localised(axis: Axis, program: TracedProgram, size: int) -> TracedProgram:
    """`program` with token ids that count from this device's first; ids of other devices become padding."""

    def local(ids: Any) -> Array:
        at = jnp.asarray(ids) - axis.start
        return jnp.where((at >= 0) & (at < axis.width), at, size)

    def table(name: str, entry: Any) -> Any:
        if name.startswith("added"):
            return local(entry[0]), entry[1]
        if name == "counts":
            counts = jnp.asarray(entry)
            return counts.at[:, 0].set(local(counts[:, 0])) if counts.shape[2] else counts
        return local(entry)

    return replace(program, tables={name: table(name, entry) for name, entry in program.tables.items()})


def _allowed(axis: Axis, x: Array, program: TracedProgram) -> Array:
    """Logits without what the bitmask of whole rows forbids among this device's ids."""
    if program.mask is None:
        return x
    words = u32(jnp.asarray(program.mask))
    ids = axis.start + jnp.arange(x.shape[1], dtype=jnp.int32)
    word = jnp.take(words, jnp.minimum(ids >> 5, words.shape[1] - 1), axis=1)
    return jnp.where((word >> u32(ids & 31)) & 1 == 1, x, -np.inf)


def _status(axis: Axis, own: Array) -> Array:
    """The rows' status from each device's own: 1 on any is 1, 2 on all is 2 (S-N4, S-N5)."""
    spoiled, empty = axis.max((own == 1).astype(jnp.int32)), axis.min((own == 2).astype(jnp.int32))
    return jnp.where(spoiled == 1, 1, jnp.where(empty == 1, 2, 0)).astype(jnp.int8)


def _without_bad_rows(found: dict[str, Array], code: Array) -> dict[str, Array]:
    """`found` with what a row reports that has no token (S-N6)."""
    ok = code == 0
    return {
        name: jnp.where(ok.reshape(-1, *[1] * (value.ndim - 1)), value, _BLANK.get(name, _NAN))
        for name, value in found.items()
    }


@dataclass(frozen=True, slots=True)
class MeshLaw:
    """What turns keys of a view into logprobs: m, 1 / T and the mass of each row, as every device knows them."""

    m: Array
    inverse_t: Array
    total: Wide
    trimmed: Array | None = None
    left: Wide | None = None
    greedy: Array | None = None

    @classmethod
    def drawn(cls, axis: Axis, state: TracedState, total: Wide) -> MeshLaw:
        """The law that tokens are drawn from."""
        return cls(state.m, state.inverse_t, total, state.trimmed + axis.start, state.left, state.greedy)

    def logprobs(self, key: Array, ids: Array) -> Array:
        """Logprobs of tokens [B, n] by key and global id; -inf at or below the key of -inf."""
        log_mass = wide.ln_fixed(wide.ilog2(_at_least_one(self.total)) - 40 * OCTAVE)
        distance = product(self.m[:, None] - values(key), self.inverse_t[:, None]) + log_mass[:, None]
        # 0 - v, without leaving it to the compiler whether that can be -0.0.
        lp = jnp.where(bits_of(distance) & 0x7FFFFFFF == 0, np.float32(0), -distance)
        if self.trimmed is not None and self.left is not None and self.greedy is not None:
            cut = wide.ln_fixed(wide.ilog2(_at_least_one(self.left)) - wide.ilog2(_at_least_one(self.total)))
            lp = jnp.where(ids == self.trimmed[:, None], cut[:, None], lp)
            lp = jnp.where(self.greedy[:, None], np.float32(0), lp)
        return jnp.where(key > NEG_INF_KEY, lp, -np.inf)


def _at_least_one(a: Wide) -> Wide:
    return wide.select(wide.is_zero(a), wide.constant(1, a[0], len(a)), a)


def _described(
    axis: Axis, raw: Array, state: TracedState, first: Array, law: MeshLaw, view: View
) -> tuple[Array, MeshLaw]:
    """Keys [B, N] of a view, that of -inf outside it, and its law."""
    if view == View.SAMPLED:
        return jnp.where(state.kept, state.key, NEG_INF_KEY), law
    x = raw if view == View.RAW else state.x
    x = jnp.where((bits_of(x) & 0x7F800000) != 0x7F800000, x, -np.inf)
    plain = jnp.full(state.greedy.shape, view == View.RAW) | state.greedy
    c, inverse_t = jnp.where(plain, _UNIT, state.c), jnp.where(plain, np.float32(1), state.inverse_t)
    m = first if view == View.PROCESSED else values(axis.max(jnp.max(keys(x), -1)))
    total = axis.total(weights(exponents(x, m, c)))
    return jnp.where(is_neg_inf(x), NEG_INF_KEY, keys(x)), MeshLaw(m, inverse_t, total)


def _reported(axis: Axis, key: Array, law: MeshLaw, program: TracedProgram, token: Array) -> dict[str, Array]:
    asked, n = jnp.asarray(program.asked), program.widths[1]
    ids = jnp.concatenate([token[:, None], jnp.maximum(asked, 0)], 1)
    at = axis.key_at(key, ids)
    lp = law.logprobs(at, ids)
    top_key, top = axis.top(key, n) if n else (asked[:, :0], asked[:, :0])
    held = (top_key > NEG_INF_KEY) & (jnp.arange(n, dtype=jnp.int32) < jnp.asarray(program.top_n)[:, None])
    return {
        "logprobs": lp[:, 0],
        "ranks": 1 + axis.count(key > at[:, :1]),
        "top_ids": jnp.where(held, top, -1),
        "top_logprobs": jnp.where(held, law.logprobs(top_key, top), -np.inf),
        "asked_logprobs": jnp.where(asked >= 0, lp[:, 1:], _NAN),
    }
