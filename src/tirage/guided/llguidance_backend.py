"""The default backend: llguidance, with exact masks.

By default llguidance forces the canonical tokenization wherever the text is determined, which is faster but changes
which tokens are drawn. `no_forcing` turns that off, so that a mask holds every token with which some text can go on.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache, partial
from typing import Any
from weakref import ref

import numpy as np

from tirage.errors import GrammarError
from tirage.guided.constraint import Constraint
from tirage.guided.gbnf_to_lark import regex_lark, to_lark
from tirage.guided.json_schema.lark import may_skip, schema_lark
from tirage.guided.matcher import Cursor, Mask
from tirage.guided.small_constraints import is_shallow, is_small
from tirage.guided.structural_tag_lark import tagged_lark
from tirage.guided.trial_compile import TRIALS
from tirage.guided.vocabulary import Vocabulary
from tirage.workers.cancel import checkpoint
from tirage.workers.free_memory import return_free_memory
from tirage.workers.large_stack import on_large_stack

_EXACT = '%llguidance {"no_forcing": true}\n'
_SKIPS = '%llguidance {"no_forcing":true,"ignore_once":true}\n'
"""A header by which what is ignored comes at most once in a row, so that its length keeps its bounds."""
_HEADER = re.compile(r"\A\s*%llguidance\s*(\{[^{}]*\})[^\S\n]*\n")
# The least memory that a compiled grammar was measured to take; see benchmarks/guided.py.
_LEAST_BYTES = 160 * 1024
LEXER_STATES = 1 << 14
"""Most states of the automaton that the texts of a grammar share, or one per token of a larger vocabulary: no mask was
found to need as many. When it is full, all go on with a new one."""
BYTE_LEXER_STATES = 250_000
"""The same over bytes, where searches ask for what no text has: there a full automaton would go unnoticed."""
_BYTES_OF_A_STATE = 410
ROW_ITEMS = 2_000
"""Most rules that may be under way at one place, or four times those of a schema: all its members may come next."""
# A new state takes about 6 microseconds, a token of the vocabulary without one at most 50 nanoseconds.
_STATE_S, _TOKEN_S = 6e-6, 5e-8
# How many masks are timed in processor time after one that took long.
_WATCHED = 32
_FULL = re.compile("too many (?:states|expressions)")
_TOO_MUCH = "its pattern and its lengths are too much together; leave minLength and maxLength out"
_SLICES = ("[a-z]{1,10}", "[0-9A-Za-z]{1,10}", r'[^"\\\x00-\x1F\x7F]{1,15}', r'[^"\\\x00-\x1F\x7F]+')
"""Groups of tokens, as patterns, that a mask allows as a whole where it can, instead of looking at each token: words
without spaces, of which names, addresses and patterns consist, and parts of JSON strings. Each adds some 15 us to every
compilation. Strings have few longer tokens: up to 30 characters instead, two more groups for the longer ones, or one of
whitespace, as the library has by default, made no mask faster."""
STACK_MEGABYTES = 64
"""Stack on which rules may lead deep: the compiler takes up to 3 KB for each rule and each group inside another."""
_LARGE = 1 << 16
"""Characters of a grammar whose compilation needs tens of megabytes for a moment."""
_LOAD = {"task": "load", "compiler": "llguidance"}


class LlguidanceTokenizer:
    """A vocabulary in the form that llguidance takes, with an end token of its own after all ids of the model."""

    bos_token_id = None

    def __init__(self, vocabulary: Vocabulary) -> None:
        width = vocabulary.width
        spelled = tuple(vocabulary.special.get(i, token) for i, token in enumerate(vocabulary.tokens))
        self.tokens = (*spelled, b"<end of text>")
        self.eos_token_id = width
        self.special_token_ids = (*vocabulary.special, width)
        self._vocabulary = vocabulary

    def __call__(self, text: str | bytes) -> list[int]:
        return self._vocabulary.cover(text.encode() if isinstance(text, str) else text) or []


class LlguidanceBackend:
    """Compiles constraints with llguidance for one vocabulary."""

    name = "llguidance"

    def __init__(self, vocabulary: Vocabulary) -> None:
        import llguidance

        self._library = llguidance
        self._vocabulary = vocabulary
        wrapper = llguidance.TokenizerWrapper(LlguidanceTokenizer(vocabulary))
        self._tokenizer = llguidance.LLTokenizer(wrapper, n_vocab=vocabulary.width + 1, slices=list(_SLICES))
        self._width = vocabulary.width
        openings = (vocabulary.cover(bytes([byte])) or () for byte in b'{["')
        self._openings = [ids[0] for ids in openings if len(ids) == 1]
        self._states = BYTE_LEXER_STATES if self._width == 256 else max(LEXER_STATES, self._width)
        self._limits = lru_cache(maxsize=16)(partial(llguidance.LLParserLimits, max_lexer_states=self._states))

    def compile(self, constraint: Constraint) -> tuple[Cursor, int]:
        """A cursor at the start of a text, and the approximate size of the grammar in bytes.

        Raises GrammarError for a constraint that llguidance refuses or that no text satisfies, and LimitError for one
        that takes too much time or memory.
        """
        grammar = lark_of(constraint)
        held = 0
        if not is_small(constraint, grammar):
            answer = TRIALS.compile({"task": "llguidance", "grammar": grammar}, _LOAD)
            held = int(answer["bytes"])
            if answer["error"]:
                raise refusal(constraint, answer["error"])
        if constraint.kind == "tags":
            grammar = lark_of(constraint, self._vocabulary.special)
        rules = len(constraint.schema.rules) if constraint.schema is not None else 0
        limits = self._limits(max_items_in_row=max(ROW_ITEMS, 4 * rules))
        make: Callable[[], Any] = partial(self._library.LLMatcher, self._tokenizer, grammar, log_level=0, limits=limits)
        if not is_shallow(constraint):
            # Only the compilation recurses: masks, tokens, copies and the end of a matcher need no more than usual.
            make = partial(on_large_stack, make, megabytes=STACK_MEGABYTES)
        # The library's own calls cannot be cancelled, so there is a look before each.
        checkpoint()
        lexer = SharedLexer(make, states=self._states)
        if len(grammar) > _LARGE:
            return_free_memory()
        if lexer.start.is_error():
            raise refusal(constraint, lexer.start.get_error())
        checkpoint()
        cursor = LlguidanceCursor(lexer, self._width)
        if not cursor.may_begin(self._openings if constraint.kind == "json" else ()):
            raise no_text(cursor, self._vocabulary, _NAMES[constraint.kind])
        return cursor, max(_LEAST_BYTES, 60 * len(grammar), held)


_NAMES = {"json": "schema", "regex": "regex", "gbnf": "grammar", "lark": "grammar", "tags": "structural_tag"}


def no_text(cursor: Cursor, vocabulary: Vocabulary, name: str) -> GrammarError:
    """The error where no token may come first: no text satisfies the constraint, or none can be spelled."""
    if vocabulary.has_bytes:
        return GrammarError(f"{name} cannot be enforced: {cursor.error() or 'no text satisfies it'}")
    return GrammarError(f"{name} must allow some text that this model can write, got one that allows none")


@dataclass(slots=True, eq=False)
class Room:
    """Room for one mask of the library, which has an end token of its own after all others."""

    address: int
    size: int
    mask: Mask
    """Its words without that token, where it has a word to itself."""
    words: memoryview
    """The same, for a look at the first of them."""


class Rooms(threading.local):
    """Room for the masks of the thread that asks, by width: it is needed until a mask has been copied out of it."""

    def __init__(self) -> None:
        self._made: dict[int, Room] = {}

    def of(self, width: int) -> Room:
        """The room for a vocabulary of so many tokens; a new one only if there is none, since that takes long."""
        found = self._made.get(width)
        if found is None:
            buffer = np.zeros((width + 32) // 32, np.int32)
            mask = buffer[: -(-width // 32)]
            found = Room(buffer.__array_interface__["data"][0], buffer.nbytes, mask, mask.data)
            self._made[width] = found
        return found


_ROOMS = Rooms()


class SharedLexer:
    """The lexer of one grammar, whose automaton all its cursors share and extend as their texts need more of it.

    `start` is a matcher before any text; copies of it share its automaton.
    """

    def __init__(self, make: Callable[[], Any], *, states: int) -> None:
        self._make, self._most, self._lock = make, states, threading.Lock()
        # Those that have copies, as long as they live. A WeakSet takes longer to make than all the rest.
        self._cursors: set[ref[LlguidanceCursor]] = set()
        self._states, self._watched = 0.0, 0
        self.start = make()

    def copy(self, matcher: Any, cursor: LlguidanceCursor) -> Any:
        """A copy of a matcher for a cursor, which lets it go when the automaton is replaced."""
        with self._lock:
            self._cursors.add(ref(cursor, self._cursors.discard))
        return matcher.deep_copy()

    def replace(self) -> None:
        """Begins a new automaton for all texts, as this one is full; texts that rest let go of the full one too."""
        with self._lock:
            self.start, self._states = self._make(), 0.0
            for each in [*self._cursors]:
                cursor = each()
                if cursor is not None:
                    cursor.let_go()
            self._cursors.clear()

    def compute(self, matcher: Any, address: int, size: int) -> None:
        """Writes the mask of a matcher to an address; from the time that it takes the automaton's size is estimated.

        Processor time takes microseconds to ask for, so the clock on the wall, which also runs while other threads do,
        tells when to begin with it.
        """
        clock = time.thread_time if self._watched else time.perf_counter
        began = clock()
        matcher.unsafe_compute_mask_ptr(address, size)
        new = clock() - began - 8 * size * _TOKEN_S
        if self._watched:
            # One that took long for other reasons, as the machine was busy, shall not slow down hundreds.
            self._watched = _WATCHED if new > 0 else self._watched - 1
            self._states += max(0.0, new) / _STATE_S
        elif new > 0:
            self._watched = _WATCHED

    @property
    def nbytes(self) -> int:
        """The estimated size of the automaton."""
        return int(min(self._states, self._most)) * _BYTES_OF_A_STATE


class LlguidanceCursor:
    """The state of one text in llguidance; see `Cursor`.

    Its matcher is made from its tokens when it is first needed. Where a mask finds the automaton full there is a
    new one, for which every text reads its tokens again; where a token finds it full it is refused without an error,
    hence `renew`.
    """

    __slots__ = ("__weakref__", "_lexer", "_own", "_tokens", "_width")

    def __init__(self, lexer: SharedLexer, width: int, tokens: tuple[int, ...] = ()) -> None:
        self._lexer, self._width = lexer, width
        # Its own matcher, once something is asked of it: it takes 1.5 KB.
        self._own: Any = None
        self._tokens = list(tokens)

    def fill(self, mask: Mask) -> None:
        """Writes the allowed tokens into int32 [ceil(V / 32)]; see `Cursor`."""
        mask[:] = self._computed()
        if self._width % 32:
            mask[-1] &= (1 << self._width % 32) - 1

    def may_begin(self, likely: Sequence[int] = ()) -> bool:
        """Whether some token may begin a text, or none need: asked of the start itself, before there are copies.

        A look for one of the `likely` tokens is a tenth of a mask.
        """
        if any(self._lexer.start.validate_tokens([token_id]) for token_id in likely):
            return True
        room = _ROOMS.of(self._width)
        self._lexer.compute(self._lexer.start, room.address, room.size)
        if self._width % 32:
            room.mask[-1] &= (1 << self._width % 32) - 1
        # Most texts may begin with a token of the first words, where the look ends.
        return any(room.words) or self.complete()

    def _computed(self) -> Mask:
        """The mask int32 [ceil(V / 32)], in room that the next one takes in this thread.

        The library's own end token comes after all others, and is the only one of a text that is over or has failed.
        """
        matcher, room = self._own or self._matcher, _ROOMS.of(self._width)
        self._lexer.compute(matcher, room.address, room.size)
        if matcher.is_error() and _FULL.search(matcher.get_error()):
            self.renew()
            self._lexer.compute(self._matcher, room.address, room.size)
        return room.mask

    @property
    def _matcher(self) -> Any:
        if self._own is None:
            self._own = self._lexer.copy(self._lexer.start, self)
            if self._tokens:
                self._own.try_consume_tokens(self._tokens)
        return self._own

    def _is_over(self) -> bool:
        return self._matcher.is_error() or self._matcher.is_stopped()

    def accept(self, token_id: int) -> bool:
        """See `Cursor`."""
        if self._matcher.is_error() or self._matcher.try_consume_tokens([token_id]) != 1:
            return False
        self._tokens.append(token_id)
        return True

    def renew(self) -> None:
        """See `Cursor`."""
        self._lexer.replace()
        self._own = None

    def let_go(self) -> None:
        """Frees its matcher, as its automaton is replaced; an error stays."""
        if self._own is not None and not self._own.is_error():
            self._own = None

    def rollback(self, count: int) -> None:
        """See `Cursor`."""
        self._matcher.rollback(count)
        del self._tokens[len(self._tokens) - count :]

    def complete(self) -> bool:
        """See `Cursor`."""
        matcher = self._matcher if self._own or self._tokens else self._lexer.start
        return not matcher.is_error() and matcher.is_accepting()

    def forced_bytes(self) -> bytes:
        """See `Cursor`."""
        return b"" if self._is_over() else bytes(self._matcher.compute_ff_bytes())

    def stopped(self) -> bool:
        """See `Cursor`."""
        return self._matcher.is_stopped()

    def error(self) -> str:
        """See `Cursor`."""
        return explain(self._matcher.get_error()) if self._matcher.is_error() else ""

    def fork(self) -> LlguidanceCursor:
        """See `Cursor`."""
        other = LlguidanceCursor(self._lexer, self._width, tuple(self._tokens))
        if self._tokens:
            other._own = self._lexer.copy(self._matcher, other)
        return other

    @property
    def shared_bytes(self) -> int:
        """See `Cursor`."""
        return self._lexer.nbytes

    @property
    def shared(self) -> object:
        """See `Cursor`."""
        return self._lexer


def refusal(constraint: Constraint, error: str) -> GrammarError:
    """The error for a constraint that the library refuses, with the place if it can be found."""
    name, reason = _NAMES[constraint.kind], explain(error)
    if constraint.kind == "json":
        return GrammarError(f"{name} at # {reason}", place="#")
    found = re.search(r"line \d+, column \d+", reason)
    return GrammarError(f"{name} {reason}", place=found[0] if found else "")


def explain(error: str) -> str:
    """A message of the library on one line, without the source it quotes, its internal state and our header."""
    first = re.split(r"\n<|<backtrace>|<state>", error)[0]
    lines = [line.strip() for line in first.splitlines() if not re.match(r"\s*(?:\d+ \||\^\s*$)", line)]
    text = " ".join(filter(None, lines))
    text = re.sub(r"Unable to determine if regex is empty:.*", _TOO_MUCH, text)
    text = text.replace("NoExtensionBias", "no text satisfies it").split(" Enable '")[0]
    text = re.sub(r"^(?:at )?(\d+)\((\d+)\)", lambda at: f"line {int(at[1]) - 1}, column {at[2]}", text)
    return f"cannot be enforced: {text[:300]}"


@cache
def ignores_once() -> bool:
    """Whether the library, which reads over options that it does not know, knows `ignore_once`: from 1.8 on."""
    from llguidance import LLMatcher

    return bool(LLMatcher.validate_grammar('%llguidance {"ignore_once": 0}\nstart: "a"'))


def lark_of(constraint: Constraint, special: Mapping[int, bytes] | None = None) -> str:
    """The constraint in llguidance's Lark notation; GrammarError for a grammar that cannot be translated.

    The `special` tokens may stand for what a structural tag spells so.
    """
    match constraint.kind:
        case "json":
            assert constraint.schema is not None
            skips = may_skip(constraint.schema) and ignores_once()
            return (_SKIPS if skips else _EXACT) + schema_lark(constraint.schema, skips=skips)
        case "regex":
            return _EXACT + regex_lark(constraint.expression)
        case "gbnf":
            return _EXACT + to_lark(constraint.rules)
        case "lark":
            return exact_header(constraint.text)
    return _EXACT + tagged_lark(json.loads(constraint.text), constraint.whitespace, special)


def exact_header(grammar: str) -> str:
    """A Lark grammar whose header asks for exact masks; GrammarError for a header that is not valid JSON."""
    match = _HEADER.match(grammar)
    if match is None:
        return _EXACT + grammar
    try:
        options = json.loads(match[1])
    except json.JSONDecodeError as error:
        raise GrammarError(f"grammar must begin with valid options after %llguidance: {error.msg}") from None
    return f"%llguidance {json.dumps({'no_forcing': True} | options)}\n{grammar[match.end() :]}"
