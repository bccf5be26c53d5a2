"""Logits of any library as ones that `tirage.sample` takes, and its results as the caller's tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tirage.backends import find, known, type_name
from tirage.compat.mindie.arrays import ToTensor
from tirage.errors import ParamsError


def opened(logits: Any, to_tensor: ToTensor | None) -> tuple[Any, Callable[[Any], Any]]:
    """Logits [B, V] or [V] that `tirage.sample` takes, and a function from an array of its results to a tensor.

    Arrays of libraries that tirage draws from stay as they are. A mindspore tensor, or any other with `asnumpy`, is
    converted to NumPy, and only `to_tensor` converts back; without it such logits raise ParamsError.
    """
    if known(logits) or not hasattr(logits, "asnumpy"):
        backend = find(logits)
        return logits, lambda array: array if to_tensor is None else to_tensor(_host(backend.to_numpy(array)))
    if to_tensor is None:
        raise ParamsError(
            f"to_tensor must be given with logits of type {type_name(logits)}, got None; "
            "pass the function that makes a tensor of a NumPy array"
        )
    return _numpy(logits), to_tensor


def _numpy(tensor: Any) -> NDArray:
    # mindspore converts bfloat16 only for the NumPy that it was built against; float32 holds the same values.
    widened = tensor.astype("float32") if str(tensor.dtype).lower() == "bfloat16" else tensor
    return np.asarray(widened.asnumpy())


def _host(array: NDArray) -> NDArray:
    """Token ids as int64 whatever the library's integers are; logprobs as they are."""
    return array.astype(np.int64) if array.dtype.kind == "i" else array
