"""What the loop has done and is doing, for those who watch it from other threads."""

from __future__ import annotations

import time
from dataclasses import dataclass

from tirage.engine.request import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """One look at an engine.

    `last_tick` is the `time.perf_counter()` of the loop's last sign of life. `waiting` requests are queued, `reading`
    have their prompts read, and `running` samples and beams are being written. `started`, `completed`, `aborted` and
    `failed` count requests since the engine was made; `prompt_tokens` were read, `cached_tokens` taken over from
    earlier prompts, `output_tokens` drawn. `read_s`, `sample_s`, `text_s` and `decode_s` are the seconds that the
    loop has spent on prompts, on draws, on text and on forward passes; `last_step_s` those of its last turn.
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

    def tick(self) -> float:
        """Notes a sign of life; returns the seconds since the last."""
        before, self.last_tick = self.last_tick, time.perf_counter()
        return self.last_tick - before

    def lap(self, phase: str) -> None:
        """Adds the time since the last tick or lap to a phase."""
        name = f"{phase}_s"
        setattr(self, name, getattr(self, name) + self.tick())

    def ended(self, request: Request) -> None:
        """Counts a request that is over, by the worst end of its samples."""
        reasons = {sample.finish_reason for sample in request.samples}
        if "error" in reasons:
            self.failed += 1
        elif "abort" in reasons:
            self.aborted += 1
        else:
            self.completed += 1
