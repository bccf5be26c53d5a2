"""The steps of rows on a device as operators of PyTorch's, `torch.ops.tirage.draw_slots`, `report_slots` and `append`.

On CUDA each is launches of the Triton kernels (`launches`), on the CPU tensor operations on the same tables (`edits`,
`past`, `counts`, `report`), which the tests hold the kernels to. None reads a value on the host, so
`torch.compile(fullgraph=True)` keeps each whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.torch import draw_op
from tirage.backends.torch.device import counts, edits
from tirage.backends.torch.device.carry import follow
from tirage.backends.torch.device.report import Reported, reported
from tirage.backends.torch.draw_op import DrawnRows
from tirage.backends.torch.plan import REWRITES, SEED, SUMS
from tirage.backends.torch.told import tell_sets
from tirage.draw import Status

WRITTEN: tuple[str, ...] = (
    "meta", "length", "said", "fault", "tail", "count_ids", "in_prompt", "in_output", "distinct", "ring", "ahead",
    "unbroken", "carry",
)  # fmt: skip
"""The tables that `append` writes to; into the last one a draw writes too."""
READ = ("used", "window", "powers", "breaks")
"""Those that it only reads."""
TABLES: tuple[str, ...] = (
    "meta", "used", "length", "least", "edits", "bias_ids", "bias_values", "words", "early", "count_ids", "in_prompt",
    "in_output", "distinct", "ring", "ahead", "prompt", "window", "ngram", "powers", "last_power", "breaks", "unbroken",
    "phrases", "phrase_ids", "phrase_bias", "phrase_own", "spared", "view_scale", "arrived", "bins",
)  # fmt: skip
"""The other tables that a draw reads; in the last two the kernels count while they run, from 0 and to 0 again."""

VIEWS = ("view", "view_scale", "top_n", "asked_ids")
"""Those that say what a row reports."""
MOST_LISTED = 64
"""First candidates that `report` takes one by one; where a row asks for more they are sorted."""

torch.library.define(
    "tirage::draw_slots",
    "(Tensor x, Tensor? words, Tensor slots, Tensor(a!) carry, Tensor[] tables, int[] order, int room, bool draws, "
    "bool filters, bool sums, int set_needs, bool copies, bool keeps) -> (Tensor, Tensor, Tensor, Tensor, Tensor, "
    "Tensor, Tensor, Tensor, Tensor)",
)
torch.library.define(
    "tirage::report_slots",
    "(Tensor given, Tensor edited, Tensor sets, Tensor kept, Tensor token, Tensor status, Tensor slots, Tensor view, "
    "Tensor view_scale, Tensor top_n, Tensor asked_ids, int most, int asked, bool mixes) -> (Tensor, Tensor, Tensor, "
    "Tensor, Tensor)",
)
torch.library.define(
    "tirage::append",
    "(Tensor token, Tensor slots, "
    + ", ".join(f"Tensor({chr(ord('a') + at)}!) {name}" for at, name in enumerate(WRITTEN))
    + "".join(f", Tensor {name}" for name in READ)
    + ", int room, int size) -> ()",
)


def draw(
    x: Tensor,
    words: Tensor | None,
    slots: Tensor,
    tables: Mapping[str, Tensor],
    order: Sequence[int],
    *,
    room: int,
    draws: bool,
    filters: bool,
    sums: bool,
    set_needs: int,
    copies: bool,
    keeps: bool,
) -> tuple[DrawnRows, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(what was drawn, seeds int64 [B], the edited logits float32 [B, V], states, sets, kept) of the rows of `slots`
    int64 [B].

    States float64 [B] are what rows carry after their tokens, NaN for those that carry nothing; [0] where none does.
    Sets int64 [B, `plan.SUMS`] tell what rows were drawn from, and kept uint8 [B, V] marks the tokens of sets that are
    no prefix, if it `keeps` them, else [B, 0] (`told`).
    Logits [B, V] are float32, bfloat16 or float16. `copies` says whether they need a mask, an edit or another type,
    in the `order` of `RowsLayout.edits`; without it `x` itself is what comes back. A row of more than `room` tokens
    has status `history_full`.
    """
    given = [tables[name] for name in TABLES]
    *found, seeds, edited, states, sets, kept = torch.ops.tirage.draw_slots(
        x, words, slots, tables["carry"], given, order, room, draws, filters, sums, set_needs, copies, keeps
    )
    token, logprob, support, status = found
    return (token, logprob, support, status), seeds, edited if copies else x, states, sets, kept


def report(
    given: Tensor,
    edited: Tensor,
    sets: Tensor,
    kept: Tensor,
    token: Tensor,
    status: Tensor,
    slots: Tensor,
    tables: Mapping[str, Tensor],
    *,
    most: int,
    asked: int,
    mixes: bool,
) -> Reported:
    """What the rows of `slots` int64 [B] report of their `token` int64 [B], of at most `most` first candidates, and of
    the first `asked` ids of those that each names, no more than the table has columns.

    `given` are their logits [B, V] of any type that `draw` takes, `edited`, `sets` and `kept` what it gave back.
    `mixes` is whether the tokens of some may be ordered by their logprobs: those of a mixture, or under adaptive-p.
    """
    views = [tables[name] for name in VIEWS]
    parts = (given, edited, sets, kept, token, status, slots)
    return Reported(*torch.ops.tirage.report_slots(*parts, *views, most, asked, mixes))


