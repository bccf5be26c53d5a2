"""What a request has said so far: its tokens, and sparse counts of them, never a [B, V] table.

SPEC.md rules S-H1, S-H2. The rules that read the order of the tokens are operators: bad words, n-grams, DRY.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.processors import Past

MAX_HISTORY = 1 << 20
"""Longest prompt + output, in tokens, that a row may carry."""


@dataclass(slots=True, eq=False)
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


@dataclass(slots=True, eq=False)
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


def is_masked(array: Any) -> bool:
    """Whether this is an array of `numpy.ma`; to import that module for the question takes longer than a draw."""
    return "numpy.ma" in sys.modules and isinstance(array, np.ma.MaskedArray)


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
    if array.ndim != 1 or array.dtype.kind not in "iu" or truths or is_masked(ids):
        kind = "bool" if truths else array.dtype
        raise ParamsError(f"{name} must be a flat sequence of integers, got {kind} of shape {array.shape}")
    return array
