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
]
"""The fields of each request, as they travel in JSON; a request is known by its index."""
REQUESTS = [SamplingParams.from_dict(fields) for fields in FIELDS]


def logits_of(request: int, output: list[int]) -> NDArray[np.float32]:
    """float32 [V] that follow from the request and its tokens so far."""
    random = np.random.default_rng([request, *output])
    return random.standard_normal(V).astype(np.float32) * 3


def alone(request: int, count: int) -> list[int]:
    """The first tokens that `tirage.sample` draws of a request by itself."""
    output: list[int] = []
    for _ in range(count):
        draw = tirage.sample(logits_of(request, output), REQUESTS[request], history=[(PROMPT, output)])
        output.append(int(draw.token_ids[0]))
    return output
