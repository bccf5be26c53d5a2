"""How much work the sets of values of one schema may be, counted so that the speed of the machine does not matter."""

from __future__ import annotations

from dataclasses import dataclass

from tirage.workers.cancel import checkpoint

STEPS = 10_000
"""Most comparisons of two sets of values, or looks into one."""


class StepsError(ValueError):
    """Raised when a schema takes more steps than it may."""


@dataclass(slots=True)
class Steps:
    """The steps that are left."""

    left: int = STEPS

    def take(self, count: int = 1) -> None:
        """Takes steps away; raises StepsError when there are not as many."""
        checkpoint()
        self.left -= count
        if self.left < 0:
            raise StepsError("too many steps")
