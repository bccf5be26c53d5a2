"""Laws of EasyDeL's eSurge engine: the modules of its sampler, with the logits taken where it would draw.

The package as a whole needs a cluster's libraries; the modules need JAX and the decorator of a dataclass. They are
compiled as its SamplerExecutor compiles them, once for each size of the vocabulary.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import distribution, version
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from serving import serve

_FOLDER = distribution("easydel").locate_file("easydel/inference/esurge/core")
_seen: list[np.ndarray] = []


def _auto_pytree(**options: Any) -> Any:
    return lambda declared: jax.tree_util.register_dataclass(dataclass(**options)(declared))


def _module(name: str, **attributes: Any) -> None:
    module = ModuleType(name)
    module.__dict__.update(attributes)
    sys.modules[name] = module


_module("eformer")
_module("eformer.pytree", auto_pytree=_auto_pytree)
_module("esurge_core", __path__=[str(_FOLDER)])
sampler = import_module("esurge_core.sampler")
metadata = import_module("esurge_core.sampling_metadata")


def _record(_: Any, logits: jax.Array, **__: Any) -> jax.Array:
    jax.debug.callback(lambda x: _seen.append(np.asarray(x, np.float64)), logits)
    return jnp.argmax(logits, axis=-1)


jax.random.categorical = _record


@jax.jit
def _drawn(logits: jax.Array, counts: jax.Array, asked: Mapping[str, jax.Array]) -> jax.Array:
    """The tokens [1] of one request, as SamplerExecutor's function asks the sampler."""
    active = jnp.ones(1, bool)
    names = ("presence_penalties", "frequency_penalties", "repetition_penalties")
    logits = sampler.apply_history_penalties_from_counts(
        logits, token_counts=counts, active_mask=active, **{name: asked[name] for name in names}
    )
    temperatures = asked["temperatures"].reshape(-1, 1)
    wanted = metadata.SamplingMetadata(
        temperatures=temperatures,
        top_ps=asked["top_ps"],
        top_ks=asked["top_ks"].astype(jnp.int32),
        min_ps=asked["min_ps"],
        sampling_seeds=jnp.zeros(1, jnp.int32),
        is_all_greedy=jnp.all(temperatures <= 0.0),
        need_min_p_sampling=jnp.any(asked["min_ps"] > 0.0),
        do_penalties=False,
        linear_penalty=None,
    )
    return sampler.sample_tokens(logits, wanted, jax.random.PRNGKey(0))


def law(row: Mapping[str, Any]) -> np.ndarray:
    """The probabilities of one request alone; nothing in eSurge reads a request's logit_bias."""
    params, size = row["params"], len(row["logits"])
    _seen.clear()
    counts = np.bincount([*row["prompt"], *row["output"]], minlength=size).astype(np.uint32)
    token = int(_drawn(jnp.asarray([row["logits"]], jnp.float32), jnp.asarray(counts[None]), _asked(params, size))[0])
    jax.effects_barrier()
    if not _seen:
        return np.eye(size)[token]
    e = np.exp(_seen[0] - _seen[0].max())
    return e / e.sum()


def _asked(params: Mapping[str, Any], size: int) -> dict[str, jax.Array]:
    """The parameters as arrays [1]; a top_k of 0 is off, and a greedy row has a negative temperature."""
    temperature, k = params.get("temperature", 1.0), params.get("top_k", 0)
    values = {
        "temperatures": temperature if temperature > 0 else -1.0,
        "top_ps": params.get("top_p", 1.0),
        "top_ks": k if 0 < k < size else 0,
        "min_ps": params.get("min_p", 0.0),
        "presence_penalties": params.get("presence_penalty", 0.0),
        "frequency_penalties": params.get("frequency_penalty", 0.0),
        "repetition_penalties": params.get("repetition_penalty", 1.0),
    }
    return {name: jnp.asarray([value], jnp.float32) for name, value in values.items()}


if __name__ == "__main__":
    serve("easydel", version("easydel"), {"easydel": law, "easydel-strict": law})
