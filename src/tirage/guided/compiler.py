"""The compiler of constraints: it chooses the backend, compiles each constraint once, and caches grammars."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, Future
from copy import copy
from dataclasses import dataclass
from itertools import islice
from typing import Any

from tirage.errors import GrammarError
from tirage.guided.constraint import Constraint, read_constraint
from tirage.guided.llguidance_backend import LlguidanceBackend
from tirage.guided.matcher import Cursor, Matcher
from tirage.guided.trial_compile import LimitError
from tirage.guided.vocabulary import Vocabulary
from tirage.guided.xgrammar_backend import XgrammarBackend
from tirage.params import GuidedDecodingParams
from tirage.workers.cancel import POLL_S, checkpoint

CACHE_BYTES = 64 << 20
REFUSAL_BYTES = 4 << 20
"""Most bytes of the constraints whose refusals are cached, and of their messages."""
MEASURED = 8
"""Cached grammars whose sizes are looked at before each compilation."""
_NAMES = {"json": "schema", "json_object": "schema"}
BACKENDS = {"llguidance": LlguidanceBackend, "xgrammar": XgrammarBackend}


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """A compiled constraint for one vocabulary: immutable, shared by all requests that ask for it.

    `backend` is the name of the library that compiled it; `ignored` are the places in a schema of unknown keywords and
    formats, which decide nothing.
    """

    vocabulary: Vocabulary
    backend: str
    _size: int
    _start: Cursor
    ignored: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Its approximate size in memory, with what its texts have added to it."""
        return self._size + self._start.shared_bytes

    def matcher(self, eos_ids: Sequence[int] = ()) -> Matcher:
        """A new matcher at the start of a text; see `Matcher` for `eos_ids`."""
        return Matcher(self._start.fork(), self.vocabulary, eos_ids)


@dataclass(slots=True, eq=False)
class Held:
    """A grammar in a cache, and the bytes that are counted for it: its size as last measured."""

    grammar: Grammar
    nbytes: int = 0


