"""What a trace runs: one list of stages for all its rows, with the operands of each row as columns.

Which stages there are, and their options, is part of the compiled program; operands, seeds and histories are arrays,
so a new temperature needs no new program. Every operand was made an integer or a float32 on the host (S-N1).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy.plain import steps_of
from tirage.operators import Operation, Step
from tirage.operators.logit_bias import ADD
from tirage.operators.masks import BAN
from tirage.operators.top_k import TOP_K
from tirage.operators.xtc import COINS
from tirage.sampling_metadata import SamplingMetadata

Columns = dict[str, Any]


class TracedStage(NamedTuple):
    """One step of a compiled program: the operation, its fixed options, and which of several like it this is."""

    op: Operation
    options: tuple[int, ...] = ()
    nth: int = 0

    def option(self, name: str) -> int:
        """The value of a fixed option."""
        names = [n for n, kind in self.op.operands if kind == "static"]
        return self.options[names.index(name)]


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["columns", "on", "tables", "mask", "keys", "views", "top_n", "asked"],
    meta_fields=["stages", "widths", "modes"],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class TracedProgram:
    """B rows that run the same stages.

    `columns[i]` are the operands of `stages[i]`, each [B]; `on[i]` bool [B] says which rows have that stage, None that
    all have it.
    `tables`: "banned" int32 [B, n], "added" ids and float32 values per ADD stage, "counts" int32 [B, 3, n],
    "protected" int32 [B, n]; ids are padded with V. `mask` uint32 [B, ceil(V / 32)] or None.
    `keys` uint32 [B, 4]: seed low and high, step, sample. `views` int8 [B], `top_n` int32 [B], `asked` int32 [B, A]
    padded with -1. `widths`: the largest top-k of any row, and the most top entries that one asks for.
    `modes`: the views that occur.
    """

    stages: tuple[TracedStage, ...]
    columns: tuple[Columns, ...]
    on: tuple[Any, ...]
    tables: dict[str, Any]
    mask: Any
    keys: Any
    views: Any
    top_n: Any
    asked: Any
    widths: tuple[int, int]
    modes: tuple[int, ...] = field(default=())


def programs(
    rows: SamplingMetadata, vocab_size: int, mask: Any = None, *, which: NDArray[np.int64] | None = None
) -> list[tuple[NDArray[np.int64], TracedProgram]]:
    """`rows` as few programs, each with the rows that run it; rows whose stages can be put in one order share one.

    `mask`: a bitmask [B, ceil(V / 32)] that is not known yet, to hold besides the rows' own. `which`: the rows that
    are listed, by default all.
    """
    chosen = range(rows.count) if which is None else which.tolist()
    listed = {r: staged(steps_of(rows.programs[r])) for r in chosen}
    orders: list[tuple[list[TracedStage], list[int]]] = []
    for r in sorted(chosen, key=lambda r: -len(listed[r])):
        for at, (order, members) in enumerate(orders):
            longer = merged(order, [stage for stage, _ in listed[r]])
            if longer is not None:
                orders[at] = (longer, [*members, r])
                break
        else:
            orders.append(([stage for stage, _ in listed[r]], [r]))
    return [
        (np.array(sorted(members)), _program(rows, vocab_size, order, listed, sorted(members), mask))
        for order, members in orders
    ]


def staged(steps: Iterable[Step]) -> list[tuple[TracedStage, Step]]:
    """The stages that steps belong to, in their order; bans are no stage."""
    listed: list[tuple[TracedStage, Step]] = []
    for step in steps:
        if step.op == BAN:
            continue
        operands = (step.a, step.b, step.c, step.d, step.e)
        kinds = [kind for _, kind in step.op.operands]
        options = tuple(value for kind, value in zip(kinds, operands, strict=False) if kind == "static")
        nth = sum(stage.op == step.op and stage.options == options for stage, _ in listed)
        listed.append((TracedStage(step.op, options, nth), step))
    return listed


def merged(order: list[TracedStage], stages: list[TracedStage]) -> list[TracedStage] | None:
    """`order` with `stages` added where they keep their own sequence; None when the two contradict each other.

    XTC doubles the work behind it, so that an order holds one at most.
    """
    joined, at = list(order), 0
    for stage in stages:
        if stage not in joined:
            joined.insert(at, stage)
        elif joined.index(stage) < at:
            return None
        at = joined.index(stage) + 1
    return joined if sum(stage.op.base in COINS for stage in joined) <= 1 else None


def _program(
    rows: SamplingMetadata,
    vocab_size: int,
    order: list[TracedStage],
    listed: dict[int, list[tuple[TracedStage, Step]]],
    members: list[int],
    mask: Any,
) -> TracedProgram:
    found = [dict(listed[r]) for r in members]
    top_n = rows.top_n[members]
    ks = [row[stage].a for row in found for stage in row if stage.op == TOP_K]
    tables: dict[str, Any] = {
        "banned": _padded([_banned(rows, r) for r in members], vocab_size),
        "counts": _counts(rows, members, vocab_size),
        "protected": _padded([_part(rows.protected_ids, rows.protected_start, r) for r in members], vocab_size),
    }
    for stage in order:
        if stage.op == ADD:
            spans = [slice(*row[stage][1:3]) if stage in row else slice(0, 0) for row in found]
            tables[f"added {stage.nth}"] = (
                _padded([rows.edit_ids[span] for span in spans], vocab_size),
                _padded([rows.edit_values[span] for span in spans], 0).astype(np.float32),
            )
    return TracedProgram(
        stages=tuple(order),
        columns=tuple(columns(stage, [row.get(stage) for row in found]) for stage in order),
        on=tuple(_on([stage in row for row in found]) for stage in order),
        tables=tables,
        mask=both(rows.masks[members] if rows.masks.size else None, None if mask is None else mask[np.array(members)]),
        keys=key_words(rows.seeds[members], rows.steps[members], rows.samples[members]),
        views=rows.views[members],
        top_n=top_n,
        asked=_padded([_part(rows.asked_ids, rows.asked_start, r) for r in members], -1),
        widths=(min(max(ks, default=0), vocab_size), int(top_n.max(initial=0))),
        modes=tuple(sorted({int(view) for view in rows.views[members]} - {0})),
    )


def _on(rows: list[bool]) -> NDArray[np.bool_] | None:
    return None if all(rows) else np.array(rows)


def both(own: Any, given: Any) -> Any:
    """Two bitmasks, either of which may be None, as one."""
    if own is None or given is None:
        return given if own is None else own
    return own & given


def columns(stage: TracedStage, steps: Sequence[Step | None]) -> Columns:
    """Operands of one stage for each row; 0 where a row does not have it."""
    made: Columns = {}
    for at, (name, kind) in enumerate(stage.op.operands):
        numbers = [0 if step is None else int(step[1 + at]) for step in steps]
        if kind == "float":
            made[name] = np.array(numbers, np.int32).view(np.float32)
        elif kind == "word":
            made[name] = np.array(numbers, np.uint32)
        elif kind == "int":
            made[name] = np.array([min(n, 1 << 30) for n in numbers], np.int32)
        elif kind == "long":
            made[name] = words(np.array(numbers, np.int64))
    return made


def operands(stage: TracedStage, given: Columns, r: int) -> tuple[int, ...]:
    """The operands a..e of row r: the inverse of `columns`."""
    fixed, out = iter(stage.options), []
    number: Any
    for name, kind in stage.op.operands:
        number = next(fixed) if kind == "static" else given[name][r]
        if kind == "float":
            number = np.float32(number).view(np.int32)
        elif kind == "long":
            number = int(number[0]) | int(number[1]) << 32
        out.append(int(number))
    return tuple(out)


def words(values: NDArray[np.int64]) -> NDArray[np.uint32]:
    """int64 [B] as uint32 [B, 2], low word first: 64-bit constants must be split before JAX sees them."""
    return np.stack([values & 0xFFFFFFFF, (values >> 32) & 0xFFFFFFFF], -1).astype(np.uint32)


def key_words(seeds: NDArray[np.int64], steps: NDArray[np.int64], samples: NDArray[np.int64]) -> NDArray[np.uint32]:
    """What keys the uniforms of each row, uint32 [B, 4]: seed low, seed high, step, sample."""
    return np.concatenate([words(seeds), words(steps)[:, :1], words(samples)[:, :1]], axis=1)


def _part(flat: NDArray, start: NDArray[np.int64], r: int) -> NDArray:
    return flat[start[r] : start[r + 1]]


def _banned(rows: SamplingMetadata, r: int) -> NDArray[np.int32]:
    spans = [slice(p[1], p[2]) for p in rows.programs[r] if p[0] == BAN]
    return np.concatenate([rows.edit_ids[:0], *[rows.edit_ids[span] for span in spans]])


def _counts(rows: SamplingMetadata, members: list[int], vocab_size: int) -> NDArray[np.int32]:
    tables = [
        (_part(ids, rows.count_start, r), fill)
        for ids, fill in ((rows.count_ids, vocab_size), (rows.prompt_counts, 0), (rows.output_counts, 0))
        for r in members
    ]
    n = len(members)
    parts = [_padded([t for t, _ in tables[i * n : (i + 1) * n]], tables[i * n][1]) for i in range(3)]
    return np.stack(parts, axis=1)


def _padded(rows: Sequence[NDArray], fill: int) -> NDArray:
    """Rows of different lengths as one array [B, longest]."""
    out = np.full((len(rows), max(map(len, rows), default=0)), fill, rows[0].dtype)
    for r, row in enumerate(rows):
        out[r, : len(row)] = row
    return out
