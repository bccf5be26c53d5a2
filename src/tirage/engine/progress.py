"""Counters and times of the engine's thread, for other threads to read."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any

from tirage.engine.request import EngineRequest

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The upper bounds of the buckets of a `DurationHistogram`, in seconds."""


@dataclass(slots=True)
class DurationHistogram:
    """Durations in buckets: `counts` has a number per bound of `BOUNDS_S`, and one for all that are longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Counts a duration, `count` times."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += count
        self.total_s += seconds * count

    def cumulative(self) -> list[int]:
        """The number of durations up to each bound, then the number of all."""
        return list(accumulate(self.counts))

    def copy(self) -> DurationHistogram:
        """An independent histogram with the same counts."""
        return DurationHistogram(list(self.counts), self.total_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A snapshot of an engine.

    `last_tick` is the `time.perf_counter()` at which its thread was last seen working. `waiting` requests are queued,
    `reading` are being prefilled, and `running` is the number of running samples and beams. `abandoned_calls` of
    custom processors were left behind and have not returned. `started`, `completed`,
    `aborted` and `failed` count requests since the engine was made; `prompt_tokens` were prefilled, `cached_tokens`
    reused from earlier prompts, `output_tokens` drawn. The model has read `drafts` with `draft_tokens` in all, of which
    `accepted_tokens` were then drawn. `read_s`, `sample_s`, `text_s` and `decode_s` are the seconds
    spent so far on prefill, draws, text and decode passes, and `last_step_s` those of the last step. `first_token` has
    the times from the making of a request to its first token, `between` those between two tokens of a sample; beams are
    in neither.
    """

    last_tick: float
    busy: bool
    closing: bool
    waiting: int
    reading: int
    running: int
    abandoned_calls: int
    started: int
    completed: int
    aborted: int
    failed: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    drafts: int
    draft_tokens: int
    accepted_tokens: int
    read_s: float
    sample_s: float
    text_s: float
    decode_s: float
    last_step_s: float
    first_token: DurationHistogram
    between: DurationHistogram

    @property
    def sampling_share(self) -> float:
        """The share of draws in the time of decode steps, 0.0 to 1.0; 0.0 before the first step."""
        total = self.sample_s + self.text_s + self.decode_s
        return self.sample_s / total if total else 0.0

    def stalled_s(self, now: float | None = None) -> float:
        """Seconds since the thread was last seen working, at `now` of `time.perf_counter()`; 0.0 without work."""
        return max(0.0, (time.perf_counter() if now is None else now) - self.last_tick) if self.busy else 0.0


@dataclass(slots=True)
class Meter:
    """The counters behind `Progress`, which only the engine's thread writes."""

    last_tick: float = 0.0
    started: int = 0
    completed: int = 0
    aborted: int = 0
    failed: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    read_s: float = 0.0
    sample_s: float = 0.0
    text_s: float = 0.0
    decode_s: float = 0.0
    last_step_s: float = 0.0
    first_token: DurationHistogram = field(default_factory=DurationHistogram)
    between: DurationHistogram = field(default_factory=DurationHistogram)

    def tick(self) -> float:
        """Sets `last_tick` to now; returns the seconds since the tick before."""
        before, self.last_tick = self.last_tick, time.perf_counter()
        return self.last_tick - before

    def lap(self, phase: str) -> None:
        """Adds the time since the last tick or lap to the phase `read`, `sample`, `text` or `decode`."""
        name = f"{phase}_s"
        setattr(self, name, getattr(self, name) + self.tick())

    def count_single(self, began: float, sampled: float, told: float) -> None:
        """Counts a token that the model has read now, by the times at which it began, was drawn and was passed on."""
        self.last_tick = now = time.perf_counter()
        self.sample_s += sampled - began
        self.text_s += told - sampled
        self.decode_s += now - told
        self.output_tokens += 1

    def count_single_step(self, began: float) -> None:
        """Counts a step of such tokens, which ended with the last of them."""
        self.steps += 1
        self.last_step_s = self.last_tick - began

    def count_draw(self, drawn_at: Sequence[float]) -> None:
        """Counts the tokens of a draw that just ended; `drawn_at` is when each sample had one before, 0.0 for never."""
        self.output_tokens += len(drawn_at)
        counts = Counter(drawn_at) if len(drawn_at) > 1 else dict.fromkeys(drawn_at, 1)
        for before, count in counts.items():
            if before:
                self.between.add(self.last_tick - before, count)

    def snapshot(self) -> dict[str, Any]:
        """The present values of the counters that `Progress` has, by name."""
        names = {each.name for each in fields(self)} & {each.name for each in fields(Progress)}
        found = {name: getattr(self, name) for name in names}
        return found | {name: value.copy() for name, value in found.items() if isinstance(value, DurationHistogram)}

    def count_end(self, request: EngineRequest) -> None:
        """Counts a finished request: as failed or else as aborted when any of its samples is, else as completed."""
        reasons = {sample.finish_reason for sample in request.samples}
        if "error" in reasons:
            self.failed += 1
        elif "abort" in reasons:
            self.aborted += 1
        else:
            self.completed += 1
