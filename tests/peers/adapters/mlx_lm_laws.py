"""Laws of mlx-lm: its own processors and sampler, with the logits taken where it would draw."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import mlx.core as mx
import numpy as np
from mlx_lm import sample_utils
from serving import over_the_coin, serve

_seen: list[tuple[mx.array, float]] = []


def _record(logits: mx.array, temp: float) -> mx.array:
    _seen.append((logits, temp))
    return mx.argmax(logits, axis=-1)


sample_utils.categorical_sampling = _record


def law(row: Mapping[str, Any], xtc: float) -> np.ndarray:
    """The probabilities of one row, with XTC's coin decided by `xtc`."""
    params = row["params"]
    logits = mx.array(np.array(row["logits"], np.float32))[None]
    tokens = mx.array(row["prompt"] + row["output"])
    processors = sample_utils.make_logits_processors(
        logit_bias=params["logit_bias"] or None,
        repetition_penalty=params.get("repetition_penalty"),
        presence_penalty=params.get("presence_penalty"),
        frequency_penalty=params.get("frequency_penalty"),
    )
    for processor in processors:
        logits = processor(tokens, logits)
    logprobs = logits - mx.logsumexp(logits, keepdims=True)
    sampler = sample_utils.make_sampler(
        temp=params.get("temperature", 1.0),
        top_p=params.get("top_p", 1.0),
        min_p=params.get("min_p", 0.0),
        top_k=params.get("top_k", 0),
        xtc_probability=xtc,
        xtc_threshold=params.get("xtc_threshold", 0.1),
        xtc_special_tokens=list(params.get("xtc_protected_ids", ())),
    )
    _seen.clear()
    token = int(sampler(logprobs)[0])
    if not _seen:
        return np.eye(len(row["logits"]))[token]
    x, temp = _seen[0]
    return np.array(mx.softmax(x * (1.0 / temp), axis=-1))[0]


if __name__ == "__main__":
    serve("mlx-lm", version("mlx-lm"), {"mlx": over_the_coin(law)})
