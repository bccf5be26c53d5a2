"""Requests for the adapters of engines, over a model whose logits are a function of the text so far."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import tirage
from tirage import SamplingParams

V = 48
PROMPT = [3, 5, 8]
FIELDS: list[dict[str, Any]] = [
    {"seed": 1, "top_p": 0.9},
    {"seed": 2, "repetition_penalty": 1.3, "presence_penalty": 0.4, "top_k": 9},
    {"seed": 3, "no_repeat_ngram_size": 2, "temperature": 1.7},
    {"seed": 4, "dry_multiplier": 0.8, "dry_allowed_length": 1, "semantics": "llamacpp"},
    {"temperature": 0.0, "logit_bias": {"7": 1.5}},
    {"seed": 6},
    {"seed": 7, "mirostat": 2, "mirostat_tau": 2.0, "mirostat_eta": 0.4},
    {"seed": 8, "mirostat": 1, "mirostat_tau": 3.0, "frequency_penalty": 0.3, "semantics": "llamacpp"},
    {"mirostat": 2, "mirostat_tau": 1.5, "seed": 9, "temperature": 1.4},
    {"seed": 10, "adaptive_target": 0.3, "adaptive_decay": 0.6, "min_p": 0.01},
    {"seed": 11, "watermark": {"scheme": "kgw", "key": 15485863, "bias": 4.0}},
    {"seed": 12, "watermark": {"scheme": "synthid", "key": [5, 17, 29], "ngram_len": 3, "sampling_table_size": 512}},
    {"seed": 13, "watermark": {"scheme": "gumbel", "key": 77, "context_width": 2}},
    {"seed": 14, "sequence_bias": [[[7], 1.5], [[3, 9], 2.0]], "smoothing_factor": 0.3, "tfs": 0.9},
    {"seed": 15, "p_less": "norm", "min_keep": 3, "temperature": 1.5, "top_p": 0.2},
]
"""The fields of each request, as they travel in JSON; a request is known by its index."""
REQUESTS = [SamplingParams.from_dict(fields) for fields in FIELDS]
CARRYING = [at for at, fields in enumerate(FIELDS) if fields.keys() & {"mirostat", "adaptive_target"}]
"""Those whose draw depends on a state that moves with every token."""


def logits_of(request: int, output: list[int]) -> NDArray[np.float32]:
    """float32 [V] that follow from the request and its tokens so far."""
    random = np.random.default_rng([request, *output])
    return random.standard_normal(V).astype(np.float32) * 3


def alone(request: int, count: int) -> list[int]:
    """The first tokens that `tirage.sample` draws of a request by itself."""
    output, state = list[int](), None
    for _ in range(count):
        logits, params = logits_of(request, output), REQUESTS[request]
        draw = tirage.sample(logits, params, history=[(PROMPT, output)], state=state)
        output.append(int(draw.token_ids[0]))
        state = draw.states if request in CARRYING else None
    return output
