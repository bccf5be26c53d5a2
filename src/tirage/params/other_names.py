"""What other libraries call fields of SamplingParams, or have beside them: hints for errors."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import ParamSpec, TypeVar

from tirage.errors import nearest

_GUIDED = "use guided_decoding=GuidedDecodingParams({}=...)"
_BEAMS = "use LLM.beam_search and BeamSearchParams({}=...)"
OTHER_NAMES: Mapping[str, str] = {
    "do_sample": "leave it out: temperature=0 takes the likeliest token, any other temperature draws",
    "max_new_tokens": "did you mean 'max_tokens'?",
    "max_length": "did you mean 'max_tokens', which counts new tokens alone?",
    "n_predict": "did you mean 'max_tokens'?",
    "min_new_tokens": "did you mean 'min_tokens'?",
    "num_return_sequences": "did you mean 'n'?",
    "sampling_seed": "did you mean 'seed'?",
    "random_seed": "did you mean 'seed'?",
    "eos_token_id": "did you mean 'stop_token_ids'?",
    "stop_strings": "did you mean 'stop'?",
    "stop_regex": "did you mean 'stop_pattern'?",
    "mirostat_mode": "did you mean 'mirostat'?",
    "repeat_penalty": "did you mean 'repetition_penalty'?",
    "return_logprob": "did you mean 'logprobs'?",
    "top_logprobs": "did you mean 'logprobs'?",
    "bad_words_ids": "did you mean 'bad_words_token_ids'?",
    "suppress_tokens": "use logit_bias={id: float('-inf')}",
    "top_logprobs_num": "did you mean 'logprobs'?",
    "num_beams": _BEAMS.format("beam_width"),
    "beam_width": _BEAMS.format("beam_width"),
    "length_penalty": _BEAMS.format("length_penalty"),
    "early_stopping": _BEAMS.format("early_stopping"),
    "use_beam_search": _BEAMS.format("beam_width"),
    "json_schema": _GUIDED.format("json"),
    "guided_json": _GUIDED.format("json"),
    "response_format": _GUIDED.format("json"),
    "regex": _GUIDED.format("regex"),
    "guided_regex": _GUIDED.format("regex"),
    "guided_choice": _GUIDED.format("choice"),
    "ebnf": _GUIDED.format("grammar"),
    "grammar": _GUIDED.format("grammar"),
    "guided_grammar": _GUIDED.format("grammar"),
    "structured_outputs": _GUIDED.format("json"),
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
    if name in OTHER_NAMES:
        return f"; parameters go into params=SamplingParams(...): {OTHER_NAMES[name]}"
    return nearest(name, known - {"self"}) or nearest(name, fields).replace("did you mean", "did you mean in params")
