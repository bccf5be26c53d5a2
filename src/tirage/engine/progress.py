"""What the loop has done and is doing, for those who watch it from other threads."""

from __future__ import annotations

import time
from bisect import bisect_left
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any

from tirage.engine.request import EngineRequest

BOUNDS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
"""The bounds by which `Times` counts, in seconds."""


@dataclass(slots=True)
class Times:
    """How often something took how long: `counts` up to each of `BOUNDS_S` but not to the one before, then longer."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_S) + 1))
    total_s: float = 0.0

    def add(self, seconds: float, count: int = 1) -> None:
        """Notes that it took so long, so many times."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += count
        self.total_s += seconds * count

    def up_to(self) -> list[int]:
        """The number up to each bound, then that of all."""
        return list(accumulate(self.counts))

    def copy(self) -> Times:
        """What it is now."""
        return Times(list(self.counts), self.total_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look at an engine.

    `last_tick` is the `time.perf_counter()` of the loop's last sign of life. `waiting` requests are queued, `reading`
    have their prompts read, and `running` samples and beams are being written. `started`, `completed`, `aborted` and
    `failed` count requests since the engine was made; `prompt_tokens` were read, `cached_tokens` taken over from
    earlier prompts, `output_tokens` drawn. `read_s`, `sample_s`, `text_s` and `decode_s` are the seconds that the
    loop has spent on prompts, on draws, on text and on forward passes; `last_step_s` those of its last turn.
    `first_token` are the times from a request's making to its first token, `between` those between the tokens of a
    sample; beams are in neither.
    """

    last_tick: float
    busy: bool
    closing: bool
    waiting: int
    reading: int
    running: int
    started: int
    completed: int
    aborted: int
    failed: int
    steps: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    read_s: float
    sample_s: float
    text_s: float
    decode_s: float
    last_step_s: float
    first_token: Times
    between: Times

    @property
    def sampling_share(self) -> float:
        """Share of the draws in the time of decode steps; 0.0 before the first."""
        total = self.sample_s + self.text_s + self.decode_s
        return self.sample_s / total if total else 0.0

    def stalled_s(self, now: float | None = None) -> float:
        """Seconds without a sign of life while there is work, at `now` of `time.perf_counter()`; 0.0 when idle."""
        return max(0.0, (time.perf_counter() if now is None else now) - self.last_tick) if self.busy else 0.0


@dataclass(slots=True)
class Meter:
    """The counters behind `Progress`, written by the engine's thread alone."""

    last_tick: float = 0.0
    started: int = 0
    completed: int = 0
    aborted: int = 0
    failed: int = 0
    steps: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    read_s: float = 0.0
    sample_s: float = 0.0
    text_s: float = 0.0
    decode_s: float = 0.0
    last_step_s: float = 0.0
    first_token: Times = field(default_factory=Times)
    between: Times = field(default_factory=Times)
    drawn_at: float = 0.0

    def tick(self) -> float:
        """Notes a sign of life; returns the seconds since the last."""
        before, self.last_tick = self.last_tick, time.perf_counter()
        return self.last_tick - before

    def lap(self, phase: str) -> None:
        """Adds the time since the last tick or lap to a phase."""
        name = f"{phase}_s"
        setattr(self, name, getattr(self, name) + self.tick())

    def drew(self, tokens: int, *, going: int) -> None:
        """Counts the tokens of a draw that has just been; `going` of its samples had a token in the draw before."""
        self.output_tokens += tokens
        if going:
            self.between.add(self.last_tick - self.drawn_at, going)
        self.drawn_at = self.last_tick

    def numbers(self) -> dict[str, Any]:
        """What `Progress` shows of them, as it is now."""
        names = {each.name for each in fields(self)} & {each.name for each in fields(Progress)}
        found = {name: getattr(self, name) for name in names}
        return found | {name: value.copy() for name, value in found.items() if isinstance(value, Times)}

    def ended(self, request: EngineRequest) -> None:
        """Counts a request that is over, by the worst end of its samples."""
        reasons = {sample.finish_reason for sample in request.samples}
        if "error" in reasons:
            self.failed += 1
        elif "abort" in reasons:
            self.aborted += 1
        else:
            self.completed += 1
