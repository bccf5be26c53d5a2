"""The steps of rows whose tables lie on a CUDA device, as launches of Triton kernels: at most five draw, one
appends, two more report logprobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
from torch import Tensor

from tirage.backends.torch import kernels
from tirage.backends.torch.device.past import Tables
from tirage.backends.torch.draw_op import DrawnRows
from tirage.backends.torch.triton import BLOCK, EXACT, FIRST, RUN, TILE, WIDE, Beside, Workspace, drawn
from tirage.draw import Status

PART = 4096
"""Logits that a thread block edits: each looks through all ids that a row biases or counts."""
COPIED = 2048
"""Logits that such a block copies at a time."""
STATUSES = {"FULL": int(Status.history_full), "EMPTY": int(Status.empty_slot)}
"""Constants of the kernels that settle rows at slots."""
VIEWED = 1024
"""Logits of a thread block of the kernels that report: each reads the ends of all blocks of its row."""
NAMED = 128
"""Tokens whose logprobs the last thread block of a row that names them tells at a time."""
IDS = 512
"""Ids that a thread block looks at together."""

_EDIT: Any = kernels.edit
_MEASURE_SLOTS: Any = kernels.measure_slots
_APPEND: Any = kernels.append
_VIEW_ENDS: Any = kernels.view_ends
_VIEW_WEIGH: Any = kernels.view_weigh

_EDITED = (
    "least", "words", "early", "edits", "bias_ids", "bias_values", "count_ids", "in_prompt",
    "in_output", "distinct", "ring", "ahead", "prompt", "ngram", "powers", "last_power", "breaks", "unbroken",
    "phrases", "phrase_ids", "phrase_bias", "phrase_own",
)  # fmt: skip
"""The tables that edits follow from."""


def draw(
    x: Tensor,
    words: Tensor | None,
    slots: Tensor,
    tables: Tables,
    *,
    room: int,
    draws: bool,
    filters: bool,
    sums: bool,
    set_needs: int,
    copies: bool,
    keeps: bool,
    block: int = BLOCK,
    tile: int = TILE,
    part: int = PART,
) -> tuple[DrawnRows, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What `ops.draw` gives of logits [B, V]; arguments as it has them.

    `block`, `tile` and `part` are powers of two, `part` at least `block`, and change no result.
    """
    columns = tables["meta"].shape[1]
    needs: dict[str, Any] = {"draws": draws, "filters": filters, "sums": sums, "set_needs": set_needs}
    work = Workspace.of(x, _counters(tables["bins"], x.shape[0]), columns=columns, **needs, block=block, tile=tile)
    meta = torch.empty(work.rows, columns, dtype=torch.int64, device=x.device)
    seeds = torch.empty(work.rows, dtype=torch.int64, device=x.device)
    ends, *settled = work.settled
    found = (ends, meta, seeds, *settled)
    if copies:
        x = _edited(x, words, slots, tables, work, found, room=room, part=max(part, block))
    else:
        _MEASURE_SLOTS[work.rows, triton.cdiv(work.blocks, RUN)](
            *(x, slots, *_held(tables, work.rows), *found, room, work.plane, columns, work.size, work.blocks),
            *(RUN, work.counts),
            BLOCK=block,
            PADDED=work.padded,
            **STATUSES,
            **FIRST,
        )
    carry, spared = tables["carry"], tables["spared"]
    carries = carry.shape[1] > 0
    states = torch.empty(work.rows if carries else 0, dtype=torch.float64, device=x.device)
    kept = torch.empty(work.rows, work.size if keeps else 0, dtype=torch.uint8, device=x.device)
    scale = tables["view_scale"] if tables["view_scale"].shape[1] else None
    beside = Beside(told=states if carries else None, slots=slots, carry=carry, spared=spared, scale=scale, kept=kept)
    return drawn(x, meta, work, beside), seeds, x, states, work.added, kept


def _held(tables: Tables, rows: int) -> tuple[Tensor, ...]:
    """Whether each slot is used, how many tokens it has, and its numbers; and a counter for each of so many `rows`."""
    counters = _counters(tables["arrived"], rows)
    return tables["used"].view(torch.uint8), tables["length"], tables["meta"], counters


def _counters(table: Tensor, rows: int) -> Tensor:
    """A table that the kernels count in, with so many rows: a slot that is listed twice has two of them.

    It is 0 before and after a draw.
    """
    return table if rows <= table.shape[0] else table.new_zeros(rows, *table.shape[1:])


