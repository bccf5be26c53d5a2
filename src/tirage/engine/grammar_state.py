"""The state of a constraint along one sample: the mask before each draw, and each token after it."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.engine.constraint_budget import ConstraintBudget
from tirage.engine.reasoning import ReasoningState, spelling, takes
from tirage.engine.returned_text import satisfies
from tirage.guided import ClosingPath, CompletionFinder, Grammar, Vocabulary, forced_tokens
from tirage.guided.matcher import set_bit
from tirage.params import SamplingParams
from tirage.text import Stop, Tokenizer


@dataclass(frozen=True, slots=True, eq=False)
class FirstTokens:
    """The tokens with which a text that loses a space may begin, as a mask int32 [ceil(V / 32)].

    `vocabulary` is what each token writes there.
    """

    mask: NDArray[np.int32]
    vocabulary: Vocabulary


@dataclass(frozen=True, slots=True)
class CompiledConstraint:
    """A compiled constraint, shared by the samples of a request.

    `closing`, for a constraint that is to be closed before the limit, is its grammar over bytes; `shortest` finds the
    closing paths of the fewest tokens. `first` are the first tokens of a text that loses a space.
    """

    grammar: Grammar
    closing: Grammar | None = None
    shortest: CompletionFinder | None = None
    first: FirstTokens | None = None


class GrammarState:
    """The state of a constraint after the tokens of one sample.

    `limit` is the largest number of tokens of the sample. `drops_space`: the text loses a space at its start; if the
    constraint does not know its `first` tokens, none may begin with one. `closing`: the last mask allows only the
    closing path; `was_closed`: some token was drawn under such a mask. `budget` counts the time of all samples of the
    request; `exceeded` says what of it this sample has used up. With `reasoning` the constraint holds after it.
    SPEC.md S-G2, S-G3, S-G4, S-G6, S-G9, S-G10.
    """

    __slots__ = (
        "_answer_path",
        "_checked",
        "_complete",
        "_eos_ids",
        "_first",
        "_follows",
        "_fresh",
        "_is_left",
        "_left",
        "_mask",
        "_matcher",
        "_min_tokens",
        "_needs_space",
        "_path",
        "_reasoning",
        "_spaces",
        "_taken",
        "_tokens",
        "_vocabulary",
        "_was_complete",
        "budget",
        "closing",
        "exceeded",
        "refused",
        "shared",
        "was_closed",
    )

    def __init__(
        self,
        constraint: CompiledConstraint,
        params: SamplingParams,
        *,
        limit: int,
        drops_space: bool = False,
        budget: ConstraintBudget | None = None,
        reasoning: ReasoningState | None = None,
    ) -> None:
        grammar = constraint.grammar
        self.budget = ConstraintBudget() if budget is None else budget
        self.budget.ambiguous = is_ambiguous(params)
        self.exceeded = ""
        self._eos_ids = () if params.ignore_eos else params.eos_token_ids
        self._matcher = grammar.matcher(self._eos_ids)
        self._reasoning = reasoning
        # At the beginning of an answer; the other one may follow a text that turns out to be reasoning.
        self._fresh = self._matcher if reasoning is None else grammar.matcher(self._eos_ids)
        # Whether the matcher follows the text, which may be the answer from its beginning on.
        self._follows = reasoning is None or not reasoning.inside
        # What the states of all texts of the constraint change; only one thread may use states with the same.
        self.shared = self._matcher.shared
        self._vocabulary = grammar.vocabulary
        self._path = open_closing_path(constraint, params, limit=limit, drops_space=drops_space)
        # The closing path of an answer that has not begun, for a text that is not in its answer yet.
        self._answer_path: ClosingPath | None = None
        if reasoning is not None:
            self._answer_path = open_closing_path(constraint, params, limit=limit, drops_space=False)
            self._path = self._path if self._follows else None
        self._first = constraint.first if drops_space else None
        self._spaces = grammar.vocabulary.with_space if drops_space and self._first is None else None
        self._left, self._min_tokens, self._taken = limit, params.min_tokens, 0
        # Whether nothing but a space may come first, which the text would lose.
        self._needs_space = False
        self.closing = self.was_closed = False
        # The token that was checked last, usually the one that is then accepted, with the closing path after it.
        self._checked: tuple[int, ClosingPath] | None = None
        # Known here, since another thread may use the matcher meanwhile.
        self._complete, self._was_complete = self._follows and self._matcher.complete, False
        self.refused = False
        # The next mask, and whether it allows only the closing path.
        self._mask: tuple[NDArray[np.int32], bool] | None = None
        self._tokens: list[int] = []
        self._is_left = False

    @property
    def text_key(self) -> object:
        """Equal for states of a request after the same tokens, which have the same mask, where knowing it helps."""
        worthwhile = self.budget.is_slow or not self._tokens
        return self.budget, tuple(self._tokens) if worthwhile else id(self)

    @property
    def is_prepared(self) -> bool:
        """Whether the next mask has been computed, or is left to the draw, which will raise its error."""
        return self._mask is not None or self._is_left

    @property
    def complete(self) -> bool:
        """Whether the tokens so far satisfy the constraint."""
        return self._complete

    @property
    def was_complete(self) -> bool:
        """Whether the tokens before the last one satisfy it."""
        return self._was_complete

    def satisfied_by(self, text: str) -> bool:
        """Whether a text is in the set that the tokens so far write but for its end; False if it may hold reasoning."""
        if self._reasoning is not None or self.refused:
            return False
        with self.budget.counting():
            return satisfies(self._matcher.fork(), self._tokens, text.encode("utf-8", "surrogatepass"))

    @property
    def error(self) -> str:
        """Why no further token can satisfy the constraint; empty while one can."""
        if self._needs_space:
            return "the texts of the constraint begin with a space, which this model's text loses; leave it out"
        return self._matcher.error or ("the token drawn breaks the constraint" if self.refused else "")

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Writes the mask int32 [ceil(V / 32)] of the next draw: what the constraint or its closing path allows."""
        self.prepare()
        assert self._mask is not None
        prepared, self.closing = self._mask
        mask[:] = prepared

    def prepare(self, *, like: GrammarState | None = None) -> None:
        """Computes the mask that `fill` writes, in any thread; a state `like` this one may have it already.

        Nothing is allowed where the budget is exceeded.
        """
        if self._mask is not None:
            return
        mask, self.exceeded = None, self.budget.exceeded
        if not self.exceeded:
            began = time.thread_time()
            mask = self._computed(like)
            self.exceeded = self.budget.add_mask(time.thread_time() - began)
        if mask is None or self.exceeded:
            mask, self.closing = np.zeros(self._vocabulary.words, np.int32), False
        self._mask = mask, self.closing

    def leave(self) -> None:
        """Leaves the mask to the draw: an error of it ends the sample there."""
        self._is_left = True

    def _computed(self, like: GrammarState | None) -> NDArray[np.int32]:
        """The next mask int32 [ceil(V / 32)], of the matcher if possible that of a state after the same tokens.

        Whether the text must close is found for each: it may have paths, and work left, that the other one has not.
        """
        before = self._before_answer
        self.closing = (self._follows and self._must_close()) or self._must_reach_answer()
        if like is not None and before is None and not self.closing and like.is_shareable:
            assert like._mask is not None
            return like._mask[0]
        mask = np.zeros(self._vocabulary.words, np.int32)
        if self.closing:
            self.fill_closing(mask)
            return mask
        if self._follows:
            self._fill_allowed(mask)
        if before is not None:
            self._fill_reasoning(mask, before)
        return mask

    @property
    def is_shareable(self) -> bool:
        """Whether states after the same tokens, which need not close, have the mask that this one has."""
        return self._mask is not None and not self._mask[1] and bool(self._mask[0].any())

    def _fill_allowed(self, mask: NDArray[np.int32]) -> None:
        """Writes what the grammar allows next into int32 [ceil(V / 32)]."""
        if self._first is not None and not self._taken:
            mask[:] = self._first.mask
            for token_id in self._eos_ids:
                set_bit(mask, token_id, self._matcher.complete)
            return
        self._matcher.fill_mask(mask)
        if self._spaces is not None and not self._taken:
            allowed = mask.any()
            mask &= ~self._spaces
            self._needs_space = bool(allowed) and not mask.any() and not self._complete

    def _spelled(self, token_id: int) -> Sequence[int]:
        """The tokens that write inside a text what a token writes here: itself, or for a first one what it leaves."""
        if self._first is None or self._taken or not 0 <= token_id < self._vocabulary.width:
            return (token_id,)
        written = self._first.vocabulary.tokens[token_id]
        return (token_id,) if written == self._vocabulary.tokens[token_id] else spelling(self._vocabulary, written)

    @property
    def _before_answer(self) -> ReasoningState | None:
        """The state of the reasoning; None once the text is in its answer."""
        return None if self._reasoning is None or self._reasoning.over else self._reasoning

    def _fill_reasoning(self, mask: NDArray[np.int32], reasoning: ReasoningState) -> None:
        """Adds the tokens of the reasoning to a mask int32 [ceil(V / 32)], which then has no end of the text."""
        reasoning.fill(mask)
        if reasoning.is_spent:
            return
        for token_id in self._eos_ids if reasoning.inside else ():
            set_bit(mask, token_id, False)
        for token_id, rest in reasoning.crossing():
            set_bit(mask, token_id, self._may_begin_with(rest))

    def _may_begin_with(self, text: bytes) -> bool:
        """Whether the answer may begin with these bytes, which end the token that ends the reasoning."""
        if not takes(self._fresh.fork(), text):
            return False
        if self._answer_path is None:
            return True
        path = self._answer_path.fork()
        for token_id in spelling(self._vocabulary, text):
            path.advance(token_id)
        return path.fits(self._left - 1)

    @property
    def _begun_path(self) -> Sequence[int] | None:
        """The closing path of an answer that the text so far is the beginning of; None when none is known."""
        return None if self._path is None else self._path.tokens

    def _must_reach_answer(self) -> bool:
        """Whether another token before the answer might leave too little room for the tags and the closing path.

        A path of the answer after the reasoning that does not fit is given up; one without reasoning goes first.
        """
        path, reasoning = self._answer_path, self._before_answer
        if path is None or reasoning is None:
            return False
        tags, tokens = reasoning.rest_of_tags(), path.tokens
        if tokens is None or tags is None or len(tokens) + len(tags) > self._left:
            self._answer_path = None
            return False
        return self._begun_path is None and len(tokens) + reasoning.most_tags >= self._left

    def _must_close(self) -> bool:
        """Whether the closing path takes all tokens that are left; a longer one is given up."""
        path = self._path
        if path is None or len(path.tokens or ()) < self._left or path.fits(self._left - 1):
            return False
        if path.min_tokens < self._left:
            path.shorten()
        if not path.fits(self._left):
            self._path = None
        return self._path is not None and len(path.tokens or ()) == self._left

    @property
    def may_search(self) -> bool:
        """Whether the next mask may take searches for a shorter closing path, which take a quarter of a second."""
        path = self._path
        return self._follows and path is not None and len(path.tokens or ()) >= self._left

    def can_close_after(self, token_id: int) -> bool:
        """Whether the constraint can still be closed before the limit after this token, if it can be now."""
        tokens, before = self._begun_path, self._before_answer
        if token_id == -1 or token_id in self._eos_ids:
            return True
        if before is not None and (tokens is not None or self._answer_path is not None):
            continues = before.continues(token_id)
            if continues and self._has_room_for(before, token_id):
                return True
            if not (self._follows and all(map(self._matcher.fork().accept, self._spelled(token_id)))):
                # The mask holds no token that ends the reasoning and leaves too little room.
                return not continues and self._answer_path is not None
            if tokens is None:
                return False
        if self._path is None or tokens is None or token_id in tokens[:1] or not (tokens or self._eos_ids):
            return True
        if not self._vocabulary.tokens[token_id]:
            return True
        with self.budget.counting():
            if self._checked is None or self._checked[0] != token_id:
                self._checked = token_id, self._path.after(self._spelled(token_id))
            return self._checked[1].fits(self._left - 1)

    def _has_room_for(self, reasoning: ReasoningState, token_id: int) -> bool:
        """Whether the reasoning, with this token, leaves room for a closing path of the answer that is known."""
        tokens = None if self._answer_path is None else self._answer_path.tokens
        tags = reasoning.rest_of_tags() or ()
        left = len(tags) - 1 if token_id in tags[:1] else reasoning.tags_after(token_id)
        return tokens is not None and len(tokens) + left < self._left

    def is_checked(self, token_id: int) -> bool:
        """Whether `can_close_after` takes no search for this token."""
        path = self._path
        return path is None or token_id in {-1, *(path.tokens or ())[:1]} or (self._checked or (None,))[0] == token_id

    def fill_closing(self, mask: NDArray[np.int32]) -> None:
        """Writes the mask int32 [ceil(V / 32)] of the next token of the closing path, or of EOS at its end.

        Where no path is known the mask is empty.
        """
        tokens, before = self._begun_path, self._before_answer
        if tokens is None and before is not None and self._answer_path is not None:
            tokens = before.rest_of_tags()
        mask[:] = 0
        for token_id in self._eos_ids if tokens is not None and not tokens else (tokens or ())[:1]:
            set_bit(mask, token_id, True)
        self.closing = True

    @property
    def has_path(self) -> bool:
        """Whether the constraint is still to be closed before the limit."""
        return self._path is not None

    def try_next_path(self, *, give_up: bool = False) -> None:
        """Replaces the closing path, whose next token other parameters forbid, by another one.

        When none fits, and with `give_up`, the constraint is no longer closed before the limit.
        """
        self._mask = None
        if self._before_answer is not None:
            self._path = self._answer_path = None
        if self._path is None:
            return
        self._path.find_another()
        if give_up or not self._path.fits(self._left) or not self._path.tokens:
            self._path = None

    def accept(self, token_id: int) -> None:
        """Advances by the token that was drawn."""
        began = time.thread_time()
        try:
            self._accept(token_id)
        finally:
            self.budget.add_token(time.thread_time() - began)

    def _accept(self, token_id: int) -> None:
        self._was_complete, self._mask = self._complete, None
        before, followed, spelled = self._before_answer, True, self._spelled(token_id)
        if before is None:
            self.refused = not all(map(self._matcher.accept_allowed, spelled))
        else:
            followed = self._reason(before, token_id)
        self._complete = self._follows and self._matcher.complete
        self.was_closed |= self.closing
        self._tokens.append(token_id)
        self._taken += 1
        self._left -= 1
        checked, self._checked = self._checked, None
        if self._path is None or self.refused or not followed or token_id in self._eos_ids:
            return
        if checked is not None and checked[0] == token_id:
            self._path = checked[1].fork()
        else:
            for each in spelled:
                self._path.advance(each)

    def _reason(self, reasoning: ReasoningState, token_id: int) -> bool:
        """Advances by a token that may belong to the reasoning; whether it belongs to the answer as a whole."""
        rest = reasoning.accept(token_id)
        if self._follows and not reasoning.inside and rest is None:
            # The text may still be an answer without reasoning, and is one if it is no longer undecided.
            self._follows = all(map(self._matcher.accept, self._spelled(token_id)))
            self.refused = reasoning.over and not self._follows
            if self._follows:
                return True
        self._matcher, self._path, self._follows = self._fresh.fork(), None, False
        if rest is not None:
            self._begin_answer(rest)
        return False

    def _begin_answer(self, text: bytes) -> None:
        """Takes these bytes, which follow the end tag in its last token, as the beginning of the answer."""
        self._follows, self.refused = True, not takes(self._matcher, text)
        path, self._answer_path = self._answer_path, None
        if path is not None and not self.refused:
            for token_id in spelling(self._vocabulary, text):
                path.advance(token_id)
        self._path = path

    def forced(self, tokenizer: Tokenizer) -> list[int]:
        """The tokens that the constraint leaves no choice about; none in the reasoning, nor first where one is free to
        begin with a space."""
        is_free = (self._first is not None or self._spaces is not None) and not self._taken
        if is_free or self._before_answer is not None or self.refused or self.exceeded:
            return []
        with self.budget.counting():
            return forced_tokens(self._matcher, self._tokens, tokenizer.encode_plain)

    def work_alone(self) -> None:
        """Has what is left of the work for its text to itself, which forks share: it is that of another sample."""
        for path in (self._path, self._answer_path):
            if path is not None:
                path.work_alone()

    def fork(self) -> GrammarState:
        """An independent copy."""
        # Slot by slot: `copy.copy` takes more than twice the time.
        other = object.__new__(GrammarState)
        for name in GrammarState.__slots__:
            setattr(other, name, getattr(self, name))
        other._matcher, other._tokens = self._matcher.fork(), [*self._tokens]
        other._path = None if self._path is None else self._path.fork()
        other._answer_path = None if self._answer_path is None else self._answer_path.fork()
        other._reasoning = None if self._reasoning is None else copy(self._reasoning)
        return other

    def end(self) -> Stop | None:
        """The stop that the constraint brings now: an error, its completion, or None."""
        if self.refused:
            return Stop(kind="grammar_failed", matched_text=self.error)
        closed = self.was_closed and self._left == 0 and self.complete
        if (self._matcher.done or closed) and self._taken >= self._min_tokens:
            return Stop(kind="grammar", matched="close_grammar" if self.was_closed else None)
        return None


