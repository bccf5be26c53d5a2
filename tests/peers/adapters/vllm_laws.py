"""Laws of vLLM: its torch path, with its own processors, and the samplers of its GPU model runner.

The release is the wheel that goes on GPUs. Where there is none its kernels in Triton run under Triton's interpreter.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": "", "VLLM_LOGGING_LEVEL": "ERROR"}

import torch
import vllm_gpu
from serving import serve
from vllm.sampling_params import SamplingParams
from vllm.v1.sample.logits_processor import LogitsProcessors
from vllm.v1.sample.logits_processor.builtin import LogitBiasLogitsProcessor, MinPLogitsProcessor
from vllm.v1.sample.logits_processor.interface import BatchUpdate
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.ops import topk_topp_sampler
from vllm.v1.sample.sampler import Sampler

_NAMES = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty")
_seen: list[torch.Tensor] = []


def _record(probs: torch.Tensor, *_: Any) -> torch.Tensor:
    _seen.append(probs.clone())
    return probs.argmax(-1)


topk_topp_sampler.random_sample = _record
topk_topp_sampler.apply_top_k_top_p = topk_topp_sampler.apply_top_k_top_p_pytorch
Sampler.greedy_sample = staticmethod(lambda logits: logits.argmax(-1))
_sampler = Sampler()
_sampler.topk_topp_sampler.forward = _sampler.topk_topp_sampler.forward_native


def law(row: Mapping[str, Any]) -> torch.Tensor:
    """The probabilities of one request alone."""
    given = {name: row["params"][name] for name in _NAMES if name in row["params"]}
    params = SamplingParams(**given, logit_bias=row["params"]["logit_bias"] or None)
    _seen.clear()
    size = len(row["logits"])
    found = _sampler(torch.tensor([row["logits"]], dtype=torch.float32), _metadata(row, params, size))
    if _seen:
        return _seen[0][0]
    return torch.nn.functional.one_hot(found.sampled_token_ids[0].long(), size)[0].double()


def _metadata(row: Mapping[str, Any], params: SamplingParams, size: int) -> SamplingMetadata:
    greedy = params.temperature < 1e-5
    words = row["params"].get("bad_words_token_ids")
    return SamplingMetadata(
        temperature=None if greedy else torch.tensor([params.temperature]),
        all_greedy=greedy,
        all_random=not greedy,
        top_p=torch.tensor([params.top_p]) if params.top_p < 1 else None,
        top_k=torch.tensor([min(params.top_k, size)]) if params.top_k > 0 else None,
        generators={},
        max_num_logprobs=None,
        no_penalties=not _has_penalties(params),
        prompt_token_ids=torch.tensor([row["prompt"]], dtype=torch.long),
        frequency_penalties=torch.tensor([params.frequency_penalty]),
        presence_penalties=torch.tensor([params.presence_penalty]),
        repetition_penalties=torch.tensor([params.repetition_penalty]),
        output_token_ids=[row["output"]],
        allowed_token_ids_mask=None,
        bad_words_token_ids={0: words} if words else {},
        logitsprocs=_processors(params, row),
    )


def _has_penalties(params: SamplingParams) -> bool:
    return bool(params.frequency_penalty or params.presence_penalty or params.repetition_penalty != 1.0)


def _processors(params: SamplingParams, row: Mapping[str, Any]) -> LogitsProcessors:
    config = SimpleNamespace(scheduler_config=SimpleNamespace(max_num_seqs=1))
    made = [MinPLogitsProcessor(config, torch.device("cpu"), False), LogitBiasLogitsProcessor(config, "cpu", False)]
    update = BatchUpdate(batch_size=1, removed=[], added=[(0, params, row["prompt"], row["output"])], moved=[])
    for processor in made:
        processor.update_state(update)
    return LogitsProcessors(made)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    serve("vllm", version("vllm"), {"vllm-v1": law, "vllm": vllm_gpu.law, "vllm-flashinfer": vllm_gpu.flashinfer_law})
