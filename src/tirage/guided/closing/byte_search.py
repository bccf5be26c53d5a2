"""Searches for a short completion of a text, byte by byte, that ask nothing but a matcher."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tirage.guided.closing.budgets import StepBudget
from tirage.guided.matcher import Matcher, only_bit, set_bit
from tirage.guided.vocabulary import Vocabulary

MAX_TRIALS = 1500
"""Bytes that `shortest` tries before it gives up."""
MAX_MOVES = 100_000
"""Bytes that `shortest` moves over on the way from one text to another before it gives up."""
MAX_LENGTH = 2048
"""Bytes of the longest completion that a search considers."""
BYTES = Vocabulary(tuple(bytes([byte]) for byte in range(256)))
"""The vocabulary in which a grammar is searched: every byte is a token."""

# Texts of the same length that allow the same next bytes: only this many of them are pursued.
_MAX_ALIKE = 3
# Where more bytes than this may follow, the text is taken to be inside a string.
_STRUCTURAL = 64
# The cost of a byte: low if it closes something, high if it opens something or usually makes no progress.
_DEFAULT_COST, _NO_PROGRESS_COST = 10, 40
_COSTS_OF_GROUPS = {b"}]": 1, b'"': 3, b"0123456789": 5, b"{[": 20, b" \t\n\r": 30, b"\\": 100}
_COSTS = {byte: cost for group, cost in _COSTS_OF_GROUPS.items() for byte in group}


def completes(matcher: Matcher, text: bytes) -> bool:
    """Whether these bytes complete the matcher's text. The matcher is left where it was."""
    taken = sum(1 for _ in itertools.takewhile(matcher.accept, text))
    complete = taken == len(text) and matcher.complete
    matcher.rollback(taken)
    return complete


def straight(matcher: Matcher, budget: StepBudget, longest: int = MAX_LENGTH) -> bytes | None:
    """A completion found greedily, by taking the cheapest byte at every point; None if it exceeds `longest` bytes."""
    current, text = matcher.fork(), b""
    chosen: dict[bytes, int | None] = {}
    while not current.complete and len(text) < longest:
        budget.check()
        mask = mask_of(current)
        key = mask.tobytes()
        if key not in chosen:
            chosen[key] = best_byte(current, mask, budget)
        byte = chosen[key]
        if byte is None or not current.accept(byte):
            return None
        text += bytes([byte])
    return text if current.complete else None


def best_byte(matcher: Matcher, mask: NDArray[np.int32], budget: StepBudget) -> int | None:
    """The cheapest byte of a mask int32 [8]; None when it allows none.

    A byte after which the same bytes may follow is taken only if there is no other.
    """
    choices = sorted(bytes_of(mask), key=lambda byte: (cost_of(byte), byte))
    idle = None
    for byte in choices:
        if idle is not None and (byte >= 0x80 or cost_of(byte) > cost_of(idle) + _NO_PROGRESS_COST):
            continue
        budget.check()
        matcher.accept(byte)
        same = np.array_equal(mask_of(matcher), mask) and not matcher.complete
        matcher.rollback(1)
        # Inside a string a bracket is an ordinary letter; elsewhere it closes one of several similar levels.
        if not same or (byte in b"}]" and len(choices) <= _STRUCTURAL):
            return byte
        idle = byte if idle is None else idle
    return idle


def cost_of(byte: int) -> int:
    """The cost of a byte in a search: the lower, the sooner it tends to bring the text to its end."""
    return _COSTS.get(byte, _DEFAULT_COST)


