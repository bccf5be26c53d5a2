"""The closing path of a constrained text: a short completion, kept up to date as the text grows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy

from tirage.guided.closing.budgets import RemainingWork, StepBudget, StepLimitError, WorkLimitError
from tirage.guided.closing.byte_search import MAX_LENGTH, completes, shortest, straight
from tirage.guided.closing.shortest_completion import CompletionFinder, CompletionState
from tirage.guided.matcher import Matcher
from tirage.guided.vocabulary import Vocabulary

STEPS_BEFORE_TEXT, STEPS_INSIDE_TEXT, TEXT_WORK = 20_000, 5_000, 15_000
"""Steps that a search may take before the text begins, inside it, and that all searches inside it may waste together.

A step asks the grammar about one byte and takes 10 to 20 microseconds, up to 200 with the largest grammars. A text
whose search exceeds them is no longer closed in time."""
_LONGEST_WAIT = 64
# More tokens than any closing path has.
_FAR = 1 << 20


class ClosingPath:
    """Follows one text token by token and knows a short completion of it: the closing path.

    `matcher` is a matcher of the text's grammar over BYTES; tokens are counted in `vocabulary`, without the `unusable`
    ones. `tokens` is the closing path: empty when the text is complete, None when no path is known. It is the fewest
    tokens that spell its bytes, but another completion could need fewer; `fits` searches for the fewest of all if a
    `finder` was given (SPEC.md S-G6). At least `min_tokens` are needed. No path begins with an `excluded` byte. After a
    search that fails, the next one waits, longer each time; after one that exceeds its budget there is no other.
    """

    def __init__(
        self,
        matcher: Matcher,
        vocabulary: Vocabulary,
        unusable: frozenset[int] = frozenset(),
        *,
        finder: CompletionFinder | None = None,
        excluded: frozenset[int] = frozenset(),
    ) -> None:
        self._matcher, self._vocabulary, self._unusable = matcher, vocabulary, unusable
        self._state = None if finder is None or not finder.has_rules else CompletionState(finder, unusable)
        self.min_tokens = 0
        self._excluded = excluded
        self._out_of_steps, self._out_of_work = False, False
        self._failures, self._wait = 0, 0
        self._begun, self._work = False, RemainingWork(TEXT_WORK)
        if self._state is not None:
            self._state.prepare()
        self._find()

    def advance(self, token_id: int) -> None:
        """Moves past a token that the grammar allows."""
        spelled = self._vocabulary.tokens[token_id]
        self._begun = True
        self._excluded, self.min_tokens = frozenset(), max(0, self.min_tokens - 1)
        if self._state is not None:
            self._state.advance(spelled)
        for byte in spelled:
            self._matcher.accept(byte)
        if self._text is not None and self._text.startswith(spelled):
            self._set(self._text[len(spelled) :])
        elif self._text is None or not completes(self._matcher, self._text):
            self._find()

    def after(self, token_ids: Sequence[int]) -> ClosingPath:
        """The closing path after more tokens; this one does not move."""
        other = self.fork()
        for token_id in token_ids:
            other.advance(token_id)
        return other

    def fork(self) -> ClosingPath:
        """An independent closing path at the same point of the text."""
        other = copy(self)
        other._matcher = self._matcher.fork()
        other._state = None if self._state is None else self._state.fork()
        return other

    def for_sample(self) -> ClosingPath:
        """A closing path for another sample of the same request that has not begun either, with a budget of its own."""
        other = self.fork()
        other._work = RemainingWork(TEXT_WORK)
        other._state = None if self._state is None else self._state.for_sample()
        return other

    def work_alone(self) -> None:
        """Has what is left of the work for its text to itself, which forks share."""
        self._work = copy(self._work)
        if self._state is not None:
            self._state.work_alone()

    @property
    def hopeless(self) -> bool:
        """Whether no path is known and the search for one has used up its budget."""
        return self.tokens is None and (self._out_of_steps or self._out_of_work)

    def fits(self, most: int) -> bool:
        """Whether a path of at most `most` tokens is known, after a search if the present one is longer."""
        if self.tokens is not None and len(self.tokens) <= most:
            return True
        text = self._fewest(most)
        if text is not None:
            self._set(text)
        return text is not None

    def _fewest(self, most: int) -> bytes | None:
        """The completion of the fewest tokens; None if it takes more than `most`, and if none is found."""
        if self._state is None or most < self.min_tokens:
            return None
        try:
            found = self._state.fewest(most, self._excluded)
        except WorkLimitError:
            self._out_of_work = True
            return None
        if not self._excluded:
            self.min_tokens = most + 1 if found is None else len(found)
        text = b"".join(self._vocabulary.tokens[token] for token in found or ())
        # The rules that were searched may accept more than the constraint does.
        return None if found is None or not completes(self._matcher, text) else text

    def shorten(self) -> None:
        """Searches for a path of fewer tokens than the present one, where there are no rules in which `fits` does."""
        if self._state is not None:
            return
        text, tokens = self._text, self.tokens
        self._set(self._shortest())
        if tokens is not None and (self.tokens is None or len(self.tokens) >= len(tokens)):
            self._text, self.tokens = text, tokens

    def find_another(self) -> None:
        """Searches for a path with another first byte than those tried here, which something else forbids."""
        self._excluded |= frozenset((self._text or b"")[:1])
        self._set(self._fewest(_FAR))
        if self.tokens is None and self.min_tokens <= _FAR:
            self._set(self._shortest())

    def _find(self) -> None:
        if self._wait:
            self._wait -= 1
            self._set(None)
            return
        by_rules = [lambda: self._fewest(_FAR)] if self._excluded else [self._fewest_bytes, lambda: self._fewest(_FAR)]
        by_bytes = [self._shortest] if self._excluded else [self._straight, self._shortest]
        for search in [*(by_rules if self._state is not None else ()), *by_bytes]:
            self._set(search())
            if self.tokens is not None or self.min_tokens > _FAR:
                return
        self._failures += 1
        self._wait = min(2**self._failures, _LONGEST_WAIT)

    def _fewest_bytes(self) -> bytes | None:
        """A completion of the fewest bytes, from the rules of the constraint."""
        assert self._state is not None
        try:
            text = self._state.shortest(MAX_LENGTH)
        except WorkLimitError:
            self._out_of_work = True
            return None
        return text if text is not None and completes(self._matcher, text) else None

    def _straight(self) -> bytes | None:
        return self._within_budget(lambda budget: straight(self._matcher, budget, MAX_LENGTH))

    def _shortest(self) -> bytes | None:
        def spells(text: bytes) -> bool:
            return self._cover(text) is not None

        return self._within_budget(lambda budget: shortest(self._matcher, spells, budget, self._excluded))

    def _within_budget(self, search: Callable[[StepBudget], bytes | None]) -> bytes | None:
        if self._is_far():
            return None
        budget = StepBudget(min(STEPS_INSIDE_TEXT, self._work.left) if self._begun else STEPS_BEFORE_TEXT)
        try:
            found = None if self._out_of_steps else search(budget)
        except StepLimitError:
            self._out_of_steps, found = True, None
        if found is None and self._begun:
            self._work.left -= budget.spent
        return found

    def _is_far(self) -> bool:
        """Whether the rules say that every completion has more bytes than a search over bytes considers.

        The search would find none.
        """
        try:
            return self._state is not None and self._state.least() > MAX_LENGTH
        except WorkLimitError:
            return False

    def _cover(self, text: bytes) -> list[int] | None:
        return self._vocabulary.cover(text, self._unusable)

    def _set(self, text: bytes | None) -> None:
        self._text = text
        self.tokens = None if text is None else self._cover(text)
