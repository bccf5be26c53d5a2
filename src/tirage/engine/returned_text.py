"""Whether a text satisfies its constraint as it is returned: less than its tokens write, or more (SPEC.md S-G3)."""

from __future__ import annotations

from collections.abc import Sequence

from tirage.engine.reasoning import takes
from tirage.guided.matcher import Matcher


def satisfies(matcher: Matcher, token_ids: Sequence[int], text: bytes) -> bool:
    """Whether a text is in the set, of which tokens wrote the beginning, or more than it; moves their matcher.

    The matcher goes back by the tokens that the text lacks, so that only what they share is read again. False for
    another text than that of the tokens, as where special ones are left out of it.
    """
    tokens = matcher.vocabulary.tokens
    if matcher.closed:
        matcher.rollback(1)
        token_ids = token_ids[:-1]
    pieces = [tokens[token_id] if token_id < len(tokens) else b"" for token_id in token_ids]
    whole = b"".join(pieces)
    lost = lost_spaces(whole, text)
    if lost is None:
        return False
    size, kept = len(whole), len(pieces)
    while kept and size > len(text) + lost:
        kept -= 1
        size -= len(pieces[kept])
    if not kept:
        # Its first token may have been read otherwise than it is spelled, where the text loses a space.
        matcher.rollback(matcher.length)
        return takes(matcher, text) and matcher.complete
    matcher.rollback(len(pieces) - kept)
    return takes(matcher, text[size - lost :]) and matcher.complete


def lost_spaces(whole: bytes, text: bytes) -> int | None:
    """How many spaces at the start of what tokens write the text lacks; None where it is another text."""
    for lost in range(len(whole) - len(whole.lstrip(b" ")) + 1):
        written = whole[lost:]
        if written.startswith(text) or text.startswith(written):
            return lost
    return None
