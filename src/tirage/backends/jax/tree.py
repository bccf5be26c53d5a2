"""`Draw` and its like as pytrees, so that jitted, vmapped and scanned functions may return them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import Any

import jax
import numpy as np

from tirage.draw import Draw


@cache
def register(kind: type[Any] = Draw) -> None:
    """Makes a dataclass of arrays and `seeds` a pytree node; further calls do nothing.

    Seeds known on the host stay outside the program, where int64 would lose its upper half.
    """
    names = tuple(field.name for field in fields(kind) if field.name != "seeds")

    def flattened(value: Any) -> tuple[tuple[Any, ...], Any]:
        leaves = tuple(getattr(value, name) for name in names)
        if isinstance(value.seeds, np.ndarray):
            return (*leaves, None), tuple(value.seeds.tolist())
        return (*leaves, value.seeds), None

    def flattened_with_keys(value: Any) -> tuple[tuple[Any, ...], Any]:
        leaves, seeds = flattened(value)
        keys = (*names, "seeds")
        return tuple((jax.tree_util.GetAttrKey(name), leaf) for name, leaf in zip(keys, leaves, strict=True)), seeds

    def unflattened(seeds: Any, leaves: Iterable[Any]) -> Any:
        *arrays, traced = leaves
        given = traced if seeds is None else np.array(seeds, np.int64)
        return kind(**dict(zip(names, arrays, strict=True)), seeds=given)

    jax.tree_util.register_pytree_with_keys(kind, flattened_with_keys, unflattened, flattened)
