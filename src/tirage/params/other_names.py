"""What other libraries call fields of SamplingParams, or have beside them: hints for errors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from tirage.errors import closest

_SAME = {
    "max_tokens": (
        "max_new_tokens max_completion_tokens max_output_tokens max_tokens_to_sample max_gen_len max_gen_toks "
        "n_predict num_predict request_output_len"
    ),
    "min_tokens": "min_new_tokens",
    "n": "num_return_sequences candidate_count num_generations num_samples num_completions",
    "temperature": "temp",
    "typical_p": "typ_p typical_mass",
    "min_keep": "min_tokens_to_keep",
    "dynatemp_range": "dynamic_temperature dynatemp_low dynatemp_high",
    "mirostat": "mirostat_mode",
    "mirostat_tau": "mirostat_ent",
    "mirostat_eta": "mirostat_lr",
    "xtc_protected_ids": "xtc_special_tokens",
    "repetition_penalty": "repeat_penalty penalty_repeat rep_pen",
    "presence_penalty": "penalty_present",
    "frequency_penalty": "penalty_freq",
    "dry_last_n": "dry_penalty_last_n",
    "seed": "sampling_seed random_seed random_state generator",
    "stop": "stop_strings stop_string stop_sequences stop_words stop_words_list until",
    "stop_token_ids": "eos_token_id eos_token end_id",
    "stop_pattern": "stop_regex",
    "include_stop_str_in_output": "no_stop_trim",
    "bad_words": "banned_strings bad_words_list",
    "bad_words_token_ids": "bad_words_ids",
    "truncate_prompt_tokens": "truncate",
    "logprobs": (
        "return_logprob top_logprobs top_logprobs_num num_logprobs n_probs top_n_tokens response_logprobs output_scores"
    ),
    "prompt_logprobs": "logprob_start_len decoder_input_details input_logprobs",
    "logprob_token_ids": "token_ids_logprob",
    "thinking_budget": "thinking budget_tokens max_thinking_tokens max_reasoning_tokens",
    "extra_args": "custom_params vllm_xargs",
}
"""Fields of SamplingParams, each with other names for the same thing."""
_GUIDED = {
    "json": (
        "json json_schema guided_json response_format response_schema response_json_schema structured_outputs format "
        "text_format"
    ),
    "json_object": "json_object guided_json_object json_mode response_mime_type",
    "regex": "regex guided_regex",
    "choice": "choice choices guided_choice",
    "grammar": "grammar guided_grammar ebnf",
    "structural_tag": "structural_tag guided_structural_tag",
    "whitespace_pattern": "whitespace_pattern guided_whitespace_pattern",
    "backend": "guided_decoding_backend",
}
"""Fields of GuidedDecodingParams, each with the names that stand beside the sampling parameters elsewhere."""
_BEAMS = {
    "beam_width": "beam_width num_beams beam_size use_beam_search",
    "length_penalty": "length_penalty",
    "early_stopping": "early_stopping",
}
"""The same for BeamSearchParams."""
_WINDOWS = (
    "repeat_last_n penalty_last_n repetition_context_size presence_context_size frequency_context_size "
    "repetition_penalty_range rep_pen_range"
)


def _hints(fields: Mapping[str, str], words: str) -> dict[str, str]:
    return {name: words.format(field) for field, names in fields.items() for name in names.split()}


OTHER_NAMES: Mapping[str, str] = {
    **_hints(_SAME, "did you mean {!r}?"),
    **_hints(_GUIDED, "use guided_decoding=GuidedDecodingParams({}=...)"),
    **_hints(_BEAMS, "use LLM.beam_search and BeamSearchParams({}=...)"),
    **_hints({"penalty_window": _WINDOWS}, "use semantics=tirage.semantics.resolve('canonical').replace({}=...)"),
    "do_sample": "leave it out: temperature=0 takes the likeliest token, any other temperature draws",
    "greedy": "use temperature=0, which takes the likeliest token",
    "max_length": "did you mean 'max_tokens', which counts new tokens alone?",
    "min_length": "did you mean 'min_tokens', which counts new tokens alone?",
    "reasoning_effort": "did you mean 'thinking_budget', which counts tokens?",
    "samplers": "did you mean 'semantics', which has the order of the stages?",
    "sampler_order": "did you mean 'semantics', which has the order of the stages?",
    "suppress_tokens": "use logit_bias={id: float('-inf')}",
    "banned_tokens": "use logit_bias={id: float('-inf')}",
    "custom_token_bans": "use logit_bias={id: float('-inf')}",
    "stream": "use LLM.stream(prompt, params)",
}
"""By a name that SamplingParams does not have: what to use instead."""

P = ParamSpec("P")
R = TypeVar("R")


def without_fields(fields: Callable[[], Mapping[str, object]]) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A decorator of methods that take a SamplingParams as `params`, of which `fields` gives the fields by name.

    The TypeError for a keyword that the method does not have says where it belongs.
    """

    def decorated(method: Callable[P, R]) -> Callable[P, R]:
        known = frozenset(inspect.signature(method).parameters)

        @functools.wraps(method)
        def checked(*args: P.args, **options: P.kwargs) -> R:
            for name in options:
                if name not in known:
                    hint = hint_of(name, options[name], fields(), known)
                    raise TypeError(f"{method.__name__}() got an unexpected keyword argument {name!r}{hint}")
            return method(*args, **options)

        return checked

    return decorated


def hint_of(name: str, value: object, fields: Mapping[str, object], known: frozenset[str]) -> str:
    """Where a keyword belongs: into SamplingParams, under that name or another, or to the nearest one of a method."""
    if name in fields:
        return f"; give params=SamplingParams({name}={value!r:.40})"
    close = name if name in OTHER_NAMES else closest(name, {*known - {"self"}, *fields}, OTHER_NAMES)
    if close is None:
        return ""
    if close in OTHER_NAMES:
        return f"; parameters go into params=SamplingParams(...): {OTHER_NAMES[close]}"
    return f"; did you mean {close!r}?" if close in known else f"; did you mean in params {close!r}?"
