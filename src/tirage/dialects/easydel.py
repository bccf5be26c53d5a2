"""EasyDeL: the fields of its `SamplingParams`, as version 0.3 reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tirage.dialects.table import Dialect, FieldMapping, Fields, listed, same
from tirage.dialects.unsupported import EASYDEL_SAMPLING
from tirage.dialects.vllm import OUTPUT_KIND, SEED
from tirage.fields.rules import BrokenRuleError, Custom, Int, shown
from tirage.params import GuidedDecodingParams, SamplingParams, specs

_CONSTRAINT = tuple(specs(GuidedDecodingParams))
_OWN_NOTES = ("schema", "backend_was_auto")


def _count(value: Any) -> Any:
    plain = (1 if value else None) if isinstance(value, bool) else value
    return Int(low=0, high=1 << 20, optional=True).check(plain)


_COUNT = Custom("an integer in [0, 1048576], a bool or None", _count, lambda value: value, lambda plain: plain)


def _guided(value: Any) -> Any:
    if not isinstance(value, Mapping):
        raise BrokenRuleError(f"an object of {', '.join(_CONSTRAINT)}", value)
    for name in value:
        if name not in _CONSTRAINT:
            raise BrokenRuleError(f"an object of {', '.join(_CONSTRAINT)}", value, f".{shown(name)}")
    return value


def _read_guided(value: Any) -> Fields:
    given = {name: item for name, item in (value or {}).items() if item is not None}
    return {"guided_decoding": GuidedDecodingParams(**given) if given else None}


def _write_guided(params: SamplingParams) -> Any:
    guided = params.guided_decoding
    if guided is None:
        return None
    plain = guided.to_dict()
    return {name: plain[name] for name in plain if name not in _OWN_NOTES and plain[name] not in (None, False)}


_GUIDED = FieldMapping(
    name="guided_decoding",
    rule=Custom("an object of GuidedDecodingParams", _guided, lambda value: value, lambda plain: plain),
    default=None,
    into=_read_guided,
    out_of=_write_guided,
    ours=("guided_decoding",),
    meaning="a constraint that the text must satisfy",
)


EASYDEL = Dialect.of(
    "EasyDeL",
    "easydel",
    [
        same("n"),
        same("best_of"),
        same("presence_penalty"),
        same("frequency_penalty"),
        same("repetition_penalty"),
        same("temperature"),
        same("top_p"),
        same("min_p"),
        same("top_k"),
        SEED,
        listed("stop"),
        listed("stop_token_ids"),
        same("stop_pattern"),
        listed("bad_words"),
        same("ignore_eos"),
        same(
            "max_tokens",
            rule=Int(low=-1, optional=True),
            null=None,
            read=lambda limit: None if limit == -1 else limit,
        ),
        same("min_tokens"),
        same("logprobs", rule=_COUNT),
        same("prompt_logprobs", rule=_COUNT),
        same("detokenize"),
        same("skip_special_tokens", default=False),
        same("spaces_between_special_tokens"),
        same("include_stop_str_in_output"),
        OUTPUT_KIND,
        same("truncate_prompt_tokens"),
        _GUIDED,
        same("logit_bias"),
        same("allowed_token_ids"),
    ],
    unsupported=EASYDEL_SAMPLING,
)


def from_easydel(data: Mapping[str, Any]) -> SamplingParams:
    """The parameters that the fields of EasyDeL's `SamplingParams` ask for, in EasyDeL's meaning.

    Absent fields take EasyDeL's defaults (16 tokens, special tokens shown); a seed of -1 is none, a `max_tokens` of -1
    no limit, `logprobs` true is 1. Raises DialectError (a ParamsError) with EasyDeL's name. `tirage.compat.easydel` has
    the class itself.
    """
    return EASYDEL.read(data).params


def to_easydel(params: SamplingParams, *, lossy: bool = False) -> Any:
    """Arguments for EasyDeL's `SamplingParams` as plain values; those at EasyDeL's defaults are left out.

    A field that EasyDeL cannot express raises ParamsError, or with `lossy` the result is `(dict, names lost)`.
    """
    return EASYDEL.write(params, lossy=lossy)
