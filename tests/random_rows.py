"""Random packed rows: logits of every awkward shape and programs that no preset would write, for tests of kernels."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends.numpy import distribution
from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX
from tirage.operators import LAST, OPERATIONS, OPERATORS, Operation, Operator, Step
from tirage.operators.adaptive_p import ADAPTIVE_P
from tirage.operators.frequency import FREQUENCY
from tirage.operators.logit_bias import ADD
from tirage.operators.masks import BAN
from tirage.operators.min_keep import FLOORED
from tirage.operators.min_p import MIN_P, MIN_P_LOGIT
from tirage.operators.mirostat import MIROSTAT, MIROSTAT_V2
from tirage.operators.presence import PRESENCE
from tirage.operators.repetition import REPETITION
from tirage.operators.scale import SCALE
from tirage.operators.smoothing import SMOOTH
from tirage.operators.temperature import DYNAMIC_TEMPERATURE_LISTED, GREEDY, TEMPERATURE
from tirage.operators.tfs import TFS
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import TOP_P
from tirage.operators.typical import TYPICAL_BY_RANK
from tirage.operators.xtc import XTC, XTC_TIES_KEPT
from tirage.params import FIELDS
from tirage.sampling_metadata import Drawn, SamplingMetadata, View
from tirage.semantics import CHOICES

Rng = np.random.Generator
Program = list[tuple[int, ...]]
Shape = Callable[[NDArray[np.float32], Rng], NDArray]


# --- random rows --------------------------------------------------------------------------------------------------


def _spoiled(x: NDArray[np.float32], r: Rng, pattern: int) -> NDArray[np.float32]:
    bits = x.view(np.uint32).copy()
    bits[r.integers(x.size)] = pattern
    return bits.view(np.float32)


def _zipf(n: NDArray[np.float32], r: Rng, power: float) -> NDArray[np.float32]:
    return 12 - r.permutation(np.float32(power) * np.log(np.arange(1, n.size + 1)).astype(np.float32) + n)


def _holes(n: NDArray[np.float32], r: Rng) -> NDArray[np.float32]:
    x = np.where(r.random(n.size) < 0.9, np.float32(-np.inf), 3 * n)
    x[r.integers(n.size)] = 1
    return x


SHAPES: dict[str, Shape] = {
    "peaked": lambda n, r: _zipf(n, r, 1.9),
    "medium": lambda n, r: _zipf(n, r, 1.2),
    "normal": lambda n, r: 3 * n,
    "flat": lambda n, r: np.float32(0.02) * n,
    "ties": lambda n, r: np.round(2 * n),
    "constant": lambda n, r: np.full(n.size, 1.5),
    "ascending": lambda n, r: np.sort(3 * n),
    "descending": lambda n, r: np.sort(3 * n)[::-1],
    "holes": _holes,
    "bfloat16": lambda n, r: (n.view(np.uint32) & 0xFFFF0000).view(np.float32),
    "signed zeros": lambda n, r: r.choice(np.array([0.0, -0.0, -1.0]), n.size),
    "subnormal": lambda n, r: r.choice(np.array([1e-40, -1e-40, 2e-40, 1.2e-38, -0.0]), n.size),
    "huge": lambda n, r: n * np.float32(1e38),
    "spike": lambda n, r: n + 40 * (np.arange(n.size) == r.integers(n.size)),
    "nan": lambda n, r: _spoiled(n, r, 0x7FC00000),
    "negative nan": lambda n, r: _spoiled(n, r, 0xFFC00000),
    "infinity": lambda n, r: _spoiled(n, r, 0x7F800000),
    "nothing": lambda n, r: np.full(n.size, -np.inf),
}


def _limits(n: NDArray[np.float32], r: Rng) -> NDArray[np.float64]:
    return r.choice(np.array([1.0, FLT_MAX, -FLT_MAX, 2**-126, -(2**-126), 2**-149, -np.inf]), n.size)


EDGES: dict[str, Shape] = {
    "octaves": lambda n, r: -math.log(2) * r.integers(0, 45, n.size),
    "neighbours": lambda n, r: 1 + r.integers(0, 7, n.size) * 2**-23,
    "around zero": lambda n, r: r.integers(-3, 4, n.size) * 2**-149 * r.choice([1.0, -1.0], n.size),
    "limits": _limits,
    "nearly limits": lambda n, r: np.where(r.random(n.size) < 0.5, _limits(n, r), 3 * n),
}
"""Logits where something changes: a weight's bits, the next key, the sign of a key, what float32 can hold."""


