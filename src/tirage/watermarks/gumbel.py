"""The exponential race: each token gets a keyed uniform, and the first of the race among them is drawn (S-M5).

Over keys the token has the law of the row, as the arrival -ln(U) / w of a token of weight w is the first with
probability w / W. Source: Aaronson and Kirchner 2022; Kuditipudi et al. 2023, arXiv:2307.15593.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.exact.philox import Domain, philox4x32

_WORD = np.uint64(0xFFFFFFFF)
_MARGIN = 1e-9
"""Relative difference of arrivals beyond which float64 settles their order: its error is below 1e-14."""


def context_hashes(key: int, windows: NDArray[np.integer]) -> NDArray[np.uint64]:
    """64 bits of the key and each context of `windows` [n, width], the oldest token first, uint64 [n]; -1 is none."""
    state = np.zeros(len(windows), np.uint64)
    for tokens in windows.astype(np.int64).T:
        state = _words64(key, tokens.astype(np.uint64) & _WORD, state, Domain.MARK_CONTEXT)
    return state


def context_hash(key: int, window: Sequence[int]) -> int:
    """`context_hashes` of one context, in integers of Python: arrays of one element take twenty times as long."""
    state, parts = 0, (key & 0xFFFFFFFF, key >> 32)
    for token in window:
        counter = token & 0xFFFFFFFF, state & 0xFFFFFFFF, state >> 32, int(Domain.MARK_CONTEXT)
        high, low, *_ = philox4x32(counter, parts)
        state = high << 32 | low
    return state


def uniforms(key: int, contexts: NDArray[np.uint64], ids: NDArray[np.integer]) -> NDArray[np.uint64]:
    """U of each token of `ids` [n] after contexts with these hashes, [n] or [1], uint64 [n]."""
    return _words64(key, np.asarray(ids, np.uint64), contexts + np.zeros(len(ids), np.uint64), Domain.MARK)


def _words64(key: int, low: NDArray[np.uint64], state: NDArray[np.uint64], domain: int) -> NDArray[np.uint64]:
    """Words 0 and 1 of the Philox blocks (low, state low, state high, domain) under this key, uint64 [n]."""
    fixed = np.full(low.size, int(domain), np.uint64)
    words: Any = philox4x32((low, state & _WORD, state >> np.uint64(32), fixed), (key & 0xFFFFFFFF, key >> 32))
    return (words[0] << np.uint64(32)) | words[1]


def contexts(history: NDArray[np.integer], prompt_length: int, width: int) -> NDArray[np.int64]:
    """The `width` tokens before each output token and before the next, int64 [n + 1, width]; -1 before the text."""
    padded = np.concatenate([np.full(width, -1, np.int64), np.asarray(history, np.int64)])
    return np.lib.stride_tricks.sliding_window_view(padded, width)[prompt_length:]


def is_repeated(windows: NDArray[np.int64]) -> bool:
    """Whether the last of the contexts [n, width] stood before an earlier output token: it is not used again."""
    return bool((windows[:-1] == windows[-1]).all(axis=1).any())


def first(u: NDArray[np.uint64], w: NDArray[np.uint64]) -> int:
    """The position of the smallest -ln((2u + 1) / 2^65) / w, of equal ones the first; weights uint64 [n], not all 0.

    The rule is one of real numbers: float64 only rules out what is later by far.
    """
    arrivals = np.full(u.size, np.inf)
    held = np.flatnonzero(w)
    with np.errstate(divide="ignore"):
        # ln(1 - v) where U is near 1: v is exact there, while U itself has lost its last bits in float64.
        tail = (np.uint64(0xFFFFFFFFFFFFFFFF) - u[held]).astype(np.float64) + 0.5
        near = tail < 2.0**63
        low = np.log((u[held].astype(np.float64) + 0.5) * 2.0**-64)
        logs = -np.where(near, np.log1p(-tail * 2.0**-64), low)
    arrivals[held] = logs / w[held].astype(np.float64)
    close = np.flatnonzero(arrivals <= arrivals.min() * (1 + _MARGIN))
    if close.size == 1:
        return int(close[0])
    return _first_exactly(close.tolist(), u, w)


def _first_exactly(close: list[int], u: NDArray[np.uint64], w: NDArray[np.uint64]) -> int:
    """The position in `close` of the smallest arrival, by 60 decimal digits."""
    # Few draws get here, and none of those that decode without a watermark.
    from decimal import Context, Decimal

    exact = Context(prec=60)

    def arrival(i: int) -> Decimal:
        share = exact.divide(Decimal(2 * int(u[i]) + 1), Decimal(1 << 65))
        return exact.divide(-exact.ln(share), Decimal(int(w[i])))

    return min(close, key=lambda i: (arrival(i), i))
