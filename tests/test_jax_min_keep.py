"""min_keep, and XTC that keeps ties, inside `jit`: what NumPy's plain path draws, row by row."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from random_rows import FILTERS, ON_JAX, Program, Rng, logits_rows, rows_of

from tirage.backends.jax import traced
from tirage.backends.jax.dispatch import arrays_of, narrowed
from tirage.backends.jax.program import programs
from tirage.backends.numpy import dispatch
from tirage.operators import Operation
from tirage.operators.min_keep import FLOORED
from tirage.operators.temperature import TEMPERATURE
from tirage.operators.top_k import TOP_K
from tirage.operators.top_p import TOP_P
from tirage.operators.xtc import XTC_TIES_KEPT
from tirage.sampling_metadata import View

ROWS = 48
FEW = {FLOORED[TOP_P], XTC_TIES_KEPT}


def step_of(op: Operation, r: Rng) -> tuple[int, ...]:
    operands = FILTERS[op.base](r)
    return (int(op), *operands, *((int(r.choice([0, 2, 3, 9, 60, 7000])),) if op.base != op else ()))


def programs_of(op: Operation, r: Rng) -> list[Program]:
    """Programs of one order, with and without a top-k, whose fixed options are those of the first."""
    first = step_of(op, r)
    kinds = [kind for _, kind in op.operands]
    out: list[Program] = []
    for _ in range(ROWS):
        other = step_of(op, r)[1:]
        operands = [a if kind == "static" else b for kind, a, b in zip(kinds, first[1:], other, strict=True)]
        steps: Program = [(int(TEMPERATURE), *FILTERS[TEMPERATURE](r)), (int(op), *operands)]
        out.append(steps + [(int(TOP_K), 20, 0)] * int(r.integers(2)))
    return out


# Each operation is a program of its own to compile.
@pytest.mark.slow
@pytest.mark.parametrize(
    ("op", "size"),
    [
        pytest.param(op, size, marks=() if size == 96 and op in FEW else pytest.mark.exhaustive)
        for op in sorted(ON_JAX)
        for size in (96, 5000)
    ],
    ids=str,
)
def test_jit_leaves_as_many_tokens_as_numpy(op: Operation, size: int) -> None:
    compiled = jax.jit(lambda x, program: arrays_of(traced.draw(x, program)))
    for seed in range(3):
        r = np.random.default_rng(seed)
        views = np.where(r.random(ROWS) < 0.5, View.PROCESSED, View.NONE).astype(np.int8)
        given: dict[str, Any] = {"views": views, "top_n": np.where(views > 0, 3, 0).astype(np.int32)}
        logits, rows = logits_rows(r, ROWS, size), rows_of(programs_of(op, r), r, **given)
        ((_, one),) = programs(rows, size)
        drawn, expected = compiled(logits, one), arrays_of(narrowed(dispatch.draw_rows(logits, rows)))
        for name in set(expected) - {"asked_logprobs"}:
            np.testing.assert_array_equal(np.asarray(drawn[name]), expected[name], name)
