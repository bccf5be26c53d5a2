"""Laws of gemma's sampling methods: its own classes, with the logits taken where they would draw."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gemma.gm.text import _sampling
from serving import serve

_seen: list[np.ndarray] = []


def _record(_: Any, logits: jax.Array, axis: int = -1) -> jax.Array:
    _seen.append(np.asarray(logits, np.float64))
    return jnp.argmax(logits, axis=axis)


jax.random.categorical = _record


def _softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


def _asked(row: Mapping[str, Any], method: Any) -> np.ndarray:
    _seen.clear()
    token = method.get_next_tokens(jnp.asarray([row["logits"]], jnp.float32), jax.random.PRNGKey(0))
    if not _seen:
        return np.eye(len(row["logits"]))[int(token[0])]
    return _softmax(_seen[0][0])


def top_k(row: Mapping[str, Any]) -> np.ndarray:
    """TopkSampling: it draws among the k largest, whose places lax.top_k gives; 0 is RandomSampling."""
    params = row["params"]
    temperature, k = params.get("temperature", 1.0), params.get("top_k", 0)
    if temperature == 0:
        return _asked(row, _sampling.Greedy())
    if not k or k >= len(row["logits"]):
        return _asked(row, _sampling.RandomSampling(temperature=temperature))
    law = _asked(row, _sampling.TopkSampling(temperature=temperature, k=k))
    places = np.asarray(jax.lax.top_k(jnp.asarray(row["logits"], jnp.float32), k)[1])
    out = np.zeros(len(row["logits"]))
    out[places] = law
    return out


def top_p(row: Mapping[str, Any]) -> np.ndarray:
    """TopPSampling."""
    params = row["params"]
    if params.get("temperature", 1.0) == 0:
        return _asked(row, _sampling.Greedy())
    return _asked(row, _sampling.TopPSampling(p=params.get("top_p", 1.0), temperature=params.get("temperature", 1.0)))


if __name__ == "__main__":
    serve("gemma", version("gemma"), {"gemma-topk": top_k, "gemma-topp": top_p})
