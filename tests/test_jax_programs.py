"""What a trace compiles: the filters of one program share its search and both sides of a coin, and it stays small."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from random_rows import FILTERS, Program, logits_rows, random_mass, rows_of

from tirage import Batch, SamplingParams
from tirage.backends.jax import traced
from tirage.backends.jax.dispatch import arrays_of, narrowed
from tirage.backends.jax.program import programs
from tirage.backends.numpy import dispatch
from tirage.operators import OPERATIONS, Operation
from tirage.operators.epsilon import EPSILON
from tirage.operators.eta import ETA
from tirage.operators.min_p import MIN_P
from tirage.operators.temperature import TEMPERATURE
from tirage.operators.top_k import TOP_K
from tirage.operators.top_n_sigma import TOP_N_SIGMA
from tirage.operators.top_p import TOP_P
from tirage.operators.typical import TYPICAL
from tirage.operators.xtc import XTC
from tirage.sampling_metadata import View

ROWS, SIZE = 96, 300
MORE = pytest.mark.exhaustive
"""Programs that take 5 to 12 seconds to compile."""
VOCAB, SLOTS = 8192, 8
EACH: dict[str, dict[str, Any]] = {
    "top_k": {"top_k": 50},
    "top_p": {"top_p": 0.95},
    "min_p": {"min_p": 0.02},
    "typical": {"typical_p": 0.9},
    "epsilon": {"epsilon_cutoff": 3e-4},
    "eta": {"eta_cutoff": 3e-4},
    "sigma": {"top_n_sigma": 2.0},
    "xtc": {"xtc_threshold": 0.1, "xtc_probability": 0.5},
}


def truncated(r: np.random.Generator) -> tuple[int, ...]:
    """The operands of a top-p that cuts the weight of its last token."""
    return random_mass(r), 2, 1, 0


def some_of(order: tuple[Operation, ...], r: np.random.Generator) -> Program:
    """Each stage of an order or not, with operands of its own; the fixed options are those of every row."""
    steps: Program = []
    for op in order:
        last = op == TOP_P and op is order[-1]
        operands = truncated(r) if last else FILTERS[op](r)
        fixed = FILTERS[op](np.random.default_rng(0)) if not last else operands
        kinds = [kind for _, kind in OPERATIONS[int(op)].operands]
        chosen = [old if kind == "static" else new for kind, old, new in zip(kinds, fixed, operands, strict=True)]
        steps += [(int(op), *chosen)] if r.random() < 0.7 else []
    return steps


@pytest.mark.slow
@pytest.mark.parametrize(
    "order",
    [
        pytest.param((TEMPERATURE, XTC, TOP_N_SIGMA, ETA, EPSILON, TYPICAL, MIN_P, TOP_P, TOP_K), marks=MORE),
        pytest.param((TOP_K, TYPICAL, MIN_P, XTC, TEMPERATURE)),
        pytest.param((TYPICAL, EPSILON, TOP_K, XTC, TEMPERATURE, TYPICAL, TOP_P), marks=MORE),
    ],
    ids=["a coin first", "a temperature after the coin", "searches on both sides"],
)
def test_searches_in_one_loop_and_both_sides_of_a_coin_draw_what_numpy_draws(order: tuple[Operation, ...]) -> None:
    r = np.random.default_rng(len(order))
    views = np.where(r.random(ROWS) < 0.5, View.PROCESSED, View.NONE).astype(np.int8)
    given = {"views": views, "top_n": np.where(views > 0, 3, 0).astype(np.int32)}
    listed = [some_of(order, r) for _ in range(ROWS)]
    logits, rows = logits_rows(r, ROWS, SIZE), rows_of(listed, r, **given)
    expected = arrays_of(narrowed(dispatch.draw_rows(logits, rows)))
    for members, program in programs(rows, SIZE):
        drawn = jax.jit(lambda x, program: arrays_of(traced.draw(x, program)))(logits[members], program)
        for name in set(expected) - {"asked_logprobs"}:
            wanted = expected[name][members]
            found = np.asarray(drawn[name])
            np.testing.assert_array_equal(found, wanted[:, : found.shape[1]] if found.ndim == 2 else wanted, name)


def operations(names: list[str]) -> int:
    """How many operations a step of a batch with these filters, one for each request, hands to XLA."""
    batch: Any = Batch(VOCAB, SLOTS, like=jnp.zeros((1, VOCAB)), history_capacity=64)
    for name in names:
        batch.add(SamplingParams(temperature=0.8, seed=1, **EACH[name]))
    text = jax.jit(lambda batch, x: batch.sample(x)).lower(batch, jnp.zeros((SLOTS, VOCAB))).as_text()
    return len(re.findall(r"^ *%", text, re.MULTILINE))


@pytest.mark.slow
def test_eight_filters_in_one_step_are_less_than_three_times_the_largest_alone() -> None:
    largest = max(operations([name]) for name in ("typical", "top_p", "xtc"))
    found = operations(list(EACH))

    # Each has code of its own; with a search for each, twice over for XTC, it was five times as much.
    assert largest < found < 3 * largest
