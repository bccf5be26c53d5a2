"""How a constraint steers one sample: a mask before each draw, a look at each token after it."""

from __future__ import annotations

import math
from copy import copy
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tirage.guided import ClosingPath, CompletionFinder, Grammar
from tirage.guided.matcher import set_bit
from tirage.params import SamplingParams
from tirage.text import Stop


@dataclass(frozen=True, slots=True)
class Constrained:
    """A compiled constraint, shared by the samples of a request; `closing` is the same over bytes, to close it, and
    `shortest` finds the ways of the fewest tokens."""

    grammar: Grammar
    closing: Grammar | None = None
    shortest: CompletionFinder | None = None


class GrammarState:
    """The constraint of one sample as its text grows.

    `limit` is the number of tokens the sample may have. `drops_space`: the text loses a space at its start, so no
    token may begin with one. `forcing`: the mask written last leaves nothing but the way to the end; `forced` turns
    True when a token was taken that way. SPEC.md S-G3, S-G4, S-G6.
    """

    def __init__(
        self, constrained: Constrained, params: SamplingParams, *, limit: int, drops_space: bool = False
    ) -> None:
        grammar = constrained.grammar
        self._eos_ids = () if params.ignore_eos else params.eos_token_ids
        self._matcher = grammar.matcher(self._eos_ids)
        self._vocabulary = grammar.vocabulary
        self._closing = open_closing(constrained, params, limit=limit, drops_space=drops_space)
        self._spaces = grammar.vocabulary.with_space if drops_space else None
        self._left, self._least, self._taken = limit, params.min_tokens, 0
        self.forcing = self.forced = False
        # The way after the token looked at last, which mostly is the token that is taken.
        self._ahead: tuple[int, ClosingPath] | None = None
        self._was_complete = False
        self.refused = False

    @property
    def complete(self) -> bool:
        """Whether the tokens so far satisfy the constraint."""
        return self._matcher.complete

    @property
    def was_complete(self) -> bool:
        """Whether they did before the last token."""
        return self._was_complete

    @property
    def error(self) -> str:
        """Why the constraint cannot be followed any further; empty while it can."""
        return "the token drawn breaks the constraint" if self.refused else self._matcher.error

    def fill(self, mask: NDArray[np.int32]) -> None:
        """Writes the tokens that may be drawn now: those of the constraint, or the one that closes it in time."""
        self.forcing = False
        if self._must_close():
            self.force(mask)
            return
        self._matcher.fill_mask(mask)
        if self._spaces is not None and not self._taken:
            mask &= ~self._spaces

    def _must_close(self) -> bool:
        """Whether the way to the end takes all tokens that are left; a way that takes more is given up."""
        closing = self._closing
        if closing is None or len(closing.tokens or ()) < self._left or closing.fits(self._left - 1):
            return False
        if closing.min_tokens < self._left:
            closing.shorten()
        if not closing.fits(self._left):
            self._closing = None
        return self._closing is not None and len(closing.tokens or ()) == self._left

    def keeps(self, token_id: int) -> bool:
        """Whether the text can still be closed in time after this token, if it can be now."""
        way = None if self._closing is None else self._closing.tokens
        if self._closing is None or way is None or token_id in {-1, *way[:1], *self._eos_ids}:
            return True
        if not self._vocabulary.tokens[token_id] or not (way or self._eos_ids):
            return True
        self._ahead = token_id, self._closing.after(token_id)
        return self._ahead[1].fits(self._left - 1)

    def force(self, mask: NDArray[np.int32]) -> None:
        """Allows nothing but the next token of the way to the end, or an end where there is no way to go."""
        way = self._closing.tokens if self._closing is not None else None
        mask[:] = 0
        for token_id in way[:1] if way else self._eos_ids:
            set_bit(mask, token_id, True)
        self.forcing = True

    @property
    def closes(self) -> bool:
        """Whether a way to the end is looked after."""
        return self._closing is not None

    def turn(self, *, give_up: bool = False) -> None:
        """Looks for another way to the end than the one just tried, which something else forbids.

        Without one that fits, and with `give_up`, the text is no longer closed in time.
        """
        if self._closing is None:
            return
        self._closing.find_another()
        if give_up or not self._closing.fits(self._left) or not self._closing.tokens:
            self._closing = None

    def accept(self, token_id: int) -> None:
        """Moves past the token that was drawn."""
        self._was_complete = self._matcher.complete
        self.refused = not self._matcher.accept(token_id)
        self.forced |= self.forcing
        self._taken += 1
        self._left -= 1
        ahead, self._ahead = self._ahead, None
        if self._closing is None or self.refused or token_id in self._eos_ids:
            return
        if ahead is not None and ahead[0] == token_id:
            self._closing = ahead[1].fork()
        else:
            self._closing.advance(token_id)

    def fork(self) -> GrammarState:
        """An independent one at the same place."""
        other = copy(self)
        other._matcher = self._matcher.fork()
        other._closing = None if self._closing is None else self._closing.fork()
        return other

    def end(self) -> Stop | None:
        """How the constraint ends the text now: with an error, because it is complete, or not at all."""
        if self.refused:
            return Stop(kind="grammar_failed", matched_text=self.error)
        closed = self.forced and self._left == 0 and self.complete
        if (self._matcher.done or closed) and self._taken >= self._least:
            return Stop(kind="grammar", matched="close_grammar" if self.forced else None)
        return None


def open_closing(
    constrained: Constrained, params: SamplingParams, *, limit: int, drops_space: bool
) -> ClosingPath | None:
    """What looks after a way to the end; None without being asked to, and when every way takes more than `limit`."""
    if constrained.closing is None:
        return None
    words = constrained.grammar.vocabulary
    banned = unusable(params, words.width)
    excluded = frozenset(b" " if drops_space else b"")

    def make() -> ClosingPath:
        assert constrained.closing is not None
        return ClosingPath(constrained.closing.matcher(), words, banned, finder=constrained.shortest, excluded=excluded)

    shared = constrained.shortest
    closing = make() if shared is None else shared.cached((banned, excluded), make).for_sample()
    fits = closing.fits(limit)
    if len(closing.tokens or ()) >= limit:
        # The first draw asks this, in the thread that writes all other texts too; here its answer is made ready.
        closing.fits(limit - 1)
    return closing if fits or (closing.min_tokens <= limit and not closing.hopeless) else None


def unusable(params: SamplingParams, width: int) -> frozenset[int]:
    """Ids that other parameters forbid or that would end the text, which a forced ending must do without."""
    allowed = params.allowed_token_ids
    banned = set[int]() if allowed is None else set(range(width)) - set(allowed)
    banned |= {word[0] for word in params.bad_words_token_ids if len(word) == 1}
    banned |= {i for i, bias in (params.logit_bias or {}).items() if bias == -math.inf}
    return frozenset(banned | params.all_stop_token_ids)
