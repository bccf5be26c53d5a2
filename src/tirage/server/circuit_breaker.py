"""Custom logits processors that keep failing: they are not run again for a while, where they failed.

A failure may be the processor's fault or that of the arguments and prompts that one client sends. So it counts against
the client and the arguments that it happened with, and nobody can take a processor away from the others.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tirage.engine import Completion
from tirage.params import SamplingParams
from tirage.server.errors import Refusal

MOST_FAILURES = 3
"""Failures in a row after which a processor is not run for a while."""
# Clients and arguments that are remembered; the one that failed longest ago is forgotten first.
_MEMORY = 1024
_log = logging.getLogger("tirage.server")


@dataclass(slots=True)
class ProcessorFailures:
    """Failures in a row, and until when nothing is run."""

    failures: int = 0
    until: float = -math.inf


class CircuitBreaker:
    """Counts the failures of each client's processors and arguments, and refuses these for `cool_down_s` seconds.

    After that they may try again: the next failure refuses them anew, and a success forgets everything.
    """

    def __init__(self, cool_down_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cool_down_s, self._clock = cool_down_s, clock
        self._troubles: OrderedDict[tuple[str, str], ProcessorFailures] = OrderedDict()

    def check(self, params: SamplingParams, tenant: str) -> None:
        """Refusal 503 for processors that have failed too often for this client with these arguments."""
        trouble = self._troubles.get(key_of(params, tenant)) if params.logits_processors and self._troubles else None
        if trouble is None or (left := trouble.until - self._clock()) <= 0:
            return
        raise Refusal(
            503,
            f"logits processor {names_of(params)} is not run with these arguments for now, it failed with them "
            f"{MOST_FAILURES} times in a row; check the arguments, or ask the operator, whose log says more",
            code="processor_disabled",
            headers={"retry-after": str(math.ceil(left))},
        )

    def note(self, params: SamplingParams, tenant: str, completion: Completion) -> bool:
        """Notes how a request ended; whether its processors failed."""
        if not params.logits_processors:
            return False
        kinds = {sample.stop.kind for sample in completion.samples if sample.stop}
        if "processor_failed" in kinds:
            self._failed(key_of(params, tenant), params)
        elif "abort" not in kinds and self._troubles:
            self._troubles.pop(key_of(params, tenant), None)
        return "processor_failed" in kinds

    def _failed(self, key: tuple[str, str], params: SamplingParams) -> None:
        trouble = self._troubles.setdefault(key, ProcessorFailures())
        self._troubles.move_to_end(key)
        trouble.failures += 1
        if trouble.failures >= MOST_FAILURES and trouble.until <= self._clock():
            trouble.until = self._clock() + self._cool_down_s
            _log.warning(
                "logits processor %s failed %d times in a row with one client's arguments; they are refused for %g s",
                names_of(params), trouble.failures, self._cool_down_s,
            )  # fmt: skip
        while len(self._troubles) > _MEMORY:
            self._troubles.popitem(last=False)


def key_of(params: SamplingParams, tenant: str) -> tuple[str, str]:
    """What tells a client and its arguments from others, however long these are."""
    text = json.dumps([params.logits_processors, params.extra_args], sort_keys=True, default=dict)
    return tenant, hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def processors_of(params: SamplingParams) -> Iterable[str]:
    """The processors that parameters name."""
    return dict.fromkeys(name for name, _ in params.logits_processors)


def names_of(params: SamplingParams) -> str:
    """The same as text."""
    return ", ".join(map(repr, processors_of(params)))