def _edited(
    x: Tensor,
    words: Tensor | None,
    slots: Tensor,
    tables: Tables,
    work: Workspace,
    found: Sequence[Tensor],
    *,
    room: int,
    part: int,
) -> Tensor:
    """Logits [B, V] after their masks and edits, float32; what is `found` of their rows is written on the way."""
    y = torch.empty(work.rows, work.size, dtype=torch.float32, device=x.device)
    ring = tables["ring"].shape[1]
    powers = tables["powers"].shape[1]
    candidates = torch.empty(work.rows, ring if powers else 0, dtype=torch.float32, device=x.device)
    is_bfloat = x.dtype is torch.bfloat16
    _EDIT[work.rows, triton.cdiv(work.size, part)](
        x.view(torch.int16) if is_bfloat else x,
        *(tables["words"] if words is None else words, slots, y, candidates, *found),
        *_held(tables, work.rows),
        *(_octets(tables[name]) for name in _EDITED),
        *(room, work.plane, work.columns, work.counts, int(words is not None)),
        *(int(tables[name].shape[1] > 0) for name in ("words", "early")),
        *(tables[name].shape[1] for name in ("edits", "bias_ids", "count_ids", "ring", "ngram", "powers")),
        *(*tables["phrases"].shape[1:], work.size, work.blocks),
        BLOCK=work.block,
        PADDED=work.padded,
        PART=part,
        COPIED=min(part, COPIED),
        TILE=IDS,
        IS_BFLOAT=is_bfloat,
        **STATUSES,
        **WIDE,
    )
    return y


def report(
    given: Tensor,
    edited: Tensor,
    sets: Tensor,
    kept: Tensor,
    token: Tensor,
    status: Tensor,
    slots: Tensor,
    views: Sequence[Tensor],
    *,
    most: int,
    asked: int,
    mixes: bool,
    block: int = VIEWED,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(logprobs [B], ranks [B], top ids [B, most], top logprobs [B, most], asked logprobs [B, asked]) of rows of logits
    `given` [B, V].

    Arguments as `ops.report` has them, `views` its tables.
    """
    (b, size), device = given.shape, given.device
    blocks, is_bfloat = triton.cdiv(size, block), given.dtype is torch.bfloat16
    view, scale, top_n, asked_ids = views
    ends, mass = (torch.empty(b, blocks, dtype=torch.int64, device=device) for _ in range(2))
    above, arrived = (torch.empty(b, n, dtype=torch.int32, device=device) for n in (blocks, 1))
    logprob, rank = (torch.empty(b, dtype=kind, device=device) for kind in (torch.float32, torch.int64))
    ids, logprobs = (torch.empty(b, most, dtype=kind, device=device) for kind in (torch.int64, torch.float32))
    asked_logprobs = torch.empty(b, asked, dtype=torch.float32, device=device)
    laws = torch.empty(b, size if mixes else 0, dtype=torch.float32, device=device)
    x = (given.view(torch.int16) if is_bfloat else given, edited, sets, kept, laws, slots, view)
    each: dict[str, Any] = {"BLOCK": block, "IS_BFLOAT": is_bfloat, **EXACT}
    _VIEW_ENDS[b, blocks](*x, status, ends, arrived, kept.shape[1], size, blocks, **{**each, **FIRST})
    _VIEW_WEIGH[b, blocks](
        *(*x, scale, top_n, asked_ids, status, token, ends, mass, above, arrived, logprob, rank, ids, logprobs),
        *(asked_logprobs, most, asked, asked_ids.shape[1], kept.shape[1], size, blocks),
        PADDED=triton.next_power_of_2(blocks),
        NAMED=min(block, NAMED),
        EMPTY=STATUSES["EMPTY"],
        **each,
    )
    return logprob, rank, ids, logprobs, asked_logprobs


def append(token: Tensor, slots: Tensor, tables: Tables, *, room: int, size: int, ids: int = IDS) -> None:
    """Appends tokens [B] to the rows of `slots`, as `ops.append` describes it; `ids` changes no result."""
    names = ("count_ids", "in_prompt", "in_output", "distinct", "window", "ring", "ahead", "breaks", "unbroken")
    sized = ("meta", "tail", "count_ids", "window", "ring", "ahead", "powers", "carry")
    width = {name: tables[name].shape[1] for name in sized}
    _APPEND[token.shape[0],](
        *(token, slots, tables["used"].view(torch.uint8)),
        *(tables[name] for name in ("meta", "length", "said", "fault", "tail", *names, "carry")),
        *(width["meta"], room, width["tail"], width["count_ids"], width["window"], width["ring"], width["ahead"]),
        *(width["powers"], width["carry"], size),
        TILE=ids,
        **EXACT,
    )


def _octets(table: Tensor) -> Tensor:
    return table.view(torch.uint8) if table.dtype is torch.bool else table
