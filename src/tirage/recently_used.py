"""Values that are kept while they are used: few of them, and few that are large."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

V = TypeVar("V")


class RecentlyUsed(Generic[V]):
    """The values used most recently: at most `most`, and of at most `size` together; the last one whatever its size.

    For what is made of many objects, whose number the sizes stand for: the interpreter stops every thread while it
    looks through all of them for garbage. Any thread may ask.
    """

    def __init__(self, *, most: int, size: int) -> None:
        self._most, self._size, self._held = most, size, 0
        self._kept: OrderedDict[Hashable, tuple[V, int]] = OrderedDict()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, key: Hashable, make: Callable[[], V], size: Callable[[V], int]) -> V:
        """The value of a key, which is made, and its size asked for, unless it is kept.

        An error of `make` is raised and nothing is kept. Two threads that ask at once may both make it.
        """
        found = self.find(key)
        if found is None:
            found = make()
            self.put(key, found, size(found))
        return found

    def find(self, key: Hashable) -> V | None:
        """The value of a key if it is kept."""
        with self._lock:
            found = self._kept.get(key)
            if found is None:
                return None
            self._kept.move_to_end(key)
            return found[0]

    def put(self, key: Hashable, value: V, size: int) -> None:
        """Keeps a value in place of any other of its key."""
        with self._lock:
            self._held += size - self._kept.pop(key, (None, 0))[1]
            self._kept[key] = value, size
            while len(self._kept) > 1 and (len(self._kept) > self._most or self._held > self._size):
                self._held -= self._kept.popitem(last=False)[1][1]

    def clear(self) -> None:
        """Forgets all."""
        with self._lock:
            self._kept.clear()
            self._held = 0
