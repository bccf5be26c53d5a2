"""The settings of an engine's scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tirage.errors import ParamsError


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """How many requests run and wait at once, and how long a custom logits processor may take.

    At most `max_running` samples and beams, at least 1, take part in a step. With `max_waiting`, at least 0, at most so
    many requests wait for a slot. With `processor_timeout`, positive seconds, a call of a custom logits processor that
    takes longer ends its request. None is no limit. Raises ParamsError for another value.
    """

    max_running: int = 32
    max_waiting: int | None = None
    processor_timeout: float | None = None

    def __post_init__(self) -> None:
        if not is_integer(self.max_running, low=1):
            raise ParamsError(f"max_running must be a positive integer, got {self.max_running!r}")
        if self.max_waiting is not None and not is_integer(self.max_waiting, low=0):
            raise ParamsError(f"max_waiting must be an integer of at least 0 or None, got {self.max_waiting!r}")
        seconds = self.processor_timeout
        number = isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and seconds > 0
        if seconds is not None and not number:
            raise ParamsError(f"processor_timeout must be a positive number of seconds or None, got {seconds!r}")


def is_integer(value: object, *, low: int) -> bool:
    """Whether a value is an integer of at least `low`, and no bool."""
    return isinstance(value, int) and not isinstance(value, bool) and value >= low


def check_cache_length(cache_length: Any) -> None:
    """Raises ParamsError unless `cache_length` is an integer >= 1 or None."""
    if cache_length is not None and not is_integer(cache_length, low=1):
        raise ParamsError(f"cache_length must be a positive integer or None, got {cache_length!r}")
