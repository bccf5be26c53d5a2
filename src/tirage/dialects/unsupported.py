"""Fields of other engines that have no counterpart here: the values at which they change nothing, and why not others.

Clients send many fields at their defaults. Each table lists those of one kind of request by the reason that an error
gives for any other value; null is always as absent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tirage.fields.rules import shown


@dataclass(frozen=True, slots=True)
class Unsupported:
    """A field that is taken at `inert` values only, where it changes nothing; `reason` says why not at others."""

    reason: str
    inert: tuple[Any, ...] = ()

    def takes(self, value: Any) -> bool:
        """True for null and for the inert values; true is not 1 here, but 1.0 is."""
        return value is None or any(_alike(value, one) for one in self.inert)

    def refusal(self, name: str, value: Any) -> str:
        """The error for a value that is not taken."""
        rule = " or ".join([*map(shown, self.inert), "left out"])
        return f"{name} must be {rule}, got {shown(value)}; {self.reason}"

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the values that are taken."""
        return {"enum": [*self.inert, None], "description": f"without effect: {self.reason}"}


def _alike(value: Any, inert: Any) -> bool:
    if isinstance(value, bool) or isinstance(inert, bool):
        return value is inert
    return isinstance(value, (int, float, str, list, dict)) and value == inert


Groups = Mapping[str, Mapping[str, Any]]
"""Reasons, and for each the fields with their inert value, a tuple of them, or None for null alone."""


def unsupported(*tables: Groups) -> dict[str, Unsupported]:
    """The fields of several tables by name."""
    return {
        name: Unsupported(reason, _values(inert))
        for groups in tables
        for reason, fields in groups.items()
        for name, inert in fields.items()
    }


def _values(inert: Any) -> tuple[Any, ...]:
    if inert is None:
        return ()
    return inert if isinstance(inert, tuple) else (inert,)


_BOTH = (False, True)

_ROUTED = "requests are not routed to other processes"
_SALT = "send cache_salt, which parts the cached prefixes of requests"
_PROCESSOR = "the model's processor has no options in a request"
_FLAT = "log-probabilities are lists, never flat arrays"
_EXPERTS = "routed experts are not reported"
_WATERMARK = "its hash is not one of tirage's; a Watermark in SamplingParams.watermark marks texts"
_WATERMARKING = "the field watermark asks for one"
_VIDEO = "videos are not taken; send frames as images"
_MEDIA = "images are told apart by their content"
_TRACE = "traces begin at this server"

# What SGLang's /generate and its OpenAI routes both have.
_SGLANG: Groups = {
    _ROUTED: {"bootstrap_host": None, "bootstrap_port": None, "bootstrap_room": None, "disagg_prefill_dp_rank": None},
    "there is one data-parallel rank, 0": {"routed_dp_rank": 0, "data_parallel_rank": 0},
    _EXPERTS: {"return_routed_experts": False, "routed_experts_start_len": 0},
    "a prompt is sent whole, and its prefix is cached by itself": {"session_params": None},
    _WATERMARK: {"watermark": None},
    _PROCESSOR: {"images_config": ({},), "mm_processor_kwargs": ({},), "video_config": ({},)},
    _SALT: {"extra_key": None},
    "metrics have no labels of the client's": {"custom_labels": ({},)},
    _VIDEO: {"use_audio_in_video": False},
    "the model's processor cuts images by its own rule": {"max_dynamic_patch": None, "min_dynamic_patch": None},
    "the support of a draw is not reported; tirage explain shows it": {
        "return_sampling_mask": False,
        "sampling_logprobs_mode": None,
    },
    _FLAT: {"return_flat_raw_output_top_logprobs": False, "return_flat_raw_top_logprobs_b64": _BOTH},
}