def shortest(
    matcher: Matcher, spells: Callable[[bytes], bool], budget: StepBudget, excluded: frozenset[int] = frozenset()
) -> bytes | None:
    """A short completion of the matcher's text; None when the search gives up.

    The completion begins with no `excluded` byte, and `spells` says whether tokens can spell it. The cheapest texts are
    tried first. A byte costs little when it is the only one allowed or closes something, and much when the same bytes
    may follow as before, because then it usually makes no progress. Of texts that have the same length and allow the
    same next bytes only a few are pursued, so the result is short but not always the shortest, and a state that looks
    like others but differs from them can be missed.
    """
    search = ByteSearch(matcher, budget, excluded)
    while search.queue and search.trials < MAX_TRIALS and search.moves < MAX_MOVES:
        cost, _, text, complete = heapq.heappop(search.queue)
        if complete and spells(text):
            return text
        search.extend(cost, text)
    return None


class ByteSearch:
    """The texts still to be tried, the cheapest first, and whether each is complete.

    One matcher goes from text to text: one for each would take a hundred kilobytes where many rules are under way.
    """

    def __init__(self, matcher: Matcher, budget: StepBudget, excluded: frozenset[int]) -> None:
        self._budget, self._excluded = budget, sorted(excluded)
        self._order = itertools.count()
        self._seen: Counter[tuple[int, bytes]] = Counter()
        self._representatives: dict[bytes, list[int]] = {}
        self._matcher, self._text = matcher.fork(), b""
        self.trials = self.moves = 0
        self.queue: list[tuple[int, int, bytes, bool]] = []
        self._push(0, b"", complete=matcher.complete)

    def extend(self, cost: int, text: bytes) -> None:
        """Queues the texts that continue a text."""
        self._go_to(text)
        matcher, steps = self._matcher, 0
        mask = mask_of(matcher)
        for byte in self._excluded if not text else ():
            set_bit(mask, byte, value=False)
        while (only := only_bit(mask)) is not None and matcher.accept(only):
            self._budget.check()
            self._text, steps = self._text + bytes([only]), steps + 1
            if matcher.complete or steps == MAX_LENGTH:
                break
            mask = mask_of(matcher)
        if steps:
            self._push(cost + steps, self._text, complete=matcher.complete)
            return
        key = mask.tobytes()
        self._seen[len(text), key] += 1
        if self._seen[len(text), key] <= _MAX_ALIKE:
            self._branch(cost, key, self._representatives.get(key) or bytes_of(mask))

    def _go_to(self, text: bytes) -> None:
        """Moves the matcher to the end of a text."""
        shared = sum(
            1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(text, self._text, strict=False))
        )
        self._matcher.rollback(len(self._text) - shared)
        for byte in text[shared:]:
            self._matcher.accept(byte)
        self.moves += len(self._text) + len(text) - 2 * shared
        self._text = text

    def _branch(self, cost: int, key: bytes, choices: list[int]) -> None:
        """Queues every continuation by one byte; remembers two bytes of each kind for the next text with this mask."""
        found: Counter[bytes] = Counter()
        kept = []
        for byte in choices:
            self._budget.check()
            self.trials += 1
            if not self._matcher.accept(byte):
                continue
            after, complete = mask_of(self._matcher).tobytes(), self._matcher.complete
            self._matcher.rollback(1)
            kind = after + bytes([complete])
            found[kind] += 1
            if found[kind] <= 2:
                kept.append(byte)
                cost_after = cost + cost_of(byte) + (_NO_PROGRESS_COST if after == key else 0)
                self._push(cost_after, self._text + bytes([byte]), complete=complete)
        self._representatives[key] = kept

    def _push(self, cost: int, text: bytes, *, complete: bool) -> None:
        heapq.heappush(self.queue, (cost, next(self._order), text, complete))


def mask_of(matcher: Matcher) -> NDArray[np.int32]:
    """The matcher's mask of allowed tokens, int32 [ceil(V / 32)]."""
    mask = np.zeros(matcher.vocabulary.words, np.int32)
    matcher.fill_mask(mask)
    return mask


def bytes_of(mask: NDArray[np.int32]) -> list[int]:
    """The bytes that a mask int32 [8] over BYTES allows, ascending."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
