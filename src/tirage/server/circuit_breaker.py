"""Stops custom logits processors that keep failing, for a while and only where they failed.

A failure may be the fault of the processor or of the arguments and prompts that one client sends. So it counts only for
this client and these arguments, and no client can disable a processor for the others.
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

from tirage.engine import Completion, Tenant
from tirage.params import SamplingParams
from tirage.server.errors import Refusal

MOST_FAILURES = 3
"""Failures in a row after which a processor is not run for a while."""
# How many pairs of client and arguments are remembered; the one that failed longest ago is dropped first.
_MEMORY = 1024
_log = logging.getLogger("tirage.server")


@dataclass(slots=True)
class ProcessorFailures:
    """The number of failures in a row, and until when the processor is refused, by the clock."""

    failures: int = 0
    until: float = -math.inf


class CircuitBreaker:
    """Counts the failures for each client and arguments, and refuses them for `cool_down_s` seconds after too many.

    After that time one more failure refuses them again, and a success resets the count.
    """

    def __init__(self, cool_down_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._cool_down_s, self._clock = cool_down_s, clock
        self._failures: OrderedDict[tuple[str, str], ProcessorFailures] = OrderedDict()

    def check(self, params: SamplingParams, tenant: Tenant) -> None:
        """Raises Refusal 503 for processors that have failed too often for this client with these arguments."""
        record = self._failures.get(key_of(params, tenant)) if params.logits_processors and self._failures else None
        if record is None or (left := record.until - self._clock()) <= 0:
            return
        raise Refusal(
            503,
            f"logits processor {names_of(params)} is not run with these arguments for now, it failed with them "
            f"{MOST_FAILURES} times in a row; check the arguments, or ask the operator, whose log says more",
            code="processor_disabled",
            headers={"retry-after": str(math.ceil(left))},
        )

    def record(self, params: SamplingParams, tenant: Tenant, completion: Completion) -> bool:
        """Records how a request finished; returns whether its processors failed."""
        if not params.logits_processors:
            return False
        kinds = {sample.stop.kind for sample in completion.samples if sample.stop}
        if "processor_failed" in kinds:
            self._add_failure(key_of(params, tenant), params)
        elif "abort" not in kinds and self._failures:
            self._failures.pop(key_of(params, tenant), None)
        return "processor_failed" in kinds

    def _add_failure(self, key: tuple[str, str], params: SamplingParams) -> None:
        record = self._failures.setdefault(key, ProcessorFailures())
        self._failures.move_to_end(key)
        record.failures += 1
        if record.failures >= MOST_FAILURES and record.until <= self._clock():
            record.until = self._clock() + self._cool_down_s
            _log.warning(
                "logits processor %s failed %d times in a row with one client's arguments; they are refused for %g s",
                names_of(params), record.failures, self._cool_down_s,
            )  # fmt: skip
        while len(self._failures) > _MEMORY:
            self._failures.popitem(last=False)


def key_of(params: SamplingParams, tenant: Tenant) -> tuple[str, str]:
    """A key of fixed size for a client and its arguments."""
    text = json.dumps([params.logits_processors, params.extra_args], sort_keys=True, default=dict)
    return tenant.name, hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def processors_of(params: SamplingParams) -> Iterable[str]:
    """The names of the processors in the parameters, each once."""
    return dict.fromkeys(name for name, _ in params.logits_processors)


def names_of(params: SamplingParams) -> str:
    """The names of the processors as text."""
    return ", ".join(map(repr, processors_of(params)))