SGLANG_GENERATE = unsupported(
    _SGLANG,
    {
        _ROUTED: {
            "bootstrap_pair_key": None,
            "decode_tp_size": None,
            "http_worker_ipc": None,
            "routing_key": None,
            "need_wait_for_mm_inputs": False,
            "num_items_assigned": None,
            "encoder_urls": None,
            "kv_hints": None,
        },
        _FLAT: {"return_flat_raw_top_logprobs": False},
        _VIDEO: {"video_data": None},
        "the model's processor cuts images by its own rule": {
            "image_max_dynamic_patch": None,
            "video_max_dynamic_patch": None,
        },
        _MEDIA: {"mm_hashes": None, "mm_content_hashes": None},
        "the kind of an input is told by its field": {"modalities": None},
        "an adapter goes by its name, in lora_path": {"lora_id": None},
        "send input_embeds for a prompt of vectors": {"positional_embed_overrides": None},
        "an answer is JSON and goes to the client that asked": {"background": False, "return_bytes": False},
        "whether a model reasons is up to its prompt; reasoning_parser says by which tags": {
            "require_reasoning": False
        },
        "requests have equal shares, and none goes before another": {"priority": 0},
        "every request is counted in /metrics": {"log_metrics": True},
        "no text is ever logged": {"no_logs": _BOTH},
        "entropies are not reported": {"return_entropy": False},
        "the model's attention is not reported": {"return_indexer_topk": False},
        _TRACE: {"external_trace_header": None, "received_time": None},
        "logprob_start_len says where log-probabilities of a prompt begin": {
            "multi_item_delimiter_indices": None,
            "token_indices_to_pool": None,
        },
    },
)
"""Fields of SGLang's `GenerateReqInput`."""

SGLANG_SAMPLING = unsupported({
    _WATERMARK: {"watermark": None},
    "it is SGLang's own note of stop and stop_regex; send those": {
        "stop_strs": None,
        "stop_regex_strs": None,
        "stop_str_max_len": 0,
        "stop_regex_max_len": 0,
    },
    "it is SGLang's own note of what it has checked": {"is_normalized": False, "ebnf_full_assistant": False},
})
"""Fields of SGLang's `SamplingParams`."""

_VLLM: Groups = {
    _WATERMARKING: {"watermarking": False},
    _EXPERTS: {"routed_experts_prompt_start": 0},
    "there is no such stop; no_repeat_ngram_size and dry_multiplier hold repetition back": {
        "repetition_detection": None
    },
}

OPENAI_ROUTES = unsupported(
    _SGLANG,
    {
        "/generate reports hidden states": {"return_hidden_states": False},
        "usage.prompt_tokens_details has the cached tokens": {"return_cached_tokens_details": False},
        "answers say nothing of drafts, /metrics counts them": {
            "return_spec_tokens_details": False,
            "include_draft_logprobs": False,
        },
        "return_token_ids reports the ids": {
            "return_prompt_token_ids": False,
            "return_input_ids_in_sglext": False,
            "return_output_ids_in_sglext": False,
        },
        "/generate answers with meta_info": {"return_meta_info": False},
        "send prompt_token_ids for a prompt of ids": {"input_ids": None},
        "send it in chat_template_kwargs, if the template has such a variable": {"thinking": None, "task": None},
    },
    _VLLM,
    {
        "a prompt is cut at its beginning": {"truncation_side": "left"},
        "the operator says how media are read": {"media_io_kwargs": ({},)},
        "/generate takes vectors, in input_embeds": {"prompt_embeds": None},
        "weights do not change while the server runs": {"return_weight_versions": False},
        "vLLM has it on its render routes only, which are not here": {
            "return_token_offsets": _BOTH,
            "mm_payload": ("tensors", "none"),
            "return_mm_kwargs": _BOTH,
        },
        "return_token_ids reports the prompt as the model reads it": {"return_prompt_text": False},
        _ROUTED: {"kv_transfer_params": None, "ec_transfer_params": None, "disaggregate_info": None},
        "there are no such extensions; register a logits processor": {"vllm_xargs": ({},)},
    },
    {
        "log-probabilities always come with the token's text": {"include_logprobs_decode_token": True},
        "max_tokens limits the whole, reasoning_max_tokens the reasoning": {"response_max_tokens": None},
        _MEDIA: {"mm_hashes": ([],)},
        "an assistant's message is sent as text": {"completion_token_ids": None},
        _TRACE: {"trace_context": None},
    },
)
"""Fields of SGLang's, of vLLM's and of FastDeploy's chats and completions, in this order."""

