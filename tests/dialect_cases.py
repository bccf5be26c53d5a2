"""For every field of every dialect some values that differ from its default, and what must come with them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from tirage.dialects import DIALECTS, Dialect
from tirage.dialects.hf import WARPERS
from tirage.operators import OPERATORS
from tirage.params import RequestOutputKind, SamplingParams

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TAG = '{"structures": [], "triggers": ["<a"]}'
_COMMON: dict[str, list[Any]] = {
    "n": [2, 7],
    "presence_penalty": [0.5, -2],
    "frequency_penalty": [2.0, -0.25],
    "repetition_penalty": [1.2, 0.5],
    "temperature": [0, 0.25, 2.0],
    "top_p": [0.5, 0.125],
    "top_k": [5, 1],
    "min_p": [0.25, 1.0],
    "seed": [7, 0, 2**31],
    "stop": [["a", "b"], "end"],
    "stop_token_ids": [[3], [0, 4]],
    "stop_regex": ["[0-9]{3}", ["a+", "b|c"]],
    "ignore_eos": [True],
    "max_tokens": [5, 0],
    "min_tokens": [2, 5],
    "logprobs": [3, 0],
    "prompt_logprobs": [0, 2],
    "logprob_token_ids": [[1, 2]],
    "detokenize": [False],
    "skip_special_tokens": [False],
    "spaces_between_special_tokens": [False],
    "include_stop_str_in_output": [True],
    "truncate_prompt_tokens": [9],
    "thinking_token_budget": [0, 64],
    "bad_words": [["x", "yy"]],
    "bad_words_token_ids": [[1, 2]],
    "allowed_token_ids": [[1, 2, 3]],
    "logit_bias": [{"3": 1.5, "4": -100}],
    "json_schema": [SCHEMA],
    "guided_json": [SCHEMA, '{"type": "integer"}'],
    "guided_regex": ["a+b"],
    "guided_choice": [["yes", "no"]],
    "guided_grammar": ['root ::= "a"'],
    "grammar": ['root ::= "a" | "b"'],
    "regex": ["(France|England)"],
    "ebnf": ['root ::= "Hello"'],
    "structural_tag": [TAG],
    "typical_p": [0.5],
    "epsilon_cutoff": [0.125],
    "eta_cutoff": [0.25],
    "top_h": [0.5],
    "no_repeat_ngram_size": [3],
    "dry_multiplier": [0.8],
    "dry_base": [2.0],
    "dry_allowed_length": [4],
    "dry_sequence_breakers": [["\n", ";"]],
    "xtc_probability": [0.5],
    "xtc_threshold": [0.25],
    "dynatemp_range": [0.5],
    "dynatemp_exponent": [2.0],
    "response_format": [
        {"type": "json_object"},
        {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}},
    ],
}


EXAMPLES = {name: list(tries[:1]) for operator in OPERATORS.values() for name, tries in operator.examples.items()}


@dataclass(frozen=True)
class Values:
    """Values for the fields of one dialect, where it does not take the common ones, and fields that others need."""

    own: dict[str, list[Any]]
    needs: dict[str, dict[str, Any]]


_CHAT = {"logprobs": [True], "top_logprobs": [3], "max_completion_tokens": [5], "top_p": [0.5, 0]}
_NEEDS_LOGPROBS = {"top_logprobs": {"logprobs": True}}

VALUES: dict[str, Values] = {
    "sglang": Values(
        {
            "max_new_tokens": [5, 0, None],
            "min_new_tokens": [3],
            "sampling_seed": [7, -(2**63)],
            "no_stop_trim": [True],
            "json_schema": ['{"type": "integer"}', "$$ANY$$"],
            "custom_params": [{"token_id": 5}],
            "repetition_penalty": [2.0, 0.5],
        },
        {},
    ),
    "openai": Values(_CHAT, _NEEDS_LOGPROBS),
    "openai-completions": Values({"best_of": [2, 5], "top_p": [0.5, 0]}, {}),
    "anthropic": Values(
        {
            "stop_sequences": [["a", "b"]],
            "temperature": [0, 0.25, 0.75],
            "top_p": [0.5, 0],
            "thinking": [{"type": "enabled", "budget_tokens": 64}, {"type": "enabled", "budget_tokens": 1}],
            "output_config": [{"format": {"type": "json_schema", "schema": SCHEMA}}],
        },
        {},
    ),
    "vllm": Values(
        {
            "max_tokens": [5, None],
            "output_kind": [1, "FINAL_ONLY", RequestOutputKind.DELTA],
            "structured_outputs": [{"regex": "a+"}, {"json": SCHEMA, "disable_any_whitespace": True}],
            "guided_json_object": [True],
        },
        {},
    ),
    "hf": Values(
        {
            "max_new_tokens": [5],
            "min_new_tokens": [3],
            "do_sample": [True],
            "temperature": [0.5, 2.0],
            "bad_words_ids": [[[1], [2, 3]]],
            "sequence_bias": [[[[3], 1.5]], {(4,): -1.0}, [[[3, 5], 2.0], [[4], -1.0]]],
            "num_return_sequences": [3],
            "stop_strings": ["a", ["a", "b"]],
            "eos_token_id": [3, [4, 5]],
            "watermarking_config": [{"bias": 2.5}, {"keys": [1, 2, 3], "ngram_len": 4}],
        },
        {"watermarking_config": {"do_sample": True}} | {name: {"do_sample": True} for name in WARPERS},
    ),
    "fastdeploy": Values(
        {
            **_CHAT,
            "response_format": [*_COMMON["response_format"], {"type": "structural_tag", **json.loads(TAG)}],
            "sampling_method": ["base_non_truncated", "air", "rejection"],
            "top_p": [0.5, 1.0, 0],
            "logits_processors_args": [
                {"logit_bias": {"5": 2.0}},
                {"thinking_budget": 3, "think_start_id": 1, "think_end_id": 2},
            ],
            "temp_scaled_logprobs": [True],
            "top_p_normalized_logprobs": [True],
        },
        {**_NEEDS_LOGPROBS, "top_k": {"sampling_method": "rejection"}},
    ),
    "llamacpp": Values(
        {
            "n_predict": [5, 0],
            "temperature": [0, -1, 1.0],
            "top_p": [0.5, 0],
            "top_n_sigma": [1.5],
            "repeat_penalty": [1.3],
            "repeat_last_n": [-1, 5],
            "dry_penalty_last_n": [20],
            "seed": [7, 2**32 - 2],
            "logit_bias": [[[3, 1.5], [4, False]], {"5": 1.0}],
            "n_probs": [3],
            "logprobs": [3],
            "n_cmpl": [2],
            "max_tokens": [5, 0],
            "max_completion_tokens": [5],
            "post_sampling_probs": [True],
            "stop": [["a", "b"]],
        },
        {},
    ),
    "mlx": Values(
        {
            "temp": [0.5, 1.0],
            "top_p": [0.5, 0.125],
            "max_tokens": [5, -1],
            "xtc_special_tokens": [[3, 4]],
            "repetition_penalty": [1.2, 0.5],
            "repetition_context_size": [5],
            "presence_context_size": [7],
            "frequency_context_size": [64],
        },
        {
            "repetition_context_size": {"repetition_penalty": 1.5},
            "presence_context_size": {"presence_penalty": 0.5},
            "frequency_context_size": {"frequency_penalty": 0.5},
        },
    ),
    "easydel": Values(
        {
            "max_tokens": [5, -1, None],
            "stop_pattern": ["[0-9]{3}"],
            "best_of": [3],
            "logprobs": [3, True],
            "prompt_logprobs": [0, True],
            "skip_special_tokens": [True],
            "output_kind": [1, "FINAL_ONLY", RequestOutputKind.DELTA],
            "guided_decoding": [{"regex": "a+"}, {"json": SCHEMA, "disable_any_whitespace": True}],
        },
        {},
    ),
    "gemma": Values(
        {
            "sampling": ["RandomSampling", "TopkSampling", "TopPSampling"],
            "temperature": [0, 0.25, 2.0],
            "k": [5, 20],
            "p": [0.5, 0, 1.5],
            "max_new_tokens": [5],
            "stop_tokens": [[3, 4]],
            "forbidden_tokens": [[5]],
            "rng": [7, -3],
        },
        {
            "temperature": {"sampling": "RandomSampling"},
            "k": {"sampling": "TopkSampling"},
            "p": {"sampling": "TopPSampling"},
        },
    ),
    "mindie": Values({"do_sample": [True], "top_p": [0.5, 0], "seed": [7, 0]}, {"temperature": {"do_sample": True}}),
}


@dataclass(frozen=True)
class Case:
    """A registered dialect with the values that its fields are tried with; a field without any is a KeyError."""

    name: str
    needs: dict[str, dict[str, Any]]
    values: dict[str, list[Any]]

    @property
    def dialect(self) -> Dialect:
        return DIALECTS[self.name].dialect

    def read(self, data: Any) -> SamplingParams:
        return DIALECTS[self.name].read(data)

    def write(self, params: SamplingParams, *, lossy: bool = False) -> Any:
        return DIALECTS[self.name].write(params, lossy=lossy)


def case_of(name: str, fields: Iterable[str]) -> Case:
    """The case of a dialect with these fields."""
    given = VALUES[name]
    return Case(name, given.needs, {field: (EXAMPLES | _COMMON | given.own)[field] for field in fields})


CASES = {name: case_of(name, each.dialect.entries) for name, each in DIALECTS.items()}
