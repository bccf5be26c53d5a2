"""The arrays of a JitableSamplingParams, one request or a batch of them, and their two shapes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Self

import jax
import jax.numpy as jnp

from tirage.compat.easydel.columns import PAD

SCALARS: dict[str, tuple[Any, Any]] = {
    "random_sampling": (jnp.bool_, True),
    "temperature": (jnp.float32, 1.0),
    "top_k": (jnp.int32, 0),
    "top_p": (jnp.float32, 1.0),
    "min_p": (jnp.float32, 0.0),
    "repetition_penalty": (jnp.float32, 1.0),
    "frequency_penalty": (jnp.float32, 0.0),
    "presence_penalty": (jnp.float32, 0.0),
    "max_tokens": (jnp.int32, -1),
    "min_tokens": (jnp.int32, 0),
}
"""dtype and neutral value of each array that holds one number per slot."""

TABLES: dict[str, tuple[int, int]] = {
    "all_stop_token_ids": (1, PAD),
    "bad_words_token_ids": (2, PAD),
    "bad_words_lengths": (1, 0),
    "allowed_token_ids": (1, PAD),
}
"""Axes of one request's table of ids, and the value that pads it."""

STREAM: dict[str, Any] = {"seed": jnp.uint32, "step": jnp.int32}
"""dtype of the arrays that key the draws; both are None without a seed."""


@dataclass(frozen=True, slots=True, eq=False)
class SlotArrays:
    """The arrays and the semantics of requests, one slot for each; JitableSamplingParams says what they mean."""

    random_sampling: jax.Array
    temperature: jax.Array
    top_k: jax.Array
    top_p: jax.Array
    min_p: jax.Array
    repetition_penalty: jax.Array
    frequency_penalty: jax.Array
    presence_penalty: jax.Array
    max_tokens: jax.Array
    min_tokens: jax.Array
    all_stop_token_ids: jax.Array  # [K]
    bad_words_token_ids: jax.Array  # [W, L]
    bad_words_lengths: jax.Array  # [W]
    allowed_token_ids: jax.Array | None = None  # [A]
    seed: jax.Array | None = None  # [2]
    step: jax.Array | None = None
    semantics: str = field(default="canonical", metadata={"static": True})

    def view_1d(self) -> Self:
        """The same with scalars [B], [] becoming [1]; tables stay as they are. Undoes `view_2d`."""
        return self._reshaped(-1)

    def view_2d(self) -> Self:
        """The same with scalars [B, 1], which broadcast against logits [B, V]; tables stay. Undoes `view_1d`."""
        return self._reshaped(-1, 1)

    def _reshaped(self, *shape: int) -> Self:
        return dataclasses.replace(self, **{name: jnp.reshape(getattr(self, name), shape) for name in SCALARS})
