"""Which reader a model gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tirage.compat.gemma.forward import ModelReader, Reader, SeparateReader, TransformerReader
from tirage.compat.gemma.joined import JoinedReader, can_join
from tirage.errors import ModelError, ParamsError
from tirage.models.transformer import Forward


def reader_of(model: Any, params: Any, *, cache_length: int, buckets: Sequence[int], sharding: Any) -> Reader:
    """The Reader for a model, for one call; ModelError for an object that is no model."""
    if hasattr(model, "apply") and hasattr(model, "init_cache"):
        if params is None:
            raise ModelError("params must be given with a TransformerLike model, got None")
        if can_join(model, params):
            return JoinedReader(model, params, length=cache_length, buckets=buckets, sharding=sharding)
        if sharding is not None:
            raise ParamsError(
                "sharding must be None where params are no JAX arrays or the cache is not in Gemma's layout, got "
                f"{type(sharding).__name__}"
            )
        return SeparateReader(TransformerReader(model, Forward(model, params, length=cache_length, buckets=buckets)))
    if hasattr(model, "prefill") and hasattr(model, "decode"):
        if sharding is not None or params is not None:
            name = "sharding" if params is None else "params"
            raise ParamsError(f"{name} must be None with a tirage model, which holds its own, got a value")
        return SeparateReader(ModelReader(model, cache_length))
    raise ModelError(f"model must be a TransformerLike or a tirage.models.Model, got {type(model).__name__}")
