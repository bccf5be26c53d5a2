"""Options of the command line for the sampling parameters: one for every field that a value can be given to."""

from __future__ import annotations

import contextlib
import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from tirage.cli import guided
from tirage.fields.rules import Bias, Bool, Float, Ids, IdWords, Int, Texts
from tirage.params import FIELDS, FieldSpec, RequestOutputKind, SamplingParams

# Fields that need more than a value on a command line, or that change what is printed. A constraint has options of its
# own, in `guided`.
NO_OPTION = {
    "n", "best_of", "logprobs", "prompt_logprobs", "logprob_token_ids", "logprobs_mode", "detokenize",
    "output_kind", "guided_decoding", "extra_args", "logits_processors",
}  # fmt: skip
_MAX_TOKENS = 128
OPTIONS = {name: spec for name, spec in FIELDS.items() if spec.public and name not in NO_OPTION}


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with an option for every parameter in `OPTIONS` and every kind of constraint, for `**options`."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*own, *(option(name, spec) for name, spec in OPTIONS.items()), *guided.options()]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def option(name: str, spec: FieldSpec) -> inspect.Parameter:
    """The command-line option of a field; its value stays text until `parse_options`."""
    flag = f"--{name.replace('_', '-')}"
    default = _MAX_TOKENS if name == "max_tokens" else spec.default
    shown = "" if default in (None, ()) else f" (default {default})"
    kind: Any = str
    if isinstance(spec.rule, Bool):
        flag, kind = f"{flag}/--no-{flag[2:]}", bool
    elif isinstance(spec.rule, (Texts, Ids)):
        kind, shown = list[str], "; may be repeated"
    info = typer.Option(flag, help=spec.meaning + shown, show_default=False, metavar=metavar(spec))
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, info]
    )


def metavar(spec: FieldSpec) -> str | None:
    """What the help calls a value of the field."""
    names: dict[type, str | None] = {
        Bool: None,
        Int: "INTEGER",
        Ids: "INTEGER",
        Float: "NUMBER",
        Bias: "JSON",
        IdWords: "JSON",
    }
    return names.get(type(spec.rule), "TEXT")


def parse_options(options: dict[str, Any]) -> SamplingParams:
    """The parameters that the given options ask for; ParamsError, worded by the field, for a bad value."""
    given = {name: parse(FIELDS[name], options[name]) for name in OPTIONS if options.get(name) is not None}
    given.setdefault("max_tokens", _MAX_TOKENS)
    constraint = guided.parse_guided({name: options.get(name) for name in guided.OPTIONS})
    return SamplingParams(**given, guided_decoding=constraint, output_kind=RequestOutputKind.DELTA)


def parse(spec: FieldSpec, value: Any) -> Any:
    """An option's text as the field's own type; text that is none of it is left for the field to refuse."""
    if isinstance(value, list):
        return [number(item, int) for item in value] if isinstance(spec.rule, Ids) else value
    if isinstance(value, bool) or not isinstance(value, str):
        return value
    if isinstance(spec.rule, (Int, Float)):
        if value.lower() == "none":
            return None
        return number(value, int if isinstance(spec.rule, Int) else float)
    if isinstance(spec.rule, (Bias, IdWords)):
        with contextlib.suppress(ValueError, RecursionError):
            return spec.load(json.loads(value))
    return value


def number(text: str, kind: type[int] | type[float]) -> Any:
    """The number that a text spells, or the text."""
    try:
        return kind(text)
    except ValueError:
        return text
