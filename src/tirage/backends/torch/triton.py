"""Rows drawn by the Triton kernels: what they support, and how they are launched.

Masks and edits are tensor operations on the tokens that they touch; the steps after them are six kernels at most. Rows
with other operators, or with logprobs or a record to report, are left to tensor operations, which stay on the device
too.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.groups import Ids, runs_only, taken
from tirage.backends.torch import edits, kernels
from tirage.backends.torch.edits import edited
from tirage.backends.torch.plan import HEADER, DrawPlan, has_two_temperatures
from tirage.backends.torch.rule import integers
from tirage.sampling_metadata import STEP_WIDTH, Drawn, SamplingMetadata, View

BLOCK = 512
"""Logits of a thread block of the kernels that read them."""
TILE = 2048
"""Tokens that the thread block of a row looks at together in the last kernel."""

REGISTERS = 96
"""Registers of a thread of the kernels that run a row's steps: with 80 they spill on sm_100."""

# Launch options (num_warps, enable_fp_fusion) are no parameters of the kernels, which type checkers cannot know.
_MEASURE: Any = kernels.measure
_WEIGH: Any = kernels.weigh
_SETTLE: Any = kernels.settle
_BOUND: Any = kernels.bound
_SPLIT: Any = kernels.split
_RESOLVE: Any = kernels.resolve
_LOG_MASSES: Any = kernels.log_masses


def supports(rows: SamplingMetadata) -> NDArray[np.bool_]:
    """bool [B]: rows that `draw_into` may be given."""
    known = runs_only(rows, (*edits.STEPS, *kernels.FILTERS))
    able = known & ~rows.resample & (rows.views == View.NONE) & has_two_temperatures(rows.programs)
    return able if rows.records is None else able & (rows.records.limits == 0)


def draw_into(
    out: Drawn, logits: Tensor, rows: SamplingMetadata, which: Ids, *, block: int = BLOCK, tile: int = TILE
) -> None:
    """Draw the rows `which` [n] into `out`, from float32 logits [B, V] on CUDA.

    `block` and `tile` are powers of two and change no result.
    """
    at = integers(which, logits)
    if which.size < rows.count:
        logits, rows = logits[at], taken(rows, which)
    state, plan = edited(logits, rows), DrawPlan.of(rows)
    # Triton launches on the current device, which need not be the one that holds the logits.
    with torch.cuda.device_of(logits):
        meta = plan.on(logits.device)
        token, logprob, support, status = launch(
            state.x, state.bad, meta, draws=plan.draws, filters=plan.filters, block=block, tile=tile
        )
    out.token_ids[at], out.sampled_logprobs[at], out.support[at], out.status[at] = token, logprob, support, status
    out.top_logprobs[at] = out.top_logprobs[at].masked_fill((status != 0)[:, None], torch.nan)


def launch(
    x: Tensor, bad: Tensor, meta: Tensor, *, draws: bool, filters: bool, block: int = BLOCK, tile: int = TILE
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(token, logprob, support, status), each [B], of edited logits [B, V]; `bad` bool [B] are rows without a token.

    `meta` int64 [B, columns] is that of a DrawPlan; `draws` and `filters` say whether any row may draw, or filter.
    Everything is allocated here and nothing is read by the host, so the launches may be part of a CUDA graph.
    """
    (b, size), device = x.shape, x.device
    blocks = triton.cdiv(size, block)
    padded, plane = triton.next_power_of_2(blocks), b * blocks
    columns = meta.shape[1]
    steps = (columns - HEADER) // STEP_WIDTH
    ends = torch.empty(2, b, blocks, dtype=torch.int32, device=device)
    row = torch.empty(b, kernels.ROW, dtype=torch.int32, device=device)
    bins = torch.empty(b, kernels.BINS, dtype=torch.int32, device=device)
    length = torch.empty(b, dtype=torch.int32, device=device)
    status, support = torch.empty(b, dtype=torch.int8, device=device), torch.empty(b, dtype=torch.int64, device=device)
    token, logprob = torch.empty_like(support), torch.empty(b, dtype=torch.float32, device=device)
    drawing = b if draws else 0
    mass = torch.empty(drawing, blocks, kernels.PLANES, dtype=torch.int64, device=device)
    count = torch.empty(drawing, blocks, kernels.COUNTS, dtype=torch.int32, device=device)
    listed = torch.empty(b if filters else 0, size, dtype=torch.int32, device=device)
    exact: dict[str, Any] = {"enable_fp_fusion": False}
    wide = {"num_warps": 8, "maxnreg": REGISTERS, **exact}

    _MEASURE[b, blocks](x, ends, plane, size, blocks, BLOCK=block, **exact)
    shape = (columns, size, blocks)
    spoiled = bad.view(torch.uint8)
    _SETTLE[b,](x, ends, spoiled, meta, row, status, bins, length, plane, *shape, BLOCK=block, PADDED=padded, **exact)
    if draws:
        _WEIGH[b, blocks](x, meta, row, status, mass, count, bins, *shape, BLOCK=block, **exact)
        _BOUND[b,](bins, meta, row, status, mass, columns, blocks, steps, PADDED=padded, **wide)
        if filters:
            _SPLIT[b, blocks](x, meta, row, status, ends, mass, count, listed, length, *shape, BLOCK=block, **exact)
    _RESOLVE[b,](
        *(x, ends, mass, count, listed, length, meta, row, status, token, logprob, support),
        *(columns, size, blocks, steps),
        BLOCK=block,
        PADDED=padded,
        TILE=tile,
        **wide,
    )
    return token, logprob, support, status


def log_masses(mass: Tensor) -> Tensor:
    """ln of integer masses int64 [B], at least 1, as `log_op.log_mass` gives them: float32 [B]."""
    found = torch.empty(mass.shape, dtype=torch.float32, device=mass.device)
    if mass.numel():
        _LOG_MASSES[mass.numel(),](mass.contiguous(), found, enable_fp_fusion=False)
    return found
