"""Filters in orders that no preset has, on logits of every awkward shape: JAX compiles them to what NumPy draws."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from random_rows import Program, logits_rows, random_filters, rows_of, varied

from tirage.backends.jax import traced
from tirage.backends.jax.dispatch import arrays_of, narrowed
from tirage.backends.jax.program import programs
from tirage.backends.numpy import dispatch, kernels
from tirage.operators.xtc import XTC
from tirage.sampling_metadata import SamplingMetadata, View

ROWS = 1000
BATCHES = 4
ORDERS = 26
"""Rows of one call, calls of one compiled program, and programs: 104,000 rows."""


def hostile_case(program: Program, size: int, seed: int) -> tuple[Any, SamplingMetadata]:
    """Logits [ROWS, size] and rows of this program, with masks and reports."""
    r = np.random.default_rng(seed)
    masks = r.integers(-(2**31), 2**31, (ROWS, -(-size // 32))).astype(np.int32)
    masks[r.random(ROWS) < 0.7] = -1
    views = r.integers(0, 4, ROWS).astype(np.int8)
    if any(step[0] == XTC for step in program):
        views[views > 0] = View.PROCESSED
    top_n = np.where(views > 0, r.integers(0, 8, ROWS), 0).astype(np.int32)
    given = {"masks": masks, "views": views, "top_n": top_n}
    return logits_rows(r, ROWS, size), rows_of([varied(program, r) for _ in range(ROWS)], r, **given)


@pytest.mark.exhaustive
@pytest.mark.parametrize("order", range(ORDERS))
def test_a_hundred_thousand_hostile_rows_in_jit_are_those_of_numpy(order: int):
    kernels.start()
    kernels.wait()
    size = (96, 300, 5000)[order % 13 // 6]
    program = random_filters(np.random.default_rng(order))
    compiled = jax.jit(lambda x, program: arrays_of(traced.draw(x, program)))

    for batch in range(BATCHES):
        logits, rows = hostile_case(program, size, 1000 * order + batch)
        ((_, one),) = programs(rows, size)
        drawn, expected = compiled(logits, one), arrays_of(narrowed(dispatch.draw_rows(logits, rows)))
        for name in set(expected) - {"asked_logprobs"}:
            np.testing.assert_array_equal(np.asarray(drawn[name]), expected[name], name)
    assert compiled._cache_size() == 1
