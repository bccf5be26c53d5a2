"""Vocabulary shards: the token of the whole rows, drawn without gathering the logits of any but a few kinds of rows.

`tirage.sample` and `tirage.Batch` take what is defined here in place of logits: a `Shard` on each process of a
`torch.distributed` group, `Shards` when one process holds them all, `MeshLogits` for a JAX array whose vocabulary
lies on an axis of a mesh. Token, status, logprobs and everything else are those of the gathered logits, bit for bit.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from tirage.backends import find, known, type_name
from tirage.errors import ParamsError
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn

if TYPE_CHECKING:
    from tirage.backends.sharded.communicators import Distributed, Metered
    from tirage.backends.sharded.mesh import MeshLogits
    from tirage.backends.sharded.shards import Shard, Shards
    from tirage.backends.torch.communicator import Communicator

_HOMES = {
    "Communicator": "tirage.backends.torch.communicator",
    "Distributed": "tirage.backends.sharded.communicators",
    "MeshLogits": "tirage.backends.sharded.mesh",
    "Metered": "tirage.backends.sharded.communicators",
    "Shard": "tirage.backends.sharded.shards",
    "Shards": "tirage.backends.sharded.shards",
}
__all__ = ["Communicator", "Distributed", "MeshLogits", "Metered", "Shard", "Shards"]


def __getattr__(name: str) -> Any:
    # Found on first use: PyTorch and JAX are each imported only by those who use them.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def as_logits(logits: Any) -> Any:
    """The shards, checked, as logits [B, V] that can be drawn from.

    ParamsError for what is neither shards nor an array.
    """
    if hasattr(logits, "ready"):
        return logits.ready()
    if hasattr(logits, "draw"):
        return logits
    raise ParamsError(f"logits must be an array or shards of one, got {type_name(logits)}")


def as_mask(mask: Any, shape: tuple[int, ...]) -> Any:
    """A bitmask of whole rows, of any library, as int32 [B, ceil(V / 32)]; None stays None.

    ParamsError for what is no array of a library that has a backend.
    """
    if mask is None:
        return None
    if not known(mask):
        raise ParamsError(f"mask must be an int32 array of bits, got {type_name(mask)}; pack 32 tokens to a word")
    return find(mask).as_mask(mask, shape)


def draw(logits: Any, batch: SamplingBatch, mask: Any) -> Drawn:
    """A Drawn that is the same on every shard, from shards of [B, V] logits and a `mask` int32 [B, ceil(V / 32)]."""
    return logits.draw(batch, mask)


def to_numpy(array: Any) -> NDArray:
    """A result, of any shape, as NumPy; ParamsError for shards themselves, as nothing here gathers their rows."""
    if hasattr(array, "draw"):
        raise ParamsError("logits must be whole rows here, got shards; gather them, or use tirage.sample")
    return find(array).to_numpy(array)


def from_numpy(array: NDArray, like: Any) -> Any:
    """Host values, of any shape, as an array of the shards' library, where the results live."""
    return find(like.like).from_numpy(array, like.like)
