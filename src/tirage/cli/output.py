"""The output of the commands: text on stdout, everything else on stderr."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirage.cli.wrapping import WordWrapper, without_controls
from tirage.errors import TirageError

if TYPE_CHECKING:
    from tirage.llm import Completion, Delta

QuietOption = Annotated[bool, typer.Option("--quiet", "-q", help="no notes on stderr", rich_help_panel="Output")]

_COLUMNS = 80
"""The columns of a terminal that says it has none."""


def open_closed_streams() -> None:
    """Opens the null device in place of a closed stdout or stderr, as a daemon's may be; what goes there is lost."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # The lowest free number is the stream's own, which no file of ours may get: libraries print to it.
            null = os.open(os.devnull, os.O_RDWR)
            if name != "stdin":
                setattr(sys, name, os.fdopen(null, "w", encoding="utf-8", closefd=False))


class TextOutput:
    """Writes a text to stdout as it arrives: as it is to a file or pipe, without control characters to a terminal.

    With `wrap` lines on a terminal are broken between words.
    """

    def __init__(self, *, wrap: bool = False) -> None:
        terminal = sys.stdout.isatty()
        self._wrapper = WordWrapper(columns) if wrap and terminal else None
        self._shown: Callable[[str], str] = without_controls if terminal else str
        if self._wrapper is not None:
            self._shown = self._wrapper.feed
        self.begun = False

    def write(self, text: str) -> None:
        """Writes the next piece, but a word of it that may go on; the text has `begun` once there is one."""
        self.begun = self.begun or bool(text)
        sys.stdout.write(self._shown(text))
        sys.stdout.flush()

    def end(self) -> None:
        """Writes what is left, and ends the line."""
        sys.stdout.write(("" if self._wrapper is None else self._wrapper.finish()) + "\n")
        sys.stdout.flush()


def columns() -> int:
    """The columns of a line on the terminal; one less than it has, as some go on to the next one after the last."""
    return max(shutil.get_terminal_size().columns - 1, 1)


def show(deltas: Iterator[Delta], *, wrap: bool = False) -> Completion:
    """The completion of the last delta, once the text of the first sample is on stdout, interrupted or not.

    Raises TirageError when there is no completion.
    """
    completion: Completion | None = None
    output = TextOutput(wrap=wrap)
    try:
        for delta in deltas:
            if delta.index == 0:
                output.write(delta.text)
            completion = delta.completion
    except Exception:
        # Where nothing was written an error leaves no empty line.
        if output.begun:
            output.end()
        raise
    except KeyboardInterrupt:
        output.end()
        raise
    output.end()
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


def print_json(value: Any) -> None:
    """Prints a value as a line of JSON."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def print_rich(value: Any, *, stderr: bool = False) -> None:
    """Prints an object that rich can render, at the width of the terminal, to stdout or stderr."""
    from rich.console import Console

    console = Console(stderr=stderr)
    if not console.width:
        # With COLUMNS=0 nothing at all would be printed.
        console = Console(stderr=stderr, width=_COLUMNS)
    console.print(value)
