"""SynthID: layers of keyed tournaments between tokens, which keep the law on average over keys (S-M4).

Source: Dathathri et al. 2024, "Scalable watermarking for identifying large language model outputs", Nature 634, as
transformers' SynthIDTextWatermarkLogitsProcessor has it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tirage.watermarks import torch_random
from tirage.watermarks.masses import scale

_MULTIPLIER = np.uint64(6364136223846793005)
_ONE = np.uint64(1)
_POINT = 30
_MOST_PLACES, _MANY = 1 << 17, 4096
"""Larger tables, and those of few tokens, are looked up layer by layer."""


@lru_cache(maxsize=8)
def g_table(seed: int, size: int) -> NDArray[np.uint8]:
    """The table of g-values, uint8 [size], remembered; not to be written."""
    table = torch_random.bits(seed, size)
    table.flags.writeable = False
    return table


def hashed(state: NDArray[np.uint64], tokens: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The hashes `state` [n] with one more token each, `tokens` [n] or [1]: a step of a linear congruence."""
    with np.errstate(over="ignore"):
        return (state + tokens) * _MULTIPLIER + _ONE


def context_hashes(output: NDArray[np.integer], width: int) -> NDArray[np.uint64]:
    """The hash of the context before each output token and before the next one, uint64 [n + 1].

    A context is the `width` output tokens before, zeros where there are fewer; the prompt is no part of it.
    """
    padded = np.concatenate([np.zeros(width, np.uint64), np.asarray(output, np.uint64)])
    state = np.ones(len(output) + 1, np.uint64)
    for offset in range(width):
        state = hashed(state, padded[offset : offset + state.size])
    return state


def is_repeated(hashes: NDArray[np.uint64], memory: int) -> bool:
    """Whether the last of the `hashes` [n] is among the `memory` before it; a memory begins with zeros."""
    last, before = hashes[-1], hashes[-1 - memory : -1]
    return bool((before == last).any() or (last == 0 and before.size < memory))


def g_values(
    context: int, ids: NDArray[np.integer], keys: Sequence[int], *, seed: int, size: int
) -> NDArray[np.uint64]:
    """The layers in which the tokens `ids` [n] win after a context with this hash, a bit of uint64 [n] for each.

    `seed` and `size` are those of the table of g-values.
    """
    ngrams = hashed(np.array([context % (1 << 64)], np.uint64), np.asarray(ids, np.uint64))
    if size & (size - 1) or size > _MOST_PLACES or len(ids) < _MANY:
        return _packed(ngrams, keys, g_table(seed, size))
    return _of_places(tuple(keys), seed, size)[ngrams & np.uint64(size - 1)]


def _packed(ngrams: NDArray[np.uint64], keys: Sequence[int], table: NDArray[np.uint8]) -> NDArray[np.uint64]:
    found = np.zeros(ngrams.size, np.uint64)
    for layer, key in enumerate(keys):
        found |= g_layer(ngrams, key, table).astype(np.uint64) << np.uint64(layer)
    return found


@lru_cache(maxsize=8)
def _of_places(keys: tuple[int, ...], seed: int, size: int) -> NDArray[np.uint64]:
    """`g_values` of n-grams by their lowest bits, uint64 [size]: for a power of two nothing else counts."""
    return _packed(np.arange(size, dtype=np.uint64), keys, g_table(seed, size))


def g_layer(ngrams: NDArray[np.uint64], key: int, table: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """The g-values of hashed n-grams [n] in the layer of `key`, bool [n]."""
    places = hashed(ngrams, np.array([key % (1 << 64)], np.uint64)).view(np.int64)
    # The remainder of a negative number is not negative, as in PyTorch.
    return table[np.remainder(places, table.size)].astype(bool)


def tournament(w: NDArray[np.uint64], wins: NDArray[np.uint64], layers: int) -> NDArray[np.uint64]:
    """Integer weights uint64 [n], below 2^60 in all, after so many rounds of matches; `wins` is as `g_values` gives it.

    A round multiplies the share of a token by 1 + g - (share of the tokens with g = 1), a factor in 2^-30.
    """
    w, masks, factors, spare = w.copy(), *(np.empty_like(w) for _ in range(3))
    for layer in range(layers):
        # All bits where g = 1.
        np.right_shift(wins, np.uint64(layer), out=masks)
        masks &= _ONE
        np.negative(masks, out=masks)
        total, won = int(w.sum()), int(np.bitwise_and(w, masks, out=spare).sum())
        lost, kept = ((n * total - won << _POINT) // total for n in (1, 2))
        np.bitwise_and(masks, np.uint64(kept - lost), out=factors)
        factors += np.uint64(lost)
        scale(w, factors, spare)
    return w


@lru_cache(maxsize=32)
def score_law(keys: tuple[int, ...], seed: int, size: int) -> NDArray[np.float64]:
    """How many layers a token wins in a text without the watermark: probabilities float64 [layers + 1].

    In a table whose size is a power of two, an n-gram's place in one layer decides that in all others, so the law is
    counted over all places; otherwise layers count as independent.
    """
    table = g_table(seed, size)
    if size & (size - 1):
        mean, n = float(table.mean()), len(keys)
        return np.array([math.comb(n, k) * mean**k * (1 - mean) ** (n - k) for k in range(n + 1)])
    places = np.arange(size, dtype=np.uint64)
    won = sum(g_layer(places, key, table).astype(np.int64) for key in keys)
    return np.bincount(won, minlength=len(keys) + 1) / size
