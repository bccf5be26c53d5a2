"""Shapes of logits whose reads are counted: SHAPES are those that the kernels were written by, OTHERS came later.

Some of OTHERS showed what was wrong with the bins of the histogram: what lies far above, or below, or apart.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

SIZE = 128_256
SHAPES: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "peaked": lambda n, r: n * 6.0,
    "medium": lambda n, r: n * 3.0,
    "flat": lambda n, r: n * 0.1,
    "constant": lambda n, r: n * 0 + 1.5,
    "one far below": lambda n, r: np.where(np.arange(n.shape[1]) == 1000, -100.0, n * 0.1),
    "holes": lambda n, r: np.where(r.random(n.shape) < 0.02, -np.inf, n * 0.1),
    "two plateaus": lambda n, r: np.where(n > 0, 1.5, 0.5),
    "rough plateaus": lambda n, r: np.where(n > 0, 1.5, 0.5) + n * 1e-3,
    "ramp": lambda n, r: n * 0 + np.linspace(20.0, 0.0, n.shape[1]),
    "tie": lambda n, r: np.where(r.random(n.shape) < 0.2, -0.14, n * 0.1),
}
"""Logits [rows, V] of a shape, from standard normal ones; top-p of 0.9 cuts in the tie of `tie`."""


def clusters(n: Any, r: np.random.Generator, *, shares: Sequence[float], at: Sequence[float], width: float) -> Any:
    """Logits around each of some points, so many of them there."""
    return np.array(at)[r.choice(len(at), p=shares, size=n.shape)] + n * width


def as_bfloat16(x: Any) -> NDArray[np.float32]:
    return torch.tensor(x).bfloat16().float().numpy()


def apart(n: Any, r: np.random.Generator, *, number: int, above: float) -> Any:
    """So many tokens far above the others."""
    return np.where(r.permutation(n.shape[1]) < number, above + n * 2, n * 1.5)


OTHERS: dict[str, Callable[[Any, np.random.Generator], Any]] = {
    "three plateaus": lambda n, r: clusters(n, r, shares=(0.3, 0.4, 0.3), at=(0, -6, -14), width=0.02),
    "five plateaus": lambda n, r: clusters(n, r, shares=(0.1, 0.2, 0.3, 0.2, 0.2), at=(0, -1, -2, -5, -9), width=0.01),
    "a hundredth far above": lambda n, r: clusters(n, r, shares=(0.01, 0.99), at=(8, 0), width=0.05),
    "a tenth far below": lambda n, r: clusters(n, r, shares=(0.9, 0.1), at=(0, -20), width=0.01),
    "a tenth in a band": lambda n, r: np.where(r.random(n.shape) < 0.1, 5 + n * 1e-3, n),
    "Cauchy": lambda n, r: r.standard_cauchy(n.shape) * 0.3,
    "exponential": lambda n, r: -r.exponential(3, n.shape),
    "half at -10000": lambda n, r: np.where(r.random(n.shape) < 0.5, -1e4 + n, n * 2),
    "bfloat16, medium": lambda n, r: as_bfloat16(n * 3),
    "Student's t": lambda n, r: r.standard_t(3, n.shape) * 2,
    "gamma": lambda n, r: r.gamma(2, 1.5, n.shape),
    "gamma, downwards": lambda n, r: -r.gamma(2, 1.5, n.shape),
    "fifty far above": lambda n, r: apart(n, r, number=50, above=9),
    "seven far above": lambda n, r: apart(n, r, number=7, above=14),
    "a third at the least float": lambda n, r: np.where(r.random(n.shape) < 0.33, np.finfo(np.float32).min, n * 2.5),
    "most at -inf": lambda n, r: np.where(r.random(n.shape) < 0.9, -np.inf, n * 2.5),
    "two bells": lambda n, r: np.where(r.random(n.shape) < 0.3, 4 + n, n * 1.5 - 6),
    "bfloat16, flat": lambda n, r: as_bfloat16(n * 0.2 + 18),
    "logistic": lambda n, r: r.logistic(0, 1.5, n.shape),
    "uniform": lambda n, r: r.random(n.shape) * 12,
    "narrow": lambda n, r: 3 + n * 1e-4,
}


def logits_of(shape: str, rows: int) -> NDArray[np.float32]:
    """Logits [rows, SIZE] of a shape."""
    r = np.random.default_rng(1)
    return (SHAPES | OTHERS)[shape](r.standard_normal((rows, SIZE)), r).astype(np.float32)
