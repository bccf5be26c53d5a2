"""SGLang: the `sampling_params` of its `/generate` route, as version 0.5 reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tirage.dialects.constraints import SCHEMA_TEXT, constraint, schema_text
from tirage.dialects.openai import written_bias
from tirage.dialects.processors import REGISTER, read_reference
from tirage.dialects.table import Dialect, DialectError, FieldMapping, listed, same
from tirage.dialects.unsupported import SGLANG_SAMPLING, Unsupported
from tirage.errors import ParamsError
from tirage.fields.rules import BrokenRuleError, Custom, Float, Int, Json, PatternRule, Texts, items
from tirage.params import BeamSearchParams, SamplingParams
from tirage.patterns import MAX_STATES, compile_pattern

ANY_JSON = "$$ANY$$"
"""The `json_schema` that stands for any JSON value."""

_MOST = 32
_STOP_CHARS = 256


def _stops(value: Any) -> tuple[str, ...]:
    checked = Texts().check(value) or ()
    if len(checked) > _MOST:
        raise BrokenRuleError(f"at most {_MOST} strings", value)
    for index, one in enumerate(checked):
        if len(one) > _STOP_CHARS:
            raise BrokenRuleError(f"at most {_STOP_CHARS} characters", one, f"[{index}]")
    return checked


def _patterns(value: Any) -> tuple[str, ...]:
    text = f"a regular expression or a list of at most {_MOST}, each of at most {_STOP_CHARS} bytes"
    listed = [value] if isinstance(value, str) else items(value, text)
    if len(listed) > _MOST:
        raise BrokenRuleError(f"at most {_MOST} patterns", value)
    states = 0
    for index, one in enumerate(listed):
        place = "" if isinstance(value, str) else f"[{index}]"
        if not isinstance(one, str):
            raise BrokenRuleError("a regular expression", one, place)
        if len(one.encode("utf-8", "replace")) > _STOP_CHARS:
            raise BrokenRuleError(f"at most {_STOP_CHARS} bytes", one, place)
        states += _size(one, place)
        if states > MAX_STATES:
            raise BrokenRuleError(f"patterns of at most {MAX_STATES} states together, repeats written out", value)
    return tuple(dict.fromkeys(listed))


def _size(pattern: str, place: str) -> int:
    """The states of one pattern's automaton: about one for every character that it reads."""
    try:
        PatternRule().check(pattern)
    except BrokenRuleError as broken:
        raise BrokenRuleError(broken.rule, pattern, place) from None
    return compile_pattern(pattern).size


STOPS = Custom(f"a string or a list of at most {_MOST} non-empty strings", _stops, list, lambda plain: plain)
PATTERNS = Custom(f"a regular expression or a list of at most {_MOST}", _patterns, list, lambda plain: plain)


def join_patterns(patterns: tuple[str, ...]) -> str | None:
    """One regular expression that matches wherever any of several does; None for none."""
    if len(patterns) < 2:
        return patterns[0] if patterns else None
    return "|".join(map(_group, patterns))


_FLAGS = re.compile(r"(?:\(\?[aimsux]+\))+")


def _group(pattern: str) -> str:
    """A pattern as a group, with the flags that it begins with for the group alone."""
    found = _FLAGS.match(pattern)
    if found is None:
        return f"(?:{pattern})"
    flags = "".join(sorted(set(found[0]) - set("(?)")))
    # With the flag x, a comment at the end would take the bracket in.
    return f"(?{flags}:{pattern[found.end() :]}\n)" if "x" in flags else f"(?{flags}:{pattern[found.end() :]})"


STOP_REGEX = FieldMapping(
    name="stop_regex",
    rule=PATTERNS,
    default=None,
    into=lambda value: {"stop_pattern": join_patterns(tuple(value or ()))},
    out_of=lambda params: params.stop_pattern,
    ours=("stop_pattern",),
    meaning="regular expression, or several, whose match ends the text",
)


def _schema(value: str) -> Any:
    return {} if value == ANY_JSON else value


CONSTRAINTS = (
    constraint("json_schema", "json", rule=SCHEMA_TEXT, read=_schema, write=schema_text),
    constraint("regex", "regex"),
    constraint("ebnf", "grammar"),
    constraint("structural_tag", "structural_tag"),
)

_CUSTOM_PARAMS = FieldMapping(
    name="custom_params",
    rule=Json(),
    default=None,
    into=lambda value: {},
    out_of=lambda params: None,
    ours=("logits_processors",),
    meaning="arguments of the custom logit processor",
)

