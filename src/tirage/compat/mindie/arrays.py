"""The caller's arrays: copied, checked, and named in every error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends import find, known, type_name
from tirage.errors import ParamsError, nearest

ToTensor = Callable[[NDArray], Any]
"""Makes a tensor of the caller's library from a NumPy array."""


def copied(value: Any, name: str, rule: str) -> NDArray:
    """A NumPy copy, same shape, of an array, tensor or list; raises ParamsError, quoting `rule`, for another type."""
    if isinstance(value, (str, bytes, Mapping, set, frozenset, np.ma.MaskedArray)):
        raise ParamsError(f"{name} must be {rule}, got {type_name(value)}")
    try:
        return np.array(_on_host(value))
    except (TypeError, ValueError, RuntimeError):
        raise ParamsError(f"{name} must be {rule}, got {type_name(value)}; convert it with np.asarray") from None


def _on_host(value: Any) -> Any:
    if known(value):
        return find(value).to_numpy(value)
    return value.asnumpy() if hasattr(value, "asnumpy") else value


def column(value: Any, name: str, kinds: str, word: str) -> NDArray:
    """A NumPy copy [B] whose dtype is of one of `kinds` (NumPy's letters), which `word` names in the error.

    Raises ParamsError for another shape or dtype.
    """
    rule = f"a one-dimensional {word} array, one value per request"
    array = copied(value, name, rule)
    empty_list = array.size == 0 and not hasattr(value, "dtype")
    if array.ndim != 1 or not (kind(array) in kinds or empty_list):
        raise ParamsError(f"{name} must be {rule}, got {array.dtype} of shape {list(array.shape)}")
    return array


def kind(array: NDArray) -> str:
    """NumPy's letter for the dtype of an array of any shape; bfloat16 counts as a float."""
    return "f" if array.dtype.name == "bfloat16" else array.dtype.kind


def same_length(lengths: Iterable[tuple[str, int]]) -> None:
    """Raises ParamsError for the first array that holds another number of requests than the first one."""
    first: tuple[str, int] | None = None
    for name, length in lengths:
        first = first or (name, length)
        if length != first[1]:
            raise ParamsError(f"{name} must hold as many requests as {first[0]}, which is {first[1]}, got {length}")


def per_row(name: str, length: int, count: int) -> None:
    """Raises ParamsError unless an array holds one entry for each row of the logits."""
    if length != count:
        raise ParamsError(f"{name} must hold one entry per row of the logits, which have {count}, got {length}")


def tensor_maker(value: Any) -> None:
    """Raises ParamsError unless `to_tensor` can be called or was left out."""
    if value is not None and not callable(value):
        raise ParamsError(f"to_tensor must be a function of a NumPy array or None, got {type_name(value)}")


def refuse_unknown(owner: str, options: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises ParamsError for the first unknown option, with the nearest known name."""
    names = tuple(known)
    for option in options:
        raise ParamsError(f"{owner} option must be one of {', '.join(names)}, got {option!r}{nearest(option, names)}")
