"""FastDeploy: what its OpenAI server takes besides OpenAI's fields, with its defaults and its sampling methods."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tirage.dialects.constraints import constraint
from tirage.dialects.openai import OPENAI, PENALTY, RESPONSE_FORMAT_WITH_TAGS, TOP_P, few_stops, top_p_zero
from tirage.dialects.table import Dialect, DialectError, FieldMapping, Fields, Inexpressible, join, listed, same
from tirage.dialects.vllm import GUIDED
from tirage.fields.rules import Bias, Bool, BrokenRuleError, Custom, Ids, OneOf, Texts, shown
from tirage.params import SamplingParams
from tirage.processors import BUILT_IN
from tirage.semantics import Semantics, resolve

METHODS = ("base", "base_non_truncated", "air", "rejection")
"""Its sampling classes, which FastDeploy chooses for a whole process by `FD_SAMPLING_CLASS`."""

TOP_P_DEFAULT = 0.7
MOST_STOPS = 5


def preset_of(method: str) -> str:
    """The preset of a sampling class; raises DialectError for an unknown one."""
    if method not in METHODS:
        raise DialectError(
            f"sampling_method must be one of {', '.join(METHODS)}, got {shown(method)}; leave it out for base",
            "sampling_method",
        )
    return f"fastdeploy-{method}"


def fastdeploy_defaults(generation_config: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """FastDeploy's defaults as fields of SamplingParams: `top_p` of the generation config or else 0.7, `min_tokens` 1.

    Its answers may fill the context.
    """
    top_p = (generation_config or {}).get("top_p")
    return {"top_p": TOP_P_DEFAULT if top_p is None else top_p, "min_tokens": 1, "max_tokens": None}


def _method_of(params: SamplingParams) -> str:
    semantics = params.semantics
    name = semantics.name if isinstance(semantics, Semantics) else resolve(semantics).name
    method = name.removeprefix("fastdeploy-")
    if method in METHODS and name.startswith("fastdeploy-"):
        return method
    # Only one class has a top_k.
    return "rejection" if params.top_k else "base"


_SAMPLING_METHOD = FieldMapping(
    name="sampling_method",
    rule=OneOf(METHODS),
    default="base",
    into=lambda value: {"semantics": preset_of(value)},
    out_of=_method_of,
    ours=("semantics",),
    meaning="how the nucleus is cut and drawn from",
)


def _write_top_k(params: SamplingParams) -> int:
    if params.top_k and "top_k" not in resolve(preset_of(_method_of(params))).stages:
        raise Inexpressible
    return params.top_k


def _word_ids(value: Any) -> Any:
    return Ids().check(value)


def _written_ids(words: Any) -> list[int] | None:
    return [word[0] for word in words if len(word) == 1] or None


_BUDGET = BUILT_IN["thinking_budget"]
_PROCESSOR_ARGS = ("logit_bias", *_BUDGET.required, *_BUDGET.optional)


def _args(value: Any) -> Any:
    rule = f"an object of {', '.join(_PROCESSOR_ARGS)}"
    if not isinstance(value, Mapping):
        raise BrokenRuleError(rule, value)
    for name in value:
        if name not in _PROCESSOR_ARGS:
            raise BrokenRuleError(rule, value, f".{shown(name)}")
    try:
        Bias().check(Bias().load(value.get("logit_bias")))
    except BrokenRuleError as broken:
        raise BrokenRuleError(broken.rule, broken.value, f".logit_bias{broken.where}") from None
    return value


def _read_args(value: Any) -> Fields:
    given = {name: item for name, item in (value or {}).items() if item is not None}
    bias = given.pop("logit_bias", None)
    found: Fields = {} if bias is None else {"logit_bias": Bias().load(bias)}
    return found | ({"logits_processors": (("thinking_budget", given),)} if given else {})


def _write_args(params: SamplingParams) -> Any:
    if [name for name, _ in params.logits_processors] != ["thinking_budget"]:
        return None
    return dict(params.logits_processors[0][1])


PROCESSOR_ARGS = FieldMapping(
    name="logits_processors_args",
    rule=Custom("an object of arguments", _args, lambda value: value, lambda plain: plain),
    default=None,
    into=_read_args,
    out_of=_write_args,
    ours=("logit_bias", "logits_processors"),
    meaning="arguments of the logits processors that the operator started",
)


def _flag(name: str, mode: str, meaning: str) -> FieldMapping:
    return FieldMapping(
        name=name,
        rule=Bool(),
        default=False,
        into=lambda value: {"logprobs_mode": mode} if value else {},
        out_of=lambda params: params.logprobs_mode == mode,
        ours=("logprobs_mode",),
        meaning=meaning,
    )


def _check_top_k(ours: Fields) -> None:
    """Raises DialectError for `top_k` under a sampling class that would ignore it."""
    preset = ours["semantics"]
    method = preset.removeprefix("fastdeploy-") if isinstance(preset, str) else ""
    if ours.get("top_k") and method in METHODS and "top_k" not in resolve(preset_of(method)).stages:
        raise DialectError(
            f"top_k must be off with sampling_method {method!r}, which has none, got {ours['top_k']}; leave it out, or "
            "choose sampling_method 'rejection'",
            "top_k",
        )


def _adjust(given: Mapping[str, Any], ours: Fields) -> Fields:
    _check_top_k(ours)
    # The default of one token at least is for requests that ask for some.
    none = ours.get("max_tokens") == 0 and "min_tokens" not in given
    return top_p_zero(given, {**ours, "min_tokens": 0} if none else ours)


EXTRAS = Dialect.of(
    "FastDeploy",
    "fastdeploy-base",
    [
        _SAMPLING_METHOD,
        same("temperature"),
        same("top_p", default=TOP_P_DEFAULT, rule=TOP_P),
        replace(same("top_k"), out_of=_write_top_k),
        same("min_p"),
        same("repetition_penalty"),
        same("frequency_penalty", rule=PENALTY),
        same("presence_penalty", rule=PENALTY),
        same("seed"),
        same("min_tokens", default=1),
        few_stops(MOST_STOPS),
        listed("stop_token_ids"),
        same("include_stop_str_in_output"),
        listed("bad_words", rule=Texts(single=False)),
        same(
            "bad_words_token_ids",
            default=None,
            rule=Custom("a list of token ids", _word_ids, list, lambda plain: plain),
            read=lambda v: v or (),
            write=_written_ids,
        ),
        PROCESSOR_ARGS,
        _flag("temp_scaled_logprobs", "processed", "report log-probabilities after the temperature"),
        _flag("top_p_normalized_logprobs", "sampled", "report log-probabilities of the law that was drawn from"),
        *GUIDED,
        constraint("structural_tag", "structural_tag"),
    ],
    adjust=_adjust,
)


def _json_object(params: SamplingParams) -> Any:
    guided = params.guided_decoding
    return {"type": "json_object"} if guided is not None and guided.json_object else None


FASTDEPLOY = join(
    "FastDeploy",
    EXTRAS,
    Dialect.of(
        "FastDeploy",
        "fastdeploy-base",
        [
            same("max_tokens", default=None),
            same("prompt_logprobs"),
            replace(RESPONSE_FORMAT_WITH_TAGS, out_of=_json_object),
        ],
    ),
    OPENAI.without("max_completion_tokens"),
)
"""Everything that FastDeploy's chat route takes for sampling; `EXTRAS` is what it adds to OpenAI's fields."""


def from_fastdeploy(data: Mapping[str, Any], *, generation_config: Mapping[str, Any] | None = None) -> SamplingParams:
    """The parameters that FastDeploy's chat fields ask for, in the meaning of `sampling_method` (base).

    Absent fields take FastDeploy's defaults: `top_p` from the model's `generation_config` or else 0.7, one token at
    least, and as many as the context has room for. `top_p` 0 is greedy. Raises DialectError (a ParamsError) with
    FastDeploy's name.
    """
    return FASTDEPLOY.read(data, defaults=fastdeploy_defaults(generation_config)).params


def to_fastdeploy(params: SamplingParams, *, lossy: bool = False) -> Any:
    """FastDeploy's chat fields; those at FastDeploy's defaults (`top_p` 0.7) are left out.

    A field that FastDeploy cannot express raises ParamsError, or with `lossy` the result is `(dict, names lost)`.
    """
    return FASTDEPLOY.write(params, lossy=lossy)
