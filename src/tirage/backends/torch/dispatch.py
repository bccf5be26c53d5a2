"""Which path draws which row of a tensor; all of them give the same bits, so nobody can see the choice.

CPU tensors are drawn by the NumPy backend on the same memory. On CUDA the Triton kernels draw the rows that they
know (`triton.supports`), `eager` the other ones, and the host the few that need Python (`eager.on_device`); without
Triton, and on devices of other kinds, `eager` draws them all.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from types import ModuleType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends import Drawn, Frame, Process, SamplingMetadata
from tirage.backends.groups import Ids, taken
from tirage.backends.numpy.dispatch import draw_rows
from tirage.backends.torch import eager
from tirage.backends.torch.arrays import borrowed, check_device, from_numpy, to_numpy
from tirage.backends.torch.rule import host


def draw(logits: Tensor, frame: Frame, mask: Tensor | NDArray[np.int32] | None) -> Drawn:
    """One token for each row of float32 logits [B, V], as tensors on their device."""
    check_device(mask, logits)
    rows = frame.rows(to_numpy(mask) if isinstance(mask, Tensor) else mask)
    if logits.is_cpu:
        return draw_rows(borrowed(logits), rows, frame.processes).moved(torch.from_numpy, viewed=frame.wants_logprobs)
    return draw_on_device(logits, rows, frame.processes, kernels=kernels_for(logits))


def kernels_for(logits: Tensor) -> ModuleType | None:
    """The Triton kernels, where the device of `logits` and the installation have them."""
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
    """One token for each of `rows`: by `kernels` where they support it, else by `eager`, else on the host."""
    out = eager.blank(rows, logits)
    able = eager.on_device(rows)
    fast = able & kernels.supports(rows) if kernels is not None else np.zeros_like(able)
    if kernels is not None and fast.any():
        kernels.draw_into(out, logits, rows, np.flatnonzero(fast))
    eager.draw_into(out, logits, rows, np.flatnonzero(able & ~fast))
    if not able.all():
        _draw_on_host(out, logits, rows, np.flatnonzero(~able), processes)
    return out


def _draw_on_host(
    out: Drawn, logits: Tensor, rows: SamplingMetadata, which: Ids, processes: Sequence[Process | None] | None
) -> None:
    some = None if processes is None else [processes[r] for r in which.tolist()]
    drawn = draw_rows(to_numpy(logits[host(which, logits)]), taken(rows, which), some)
    eager.write_rows(out, drawn.moved(lambda a: from_numpy(a, logits)), rows, which)
