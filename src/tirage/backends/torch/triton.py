"""Rows drawn by the Triton kernels: what they support, and how they are launched.

Masks and edits are tensor operations on the tokens that they touch; the steps after them are five kernels at most. Rows
with a watermark, or with logprobs or a record to report, are left to others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.groups import Ids, ranges, runs_only, taken
from tirage.backends.torch import edits, kernels
from tirage.backends.torch.edits import edited
from tirage.backends.torch.plan import (
    APART,
    COUNTS,
    HEADER,
    MARKS,
    ORDERS,
    REWRITES,
    SETS,
    SUMS,
    DrawPlan,
    smooths_last,
)
from tirage.backends.torch.rule import integers
from tirage.operators.smoothing import SMOOTH
from tirage.sampling_metadata import STEP_WIDTH, Drawn, SamplingMetadata, View

BLOCK = 512
"""Logits of a thread block of the kernels that read them."""
TILE = 2048
"""Tokens that the thread block of a row looks at together in the last kernel."""

RUN = 8
"""Blocks of logits that a thread block of the first pass reads: each looks at the same sample of its row."""
REGISTERS = 96
"""Registers of a thread of the kernels that run a row's steps: with 80 they spill on sm_100."""

# Launch options (num_warps, enable_fp_fusion) are no parameters of the kernels, which type checkers cannot know.
_MEASURE: Any = kernels.measure
_BOUND: Any = kernels.bound
_SPLIT: Any = kernels.split
_SPLIT_FIRST: Any = kernels.split_first
_RESOLVE: Any = kernels.resolve
_GENERAL: Any = kernels.general
_LOG_MASSES: Any = kernels.log_masses


def supports(rows: SamplingMetadata) -> NDArray[np.bool_]:
    """bool [B]: rows that `draw_into` may be given."""
    able = runs_only(rows, (*edits.STEPS, SMOOTH, *SETS)) & ~rows.resample & (rows.views == View.NONE)
    return able if rows.records is None else able & (rows.records.limits == 0)


def draw_into(
    out: Drawn, logits: Tensor, rows: SamplingMetadata, which: Ids, *, block: int = BLOCK, tile: int = TILE
) -> None:
    """Draw the rows `which` [n] into `out`, from float32 logits [B, V] on CUDA.

    `block` and `tile` are powers of two and change no result.
    """
    at, some = integers(which, logits), rows
    if which.size < rows.count:
        logits, some = logits[at], taken(rows, which)
    early = ~smooths_last(some.programs)
    state, plan = edited(logits, some, early), DrawPlan.of(some).without_smoothing(early)
    beside = _beside(some, logits, tells=bool(plan.set_needs))
    # Triton launches on the current device, which need not be the one that holds the logits.
    with torch.cuda.device_of(logits):
        meta = plan.on(logits.device)
        token, logprob, support, status = launch(
            *(state.x, state.bad, meta),
            **plan.needs,
            beside=beside,
            block=block,
            tile=tile,
        )
    if rows.chances is not None and beside.told is not None:
        rows.chances[which] = beside.told.cpu().numpy()
    out.token_ids[at], out.sampled_logprobs[at], out.support[at], out.status[at] = token, logprob, support, status
    out.top_logprobs[at] = out.top_logprobs[at].masked_fill((status != 0)[:, None], torch.nan)


