"""Limits on the work of searches, counted in steps so that no token depends on the speed of the machine."""

from __future__ import annotations

from dataclasses import dataclass

from tirage.workers.cancel import checkpoint

_STEPS_BETWEEN_CHECKPOINTS = 64


class StepLimitError(Exception):
    """Raised when a search takes more steps than it may."""


class WorkLimitError(Exception):
    """Raised for rules, and for searches over them, that take more work than allowed."""


class StepBudget:
    """The number of steps that one search may take; `spent` is the number taken so far."""

    def __init__(self, steps: int) -> None:
        self._steps, self.spent = steps, 0

    def check(self) -> None:
        """Counts a step; raises StepLimitError when the budget is exceeded."""
        self.spent += 1
        if self.spent > self._steps:
            raise StepLimitError
        if not self.spent % _STEPS_BETWEEN_CHECKPOINTS:
            checkpoint()


@dataclass(slots=True)
class RemainingWork:
    """The work that may still be done for one text, shared by all forks of its state."""

    left: int
