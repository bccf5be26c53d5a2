"""Work of the engine's thread with draws in between, which may be made in another thread."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any, TypeVar

T = TypeVar("T")
DrawSteps = Generator[Callable[[], Any], Any, T]
"""Gives the calls that draw, each after it was sent the result of the one before, and returns what comes of them."""


def run(steps: DrawSteps[T]) -> T:
    """What comes of the steps, when their draws are made here; raises what these raise."""
    try:
        call = next(steps)
        while True:
            call = steps.send(call())
    except StopIteration as end:
        return end.value