def logits_rows(r: Rng, b: int, v: int, shapes: dict[str, Shape] = SHAPES) -> NDArray[np.float32]:
    names = list(shapes)
    picked = [shapes[names[int(i)]] for i in r.integers(len(names), size=b)]
    with np.errstate(all="ignore"):
        rows = [shape(r.standard_normal(v).astype(np.float32), r) for shape in picked]
    return np.stack(rows).astype(np.float32)


# --- random programs ----------------------------------------------------------------------------------------------


def _temperature(t: float) -> tuple[int, ...]:
    return numbers.bits(numbers.temperature_constant(t)), numbers.bits(numbers.reciprocal(t))


def _scaled(r: Rng, *values: float) -> tuple[int, ...]:
    return numbers.scaled_fraction(float(r.choice(values)))


def random_mass(r: Rng) -> int:
    return numbers.mass_fraction(float(r.choice([1e-12, 0.1, 0.5, 0.9, 0.95, 0.99, 0.9999])))


def _flag(r: Rng) -> int:
    return int(r.integers(2))


def _lowered(operator: Operator, op: Operation, r: Rng) -> tuple[int, ...]:
    """Operands of `op` from random values of what its operator reads."""
    while True:
        values = {name: _value(operator, name, r) for name in operator.reads["lower"]}
        step = operator.lower(**values)
        if isinstance(step, Step) and step.op is op:
            return step.operands[: len(op.operands)]


OPTIONS: dict[str, tuple[Any, ...]] = {**CHOICES, "temperature_floor": (None, 0.01, 0.9)}
"""Values of the options of Semantics; those that are numbers have no list of their own."""


def _value(operator: Operator, name: str, r: Rng) -> Any:
    if name == "state":
        return float(r.choice([0.5, 3.0, 6.5, 60.0]))
    tries = OPTIONS.get(name) or operator.examples.get(name) or (FIELDS[name].default,)
    return tries[int(r.integers(len(tries)))]


FILTERS: dict[Operation, Callable[[Rng], tuple[int, ...]]] = {
    op: partial(_lowered, operator, op)
    for operator in OPERATORS.values()
    for op in operator.operations
    if op.is_filter and op is not GREEDY
} | {
    TEMPERATURE: lambda r: _temperature(float(r.choice([0.05, 0.3, 0.7, 1.0, 1.3, 10.0]))),
    TOP_K: lambda r: (int(r.choice([1, 2, 5, 50, 200, 1000, 20000])), _flag(r)),
    TOP_P: lambda r: (random_mass(r), _flag(r), _flag(r), int(r.random() < 0.3)),
    XTC: lambda r: (int(r.choice([1 << 32, 1 << 31, 1 << 20])), *_scaled(r, 0.5, 0.1, 0.02, 1e-4), _flag(r)),
}
"""Random operands of every filter; those that are listed reach further than the examples of the operators."""


def _least(op: Operation, r: Rng) -> tuple[int, ...]:
    return *FILTERS[op](r), int(r.choice([2, 3, 40, 700, 6000]))


FILTERS |= {floored: partial(_least, op) for op, floored in FLOORED.items()}


