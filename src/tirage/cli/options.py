"""The command-line options of the sampling parameters, derived from their fields."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from tirage.cli import guided
from tirage.cli.derived import as_option, field_option, flag_of, is_none, with_options
from tirage.cli.help import COMMON
from tirage.cli.watermark import parse_watermark
from tirage.errors import OnlyValueError, ParamsError
from tirage.fields.rules import Bias, Float, Ids, IdWords, Int, SequenceBias
from tirage.params import FIELDS, FieldSpec, RequestOutputKind, SamplingParams
from tirage.params.groups import group_of, grouped

# Fields without an option: they need more than a value, or change what is printed. `guided` has those of a constraint.
NO_OPTION = {
    "best_of", "prompt_logprobs", "logprob_token_ids", "detokenize",
    "output_kind", "guided_decoding", "extra_args", "logits_processors", "return_kept", "max_kept_ids",
}  # fmt: skip
OF_TEXTS = ("n", "logprobs", "logprobs_mode")
"""Fields with an option where several texts, and more than their text, can be shown or written."""
MAX_TOKENS = 128
"""The tokens of a text where nothing else is asked for."""
OPTIONS = {name: spec for name, spec in FIELDS.items() if spec.public and name not in NO_OPTION}

_COMMON = ["temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_tokens", "stop", "seed", "n"]


def place_of(name: str) -> tuple[int, int]:
    """Where the option of a field stands: among the common ones, else in the order of the groups."""
    if name in _COMMON:
        return 0, _COMMON.index(name)
    return 1, list(grouped()).index(group_of(name))


def sampling_options(
    *, max_tokens: int | None = MAX_TOKENS, more: tuple[str, ...] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A decorator: the command with the options of `OPTIONS` and of `guided` in place of its `**options`.

    Of `OF_TEXTS` it has only `more`. `max_tokens` is the default that the help names.
    """

    def decorated(command: Callable[..., None]) -> Callable[..., None]:
        named = [name for name in OPTIONS if name not in OF_TEXTS or name in more]
        own = [
            field_option(
                name,
                OPTIONS[name],
                default=max_tokens if name == "max_tokens" else OPTIONS[name].default,
                metavar="JSON|@FILE" if name == "watermark" else None,
                panel=COMMON if name in _COMMON else group_of(name),
                short="-n" if name == "n" else None,
            )
            for name in sorted(named, key=place_of)
        ]
        return with_options(command, [*own, *guided.options()])

    return decorated


def parse_options(options: dict[str, Any], *, max_tokens: int | None = MAX_TOKENS) -> SamplingParams:
    """The parameters that the options ask for. Raises the ParamsError of the field for a bad value."""
    fields = OPTIONS | {"max_tokens": with_default(OPTIONS["max_tokens"], max_tokens)}
    given = {name: checked(spec, options[name]) for name, spec in fields.items() if options.get(name) is not None}
    given.setdefault("max_tokens", max_tokens)
    constraint = guided.parse_guided({name: options.get(name) for name in guided.OPTIONS})
    return SamplingParams(**given, guided_decoding=constraint, output_kind=RequestOutputKind.DELTA)


def with_default(spec: FieldSpec, default: int | None) -> FieldSpec:
    """The field `max_tokens` of a command with another default than the library's; None fills the context."""
    remedy = "leave it out to fill the context" if default is None else ""
    return replace(spec, default=default, remedy=remedy)


def checked(spec: FieldSpec, value: Any) -> Any:
    """The text of an option as its field stores it; ParamsError with a remedy for the command line if it is refused."""
    return as_option(spec).check(parse(as_option(spec), value))


def parse(spec: FieldSpec, value: Any) -> Any:
    """The text of an option in the type of its field; text of another kind is left for the field to refuse."""
    if is_none(spec, value):
        return None
    if isinstance(value, list):
        return [number(item, int) for item in value] if isinstance(spec.rule, Ids) else value
    if isinstance(value, bool) or not isinstance(value, str):
        return value
    if isinstance(spec.rule, (Int, Float)):
        return number(value, int if isinstance(spec.rule, Int) else float)
    if spec.name == "watermark":
        return parse_watermark(value)
    if isinstance(spec.rule, (Bias, IdWords, SequenceBias)):
        with contextlib.suppress(ValueError, RecursionError):
            return spec.load(json.loads(value))
    return value


@contextlib.contextmanager
def option_remedies(options: Mapping[str, Any]) -> Iterator[None]:
    """A block that raises a ParamsError, which names the options to change of those given, for an OnlyValueError."""
    try:
        yield
    except OnlyValueError as error:
        raise ParamsError(f"{error.broken}; {remedy(error.name, error.only, options)}") from error


def remedy(name: str, only: Any, options: Mapping[str, Any]) -> str:
    """How the options of a command give a field the value `only`."""
    names = guided.OPTIONS if name == "guided_decoding" else (name,)
    flags = [flag_of(each) for each in names if options.get(each) not in (None, [], False)]
    if only == FIELDS[name].default and flags:
        return f"leave {' and '.join(flags)} out"
    if isinstance(only, bool):
        return f"use {flag_of(name, off=not only)}"
    return f"use {flag_of(name)} {'none' if only is None else only}"


def number(text: str, kind: type[int] | type[float]) -> Any:
    """The number in a text, or the text when it is not a number."""
    try:
        return kind(text)
    except ValueError:
        return text
