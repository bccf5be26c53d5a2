"""One row on its way through the steps, in plain NumPy: what the plain rule of every operation changes.

SPEC.md rules S-N (keys, edits) and S-W (weights, masses).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tirage.exact import numbers
from tirage.exact.keys import NEG_INF_KEY, POS_INF_KEY, clamped, cleaned, descending, keys, value
from tirage.exact.weights import exponents, weights
from tirage.history import Counts

Process = Callable[[NDArray[np.float32]], NDArray[np.float32]]
"""Custom processors of one row: float32 logits [V] in, logits [V] out."""

OK, NON_FINITE, NO_TOKEN, PROCESSOR_FAILED = 0, 1, 2, 4
SCOPES = ("both", "output", "prompt")
"""Which tokens a penalty counts, by its operand."""

_UNIT = numbers.temperature_constant(1.0)
_ZERO, _ONE = np.float32(0), np.float32(1)
_NO_KEYS = np.zeros(0, np.int32)
_NO_TOKENS = np.zeros(0, np.int64)


@dataclass(slots=True, kw_only=True, eq=False)
class RowState:
    """One row on its way through the steps.

    `x` float32 [V] are the logits as edited so far, `masked` bool [V] what a hard mask took, `key` int32 [V] their
    keys, `ids` the tokens still in (ascending). `m`, `c` and `inverse_t` are those of the last temperature stage;
    `base` is the set that it saw, on which joint filters judge. `trimmed` is the token whose weight a truncated top-p
    cut, with the weight left. `listed` counts the tokens at -inf that no filter has removed from llama.cpp's list
    of candidates (S-O9). `reweighted` uint64 [n] are the weights that adaptive-p or a watermark gave the tokens still
    in, `chances` float64 [n] their shares before adaptive-p (S-O15), `race` key and context by which a watermark draws
    (S-M5). `edit_ids` and `edit_values` are what edits of listed tokens refer to.
    """

    x: NDArray[np.float32]
    masked: NDArray[np.bool_]
    counts: Counts | None
    edit_ids: NDArray[np.int32]
    edit_values: NDArray[np.float32]
    process: Process | None = None
    coin: bool = False
    protected: NDArray[np.int32] | None = None
    status: int = OK
    key: NDArray[np.int32] = field(default_factory=lambda: _NO_KEYS)
    ids: NDArray[np.int64] = field(default_factory=lambda: _NO_TOKENS)
    base: NDArray[np.int64] = field(default_factory=lambda: _NO_TOKENS)
    m: np.float32 = _ZERO
    c: np.float32 = _UNIT
    inverse_t: np.float32 = _ONE
    trimmed: tuple[int, int] | None = None
    greedy: bool = False
    listed: int = 0
    reweighted: NDArray[np.uint64] | None = None
    chances: NDArray[np.float64] | None = None
    race: tuple[int, int] | None = None
    _weighed: tuple[tuple[object, ...], NDArray[np.uint64]] | None = None

    # --- candidates -------------------------------------------------------------------------------------------------

    def check_finite(self) -> None:
        """Set the status of a row that holds NaN or +inf (S-N5)."""
        key = keys(self.x)
        if self.status == OK and ((key >= POS_INF_KEY) | (key < NEG_INF_KEY)).any():
            self.status = NON_FINITE

    def enter(self) -> None:
        """Logits are final: the candidates are the tokens above -inf (S-N4)."""
        self.key = keys(self.x)
        self.ids = np.flatnonzero(self.key > NEG_INF_KEY)
        self.listed = self.x.size - self.ids.size
        if self.ids.size == 0:
            self.status = self.status or NO_TOKEN
        else:
            self.rebase()

    def rebase(self) -> None:
        """Enter a temperature stage: weights count from the largest logit still in."""
        self.base = self.ids
        self.m = value(self.key[self.ids].max())

    def q(self) -> NDArray[np.int32]:
        """Exponents of the tokens still in, int32 [n]."""
        return exponents(self.x[self.ids], self.m, self.c)

    def w(self) -> NDArray[np.uint64]:
        """Integer weights of the tokens still in, uint64 [n], a truncated one included; not to be written."""
        given = (self.ids, self.m, self.c, self.trimmed, self.greedy, self.reweighted)
        # The same arrays, not equal ones: what weights depend on is replaced, never written.
        if self._weighed is None or any(a is not b for a, b in zip(given, self._weighed[0], strict=True)):
            self._weighed = given, self._weigh()
        return self._weighed[1]

    def _weigh(self) -> NDArray[np.uint64]:
        if self.reweighted is not None:
            return self.reweighted
        if self.greedy:
            return np.full(self.ids.size, 1 << 40, np.uint64)
        w = weights(self.q())
        if self.trimmed is not None:
            w[np.searchsorted(self.ids, self.trimmed[0])] = self.trimmed[1]
        w.flags.writeable = False
        return w

    def is_top(self) -> NDArray[np.bool_]:
        """Which of the tokens still in have the largest logit, bool [n]."""
        key = self.key[self.ids]
        return key == key.max()

    def ranked(self) -> NDArray[np.int64]:
        """Positions [n] into `ids`, (key descending, id ascending): the order of every cut (S-W3)."""
        return descending(self.key[self.ids])

    def keep(self, kept: NDArray[np.bool_], *, listed: int = 0) -> None:
        """Drop the tokens still in that are not `kept`, bool [n]; of those at -inf an engine's list holds `listed`."""
        self.ids, self.listed = self.ids[kept], listed

    def keep_prefix(self, order: NDArray[np.int64], n: int, *, ties: bool) -> None:
        """Keep the first `n` of `order` [k] and, with `ties`, all that equal the last of them."""
        kept = np.zeros(self.ids.size, bool)
        kept[order[:n]] = True
        if ties:
            key = self.key[self.ids]
            kept |= key >= key[order[n - 1]]
        self.keep(kept)

    # --- edits: rule S-N7, on candidates that they touch only --------------------------------------------------------

    def write(self, ids: NDArray, change: Callable[[NDArray], NDArray]) -> None:
        """Change the logits of `ids` [n] by `change`, float32 [n] in and out; -inf stays."""
        old = self.x[ids]
        with np.errstate(over="ignore", invalid="ignore"):
            new = clamped(change(cleaned(old)))
        self.x[ids] = np.where(old == -np.inf, old, new)

    def seen(self, scope: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """The tokens [n] that a penalty of this scope counts, and how often it saw each, float32 [n]."""
        if self.counts is None:
            return np.zeros(0, np.int32), np.zeros(0, np.float32)
        n = self.counts.seen(SCOPES[scope])
        return self.counts.ids[n > 0], n[n > 0].astype(np.float32)


# --- integer sums -----------------------------------------------------------------------------------------------------


def mass(w: NDArray[np.uint64]) -> int:
    """The sum of integer weights uint64 [n]; exact, since V * 2^40 <= 2^60."""
    return int(w.sum(dtype=np.uint64))


def mean_exponent(q: NDArray[np.int32], w: NDArray[np.uint64]) -> int:
    """floor(sum(w * q) / sum(w)) of exponents and weights [n]: the entropy's part that needs no logarithm."""
    return sum_of_products(w, q.astype(np.uint64)) // mass(w)


def sum_of_products(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> int:
    """sum(a * b) of uint64 [n], exact where each product is below 2^64."""
    # w * q stays below 2^63, but a vocabulary of them does not: add high and low halves apart.
    product = a * b
    return (int((product >> np.uint64(32)).sum()) << 32) + int((product & np.uint64(0xFFFFFFFF)).sum())


def target_mass(p: int, total: int) -> int:
    """max(1, ceil(P * W / 2^32)): the mass that a top-p prefix must reach (S-W4)."""
    return max(1, -(-p * total >> 32))


def share(e: int, s: int, total: int) -> int:
    """ceil(E * W / 2^s): the weight that is this share of the mass."""
    return -(-e * total >> s)
