"""The command-line options of the sampling parameters, derived from their fields."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

from tirage.cli import guided
from tirage.cli.derived import field_option, with_options
from tirage.fields.rules import Bias, Float, Ids, IdWords, Int
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
    defaults = {name: _MAX_TOKENS if name == "max_tokens" else spec.default for name, spec in OPTIONS.items()}
    own = [field_option(name, spec, default=defaults[name]) for name, spec in OPTIONS.items()]
    return with_options(command, [*own, *guided.options()])


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
