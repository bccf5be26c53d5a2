"""The `tirage` command: text on stdout, everything else on stderr."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import typer

from tirage.cli import batch, chat, explain, generate, models, replay, serve
from tirage.errors import GrammarError, ParamsError, TirageError

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="From logits to drawn tokens to text: exact, reproducible, explained sampling.",
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
):
    app.command()(command)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs the command line and exits: 0 done, 1 unusable model or file, 2 bad option, 130 interrupted."""
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
