"""Logprob entries of the tokens that a server lists, with the ranks that follow from its lists."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tirage.engine import LogprobEntry

UNKNOWN_ID = -1
"""The id of a token that a server tells by its text alone."""
UNKNOWN_RANK = 0
"""The rank of a token that is none of those that a server lists."""


def entry(text: str, logprob: float, token_id: int = UNKNOWN_ID, spelled: bytes | None = None) -> LogprobEntry:
    """The entry of a token whose rank is not known; its bytes are those of its text, unless the server tells them."""
    raw = text.encode() if spelled is None else spelled
    return LogprobEntry(token_id=token_id, logprob=logprob, rank=UNKNOWN_RANK, text=text, bytes=raw)


def ranked(own: LogprobEntry, listed: Sequence[LogprobEntry], count: int) -> LogprobEntry:
    """The entry with the `count` likeliest of those listed, all with their ranks."""
    # One that is NaN is last, and compares with none.
    likeliest = sorted(listed, key=lambda each: -each.logprob if each.logprob == each.logprob else float("inf"))
    top = [replace(each, rank=1 + sum(other.logprob > each.logprob for other in listed)) for each in likeliest]
    # A token that is none of the likeliest is listed after them, whatever its rank.
    rank = next((each.rank for each in top[:count] if _same(each, own)), UNKNOWN_RANK)
    top = [replace(each, token_id=own.token_id) if _same(each, own) else each for each in top]
    return replace(own, rank=rank, top=tuple(top[:count]))


def _same(one: LogprobEntry, other: LogprobEntry) -> bool:
    """Whether two entries are of one token, by their ids or, where one has none, by text and log-probability."""
    if UNKNOWN_ID in (one.token_id, other.token_id):
        return one.text == other.text and one.logprob == other.logprob
    return one.token_id == other.token_id
