"""The way to the end: short completions of a text, so that it can be closed before its tokens run out."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Callable
from copy import copy

import numpy as np

from tirage.cancel import checkpoint
from tirage.guided.ending.fewest import HardError, Place, Shortest
from tirage.guided.matcher import Matcher, only_bit, set_bit
from tirage.guided.vocabulary import Vocabulary

TRIALS = 1500
"""Bytes that one search may try out; it gives up beyond."""
LONGEST = 2048
"""Bytes of the longest completion that is looked for."""
STEPS, LATER, TANK = 20_000, 5_000, 15_000
"""Steps of a search before a text begins, of one inside it, and of all inside it that find nothing.

A step asks a grammar about a byte. Beyond them the text is no longer closed. A step takes 10 to 20 microseconds, with
the largest grammars up to 200."""
_CHECKED = 64
_LONGEST_WAIT = 64
# Bytes that are tried before all tokens are, and more tokens than any way has.
_NEAR, _FAR = 600, 1 << 20
# Texts of one length after which the same bytes may follow: so many are followed.
_ALIKE = 3
# Where more bytes than this may follow, the place is inside a string.
_FEW = 64
# What a byte costs: little if it closes something, much if it opens something or mostly leads nowhere.
_PRICE, _NOWHERE = 10, 40
_GROUPS = {b"}]": 1, b'"': 3, b"0123456789": 5, b"{[": 20, b" \t\n\r": 30, b"\\": 100}
_PRICES = {byte: price for group, price in _GROUPS.items() for byte in group}
BYTES = Vocabulary(tuple(bytes([byte]) for byte in range(256)))
"""The vocabulary in which a grammar is searched: every byte is a token."""


class SlowError(Exception):
    """A search that takes too many steps."""


class Budget:
    """The steps that one search may still take; counted, so that no token depends on how fast a machine is."""

    def __init__(self, steps: int = STEPS) -> None:
        self._steps, self.spent = steps, 0

    def check(self) -> None:
        """Counts a step; SlowError when there is none left."""
        self.spent += 1
        if self.spent > self._steps:
            raise SlowError
        if not self.spent % _CHECKED:
            checkpoint()


class ClosingPath:
    """Follows one text byte by byte and knows a short way to complete it.

    `matcher` is a matcher of the text's grammar over BYTES; the way is counted in tokens of `vocabulary`, without those
    that are `unusable`. `tokens` are the way: empty when the text is complete, None when no way is known. They are the
    fewest that spell it, but another text could need fewer still; `fits` looks for the fewest of all, if there is a
    `shortest` to ask (SPEC.md S-G6). `least` tokens at least are needed. No way begins with a byte that is `shunned`.
    Where no way was found the next search waits, longer each time; after one that takes too long there is none.
    """

    def __init__(
        self,
        matcher: Matcher,
        vocabulary: Vocabulary,
        unusable: frozenset[int] = frozenset(),
        *,
        shortest: Shortest | None = None,
        shunned: frozenset[int] = frozenset(),
    ) -> None:
        self._matcher, self._vocabulary, self._unusable = matcher, vocabulary, unusable
        self._place = None if shortest is None else Place(shortest, unusable)
        self.least = 0
        self._shunned = shunned
        self._slow, self._hard, self._failures, self._wait = False, False, 0, 0
        self._begun, self._tank = False, [TANK]
        if self._place is not None:
            self._place.prepare()
        self._find()

    def advance(self, token_id: int) -> None:
        """Moves past a token that the grammar allows."""
        spelled = self._vocabulary.tokens[token_id]
        self._begun = True
        self._shunned, self.least = frozenset(), max(0, self.least - 1)
        if self._place is not None:
            self._place.advance(spelled)
        for byte in spelled:
            self._matcher.accept(byte)
        if self._way is not None and self._way.startswith(spelled):
            self._set(self._way[len(spelled) :])
        elif self._way is None or not completes(self._matcher, self._way):
            self._find()

    def after(self, token_id: int) -> ClosingPath:
        """What closing would be after the token; this one does not move."""
        other = self.fork()
        other.advance(token_id)
        return other

    def fork(self) -> ClosingPath:
        """An independent one at the same place."""
        other = copy(self)
        other._matcher = self._matcher.fork()
        other._place = None if self._place is None else self._place.fork()
        return other

    def another(self) -> ClosingPath:
        """One for another text of the same request, which has not begun either and has its own work to spend."""
        other = self.fork()
        other._tank = [TANK]
        other._place = None if self._place is None else self._place.another()
        return other

    @property
    def hopeless(self) -> bool:
        """Whether no way is known and the search for one took all the work that it may take."""
        return self.tokens is None and (self._slow or self._hard)

    def fits(self, most: int) -> bool:
        """Whether a way of at most `most` tokens is known, after a search for the fewest if none is at hand."""
        if self.tokens is not None and len(self.tokens) <= most:
            return True
        way = self._fewest(most)
        if way is not None:
            self._set(way)
        return way is not None

    def _fewest(self, most: int) -> bytes | None:
        """The way of the fewest tokens; None where it takes more than `most`, and where none is found."""
        if self._place is None or most < self.least:
            return None
        try:
            found = self._place.fewest(most, self._shunned)
        except HardError:
            self._hard = True
            return None
        if not self._shunned:
            self.least = most + 1 if found is None else len(found)
        way = b"".join(self._vocabulary.tokens[token] for token in found or ())
        # Rules that let too much through can lead to no end.
        return None if found is None or not completes(self._matcher, way) else way

    def renew(self) -> None:
        """Looks for a way of fewer tokens than the one known."""
        way, tokens = self._way, self.tokens
        self._set(self._shortest())
        if tokens is not None and (self.tokens is None or len(self.tokens) >= len(tokens)):
            self._way, self.tokens = way, tokens

    def turn(self) -> None:
        """Looks for a way that begins with other bytes than those tried here, which something else forbids."""
        self._shunned |= frozenset((self._way or b"")[:1])
        self._set(self._shortest())

    def _find(self) -> None:
        if self._wait:
            self._wait -= 1
            self._set(None)
            return
        searches = [lambda: self._straight(_NEAR), lambda: self._fewest(_FAR), lambda: self._straight(LONGEST)]
        for search in [*(searches[1:2] if self._shunned else searches), self._shortest]:
            self._set(search())
            if self.tokens is not None or self.least > _FAR:
                return
        self._failures += 1
        self._wait = min(2**self._failures, _LONGEST_WAIT)

    def _straight(self, longest: int) -> bytes | None:
        return self._within(lambda budget: straight(self._matcher, budget, longest))

    def _shortest(self) -> bytes | None:
        def spells(text: bytes) -> bool:
            return self._cover(text) is not None

        return self._within(lambda budget: shortest(self._matcher, spells, budget, self._shunned))

    def _within(self, search: Callable[[Budget], bytes | None]) -> bytes | None:
        budget = Budget(min(LATER, self._tank[0]) if self._begun else STEPS)
        try:
            found = None if self._slow else search(budget)
        except SlowError:
            self._slow, found = True, None
        if found is None and self._begun:
            self._tank[0] -= budget.spent
        return found

    def _cover(self, text: bytes) -> list[int] | None:
        return self._vocabulary.cover(text, self._unusable)

    def _set(self, way: bytes | None) -> None:
        self._way = way
        self.tokens = None if way is None else self._cover(way)


def completes(matcher: Matcher, way: bytes) -> bool:
    """Whether these bytes complete the text; the matcher is left where it was."""
    taken = sum(1 for _ in itertools.takewhile(matcher.accept, way))
    complete = taken == len(way) and matcher.complete
    matcher.rollback(taken)
    return complete


def straight(matcher: Matcher, budget: Budget, longest: int = LONGEST) -> bytes | None:
    """A text that completes the matcher's, found by taking at each place the byte that best leads to an end.

    None where this does not come to an end within that many bytes.
    """
    place, text = matcher.fork(), b""
    chosen: dict[bytes, int | None] = {}
    while not place.complete and len(text) < longest:
        budget.check()
        mask = mask_of(place)
        sign = mask.tobytes()
        if sign not in chosen:
            chosen[sign] = best_byte(place, mask, budget)
        byte = chosen[sign]
        if byte is None or not place.accept(byte):
            return None
        text += bytes([byte])
    return text if place.complete else None


def best_byte(place: Matcher, mask: np.ndarray, budget: Budget) -> int | None:
    """The cheapest of the bytes that come next; one that changes nothing is taken last."""
    choices = sorted(bytes_of(mask), key=lambda byte: (price(byte), byte))
    idle = None
    for byte in choices:
        if idle is not None and (byte >= 0x80 or price(byte) > price(idle) + _NOWHERE):
            continue
        budget.check()
        place.accept(byte)
        same = np.array_equal(mask_of(place), mask) and not place.complete
        place.rollback(1)
        # Where almost anything may follow, a bracket is a letter; elsewhere it closes one of several levels alike.
        if not same or (byte in b"}]" and len(choices) <= _FEW):
            return byte
        idle = byte if idle is None else idle
    return idle


def price(byte: int) -> int:
    """How little a byte does for an end."""
    return _PRICES.get(byte, _PRICE)


def shortest(
    matcher: Matcher, spells: Callable[[bytes], bool], budget: Budget, shunned: frozenset[int] = frozenset()
) -> bytes | None:
    """A short text that completes the matcher's; None when the search gives up.

    The text begins with no shunned byte, and `spells` says that it can be written. Cheap texts are tried first. A byte
    costs little when it is the only one allowed or closes something, and much when the same bytes may follow as before
    it, for then it mostly leads nowhere. Of texts that are equally long and let the same bytes follow only a few are
    followed, so the result is short but not always the shortest of all, and a place that looks like others without
    being like them can be missed.
    """
    search = ClosingSearch(matcher, budget, shunned)
    while search.queue and search.trials < TRIALS:
        cost, _, text, place = heapq.heappop(search.queue)
        if place.complete and spells(text):
            return text
        search.follow(cost, text, place)
    return None


class ClosingSearch:
    """The texts still to be tried, the cheapest first."""

    def __init__(self, matcher: Matcher, budget: Budget, shunned: frozenset[int]) -> None:
        self._budget, self._shunned = budget, sorted(shunned)
        self._order = itertools.count()
        self._seen: Counter[tuple[int, bytes]] = Counter()
        self._kinds: dict[bytes, list[int]] = {}
        self.trials = 0
        self.queue: list[tuple[int, int, bytes, Matcher]] = [(0, next(self._order), b"", matcher.fork())]

    def follow(self, cost: int, text: bytes, place: Matcher) -> None:
        """Queues what can come after a text."""
        mask, steps = mask_of(place), 0
        for byte in self._shunned if not text else ():
            set_bit(mask, byte, value=False)
        while (only := only_bit(mask)) is not None and place.accept(only):
            self._budget.check()
            text, steps = text + bytes([only]), steps + 1
            if place.complete or steps == LONGEST:
                break
            mask = mask_of(place)
        if steps:
            self._push(cost + steps, text, place)
            return
        sign = mask.tobytes()
        self._seen[len(text), sign] += 1
        if self._seen[len(text), sign] <= _ALIKE:
            self._branch(cost, text, place, sign, self._kinds.get(sign) or bytes_of(mask))

    def _branch(self, cost: int, text: bytes, place: Matcher, sign: bytes, choices: list[int]) -> None:
        """Queues every continuation by one byte; remembers one or two bytes of each kind for the next such place."""
        found: Counter[bytes] = Counter()
        kept = []
        for byte in choices:
            self._budget.check()
            self.trials += 1
            following = place.fork()
            if not following.accept(byte):
                continue
            after = mask_of(following).tobytes()
            kind = after + bytes([following.complete])
            found[kind] += 1
            if found[kind] <= 2:
                kept.append(byte)
                cost_after = cost + price(byte) + (_NOWHERE if after == sign else 0)
                self._push(cost_after, text + bytes([byte]), following)
        self._kinds[sign] = kept

    def _push(self, cost: int, text: bytes, place: Matcher) -> None:
        heapq.heappush(self.queue, (cost, next(self._order), text, place))


def mask_of(matcher: Matcher) -> np.ndarray:
    """The matcher's mask."""
    mask = np.zeros(matcher.vocabulary.words, np.int32)
    matcher.fill_mask(mask)
    return mask


def bytes_of(mask: np.ndarray) -> list[int]:
    """The bytes that a mask over BYTES allows."""
    return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()