def append(token: Tensor, slots: Tensor, tables: Mapping[str, Tensor], *, room: int, size: int) -> None:
    """Appends a token int [B] to the rows of `slots` int64 [B]; -1 leaves a row as it is.

    One that is not in [0, `size`), or for an empty slot, is its `fault`; a row keeps no more than `room` tokens.
    """
    torch.ops.tirage.append(token, slots, *(tables[name] for name in (*WRITTEN, *READ)), room, size)


# --- on each kind of device -------------------------------------------------------------------------------------------

Found = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.register_fake("tirage::draw_slots")
def _shapes(
    x: Tensor,
    words: Tensor | None,
    slots: Tensor,
    carry: Tensor,
    tables: Sequence[Tensor],
    order: Sequence[int],
    room: int,
    draws: bool,
    filters: bool,
    sums: bool,
    set_needs: int,
    copies: bool,
    keeps: bool,
) -> Found:
    rows, size = x.shape
    kinds = (torch.int64, torch.float32, torch.int64, torch.int8, torch.int64)
    token, logprob, support, status, seeds = (torch.empty(rows, dtype=kind, device=x.device) for kind in kinds)
    edited = torch.empty(rows if copies else 0, size, dtype=torch.float32, device=x.device)
    states = torch.empty(rows if carry.shape[1] else 0, dtype=torch.float64, device=x.device)
    sets = torch.empty(rows, SUMS, dtype=torch.int64, device=x.device)
    kept = torch.empty(rows, size if keeps else 0, dtype=torch.uint8, device=x.device)
    return token, logprob, support, status, seeds, edited, states, sets, kept


@torch.library.impl("tirage::draw_slots", "CPU")
def _draw_on_cpu(
    x: Tensor,
    words: Tensor | None,
    slots: Tensor,
    carry: Tensor,
    tables: Sequence[Tensor],
    order: Sequence[int],
    room: int,
    draws: bool,
    filters: bool,
    sums: bool,
    set_needs: int,
    copies: bool,
    keeps: bool,
) -> Found:
    named = {**dict(zip(TABLES, tables, strict=True)), "carry": carry}
    drawn, seeds, edited, states, sets, kept = by_tensors(
        x,
        words,
        slots,
        named,
        order,
        room=room,
        draws=draws,
        filters=filters,
        sums=sums,
        set_needs=set_needs,
        copies=copies,
        keeps=keeps,
    )
    return *drawn, seeds, edited if copies else edited.new_empty(0, x.shape[1]), states, sets, kept


@torch.library.impl("tirage::draw_slots", "CUDA")
def _draw_on_cuda(
    x: Tensor,
    words: Tensor | None,
    slots: Tensor,
    carry: Tensor,
    tables: Sequence[Tensor],
    order: Sequence[int],
    room: int,
    draws: bool,
    filters: bool,
    sums: bool,
    set_needs: int,
    copies: bool,
    keeps: bool,
) -> Found:
    from tirage.backends.torch.device import launches

    named = {**dict(zip(TABLES, tables, strict=True)), "carry": carry}
    # Triton launches on the current device, which need not be the one that holds the logits.
    with torch.cuda.device_of(x):
        drawn, seeds, edited, states, sets, kept = launches.draw(
            x,
            words,
            slots,
            named,
            room=room,
            draws=draws,
            filters=filters,
            sums=sums,
            set_needs=set_needs,
            copies=copies,
            keeps=keeps,
        )
    return *drawn, seeds, edited if copies else edited.new_empty(0, x.shape[1]), states, sets, kept


