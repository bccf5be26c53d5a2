"""Seeded tokens as vLLM's own functions draw them: both model runners, without a GPU.

The kernel of model runner V2 runs in Triton's interpreter. Prints lines of `tests/data/engine_draws.jsonl`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path.append(str(Path(__file__).parents[2]))

import torch
import triton
import triton.language
import vllm._C  # noqa: F401  registers the CPU's kernels
import vllm.triton_utils

# vLLM has Triton only beside a GPU; its interpreter needs none.
vllm.triton_utils.triton, vllm.triton_utils.tl = triton, triton.language

from engine_draws import PROMPT, SeededRequest, print_draws  # noqa: E402
from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler, apply_top_k_top_p_pytorch  # noqa: E402
from vllm.v1.worker.gpu.sample.gumbel import gumbel_sample  # noqa: E402

Drawer = Callable[[SeededRequest], list[int]]


def cuts(request: SeededRequest) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """top_k and top_p of one row, None where they are off."""
    k, p = request.params.get("top_k"), request.params.get("top_p")
    return (None if k is None else torch.tensor([k])), (None if p is None else torch.tensor([p]))


def rows(request: SeededRequest) -> list[torch.Tensor]:
    """The logits [1, V] of each step over the temperature."""
    return [torch.from_numpy(row[None]) / request.params.get("temperature", 1.0) for row in request.logits()]


def v1(forward: str) -> Drawer:
    """Model runner V1: a generator for each request, as `GPUModelRunner._update_states` seeds it."""
    sampler = TopKTopPSampler()

    def drawn(request: SeededRequest) -> list[int]:
        generator = torch.Generator().manual_seed(request.seed)
        return [getattr(sampler, forward)(row, {0: generator}, *cuts(request))[0].item() for row in rows(request)]

    return drawn


def v2(request: SeededRequest) -> list[int]:
    """Model runner V2, as `Sampler._sample_random` calls its kernel."""
    found = []
    for step, row in enumerate(rows(request)):
        found.append(
            gumbel_sample(
                apply_top_k_top_p_pytorch(row, *cuts(request)),
                torch.zeros(1, dtype=torch.int32),
                torch.ones(1),
                torch.tensor([request.seed]),
                torch.tensor([len(PROMPT) + step - 1]),
                apply_temperature=False,
                is_drafting=False,
            ).item()
        )
    return found


DRAWERS: dict[str, Drawer] = {"vllm": v2, "vllm-v1-cpu": v1("forward_cpu"), "vllm-v1-torch": v1("forward_native")}

if __name__ == "__main__":
    for name, drawer in DRAWERS.items():
        print_draws(name, drawer)
