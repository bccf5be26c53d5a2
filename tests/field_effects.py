"""For every field that a route takes, a value that changes its answer; or where else its effect is tested.

`EFFECTS` is what the tests of effects run and what `tests/peers/fields/*.csv` name. A value may be a function of the
token ids that the plain request draws.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from string import ascii_letters
from typing import Any

from tirage.operators import OPERATORS

GENERATE, SAMPLING, CHAT, COMPLETIONS = "/generate", "sampling_params", "/v1/chat/completions", "/v1/completions"
MESSAGES, RESPONSES = "/v1/messages", "/v1/responses"
PLACES = (GENERATE, SAMPLING, CHAT, COMPLETIONS, MESSAGES, RESPONSES)

EOS = 2
"""An end of sequence of the bundled model."""

SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False}
SCHEMA_TEXT = '{"type": "boolean"}'
_CONTENT = {"type": "json_schema", "json_schema": {"type": "boolean"}}
TAGS = {"type": "structural_tag", "format": {"type": "tag", "begin": "<n>", "end": "</n>", "content": _CONTENT}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


@dataclass(frozen=True, kw_only=True)
class Effect:
    """A value of a field, and the fields that stand in both requests: with it, and without.

    `whole` is false for a field that only a stream has a use for, `streamed` for one that is refused in a stream.
    """

    value: Any
    beside: Mapping[str, Any] = field(default_factory=dict)
    whole: bool = True
    streamed: bool = True


@dataclass(frozen=True)
class Elsewhere:
    """The test that shows a field's effect, whole and streamed, where it takes more than one request to one model."""

    test: str


_MODELS = "test_effects_of_models.py"
_PROCESSOR = Elsewhere(f"{_MODELS}::test_a_processor_is_named_on_every_route")
_ADAPTER = Elsewhere("test_sglang_examples.py::test_an_adapter_is_named_on_every_route")
_SALT = Elsewhere("test_server_tenants.py::test_a_salt_parts_the_prefixes_of_one_key_on_every_route")
_ABORT = Elsewhere(f"{_MODELS}::test_a_request_is_aborted_by_its_name_on_every_route")
_TEMPLATE = Elsewhere(f"{_MODELS}::test_variables_reach_the_chat_template")
_PICTURES = "test_sglang_examples.py"


def set_to(value: Any, /, **beside: Any) -> Effect:
    return Effect(value=value, beside=beside)


def third(ids: Sequence[int]) -> int:
    return ids[3]


_OFTEN = {"temperature": 0.0, "logit_bias": {str(token): 50.0 for token in range(300, 312)}}
"""One of a dozen tokens is drawn again and again."""
_REPEATED = {"semantics": "canonical", **_OFTEN}
_XTC = {"semantics": "canonical", "xtc_probability": 1.0}
_END = {"logit_bias": {str(EOS): 100.0}}
_FEW = {"semantics": "canonical", "temperature": 2.0}

_THOUGHTS = {"regex": "[0-9]{3}", "reasoning_parser": "think", "logit_bias": {"291": 100.0}}
"""The text begins with `<`, and so with reasoning."""