def by_tensors(
    x: Tensor,
    words: Tensor | None,
    slots: Tensor,
    tables: Mapping[str, Tensor],
    order: Sequence[int],
    *,
    room: int,
    draws: bool,
    filters: bool,
    sums: bool,
    set_needs: int,
    copies: bool,
    keeps: bool,
) -> tuple[DrawnRows, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """What `draw` gives of logits x [B, V], by tensor operations on tables on the CPU."""
    # Of tables without columns only the shape is asked for.
    rows = {name: table.index_select(0, slots) if table.numel() else table for name, table in tables.items()}
    y, bad = edits.edited(x.to(torch.float32), rows, order, edits.allowed_words(rows, words))
    full, empty = rows["length"] > room, ~rows["used"]
    carries = tables["carry"].shape[1] > 0
    chances = np.full(len(slots) if carries else 0, np.nan)
    spared = _flags(rows["spared"], y.shape[1]) if tables["spared"].shape[1] else None
    found = draw_op.on_host(y, bad | full | empty, rows["meta"], chances if carries else None, spared)
    token, logprob, support, status = found
    status = status.masked_fill(full, int(Status.history_full)).masked_fill(empty, int(Status.empty_slot))
    sets = torch.zeros(len(slots), SUMS, dtype=torch.int64)
    kept = torch.zeros(len(slots), y.shape[1] if keeps else 0, dtype=torch.uint8)
    if rows["view_scale"].numel():
        is_told = rows["view_scale"][:, 0].isnan() & (status == int(Status.ok))
        tell_sets(sets, kept, y, rows["meta"], np.flatnonzero(is_told.numpy()), spared)
    if set_needs & REWRITES:
        y = edits.smoothed(y, rows["meta"])
    states = torch.from_numpy(chances)
    if carries:
        states = follow(rows["carry"], token, logprob, states)
        tables["carry"].index_copy_(0, slots, rows["carry"])
    return (token, logprob, support, status), rows["meta"][:, SEED].masked_fill(empty, 0), y, states, sets, kept


def _flags(words: Tensor, size: int) -> NDArray[np.bool_]:
    """Bitmasks int32 [B, ceil(V / 32)] as bool [B, V]."""
    octets = words.numpy().view(np.uint8)
    return np.unpackbits(octets, axis=1, bitorder="little")[:, :size].astype(bool)


Told = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.register_fake("tirage::report_slots")
def _told_shapes(given: Tensor, *rest: Tensor | int) -> Told:
    rows, most, asked = given.shape[0], *rest[-3:-1]
    assert isinstance(most, int)
    assert isinstance(asked, int)
    logprob, rank = (torch.empty(rows, dtype=kind, device=given.device) for kind in (torch.float32, torch.int64))
    ids, listed = (torch.empty(rows, most, dtype=kind, device=given.device) for kind in (torch.int64, torch.float32))
    return logprob, rank, ids, listed, torch.empty(rows, asked, dtype=torch.float32, device=given.device)


@torch.library.impl("tirage::report_slots", "CPU")
def _report_on_cpu(
    given: Tensor, edited: Tensor, sets: Tensor, kept: Tensor, token: Tensor, status: Tensor, slots: Tensor,
    view: Tensor, scale: Tensor, top_n: Tensor, asked_ids: Tensor, most: int, asked: int,
    mixes: bool,
) -> Told:  # fmt: skip
    views = view, scale, top_n, asked_ids
    return report_by_tensors(
        given, edited, sets, kept, token, status, slots, views, most=most, asked=asked, mixes=mixes
    )


@torch.library.impl("tirage::report_slots", "CUDA")
def _report_on_cuda(
    given: Tensor, edited: Tensor, sets: Tensor, kept: Tensor, token: Tensor, status: Tensor, slots: Tensor,
    view: Tensor, scale: Tensor, top_n: Tensor, asked_ids: Tensor, most: int, asked: int,
    mixes: bool,
) -> Told:  # fmt: skip
    from tirage.backends.torch.device import launches

    with torch.cuda.device_of(given):
        views = view, scale, top_n, asked_ids
        return launches.report(
            given, edited, sets, kept, token, status, slots, views, most=most, asked=asked, mixes=mixes
        )


def report_by_tensors(
    given: Tensor, edited: Tensor, sets: Tensor, kept: Tensor, token: Tensor, status: Tensor, slots: Tensor,
    views: Sequence[Tensor], *, most: int, asked: int, mixes: bool,
) -> Told:  # fmt: skip
    """What `report` gives of logits `given` [B, V], by tensor operations on the CPU."""
    rows = {name: table.index_select(0, slots) for name, table in zip(VIEWS, views, strict=True)}
    x = given.to(torch.float32)
    told = reported(x, edited, sets, kept, token, status, rows, most=most, asked=asked, mixes=mixes)
    return told.logprobs, told.ranks, told.top_ids, told.top_logprobs, told.asked_logprobs


@torch.library.register_fake("tirage::append")
def _nothing(*_: Tensor | int) -> None:
    pass


@torch.library.impl("tirage::append", "CPU")
def _append_on_cpu(token: Tensor, slots: Tensor, *rest: Tensor | int) -> None:
    append_by_tensors(token, slots, *_named(rest))


@torch.library.impl("tirage::append", "CUDA")
def _append_on_cuda(token: Tensor, slots: Tensor, *rest: Tensor | int) -> None:
    from tirage.backends.torch.device import launches

    tables, room, size = _named(rest)
    with torch.cuda.device_of(token):
        launches.append(token, slots, tables, room=room, size=size)


def append_by_tensors(token: Tensor, slots: Tensor, tables: Mapping[str, Tensor], room: int, size: int) -> None:
    """What `append` does with tokens [B], by tensor operations on tables on the CPU."""
    rows = tables["length"].shape[0]
    counts.append(token.new_full((rows,), -1, dtype=torch.int64).index_copy_(0, slots, token.to(torch.int64)),
                  tables, room=room, size=size)  # fmt: skip


def _named(rest: Sequence[Tensor | int]) -> tuple[dict[str, Tensor], int, int]:
    """(tables by name, room, size) of the arguments behind token and slots."""
    *given, room, size = rest
    assert isinstance(room, int)
    assert isinstance(size, int)
    return (
        {name: each for name, each in zip((*WRITTEN, *READ), given, strict=True) if isinstance(each, Tensor)},
        room,
        size,
    )
