"""The random numbers of PyTorch's generator on CPUs, which transformers' watermarks are defined by.

Its engine is MT19937 seeded with 32 bits, as NumPy's legacy RandomState is, whose stream is frozen. Rule S-M2.
"""

from __future__ import annotations

import threading
from array import array
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

_WORD = 1 << 32


class _Generator(threading.local):
    """The generator of a thread, which is seeded anew for each list: making one takes a hundred times as long."""

    @cached_property
    def legacy(self) -> np.random.RandomState:
        return np.random.RandomState(0)


_GENERATOR = _Generator()


def words(seed: int, n: int) -> NDArray[np.uint32]:
    """The first words, uint32 [n], of `torch.Generator().manual_seed(seed)`, of whose seed 32 bits count."""
    generator = _GENERATOR.legacy
    generator.seed(seed % _WORD)
    return generator.randint(0, _WORD, size=n, dtype=np.uint32)


def bits(seed: int, n: int) -> NDArray[np.uint8]:
    """`torch.randint(0, 2, (n,))` of a generator with this seed, uint8 [n]."""
    return (words(seed, n) & np.uint32(1)).astype(np.uint8)


def swaps(seed: int, n: int, count: int) -> NDArray[np.int64]:
    """With which place each of the first `count` places is swapped when `torch.randperm(n)` shuffles, int64 [count]."""
    places = np.arange(min(count, n - 1), dtype=np.int64)
    moves = words(seed, places.size).astype(np.int64)
    moves %= n - places
    moves += places
    return moves


def permutation(seed: int, n: int, count: int) -> NDArray[np.int64]:
    """The first `count` entries of `torch.randperm(n)` of a generator with this seed, int64 [count]."""
    # Arrays of Python's own: their items are numbers of Python's, and they take a quarter of a list's memory.
    order, moves = array("q", range(n)), array("q", swaps(seed, n, count).tobytes())
    for place, other in enumerate(moves):
        order[place], order[other] = order[other], order[place]
    return np.array(order[:count], np.int64)


def is_among_first(item: int, seed: int, n: int, count: int) -> bool:
    """Whether `item` is among the first `count` entries of `torch.randperm(n)`, without shuffling the others."""
    moves = swaps(seed, n, count)
    at, done = item, 0
    while True:
        # The item stays at its place until that place is reached or an earlier one is swapped with it.
        until = min(at, moves.size)
        if (moves[done:until] == at).any():
            return True
        if at >= moves.size:
            return at < count
        if moves[at] == at:
            return True
        at, done = int(moves[at]), at + 1
