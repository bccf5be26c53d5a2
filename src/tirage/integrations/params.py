"""What a request gives to an engine for tirage, as SamplingParams that only draw."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tirage.compiled_params import compiled
from tirage.errors import ParamsError
from tirage.fields.record import specs
from tirage.fields.rules import shown
from tirage.params import SamplingParams, require_tokenized
from tirage.sampling_batch import needs_mask

ENGINE_FIELDS = frozenset((
    "n",
    "best_of",
    "stop",
    "stop_token_ids",
    "stop_pattern",
    "ignore_eos",
    "max_tokens",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "detokenize",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "include_stop_str_in_output",
    "output_kind",
    "truncate_prompt_tokens",
    "guided_decoding",
    "close_grammar",
    "forcing",
    "reasoning_parser",
    "thinking_budget",
    "logprob_token_ids",
    "logprobs_mode",
    "return_kept",
    "max_kept_ids",
))
"""Fields that no draw reads: the engine that runs the model has its own for each."""


def read_params(given: Any, engine: str, *, tokenizer: Any = None) -> SamplingParams:
    """The SamplingParams that a request of `engine` gives: an object, a mapping of fields, or that as JSON text.

    With a `tokenizer`, words in `bad_words` and DRY breakers become ids; without one they are refused. Raises
    ParamsError for an unknown field, for a value that breaks its rule, and for one that the engine must be asked for.
    """
    params = _parsed(given)
    for name in sorted(ENGINE_FIELDS):
        spec = specs(SamplingParams)[name]
        value = getattr(params, name)
        if value != spec.default and not spec.is_off(value):
            raise ParamsError(f"{name} must be left out here, got {shown(value)}; give it to {engine} itself")
    if tokenizer is not None:
        params = params.update_with_tokenizer(tokenizer)
    require_tokenized(params)
    if name := needs_mask(params):
        raise ParamsError(f"{name} must be left out here; {engine} gives no mask of the tokens that it allows")
    return params


def readers(params: SamplingParams) -> tuple[str, ...]:
    """The names of the parameters whose draw reads the tokens so far, not only their number."""
    found = compiled(params.unwrapped)
    if found.carrier is not None:
        return (*found.readers, next(iter(found.carrier.fields)))
    return found.readers or ("logits_processors",) * bool(params.logits_processors)


def _parsed(given: Any) -> SamplingParams:
    if isinstance(given, SamplingParams):
        return given
    if isinstance(given, (str, bytes)):
        return SamplingParams.from_json(given)
    if isinstance(given, Mapping):
        return SamplingParams.from_dict(given)
    raise ParamsError(f"tirage must be given fields of SamplingParams, got {shown(given)}")
