"""Seeded tokens as SGLang's own functions draw them, its hash in Triton's interpreter.

Prints lines of `tests/data/engine_draws.jsonl`.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ["TRITON_INTERPRET"] = "1"
sys.path.append(str(Path(__file__).parents[2]))

import published  # noqa: F401  what the wheel imports and a processor lacks
import torch
import triton

torch.compile = lambda function=None, **_: function if function is not None else (lambda f: f)  # nothing to compile

from engine_draws import PROMPT, STEPS, SeededRequest, print_draws  # noqa: E402
from sglang.kernels.ops.sampling.murmur_hash import murmur_hash32_kernel  # noqa: E402
from sglang.srt.layers import sampler  # noqa: E402

_ALL = 1 << 30


def murmur_hash32(seed: torch.Tensor, positions: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
    """What `murmur_hash32` does on a GPU; on a CPU it asks for a compiled package."""
    rows, width = seed.shape[0], columns.shape[0]
    hashed = torch.empty((rows, width), dtype=torch.uint32)
    grid = (rows, triton.cdiv(width, 1024))
    murmur_hash32_kernel[grid](seed, positions, columns, hashed, rows, width, BLOCK_SIZE=1024)
    return hashed


sampler.murmur_hash32 = murmur_hash32


def drawn(request: SeededRequest, *, batch_truncates: bool = False) -> list[int]:
    """The tokens of all steps, as `Sampler._sample_from_probs` draws them in deterministic inference."""
    probs = torch.softmax(torch.from_numpy(request.logits()) / request.params.get("temperature", 1.0), -1)
    positions = torch.arange(STEPS) + len(PROMPT) - 1
    seeds = torch.full((STEPS,), request.seed)
    if not batch_truncates and not request.params.keys() & {"top_k", "top_p"}:
        return sampler.sampling_from_probs_torch(probs, seeds, positions).tolist()
    return sampler.top_k_top_p_min_p_sampling_from_probs_torch(
        probs,
        torch.full((STEPS,), request.params.get("top_k", _ALL)),
        torch.full((STEPS,), request.params.get("top_p", 1.0)),
        torch.zeros(STEPS),
        False,
        seeds,
        positions,
    ).tolist()


def drawn_beside(request: SeededRequest) -> list[int]:
    """The same in a batch where another row has top_p."""
    return drawn(request, batch_truncates=True)


if __name__ == "__main__":
    print_draws("sglang", drawn)
    print_draws("sglang, batch_truncates", drawn_beside)
