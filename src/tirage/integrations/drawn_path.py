"""What rows with Mirostat or adaptive-p drew along their text: their state outlives what engines do with requests."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count

import numpy as np
from numpy.typing import NDArray

KEPT_TOKENS = 1 << 20
"""Tokens of requests that left whose draws are kept, with 24 bytes each."""


@dataclass(slots=True)
class DrawnPath:
    """The tokens that an engine put out for one request, and what was drawn in the place of each.

    `drawn` has, by step, the token of the last draw and the state after it; it is one longer than `tokens` where the
    draw after all of them has been made.
    """

    tokens: list[int] = field(default_factory=list)
    drawn: list[tuple[int, float]] = field(default_factory=list)

    def note(self, drawn: tuple[int, float], *, step: int) -> None:
        """Keeps the draw after the first `step` tokens, in place of an earlier one."""
        self.drawn[step : step + 1] = [drawn]

    def put_out(self, token: int, *, step: int) -> tuple[int, float] | None:
        """What was drawn in the place of a token, None where nothing was; draws after another token are forgotten."""
        if step >= len(self.drawn):
            return None
        if self.tokens[step : step + 1] != [token]:
            self.tokens[step:] = [token]
            del self.drawn[step + 1 :]
        return self.drawn[step]

    def goes_along(self, output: Sequence[int]) -> bool:
        """Whether all of `output` [t] was put out, its last token perhaps only drawn."""
        if len(output) > len(self.drawn):
            return False
        return [*self.tokens, *(token for token, _ in self.drawn[len(self.tokens) :])][: len(output)] == list(output)


@dataclass(slots=True, frozen=True)
class _Left:
    """The draws of one request that left; `asked` are its parameters and its prompt."""

    asked: Hashable
    tokens: NDArray[np.int64]
    drawn: NDArray[np.float64]

    def path(self) -> DrawnPath:
        """The path as it was."""
        return DrawnPath(self.tokens.tolist(), [(int(token), state) for token, state in self.drawn.tolist()])


@dataclass(slots=True)
class LeftPaths:
    """The draws of requests that left an engine's batch, the latest ones.

    vLLM takes a request that it preempts away as if it had ended, and brings it back as if it were new. A state follows
    from parameters, prompt and text, so it is found by these.
    """

    _numbers: Iterator[int] = field(default_factory=count)
    _left: dict[int, _Left] = field(default_factory=dict)
    _by_request: dict[Hashable, list[int]] = field(default_factory=dict)
    _tokens: int = 0

    def keep(self, asked: Hashable, path: DrawnPath) -> None:
        """Keeps the path of a request that left; `asked` are its parameters and its prompt."""
        number = next(self._numbers)
        self._left[number] = _Left(asked, np.array(path.tokens, np.int64), np.array(path.drawn, np.float64))
        self._by_request.setdefault(asked, []).append(number)
        self._tokens += len(path.drawn)
        while self._tokens > KEPT_TOKENS:
            self._forget(next(iter(self._left)))

    def take(self, asked: Hashable, output: Sequence[int]) -> DrawnPath:
        """The path of a request that comes back with `output` [t]; an empty one where none is known."""
        for number in self._by_request.get(asked, ()):
            path = self._left[number].path()
            if path.goes_along(output):
                self._forget(number)
                return path
        return DrawnPath()

    def _forget(self, number: int) -> None:
        left = self._left.pop(number)
        self._tokens -= len(left.drawn)
        same = self._by_request[left.asked]
        same.remove(number)
        if not same:
            del self._by_request[left.asked]