def launch(
    x: Tensor,
    bad: Tensor,
    meta: Tensor,
    *,
    draws: bool,
    filters: bool,
    sums: bool,
    set_needs: int = 0,
    beside: Beside | None = None,
    block: int = BLOCK,
    tile: int = TILE,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(token, logprob, support, status), each [B], of edited logits [B, V]; `bad` bool [B] are rows without a token.

    `meta` int64 [B, columns] is that of a DrawPlan, and so are `draws`, `filters`, `sums` and `set_needs`. Everything
    is allocated here and nothing is read by the host, so the launches may be part of a CUDA graph. They count in a
    column of `meta`, which is 0 before and after them. Where rows smooth their logits, a copy is changed.
    """
    needs: dict[str, Any] = {"draws": draws, "filters": filters, "sums": sums, "set_needs": set_needs}
    x = x.clone() if set_needs & REWRITES else x
    bins = torch.zeros(x.shape[0], kernels.BINS, dtype=torch.int32, device=x.device)
    work = Workspace.of(x, bins, columns=meta.shape[1], **needs, block=block, tile=tile)
    _MEASURE[work.rows, triton.cdiv(work.blocks, RUN)](
        *(x, bad.view(torch.uint8), meta, *work.settled, work.plane, work.columns, work.size, work.blocks),
        *(RUN, work.counts),
        BLOCK=block,
        PADDED=work.padded,
        **FIRST,
    )
    return drawn(x, meta, work, beside or Beside())


EXACT: dict[str, Any] = {"enable_fp_fusion": False}
"""Options of every launch."""
FIRST: dict[str, Any] = {"num_warps": 8, **EXACT}
"""Options of the kernels that count while they measure."""
WIDE: dict[str, Any] = {"maxnreg": REGISTERS, **FIRST}
"""Options of the kernels that run a row's steps or edits."""
BINNED: dict[str, Any] = {**WIDE, "num_warps": 16}
"""Options of the kernel that runs them on the lanes of a histogram: a thread has one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """What the kernels of one draw of `rows` rows of `size` logits pass on to each other: see `kernels.layout`."""

    rows: int
    size: int
    columns: int
    block: int
    tile: int
    draws: bool
    filters: bool
    sums: bool
    counts: int
    lists: bool
    marks: int
    buckets: int
    ends: Tensor
    row: Tensor
    bins: Tensor
    added: Tensor
    length: Tensor
    status: Tensor

    @classmethod
    def of(
        cls,
        x: Tensor,
        bins: Tensor,
        *,
        columns: int,
        draws: bool,
        filters: bool,
        sums: bool,
        set_needs: int,
        block: int,
        tile: int,
    ) -> Workspace:
        """That of logits [B, V] with so many columns of numbers for each row, in blocks and tiles of these sizes.

        `bins` int32 [B or more, BINS] are zeros, before and after the draw.
        """
        (b, size), device = x.shape, x.device
        return cls(
            rows=b,
            size=size,
            columns=columns,
            block=block,
            tile=tile,
            draws=draws,
            filters=filters,
            sums=sums,
            counts=int(filters) + 2 * bool(set_needs & COUNTS),
            lists=bool(set_needs),
            marks=kernels.marks(size) if set_needs & MARKS else 0,
            buckets=kernels.room(tile, size, marks=bool(set_needs & APART)) if set_needs & ORDERS else 0,
            ends=torch.empty(kernels.ENDS, b, triton.cdiv(size, block), dtype=torch.int32, device=device),
            row=torch.empty(b, kernels.ROW, dtype=torch.int32, device=device),
            bins=bins,
            added=torch.empty(b, SUMS, dtype=torch.int64, device=device),
            length=torch.empty(b, dtype=torch.int32, device=device),
            status=torch.empty(b, dtype=torch.int8, device=device),
        )

    @property
    def blocks(self) -> int:
        """Thread blocks of a row in the kernels that read it."""
        return triton.cdiv(self.size, self.block)

    @property
    def padded(self) -> int:
        """The same, rounded up to a power of two."""
        return triton.next_power_of_2(self.blocks)

    @property
    def settled(self) -> tuple[Tensor, ...]:
        """What the first kernel writes: `ends` [ENDS, B, blocks] and what follows from them for each of B rows."""
        return self.ends, self.row, self.status, self.bins, self.added, self.length

    def as_sets(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """What rows that are drawn as sets write: int32 [B, V + marks + FEW + buckets], and int64 [B, WORDS]."""
        width = self.size + self.marks + kernels.FEW + self.buckets
        lists = torch.empty(self.rows, width, dtype=torch.int32, device=device)
        return lists, torch.empty(self.rows, kernels.WORDS, dtype=torch.int64, device=device)

    @property
    def plane(self) -> int:
        """How many numbers lie between two that are found of a block."""
        return self.rows * self.blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What is known, and told, of B rows beside their numbers in a plan; None is nothing.

    `told` float64 [B] are the chances of the tokens of rows that are drawn as sets, before adaptive-p, or where there
    is `carry`, the table of `device.carry`, what they carry after their tokens, which is noted there too. `spared`
    int32 [S, ceil(V / 32)] are bitmasks of what XTC never removes. `scale` float32 [S, 2] is NaN of rows of whose sets
    `Workspace.added` is to tell (`told`), and `kept` uint8 [B, V] is where these are marked, without columns where none
    has to be. `slots` int64 [B] says which rows of the tables with S rows are theirs.
    """

    told: Tensor | None = None
    slots: Tensor | None = None
    carry: Tensor | None = None
    spared: Tensor | None = None
    scale: Tensor | None = None
    kept: Tensor | None = None

    @property
    def tells(self) -> int:
        """What `general` tells of rows."""
        if self.told is None:
            return 0
        return kernels.CHANCES if self.carry is None else kernels.STATES

    @property
    def spares(self) -> int:
        """How many words a row of `spared` has."""
        return 0 if self.spared is None else self.spared.shape[1]

    @property
    def keeps(self) -> int:
        """How many marks a row of `kept` has, -1 where no laws are told."""
        return -1 if self.scale is None or self.kept is None else self.kept.shape[1]

    def tables(self, meta: Tensor, length: Tensor) -> tuple[Tensor, ...]:
        """What is told, slots, and the tables; in the place of what is nowhere, a tensor of its type."""
        given = (self.told, self.slots, self.carry, self.spared, self.scale, self.kept)
        other = (meta.view(torch.float64), meta, meta, length, length.view(torch.float32), length.view(torch.uint8))
        return tuple(one if each is None else each for each, one in zip(given, other, strict=True))


def _beside(rows: SamplingMetadata, logits: Tensor, *, tells: bool) -> Beside:
    """That of the rows of logits [B, V], which lie in no table on the device; chances are told where it `tells`."""
    b, size = logits.shape
    told = None if rows.chances is None or not tells else torch.empty(b, dtype=torch.float64, device=logits.device)
    if not rows.protected_ids.size:
        return Beside(told=told)
    flags = np.zeros((b, -(-size // 32) * 32), bool)
    row, position = ranges(rows.protected_start[:-1], rows.protected_start[1:])
    flags[row, rows.protected_ids[position]] = True
    spared = torch.from_numpy(np.packbits(flags, axis=1, bitorder="little").view(np.int32)).to(logits.device)
    return Beside(told=told, slots=torch.arange(b, device=logits.device), spared=spared)


def drawn(x: Tensor, meta: Tensor, work: Workspace, beside: Beside) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(token, logprob, support, status), each [B], of edited logits [B, V] once their rows are settled.

    Those of rows with smoothing are changed.
    """
    b, blocks, device = work.rows, work.blocks, x.device
    support = torch.empty(b, dtype=torch.int64, device=device)
    token, logprob = torch.empty_like(support), torch.empty(b, dtype=torch.float32, device=device)
    drawing = b if work.draws else 0
    mass = torch.empty(drawing, blocks, kernels.PLANES, dtype=torch.int64, device=device)
    count = torch.empty(drawing, blocks, kernels.COUNTS, dtype=torch.int32, device=device)
    listed = torch.empty(b if work.filters else 0, work.size, dtype=torch.int32, device=device)
    shape, steps = (work.columns, work.size, blocks), (work.columns - HEADER) // STEP_WIDTH
    row, status, block, padded = work.row, work.status, work.block, work.padded
    _, slots, _, spared, *_ = beside.tables(meta, work.length)

    if work.draws:
        bounded = (work.bins, work.added, meta, row, status, mass)
        _BOUND[b,](*bounded, *shape, steps, int(work.sums), PADDED=padded, **BINNED)
        read = (meta, row, status, work.ends, mass, count, work.added, listed, work.length, slots, work.plane, *shape)
        if work.sums:
            _SPLIT_FIRST[b, blocks](x, work.bins, *read, steps, beside.spares, BLOCK=block, PADDED=padded, **WIDE)
        _SPLIT[b, blocks](x, *read, beside.spares, BLOCK=block, **EXACT)
    passed = (x, work.ends, mass, count, work.added, listed, work.length, meta, row, status)
    found, sizes = (token, logprob, support), {"BLOCK": block, "PADDED": padded, "TILE": work.tile}
    if work.lists:
        _GENERAL[b,](
            *(*passed, work.bins, *work.as_sets(device), *beside.tables(meta, work.length), *found, *shape, steps),
            *(work.marks, work.buckets, beside.tells, beside.spares, beside.keeps),
            LONG=2 * work.tile,
            **sizes,
            **WIDE,
        )
    else:
        _RESOLVE[b,](*passed, spared, *found, *shape, steps, beside.spares, LEVELED=work.sums, **sizes, **WIDE)
    return token, logprob, support, status


def log_masses(mass: Tensor) -> Tensor:
    """ln of integer masses int64 [B], at least 1, as `log_op.log_mass` gives them: float32 [B]."""
    found = torch.empty(mass.shape, dtype=torch.float32, device=mass.device)
    if mass.numel():
        _LOG_MASSES[mass.numel(),](mass.contiguous(), found, **EXACT)
    return found
