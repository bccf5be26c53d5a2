"""Requests of a batch as arrays, one row per slot: everything that changes from request to request is a value.

Which stages there are, in which orders, and how wide the tables are, is the `SlotLayout`: it grows when a request needs
more and never shrinks, so that a program compiled for it stays valid.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import NDArray

from tirage.backends.jax import traced_history
from tirage.backends.jax.arrays import is_traced
from tirage.backends.jax.program import Columns, TracedProgram, TracedStage, both, columns, merged, staged, words
from tirage.backends.jax.traced_history import BEYOND, TracedHistory
from tirage.compiled_params import CompiledParams
from tirage.exact import numbers
from tirage.history import History
from tirage.operators import Step
from tirage.operators.frequency import FREQUENCY
from tirage.operators.logit_bias import ADD
from tirage.operators.masks import BAN
from tirage.operators.top_k import TOP_K
from tirage.params import SamplingParams
from tirage.sampling_metadata import View

_TABLES: dict[str, tuple[Any, float]] = {
    "banned": (np.int32, BEYOND),
    "bias_ids": (np.int32, BEYOND),
    "bias_values": (np.float32, 0.0),
    "stops": (np.int32, BEYOND),
    "words": (np.int32, -1),
    "dry": (np.float32, 0.0),
    "breakers": (np.int32, -1),
    "divided": (np.float32, 0.0),
    "protected": (np.int32, BEYOND),
    "asked": (np.int32, -1),
    "allowed": (np.int32, -1),
}
"""What each table holds for a row, its dtype, and what it is filled up with.

