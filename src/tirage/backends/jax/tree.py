"""`Draw` as a pytree, so that jitted, vmapped and scanned functions may return it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from typing import Any

import jax
import numpy as np

from tirage.draw import Draw

_LEAVES = tuple(field.name for field in fields(Draw) if field.name != "seeds")


def register() -> None:
    """Make Draw a pytree node; called once, when the first JAX array arrives."""
    jax.tree_util.register_pytree_with_keys(Draw, _flattened_with_keys, _unflattened, _flattened)


def _flattened(drawn: Draw) -> tuple[tuple[Any, ...], Any]:
    """The arrays as leaves; seeds known on the host stay outside the program, where int64 would lose its upper half."""
    leaves = tuple(getattr(drawn, name) for name in _LEAVES)
    if isinstance(drawn.seeds, np.ndarray):
        return (*leaves, None), tuple(drawn.seeds.tolist())
    return (*leaves, drawn.seeds), None


def _flattened_with_keys(drawn: Draw) -> tuple[tuple[Any, ...], Any]:
    leaves, seeds = _flattened(drawn)
    names = (*_LEAVES, "seeds")
    return tuple((jax.tree_util.GetAttrKey(name), leaf) for name, leaf in zip(names, leaves, strict=True)), seeds


def _unflattened(seeds: Any, leaves: Iterable[Any]) -> Draw:
    *arrays, traced = leaves
    given = traced if seeds is None else np.array(seeds, np.int64)
    return Draw(**dict(zip(_LEAVES, arrays, strict=True)), seeds=given)
