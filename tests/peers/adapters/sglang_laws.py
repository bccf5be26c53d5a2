"""Laws of SGLang: its penalty functions and its Sampler, with PyTorch or with the laws of FlashInfer's kernels."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from flashinfer_kernels import above_min_p, joint, larger_mass, normalised, top_k_kept
from serving import serve

sys.path.insert(0, str(Path(__file__).parents[2] / "engines" / "sglang"))
import published  # noqa: F401  what the wheel imports and a processor lacks

torch.compile = lambda function=None, **_: function if function is not None else (lambda f: f)  # nothing to compile

from sglang.srt.layers import sampler  # noqa: E402
from sglang.srt.layers.sampler import top_k_top_p_min_p_sampling_from_probs_torch  # noqa: E402
from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties  # noqa: E402
from sglang.srt.sampling.sampling_params import SamplingParams  # noqa: E402

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")


def law(row: Mapping[str, Any]) -> torch.Tensor:
    """The probabilities of one request alone; SGLang's own class reads and checks its parameters."""
    params = _parameters(row)
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


_drawn: list[np.ndarray] = []


def _array(x: torch.Tensor) -> np.ndarray:
    return x[0].double().numpy()


def _record(law: np.ndarray) -> torch.Tensor:
    _drawn.append(law)
    return torch.tensor([int(law.argmax())])


def _renormed(law: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(normalised(law))[None]


sampler.get_exec = lambda: SimpleNamespace(kernel=SimpleNamespace(sampling_backend="flashinfer"))
sampler.sampling_from_probs_torch = lambda probs, **_: _record(_array(probs))
sampler.top_k_renorm_prob = lambda probs, k: _renormed(top_k_kept(_array(probs), int(k)))
sampler.top_p_renorm_prob = lambda probs, p: _renormed(larger_mass(_array(probs), float(p)))
sampler.min_p_sampling_from_probs = lambda probs, p: _record(normalised(above_min_p(_array(probs), float(p))))


def _top_k_top_p(probs: torch.Tensor, k: torch.Tensor, p: torch.Tensor, *, filter_apply_order: str) -> torch.Tensor:
    assert filter_apply_order == "joint"
    return _record(joint(_array(probs), int(k), float(p)))


sampler.top_k_top_p_sampling_from_probs = _top_k_top_p


def flashinfer_law(row: Mapping[str, Any]) -> Any:
    """The probabilities of one request alone under the backend `flashinfer`, the default on NVIDIA's GPUs."""
    params = _parameters(row)
    logits = _edited(row, params)
    if params.top_k <= 1:
        return torch.nn.functional.one_hot(logits.argmax(-1), logits.shape[-1])[0].double()
    asked = SimpleNamespace(
        sampling_mask_batch_indices=None,
        sampling_seed=None,
        need_min_p_sampling=params.min_p > 0,
        top_ks=torch.tensor([params.top_k]),
        top_ps=torch.tensor([params.top_p]),
        min_ps=torch.tensor([params.min_p]),
    )
    is_simple = params.top_p == 1.0 and params.top_k == sampler.TOP_K_ALL and not asked.need_min_p_sampling
    _drawn.clear()
    probs = torch.softmax(logits / params.temperature, -1)
    sampler.Sampler._sample_from_probs(None, probs, asked, torch.zeros(1), is_simple)
    return _drawn[0]


def _parameters(row: Mapping[str, Any]) -> SamplingParams:
    params = SamplingParams(**{name: row["params"][name] for name in _NAMES if name in row["params"]})
    params.verify(len(row["logits"]))
    return params


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
    serve("sglang", version("sglang"), {"sglang-pytorch": law, "sglang": flashinfer_law})
