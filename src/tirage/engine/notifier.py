"""Wakes the readers of request streams in their event loops, and gives each loop its turn."""

from __future__ import annotations

import asyncio
import contextlib
import threading

# How long the engine waits for a loop. Longer than the work of 256 streams takes, and shorter than a gap that anyone
# would notice.
_WAIT_S = 0.05
# How many calls of `flush`, two for each step, may pass before the engine waits for a turn to end. A loop that is some
# steps behind writes what is ready in one go, so that it takes less time for each step.
_AHEAD = 15
# From a wake-up to the end of what it caused: the readers' tasks, then those that send, then the next callback.
_ROUNDS = 3


class Notifier:
    """Wakes the readers in event loops that have something to read, with one call per loop for all its readers.

    `add` and `flush` are for the engine's thread, which is at most eight steps ahead of the loops that it has woken.
    Python switches threads once in 5 ms at the soonest, so beside a model that takes no time a loop would make one
    system call in 5 ms. A loop that does not come back within 50 ms is busy with something else: the engine does not
    wait for it again until it has come back.
    """

    def __init__(self) -> None:
        self._waiters: dict[asyncio.AbstractEventLoop, list[asyncio.Future[None]]] = {}
        self._turns: dict[asyncio.AbstractEventLoop, LoopTurn] = {}

    def add(self, waiter: asyncio.Future[None]) -> None:
        """Adds a reader to those that `flush` wakes."""
        self._waiters.setdefault(waiter.get_loop(), []).append(waiter)

    def flush(self) -> None:
        """Wakes the readers added since the last call, and waits for loops that are far behind.

        Takes at most 50 ms for each such loop.
        """
        for loop, turn in [*self._turns.items()]:
            if loop.is_closed() or turn.has_ended():
                del self._turns[loop]
        if not self._waiters:
            return
        waiters, self._waiters = self._waiters, {}
        for loop, each in waiters.items():
            turn = self._turns.get(loop) or LoopTurn(loop)
            # A loop may be closed at any time, and then it has no readers left.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(turn.begin, each)
                self._turns[loop] = turn


class LoopTurn:
    """What an event loop does once it is woken: its readers go on, and the tasks that send what they have read."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._ended = loop, threading.Event()
        self._asked, self._late = 0, False

    def begin(self, waiters: list[asyncio.Future[None]]) -> None:
        """Completes the futures that readers wait for; runs in the loop."""
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._go_on(_ROUNDS)

    def _go_on(self, rounds: int) -> None:
        if rounds:
            self._loop.call_soon(self._go_on, rounds - 1)
        else:
            self._ended.set()

    def has_ended(self) -> bool:
        """Whether the loop is done; after `_AHEAD` calls waits for that, but not again once a wait has timed out."""
        self._asked += 1
        wait_s = 0.0 if self._late or self._asked <= _AHEAD else _WAIT_S
        ended = self._ended.wait(wait_s)
        self._late = self._late or (wait_s > 0 and not ended)
        return ended
