"""The completion of the fewest tokens, for all texts of one constraint."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from copy import copy
from threading import Lock, get_ident
from typing import Any, TypeVar

from tirage.guided.closing.boolean_automaton import DEAD
from tirage.guided.closing.budgets import RemainingWork, WorkLimitError
from tirage.guided.closing.constraint_rules import ROOT, constraint_rules
from tirage.guided.closing.expression_graph import alphabet
from tirage.guided.closing.recognizer import Recognizer
from tirage.guided.closing.token_search import CompletionSearch, UsableTokens
from tirage.guided.reduction import in_order
from tirage.guided.vocabulary import Vocabulary
from tirage.params import GuidedDecodingParams
from tirage.workers.cancel import holding

WORK_BEFORE_TEXT, WORK_INSIDE_TEXT, TEXT_WORK = 4_000_000, 300_000, 1_000_000
"""Work that a search may do before the text begins, inside it, and that all searches inside it may do together.

Work is the number of trie nodes looked at, plus fixed amounts for each level of the trie, each state visited and each
of its stacks. A million units take about a quarter of a second. What is cached already counts as well, so that an
answer does not depend on other texts."""
RULE_WORK, ALL_RULES_WORK = 100_000, 600_000
"""Work spent on the lower bounds of one rule, and of all rules."""
STACKS_BEFORE_TEXT, STACKS_INSIDE_TEXT = 100_000, 5_000
"""Most stacks of all states together on a shortest way to an end, before the text begins and inside it. A new one takes
10 to 20 microseconds."""
# The work of each stack of a state when it moves past a byte.
_BYTE_WORK = 4
_FAR = 1 << 30
# Answers, and values of `cached`, that are kept for one constraint.
_MAX_CACHED = 32
# One search before a text goes on at a time, and for half of the time where others want to work: it holds the
# interpreter in calls of a millisecond, and the engine asks for it two hundred times in a step.
_TURN_S, _ALONE, _LONGEST_REST_S = 0.005, 1.25, 0.02
# How long a search before a text leaves the lock to one inside a text.
_YIELD_S = 0.001
T = TypeVar("T")
NOT_FOUND: list[int] = [-1]
"""Stands for an answer that was not found within the work allowed."""
_UNKNOWN: list[int] = [-2]


class SearchTurn:
    """The turn of one search before a text, among all, which leave it to each other every few milliseconds."""

    def __init__(self) -> None:
        self._lock, self._waiting = Lock(), set[int]()

    @property
    def is_wanted(self) -> bool:
        """Whether another thread waits for it."""
        return bool(self._waiting)

    def begin(self) -> None:
        """Returns when it is this thread's turn."""
        self._waiting.add(get_ident())
        self._lock.acquire()
        self._waiting.discard(get_ident())

    def end(self) -> None:
        """Leaves the turn to another thread."""
        self._lock.release()


_BEFORE_TEXT = SearchTurn()