`dry` are DRY's penalties by the length of the match, `divided` frequency penalties by the length of the history.
"""
_SCALARS: dict[str, Any] = {
    "used": np.bool_,
    "group": np.int32,
    "sample": np.uint32,
    "view": np.int8,
    "top_n": np.int32,
    "min_tokens": np.int32,
    "window": np.int32,
    "ngram": np.int32,
    "output_words": np.bool_,
    "dry_length": np.int32,
    "dry_last_n": np.int32,
    "divides": np.bool_,
    "resamples": np.bool_,
    "guided": np.bool_,
}
_BIAS, _DRY = TracedStage(ADD, (), 0), TracedStage(ADD, (), 1)
_NOTHING = History(np.zeros(0, np.int32), 0, 0)
_LATE = 1 << 32


class SlotLayout(NamedTuple):
    """What is compiled in: the orders of stages, views that occur, the most top entries, the widest penalty window,
    and whether some request repeats no n-gram, needs a mask, or checks its mask after the draw."""

    orders: tuple[tuple[TracedStage, ...], ...] = ((),)
    views: tuple[int, ...] = ()
    top_n: int = 0
    window: int = 0
    ngrams: bool = False
    guided: bool = False
    resamples: bool = False

    def with_params(self, compiled: CompiledParams, vocab_size: int) -> SlotLayout:
        """The least Layout that also holds a request with this compiled."""
        params = compiled.params
        view = view_of(params)
        return SlotLayout(
            orders=self._orders([stage for stage, _ in listed(compiled)]),
            views=tuple(sorted({*self.views, *([view] if view else [])})),
            top_n=max(self.top_n, min(params.logprobs or 0, vocab_size)),
            window=max(self.window, compiled.semantics.penalty_window or 0) if compiled.needs_counts else self.window,
            ngrams=self.ngrams or bool(params.no_repeat_ngram_size),
            guided=self.guided or params.guided_decoding is not None,
            resamples=self.resamples or compiled.semantics.mask_mode == "resample",
        )

    def _orders(self, stages: list[TracedStage]) -> tuple[tuple[TracedStage, ...], ...]:
        if self.group(stages) is not None:
            return self.orders
        for at, order in enumerate(self.orders):
            longer = merged(list(order), stages)
            if longer is not None:
                return (*self.orders[:at], tuple(longer), *self.orders[at + 1 :])
        return (*self.orders, tuple(stages))

    def group(self, stages: list[TracedStage]) -> int | None:
        """The first order that holds these stages in their sequence."""
        fitting = (at for at, order in enumerate(self.orders) if merged(list(order), stages) == list(order))
        return next(fitting, None)


@partial(
    jax.tree_util.register_dataclass,
    data_fields=["columns", "on", "tables", "scalars", "seeds", "past"],
    meta_fields=["layout", "vocab_size"],
)
@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """Requests, one per row.

    `columns[g][i]` and `on[g][i]` belong to stage i of order g; `tables` [B, n] and `scalars` [B] are named as in
    this module's lists; `seeds` uint32 [B, 2], low word first.
    """

    columns: tuple[tuple[Columns, ...], ...]
    on: tuple[tuple[Any, ...], ...]
    tables: dict[str, Any]
    scalars: dict[str, Any]
    seeds: Any
    past: TracedHistory
    layout: SlotLayout
    vocab_size: int

    @property
    def step(self) -> Any:
        """Number of output tokens of each row, int32 [B]."""
        return self.past.length - self.past.prompt

    @property
    def count(self) -> int:
        """B."""
        return self.seeds.shape[0]

    @property
    def overgrown(self) -> Any:
        """Rows whose history has outgrown its room, bool [B]."""
        return self.past.length > self.past.room


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRequest:
    """One request to be put into a slot."""

    compiled: CompiledParams
    history: History
    seed: int
    sample_index: int = 0


def view_of(params: SamplingParams) -> int:
    """The View code that `params` ask for."""
    wanted = params.logprobs is not None or bool(params.logprob_token_ids)
    return int(View[params.logprobs_mode.upper()]) if wanted else int(View.NONE)


def listed(compiled: CompiledParams) -> list[tuple[TracedStage, Step]]:
    """The stages of a compiled with their steps: bans apart, and DRY wherever the history may call for it."""
    order = compiled.semantics.stages
    steps = [step for step in compiled.lower(_NOTHING, _LATE).steps if step.op != BAN]
    if compiled.params.dry_multiplier and "dry" in order:
        steps.append(Step(ADD, stage="dry"))
    steps.sort(key=lambda step: order.index(step.stage) if step.stage in order else len(order))
    known = {"logit_bias": _BIAS, "dry": _DRY}
    return [(known.get(step.stage, stage), step) for stage, step in staged(steps)]


# --- one request as a row --------------------------------------------------------------------------------------


def empty(count: int, vocab_size: int, room: int) -> Slots:
    """B slots without a request, with room for so many tokens each."""
    counts = np.zeros((count, 3, room), np.int32)
    counts[:, 0] = BEYOND
    none = np.zeros(count, np.int32)
    return Slots(
        columns=((),),
        on=((),),
        tables={
            name: np.zeros((count, 0, 0) if name == "words" else (count, 0), dtype)
            for name, (dtype, _) in _TABLES.items()
        },
        scalars={name: np.zeros(count, dtype) for name, dtype in _SCALARS.items()},
        seeds=np.zeros((count, 2), np.uint32),
        past=TracedHistory(
            tokens=np.zeros((count, room), np.int32), prompt=none, length=none, counts=counts, distinct=none
        ),
        layout=SlotLayout(),
        vocab_size=vocab_size,
    )


def row_of(request: SlotRequest, layout: SlotLayout, vocab_size: int, room: int) -> Slots:
    """One row in a layout that holds it; its tables are as wide as it needs."""
    found = dict(listed(request.compiled))
    group = layout.group(list(found))
    groups = [(g == group, order) for g, order in enumerate(layout.orders)]
    steps = [[found.get(stage) if mine else None for stage in order] for mine, order in groups]
    return Slots(
        columns=tuple(
            tuple(columns(stage, [step]) for stage, step in zip(order, row, strict=True))
            for (_, order), row in zip(groups, steps, strict=True)
        ),
        on=tuple(tuple(np.array([step is not None]) for step in row) for row in steps),
        tables=_tables(request.compiled, vocab_size, room),
        scalars=_scalars(request, group or 0, vocab_size),
        seeds=words(np.array([request.seed], np.int64)),
        past=TracedHistory.of(request.history, room),
        layout=layout,
        vocab_size=vocab_size,
    )


def _tables(compiled: CompiledParams, vocab_size: int, room: int) -> dict[str, NDArray]:
    params = compiled.params
    made: dict[str, Any] = {
        "banned": compiled.banned,
        "bias_ids": compiled.bias[0],
        "bias_values": compiled.bias[1],
        "stops": compiled.stop_ids if params.min_tokens else (),
        "words": _left_padded(params.bad_words_token_ids),
        "dry": _dry_penalties(params, room) if params.dry_multiplier else (),
        "breakers": params.dry_breaker_token_ids if params.dry_multiplier else (),
        "divided": _divided(compiled, room) if _divides(compiled) else (),
        "protected": params.xtc_protected_ids if compiled.coin else (),
        "asked": params.logprob_token_ids,
        "allowed": () if compiled.allowed is None else _bitmask(compiled.allowed, vocab_size),
    }
    return {name: np.asarray(value, _TABLES[name][0])[None] for name, value in made.items()}


def _left_padded(sequences: Sequence[Sequence[int]]) -> NDArray[np.int32]:
    longest = max(map(len, sequences), default=0)
    return np.array([(*[-1] * (longest - len(word)), *word) for word in sequences], np.int32).reshape(
        len(sequences), longest
    )


def _dry_penalties(params: SamplingParams, room: int) -> NDArray[np.float32]:
    """DRY's penalty for a match of each length up to `room`, by repeated multiplication as in S-H5."""
    power, out = 1.0, np.zeros(room + 1, np.float32)
    scale, base = float(numbers.f32(params.dry_multiplier)), float(numbers.f32(params.dry_base))
    for length in range(params.dry_allowed_length, room + 1):
        out[length] = np.float32(min(scale * power, 3.4028235e38))
        power = min(power * base, 3.4028235e38)
    return out