VLLM_SAMPLING = unsupported(
    _VLLM,
    {
        "log-probabilities of a prompt are those of every token and the likeliest": {
            "prompt_logprob_token_ids": None,
            "prompt_logprob_start": 0,
        },
        _FLAT: {"flat_logprobs": False},
        "it says how an answer is sent; LLM.stream has every token": {"stream_interval": 1},
        "it is vLLM's own; parameters are never changed here": {"skip_clone": _BOTH, "output_text_buffer_length": 0},
        "a prefix that was read is not read again": {"skip_reading_prefix_cache": False},
        "tokens are drawn, never given": {"trace_decode_token_ids": None},
        "vLLM passes them to its own plug-ins": {"extra_args": ({},)},
        "vLLM has none since version 0.9; use n": {"best_of": None},
        "functions cannot be sent; register a processor and name it": {"logits_processors": None},
    },
)
"""Fields of vLLM's `SamplingParams`."""

TRANSFORMERS = unsupported({
    "it counts the prompt too; use max_new_tokens": {"max_length": None},
    "it counts the prompt too; use min_new_tokens": {"min_length": 0},
    "a beam search takes BeamSearchParams and LLM.beam_search": {
        "num_beams": 1,
        "early_stopping": False,
        "length_penalty": 1.0,
        "diversity_penalty": 0.0,
        "num_beam_groups": 1,
        "constraints": None,
        "force_words_ids": None,
    },
    "tokens do not depend on the clock; use max_new_tokens": {"max_time": None},
    "the cache is the engine's": {
        "use_cache": _BOTH,
        "cache_implementation": None,
        "cache_config": None,
        "max_cache_len": None,
        "prefill_chunk_size": None,
        "low_memory": False,
    },
    "how the model runs is given when it is loaded": {
        "compile_config": None,
        "disable_compile": _BOTH,
        "continuous_batching_config": None,
    },
    "drafts are an option of the engine, LLM(speculative_config=...), and change no token": {
        "use_mtp": False,
        "is_assistant": False,
        "num_assistant_tokens": 20,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.4,
        "prompt_lookup_num_tokens": None,
        "max_matching_ngram_size": 2,
        "assistant_early_exit": None,
        "assistant_lookbehind": 10,
        "target_lookbehind": 10,
        "assistant_ensemble_weight": None,
        "speculation_type": None,
    },
    "there is no such processor here; register one": {
        "encoder_repetition_penalty": 1.0,
        "encoder_no_repeat_ngram_size": 0,
        "exponential_decay_length_penalty": None,
        "begin_suppress_tokens": None,
        "forced_bos_token_id": None,
        "forced_eos_token_id": None,
    },
    "use bad_words_ids": {"suppress_tokens": None},
    "weights are always normalised": {"renormalize_logits": _BOTH},
    "a row with NaN is an error, and nothing is repaired": {"remove_invalid_values": False},
    "a prompt is not changed": {"token_healing": False},
    "it takes a second pass of the model for every token": {"guidance_scale": 1.0},
    "it takes other layers of the model for every token": {"penalty_alpha": None, "dola_layers": None},
    "ask for logprobs, or LLM.explain": {
        "output_attentions": False,
        "output_hidden_states": False,
        "output_scores": False,
        "output_logits": False,
        "return_dict_in_generate": _BOTH,
    },
    "the model has no decoder of its own": {"decoder_start_token_id": None},
})
"""Fields of transformers' `GenerationConfig`."""

