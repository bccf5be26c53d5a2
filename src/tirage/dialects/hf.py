"""Hugging Face transformers: the sampling fields of `GenerationConfig` and of `generate`, as version 5 reads them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tirage.dialects.table import Dialect, DialectError, FieldMapping, Fields, Inexpressible, listed, same
from tirage.dialects.unsupported import TRANSFORMERS
from tirage.fields.rules import Bool, BrokenRuleError, Custom, Float, Ids, Int, SequenceBias, Texts, shown
from tirage.params import SamplingParams
from tirage.watermarks import Watermark
from tirage.watermarks.config import kind_of, read_watermark

WARPERS = ("temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")
"""Fields that transformers reads only when it samples."""

DEFAULT_TOP_K = 50
DEFAULT_NEW_TOKENS = 20


def _sampling(params: SamplingParams, name: str) -> Any:
    if params.temperature == 0.0:
        raise Inexpressible
    return getattr(params, name)


def when_sampling(name: str, default: Any, rule: Any = None) -> FieldMapping:
    """The entry of a field that an engine reads only when it samples: a greedy request is written without it."""
    entry = same(name, default=default, rule=rule)
    return FieldMapping(
        name=name,
        rule=entry.rule,
        default=default,
        into=entry.into,
        out_of=lambda params: _sampling(params, name),
        ours=entry.ours,
        meaning=entry.meaning,
    )


def _adjust(given: Mapping[str, Any], ours: Fields) -> Fields:
    found = {**ours, "include_stop_str_in_output": bool(ours["stop"])}
    if given.get("do_sample"):
        return found
    for name in WARPERS:
        if name in given:
            raise DialectError(
                f"{name} must go with do_sample=True, got {shown(given[name])} without; transformers would ignore it",
                name,
            )
    return {**found, "temperature": 0.0, "top_k": 0}


def _eos(value: Any) -> Any:
    return Ids().check([value] if isinstance(value, int) and not isinstance(value, bool) else value)


def _read_bias(pairs: Any) -> Fields:
    """Biases of single tokens are `logit_bias`, which other engines have too."""
    alone = {ids[0]: bias for ids, bias in pairs or () if len(ids) == 1}
    longer = tuple((ids, bias) for ids, bias in pairs or () if len(ids) > 1)
    return {"logit_bias": alone or None, "sequence_bias": longer or None}


def _write_bias(params: SamplingParams) -> list[Any] | None:
    alone = [[[token], bias] for token, bias in (params.logit_bias or {}).items()]
    listed = [[list(ids), bias] for ids, bias in params.sequence_bias or ()]
    if {ids[0] for ids, _ in listed if len(ids) == 1} & set(params.logit_bias or ()):
        raise Inexpressible
    return [*alone, *listed] or None


_KGW = {"hashing_key": "key"}
_SYNTHID = {"keys": "key"}


def _watermark(value: Any) -> Watermark | None:
    """The Watermark of a WatermarkingConfig, a SynthIDTextWatermarkingConfig, or the dict of either."""
    plain = getattr(value, "to_dict", lambda: value)()
    if plain is None or isinstance(plain, Watermark):
        return plain
    if not isinstance(plain, Mapping):
        raise BrokenRuleError(
            "a WatermarkingConfig, a SynthIDTextWatermarkingConfig or the dict of one", kind_of(plain)
        )
    synthid = "keys" in plain or "ngram_len" in plain
    names, options = (_SYNTHID, {"scheme": "synthid"}) if synthid else (_KGW, {"scheme": "kgw", "key": 15485863})
    if plain.get("debug_mode"):
        raise BrokenRuleError("without debug_mode, which forgets the logits", True, ".debug_mode")
    options |= {names.get(name, name): item for name, item in plain.items() if name != "debug_mode"}
    return read_watermark(options)


def _write_watermark(mark: Watermark | None) -> dict[str, Any] | None:
    if mark is None:
        return None
    if mark.scheme == "gumbel":
        raise Inexpressible
    plain = {name: value for name, value in mark.to_dict().items() if name != "scheme" and value is not None}
    key = plain.pop("key")
    if mark.scheme == "kgw":
        return {**plain, "hashing_key": key}
    return {**plain, "keys": key}


HF = Dialect.of(
    "transformers",
    "hf",
    [
        same("max_new_tokens", "max_tokens", default=DEFAULT_NEW_TOKENS, rule=Int(low=0)),
        same("min_new_tokens", "min_tokens"),
        FieldMapping(
            name="do_sample",
            rule=Bool(),
            default=False,
            into=lambda value: {},
            out_of=lambda params: params.temperature > 0,
            ours=("temperature",),
            meaning="draw the next token; otherwise the likeliest is taken",
        ),
        when_sampling("temperature", 1.0, Float(low=1e-20, high=1e20)),
        when_sampling("top_k", DEFAULT_TOP_K, Int(low=0)),
        when_sampling("top_p", 1.0),
        when_sampling("min_p", 0.0),
        when_sampling("typical_p", 1.0),
        when_sampling("epsilon_cutoff", 0.0),
        when_sampling("eta_cutoff", 0.0),
        when_sampling("top_h", 0.0),
        same("repetition_penalty"),
        same("no_repeat_ngram_size"),
        listed("bad_words_ids", "bad_words_token_ids"),
        FieldMapping(
            name="sequence_bias",
            rule=SequenceBias(),
            default=None,
            into=_read_bias,
            out_of=_write_bias,
            ours=("logit_bias", "sequence_bias"),
            meaning="added to the logit of the token that would complete a sequence",
        ),
        same("num_return_sequences", "n"),
        same(
            "watermarking_config",
            "watermark",
            rule=Custom("a watermarking config", _watermark, lambda value: value, lambda plain: plain),
            write=_write_watermark,
            default=None,
        ),
        listed("stop_strings", "stop", rule=Texts()),
        listed("eos_token_id", "eos_token_ids", rule=Custom("a token id or a list", _eos, list, lambda plain: plain)),
    ],
    adjust=_adjust,
    unsupported=TRANSFORMERS,
)


def from_hf(data: Any) -> SamplingParams:
    """The parameters that arguments of transformers' `generate`, or a `GenerationConfig`, ask for.

    Absent fields take the defaults of transformers: no sampling, 20 new tokens, and `top_k` 50 once `do_sample` is
    True. Null is as absent, for fields that have no part here too. Fields that transformers reads only when it samples
    are refused without `do_sample`. Raises DialectError (a ParamsError) with the field's name.
    """
    plain: Any = getattr(data, "to_dict", lambda: data)()
    if not isinstance(plain, Mapping):
        return HF.read(plain).params
    return HF.read({name: value for name, value in plain.items() if value is not None and name not in NOTES}).params


NOTES = ("transformers_version", "_from_model_config", "bos_token_id", "pad_token_id")
"""What a saved GenerationConfig holds besides parameters of generation."""


def to_hf(params: SamplingParams, *, lossy: bool = False) -> Any:
    """Arguments for transformers' `generate`; those at its defaults are left out.

    A field that transformers cannot express raises ParamsError, or with `lossy` the result is `(dict, names lost)`.
    """
    return HF.write(params, lossy=lossy)