def _divides(compiled: CompiledParams) -> bool:
    return bool(compiled.params.frequency_penalty) and compiled.semantics.frequency_divisor == "length"


def _divided(compiled: CompiledParams, room: int) -> NDArray[np.float32]:
    """The frequency penalty for a history of each length up to `room`."""
    counted = np.arange(room + 1)
    counted = np.minimum(counted, compiled.semantics.penalty_window or room)
    penalty = numbers.operand(compiled.params.frequency_penalty)
    return np.array([numbers.operand(penalty / np.float32(max(n, 1))) for n in counted], np.float32)


def _bitmask(ids: NDArray[np.int32], vocab_size: int) -> NDArray[np.int32]:
    flags = np.zeros(-(-vocab_size // 32) * 32, np.uint8)
    flags[ids] = 1
    return np.packbits(flags, bitorder="little").view(np.int32)


def _scalars(request: SlotRequest, group: int, vocab_size: int) -> dict[str, NDArray]:
    compiled, params = request.compiled, request.compiled.params
    made = {
        "used": True,
        "group": group,
        "sample": request.sample_index,
        "view": view_of(params),
        "top_n": min(params.logprobs or 0, vocab_size),
        "min_tokens": min(params.min_tokens, (1 << 31) - 1),
        "window": (compiled.semantics.penalty_window or 0) if compiled.needs_counts else 0,
        "ngram": min(params.no_repeat_ngram_size, 1 << 30),
        "output_words": compiled.semantics.bad_words_history == "output",
        "dry_length": min(max(params.dry_allowed_length, 1), 1 << 30) if params.dry_multiplier else 1 << 30,
        "dry_last_n": max(min(params.dry_last_n, 1 << 30), -1),
        "divides": _divides(compiled),
        "resamples": compiled.semantics.mask_mode == "resample",
        "guided": params.guided_decoding is not None,
    }
    return {name: np.array([made[name]], dtype) for name, dtype in _SCALARS.items()}


# --- rows into slots ----------------------------------------------------------------------------------------------


def grown(slots: Slots, layout: SlotLayout, widths: Mapping[str, tuple[int, ...]]) -> Slots:
    """The same requests in a layout that holds theirs, with tables at least so wide."""
    if layout == slots.layout and all(_fits(slots.tables[name].shape[1:], width) for name, width in widths.items()):
        return slots
    known = [
        dict(zip(order, zip(slots.columns[g], slots.on[g], strict=True), strict=True))
        for g, order in enumerate(slots.layout.orders)
    ]
    known += [{}] * (len(layout.orders) - len(known))
    off = np.zeros(slots.count, bool)
    placed_stages = [
        [found.get(stage, (columns(stage, [None] * slots.count), off)) for stage in order]
        for order, found in zip(layout.orders, known, strict=True)
    ]
    return replace(
        slots,
        columns=tuple(tuple(column for column, _ in row) for row in placed_stages),
        on=tuple(tuple(on for _, on in row) for row in placed_stages),
        tables={name: _widened(name, slots.tables[name], width) for name, width in widths.items()},
        layout=layout,
    )


def _fits(have: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    return all(n >= m for n, m in zip(have, wanted, strict=True))


def _widened(name: str, table: Any, width: tuple[int, ...]) -> Any:
    room = [(0, max(0, _rounded(name, m) - n)) for n, m in zip(table.shape[1:], width, strict=True)]
    if name == "words":
        room = [room[0], (room[1][1], 0)]  # words end in the last column
    fill = np.asarray(_TABLES[name][1], table.dtype)
    pad: Callable[..., Any] = jnp.pad if is_traced(table) else np.pad
    return pad(table, [(0, 0), *room], constant_values=fill) if any(map(any, room)) else table


def _rounded(name: str, width: int) -> int:
    """Widths grow in powers of two, so that one more id seldom means a new program."""
    if not width or name in {"allowed", "dry", "divided"}:
        return width
    return 1 << (width - 1).bit_length()


def placed(slots: Slots, row: Slots, at: Any) -> Slots:
    """`slots` with the one row of `row` at position `at`, in a layout that holds both."""
    slots = grown(slots, row.layout, _widths(row))
    row = grown(row, row.layout, _widths(slots))
    return jax.tree.map(lambda old, new: written(old, at, new[0]), slots, row)


def _widths(slots: Slots) -> dict[str, tuple[int, ...]]:
    return {name: table.shape[1:] for name, table in slots.tables.items()}


def written(array: Any, at: Any, value: Any) -> Any:
    """A copy with `value` at index `at`; beyond the array nothing is written."""
    if is_traced(array, at, value):
        return jnp.asarray(array).at[at].set(value, mode="drop")
    out = np.array(array)
    out[at] = value
    return out


def picked(slots: Slots, order: Any) -> Slots:
    """Row i is what row `order[i]` was; -1 leaves it empty."""
    rows = np.maximum(order, 0) if isinstance(order, np.ndarray) else jnp.maximum(order, 0)
    moved = jax.tree.map(lambda a: a[rows] if is_traced(a, order) else np.asarray(a)[rows], slots)
    return replace(moved, scalars=moved.scalars | {"used": moved.scalars["used"] & (order >= 0)})


# --- what is drawn ------------------------------------------------------------------------------------------------


def programs(slots: Slots, mask: Any = None) -> list[TracedProgram]:
    """One Program for each order of stages, over all rows; a row's token is the one of its own group's."""
    layout, tables, one = slots.layout, slots.tables, slots.scalars
    shared: dict[str, Any] = {
        "tables": {
            "banned": _banned(slots),
            "counts": traced_history.windowed(slots.past, one["window"], layout.window)
            if layout.window
            else slots.past.counts,
            "protected": tables["protected"],
            "added 0": (tables["bias_ids"], tables["bias_values"]),
            "added 1": _dry(slots),
        },
        "mask": both(tables["allowed"] if tables["allowed"].shape[1] else None, mask),
        "keys": _keys(slots),
        "views": one["view"],
        "top_n": one["top_n"],
        "asked": tables["asked"],
        "widths": (0, layout.top_n),
        "modes": layout.views,
    }
    return [
        TracedProgram(stages=order, columns=_divided_columns(slots, g), on=_on(slots, g), **shared)
        for g, order in enumerate(layout.orders)
    ]


def _on(slots: Slots, group: int) -> tuple[Any, ...]:
    """Which rows have each stage of an order; of all that the program draws, rows of others and empty slots get top-k:
    what is drawn for them is not looked at, and a top-k of 0 costs least."""
    mine = slots.scalars["used"] & (slots.scalars["group"] == group)
    return tuple(
        on | ~mine if stage.op == TOP_K else on & mine
        for stage, on in zip(slots.layout.orders[group], slots.on[group], strict=True)
    )


def _keys(slots: Slots) -> Any:
    parts = (slots.seeds, jnp.asarray(slots.step, jnp.uint32)[:, None], jnp.asarray(slots.scalars["sample"])[:, None])
    return jnp.concatenate(parts, axis=1)


def _banned(slots: Slots) -> Any:
    tables, one = slots.tables, slots.scalars
    lists = [tables["banned"]]
    if tables["stops"].shape[1]:
        lists.append(jnp.where((slots.step < one["min_tokens"])[:, None], tables["stops"], BEYOND))
    if tables["words"].shape[1]:
        lists.append(traced_history.by_words(slots.past, tables["words"], one["output_words"]))
    if slots.layout.ngrams:
        lists.append(traced_history.by_ngrams(slots.past, one["ngram"]))
    return jnp.concatenate(lists, 1) if len(lists) > 1 else lists[0]


def _dry(slots: Slots) -> tuple[Any, Any]:
    tables, one = slots.tables, slots.scalars
    if not tables["dry"].shape[1]:
        return np.zeros((slots.count, 0), np.int32), np.zeros((slots.count, 0), np.float32)
    ids, length = traced_history.dry_lengths(slots.past, one["dry_last_n"], tables["breakers"], slots.vocab_size)
    penalty = jnp.take_along_axis(jnp.asarray(tables["dry"]), length, 1)
    return jnp.where(length >= one["dry_length"][:, None], ids, BEYOND), -penalty


def _divided_columns(slots: Slots, group: int) -> tuple[Columns, ...]:
    table = slots.tables["divided"]
    if not table.shape[1]:
        return slots.columns[group]
    at = jnp.minimum(slots.past.length, slots.past.room)[:, None]
    penalty = jnp.take_along_axis(jnp.asarray(table), at, 1)[:, 0]

    def changed(stage: TracedStage, given: Columns) -> Columns:
        if stage.op != FREQUENCY:
            return given
        return {"penalty": jnp.where(slots.scalars["divides"], penalty, given["penalty"])}

    return tuple(map(changed, slots.layout.orders[group], slots.columns[group]))
