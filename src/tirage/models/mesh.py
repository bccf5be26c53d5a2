"""JAX models on a mesh, whose logits stay in parts on its devices: the engine draws from them without gathering."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from tirage.backends.sharded.mesh import MeshLogits, ReadyMesh
from tirage.errors import ParamsError, nearest
from tirage.models.llama_jax import transformer_of
from tirage.models.sharded import ShardedModel
from tirage.models.transformer import TransformerLike, TransformerModel

_SPLIT = {"qkv": 0, "gate_up": 0, "output": 1, "down": 1, "head": 0}
"""The dimension of each weight of a Llama that is cut over the devices."""


class MeshShards:
    """Logits on the devices of one axis of a mesh, all of them in this process."""

    def __init__(self, mesh: Mesh, axis: str, vocab_size: int) -> None:
        self._mesh, self._axis, self.vocab_size = mesh, axis, vocab_size

    def join(self, parts: Sequence[Any]) -> ReadyMesh:
        """The logits of rows, of JAX arrays [k, W] with W >= V."""
        logits = jnp.concatenate(parts) if len(parts) > 1 else parts[0]
        return MeshLogits(logits=logits, mesh=self._mesh, axis=self._axis, vocab_size=self.vocab_size).ready()

    def agree(self, digest: int) -> bool:
        """True: there is one process."""
        return True

    def share(self, value: int) -> int:
        """The value itself."""
        return value


def on_mesh(
    model: TransformerLike, params: Any, *, mesh: Mesh, axis: str, max_length: int, vocab_size: int | None = None
) -> ShardedModel:
    """A model for `tirage.LLM(model, tokenizer=...)` whose parameters lie on a mesh, as the caller has laid them.

    Its logits lie on `axis`, or are brought there. `vocab_size` is the number of them that count, by default all.
    Raises ParamsError for an axis that the mesh does not have, and the errors of TransformerModel.
    """
    if axis not in mesh.axis_names:
        names = tuple(map(str, mesh.axis_names))
        raise ParamsError(f"axis must be one of {list(names)}, got {axis!r}{nearest(str(axis), names)}")
    inner = TransformerModel(model, params, max_length=max_length, stay=True)
    return ShardedModel(inner, MeshShards(mesh, axis, inner.vocab_size if vocab_size is None else vocab_size))


def llama_on_mesh(model: Any, *, mesh: Mesh, axis: str, max_length: int | None = None) -> ShardedModel:
    """A NumPy Llama, as `LLM("tiny").model` is, with its weights cut over one axis of a mesh.

    Weights whose rows do not divide evenly are on every device, but for the output layer, which is padded. Raises
    ModelError for any other model, and the errors of `on_mesh`.
    """
    transformer, params = transformer_of(model)
    length = model.max_length if max_length is None else max_length
    # The model says nothing of axes, so that the compiler has to choose.
    mesh = Mesh(mesh.devices, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))
    options = {"mesh": mesh, "axis": axis, "max_length": length, "vocab_size": model.vocab_size}
    if axis not in mesh.axis_names:
        return on_mesh(transformer, params, **options)
    return on_mesh(transformer, laid_out(params, mesh, axis), **options)


def laid_out(params: Mapping[str, Any], mesh: Mesh, axis: str) -> dict[str, Any]:
    """A Llama's parameters, a tree of arrays of any shape, on a mesh: large weights cut, the others on every device."""
    head = dict(params["head"])
    room = -head["weight"].shape[0] % mesh.shape[axis]
    padded = {
        name: None if value is None else jnp.pad(value, [(0, room)] + [(0, 0)] * (value.ndim - 1))
        for name, value in head.items()
    }

    def place(path: Any, value: Any) -> Any:
        names = [getattr(each, "key", None) for each in path]
        cut = next((_SPLIT[name] for name in names if name in _SPLIT), None)
        spec = [None] * value.ndim
        if cut is not None and cut < value.ndim and value.shape[cut] % mesh.shape[axis] == 0:
            spec[cut] = axis
        return jax.device_put(value, NamedSharding(mesh, PartitionSpec(*spec)))

    return jax.tree_util.tree_map_with_path(place, {**params, "head": padded})
