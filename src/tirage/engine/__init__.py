"""The engine: requests in, completions out, several at a time."""

from tirage.engine.completion import Completion, Delta, LogprobEntry, Sample, Timings, Usage
from tirage.engine.loop import run
from tirage.engine.request import Request

__all__ = ["Completion", "Delta", "LogprobEntry", "Request", "Sample", "Timings", "Usage", "run"]
