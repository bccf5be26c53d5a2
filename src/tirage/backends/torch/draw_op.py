"""The draw as an operator of PyTorch's, `torch.ops.tirage.draw`: tensors in, tensors out, nothing read by the host.

It leaves its arguments as they are and knows their shapes without their values, so `torch.compile(fullgraph=True)`
keeps it whole and a CUDA graph holds its launches. On CUDA it is the Triton kernels, on the CPU the NumPy backend on
the same memory; both give the same bits.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.numpy.dispatch import draw_rows
from tirage.backends.torch.plan import metadata_of

DrawnRows = tuple[Tensor, Tensor, Tensor, Tensor]
"""(token ids int64, sampled logprobs float32, support sizes int64, status int8), each [B]."""

torch.library.define(
    "tirage::draw",
    "(Tensor x, Tensor bad, Tensor meta, bool draws, bool filters, bool sums, int set_needs=0) -> "
    "(Tensor, Tensor, Tensor, Tensor)",
)


def draw(
    x: Tensor, bad: Tensor, meta: Tensor, *, draws: bool, filters: bool, sums: bool, set_needs: int = 0
) -> DrawnRows:
    """One token for each row of float32 logits [B, V] after their edits, and what is known of it.

    `bad` bool [B] are rows that have no token whatever their logits. `meta` int64 [B, columns] as `plan` describes it,
    where the kernels count while they run: draws on two CUDA streams at a time need one each. `draws`, `filters`,
    `sums` and `set_needs` are those of the rows' `DrawPlan`.
    """
    return torch.ops.tirage.draw(x, bad, meta, draws, filters, sums, set_needs)


@torch.library.register_fake("tirage::draw")
def _shapes(
    x: Tensor, bad: Tensor, meta: Tensor, draws: bool, filters: bool, sums: bool, set_needs: int = 0
) -> DrawnRows:
    rows = x.shape[0]
    kinds = (torch.int64, torch.float32, torch.int64, torch.int8)
    token, logprob, support, status = (torch.empty(rows, dtype=kind, device=x.device) for kind in kinds)
    return token, logprob, support, status


@torch.library.impl("tirage::draw", "CPU")
def _on_cpu(
    x: Tensor, bad: Tensor, meta: Tensor, draws: bool, filters: bool, sums: bool, set_needs: int = 0
) -> DrawnRows:
    return on_host(x, bad, meta)


@torch.library.impl("tirage::draw", "CUDA")
def _on_cuda(
    x: Tensor, bad: Tensor, meta: Tensor, draws: bool, filters: bool, sums: bool, set_needs: int = 0
) -> DrawnRows:
    from tirage.backends.torch.triton import launch

    # Triton launches on the current device, which need not be the one that holds the logits.
    with torch.cuda.device_of(x):
        return launch(x, bad, meta, draws=draws, filters=filters, sums=sums, set_needs=set_needs)


def on_host(
    x: Tensor,
    bad: Tensor,
    meta: Tensor,
    chances: NDArray[np.float64] | None = None,
    spared: NDArray[np.bool_] | None = None,
) -> DrawnRows:
    """What the NumPy backend draws from logits [B, V] on the CPU, in their memory; arguments as `draw` takes them.

    The chances of tokens before adaptive-p are written to `chances` [B], where they are given. `spared` [B, V] are the
    tokens that XTC never removes, None for none.
    """
    spoiled = bad.numpy()
    drawn = draw_rows(x.numpy(), metadata_of(meta.numpy(), chances, spared))
    found = (
        np.where(spoiled, -1, drawn.token_ids),
        np.where(spoiled, np.float32(np.nan), drawn.sampled_logprobs),
        np.where(spoiled, 0, drawn.support),
        np.where(spoiled, np.int8(1), drawn.status),
    )
    token, logprob, support, status = map(torch.from_numpy, found)
    return token, logprob, support, status
