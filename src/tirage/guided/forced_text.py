"""Tokens for text that a constraint leaves no choice about, cut as the tokenizer would cut it (SPEC.md S-G12)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tirage.guided.matcher import Matcher
from tirage.guided.vocabulary import Vocabulary

MOST_TOKENS = 128
"""Most tokens that are forced at once."""
_CONTEXT = 8
_MOST_BYTES = 4096

Encode = Callable[[str], Sequence[int]]


def forced_tokens(matcher: Matcher, before: Sequence[int], encode: Encode) -> list[int]:
    """The tokens that come next, whatever is drawn: those of the text that must follow, but for its open end.

    `before` are the tokens of the text so far, which stay as they are. Tokens at the end are left out where a longer
    token is allowed that also spells what follows. The matcher is where it was afterwards.
    """
    text = valid(matcher.forced_bytes()[:_MOST_BYTES])
    if not text:
        return []
    tokens = canonical(text, before, matcher.vocabulary, encode)[:MOST_TOKENS]
    return closed_part(matcher, tokens)


def valid(text: bytes) -> bytes:
    """The text without a character that is cut off at its end."""
    return text.decode("utf-8", "ignore").encode()


def canonical(text: bytes, before: Sequence[int], vocabulary: Vocabulary, encode: Encode) -> list[int]:
    """The tokens of a text after others: the tokenizer's own if it cuts there, otherwise the fewest."""
    context = b"".join(vocabulary.tokens[i] for i in before[-_CONTEXT:]).decode("utf-8", "ignore")
    found: list[int] = []
    size = 0
    for token_id in reversed(encode(context + text.decode())):
        if size >= len(text):
            break
        found.insert(0, token_id)
        size += len(vocabulary.tokens[token_id]) if token_id < vocabulary.width else len(text) + 1
    if size == len(text) and b"".join(vocabulary.tokens[i] for i in found) == text:
        return found
    return vocabulary.cover(text) or []


def closed_part(matcher: Matcher, tokens: Sequence[int]) -> list[int]:
    """The tokens up to the first from which on a longer token is allowed, which spells all of the rest and more."""
    vocabulary, state = matcher.vocabulary, matcher.fork()
    rest = b"".join(vocabulary.tokens[i] for i in tokens)
    for count, token_id in enumerate(tokens):
        if any(allows(state, longer) for longer in vocabulary.longer_than(rest)) or not state.accept(token_id):
            return list(tokens[:count])
        rest = rest[len(vocabulary.tokens[token_id]) :]
    return list(tokens)


def allows(matcher: Matcher, token_id: int) -> bool:
    """Whether a token may come next; the matcher does not move."""
    if not matcher.accept(token_id):
        return False
    matcher.rollback(1)
    return True
