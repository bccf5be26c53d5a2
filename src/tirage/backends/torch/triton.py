"""Rows drawn by the Triton kernels: what they support, and how they are launched.

Masks and edits are tensor operations on the tokens that they touch; the steps after them are three kernels. Rows with
other operators, or with logprobs or a record to report, are left to tensor operations, which stay on the device too.
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
from tirage.backends.torch.rule import floats, integers
from tirage.exact import numbers
from tirage.exact.keys import NEG_INF_KEY, POS_INF_KEY
from tirage.operators import FIRST_FILTER
from tirage.operators.temperature import TEMPERATURE
from tirage.sampling_metadata import Drawn, SamplingMetadata, View

BLOCK = 512
"""Logits of one thread block of the first two kernels: small enough for 50 block maxima to bound a top-50."""
TILE = 2048
"""Logits that the thread block of a row looks at together in the last kernel."""

# Launch options (num_warps, enable_fp_fusion) are no parameters of the kernels, which type checkers cannot know.
_MEASURE: Any = kernels.measure
_WEIGH: Any = kernels.weigh
_SELECT: Any = kernels.select


def supports(rows: SamplingMetadata) -> NDArray[np.bool_]:
    """bool [B]: rows that `draw_into` may be given."""
    known = runs_only(rows, (*edits.STEPS, *kernels.FILTERS))
    able = known & ~rows.resample & (rows.views == View.NONE)
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
    state = edited(logits, rows)
    # Triton launches on the current device, which need not be the one that holds the logits.
    with torch.cuda.device_of(logits):
        token, logprob, support, status = _launch(state.x, state.bad, rows, block, tile)
    out.token_ids[at], out.sampled_logprobs[at], out.support[at], out.status[at] = token, logprob, support, status
    out.top_logprobs[at] = out.top_logprobs[at].masked_fill((status != 0)[:, None], torch.nan)


def _launch(
    x: Tensor, bad: Tensor, rows: SamplingMetadata, block: int, tile: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(token, logprob, support, status), each [B], of edited logits."""
    (b, size), device = x.shape, x.device
    blocks = triton.cdiv(size, block)
    high, low = (torch.empty(b, blocks, dtype=torch.int32, device=device) for _ in range(2))
    _MEASURE[b, blocks](x, high, low, size, blocks, BLOCK=block, enable_fp_fusion=False)
    top = high.amax(1)
    spoiled = bad | (top >= POS_INF_KEY) | (low.amin(1) < NEG_INF_KEY)
    status = torch.where(top > NEG_INF_KEY, 0, 2).masked_fill(spoiled, 1).to(torch.int8)

    c = floats(_first_constants(rows), x)
    mass = torch.empty(b, blocks, dtype=torch.int64, device=device)
    count = torch.empty(b, blocks, dtype=torch.int32, device=device)
    _WEIGH[b, blocks](x, top, c, mass, count, size, blocks, BLOCK=block, enable_fp_fusion=False)

    token = torch.full((b,), -1, dtype=torch.int64, device=device)
    logprob, support = torch.full((b,), torch.nan, device=device), torch.zeros_like(token)
    programs = torch.from_numpy(np.ascontiguousarray(rows.programs)).to(device)
    listed = torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)
    keys = (integers(column, x) for column in (rows.seeds, rows.steps, rows.samples))
    _SELECT[b,](
        *(x, high, mass, count, *listed, programs, status, top, c, *keys, token, logprob, support),
        *(size, blocks, programs.shape[1]),
        BLOCK=block,
        PADDED=triton.next_power_of_2(blocks),
        TILE=tile,
        num_warps=8,
        enable_fp_fusion=False,
    )
    return token, logprob, support, status


def _first_constants(rows: SamplingMetadata) -> NDArray[np.float32]:
    """c of each row until something is filtered: that of a temperature stage that comes first, else that of T = 1."""
    ops = rows.programs[:, :, 0]
    first = np.argmax(ops >= FIRST_FILTER, axis=1)
    step = rows.programs[np.arange(rows.count), first]
    unit = numbers.bits(numbers.temperature_constant(1.0))
    return np.where(step[:, 0] == TEMPERATURE, step[:, 1], unit).astype(np.int32).view(np.float32)
