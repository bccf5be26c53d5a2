"""`tirage serve`: the HTTP server, with a command-line option for each of its options."""

from __future__ import annotations

import atexit
import inspect
import logging
import os
import sys
from functools import partial
from typing import Any, NoReturn

from tirage.cli.derived import note_of, parameter, with_options
from tirage.server.options import FLAGS, Flag, Options, from_environment


def option(flag: Flag) -> inspect.Parameter:
    """The command-line option of a flag."""
    text = flag.help + note_of(flag.default, flag.choices)
    kind = list[str] if flag.many else flag.kind
    return parameter(flag.name, flag.flags, kind, help=text, metavar=flag.metavar)


@partial(with_options, parameters=map(option, FLAGS.values()))
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