_SHARED: dict[str, Effect | Elsewhere] = {
    **{name: set_to(tries[-1], **_FEW) for operator in OPERATORS.values() for name, tries in operator.examples.items()},
    "temperature": set_to(0.0),
    "top_p": set_to(0.05),
    "top_k": set_to(1),
    "min_p": set_to(1.0),
    "frequency_penalty": set_to(2.0, **_OFTEN),
    "presence_penalty": set_to(2.0, logit_bias=_OFTEN["logit_bias"]),
    "repetition_penalty": set_to(0.1),
    "n": set_to(2),
    "stop": set_to(["e"]),
    "stop_token_ids": set_to(lambda ids: [third(ids)]),
    "stop_regex": set_to("[aeiou]"),
    "no_stop_trim": set_to(True, stop=["e"]),
    "include_stop_str_in_output": set_to(True, stop=["e"]),
    "logit_bias": set_to({"300": 100.0}),
    "ignore_eos": set_to(True, **_END),
    "min_tokens": set_to(3, **_END),
    "skip_special_tokens": set_to(False, ignore_eos=True, **_END),
    "spaces_between_special_tokens": Elsewhere(
        "test_detokenizer.py::test_the_space_between_two_special_tokens_is_left_out_on_request"
    ),
    "detokenize": set_to(False),
    "bad_words": set_to(["a", "e", "o", "i"]),
    "bad_words_level": set_to("sequence", bad_words=["an", "it"]),
    "bad_words_token_ids": set_to(lambda ids: [third(ids)]),
    "allowed_token_ids": set_to([300, 301]),
    "truncate_prompt_tokens": set_to(2),
    "semantics": set_to("easydel", top_p=0.5, min_p=0.3, temperature=2.0),
    "close_grammar": set_to(True, regex="[a-z ]{20,200}[0-9]{2}"),
    "typical_p": set_to(0.05, **_FEW),
    "epsilon_cutoff": set_to(0.3, **_FEW),
    "eta_cutoff": set_to(0.9, **_FEW),
    "top_n_sigma": set_to(0.1, **_FEW),
    "top_h": set_to(0.05, **_FEW),
    "xtc_probability": set_to(1.0, semantics="canonical", xtc_threshold=0.01),
    "xtc_threshold": set_to(0.01, **_XTC),
    "watermark": set_to({"scheme": "kgw", "key": 15485863, "bias": 8.0}),
    "xtc_protected_ids": set_to(list(range(1536)), **_XTC, xtc_threshold=0.01),
    "adaptive_target": set_to(0.1, **_FEW),
    "adaptive_decay": set_to(0.0, **_FEW, adaptive_target=0.1),
    "mirostat": set_to(2, **_FEW, mirostat_tau=0.5),
    "mirostat_tau": set_to(0.1, **_FEW, mirostat=2),
    "mirostat_eta": set_to(10.0, **_FEW, mirostat=2, mirostat_tau=2.0),
    "no_repeat_ngram_size": set_to(1, **_REPEATED),
    "dry_multiplier": set_to(5.0, **_REPEATED),
    "dry_base": set_to(8.0, **_REPEATED, dry_multiplier=0.1),
    "dry_allowed_length": set_to(12, **_REPEATED, dry_multiplier=5.0),
    "dry_last_n": set_to(1, **_REPEATED, dry_multiplier=5.0),
    "dry_sequence_breakers": set_to([*ascii_letters], **_REPEATED, dry_multiplier=5.0),
    "dry_breaker_token_ids": set_to(list(range(300, 312)), **_REPEATED, dry_multiplier=5.0),
    "dynatemp_range": set_to(0.9, semantics="canonical"),
    "dynatemp_exponent": set_to(5.0, semantics="canonical", temperature=2.0, dynatemp_range=2.0),
    "sequence_bias": set_to([[[300], 100.0]], semantics="canonical"),
    "min_keep": set_to(1000, **_FEW, top_p=0.01),
    "smoothing_curve": set_to(3.0, **_FEW, smoothing_factor=0.05),
    "json_schema": set_to(SCHEMA_TEXT),
    "regex": set_to("[0-9]{3}"),
    "ebnf": set_to('root ::= "yes" | "no"'),
    "structural_tag": set_to(json.dumps(TAGS)),
    "custom_params": _PROCESSOR,
    "reasoning_parser": set_to("think", regex="[0-9]{3}", logit_bias={"291": 100.0}),
    "thinking_budget": set_to(2, **_THOUGHTS),
    "return_kept": set_to(True),
    "max_kept_ids": Elsewhere("test_records_served.py::test_a_law_too_wide_to_record_is_named_on_every_route"),
    "forcing": set_to("canonical", regex="(an old|a red) fox (saw|met) [a-z]{3}"),
}

_SEARCH = {"use_beam_search": True, "beam_width": 3, "n": 3, "stop": ["e"]}
"""Some of its hypotheses end early, others go on."""
_STREAMS = Elsewhere("test_openai.py::test_a_chat_chunk_has_openais_keys")

