"""The time that one step of the engine has for work that may go on in the next one."""

from __future__ import annotations

import time
from collections.abc import Callable

SLICE_S = 0.05
"""The time that a step spends on constraints, or on the next tokens of a beam search."""


class StepTime:
    """So many seconds from now, and time for one piece of work at least, so that every step comes further."""

    def __init__(self, seconds: float = SLICE_S, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock, self._deadline, self._is_first = clock, clock() + seconds, True

    @property
    def was_used(self) -> bool:
        """Whether any work has been done in it."""
        return not self._is_first

    def is_left(self) -> bool:
        """Whether there is time for another piece of work, which is then done."""
        is_first, self._is_first = self._is_first, False
        return is_first or self._clock() <= self._deadline
