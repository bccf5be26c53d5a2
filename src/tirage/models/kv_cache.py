"""KV caches of a model in NumPy, whose forks share what they have in common."""

from __future__ import annotations

import weakref

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]

# A fork keeps room for at least so many positions of its own.
_OWN = 16


class Positions:
    """Keys and values [layers, kv_heads, capacity, head_dim] of some positions."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: Array, values: Array) -> None:
        self.keys, self.values = keys, values

    def new(self, capacity: int) -> Positions:
        """Room for so many positions of the same shape."""
        shape = (*self.keys.shape[:2], capacity, self.keys.shape[3])
        return Positions(np.empty(shape, np.float32), np.empty(shape, np.float32))

    def reserve(self, length: int, *, filled: int) -> None:
        """Extends the capacity to at least `length` positions, at least doubled; the first `filled` are kept."""
        capacity = self.keys.shape[2]
        if length <= capacity:
            return
        grown = self.new(max(length, 2 * capacity))
        grown.put(self, (0, filled), at=0)
        self.keys, self.values = grown.keys, grown.values

    def put(self, source: Positions, span: tuple[int, int], *, at: int) -> None:
        """Copies the positions [start, stop) of another to `at`."""
        start, stop = span
        self.keys[:, :, at : at + stop - start] = source.keys[:, :, start:stop]
        self.values[:, :, at : at + stop - start] = source.values[:, :, start:stop]


class SharedPositions(Positions):
    """Positions of which the first `shared` belong to several caches; behind them are those of `user` alone."""

    __slots__ = ("shared", "user")

    def __init__(self, keys: Array, values: Array, *, user: KVCache, shared: int) -> None:
        super().__init__(keys, values)
        self.user, self.shared = weakref.ref(user), shared

    def give_to(self, user: KVCache) -> None:
        """Names the cache whose own positions are there from now on."""
        self.user = weakref.ref(user)


class KVCache:
    """The KV cache of one request: `keys` and `values` [layers, kv_heads, capacity, head_dim], `length` of them filled.

    The capacity doubles when it is exceeded. Forks share the positions up to the first fork. Attention reads all keys
    in one piece, as its sums would depend on the pieces; so the cache that is extended has its own positions behind the
    shared ones, and those of the others are `_aside` meanwhile. One with more positions of its own than shared ones
    gets all of them for itself.
    """

    __slots__ = ("__weakref__", "_aside", "_held", "_kept", "length")

    def __init__(self, keys: Array, values: Array, length: int = 0) -> None:
        self.length = length
        self._held = SharedPositions(keys, values, user=self, shared=0)
        # Its own positions, of which the first `_kept` are up to date; None for a cache that shares nothing.
        self._aside: Positions | None = None
        self._kept = 0

    @property
    def keys(self) -> Array:
        """The keys, valid from `reserve` until another cache is extended."""
        return self._held.keys

    @property
    def values(self) -> Array:
        """The values, valid as the keys."""
        return self._held.values

    def reserve(self, length: int) -> None:
        """Extends the capacity to at least `length` positions, and puts its own in place."""
        if self._aside is not None:
            self._enter(self._aside)
        self._held.reserve(length, filled=self.length)

    def truncate(self, count: int) -> None:
        """Takes back the last `count` positions."""
        if self._aside is not None and self.length - count < self._held.shared:
            self._enter(self._aside)
            self._part()
        self.length -= count
        self._kept = min(self._kept, max(self.length - self._held.shared, 0))

    def copy(self) -> KVCache:
        """A fork that goes on by itself; both are for one thread."""
        if self._aside is None:
            self._held.shared, self._aside = self.length, self._held.new(0)
        self._leave()
        other = KVCache.__new__(KVCache)
        other.length, other._held, other._kept = self.length, self._held, self._kept
        other._aside = self._held.new(self._kept)
        other._aside.put(self._aside, (0, self._kept), at=0)
        return other

    def _enter(self, own: Positions) -> None:
        """Puts its own positions behind the shared ones, where another cache may have had its own."""
        held = self._held
        user = held.user()
        if user is not self:
            if user is not None and user._held is held:
                user._leave()
            held.put(own, (0, self._kept), at=held.shared)
            held.give_to(self)
        if self.length > 2 * held.shared:
            self._part()

    def _leave(self) -> None:
        """Brings what it keeps aside up to date, if its own positions are in the shared ones' buffer."""
        held, own = self._held, self._aside
        if own is None or held.user() is not self:
            return
        count = self.length - held.shared
        if count:
            own.reserve(max(count, _OWN), filled=self._kept)
        own.put(held, (held.shared + self._kept, self.length), at=self._kept)
        self._kept = count

    def _part(self) -> None:
        """Takes all positions for itself."""
        whole = self._held.new(self.length + 2 * _OWN)
        whole.put(self._held, (0, self.length), at=0)
        self._held = SharedPositions(whole.keys, whole.values, user=self, shared=0)
        self._aside, self._kept = None, 0