SGLANG = Dialect.of(
    "SGLang",
    "sglang",
    [
        same("max_new_tokens", "max_tokens", default=128, rule=Int(low=0, optional=True), null=None),
        listed("stop", rule=STOPS),
        listed("stop_token_ids"),
        STOP_REGEX,
        same("temperature"),
        same("top_p"),
        same("top_k", default=-1, write=lambda k: k or -1),
        same("min_p"),
        same("frequency_penalty", rule=Float(low=-2.0, high=2.0)),
        same("presence_penalty", rule=Float(low=-2.0, high=2.0)),
        same("repetition_penalty", rule=Float(low=0.0, high=2.0, open_low=True)),
        same("min_new_tokens", "min_tokens"),
        same("logit_bias", write=written_bias),
        same("sampling_seed", "seed"),
        same("n"),
        *CONSTRAINTS,
        same("ignore_eos"),
        same("skip_special_tokens"),
        same("spaces_between_special_tokens"),
        same("no_stop_trim", "include_stop_str_in_output"),
        _CUSTOM_PARAMS,
    ],
    unsupported={
        **SGLANG_SAMPLING,
        "beam_width": Unsupported("a beam search takes BeamSearchParams; read it with beams_from_sglang"),
        "stream_interval": Unsupported("it says how an answer is sent, which only the /generate route can do"),
    },
)

BEAM_WIDTH = Int(low=1, optional=True)


def from_sglang(data: Mapping[str, Any], *, custom_logit_processor: str | None = None) -> SamplingParams:
    """The parameters that a `sampling_params` dict of SGLang's `/generate` asks for, in SGLang's meaning.

    Absent fields take SGLang's defaults (128 new tokens). `custom_logit_processor` is that field of the request: a
    reference to a registered processor, which gets `custom_params`. Unknown fields and values out of SGLang's ranges
    raise DialectError (a ParamsError) with SGLang's name.
    """
    params = SGLANG.read(data).params
    return with_processor(params, custom_logit_processor, data.get("custom_params"))


def with_processor(
    params: SamplingParams,
    reference: str | None,
    custom_params: Mapping[str, Any] | None,
    where: str = "",
    *,
    remedy: str = REGISTER,
) -> SamplingParams:
    """The parameters with the processor that a request refers to, and its arguments, after their other processors.

    Raises DialectError for a name that nobody registered, a message that ends with `remedy`, and for arguments without
    a processor.
    """
    if reference is None:
        if custom_params:
            raise DialectError(
                "custom_params must go with custom_logit_processor, got no processor; name one or leave them out",
                f"{where}custom_params",
            )
        return params
    name, fixed = read_reference(reference, remedy=remedy)
    try:
        named = (name, {**fixed, **(custom_params or {})})
        return params.replace(logits_processors=(*params.logits_processors, named))
    except ParamsError as error:
        raise DialectError(f"custom_params: {error}", f"{where}custom_params") from None


def to_sglang(params: SamplingParams, *, lossy: bool = False) -> Any:
    """A `sampling_params` dict for SGLang's `/generate`; fields at SGLang's defaults are left out.

    A field that SGLang cannot express raises ParamsError, or with `lossy` the result is `(dict, names lost)`.
    """
    return SGLANG.write(params, lossy=lossy)


def beams_from_sglang(data: Mapping[str, Any]) -> tuple[BeamSearchParams | None, dict[str, Any]]:
    """The beam search that `beam_width` asks for, if any, and the other fields.

    A hypothesis scores its mean log-probability and the search runs to `max_new_tokens`, as SGLang's does. Raises
    DialectError for a `beam_width` below 1, and for one without a limit of tokens.
    """
    rest = {name: value for name, value in data.items() if name != "beam_width"}
    try:
        width = BEAM_WIDTH.check(data.get("beam_width"))
    except BrokenRuleError as broken:
        raise DialectError(
            f"beam_width must be {broken.rule}, got {broken.value!r:.60}; leave it out for no beam search", "beam_width"
        ) from None
    if width is None:
        return None, rest
    params = SGLANG.read(rest).params
    if params.max_tokens is None:
        raise DialectError("max_new_tokens must be a number with beam_width, got None; give a limit", "max_new_tokens")
    return BeamSearchParams(beam_width=width, max_tokens=params.max_tokens, ignore_eos=params.ignore_eos), rest