LLAMACPP_SERVER = unsupported({
    "the order of the stages is a Semantics; pass params.replace(semantics=...)": {"samplers": None},
    "tokens do not depend on where or by the clock of what they are drawn": {
        "backend_sampling": _BOTH,
        "t_max_predict_ms": -1,
    },
    "it says how an answer is sent; LLM.stream and LLM.generate do": {
        "stream": _BOTH,
        "stream_options": None,
        "include_usage": _BOTH,
        "verbose": False,
        "timings_per_token": False,
        "return_tokens": _BOTH,
        "return_progress": False,
        "sse_ping_interval": 30,
        "response_fields": ([],),
        "echo": False,
    },
    "the cache is the engine's": {"cache_prompt": _BOTH, "n_cache_reuse": 0, "id_slot": -1},
    "a context is never shifted": {"n_keep": 0, "n_discard": 0},
    "there is no such rule of lines; use grammar": {"n_indent": 0},
    "an adapter is a field of Prompt": {"lora": ([],)},
    "a constraint holds from the first token": {
        "grammar_lazy": False,
        "grammar_triggers": ([],),
        "preserved_tokens": ([],),
    },
    "it is the chat's, which LLM.chat writes": {
        "chat_format": None,
        "reasoning_format": None,
        "generation_prompt": None,
        "parse_tool_calls": False,
        "chat_parser": None,
        "continue_final_message": False,
    },
    "pass params.replace(thinking_budget=..., reasoning_parser=...)": {
        "reasoning_control": False,
        "reasoning_budget_tokens": -1,
        "reasoning_budget_start_tag": None,
        "reasoning_budget_end_tags": None,
        "reasoning_budget_end_tag": None,
        "reasoning_budget_message": None,
    },
    "it is no sampling parameter; LLM.generate takes the prompt": {"prompt": None},
})
"""Fields of llama.cpp's `/completion`."""

MLX_LM = unsupported({
    "the likeliest token always stays": {"min_tokens_to_keep": 1},
})
"""Arguments of mlx-lm's `make_sampler` and `make_logits_processors`."""

MINDIE_PARAM = unsupported({
    "results are of the library of the logits": {"to_tensor": None},
})
"""Fields of MindIE's `SamplingParam`."""

GEMMA_SAMPLER = unsupported({
    "it is the size of the sampler's buffer; use max_new_tokens": {"max_out_length": 2048},
    "the cache is the engine's": {"cache_length": 4096},
    "prompts are not padded": {"pad_length": ([256, 512, 1024],)},
    "it says how an answer is sent; LLM.stream does": {"stream": _BOTH},
})
"""Fields of Gemma's `Sampler`."""

EASYDEL_SAMPLING = unsupported({
    "no reasoning is told apart without reasoning_parser, and stops hold in it": {
        "ignore_stop_strings_in_reasoning": _BOTH
    },
    "a processor takes its arguments with its name; pass params.replace(logits_processors=...)": {"extra_args": ({},)},
})
"""Fields of EasyDeL's `SamplingParams`."""


_CACHED = tuple({"type": "ephemeral", **ttl} for ttl in ({}, {"ttl": "5m"}, {"ttl": "1h"}))
_KEEP_ALL = ({"edits": []}, {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]})
_NO_MEMORY = "nothing is kept between requests but cached prefixes"

ANTHROPIC_MESSAGES = unsupported({
    "prefixes are cached by themselves": {"cache_control": _CACHED},
    "there is one tier": {"service_tier": ("auto", "standard_only")},
    "there is one speed": {"speed": "standard"},
    "the model runs where this server runs": {"inference_geo": "global"},
    "this server has no containers": {"container": None},
    "this server calls no other servers; send their tools": {"mcp_servers": ([],)},
    "no part of a conversation is left out": {"context_management": _KEEP_ALL, "compaction": None},
    _NO_MEMORY: {"diagnostics": {"previous_message_id": None}, "thread": None},
    "there is one model": {"fallbacks": None, "fallback_credit_token": None},
    "nothing is billed": {"billing_policy": None},
})
"""Of Anthropic's Messages API; what says who asks and about what is no parameter either."""
