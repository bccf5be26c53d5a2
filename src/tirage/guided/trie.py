"""The tokens of a vocabulary as a tree of their bytes, in arrays, so that all of them are followed at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True, eq=False)
class Trie:
    """Nodes by depth, the root first; the `count[n]` children of node n are side by side from `first[n]` on.

    `spelled[n]` is the byte that leads to node n. `ends[i]` is the node at which token i ends, 0 for padding.
    """

    spelled: NDArray[np.uint8]
    first: NDArray[np.int64]
    count: NDArray[np.int64]
    ends: NDArray[np.int64]

    @classmethod
    def of(cls, tokens: Sequence[bytes]) -> Trie:
        """The tree of the tokens."""
        order = sorted((i for i, token in enumerate(tokens) if token), key=tokens.__getitem__)
        text = np.frombuffer(b"".join(tokens[i] for i in order), np.uint8)
        sizes = np.array([len(tokens[i]) for i in order], np.int64)
        at, starts = np.zeros(len(order), np.int64), np.cumsum(sizes) - sizes
        parents, spelled = [np.zeros(0, np.int64)], [np.zeros(1, np.uint8)]
        alive, depth, total = np.arange(len(order)), 0, 1
        while alive.size:
            byte, parent = text[starts[alive] + depth], at[alive]
            fresh = np.ones(len(alive), bool)
            fresh[1:] = (parent[1:] != parent[:-1]) | (byte[1:] != byte[:-1])
            at[alive] = total - 1 + np.cumsum(fresh)
            parents.append(parent[fresh])
            spelled.append(byte[fresh])
            total, depth = total + int(fresh.sum()), depth + 1
            alive = alive[sizes[alive] > depth]
        count = np.bincount(np.concatenate(parents), minlength=total)
        ends = np.zeros(len(tokens), np.int64)
        ends[order] = at
        return cls(np.concatenate(spelled), 1 + np.cumsum(count) - count, count, ends)

    def tokens_at(self, usable: NDArray[np.bool_]) -> NDArray[np.int64]:
        """For each node the lowest usable token that ends there, -1 where none does."""
        found = np.full(len(self.spelled), -1)
        ids = np.flatnonzero(usable & (self.ends > 0))[::-1]
        found[self.ends[ids]] = ids
        return found

    def below(self, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """All children of some nodes, and for each the index of its parent among them."""
        counts = self.count[nodes]
        parent = np.repeat(np.arange(len(nodes)), counts)
        offset = np.arange(len(parent)) - np.repeat(np.cumsum(counts) - counts, counts)
        return self.first[nodes][parent] + offset, parent