class Compiler:
    """Compiles constraints for one vocabulary and caches the grammars, the least recently used ones going first.

    The cache holds up to `budget` bytes; a single grammar may be larger. Refusals are cached too, within
    `REFUSAL_BYTES`, except those of a wait that took too long. Safe to call from several threads: those that ask for
    the same grammar wait for one compilation and share its outcome. SPEC.md S-G5, S-G8.
    """

    def __init__(self, vocabulary: Vocabulary, *, budget: int = CACHE_BYTES) -> None:
        self.vocabulary, self._budget = vocabulary, budget
        self._backends: dict[str, Any] = {}
        # A grammar that is found is measured, and some others before each compilation.
        self._cached: OrderedDict[GuidedDecodingParams, Held] = OrderedDict()
        self._turn: Iterator[GuidedDecodingParams] = iter(())
        self._refused: OrderedDict[GuidedDecodingParams, GrammarError] = OrderedDict()
        # Those that are being compiled, with what other threads that want them wait for, if there are any.
        self._pending: dict[GuidedDecodingParams, Future[Grammar] | None] = {}
        self._lock = threading.Lock()
        self._cached_bytes = self._refused_bytes = self._compiled = self._hits = 0

    @property
    def nbytes(self) -> int:
        """Bytes that the cached grammars hold."""
        return sum(held.grammar.nbytes for held in [*self._cached.values()])

    def stats(self) -> dict[str, int]:
        """How many `grammars` and `bytes` are cached now, and how many were `compiled` and found (`hits`) so far."""
        with self._lock:
            counts = len(self._cached), self.nbytes, self._compiled, self._hits
        return dict(zip(("grammars", "bytes", "compiled", "hits"), counts, strict=True))

    def compile(self, guided: GuidedDecodingParams) -> Grammar:
        """The grammar of a constraint.

        llguidance compiles it unless `guided.backend` names another backend. If the named backend cannot, the other one
        is tried, unless `disable_fallback` is set. Raises GrammarError, which names the rule and the place, when no
        backend can compile it; a text is never left unconstrained. Raises LimitError, a GrammarError, when the
        compilation takes too much time or memory.
        """
        while True:
            checkpoint()
            with self._lock:
                if (grammar := self._find(guided)) is not None:
                    return grammar
                # Another thread may be compiling it.
                is_pending = guided in self._pending
                other = (self._pending[guided] or Future()) if is_pending else None
                self._pending[guided] = other
                if not is_pending:
                    self._measure(self._due())
            if other is None:
                return self._compile_for_all(guided)
            # The other compilation may be cancelled; then this one tries again.
            with contextlib.suppress(CancelledError):
                return outcome(other)

    def _compile_for_all(self, guided: GuidedDecodingParams) -> Grammar:
        """The grammar, compiled for all threads that wait for it; of errors only GrammarError is shared."""
        try:
            grammar = self._compile(guided)
        except BaseException as error:
            waited_for = self._finish(guided, error)
            if waited_for is not None and isinstance(error, GrammarError):
                waited_for.set_exception(error)
            elif waited_for is not None:
                waited_for.cancel()
            raise
        waited_for = self._finish(guided, grammar)
        if waited_for is not None:
            waited_for.set_result(grammar)
        return grammar

    def _finish(self, guided: GuidedDecodingParams, outcome: Grammar | BaseException) -> Future[Grammar] | None:
        """Caches an outcome; gives what other threads wait for."""
        with self._lock:
            waited_for = self._pending.pop(guided)
            if isinstance(outcome, Grammar):
                self._compiled += 1
                self._cached[guided] = held = Held(outcome)
                self._measure([held])
            elif isinstance(outcome, GrammarError) and not getattr(outcome, "timed_out", False):
                self._cache_refusal(guided, outcome)
        return waited_for

    def _find(self, guided: GuidedDecodingParams) -> Grammar | None:
        """The cached grammar, if there is one. Raises GrammarError for a constraint that was refused before."""
        held = self._cached.get(guided)
        if held is not None:
            self._cached.move_to_end(guided)
            self._hits += 1
            self._measure([held])
            return held.grammar
        if (refused := self._refused.get(guided)) is not None:
            self._refused.move_to_end(guided)
            # Another one for each, since each gets the traceback of its thread.
            raise copy(refused)
        return None

    def _measure(self, some: Iterable[Held]) -> None:
        """Counts what cached grammars take now, as texts make them grow; drops the least recently used ones beyond the
        budget."""
        for held in some:
            size = held.grammar.nbytes
            self._cached_bytes += size - held.nbytes
            held.nbytes = size
        while self._cached_bytes > self._budget and len(self._cached) > 1:
            _, held = self._cached.popitem(last=False)
            self._cached_bytes -= held.nbytes

    def _due(self) -> list[Held]:
        """Some of those that are cached, in turn: a text that takes long makes its grammar grow unasked."""
        due = [*islice(self._turn, MEASURED)]
        if len(due) < MEASURED:
            self._turn = iter([*self._cached])
        return [held for guided in due if (held := self._cached.get(guided)) is not None]

    def _cache_refusal(self, guided: GuidedDecodingParams, error: GrammarError) -> None:
        self._refused[guided] = copy(error)
        self._refused_bytes += refusal_bytes(guided, error)
        while self._refused_bytes > REFUSAL_BYTES:
            self._refused_bytes -= refusal_bytes(*self._refused.popitem(last=False))

    def _compile(self, guided: GuidedDecodingParams) -> Grammar:
        constraint = read_constraint(guided)
        first: GrammarError | None = None
        for name in candidates(guided):
            try:
                return self._compile_with(name, constraint)
            except LimitError as error:
                raise error.about(_NAMES.get(guided.mode, guided.mode)) from None
            except GrammarError as error:
                first = first or error
        assert first is not None
        raise first

    def _compile_with(self, name: str, constraint: Constraint) -> Grammar:
        backend = self._backends.get(name)
        if backend is None:
            with self._lock:
                backend = self._backends.get(name) or BACKENDS[name](self.vocabulary)
                self._backends[name] = backend
        start, size = backend.compile(constraint)
        ignored = constraint.schema.ignored if constraint.schema is not None else ()
        return Grammar(self.vocabulary, name, size, start, ignored)


def refusal_bytes(guided: GuidedDecodingParams, error: GrammarError) -> int:
    """Approximately the memory of a constraint and its refusal."""
    return 1000 + 2 * len(repr(guided)) + len(str(error))


def outcome(future: Future[Grammar]) -> Grammar:
    """The grammar that another thread compiles; the wait for it can be cancelled.

    Raises the GrammarError of that compilation.
    """
    while True:
        try:
            return future.result(POLL_S)
        except TimeoutError:
            checkpoint()


def candidates(guided: GuidedDecodingParams) -> list[str]:
    """The names of the backends in the order in which they are tried.

    After the default backend no other is tried: xgrammar is given only what it is known to enforce, and llguidance
    enforces all of that.
    """
    if guided.backend not in BACKENDS:
        return ["llguidance"]
    others = [] if guided.disable_fallback else [name for name in BACKENDS if name != guided.backend]
    return [guided.backend, *others]
