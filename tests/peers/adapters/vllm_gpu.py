"""Laws of vLLM's GPU model runner: its Sampler and its Triton kernels, under Triton's interpreter.

Rows whose id ends with /0 are drawn as a batch of up to 64 is, others as a larger one: top-p without top-k has a kernel
for each.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton.runtime.interpreter as interpreter
from flashinfer_kernels import larger_mass, normalised, softmax, top_k_first, top_k_kept
from vllm.platforms import current_platform
from vllm.sampling_params import SamplingParams
from vllm.utils import torch_utils
from vllm.v1.sample.ops import topk_topp_triton
from vllm.v1.worker.gpu import buffer_utils
from vllm.v1.worker.gpu.sample import sampler as gpu_sampler
from vllm.v1.worker.gpu.sample import states as gpu_states
from vllm.v1.worker.gpu.states import RequestState

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
_CPU = torch.device("cpu")
_LENGTH = 256
_PROCESSORS = 2
"""Of the GPU that the kernels are told of: how many parts a row is split into."""
_at_large = [False]
_drawn: list[np.ndarray] = []

type(current_platform).device_type = "cpu"
type(current_platform).num_compute_units = classmethod(lambda cls, device_id=0: _PROCESSORS)
torch_utils.PIN_MEMORY, buffer_utils.is_uva_available = False, lambda: False
topk_topp_triton.num_compute_units = lambda *_: _PROCESSORS


class _Index(int):
    """An index of `tl.range`, which the compiler makes a tensor and the interpreter leaves a number."""

    def to(self, _: Any) -> int:
        return self


def _patch_with_indices(lang: Any, scope: Any, patch: Any = interpreter._patch_lang_core) -> None:
    patch(lang, scope)
    plain = lang.range
    scope.set_attr(lang, "range", lambda *given, **options: map(_Index, plain(*given, **options)))


interpreter._patch_lang_core = _patch_with_indices


def _apply_top_k_top_p(
    logits: torch.Tensor, k: torch.Tensor | None, p: torch.Tensor | None, **options: bool
) -> torch.Tensor:
    """`apply_top_k_top_p_triton`, which takes its kernel for small batches on CUDA alone."""
    if k is None and p is None:
        return logits
    if k is None and not _at_large[0]:
        topk_topp_triton._apply_topp_split(logits, None, p, float("-inf"), _PROCESSORS)
        return logits
    return topk_topp_triton.apply_top_k_top_p_triton(logits, k, p, **options)


gpu_sampler.apply_top_k_top_p = gpu_states.apply_top_k_top_p = _apply_top_k_top_p


def law(row: Mapping[str, Any]) -> Any:
    """The probabilities of one request without a seed where FlashInfer's sampler is off or not there."""
    return _law(row, fused=False)


def flashinfer_law(row: Mapping[str, Any]) -> Any:
    """The probabilities of one request where FlashInfer draws what has top-k or top-p."""
    return _law(row, fused=True)


def _law(row: Mapping[str, Any], *, fused: bool) -> Any:
    _at_large[0] = not row["id"].endswith("/0")
    given = {name: row["params"][name] for name in _NAMES if name in row["params"]}
    params = SamplingParams(**given, logit_bias=row["params"]["logit_bias"] or None)
    params._bad_words_token_ids = row["params"].get("bad_words_token_ids")
    logits = torch.tensor([row["logits"]], dtype=torch.float32)
    tokens = [*row["prompt"], *row["output"]] or [0]
    sampler = _sampler(row, params, tokens, fused=fused)
    _drawn.clear()
    one = torch.zeros(1, dtype=torch.int32)
    position = torch.tensor([len(tokens) - 1])
    ids = torch.tensor([tokens[-1]], dtype=torch.int32)
    lengths = np.array([len(tokens)])
    sampled, processed = sampler.sample(logits, one, one, np.zeros(1, np.int32), position, ids, one, lengths)
    if params.temperature == 0:
        return torch.nn.functional.one_hot(sampled[0].long(), logits.shape[1]).double()
    return _drawn[0] if _drawn else torch.softmax(processed[0].double(), -1)


def _sampler(row: Mapping[str, Any], params: SamplingParams, tokens: list[int], *, fused: bool) -> gpu_sampler.Sampler:
    """The sampler with one request in it."""
    size = len(row["logits"])
    requests = RequestState(1, _LENGTH, _LENGTH, 0, size, _CPU)
    requests.add_request("a", len(tokens) - len(row["output"]), tokens, len(tokens), 1)
    requests.apply_staged_writes()
    config = type("Config", (), {"reasoning_config": None})()
    sampler = gpu_sampler.Sampler(config, 1, size, _CPU, requests)
    sampler.use_flashinfer = fused
    sampler.add_request(0, params)
    sampler.apply_staged_writes()
    return sampler


def _record(law: np.ndarray) -> torch.Tensor:
    _drawn.append(law)
    return torch.tensor([int(law.argmax())])


def _row(x: torch.Tensor) -> np.ndarray:
    return x[0].double().numpy()


_kernels = ModuleType("flashinfer.sampling")
_kernels.top_p_sampling_from_probs = lambda probs, p, **_: _record(normalised(larger_mass(_row(probs), float(p))))
_kernels.top_k_sampling_from_probs = lambda probs, k, **_: _record(normalised(top_k_kept(_row(probs), int(k))))
_kernels.top_k_top_p_sampling_from_logits = lambda logits, k, p, **_: _record(
    top_k_first(softmax(_row(logits)), int(k), float(p))
)
_package = ModuleType("flashinfer")
_package.sampling = _kernels
sys.modules |= {"flashinfer": _package, "flashinfer.sampling": _kernels}
