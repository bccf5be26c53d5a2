"""The groups of the fields of SamplingParams, as the command line and the pages list them."""

from __future__ import annotations

from collections.abc import Mapping

from tirage.fields.record import specs
from tirage.params.sampling import SamplingParams
from tirage.semantics import EDITS

SAMPLING, PENALTIES = "Sampling", "Penalties and biases"
_NAMED: Mapping[str, str] = {
    SAMPLING: "n best_of seed semantics",
    PENALTIES: "dry_base dry_allowed_length dry_last_n dry_sequence_breakers dry_breaker_token_ids",
    "Words and tokens": "bad_words bad_words_level bad_words_token_ids allowed_token_ids",
    "End and form of the text": (
        "max_tokens min_tokens stop stop_token_ids stop_pattern include_stop_str_in_output ignore_eos "
        "skip_special_tokens spaces_between_special_tokens detokenize truncate_prompt_tokens output_kind"
    ),
    "Log-probabilities": "logprobs prompt_logprobs logprob_token_ids logprobs_mode return_kept max_kept_ids",
    "Watermark": "watermark",
    "Guided decoding": "guided_decoding close_grammar forcing reasoning_parser thinking_budget",
}
_GROUP_OF = {name: group for group, names in _NAMED.items() for name in names.split()}


def group_of(name: str) -> str:
    """The group of a field of SamplingParams: by its name, else by the stage that it belongs to."""
    if name in _GROUP_OF:
        return _GROUP_OF[name]
    return PENALTIES if specs(SamplingParams)[name].stage in EDITS else SAMPLING


def grouped() -> Mapping[str, tuple[str, ...]]:
    """The names of the public fields by group, both in the order of the pages."""
    found: dict[str, list[str]] = {group: [] for group in _NAMED}
    for name, spec in specs(SamplingParams).items():
        if spec.public:
            found[group_of(name)].append(name)
    return {group: tuple(names) for group, names in found.items()}
