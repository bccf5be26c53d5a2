"""The command-line options of the sampling parameters, derived from their fields."""

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

# Fields without an option: they need more than a value, or change what is printed. `guided` has those of a constraint.
NO_OPTION = {
    "n", "best_of", "logprobs", "prompt_logprobs", "logprob_token_ids", "logprobs_mode", "detokenize",
    "output_kind", "guided_decoding", "extra_args", "logits_processors",
}  # fmt: skip
_MAX_TOKENS = 128
OPTIONS = {name: spec for name, spec in FIELDS.items() if spec.public and name not in NO_OPTION}


def sampling_options(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of `OPTIONS` and of `guided` in place of its `**options`."""
    signature = inspect.signature(command, eval_str=True)
    own = [p for p in signature.parameters.values() if p.kind is not inspect.Parameter.VAR_KEYWORD]
    parameters = [*own, *(option(name, spec) for name, spec in OPTIONS.items()), *guided.options()]
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def option(name: str, spec: FieldSpec) -> inspect.Parameter:
    """The command-line option of a field; `parse_options` parses its text."""
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
    """The name of a value of the field in the help; None for a flag."""
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
    """The parameters that the options ask for. Raises the ParamsError of the field for a bad value."""
    given = {name: parse(FIELDS[name], options[name]) for name in OPTIONS if options.get(name) is not None}
    given.setdefault("max_tokens", _MAX_TOKENS)
    constraint = guided.parse_guided({name: options.get(name) for name in guided.OPTIONS})
    return SamplingParams(**given, guided_decoding=constraint, output_kind=RequestOutputKind.DELTA)


def parse(spec: FieldSpec, value: Any) -> Any:
    """The text of an option in the type of its field; text of another kind is left for the field to refuse."""
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
    """The number in a text, or the text when it is not a number."""
    try:
        return kind(text)
    except ValueError:
        return text