class CompletionFinder:
    """Finds completions for all texts of one constraint; shared between threads.

    Holds what their searches need, created at first use: the recognizer, the usable tokens, and recent answers.
    """

    def __init__(self, guided: GuidedDecodingParams, vocabulary: Vocabulary) -> None:
        self._rules, self._vocabulary = constraint_rules(guided), vocabulary
        # Takes half a second for a large vocabulary: better in the calling thread than between steps of the engine.
        self._trie = vocabulary.trie
        self._prepared: dict[frozenset[int], tuple[Recognizer, UsableTokens] | None] = {}
        self._cached: dict[object, Any] = {}
        self.answers: dict[object, list[int] | None] = {}
        # A recognizer changes while it is searched, hence the lock. `_waiting` are threads with a text that has begun:
        # a step of the engine, and so every other request, waits for them.
        self._lock, self._preparing, self._caching, self._waiting = Lock(), Lock(), Lock(), set[int]()
        # When the search that holds the lock has begun its turn.
        self._since = 0.0, 0.0

    @property
    def has_rules(self) -> bool:
        """Whether completions can be searched: not under Lark grammars and structural tags."""
        return self._rules is not None

    @property
    def is_full(self) -> bool:
        """Whether the caches have grown so large that a new finder should take over."""
        recognizers = [ready[0] for ready in self._prepared.values() if ready is not None]
        return len(self._prepared) > 4 or any(recognizer.is_full for recognizer in recognizers)

    def ready(self, unusable: frozenset[int]) -> tuple[Recognizer, UsableTokens]:
        """The recognizer of the constraint, and the usable tokens.

        Raises WorkLimitError when the constraint has no recognizer or a too large one.
        """
        with holding(self._preparing) if unusable not in self._prepared else contextlib.nullcontext():
            if unusable not in self._prepared:
                self._prepared[unusable] = self._prepare(unusable)
        ready = self._prepared[unusable]
        if ready is None:
            raise WorkLimitError
        return ready

    def cached(self, key: object, create: Callable[[], T]) -> T:
        """The value that `create` gives, created once for all texts with the same key."""
        with holding(self._caching):
            if key not in self._cached:
                keep(self._cached, key, create())
            return self._cached[key]

    @contextlib.contextmanager
    def searching(self, *, begun: bool) -> Iterator[Callable[[], None]]:
        """Holds the lock on the recognizers; gives a function that the search calls between steps.

        There, a search before a text begins yields the lock to a search inside a text, for which the engine waits.
        """
        if not begun:
            with holding(self._lock):
                self._since = clocks()
                yield self._yield_locks
            return
        self._waiting.add(get_ident())
        with self._lock:
            self._waiting.discard(get_ident())
            yield lambda: None

    def _yield_locks(self) -> None:
        """Leaves the locks, for as long as the search went on, after a turn in which other threads wanted to work."""
        wall, spent = (now - since for now, since in zip(clocks(), self._since, strict=True))
        if wall < _TURN_S and not self._waiting:
            return
        wanted = self._waiting or _BEFORE_TEXT.is_wanted
        if wanted or wall > _ALONE * spent:
            self._lock.release()
            _BEFORE_TEXT.end()
            time.sleep(_YIELD_S if wanted else min(wall, _LONGEST_REST_S))
            # In the order in which all take them.
            _BEFORE_TEXT.begin()
            self._lock.acquire()
        self._since = clocks()

    def _prepare(self, unusable: frozenset[int]) -> tuple[Recognizer, UsableTokens] | None:
        if self._rules is None:
            return None
        usable = UsableTokens.of(self._trie, self._vocabulary.tokens, unusable)
        try:
            recognizer = Recognizer(self._rules, ROOT)
            bound_rules(recognizer, usable, in_order(dict(self._rules), ROOT)[:-1])
        except WorkLimitError:
            return None
        return recognizer, usable


def clocks() -> tuple[float, float]:
    """The clock on the wall, and the processor time of this thread, in seconds."""
    return time.monotonic(), time.thread_time()


def keep(known: dict[object, Any], key: object, value: Any) -> None:
    """Adds a value, and drops the oldest one when there are too many."""
    known[key] = value
    while len(known) > _MAX_CACHED:
        known.pop(next(iter(known)))


def bound_rules(recognizer: Recognizer, usable: UsableTokens, rules: list[str]) -> None:
    """Tells the recognizer how many tokens end inside each terminal and rule at least; referenced rules come first."""
    left = ALL_RULES_WORK
    for node, terminal in recognizer.terminals.items():
        if isinstance(terminal, bytes):
            recognizer.set_tail_ends(node, usable.ends_inside(terminal))
        else:
            recognizer.set_longest(node, usable.longest_run(alphabet(terminal)))
    for node in [*recognizer.terminals, *map(recognizer.rule, rules)]:
        if not left:
            return
        search = CompletionSearch(recognizer, usable, _FAR, min(left, RULE_WORK))
        recognizer.set_min_token_ends(node, search.inside(recognizer.start_of(node)))
        left = max(0, left - search.spent)


