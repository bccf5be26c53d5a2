"""The output of the commands: text on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirage.errors import TirageError

if TYPE_CHECKING:
    from tirage.llm import Completion, Delta

QuietOption = Annotated[bool, typer.Option("--quiet", help="no notes on stderr")]


def show(deltas: Iterator[Delta]) -> Completion:
    """The completion of the last delta, once the text of all is on stdout. Raises TirageError when there is none."""
    completion: Completion | None = None
    for delta in deltas:
        sys.stdout.write(delta.text)
        sys.stdout.flush()
        completion = delta.completion
    sys.stdout.write("\n")
    sys.stdout.flush()
    if completion is None:
        raise TirageError("the stream ended without a completion")
    return completion


def summary(completion: Completion) -> str:
    """A line about a completion: seed, number of tokens, finish reason, and whether it breaks its constraint."""
    tokens, seconds = completion.usage.completion_tokens, completion.timings.total_s
    stop = completion.stop
    kind = "unknown" if stop is None else stop.kind
    if completion.finish_reason == "error" and stop is not None and stop.matched_text:
        kind = f"{kind}: {stop.matched_text}"
    violation = " | the text does not satisfy its constraint" if completion.grammar_complete is False else ""
    return (
        f"seed {completion.seed} | {tokens} tokens in {seconds:.2f} s | {completion.finish_reason}: {kind}{violation}"
    )


def note(text: str) -> None:
    """Writes a line to stderr."""
    print(text, file=sys.stderr, flush=True)


def print_rich(value: Any) -> None:
    """Prints an object that rich can render, at the width of the terminal."""
    from rich.console import Console

    Console().print(value)
