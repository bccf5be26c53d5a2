"""vLLM: the fields of its `SamplingParams`, and what its OpenAI server takes besides OpenAI's."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any

from tirage.dialects.constraints import constraint
from tirage.dialects.openai import BIAS, PENALTY, TEMPERATURE, few_stops, written_bias
from tirage.dialects.table import Dialect, FieldMapping, Fields, Inexpressible, listed, read_only, same
from tirage.dialects.unsupported import VLLM_SAMPLING
from tirage.fields.rules import BrokenRuleError, Custom, Int, OneOf, Texts, shown
from tirage.params import GuidedDecodingParams, RequestOutputKind, SamplingParams

MOST_STOPS = 4
_STRUCTURED = (
    "json",
    "regex",
    "choice",
    "grammar",
    "json_object",
    "structural_tag",
    "disable_any_whitespace",
    "disable_additional_properties",
    "whitespace_pattern",
    "enable_in_reasoning",
)


def _structured(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise BrokenRuleError(f"an object with one of {', '.join(_STRUCTURED[:6])}", value)
    for name in value:
        if name not in _STRUCTURED:
            raise BrokenRuleError(f"an object of {', '.join(_STRUCTURED)}", value, f".{shown(name)}")
    return value


def _read_structured(value: Any) -> Fields:
    if value is None:
        return {}
    given = {name: item for name, item in value.items() if item is not None}
    return {"guided_decoding": GuidedDecodingParams(**given)}


def _write_structured(params: SamplingParams) -> Any:
    guided = params.guided_decoding
    if guided is None:
        return None
    plain = guided.to_dict()
    return {name: plain[name] for name in _STRUCTURED if plain[name] not in (None, False)}


STRUCTURED_OUTPUTS = FieldMapping(
    name="structured_outputs",
    rule=Custom("an object with one constraint", _structured, lambda value: value, lambda plain: plain),
    default=None,
    into=_read_structured,
    out_of=_write_structured,
    ours=("guided_decoding",),
    meaning="a constraint that the text must satisfy",
)


GUIDED = (
    constraint("guided_json", "json"),
    constraint("guided_regex", "regex"),
    constraint("guided_choice", "choice"),
    constraint("guided_grammar", "grammar"),
)
"""The older spellings of constraints, which FastDeploy has too."""


def _seed(value: int) -> int | None:
    return None if value == -1 else value


def _write_seed(params: SamplingParams) -> int | None:
    if params.seed == -1:
        raise Inexpressible
    return params.seed


SEED = FieldMapping(
    name="seed",
    rule=Int(low=-(2**63), high=2**63 - 1, optional=True),
    default=None,
    into=lambda value: {"seed": _seed(value)},
    out_of=_write_seed,
    ours=("seed",),
    meaning="makes the draw repeatable; -1 takes a fresh one",
)


def _output_kind(value: Any) -> int:
    """The number of a kind, which is the same in vLLM; it may come by its name, or in vLLM's own enumeration."""
    name = value.name if isinstance(value, Enum) else value
    found = next((kind for kind in RequestOutputKind if name in (kind.name, kind.value)), None)
    if found is None or isinstance(value, bool):
        raise BrokenRuleError(f"one of {', '.join(kind.name for kind in RequestOutputKind)}, or 0, 1 or 2", value)
    return found.value


OUTPUT_KIND = FieldMapping(
    name="output_kind",
    rule=Custom("the kind of an output", _output_kind, int, lambda plain: plain),
    default=RequestOutputKind.CUMULATIVE.value,
    into=lambda number: {"output_kind": RequestOutputKind(number)},
    out_of=lambda params: None,
    ours=("output_kind",),
    meaning="what comes with each piece of a stream: all so far (0), what is new (1), or nothing until the end (2)",
)

_BUDGET = FieldMapping(
    name="thinking_token_budget",
    rule=Int(low=-1, optional=True),
    default=None,
    into=lambda value: {} if value in (None, -1) else {"thinking_budget": value},
    out_of=lambda params: params.thinking_budget,
    ours=("thinking_budget",),
    meaning="tokens of reasoning after which its end tag is forced; -1 for no limit",
)

_COUNT = Int(low=0, high=20, optional=True)

VLLM = Dialect.of(
    "vLLM",
    "vllm",
    [
        same("n", rule=Int(low=1, high=16384)),
        same("presence_penalty", rule=PENALTY),
        same("frequency_penalty", rule=PENALTY),
        same("repetition_penalty"),
        same("temperature", rule=TEMPERATURE),
        same("top_p"),
        same("top_k"),
        same("min_p"),
        SEED,
        few_stops(MOST_STOPS),
        listed("stop_token_ids"),
        same("ignore_eos"),
        same("max_tokens", default=16, null=None),
        same("min_tokens"),
        same("logprobs", rule=_COUNT),
        same("prompt_logprobs", rule=_COUNT),
        listed("logprob_token_ids"),
        same("detokenize"),
        same("skip_special_tokens"),
        same("spaces_between_special_tokens"),
        same("include_stop_str_in_output"),
        OUTPUT_KIND,
        same("truncate_prompt_tokens", default=None),
        listed("bad_words", rule=Texts(single=False)),
        same("allowed_token_ids", default=None),
        same("logit_bias", rule=BIAS, write=written_bias),
        _BUDGET,
        STRUCTURED_OUTPUTS,
        *(read_only(entry) for entry in GUIDED),
        read_only(constraint("guided_json_object", "json_object", rule=OneOf((True,)))),
    ],
    unsupported=VLLM_SAMPLING,
)


def from_vllm(data: Mapping[str, Any]) -> SamplingParams:
    """The parameters that the fields of vLLM's `SamplingParams` ask for, in the meaning of its newer sampler.

    Absent fields take vLLM's defaults (16 tokens); a seed of -1 is none. Temperatures are not raised to 0.01, as vLLM
    does. Raises DialectError (a ParamsError) with vLLM's name.
    """
    return VLLM.read(data).params


def to_vllm(params: SamplingParams, *, lossy: bool = False) -> Any:
    """Arguments for vLLM's `SamplingParams` as plain values; those at vLLM's defaults are left out.

    A field that vLLM cannot express raises ParamsError, or with `lossy` the result is `(dict, names lost)`.
    """
    return VLLM.write(params, lossy=lossy)