PLAIN_ONLY = frozenset({
    *(DYNAMIC_TEMPERATURE_LISTED, TYPICAL_BY_RANK, XTC_TIES_KEPT, TFS, MIROSTAT, ADAPTIVE_P),
    *FLOORED.values(),
    *LAST[0].operations,
})
"""Operations that tensors have no step for: Numba's kernels run some of them, the plain path the others."""
ON_JAX = frozenset({XTC_TIES_KEPT, *(FLOORED[op] for op in (TOP_P, MIN_P, MIN_P_LOGIT, XTC, XTC_TIES_KEPT))})
"""Of these, the operations that JAX has a step for."""
TENSORS_ONLY = frozenset({MIROSTAT_V2})
"""Operations that tensors have a step for, and JAX has none."""
OWN_SEMANTICS_ONLY = frozenset({FLOORED[MIN_P_LOGIT], FLOORED[XTC_TIES_KEPT]})
"""Operations that no preset has, but a Semantics of one's own may (`test_min_keep.py`)."""
NOT_ON_TENSORS = PLAIN_ONLY | {SMOOTH}
"""Operations without a step of their own on tensors: rows that have them are drawn on the host."""
WITH_STEPS = tuple(op for op in FILTERS if op not in PLAIN_ONLY | TENSORS_ONLY)
"""Filters that backends have steps of their own for."""
ON_NUMPY = (*WITH_STEPS, TFS, MIROSTAT_V2, *(FLOORED[op] for op in (TOP_P, MIN_P, MIN_P_LOGIT)))
"""Filters that Numba's kernels have steps for."""


def random_filters(r: Rng, ops: Collection[Operation] = WITH_STEPS, *, most: int = 5) -> Program:
    """Up to `most` of the filters `ops` in any order, now and then with a greedy or truncated end."""
    order = r.permutation(np.array([op for op in FILTERS if op in ops]))[: int(r.integers(0, most + 1))]
    steps: Program = [(int(op), *FILTERS[OPERATIONS[int(op)]](r)) for op in order]
    if r.random() < 0.15:
        steps.append((GREEDY,))
    elif r.random() < 0.1:
        steps.append((TOP_P, random_mass(r), 2, _flag(r), 0))
    return steps


def varied(program: Program, r: Rng, *, options: bool = False) -> Program:
    """The same operations with other operands, and other `options`, which some backends compile in, if they vary."""
    steps: Program = []
    for op, *operands in program:
        kinds = [kind for _, kind in OPERATIONS[op].operands]
        other = operands if op == GREEDY or operands[1:2] == [2] else FILTERS[OPERATIONS[op]](r)
        pairs = zip(kinds, operands, other, strict=True)
        kept = [old if kind == "static" and not options else new for kind, old, new in pairs]
        steps.append((op, *kept))
    return steps


class Pile:
    """Random edits of several rows, and the tables that they refer to."""

    def __init__(self, v: int) -> None:
        self.v = v
        self.ids: list[int] = []
        self.values: list[float] = []
        self.counts: list[NDArray] = []
        self.start = [0]

    def some(self, r: Rng) -> NDArray[np.int64]:
        return np.sort(r.choice(self.v, int(r.integers(1, min(self.v, 40) + 1)), replace=False))

    def take(self, op: Operation, r: Rng, values: tuple[float, ...]) -> tuple[int, ...]:
        ids, start = self.some(r), len(self.ids)
        self.ids += ids.tolist()
        self.values += r.choice(values, ids.size).tolist()
        return op, start, len(self.ids)

    def edits(self, r: Rng) -> Program:
        steps: Program = []
        if r.random() < 0.4:
            steps.append(self.take(BAN, r, (0.0,)))
        if r.random() < 0.4:
            steps.append(self.take(ADD, r, (-100.0, 100.0, -1e38, 3.4e38, 0.3, 1e-39)))
        ratio, scope = float(r.choice([1.3, 0.5])), int(r.integers(3))
        bits = [numbers.bits(np.float32(value)) for value in (ratio, 1 / ratio, 0.7, 1e38)]
        penalties = [
            (REPETITION, scope, bits[0], numbers.bits(numbers.reciprocal(ratio))),
            (FREQUENCY, scope, bits[int(r.integers(2, 4))]),
            (PRESENCE, scope, bits[2]),
            (SCALE, bits[2]),
        ]
        return steps + [p for p in penalties if r.random() < 0.25]

    def history(self, r: Rng) -> None:
        ids = self.some(r)
        self.counts.append(np.stack([ids, *r.integers(0, 5, (2, ids.size))]))
        self.start.append(self.start[-1] + ids.size)


