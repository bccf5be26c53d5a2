"""The help of a command: its options in groups, the common ones first; `--help-all` shows the rest too."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

COMMON = "Common options"
"""The group that `--help` shows; the other groups are for `--help-all`."""
ARGUMENTS = "Arguments"
LAST = "Help"
_ALL = "tirage.help_all"
_FEW = 30
"""As many options as are shown on one screen."""


class GroupedCommand(TyperCommand):
    """A command whose `--help` has its arguments and common options, and its `--help-all` every option, in groups.

    Both show all options of a command that has few.
    """

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Writes the groups to the formatter."""
        groups = option_groups(self)
        every = _ALL in ctx.meta or len(self.params) <= _FEW
        shown = {name: params for name, params in groups.items() if every or name in (ARGUMENTS, COMMON)}
        for name, params in shown.items():
            with formatter.section(name):
                formatter.write_dl([(spelling(param), meaning(param)) for param in params])
        rest = [f"{name} ({len(params)})" for name, params in groups.items() if name not in shown and name != LAST]
        if rest:
            formatter.write_paragraph()
            formatter.write_text(f"More options with --help-all: {', '.join(rest)}.")


def option_groups(command: Any) -> Mapping[str, list[Any]]:
    """The options of a command by the name of their group: arguments, then common options, then the others."""
    found: dict[str, list[Any]] = {ARGUMENTS: [], COMMON: []}
    for param in command.params:
        name = ARGUMENTS if param.param_type_name == "argument" else param.rich_help_panel or COMMON
        found.setdefault(name, []).append(param)
    last = found.pop(LAST, [])
    return {name: params for name, params in [*found.items(), (LAST, last)] if params}


def spelling(param: Any) -> str:
    """How an option is written, such as `-n, --n INTEGER`."""
    if param.param_type_name == "argument":
        return param.metavar or param.name.upper()
    flags = ", ".join(sorted(param.opts, key=len))
    if param.secondary_opts:
        flags = f"{flags} / {', '.join(param.secondary_opts)}"
    return flags if param.is_flag else f"{flags} {param.metavar}"


def meaning(param: Any) -> str:
    """What an option does, with its default and the environment variable that it is read from."""
    text, default = param.help or "", param.default
    if default not in (None, False, "", ()) and "(default " not in text and not param.required:
        text += f" (default {default})"
    return f"{text} (environment: {param.envvar})" if param.envvar else text


def show_all(ctx: typer.Context, wanted: bool | None) -> None:
    """Prints the help with all groups and ends, where it is wanted."""
    if wanted:
        ctx.meta[_ALL] = True
        typer.echo(ctx.get_help())
        raise typer.Exit


_HELP_ALL = inspect.Parameter(
    "help_all",
    inspect.Parameter.KEYWORD_ONLY,
    default=None,
    annotation=Annotated[
        bool | None,
        typer.Option("--help-all", help="show all options", is_eager=True, callback=show_all, rich_help_panel=LAST),
    ],
)


def with_help_all(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the option `--help-all`, which ends it before it runs."""

    @functools.wraps(command)
    def run(help_all: None = None, **options: Any) -> None:
        command(**options)

    signature = inspect.signature(command, eval_str=True)
    every = [*signature.parameters.values(), _HELP_ALL]
    run.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
    run.__annotations__ = {p.name: p.annotation for p in every}
    return run