def is_ambiguous(params: SamplingParams) -> bool:
    """Whether texts of the constraint may have many derivations, as only those of a grammar do."""
    return params.guided_decoding is not None and params.guided_decoding.mode in {"grammar", "structural_tag"}


def open_closing_path(
    constraint: CompiledConstraint, params: SamplingParams, *, limit: int, drops_space: bool
) -> ClosingPath | None:
    """The closing path of a constraint; None when none was asked for, and when every path is longer than `limit`."""
    if constraint.closing is None:
        return None
    vocabulary = constraint.grammar.vocabulary
    banned = unusable(params, vocabulary.width)
    excluded = frozenset(b" " if drops_space else b"")

    def make() -> ClosingPath:
        assert constraint.closing is not None
        matcher = constraint.closing.matcher()
        return ClosingPath(matcher, vocabulary, banned, finder=constraint.shortest, excluded=excluded)

    shared = constraint.shortest
    if shared is None:
        path, fits = fitted(make(), limit)
    else:
        begun = shared.cached((banned, excluded), make)
        path, fits = shared.cached((banned, excluded, limit), lambda: fitted(begun.for_sample(), limit))
        path = path.for_sample()
    return path if fits or (path.min_tokens <= limit and not path.hopeless) else None


def fitted(path: ClosingPath, limit: int) -> tuple[ClosingPath, bool]:
    """The path itself, once it is as short as a limit wants it, and whether it fits."""
    fits = path.fits(limit)
    if len(path.tokens or ()) >= limit:
        # The first draw asks for this in the engine's thread, where all requests would wait; here it is made ready.
        path.fits(limit - 1)
    return path, fits


def unusable(params: SamplingParams, width: int) -> frozenset[int]:
    """The ids that a closing path must not use: other parameters forbid them, or they would end the text."""
    allowed = params.allowed_token_ids
    banned = set[int]() if allowed is None else set(range(width)) - set(allowed)
    banned |= {word[0] for word in params.bad_words_token_ids if len(word) == 1}
    banned |= {i for i, bias in (params.logit_bias or {}).items() if bias == -math.inf}
    banned |= {ids[0] for ids, bias in params.sequence_bias or () if len(ids) == 1 and bias == -math.inf}
    return frozenset(banned | params.all_stop_token_ids)
