"""The tokens of a vocabulary as a trie of their bytes, in arrays, so that many nodes are followed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Trie:
    """A trie whose N nodes are numbered by depth, the root first.

    `spelled` uint8 [N] is the byte that leads to each node. The `count[n]` children of node n have consecutive numbers
    from `first[n]` on; both are int64 [N]. `ends` int64 [V] is the node at which each token ends, 0 for padding.
    `levels` are the first node of each depth, and N.
    """

    spelled: NDArray[np.uint8]
    first: NDArray[np.int64]
    count: NDArray[np.int64]
    ends: NDArray[np.int64]
    levels: tuple[int, ...]

    @classmethod
    def of(cls, tokens: Sequence[bytes]) -> Trie:
        """The trie of the tokens."""
        order = sorted((i for i, token in enumerate(tokens) if token), key=tokens.__getitem__)
        text = np.frombuffer(b"".join(tokens[i] for i in order), np.uint8)
        sizes = np.array([len(tokens[i]) for i in order], np.int64)
        at, starts = np.zeros(len(order), np.int64), np.cumsum(sizes) - sizes
        parents, spelled = [np.zeros(0, np.int64)], [np.zeros(1, np.uint8)]
        alive, depth, total = np.arange(len(order)), 0, 1
        levels = [0, 1]
        while alive.size:
            byte, parent = text[starts[alive] + depth], at[alive]
            fresh = np.ones(len(alive), bool)
            fresh[1:] = (parent[1:] != parent[:-1]) | (byte[1:] != byte[:-1])
            at[alive] = total - 1 + np.cumsum(fresh)
            parents.append(parent[fresh])
            spelled.append(byte[fresh])
            total, depth = total + int(fresh.sum()), depth + 1
            levels.append(total)
            alive = alive[sizes[alive] > depth]
        count = np.bincount(np.concatenate(parents), minlength=total)
        ends = np.zeros(len(tokens), np.int64)
        ends[order] = at
        return cls(np.concatenate(spelled), 1 + np.cumsum(count) - count, count, ends, tuple(levels))

    @cached_property
    def below_bytes(self) -> NDArray[np.uint64]:
        """The bytes that occur below each node, as 256 bits: uint64 [N, 4]."""
        own = np.zeros((len(self.spelled), 4), np.uint64)
        own[np.arange(len(own)), self.spelled >> 6] = np.uint64(1) << (self.spelled & 63).astype(np.uint64)
        found = np.zeros_like(own)
        for low, high in reversed(list(pairwise(self.levels))):
            parents = low + np.flatnonzero(self.count[low:high])
            if parents.size:
                inside = (own | found)[self.first[parents[0]] : self.first[parents[-1]] + self.count[parents[-1]]]
                found[parents] = np.bitwise_or.reduceat(inside, self.first[parents] - self.first[parents[0]])
        return found

    @cached_property
    def by_byte(self) -> list[NDArray[np.int64]]:
        """For each of the 256 bytes, the nodes that it leads to, int64 [n]."""
        order = np.argsort(self.spelled[1:], kind="stable") + 1
        return np.split(order, np.cumsum(np.bincount(self.spelled[1:], minlength=256))[:-1])

    def child(self, node: int, byte: int) -> int:
        """The child of a node by a byte; -1 if there is none."""
        first = int(self.first[node])
        at = first + int(np.searchsorted(self.spelled[first : first + int(self.count[node])], byte))
        return at if at < first + int(self.count[node]) and self.spelled[at] == byte else -1

    def tokens_at(self, usable: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The lowest usable token that ends at each node, int64 [N], -1 where none does; `usable` is bool [V]."""
        found = np.full(len(self.spelled), -1)
        ids = np.flatnonzero(usable & (self.ends > 0))[::-1]
        found[self.ends[ids]] = ids
        return found

    def below(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All children of the nodes int64 [n], int64 [m], and the index of the parent of each in `nodes`, int64 [m]."""
        counts = self.count[nodes]
        parent = np.repeat(np.arange(len(nodes)), counts)
        offset = np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.first[nodes][parent] + offset, parent