_OPENAI: dict[str, Effect | Elsewhere] = {
    **_SHARED,
    "max_tokens": set_to(2),
    "seed": set_to(7),
    "best_of": Effect(value=20, beside={"temperature": 2.0, "seed": 5}, streamed=False),
    "prompt_logprobs": Effect(value=1, streamed=False),
    "thinking_token_budget": set_to(2, **_THOUGHTS),
    "logits_processors_args": set_to({"logit_bias": {"300": 100.0}}),
    "sampling_method": set_to("air"),
    "temp_scaled_logprobs": set_to(True, temperature=0.5, logprobs=True),
    "top_p_normalized_logprobs": set_to(True, top_p=0.5, logprobs=True),
    "logprobs": set_to(True),
    "logprob_token_ids": set_to([300, 5], logprobs=True),
    "logprobs_mode": set_to("sampled", top_p=0.5, logprobs=True),
    "guided_json": set_to(SCHEMA),
    "guided_regex": set_to("[0-9]{3}"),
    "guided_choice": set_to(["yes", "no"]),
    "guided_grammar": set_to('root ::= "yes" | "no"'),
    "guided_json_object": set_to(True),
    "structured_outputs": set_to({"regex": "[0-9]{3}"}),
    "response_format": set_to({"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}),
    "return_token_ids": set_to(True),
    "return_effective_params": set_to(True),
    "return_tokens_as_token_ids": set_to(True, logprobs=True),
    "max_streaming_response_tokens": Effect(value=5, whole=False),
    "stream_interval": Effect(value=5, whole=False),
    "stream_options": Effect(value={"include_usage": True}, whole=False),
    "use_beam_search": set_to(True, n=2),
    "beam_width": set_to(6, use_beam_search=True),
    "length_penalty": set_to(-3.0, **_SEARCH),
    "early_stopping": set_to(True, **_SEARCH),
    "stream": _STREAMS,
    "model": _ADAPTER,
    "lora_path": _ADAPTER,
    "cache_salt": _SALT,
    "rid": _ABORT,
    "request_id": _ABORT,
    "custom_logit_processor": _PROCESSOR,
    "custom_params": _PROCESSOR,
    "extra_body": set_to({"return_token_ids": True}),
}

_SAID = [{"role": "user", "content": "How old are you"}, {"role": "assistant", "content": "I am"}]
_THINKING = Elsewhere("test_fastdeploy.py::test_reasoning_ends_within_its_budget")
_REASONING = Elsewhere("test_reasoning.py::test_streamed_reasoning_is_the_reasoning")

_KEPT = "test_responses_kept.py"
_THOUGHT = Elsewhere("test_responses_reasoning.py::test_reasoning_is_an_item_of_its_own")
_LOGPROBS = ["message.output_text.logprobs"]
FLAT_TOOL = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
_NO_RESPONSE = {
    "n", "max_tokens", "logprobs", "response_format", "prompt_logprobs", "use_beam_search", "beam_width",
    "length_penalty", "early_stopping", "stream_options", "return_kept", "max_kept_ids",
}  # fmt: skip
_RESPONSES: dict[str, Effect | Elsewhere] = {
    name: set_to(effect.value, **{n: v for n, v in effect.beside.items() if n != "logprobs"}, include=_LOGPROBS)
    if isinstance(effect, Effect) and "logprobs" in effect.beside
    else effect
    for name, effect in _OPENAI.items()
    if name not in _NO_RESPONSE
}
_FORCED = Elsewhere(f"{_MODELS}::test_a_processor_is_named_for_a_message")
_ANTHROPIC_TOOL = {"name": "f", "input_schema": {"type": "object", "properties": {}}}
_ANTHROPIC: dict[str, Effect | Elsewhere] = {
    **{name: effect for name, effect in _OPENAI.items() if name not in {
        "n", "logprobs", "logprob_token_ids", "logprobs_mode", "prompt_logprobs", "response_format", "return_token_ids",
        "return_effective_params", "return_tokens_as_token_ids", "temp_scaled_logprobs", "top_p_normalized_logprobs",
        "stream_options", "use_beam_search", "beam_width", "length_penalty", "early_stopping",
        "return_kept", "max_kept_ids",
    }},
    "stop_sequences": set_to(["e"]),
    "messages": set_to([{"role": "user", "content": "The dog"}]),
    "system": set_to("The dog", temperature=2.0),
    "tools": set_to([_ANTHROPIC_TOOL], temperature=2.0),
    "tool_choice": set_to({"type": "any"}, tools=[_ANTHROPIC_TOOL]),
    "thinking": set_to({"type": "enabled", "budget_tokens": 2}, **_THOUGHTS),
    "output_config": set_to({"format": {"type": "json_schema", "schema": SCHEMA}}),
    "output_format": set_to({"type": "json_schema", "schema": SCHEMA}),
    "extra_body": set_to({"top_k": 1}),
    "chat_template_kwargs": Elsewhere(f"{_MODELS}::test_variables_reach_the_template_of_a_message"),
    "stream": Elsewhere("test_messages.py::test_a_stream_has_anthropics_events"),
    "custom_logit_processor": _FORCED,
    "custom_params": _FORCED,
}  # fmt: skip

EFFECTS: dict[str, dict[str, Effect | Elsewhere]] = {
    GENERATE: {
        "text": set_to("The dog"),
        "input_ids": set_to([1, 500, 600]),
        "output_ids": set_to([500, 600]),
        "input_embeds": Elsewhere(f"{_PICTURES}::test_embeddings_stand_for_a_prompt"),
        "image_data": Elsewhere(f"{_PICTURES}::test_the_multimodal_request_reads_its_picture"),
        "audio_data": Elsewhere(f"{_MODELS}::test_a_sound_comes_whole_and_streamed"),
        "sampling_params": set_to({"temperature": 0, "max_new_tokens": 12, "sampling_seed": 1}),
        "semantics": set_to("easydel", sampling_params={
            "top_p": 0.5, "min_p": 0.3, "temperature": 2.0, "sampling_seed": 1, "max_new_tokens": 12}),
        "rid": _ABORT,
        "return_logprob": set_to(True),
        "logprob_start_len": set_to(0, return_logprob=True),
        "top_logprobs_num": set_to(2, return_logprob=True),
        "token_ids_logprob": set_to([300, 5], return_logprob=True),
        "return_text_in_logprobs": set_to(True, return_logprob=True),
        "return_hidden_states": Elsewhere(f"{_PICTURES}::test_hidden_states_have_sglangs_ragged_form"),
        "return_prompt_token_ids": set_to(True),
        "return_effective_params": set_to(True),
        "stream": Elsewhere("test_generate.py::test_events_hold_all_the_text_so_far"),
        "stream_options": Effect(value={"mode": "delta"}, whole=False),
        "lora_path": _ADAPTER,
        "cache_salt": _SALT,
        "max_thinking_tokens": set_to(2, sampling_params={
            **_THOUGHTS, "sampling_seed": 1, "max_new_tokens": 12}),
        "custom_logit_processor": _PROCESSOR,
    },
    SAMPLING: {
        **_SHARED,
        "max_new_tokens": set_to(2),
        "min_new_tokens": set_to(3, **_END),
        "sampling_seed": set_to(7),
        "seed": set_to(7),
        "best_of": Effect(value=6, beside={"temperature": 2.0}, streamed=False),
        "logprobs_mode": set_to("sampled", top_p=0.5),
        "beam_width": Elsewhere("test_generate.py::test_a_beam_search_answers_with_its_hypotheses"),
        "stream_interval": Effect(value=5, whole=False),
    },
    CHAT: {
        **_OPENAI,
        "max_completion_tokens": set_to(2),
        "top_logprobs": set_to(2, logprobs=True),
        "messages": set_to([{"role": "user", "content": "The dog"}]),
        "prompt_token_ids": set_to([1, 500, 600]),
        "add_generation_prompt": set_to(False),
        "continue_final_message": set_to(True, messages=_SAID),
        "tools": set_to([TOOL], return_token_ids=True),
        "tool_choice": set_to("required", tools=[TOOL]),
        "parallel_tool_calls": Elsewhere("test_openai_tools.py::test_a_required_call_is_made"),
        "chat_template_kwargs": _TEMPLATE,
        "enable_thinking": _TEMPLATE,
        "reasoning_effort": _TEMPLATE,
        "separate_reasoning": _REASONING,
        "include_reasoning": _REASONING,
        "reasoning_max_tokens": _THINKING,
    },
    COMPLETIONS: {
        **_OPENAI,
        "logprobs": set_to(2),
        **{name: set_to(effect.value, **{**effect.beside, "logprobs": 1}) for name, effect in _OPENAI.items()
           if isinstance(effect, Effect) and "logprobs" in effect.beside},
        "prompt": set_to("The dog"),
        "prompt_token_ids": set_to([1, 500, 600]),
        "echo": set_to(True),
    },
    RESPONSES: {
        **_RESPONSES,
        "max_output_tokens": set_to(2),
        "input": set_to("The dog"),
        "instructions": set_to("Answer as a dog."),
        "include": set_to(_LOGPROBS),
        "top_logprobs": set_to(2, include=_LOGPROBS),
        "text": set_to({"format": {"type": "json_schema", "name": "a", "schema": SCHEMA}}),
        "tools": set_to([FLAT_TOOL]),
        "tool_choice": set_to({"type": "function", "name": "f"}, tools=[FLAT_TOOL]),
        "parallel_tool_calls": set_to(False),
        "metadata": set_to({"a": "b"}),
        "store": set_to(False),
        "previous_response_id": Elsewhere(f"{_KEPT}::test_a_response_goes_on_from_another"),
        "reasoning": Elsewhere("test_responses_reasoning.py::test_the_effort_reaches_the_template"),
        "chat_template_kwargs": _TEMPLATE,
        "enable_thinking": _TEMPLATE,
        "separate_reasoning": _THOUGHT,
        "include_reasoning": _THOUGHT,
        "reasoning_max_tokens": Elsewhere("test_responses_reasoning.py::test_reasoning_ends_within_its_budget"),
        "stream": Elsewhere("test_responses.py::test_a_stream_comes_to_the_whole_response"),
        "stream_options": Elsewhere("test_responses_fields.py::test_options_of_a_stream"),
    },
    MESSAGES: _ANTHROPIC,
}  # fmt: skip
"""By route: what each field that it takes does, or where that is tested."""
