"""What finished rows leave behind: keys and values by token prefix, for later prompts that begin alike."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tirage.models.protocol import Inputs

BLOCK = 16
Key = tuple[str | None, bytes, str, int]


@dataclass(slots=True, eq=False)
class CachedPrefix:
    """A cache with the tokens that filled it; `croppable` when any beginning of it is a cache too."""

    key: Key
    token_ids: tuple[int, ...]
    cache: Any
    croppable: bool
    size: int


def key_of(inputs: Inputs, stage: int) -> Key:
    """What must be equal, besides the tokens, for two requests to share a cache; `stage` is the rope's."""
    return inputs.adapter, inputs.media_key, inputs.salt, stage


class PrefixStore:
    """Caches of earlier rows within a budget of bytes; the one used longest ago goes first.

    Croppable entries are found by a chain of hashes over blocks of 16 tokens and then matched token by token,
    so that a hash never decides alone. Others serve only prompts that begin with all of their tokens.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.used = budget, 0
        self._entries: OrderedDict[int, CachedPrefix] = OrderedDict()
        self._blocks: dict[int, int] = {}
        self._whole: dict[tuple[Key, int, int], int] = {}
        self._lock = threading.Lock()
        self._next = 0

    def __len__(self) -> int:
        """Number of entries."""
        return len(self._entries)

    def find(self, key: Key, token_ids: Sequence[int], limit: int) -> tuple[CachedPrefix, int] | None:
        """The entry that shares most leading tokens, at most `limit`, and how many."""
        with self._lock:
            found = self._find_blocks(key, token_ids, limit) or self._find_whole(key, token_ids, limit)
            if found is None:
                return None
            number, count = found
            self._entries.move_to_end(number)
            return self._entries[number], count

    def add(self, entry: CachedPrefix) -> None:
        """Keeps an entry; drops old ones, and those that it continues, as the budget demands."""
        if entry.size > self.budget or len(entry.token_ids) < BLOCK:
            return
        with self._lock:
            self._drop_continued(entry)
            self._next += 1
            self._entries[self._next] = entry
            self.used += entry.size
            self._index(self._next, entry)
            while self.used > self.budget:
                self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        """Drops every entry."""
        with self._lock:
            for number in list(self._entries):
                self._drop(number)

    def _find_blocks(self, key: Key, token_ids: Sequence[int], limit: int) -> tuple[int, int] | None:
        links = reversed(chain(key, token_ids[:limit]))
        number = next((self._blocks[link] for link in links if link in self._blocks), None)
        if number is None:
            return None
        entry = self._entries[number]
        count = common(entry.token_ids, token_ids, limit) if entry.key == key else 0
        return (number, count) if count else None

    def _find_whole(self, key: Key, token_ids: Sequence[int], limit: int) -> tuple[int, int] | None:
        lengths = sorted({length for k, length, _ in self._whole if k == key and length <= limit}, reverse=True)
        for length in lengths:
            start = tuple(token_ids[:length])
            number = self._whole.get((key, length, hash(start)))
            if number is not None and self._entries[number].token_ids == start:
                return number, length
        return None

    def _drop_continued(self, entry: CachedPrefix) -> None:
        """Forgets croppable entries that are beginnings of this one, which serves in their place."""
        if not entry.croppable:
            return
        for number in {self._blocks[link] for link in chain(entry.key, entry.token_ids) if link in self._blocks}:
            old = self._entries[number]
            if old.croppable and common(old.token_ids, entry.token_ids, len(old.token_ids)) == len(old.token_ids):
                self._drop(number)

    def _index(self, number: int, entry: CachedPrefix) -> None:
        if entry.croppable:
            self._blocks.update(dict.fromkeys(chain(entry.key, entry.token_ids), number))
        else:
            self._whole[entry.key, len(entry.token_ids), hash(entry.token_ids)] = number

    def _drop(self, number: int) -> None:
        entry = self._entries.pop(number)
        self.used -= entry.size
        for link in chain(entry.key, entry.token_ids):
            if self._blocks.get(link) == number:
                del self._blocks[link]
        whole = (entry.key, len(entry.token_ids), hash(entry.token_ids))
        if self._whole.get(whole) == number:
            del self._whole[whole]


def chain(key: Key, token_ids: Sequence[int]) -> list[int]:
    """A hash for every full block of 16 tokens, each over all tokens up to its end."""
    links, link = [], hash(key)
    for start in range(0, len(token_ids) - BLOCK + 1, BLOCK):
        link = hash((link, tuple(token_ids[start : start + BLOCK])))
        links.append(link)
    return links


def common(first: Sequence[int], second: Sequence[int], limit: int) -> int:
    """Number of leading tokens that both share, at most `limit`."""
    count = 0
    for a, b in zip(first[:limit], second, strict=False):
        if a != b:
            break
        count += 1
    return count
