"""Which model runner fits a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tirage.compat.gemma.batched_runner import BatchedRunner, can_join
from tirage.compat.gemma.runner import ModelRunner, SequentialRunner, TirageModelRunner, TransformerRunner
from tirage.errors import ModelError, ParamsError
from tirage.models.transformer import Forward


def runner_of(model: Any, params: Any, *, cache_length: int, buckets: Sequence[int], sharding: Any) -> ModelRunner:
    """The model runner for one call.

    Raises ModelError for an object that is no model, and for one without `params` that needs them; ParamsError for
    `sharding` or `params` that the model cannot take.
    """
    if hasattr(model, "apply") and hasattr(model, "init_cache"):
        if params is None:
            raise ModelError("params must be given with a TransformerLike model, got None")
        if can_join(model, params):
            return BatchedRunner(model, params, length=cache_length, buckets=buckets, sharding=sharding)
        if sharding is not None:
            raise ParamsError(
                "sharding must be None where params are no JAX arrays or the cache is not in Gemma's layout, got "
                f"{type(sharding).__name__}"
            )
        return SequentialRunner(TransformerRunner(model, Forward(model, params, length=cache_length, buckets=buckets)))
    if hasattr(model, "prefill") and hasattr(model, "decode"):
        if sharding is not None or params is not None:
            name = "sharding" if params is None else "params"
            raise ParamsError(f"{name} must be None with a tirage model, which holds its own, got a value")
        return SequentialRunner(TirageModelRunner(model, cache_length))
    raise ModelError(f"model must be a TransformerLike or a tirage.models.Model, got {type(model).__name__}")