def rows_of(programs: list[Program], r: Rng, pile: Pile | None = None, **given: Any) -> SamplingMetadata:
    b = len(programs)
    packed = np.zeros((b, max(map(len, programs)) + 1, 6), np.int64)
    for row, steps in zip(packed, programs, strict=True):
        for at, step in enumerate(steps):
            row[at, : len(step)] = step
    pile = pile or Pile(1)
    counts = np.concatenate(pile.counts, axis=1).astype(np.int32) if pile.counts else np.zeros((3, 0), np.int32)
    none, start = np.zeros(0, np.int32), np.zeros(b + 1, np.int64)
    arrays: dict[str, Any] = {
        "edit_ids": np.array(pile.ids, np.int32),
        "edit_values": np.array(pile.values, np.float32),
        "count_start": np.array(pile.start, np.int64) if pile.counts else start,
        "count_ids": counts[0],
        "prompt_counts": counts[1],
        "output_counts": counts[2],
        "masks": np.zeros((0, 0), np.int32),
        "checks": np.zeros((0, 0), np.int32),
        "seeds": r.integers(-(2**63), 2**63 - 1, b),
        "steps": r.integers(0, 2**32, b),
        "samples": r.integers(0, 2**32, b),
        "views": np.zeros(b, np.int8),
        "top_n": np.zeros(b, np.int32),
        "asked_start": start,
        "asked_ids": none,
        "protected_start": start,
        "protected_ids": none,
        "resample": np.zeros(b, bool),
    }
    return SamplingMetadata(programs=packed, **{**arrays, **given})


def random_case(
    seed: int, v: int, b: int = 8, *, ops: Collection[Operation] = WITH_STEPS, reports: bool = True
) -> tuple[NDArray[np.float32], SamplingMetadata]:
    """Logits [b, v] of mixed shapes and as many random programs of the filters `ops`, with views if it `reports`."""
    r = np.random.default_rng(seed)
    logits, pile, programs = logits_rows(r, b, v), Pile(v), []
    for _ in range(b):
        pile.history(r)
        programs.append((pile.edits(r) if r.random() < 0.5 else []) + random_filters(r, ops))
    given: dict[str, NDArray] = {}
    if r.random() < 0.3:
        given["masks"] = r.integers(-(2**31), 2**31, (b, -(-v // 32))).astype(np.int32)
        given["masks"][r.random(b) < 0.3] = -1
    views = r.integers(0, 4, b).astype(np.int8)
    views[[any(step[0] == XTC for step in p) for p in programs]] = View.PROCESSED
    views *= reports
    start = np.concatenate([[0], np.cumsum(np.where(views > 0, r.integers(0, 4, b), 0))])
    given |= {"views": views, "top_n": np.where(views > 0, r.integers(0, 8, b), 0).astype(np.int32)}
    given |= {"asked_start": start, "asked_ids": r.integers(0, v, int(start[-1])).astype(np.int32)}
    return logits, rows_of(programs, r, pile, **given)


def expected_drawn(logits: NDArray[np.float32], rows: SamplingMetadata) -> Drawn:
    """What the plain path draws."""
    out = Drawn.empty(rows)
    for r in range(rows.count):
        distribution.draw_row(distribution.outcome(distribution.request_of(logits, rows, r)), rows, r, out)
    return out


def assert_same(expected: Drawn, actual: Drawn) -> None:
    for field in fields(Drawn):
        np.testing.assert_array_equal(getattr(actual, field.name), getattr(expected, field.name), field.name)