class CompletionState:
    """The state of one text, from which the completion of the fewest tokens can be found.

    All forks of a state share the work that may be done for its text.
    """

    def __init__(self, finder: CompletionFinder, unusable: frozenset[int]) -> None:
        self._finder, self._unusable = finder, unusable
        self._state, self._begun = 0, False
        # The tokens not yet processed, as a linked list: those before the last one, and the last one.
        self._pending: tuple[Any, bytes] | None = None
        self._work = RemainingWork(TEXT_WORK)

    def advance(self, spelled: bytes) -> None:
        """Moves past the bytes of a token; they are processed when the next completion is asked for."""
        self._pending, self._begun = (self._pending, spelled), True

    def fork(self) -> CompletionState:
        """An independent state at the same point of the text."""
        return copy(self)

    def for_sample(self) -> CompletionState:
        """The state of another text that has not begun either, with work of its own."""
        other = copy(self)
        other._work = RemainingWork(TEXT_WORK)
        return other

    def work_alone(self) -> None:
        """Has what is left of the work for its text to itself, which forks share."""
        self._work = copy(self._work)

    def prepare(self) -> None:
        """Creates what searches need, so that no search inside a text has to."""
        with contextlib.suppress(WorkLimitError):
            self._finder.ready(self._unusable)

    def shortest(self, most: int) -> bytes | None:
        """A completion of the fewest bytes; None if it has more than `most`, and where none was found at once.

        Raises WorkLimitError when the text cannot be followed, and when the way to its end takes too much work.
        """
        recognizer, _ = self._finder.ready(self._unusable)
        with self._finder.searching(begun=self._begun):
            self._catch_up(recognizer)
            allowed = STACKS_INSIDE_TEXT if self._begun else STACKS_BEFORE_TEXT
            stacks = RemainingWork(allowed)
            try:
                return recognizer.shortest_text(self._state, most, stacks)
            finally:
                self._work.left -= _BYTE_WORK * (allowed - stacks.left)

    def least(self) -> int:
        """The bytes of a shortest completion. Raises WorkLimitError when the text cannot be followed."""
        recognizer, _ = self._finder.ready(self._unusable)
        with self._finder.searching(begun=self._begun):
            self._catch_up(recognizer)
            return recognizer.min_bytes(self._state)

    def fewest(self, most: int, excluded: frozenset[int] = frozenset()) -> list[int] | None:
        """The fewest tokens that complete the text, the first byte not excluded; None if that takes more than `most`.

        Raises WorkLimitError when no answer is found within the work allowed, and when the text does not follow the
        rules that are searched.
        """
        recognizer, usable = self._finder.ready(self._unusable)
        if not self._begun:
            return self._first(recognizer, usable, (self._unusable, most, excluded))
        with self._finder.searching(begun=True):
            self._catch_up(recognizer)
            search = CompletionSearch(recognizer, usable, most, min(WORK_INSIDE_TEXT, self._work.left))
            try:
                return search.run(self._state, excluded)
            finally:
                self._work.left -= search.spent

    def _first(
        self, recognizer: Recognizer, usable: UsableTokens, key: tuple[frozenset[int], int, frozenset[int]]
    ) -> list[int] | None:
        """The answer before the text begins, which all texts of the constraint share."""
        answers = self._finder.answers
        found = answers.get(key, _UNKNOWN)
        if found is _UNKNOWN:
            _BEFORE_TEXT.begin()
            try:
                found = self._search_first(recognizer, usable, key)
            finally:
                _BEFORE_TEXT.end()
        if found is NOT_FOUND:
            raise WorkLimitError
        return found

    def _search_first(
        self, recognizer: Recognizer, usable: UsableTokens, key: tuple[frozenset[int], int, frozenset[int]]
    ) -> list[int] | None:
        answers = self._finder.answers
        with self._finder.searching(begun=False) as yield_lock:
            if key not in answers:
                search = CompletionSearch(recognizer, usable, key[1], WORK_BEFORE_TEXT, yield_lock)
                try:
                    found = search.run(0, key[2])
                except WorkLimitError:
                    found = NOT_FOUND
                keep(answers, key, found)
                return found
            return answers[key]

    def _catch_up(self, recognizer: Recognizer) -> None:
        tokens: list[bytes] = []
        while self._pending is not None:
            self._pending, spelled = self._pending
            tokens.append(spelled)
        for byte in b"".join(reversed(tokens)):
            self._state = DEAD if self._state == DEAD else recognizer.step(self._state, byte)
            self._work.left -= _BYTE_WORK * (1 if self._state == DEAD else recognizer.width(self._state))
            if self._work.left < 0:
                self._state = DEAD
        if self._state == DEAD:
            raise WorkLimitError
