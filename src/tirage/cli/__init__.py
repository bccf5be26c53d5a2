"""The `tirage` command: text on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

import tirage
from tirage.cli import audit, batch, chat, conformance, convert, detect, explain, generate, models, replay, serve
from tirage.cli.help import GroupedCommand, with_help_all
from tirage.cli.output import open_closed_streams
from tirage.errors import GrammarError, ParamsError, TirageError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Exit statuses: 0 done, 1 a model, file or text failed, 2 a wrong option, 130 interrupted.",
)
# In the order of the help.
for command in (
    generate.generate,
    chat.chat,
    batch.batch,
    explain.explain,
    models.models,
    serve.serve,
    replay.replay,
    detect.detect,
    convert.convert,
    conformance.conformance,
    audit.audit,
):
    app.command(cls=GroupedCommand)(with_help_all(command))


def show_version(wanted: bool) -> None:
    """Prints the version and ends, where it is wanted."""
    if wanted:
        print(f"tirage {tirage.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="print the version", is_eager=True, callback=show_version)
    ] = False,
) -> None:
    """From logits to drawn tokens to text: exact, reproducible, explained sampling."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 1 unusable model or file, 2 bad option, 130 interrupted."""
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot show is replaced, so that the text goes on.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        app(args=list(arguments) if arguments is not None else None)
    except TirageError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2 if isinstance(error, (ParamsError, GrammarError)) else 1)
    except OSError as error:
        print(f"error: {error.filename or 'the output'}: {error.strerror}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
