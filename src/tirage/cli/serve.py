"""`tirage serve`: the HTTP server, with a command-line option for each of its options."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any, NoReturn

import typer

from tirage.server.options import FLAGS, Flag, Options, from_environment


def serve_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every flag of the server in place of its `**options`."""
    parameters = [option(flag) for flag in FLAGS.values()]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def option(flag: Flag) -> inspect.Parameter:
    """The command-line option of a flag."""
    kind: Any = list[str] if flag.many else flag.kind
    shown = "" if flag.default in (None, (), False) else f" (default {flag.default})"
    words = f"; one of {', '.join(flag.choices)}" if flag.choices else ""
    info = typer.Option(*flag.flags, help=flag.help + words + shown, show_default=False, metavar=flag.metavar)
    return inspect.Parameter(
        flag.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


@serve_options
def serve(**options: Any) -> None:
    """Serve SGLang's, OpenAI's and FastDeploy's routes over HTTP. Progress and notes go to stderr."""
    from tirage.server import run

    given = {name: value for name, value in options.items() if value is not None}
    end(run(Options.of(**from_environment(os.environ) | given)))


def end(status: int) -> NoReturn:
    """Ends the process without unloading its libraries, some of which fail while other threads use them."""
    atexit._run_exitfuncs()
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
