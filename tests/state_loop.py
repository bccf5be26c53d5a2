"""A text drawn in a loop of one's own, of which the state goes from step to step: for samplers that carry one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from strategies import logits_of

import tirage
from tirage import SamplingParams

SIZE = 60


def logits(step: int = 0, rows: int = 1) -> NDArray[np.float32]:
    """The logits [rows, SIZE] of a step."""
    return np.stack([logits_of("medium", SIZE, 100 * step + row) for row in range(rows)])


def softmax(x: NDArray[Any]) -> NDArray[np.float64]:
    e = np.exp(x.astype(np.float64) - x.max())
    return e / e.sum()


def text(params: SamplingParams, steps: int = 12, array: Any = np.asarray) -> tuple[list[int], list[float]]:
    """Tokens and states of a loop of one's own."""
    tokens, states, state = [], [], None
    for step in range(steps):
        drawn = tirage.sample(array(logits(step)), params, step=step, state=state)
        assert drawn.states is not None
        state = drawn.states
        tokens.append(int(drawn.token_ids[0]))
        states.append(float(state[0]))
    return tokens, states
