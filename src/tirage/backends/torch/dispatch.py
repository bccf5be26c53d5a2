"""Which path draws which row of a tensor; all of them give the same bits, so nobody can see the choice.

CPU tensors are drawn by the NumPy backend on the same memory. On CUDA the Triton kernels draw the rows that they
run (`triton.supports`), tensor operations those that they can (`eager.supports`), and the host the rest: custom
processors, and every operation that tensors do not know.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.groups import Ids, taken
from tirage.backends.numpy.dispatch import draw_rows
from tirage.backends.torch.arrays import borrowed, check_device, from_numpy, to_numpy
from tirage.backends.torch.eager import draw_into, supports
from tirage.backends.torch.results import blank, write_rows
from tirage.backends.torch.rule import integers
from tirage.operators.row import Process
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn, SamplingMetadata


def draw(logits: Tensor, batch: SamplingBatch, mask: Tensor | NDArray[np.int32] | None) -> Drawn:
    """One token for each row of float32 logits [B, V], as tensors on their device.

    `mask` int32 [B, ceil(V / 32)] may be on the host; a tensor on another device than the logits is a ParamsError.
    """
    check_device(mask, logits)
    rows = batch.metadata(to_numpy(mask) if isinstance(mask, Tensor) else mask)
    return draw_packed(logits, rows, batch.processes)


def draw_packed(logits: Tensor, rows: SamplingMetadata, processes: Sequence[Process | None] | None = None) -> Drawn:
    """One token for each of the packed `rows` from float32 logits [B, V], as tensors on their device."""
    if logits.is_cpu:
        return draw_rows(borrowed(logits), rows, processes).moved(torch.from_numpy, viewed=rows.wants_logprobs)
    return draw_on_device(logits, rows, processes, kernels=kernels_for(logits))


def kernels_for(logits: Tensor) -> ModuleType | None:
    """The Triton kernels for logits [B, V], if their device and the installation have them, else None."""
    if logits.device.type != "cuda" or find_spec("triton") is None:
        return None
    from tirage.backends.torch import triton

    return triton


def draw_on_device(
    logits: Tensor,
    rows: SamplingMetadata,
    processes: Sequence[Process | None] | None = None,
    *,
    kernels: ModuleType | None = None,
) -> Drawn:
    """One token for each of `rows` from float32 logits [B, V]: by `kernels` where they support it, else by tensor
    operations, else on the host."""
    out = blank(rows, logits)
    able = supports(rows)
    fast = kernels.supports(rows) if kernels is not None else np.zeros_like(able)
    if kernels is not None and fast.any():
        kernels.draw_into(out, logits, rows, np.flatnonzero(fast))
    draw_into(out, logits, rows, np.flatnonzero(able & ~fast))
    if not (able | fast).all():
        left = np.flatnonzero(~(able | fast))
        write_rows(out, draw_on_host(logits[integers(left, logits)], rows, left, processes), rows, left)
    return out


def draw_on_host(
    logits: Tensor, rows: SamplingMetadata, which: Ids, processes: Sequence[Process | None] | None
) -> Drawn:
    """What the NumPy backend draws for the rows `which` [n], from their whole logits [n, V]; on the logits' device."""
    some, part = None if processes is None else [processes[r] for r in which.tolist()], taken(rows, which)
    drawn = draw_rows(to_numpy(logits), part, some).moved(lambda array: from_numpy(array, logits))
    rows.take_back(which, part)
    return drawn
