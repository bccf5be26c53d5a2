"""Reasoning before the answer: where a text is between its tags, and which tokens keep it right (SPEC.md S-G10)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from tirage.guided import Vocabulary
from tirage.guided.matcher import Mask, Matcher, set_bit
from tirage.text import Tokenizer

SPACE = b" \n\t\r"
MOST_SPACE = 8
"""Most characters of space before the begin tag."""
_PROMPT_END = 64
"""How many tokens at the end of a prompt are searched for the begin tag, which chat templates may put there."""


class ReasoningTokens:
    """The tags of a model's reasoning as its tokens spell them; shared by all requests.

    A tag is found in the bytes of the text, however they are cut into tokens; special tokens count with their spelling.
    """

    def __init__(self, vocabulary: Vocabulary, tags: tuple[str, str]) -> None:
        self.begin, self.end = (tag.encode() for tag in tags)
        self.vocabulary = vocabulary
        special = vocabulary.special
        self.spelled = tuple(special.get(i, token) for i, token in enumerate(vocabulary.tokens))
        # The tokens that the tags are spelled with, special ones among them.
        parts = [token if token in self.begin or token in self.end else b"" for token in self.spelled]
        self._parts = Vocabulary(tuple(parts))
        self._entering = self._candidates(self.begin, space=True)
        self._ending = self._candidates(self.end, space=False)
        self._crossing: dict[int, list[tuple[int, bytes]]] = {}

    def _candidates(self, tag: bytes, *, space: bool) -> list[tuple[int, bytes]]:
        """The tokens that may take part in writing a tag or, with `space`, stand before it."""
        tails = tuple(tag[i:] for i in range(len(tag)))
        found = []
        for i, token in enumerate(self.spelled):
            text = token.lstrip(SPACE) if space else token
            if token and (text.startswith(tails) or tag in text or (space and text in tag)):
                found.append((i, token))
        return found

    @cached_property
    def every_token(self) -> NDArray[np.int32]:
        """All tokens but padding, as a mask int32 [ceil(V / 32)]."""
        bits = np.zeros(self.vocabulary.words * 32, np.uint8)
        bits[[i for i, token in enumerate(self.spelled) if token]] = 1
        return np.packbits(bits, bitorder="little").view(np.int32)

    def rest_of(self, tag: bytes) -> list[int] | None:
        """The fewest tokens that spell the rest of a tag; None when no tokens do."""
        return self._parts.cover(tag)

    @cached_property
    def longest_end(self) -> int | None:
        """The most tokens that the rest of the end tag may take, wherever in it the text is; None if some cannot be."""
        counts = [self.rest_of(self.end[i:]) for i in range(len(self.end))]
        return None if any(each is None for each in counts) else max(len(each or ()) for each in counts)

    def crossing(self, matched: int) -> list[tuple[int, bytes]]:
        """The tokens that end the tag, of which `matched` bytes stand already, each with its bytes after the tag."""
        if matched not in self._crossing:
            found = []
            for i, token in self._ending:
                _, tag, rest = (self.end[:matched] + token).partition(self.end)
                if tag and rest:
                    found.append((i, rest))
            self._crossing[matched] = found
        return self._crossing[matched]

    def entering(self, before: bytes) -> list[tuple[int, bytes | None]]:
        """The tokens with which a text may begin its reasoning, after the bytes `before`.

        With each what follows the end tag in it, None unless it ends the reasoning too.
        """
        found: list[tuple[int, bytes | None]] = []
        for i, token in self._entering:
            text = before + token
            bare = text.lstrip(SPACE)
            if len(text) - len(bare) > MOST_SPACE:
                continue
            if self.begin.startswith(bare):
                found.append((i, None))
            elif bare.startswith(self.begin):
                _, tag, rest = bare[len(self.begin) :].partition(self.end)
                found.append((i, rest if tag else None))
        return found


class ReasoningState:
    """Where a text is: before its reasoning, inside, or in its answer.

    `opened` says that the prompt ends with the begin tag, and `spent` how many of its tokens follow that. After
    `budget` tokens the end tag is forced; None is no limit.
    """

    def __init__(
        self, tokens: ReasoningTokens, *, opened: bool = False, spent: int = 0, budget: int | None = None
    ) -> None:
        self.tokens, self._budget = tokens, budget
        self._spent = spent
        self.undecided, self.inside = not opened, opened
        # Before the reasoning the whole text, inside it the part of the end tag that stands already.
        self._seen = b""

    @property
    def over(self) -> bool:
        """Whether the text is in its answer."""
        return not (self.undecided or self.inside)

    @property
    def is_spent(self) -> bool:
        """Whether the reasoning has all the tokens that it may have."""
        return self.inside and self._budget is not None and self._spent >= self._budget

    def rest_of_tags(self) -> list[int] | None:
        """The tokens that bring the text, as fast as may be, to its answer through what it has begun, if any do."""
        tokens = self.tokens
        if self.inside:
            return tokens.rest_of(tokens.end[len(self._seen) :])
        begin = tokens.rest_of(tokens.begin[len(self._seen.lstrip(SPACE)) :])
        end = tokens.rest_of(tokens.end)
        return None if begin is None or end is None else begin + end

    def crossing(self) -> list[tuple[int, bytes]]:
        """The tokens that end the reasoning and begin the answer, with the bytes that they add to it."""
        if self.inside:
            return self.tokens.crossing(len(self._seen))
        return [(i, rest) for i, rest in self.tokens.entering(self._seen) if rest]

    def fill(self, mask: Mask) -> None:
        """Adds to a mask int32 [ceil(V / 32)] the tokens that the reasoning allows, or the one that is forced."""
        if self.is_spent:
            mask[:] = 0
            for token_id in (self.rest_of_tags() or ())[:1]:
                set_bit(mask, token_id, True)
        elif self.inside:
            mask |= self.tokens.every_token
        else:
            for token_id, _ in self.tokens.entering(self._seen):
                set_bit(mask, token_id, True)

    def continues(self, token_id: int) -> bool:
        """Whether the text may still be before its reasoning or inside it after this token."""
        other = copy(self)
        other.accept(token_id)
        return not other.over

    def tags_after(self, token_id: int) -> int:
        """How many tokens the rest of the tags may take after this token, with which the text is not in its answer."""
        other = copy(self)
        other.accept(token_id)
        return other.most_tags

    @property
    def most_tags(self) -> int:
        """The most tokens that the way to the answer may take, through the tags that have been begun."""
        begin = self.tokens.rest_of(self.tokens.begin[len(self._seen.lstrip(SPACE)) :]) if self.undecided else ()
        return len(begin or ()) + (self.tokens.longest_end or 0)

    def accept(self, token_id: int) -> bytes | None:
        """Advances by a token; the bytes that it adds to the answer where it ends the reasoning, else None."""
        token = self.tokens.spelled[token_id] if token_id < len(self.tokens.spelled) else b""
        if self.undecided:
            return self._begin(self._seen + token)
        if self.inside:
            self._spent += 1
            return self._scan(self._seen + token)
        return None

    def _begin(self, text: bytes) -> bytes | None:
        bare = text.lstrip(SPACE)
        if bare.startswith(self.tokens.begin):
            self.undecided, self.inside = False, True
            return self._scan(bare[len(self.tokens.begin) :])
        self._seen = text
        self.undecided = self.tokens.begin.startswith(bare)
        return None

    def _scan(self, text: bytes) -> bytes | None:
        end = self.tokens.end
        _, tag, rest = text.partition(end)
        if tag:
            self.inside, self._seen = False, b""
            return rest
        size = next((size for size in range(min(len(text), len(end) - 1), 0, -1) if text.endswith(end[:size])), 0)
        self._seen = end[:size]
        return None


def takes(matcher: Matcher, text: bytes) -> bool:
    """Whether a matcher accepts a text; if so it moves past it, otherwise it is of no further use."""
    return all(matcher.accept(token_id) for token_id in spelling(matcher.vocabulary, text))


def spelling(vocabulary: Vocabulary, text: bytes) -> Sequence[int]:
    """Tokens that spell a text; an id that no vocabulary has where none do."""
    found = vocabulary.cover(text)
    return [-1] if found is None else found


def opened_by(prompt_ids: Sequence[int], tags: tuple[str, str], tokenizer: Tokenizer, *, begun: str = "") -> int | None:
    """How many tokens of a prompt belong to reasoning that it has begun; None where it has begun none.

    Tags that are tokens are looked for in the whole prompt, where no end may follow the last begin, as in vLLM. A begin
    tag of several tokens opens the reasoning at the beginning of `begun`, the message that the prompt ends inside, or
    at the end of the prompt, with nothing but space after it.
    """
    find = getattr(tokenizer.raw, "token_to_id", lambda tag: None)
    begin, end = map(find, tags)
    if begin is not None and end is not None:
        found = next(((back, each) for back, each in enumerate(reversed(prompt_ids)) if each in (begin, end)), None)
        return found[0] if found is not None and found[1] == begin else None
    text = begun.lstrip()
    if text.startswith(tags[0]) and tags[1] not in text:
        return len(tokenizer.encode(text.removeprefix(tags[0]), add_special_tokens=False))
    ids, spent = list(prompt_ids[-_PROMPT_END:]), None
    for count in range(len(ids), 0, -1):
        if not tokenizer.decode(ids[:count], skip_special_tokens=False).rstrip().endswith(tags[0]):
            break
        spent = len(ids) - count
    return spent
