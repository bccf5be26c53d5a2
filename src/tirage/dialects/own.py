"""What every route of ours takes besides its engine's fields: our own parameters, under our names."""

from __future__ import annotations

from tirage.dialects.table import Dialect, same
from tirage.params import FIELDS

_ELSEWHERE = {
    "guided_decoding": "routes spell constraints themselves",
    "extra_args": "a processor takes its arguments with its name",
    "logits_processors": "routes name processors themselves",
    "output_kind": "a route has its own way of delivery",
    "prompt_logprobs": "routes spell prompt logprobs themselves",
    "logprobs": "routes spell logprobs themselves",
    "logprob_token_ids": "routes spell logprobs themselves",
    "max_tokens": "routes differ in its default",
    "stop_pattern": "routes take stop_regex",
}
"""Fields of ours that every route has under another name, or not at all."""

OWN = Dialect.of(
    "tirage",
    "canonical",
    [same(name) for name, spec in FIELDS.items() if spec.public and name not in _ELSEWHERE],
)
"""Fields of SamplingParams that a route may join to its dialect: `semantics` and what its engine does not have."""
