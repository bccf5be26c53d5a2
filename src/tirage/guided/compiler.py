"""Constraints to grammars: which backend, how often, and for how long they are kept."""

from __future__ import annotations

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass
from typing import Any

from tirage.cancel import POLL_S, checkpoint
from tirage.errors import GrammarError
from tirage.guided.constraint import Constraint, read_constraint
from tirage.guided.llg import LlguidanceBackend
from tirage.guided.matcher import Cursor, Matcher
from tirage.guided.probe import LimitError
from tirage.guided.vocabulary import Vocabulary
from tirage.guided.xgr import XgrammarBackend
from tirage.params import GuidedDecodingParams

CACHE_BYTES = 64 << 20
BACKENDS = {"llguidance": LlguidanceBackend, "xgrammar": XgrammarBackend}


@dataclass(frozen=True, slots=True, eq=False)
class Grammar:
    """A compiled constraint for one vocabulary: immutable, shared by all requests that ask for it.

    `backend` names the compiler that took it; `nbytes` is about what it holds in memory.
    """

    vocabulary: Vocabulary
    backend: str
    nbytes: int
    _start: Cursor

    def matcher(self, eos_ids: Sequence[int] = ()) -> Matcher:
        """A new matcher at the start of the text; see Matcher for `eos_ids`."""
        return Matcher(self._start.fork(), self.vocabulary, eos_ids)


class Compiler:
    """Grammars for one vocabulary, each compiled once while it is in use.

    Keeps the most recently used grammars up to `budget` bytes; a single one may be larger. What cannot be compiled is
    not kept. Safe to call from several threads: those that want the same grammar wait for one compilation and share
    its outcome. SPEC.md S-G5, S-G8.
    """

    def __init__(self, vocabulary: Vocabulary, *, budget: int = CACHE_BYTES) -> None:
        self.vocabulary, self._budget = vocabulary, budget
        self._backends: dict[str, Any] = {}
        self._kept: OrderedDict[GuidedDecodingParams, Grammar] = OrderedDict()
        self._under_way: dict[GuidedDecodingParams, Future[Grammar]] = {}
        self._lock = threading.Lock()
        self._held = self._compiled = self._hits = 0

    @property
    def nbytes(self) -> int:
        """Bytes that the kept grammars hold."""
        return self._held

    def stats(self) -> dict[str, int]:
        """`grammars` and `bytes` kept now; how many were `compiled` since the start, and how many found (`hits`)."""
        with self._lock:
            counts = len(self._kept), self._held, self._compiled, self._hits
        return dict(zip(("grammars", "bytes", "compiled", "hits"), counts, strict=True))

    def compile(self, guided: GuidedDecodingParams) -> Grammar:
        """The grammar of a constraint.

        Without a `backend` llguidance compiles it. A backend that is named and cannot do it gives way to the other
        unless `disable_fallback`. Raises GrammarError, naming the rule and the place, when none can; the text is
        never left unconstrained.
        """
        while True:
            checkpoint()
            with self._lock:
                if (grammar := self._find(guided)) is not None:
                    return grammar
                other = self._under_way.get(guided)
                mine = self._under_way.setdefault(guided, Future())
            if other is None:
                return self._compile_into(mine, guided)
            # The other may be cancelled, which is no answer to those that wait for it.
            with contextlib.suppress(CancelledError):
                return outcome(other)

    def _compile_into(self, mine: Future[Grammar], guided: GuidedDecodingParams) -> Grammar:
        """The grammar, compiled for all that wait for the future; only an answer about the constraint is shared."""
        try:
            grammar = self._compile(guided)
        except BaseException as error:
            self._finish(guided, None)
            if isinstance(error, GrammarError):
                mine.set_exception(error)
            else:
                mine.cancel()
            raise
        self._finish(guided, grammar)
        mine.set_result(grammar)
        return grammar

    def _finish(self, guided: GuidedDecodingParams, grammar: Grammar | None) -> None:
        with self._lock:
            del self._under_way[guided]
            if grammar is not None:
                self._keep(guided, grammar)

    def _find(self, guided: GuidedDecodingParams) -> Grammar | None:
        grammar = self._kept.get(guided)
        if grammar is not None:
            self._kept.move_to_end(guided)
            self._hits += 1
        return grammar

    def _keep(self, guided: GuidedDecodingParams, grammar: Grammar) -> None:
        self._kept[guided] = grammar
        self._held += grammar.nbytes
        self._compiled += 1
        while len(self._kept) > 1 and self._held > self._budget:
            self._held -= self._kept.popitem(last=False)[1].nbytes

    def _compile(self, guided: GuidedDecodingParams) -> Grammar:
        constraint = read_constraint(guided)
        first: GrammarError | None = None
        for name in candidates(guided):
            try:
                return self._compile_with(name, constraint)
            except LimitError:
                raise
            except GrammarError as error:
                first = first or error
        assert first is not None
        raise first

    def _compile_with(self, name: str, constraint: Constraint) -> Grammar:
        with self._lock:
            backend = self._backends.get(name) or BACKENDS[name](self.vocabulary)
            self._backends[name] = backend
        start, size = backend.compile(constraint)
        return Grammar(self.vocabulary, name, size, start)


def outcome(future: Future[Grammar]) -> Grammar:
    """What another thread's compilation gives; the wait for it can be cancelled."""
    while True:
        try:
            return future.result(POLL_S)
        except TimeoutError:
            checkpoint()


def candidates(guided: GuidedDecodingParams) -> list[str]:
    """Backends in the order in which they are tried.

    The default one leaves the other nothing to add: xgrammar is asked for no more than it is known to enforce, and
    llguidance enforces all of that.
    """
    if guided.backend not in BACKENDS:
        return ["llguidance"]
    others = [] if guided.disable_fallback else [name for name in BACKENDS if name != guided.backend]
    return [guided.backend, *others]
