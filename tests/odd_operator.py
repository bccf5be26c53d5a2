"""An operator that no backend knows: only odd tokens stay. What draws it has taken the plain path by construction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

import tirage
from tirage import SamplingParams, Semantics
from tirage.operators import OPERATIONS, OPERATORS, Operation, Operator, Step
from tirage.operators.row import RowState

ROWS, V = 24, 64
NO_PAST: list[tuple[tuple[int, ...], tuple[int, ...]]] = [((), ())] * ROWS


def _drop_even(row: RowState, step: Step) -> None:
    kept = row.ids % 2 == step.a
    row.keep(kept | row.is_top() if not kept.any() else kept)


@contextmanager
def registered() -> Iterator[Semantics]:
    """A semantics with a stage of its own between top-k and top-p, which is an operator inside the block."""
    op = Operation("ODD", "rest:int", run=_drop_even)
    OPERATORS["odd"] = Operator(
        name="odd",
        rule="S-X1",
        operations=(op,),
        lower=lambda: Step(op, 1),
        note=lambda moment: f"{moment.left} odd tokens left",
    )
    try:
        # Another version for each operation: what is compiled for a semantics is kept.
        yield Semantics(
            name="odd",
            version=str(int(op)),
            stages=("logit_bias", "presence", "temperature", "top_k", "odd", "top_p", "xtc"),
        )
    finally:
        del OPERATORS["odd"], OPERATIONS[int(op)]


def requests(semantics: Semantics) -> list[SamplingParams]:
    common = {"semantics": semantics, "temperature": 0.8}
    kinds = [{}, {"top_k": 9}, {"top_p": 0.7}, {"top_k": 20, "top_p": 0.9, "logprobs": 3}, {"xtc_probability": 0.5}]
    kinds.append({"presence_penalty": 1.0, "logprobs": 2, "logprobs_mode": "sampled"})
    return [SamplingParams(seed=seed, **common, **kinds[seed % len(kinds)]) for seed in range(ROWS)]


def logits() -> NDArray[np.float32]:
    return (np.random.default_rng(5).standard_normal((ROWS, V)) * 2).astype(np.float32)


def laws(semantics: Semantics) -> NDArray[np.float64]:
    """The law of each row [ROWS, V], one by one by the plain rules: of odd tokens alone."""
    found = np.array([
        tirage.law(x, p, history=NO_PAST[:1])[0] for x, p in zip(logits(), requests(semantics), strict=True)
    ])
    assert not found[:, ::2].any()
    np.testing.assert_allclose(found.sum(1), 1)
    return found


def expected(semantics: Semantics) -> list[int]:
    """The tokens, drawn one by one by the plain rules: top-k, then the odd ones, then top-p."""
    rows = zip(logits(), requests(semantics), strict=True)
    found = [int(tirage.sample(x, params, history=NO_PAST[:1]).token_ids[0]) for x, params in rows]
    assert all(law[token] > 0 for law, token in zip(laws(semantics), found, strict=True))
    return found


def drawn(matrix: object, semantics: Semantics) -> list[int]:
    result = tirage.sample(matrix, requests(semantics), history=NO_PAST)
    return [int(token) for token in np.asarray(result.token_ids)]
