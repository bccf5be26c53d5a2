"""DRY: a penalty on tokens that would prolong a repeated sequence (SPEC.md S-H5).

Source: llama.cpp, p-e-w's proposal.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tirage.exact.numbers import f32, repeated_power
from tirage.fields.record import param
from tirage.fields.rules import LARGEST, Float, Ids, Int, Texts
from tirage.history import History
from tirage.operators.logit_bias import ADD
from tirage.operators.operator import Edit, Moment, Operator, counted

_LARGEST = 3.4028235e38
_NEWEST = 64
"""Tokens that are looked at one by one: most texts have a breaker among them, and there may be many breakers."""


def penalties(
    tokens: NDArray[np.int32],
    *,
    multiplier: float,
    base: float,
    allowed_length: int,
    last_n: int,
    breakers: frozenset[int],
) -> dict[int, np.float32]:
    """The penalty of each token that would extend a repeated suffix of `tokens` int32 [n]: token id -> float32.

    A token that would extend an earlier occurrence of the current suffix of length L >= `allowed_length` loses
    multiplier * base ** (L - allowed_length). Matches stop at `breakers`, which are never penalised.
    """
    window = tokens if last_n < 0 else tokens[max(0, tokens.size - last_n) :]
    if window.size == 0 or last_n == 0:
        return {}
    longest: dict[int, int] = {}
    for token, length in _suffix_matches(window, breakers):
        if token not in breakers and length >= allowed_length and length > longest.get(token, 0):
            longest[token] = length
    scale = float(f32(multiplier))
    powers = {n: repeated_power(float(f32(base)), n - allowed_length) for n in set(longest.values())}
    return {t: np.float32(min(scale * powers[n], _LARGEST)) for t, n in longest.items()}


def match_lengths(tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """For each of `tokens` int32 [n], how many tokens before it agree with the newest ones: int32 [n].

    Example: a b c a b -> 0 0 2 0 0, since "a b" was followed by c.
    """
    lengths = np.zeros(tokens.size, np.int32)
    if tokens.size:
        back = tokens[::-1]
        for i, z in _z_function(back.tolist(), (np.flatnonzero(back[1:] == back[0]) + 1).tolist()):
            lengths[tokens.size - i] = z
    return lengths


def unbroken(tokens: NDArray[np.int32], breakers: Iterable[int]) -> int:
    """How many of the newest of `tokens` int32 [n] come after the last breaker."""
    known, newest = frozenset(breakers), tokens[-_NEWEST:]
    for count, token in enumerate(newest[::-1].tolist()):
        if token in known:
            return count
    stops = np.flatnonzero(np.isin(tokens[: tokens.size - newest.size][::-1], list(known)))
    return newest.size + int(stops[0]) if stops.size else tokens.size


def _suffix_matches(window: NDArray[np.int32], breakers: frozenset[int]) -> Iterable[tuple[int, int]]:
    """(next token, length of the match that it would extend), for each earlier end of the current suffix.

    Z-algorithm on the reversed tokens: z[i] is how far the suffix that ends i tokens before the end agrees with
    the suffix that ends at the end. Example: a b c a b -> (c, 2), since "a b" was followed by c.
    """
    limit = unbroken(window, breakers)
    if limit == 0:
        return []
    lengths = match_lengths(window)
    ends = np.flatnonzero(lengths)[::-1]
    return zip(window[ends].tolist(), np.minimum(lengths[ends], limit).tolist(), strict=True)


def _z_function(s: list[int], starts: list[int]) -> Iterable[tuple[int, int]]:
    """(i, z[i]) for `starts`, the places where s[i] == s[0], ascending: everywhere else z is 0."""
    n = len(s)
    z = [0] * n
    left = right = 0
    for i in starts:
        k = min(right - i, z[i - left]) if i < right else 0
        while i + k < n and s[k] == s[i + k]:
            k += 1
        if i + k > right:
            left, right = i, i + k
        z[i] = k
    return [(i, z[i]) for i in starts]


def _lower(
    *,
    dry_multiplier: float,
    dry_base: float,
    dry_allowed_length: int,
    dry_last_n: int,
    dry_breaker_token_ids: Sequence[int],
    history: History,
) -> Edit | None:
    if not dry_multiplier:
        return None
    found = penalties(
        history.tokens(),
        multiplier=dry_multiplier,
        base=dry_base,
        allowed_length=dry_allowed_length,
        last_n=dry_last_n,
        breakers=frozenset(dry_breaker_token_ids),
    )
    ids = np.fromiter(found, np.int32, len(found))
    return Edit(ADD, ids, -np.fromiter(found.values(), np.float32, len(found)))


def _note(moment: Moment) -> str:
    return f"{counted(moment.listed, 'token')} would prolong a repetition"


OPERATOR = Operator(
    name="dry",
    rule="S-H5",
    fields={
        "dry_multiplier": param(
            0.0,
            Float(low=0.0, high=LARGEST),
            "strength of the penalty on tokens that would prolong a repeated sequence",
            source="llama.cpp",
            off=0.0,
            stage="dry",
            needs_history=lambda multiplier: True,
        ),
        "dry_base": param(
            1.75, Float(low=1.0, high=LARGEST), "growth of the DRY penalty per repeated token", source="llama.cpp"
        ),
        "dry_allowed_length": param(2, Int(low=1), "longest repetition that DRY leaves unpunished", source="llama.cpp"),
        "dry_last_n": param(
            -1, Int(low=-1), "how many past tokens DRY looks at; -1 is all, 0 none", source="llama.cpp"
        ),
        "dry_sequence_breakers": param(
            None,
            Texts(optional=True),
            "strings that a DRY repetition does not cross; `update_with_tokenizer` finds their ids, and None is "
            "newline, colon, double quote and asterisk there",
            source="llama.cpp",
        ),
        "dry_breaker_token_ids": param(
            (), Ids(), "tokens that a DRY repetition does not cross", source="tirage", off=()
        ),
    },
    examples={"dry_multiplier": (0.8, 3.0), "dry_allowed_length": (1, 2)},
    gentle={"dry_multiplier": 0.6, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
    operations=(ADD,),
    lower=_lower,
    moves=lambda *, dry_multiplier: bool(dry_multiplier),
    note=_note,
)
