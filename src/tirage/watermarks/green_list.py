"""KGW: a keyed share of the vocabulary is green, and green tokens are made likelier (S-M3).

Source: Kirchenbauer et al. 2023, arXiv:2301.10226 and arXiv:2306.04634, as transformers' WatermarkLogitsProcessor has
them on CPUs.
"""

from __future__ import annotations

import threading
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from tirage.exact.keys import descending, keys
from tirage.watermarks.torch_random import is_among_first, permutation

TABLE_SIZE = 1_000_003
"""Entries of the table by which `selfhash` hashes tokens."""
USUAL_SIZE = 1 << 18
"""Entries that are made of it while no id is larger, as in nearly all vocabularies: in a quarter of the time."""
LOOKED_AT = 40
"""The likeliest tokens of which `selfhash` asks whether they are green."""
_LISTED = 4096
"""Vocabularies up to this size have their green lists made whole, and remembered, where one token is asked for."""
_SEEDS = (1 << 64) - 1
_MAKING = threading.Lock()
_INT64 = 1 << 64


def green_count(vocab_size: int, ratio: float) -> int:
    """How many tokens of a vocabulary are green."""
    return int(vocab_size * ratio)


def left_seed(key: int, last: int) -> int:
    """The seed of the green list after the token `last`."""
    return key * last % _SEEDS


@lru_cache(maxsize=64)
def hash_table(key: int, size: int = USUAL_SIZE) -> NDArray[np.int32]:
    """The first entries, int32 [size], of the table by which `selfhash` hashes tokens, remembered; not to be written.

    They take a tenth of a second to make: `prepare` does, where nobody else waits.
    """
    table = permutation(key, TABLE_SIZE, size).astype(np.int32)
    table.flags.writeable = False
    return table


def prepare(key: int) -> None:
    """Makes the table of a key, once where several threads want it."""
    with _MAKING:
        hash_table(key)


def self_seed(key: int, ngram: NDArray[np.integer]) -> int:
    """The seed of the list that decides on the last token of `ngram` [width], by all of them."""
    places = np.asarray(ngram, np.int64) % TABLE_SIZE
    table = hash_table(key) if places.max() < USUAL_SIZE else hash_table(key, TABLE_SIZE)
    a = table[places] + 1
    products = [_signed(_signed(key * int(each)) * int(a[-1])) for each in a]
    return min(products) % _SEEDS


def _signed(n: int) -> int:
    """`n` wrapped to 64 bits with a sign, as integers of tensors are."""
    return (n + (1 << 63)) % _INT64 - (1 << 63)


@lru_cache(maxsize=256)
def left_green(key: int, last: int, vocab_size: int, count: int) -> NDArray[np.bool_]:
    """Which tokens are green after the token `last`, bool [V], remembered; not to be written."""
    green = np.zeros(vocab_size, bool)
    green[permutation(left_seed(key, last), vocab_size, count)] = True
    green.flags.writeable = False
    return green


def self_green(
    key: int, context: NDArray[np.integer], x: NDArray[np.float32], ids: NDArray[np.int64], count: int
) -> NDArray[np.bool_]:
    """Which tokens are green by their own hash, bool [V]: of the 40 in `ids` [n] with the largest logits `x` [V].

    `context` [width - 1] are the tokens before.
    """
    green = np.zeros(x.size, bool)
    for token in ids[descending(keys(x[ids]))[:LOOKED_AT]].tolist():
        green[token] = is_green(key, np.append(context, token), x.size, count)
    return green


def is_green(key: int, ngram: NDArray[np.integer], vocab_size: int, count: int) -> bool:
    """Whether `selfhash` has the last token of `ngram` [width] green."""
    return is_among_first(int(ngram[-1]), self_seed(key, ngram), vocab_size, count)


def is_green_after(key: int, last: int, token: int, vocab_size: int, count: int) -> bool:
    """Whether `lefthash` has `token` green after the token `last`."""
    if vocab_size <= _LISTED:
        return bool(left_green(key, last, vocab_size, count)[token])
    return is_among_first(token, left_seed(key, last), vocab_size, count)
