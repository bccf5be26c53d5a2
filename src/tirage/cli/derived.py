"""Options of a command that are derived: from the fields of a parameter class, from the flags of the server."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Annotated, Any

import typer

from tirage.fields.record import FieldSpec
from tirage.fields.rules import (
    Bias,
    Bool,
    BrokenRuleError,
    Float,
    Ids,
    IdWords,
    Int,
    Json,
    OneOf,
    PatternRule,
    SequenceBias,
    Text,
    Texts,
)

_METAVARS: dict[type, str | None] = {
    Bool: None,
    Int: "INTEGER",
    Ids: "INTEGER",
    Float: "NUMBER",
    Bias: "JSON",
    IdWords: "JSON",
    SequenceBias: "JSON",
}

_TEXTS = (Text, Texts, PatternRule, Json)


def with_options(command: Callable[..., None], parameters: Iterable[inspect.Parameter]) -> Callable[..., None]:
    """The command with these parameters in place of its `**options`."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    every = [*own, *parameters]
    command.__signature__ = signature.replace(parameters=every)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in every}
    return command


def field_option(
    name: str,
    spec: FieldSpec,
    *,
    default: Any = None,
    metavar: str | None = None,
    panel: str | None = None,
    short: str | None = None,
) -> inspect.Parameter:
    """The option `name` of a field: a flag for a switch, else text in one or, for a list, in several options."""
    flag, values = flag_of(name), spec.rule.values if isinstance(spec.rule, OneOf) else ()
    kind: Any = str
    if isinstance(spec.rule, Bool):
        flag, kind = f"{flag}/{flag_of(name, off=True)}", bool
    elif True in values:
        kind = bool
    elif isinstance(spec.rule, (Texts, Ids)):
        kind = list[str]
    shown = None if kind is bool else metavar or _METAVARS.get(type(spec.rule), "TEXT")
    choices = [value for value in values if isinstance(value, str)]
    note = "; may be repeated" if kind == list[str] else note_of(default, choices)
    flags = (flag,) if short is None else (short, flag)
    return parameter(name, flags, kind, help=spec.meaning + note, metavar=shown, panel=panel)


def flag_of(name: str, *, off: bool = False) -> str:
    """The option of a field, or the one that turns a switch off."""
    return f"--{'no-' if off else ''}{name.replace('_', '-')}"


def is_text(spec: FieldSpec) -> bool:
    """Whether the value of an option is a text of the user's own, or names a file with one, and `none` such a text."""
    return isinstance(spec.rule, _TEXTS)


def is_none(spec: FieldSpec, value: Any) -> bool:
    """Whether the value of an option is the `none` that turns its field off."""
    words = value if isinstance(value, list) else [value]
    given = [word.lower() for word in words if isinstance(word, str)]
    return given == ["none"] and not is_text(spec) and accepts_none(spec)


def accepts_none(spec: FieldSpec) -> bool:
    """Whether a field takes None, which it may store as another value."""
    try:
        spec.rule.check(None)
    except BrokenRuleError:
        return False
    return True


def as_option(spec: FieldSpec) -> FieldSpec:
    """The field with a remedy that the command line takes, where that of the class is a value of Python."""
    if spec.remedy or not spec.has_off or isinstance(spec.off, (int, float, str)):
        return spec
    takes_none = spec.off is None and not is_text(spec)
    return replace(spec, remedy="use none to turn it off" if takes_none else "leave it out to turn it off")


def note_of(default: Any, choices: Iterable[str] = ()) -> str:
    """What the help of an option says of its values and of the one that it has when it is not given."""
    listed = ", ".join(choices)
    shown = "" if default is None or default is False or default == () else f" (default {default})"
    return (f"; one of {listed}" if listed else "") + shown


def parameter(
    name: str, flags: tuple[str, ...], kind: Any, *, help: str, metavar: str | None, panel: str | None = None
) -> inspect.Parameter:
    """The parameter of a command for one option, None where the option is not given."""
    info = typer.Option(*flags, help=help, show_default=False, metavar=metavar, rich_help_panel=panel)
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )
