"""Rotary position embeddings in the Hugging Face convention (halves rotated, not pairs)."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ModelError
from tirage.fields.rules import shown

Array = NDArray[np.float32]


def inverse_frequencies(head_dim: int, theta: float, scaling: Mapping[str, Any]) -> Array:
    """The angular steps per position, float32 [head_dim / 2].

    `scaling` is the rope_scaling or rope_parameters object of the configuration. The types `default`, `linear` and
    `llama3` are implemented; any other raises ModelError, because ignoring it would give fluent but wrong text.
    Source: Su et al. 2021, arXiv:2104.09864; Llama 3.1 release for `llama3`.
    """
    steps = 1.0 / theta ** (np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    if kind == "linear":
        steps = steps / number(scaling, "factor")
    elif kind == "llama3":
        steps = llama3_steps(steps, scaling)
    elif kind != "default":
        raise ModelError(
            f"rope_type must be default, linear or llama3 for the NumPy model, got {kind!r}; "
            "such a model needs the torch extra: pip install 'tirage[torch]'"
        )
    return steps.astype(np.float32)


def llama3_steps(steps: NDArray[np.float64], scaling: Mapping[str, Any]) -> NDArray[np.float64]:
    """The steps float64 [head_dim / 2] with long waves slowed by `factor`, short ones kept, and those between blended.

    Raises ModelError for parameters out of range.
    """
    factor = number(scaling, "factor")
    low = number(scaling, "low_freq_factor")
    high = number(scaling, "high_freq_factor")
    context = number(scaling, "original_max_position_embeddings")
    if high <= low:
        raise ModelError(f"rope_scaling: high_freq_factor must exceed low_freq_factor, got {high} and {low}")
    waves = 2 * math.pi / steps
    blend = np.clip((context / waves - low) / (high - low), 0.0, 1.0)
    return (1 - blend) * steps / factor + blend * steps


def number(scaling: Mapping[str, Any], name: str) -> float:
    """The positive number of that name; ModelError for another value."""
    value = scaling.get(name)
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= sys.float_info.max:
        raise ModelError(f"rope_scaling: {name} must be a positive number, got {shown(value)}")
    return float(value)


class Rotations:
    """Cosines and sines by position, computed as far as needed, from frequencies float32 [head_dim / 2]."""

    __slots__ = ("_cos", "_frequencies", "_sin")

    def __init__(self, frequencies: Array) -> None:
        self._frequencies = frequencies
        empty = np.empty((0, 2 * len(frequencies)), np.float32)
        self._cos, self._sin = empty, empty

    def between(self, start: int, stop: int) -> tuple[Array, Array]:
        """The cosines and signed sines, each [stop - start, head_dim]; the first half of the sines is negated."""
        cos, sin = self._cos, self._sin
        if stop > min(len(cos), len(sin)):
            cos, sin = self._grow(max(stop, 2 * len(cos), 64))
        return cos[start:stop], sin[start:stop]

    def _grow(self, length: int) -> tuple[Array, Array]:
        angles: Array = np.arange(length, dtype=np.float32)[:, None] * self._frequencies
        cos, sin = np.cos(angles), np.sin(angles)
        cos = np.concatenate([cos, cos], axis=1)
        sin = np.concatenate([-sin, sin], axis=1)
        self._cos, self._sin = cos, sin
        return cos, sin


def rotate(x: Array, cos: Array, sin: Array) -> Array:
    """The vectors [..., head_dim] rotated by the angles of their positions.

    `cos` and `sin` broadcast against x. `sin` includes the sign, so that (a, b) becomes (a cos - b sin, b cos + a sin)
    with one swap of the halves.
    """
    half = x.shape[-1] // 2
    swapped = np.concatenate([x[..., half:], x[..., :half]], axis=-1)
    return np.add(x * cos, swapped * sin)
