"""What a request has said so far: its tokens, and sparse counts of them, never a [B, V] table.

Also the three rules that read the order of the tokens: bad-word sequences, repeated n-grams and DRY.
SPEC.md rules S-H1 ... S-H5.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.exact.numbers import f32, repeated_power
from tirage.processors import Past

MAX_HISTORY = 1 << 20
"""Longest prompt + output, in tokens, that a row may carry."""


@dataclass(slots=True)
class Counts:
    """Distinct tokens of a history with how often prompt and output hold each.

    `table` int32 [3, n]: ids, times in the prompt, times in the output.
    """

    table: NDArray[np.int32]

    @classmethod
    def of(cls, prompt: NDArray[np.int32], output: NDArray[np.int32]) -> Counts:
        """Counts of a prompt and an output, ids ascending."""
        ids, inverse = np.unique(np.concatenate([prompt, output]), return_inverse=True)
        in_prompt = np.bincount(inverse[: prompt.size], minlength=ids.size)
        in_output = np.bincount(inverse[prompt.size :], minlength=ids.size)
        return cls(np.stack([ids, in_prompt, in_output]).astype(np.int32))

    @property
    def ids(self) -> NDArray[np.int32]:
        """The distinct tokens."""
        return self.table[0]

    def seen(self, scope: str) -> NDArray[np.int32]:
        """How often each id occurs in `scope`: "prompt", "output" or "both"."""
        if scope == "both":
            return self.table[1] + self.table[2]
        return self.table[1] if scope == "prompt" else self.table[2]


@dataclass(slots=True)
class History:
    """The prompt and output tokens of one request, growing by one token a step.

    `tokens()` is prompt then output. Counts are built on first use and then kept up to date, so a step costs
    O(1) however long the history is.
    """

    buffer: NDArray[np.int32]
    prompt_length: int
    length: int
    _index: dict[int, int] = field(default_factory=dict)
    _counts: NDArray[np.int32] | None = None

    @classmethod
    def of(cls, prompt: Iterable[int], output: Iterable[int] = (), *, vocab_size: int) -> History:
        """The History of two id sequences, checked: whole numbers in [0, vocab_size)."""
        if isinstance(prompt, tuple) and isinstance(output, tuple) and not prompt and not output:
            return cls(np.zeros(0, np.int32), 0, 0)
        prompt_ids = token_array(prompt, "history prompt ids", vocab_size)
        output_ids = token_array(output, "history output ids", vocab_size)
        both = np.concatenate([prompt_ids, output_ids])
        _check_length(both.size)
        return cls(both, prompt_ids.size, both.size)

    @property
    def step(self) -> int:
        """The number of output tokens: the default Philox step."""
        return self.length - self.prompt_length

    def tokens(self) -> NDArray[np.int32]:
        """Prompt and output ids, int32 [n]; a view, not to be written."""
        return self.buffer[: self.length]

    def output(self) -> NDArray[np.int32]:
        """Output ids alone, int32 [n]; a view."""
        return self.buffer[self.prompt_length : self.length]

    def past(self) -> Past:
        """Prompt and output ids as the lists that custom processors are given."""
        return Past(self.buffer[: self.prompt_length].tolist(), self.output().tolist())

    def check_room(self) -> None:
        """Raise ParamsError when one token more would be too many."""
        _check_length(self.length + 1)

    def append(self, token: int) -> None:
        """Add one output token; counts that exist already are kept up to date."""
        if self.length == self.buffer.size:
            self.buffer = np.concatenate([self.buffer, np.empty(max(16, self.length), np.int32)])
        self.buffer[self.length] = token
        self.length += 1
        if self._counts is not None:
            self._count(token)

    def copy(self) -> History:
        """An independent History with the same tokens."""
        return History(self.tokens().copy(), self.prompt_length, self.length)

    def counts(self, window: int | None = None) -> Counts:
        """Sparse counts of the whole history, or of its last `window` tokens (all counted as prompt).

        A window forgets which side a token came from, as llama.cpp's and mlx's rings do.
        """
        if window is not None:
            tail = self.tokens()[-window:]
            return Counts.of(tail, tail[:0])
        if self._counts is None:
            self._build()
        table = self._counts
        assert table is not None
        return Counts(table[:, : len(self._index)])

    def _build(self) -> None:
        tokens = self.tokens()
        counted = Counts.of(tokens[: self.prompt_length], tokens[self.prompt_length :]).table
        self._counts = np.concatenate([counted, np.zeros((3, 16), np.int32)], axis=1)
        self._index = {int(token): i for i, token in enumerate(counted[0])}

    def _count(self, token: int) -> None:
        table = self._counts
        assert table is not None
        at = self._index.setdefault(token, len(self._index))
        if at == table.shape[1]:
            table = self._counts = np.concatenate([table, np.zeros_like(table)], axis=1)
        table[0, at] = token
        table[2, at] += 1


def _check_length(length: int) -> None:
    if length > MAX_HISTORY:
        raise ParamsError(f"history must hold at most {MAX_HISTORY} tokens, got {length}; truncate it")


def token_array(ids: Iterable[int], name: str, vocab_size: int) -> NDArray[np.int32]:
    """`ids` as an int32 array [n]; ParamsError when one is not a whole number in [0, vocab_size)."""
    array = _flat_integers(ids, name)
    if array.size == 0:
        return np.zeros(0, np.int32)
    low, high = array.min(), array.max()
    if low < 0 or high >= vocab_size:
        bad = int(low) if low < 0 else int(high)
        raise ParamsError(f"{name} must lie in [0, {vocab_size}), got {bad}; drop padding before the call")
    return array.astype(np.int32)


def _flat_integers(ids: Iterable[int], name: str) -> NDArray:
    try:
        # An array of another library is converted whole: item by item takes microseconds each.
        listed = ids if hasattr(ids, "__array__") else list(ids)
        array = np.asarray(listed)
    except (TypeError, ValueError, RuntimeError):
        kind = type(ids).__name__
        raise ParamsError(f"{name} must be a flat sequence of integers on the host, got {kind}; pass a list") from None
    if array.size == 0 and array.ndim == 1:
        return array
    truths = listed is not ids and any(isinstance(item, (bool, np.bool_)) for item in listed)
    if array.ndim != 1 or array.dtype.kind not in "iu" or truths or isinstance(ids, np.ma.MaskedArray):
        kind = "bool" if truths else array.dtype
        raise ParamsError(f"{name} must be a flat sequence of integers, got {kind} of shape {array.shape}")
    return array


def banned_by_words(words: Iterable[tuple[int, ...]], tokens: NDArray[np.int32]) -> list[int]:
    """Tokens that would complete one of the id sequences `words` after `tokens` (S-H3)."""
    banned: list[int] = []
    for word in words:
        prefix = word[:-1]
        n = len(prefix)
        if n <= tokens.size and tuple(tokens[tokens.size - n :].tolist()) == prefix:
            banned.append(word[-1])
    return banned


def banned_by_ngrams(size: int, tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """Tokens that would repeat an n-gram of `size` tokens already in `tokens`, ascending (S-H4)."""
    starts = tokens.size - size + 1
    if starts <= 0:
        return np.zeros(0, np.int32)
    same = np.ones(starts, bool)
    tail = tokens[tokens.size - size + 1 :] if size > 1 else tokens[:0]
    for offset, token in enumerate(tail):
        same &= tokens[offset : offset + starts] == token
    return np.unique(tokens[size - 1 :][same])


def dry_penalties(
    tokens: NDArray[np.int32],
    *,
    multiplier: float,
    base: float,
    allowed_length: int,
    last_n: int,
    breakers: frozenset[int],
) -> dict[int, np.float32]:
    """DRY's penalty for each token that would extend a repeated suffix, token id -> float32 (S-H5).

    A token that would extend an earlier occurrence of the current suffix of length L >= `allowed_length` loses
    multiplier * base ** (L - allowed_length). Matches stop at `breakers`, which are never penalised.
    Source: llama.cpp, p-e-w's proposal.
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
    return {t: np.float32(min(scale * powers[n], 3.4028235e38)) for t, n in longest.items()}


def _suffix_matches(window: NDArray[np.int32], breakers: frozenset[int]) -> Iterable[tuple[int, int]]:
    """(next token, length of the match that it would extend), for each earlier end of the current suffix.

    Z-algorithm on the reversed tokens: z[i] is how far the suffix that ends i tokens before the end agrees with
    the suffix that ends at the end. Example: a b c a b -> (c, 2), since "a b" was followed by c.
    """
    back = window[::-1]
    stops = np.flatnonzero(np.isin(back, list(breakers)))
    limit = int(stops[0]) if stops.size else back.size
    if limit == 0:
        return []
    ends = (np.flatnonzero(back[1:] == back[0]) + 1).tolist()
    tokens = back.tolist()
    return [(tokens[i - 1], min(z, limit)) for i, z in _z_function(tokens, ends)]


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
