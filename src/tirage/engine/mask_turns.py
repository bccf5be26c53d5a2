"""The turns of constrained samples: those take part in a step for whose constraints it has time.

Cheap masks are computed in the engine's thread. Once a mask has been expensive, or may take a search for the end of a
text, the masks of its constraint are computed in a thread of their own, and a sample whose mask is not ready draws its
token in a later step. It is the same token, which depends neither on the thread nor on the step.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from tirage.engine.constraint_budget import SLOW_S
from tirage.engine.grammar_state import GrammarState
from tirage.engine.sample import GrowingSample
from tirage.engine.step_time import SLICE_S
from tirage.workers.quick_switching import quickly

WAIT_S = 0.005
"""The time that a step waits for masks when it has something else to draw; else it waits `SLICE_S`."""
_CHEAP_S = SLICE_S / 256
"""The expected time of a token below which it needs no turn: a whole batch of them fits into the time of a step."""
_THREADS = 2


class MaskTurns:
    """Computes masks ahead of draws; for the engine's thread.

    The matchers of one grammar share what they change, so a thread that computes masks has the grammar to itself: its
    samples take part in a step either with masks that are ready or not at all.
    """

    def __init__(self, *, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._threads: ThreadPoolExecutor | None = None
        # By the identity of what the matchers of a grammar share, which the states keep alive.
        self._jobs: dict[int, tuple[Future[None], Sequence[GrammarState]]] = {}

    def ready(self, samples: Sequence[GrowingSample]) -> list[bool]:
        """For each sample whether it can be drawn now: it has no constraint, or its mask has been computed, and there
        is time for its constraint to take the token."""
        if all(sample.grammar is None for sample in samples):
            return [True] * len(samples)
        deadline = self._clock() + SLICE_S
        self._forget_finished()
        groups: dict[int, list[GrammarState]] = {}
        # Those that are behind go first.
        for sample in sorted(samples, key=lambda each: len(each.token_ids)):
            if sample.grammar is not None:
                groups.setdefault(id(sample.grammar.shared), []).append(sample.grammar)
        for key, states in groups.items():
            self._compute(key, states, deadline)
        self._wait(samples, deadline)
        return in_time([self._is_ready(sample.grammar) for sample in samples], samples)

    def _compute(self, key: int, states: Sequence[GrammarState], deadline: float) -> None:
        """Computes the masks of a grammar's samples here, or starts to beside this thread."""
        if key in self._jobs:
            return
        if not any(state.budget.is_slow or state.may_search for state in states):
            compute(states, deadline, self._clock)
        elif not states[0].is_prepared:
            # Else the one that is furthest behind draws first: few of those whose tokens take long draw in a step.
            self._start(key, states, deadline)

    def _start(self, key: int, states: Sequence[GrammarState], deadline: float) -> None:
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="tirage-masks")
        self._jobs[key] = self._threads.submit(quickly, compute, states, deadline, self._clock), states

    def _wait(self, samples: Sequence[GrowingSample], deadline: float) -> None:
        futures = [future for future, _ in self._jobs.values()]
        if futures:
            left = max(0.0, deadline - self._clock())
            others = any(self._is_ready(sample.grammar) for sample in samples)
            wait(futures, min(left, WAIT_S) if others else left)
            self._forget_finished()

    def _forget_finished(self) -> None:
        self._jobs = {key: job for key, job in self._jobs.items() if not job[0].done()}

    def _is_ready(self, state: GrammarState | None) -> bool:
        return state is None or (state.is_prepared and id(state.shared) not in self._jobs)


def in_time(ready: Sequence[bool], samples: Sequence[GrowingSample]) -> list[bool]:
    """`ready`, but of samples whose constraints take long for a token only as many as a step has time for.

    There is one at least of those that take long, and those that are behind go first.
    """
    expected = [0.0 if sample.grammar is None else sample.grammar.budget.next_token_s for sample in samples]
    chosen = [*ready]
    # Apart, so that a text whose tokens take a millisecond does not wait for many whose tokens take long.
    for least, most in ((_CHEAP_S, SLOW_S), (SLOW_S, math.inf)):
        slow = [at for at, seconds in enumerate(expected) if ready[at] and least < seconds <= most]
        spent = 0.0
        for at in sorted(slow, key=lambda at: len(samples[at].token_ids)):
            chosen[at] = not spent or spent + expected[at] <= SLICE_S
            spent += expected[at] * chosen[at]
    return chosen


def compute(states: Sequence[GrammarState], deadline: float, clock: Callable[[], float]) -> None:
    """Computes the masks of states, one at least, until the deadline; states with equal texts share one mask."""
    known: dict[object, GrammarState] = {}
    for state in states:
        try:
            state.prepare(like=known.setdefault(state.text_key, state))
        except BaseException:  # the draw meets it again, and ends the sample
            state.leave()
        if clock() > deadline:
            state.budget.is_slow = True
            return
