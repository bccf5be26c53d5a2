"""Arrays as plain JSON values, with their shapes and every bit of their numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tirage.errors import ParamsError, nearest
from tirage.fields.rules import shown


def dumped(array: jax.Array | None) -> dict[str, Any] | None:
    """An array of any shape as its `shape` and its `data`, a flat list; a float32 as a double is exact."""
    return None if array is None else {"shape": list(array.shape), "data": np.asarray(array).reshape(-1).tolist()}


def loaded(name: str, plain: Any, dtype: Any, *, optional: bool) -> jax.Array | None:
    """The array that `dumped` described, bit for bit and of the same shape; ParamsError for anything else."""
    if plain is None and optional:
        return None
    try:
        if plain is None or not set(map(type, plain["data"])) <= _kinds(dtype):
            raise TypeError("a number of another kind")
        return jnp.asarray(np.array(plain["data"], dtype).reshape(plain["shape"]))
    except (TypeError, ValueError, KeyError, OverflowError):
        raise ParamsError(
            f"{name} must be an object with `shape` and `data`, got {shown(plain)}; write it with to_dict()"
        ) from None


def _kinds(dtype: Any) -> set[type]:
    return {jnp.bool_: {bool}, jnp.int32: {int}, jnp.uint32: {int}}.get(dtype, {int, float})


def refuse_unknown(names: Iterable[str], known: Sequence[str]) -> None:
    """Raises ParamsError for the first name that is no array of JitableSamplingParams."""
    for name in names:
        if name not in known:
            raise ParamsError(
                f"JitableSamplingParams option must be a known name, got {shown(name)}{nearest(str(name), known)}"
            )


def parsed(json_str: str) -> dict[str, Any]:
    """The object that JSON text holds; raises ParamsError for other text."""
    try:
        data = json.loads(json_str)
    except (TypeError, ValueError) as error:
        raise ParamsError(
            f"JitableSamplingParams must be read from JSON text, got text that is not ({error})"
        ) from None
    if not isinstance(data, dict):
        raise ParamsError(f"JitableSamplingParams must be read from a JSON object, got {shown(data)}")
    return data
