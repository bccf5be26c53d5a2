"""Laws of SGLang's pytorch sampling backend: its own penalty functions and its own truncation."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from serving import serve

sys.path.insert(0, str(Path(__file__).parents[2] / "engines" / "sglang"))
import published  # noqa: F401  what the wheel imports and a processor lacks

torch.compile = lambda function=None, **_: function if function is not None else (lambda f: f)  # nothing to compile

from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch  # noqa: E402
from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")


def law(row: Mapping[str, Any]) -> torch.Tensor:
    """The probabilities of one request alone; SGLang's own class reads and checks its parameters."""
    given = {name: row["params"][name] for name in _NAMES if name in row["params"]}
    params = SamplingParams(**given)
    params.verify(len(row["logits"]))
    logits = _edited(row, params)
    # As Sampler.forward: a batch of rows with top_k 1 is greedy.
    if params.top_k <= 1:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1])[0].double()
    probs = torch.softmax(logits / params.temperature, -1)
    _, kept, ids, _ = top_k_top_p_min_p_sampling_from_probs_torch(
        probs,
        torch.tensor([params.top_k]),
        torch.tensor([params.top_p]),
        torch.tensor([params.min_p]),
        params.min_p > 0,
        None,
        torch.zeros(1, dtype=torch.long),
        return_filtered_probs=True,
    )
    return torch.zeros_like(probs).scatter_(1, ids.long(), kept / kept.sum())[0]


def _edited(row: Mapping[str, Any], params: SamplingParams) -> torch.Tensor:
    """Logits after the additive penalties, repetition and bias, of output tokens, in SamplingBatchInfo's order."""
    logits = torch.tensor([row["logits"]], dtype=torch.float32)
    output = torch.tensor([row["output"]], dtype=torch.long)
    counts = torch.zeros_like(logits).scatter_add_(1, output, torch.ones_like(output, dtype=torch.float32))
    logits -= counts * params.frequency_penalty + (counts > 0) * params.presence_penalty
    apply_scaling_penalties(logits, torch.where(counts > 0, params.repetition_penalty, 1.0))
    for token, bias in row["params"]["logit_bias"].items():
        logits[0, token] += bias
    return logits


if __name__ == "__main__":
    serve("sglang", version("sglang"), {"sglang-pytorch": law})
