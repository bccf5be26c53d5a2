"""Top-n-sigma: logits within n standard deviations of the largest (SPEC.md S-O6; arXiv:2411.07641)."""

from __future__ import annotations

import math

import numpy as np

from tirage.exact import numbers
from tirage.exact.keys import FLT_MAX, cleaned, value
from tirage.fields.record import param
from tirage.fields.rules import Float
from tirage.operators.operator import Moment, Operation, Operator, Step
from tirage.operators.row import RowState, sum_of_products


def _run(row: RowState, step: Step) -> None:
    """Distances from the largest logit in row-relative fixed point: 30 bits for the widest."""
    x = row.x[row.ids]
    top = value(row.key[row.ids].max())
    with np.errstate(over="ignore"):
        distance = cleaned(np.minimum(top - x, FLT_MAX))
    widest = distance.max()
    if widest == 0:
        return
    shift = 29 - (math.frexp(float(widest))[1] - 1)
    v = np.ldexp(distance.astype(np.float64), shift).astype(np.int64)
    squares = sum_of_products(v.astype(np.uint64), v.astype(np.uint64))
    kept = v <= limit(v.size, int(v.sum()), squares, step.a, step.b)
    # What llama.cpp removes here it sets to -inf and lists on.
    row.keep(kept, listed=row.listed + int((~kept).sum()))


def limit(n: int, s1: int, s2: int, e: int, s: int) -> int:
    """The largest distance v that is kept, from the count, sum and sum of squares of v."""
    deviation = math.isqrt((n * s2 - s1 * s1) // max(n * n, 1) << 2)
    return e * deviation >> s + 1


TOP_N_SIGMA = Operation("TOP_N_SIGMA", "e:word s:int", run=_run)


def _lower(*, top_n_sigma: float) -> Step | None:
    e, s = numbers.scaled_fraction(top_n_sigma)
    return Step(TOP_N_SIGMA, e, s) if e else None


def _note(moment: Moment) -> str:
    return f"logits within {moment.params.top_n_sigma:g} standard deviations of the largest"


OPERATOR = Operator(
    name="top_n_sigma",
    rule="S-O6",
    fields={
        "top_n_sigma": param(
            0.0,
            Float(low=0.0, high=1e20, open_low=True, zero=True),
            "keep logits within this many standard deviations of the largest",
            source="arXiv:2411.07641",
            off=0.0,
            stage="top_n_sigma",
        )
    },
    examples={"top_n_sigma": (1.0, 2.3, 0.1, 1e-09, 10000000000.0)},
    gentle={"top_n_sigma": 2.5},
    operations=(TOP_N_SIGMA,),
    lower=_lower,
    note=_note,
)
