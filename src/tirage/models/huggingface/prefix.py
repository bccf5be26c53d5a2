"""The prefix cache: KV caches of finished rows, for later prompts with the same beginning."""

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
    """A KV cache and the tokens in it; `croppable` if every prefix of it can be used as a cache, too."""

    key: Key
    token_ids: tuple[int, ...]
    cache: Any
    croppable: bool
    size: int


def key_of(inputs: Inputs, stage: int) -> Key:
    """What must be equal, besides the tokens, for two requests to share a cache; `stage` is that of `Rope`."""
    return inputs.adapter, inputs.media_key, inputs.salt, stage


class PrefixStore:
    """KV caches of earlier rows within a budget of bytes; the least recently used one goes first.

    Croppable entries are found by chained hashes of blocks of 16 tokens and then compared token by token, so that a
    hash never decides alone. Other entries are used only by prompts that begin with all of their tokens.
    """

    def __init__(self, budget: int) -> None:
        self.budget, self.used = budget, 0
        self._entries: OrderedDict[int, CachedPrefix] = OrderedDict()
        self._blocks: dict[int, int] = {}
        self._whole: dict[tuple[Key, int, int], int] = {}
        self._lock = threading.Lock()
        self._next = 0

    def __len__(self) -> int:
        """The number of entries."""
        return len(self._entries)

    def find(self, key: Key, token_ids: Sequence[int], limit: int) -> tuple[CachedPrefix, int] | None:
        """The entry with the longest common prefix, and its length, at most `limit`; None if there is none."""
        with self._lock:
            found = self._find_blocks(key, token_ids, limit) or self._find_whole(key, token_ids, limit)
            if found is None:
                return None
            entry_id, count = found
            self._entries.move_to_end(entry_id)
            return self._entries[entry_id], count

    def add(self, entry: CachedPrefix) -> None:
        """Adds an entry; drops those that it continues, and old ones as the budget requires."""
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
        """Drops all entries."""
        with self._lock:
            for entry_id in list(self._entries):
                self._drop(entry_id)

    def _find_blocks(self, key: Key, token_ids: Sequence[int], limit: int) -> tuple[int, int] | None:
        links = reversed(chain(key, token_ids[:limit]))
        entry_id = next((self._blocks[link] for link in links if link in self._blocks), None)
        if entry_id is None:
            return None
        entry = self._entries[entry_id]
        count = common(entry.token_ids, token_ids, limit) if entry.key == key else 0
        return (entry_id, count) if count else None

    def _find_whole(self, key: Key, token_ids: Sequence[int], limit: int) -> tuple[int, int] | None:
        lengths = sorted({length for k, length, _ in self._whole if k == key and length <= limit}, reverse=True)
        for length in lengths:
            start = tuple(token_ids[:length])
            entry_id = self._whole.get((key, length, hash(start)))
            if entry_id is not None and self._entries[entry_id].token_ids == start:
                return entry_id, length
        return None

    def _drop_continued(self, entry: CachedPrefix) -> None:
        """Drops croppable entries that are prefixes of this one, which replaces them."""
        if not entry.croppable:
            return
        for entry_id in {self._blocks[link] for link in chain(entry.key, entry.token_ids) if link in self._blocks}:
            old = self._entries[entry_id]
            if old.croppable and common(old.token_ids, entry.token_ids, len(old.token_ids)) == len(old.token_ids):
                self._drop(entry_id)

    def _index(self, entry_id: int, entry: CachedPrefix) -> None:
        if entry.croppable:
            self._blocks.update(dict.fromkeys(chain(entry.key, entry.token_ids), entry_id))
        else:
            self._whole[entry.key, len(entry.token_ids), hash(entry.token_ids)] = entry_id

    def _drop(self, entry_id: int) -> None:
        entry = self._entries.pop(entry_id)
        self.used -= entry.size
        for link in chain(entry.key, entry.token_ids):
            if self._blocks.get(link) == entry_id:
                del self._blocks[link]
        whole = (entry.key, len(entry.token_ids), hash(entry.token_ids))
        if self._whole.get(whole) == entry_id:
            del self._whole[whole]


def chain(key: Key, token_ids: Sequence[int]) -> list[int]:
    """A hash for every full block of 16 tokens, over all tokens up to the end of the block."""
    links, link = [], hash(key)
    for start in range(0, len(token_ids) - BLOCK + 1, BLOCK):
        link = hash((link, tuple(token_ids[start : start + BLOCK])))
        links.append(link)
    return links


def common(first: Sequence[int], second: Sequence[int], limit: int) -> int:
    """The length of the common prefix of two sequences of tokens, at most `limit`."""
    count = 0
    for a, b in zip(first[:limit], second, strict=False):
        if a != b:
            break
        count += 1
    return count
