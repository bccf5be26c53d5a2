"""Threads that work for long let others have the interpreter more often."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

SWITCH_S = 0.0005
"""How long Python code of a thread may hold the interpreter at a time while others want it."""


class QuickSwitching:
    """Counts the work that wants threads to be switched quickly; they are switched as before when there is none."""

    def __init__(self) -> None:
        self._lock, self._count, self._usual_s = threading.Lock(), 0, sys.getswitchinterval()

    def begin(self) -> None:
        """Switches quickly until a call of `end` for each of `begin`."""
        with self._lock:
            if not self._count:
                self._usual_s = sys.getswitchinterval()
                sys.setswitchinterval(min(SWITCH_S, self._usual_s))
            self._count += 1

    def end(self) -> None:
        """Ends what began with one `begin`."""
        with self._lock:
            self._count -= 1
            if not self._count:
                sys.setswitchinterval(self._usual_s)


QUICK_SWITCHING = QuickSwitching()


def quickly(call: Callable[P, T], *arguments: P.args, **options: P.kwargs) -> T:
    """What a call returns or raises, while threads are switched quickly.

    For long work beside threads that others wait for, such as the engine's and that of the event loop. Each of these
    gives the interpreter up many times in a step, and waits for it as often: 5 ms without this, which were 50 ms a
    token, and with several such calls at once a second.
    """
    QUICK_SWITCHING.begin()
    try:
        return call(*arguments, **options)
    finally:
        QUICK_SWITCHING.end()
