"""Gemma's methods inside `jax.jit`, `vmap` and `scan`: the tokens that they draw outside, from keys not known yet."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from tirage.backends import jax as backend
from tirage.backends.jax import traced
from tirage.backends.jax.arrays import is_traced
from tirage.backends.jax.program import programs, words
from tirage.compat.gemma.keys import RULE, key_words, sources_of
from tirage.errors import ParamsError
from tirage.params import SamplingParams
from tirage.sampling import row_states
from tirage.sampling_batch import SamplingBatch

_FLOATS = {"float16", "bfloat16", "float32", "float64"}


def needs_trace(logits: Any, rng: Any) -> bool:
    """Whether logits [*B, V] or a key have no values yet."""
    return is_traced(*jax.tree.leaves((logits, rng)))


def next_tokens(params: SamplingParams, logits: Any, rng: Any) -> Array:
    """The token ids int32 [*B] that a method with `params` draws from logits [*B, V] with this key.

    Raises ParamsError without a key, unless the method is greedy, and for one that is no seed.
    """
    x = jnp.asarray(logits)
    matrix = backend.as_logits((x if x.dtype.name in _FLOATS else x.astype(jnp.float32)).reshape(-1, x.shape[-1]))
    count, size = matrix.shape
    seed = np.zeros(2, np.uint32) if rng is None and params.temperature == 0 else _seed_words(rng)
    states = row_states((count, size), params.replace(seed=0), None, None, list(range(count)))
    tokens = jnp.full(count, -1, jnp.int32)
    for members, program in programs(SamplingBatch.of(states, size).metadata(None), size):
        # All rows have the parameters, so one program holds them all.
        keys = jnp.concatenate([jnp.broadcast_to(seed, (count, 2)), program.keys[:, 2:]], axis=1)
        tokens = tokens.at[members].set(traced.draw(matrix, replace(program, keys=keys)).token_ids)
    return tokens.reshape(x.shape[:-1])


def _seed_words(rng: Any) -> Any:
    """The seed of `rng` as uint32 [2], low word first: that of `sources_of`, also for a key in a trace."""
    if rng is None:
        raise ParamsError(
            "rng must be given inside jax.jit, got None, whose fresh seed would be frozen into the program; pass a key"
        )
    if not is_traced(*jax.tree.leaves(rng)):
        return words(np.array(sources_of(rng, 1)[0].seed, np.int64))
    data = _only(key_words(rng))
    if data.shape == (2,) and data.dtype == jnp.uint32:
        return data[::-1]
    if data.shape == () and data.dtype.name == "uint64":
        raise ParamsError("rng must be an int64 inside jax.jit, got uint64, which may not fit; cast it to int64")
    if data.shape == () and jnp.issubdtype(data.dtype, jnp.integer):
        return _split(data)
    raise ParamsError(f"rng must be {RULE}, got {data.dtype} of shape {list(data.shape)}; pass a key")


def _only(data: Any) -> Array:
    """The one seed that a sequence of one holds; a lone seed itself."""
    if isinstance(data, Array) and (data.ndim == 0 or (data.shape == (2,) and data.dtype == jnp.uint32)):
        return data
    if len(data) != 1:
        raise ParamsError(f"rng must hold one seed per prompt, which is 1, got {len(data)}")
    return jnp.asarray(key_words(data[0]))


def _split(seed: Array) -> Array:
    """An integer [] as the two words of an int64, uint32 [2], low word first."""
    if seed.dtype.itemsize == 8:
        low, high = seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF
    else:
        low, high = seed, jnp.where(seed < 0, -1, 0)
    return jnp.stack([low.astype(jnp.uint32), high.astype(jnp.uint32)])
