"""Backends: the same steps, executed where the logits live.

A backend draws `SamplingMetadata`, B rows as arrays, and returns `Drawn`. Which operations it runs follows from its
tables; rows with any other take the plain path.
"""

from __future__ import annotations

from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol, cast

from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.operators.row import Process as Process
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import MAX_VOCAB as MAX_VOCAB
from tirage.sampling_metadata import STEP_WIDTH as STEP_WIDTH
from tirage.sampling_metadata import Drawn
from tirage.sampling_metadata import SamplingMetadata as SamplingMetadata
from tirage.sampling_metadata import View as View


class Backend(Protocol):
    """One array library: how its arrays come in, are drawn from, and go out. Each is a module of this package."""

    def as_logits(self, logits: Any) -> Any:
        """Checked logits as the library's float32 [B, V]."""
        ...

    def as_mask(self, mask: Any, shape: tuple[int, ...]) -> Any:
        """A checked bitmask int32 [B, ceil(V / 32)], or None."""
        ...

    def draw(self, logits: Any, batch: SamplingBatch, mask: Any) -> Drawn:
        """A Drawn of float32 logits [B, V], whose arrays belong to the library."""
        ...

    def to_numpy(self, array: Any) -> NDArray:
        """An array of the library as NumPy, same shape."""
        ...

    def from_numpy(self, array: NDArray, like: Any) -> Any:
        """Host values as an array of the library, same shape, where `like` lives."""
        ...


_BACKENDS = {
    "numpy": "tirage.backends.numpy",
    "torch": "tirage.backends.torch",
    "jax": "tirage.backends.jax",
    "jaxlib": "tirage.backends.jax",
    "mlx": "tirage.backends.mlx",
    "tirage": "tirage.backends.sharded",
}
"""Module that an array's type comes from -> the backend that draws from it."""

_LIBRARIES = tuple(dict.fromkeys(name.rpartition(".")[2] for key, name in _BACKENDS.items() if key != "tirage"))


def find(array: Any) -> Backend:
    """The backend of an array of any shape, by its type alone: no library is imported that the caller does not use.

    Raises ParamsError for a type that no backend has.
    """
    library = _library(type(array))
    if library not in _BACKENDS:
        raise ParamsError(
            f"logits must be an array of {', '.join(_LIBRARIES)}, got {type_name(array)}; convert it with np.asarray"
        )
    return _imported(_BACKENDS[library])


def known(array: Any) -> bool:
    """True when the value is an array of a library that has a backend."""
    return _library(type(array)) in _BACKENDS


def tell(logits: Any, error: Exception) -> None:
    """Tells the other shards of the logits [B, V], if there are any, why this one refuses the arguments.

    They, and the caller, then get one ParamsError that names this shard; nothing happens for logits that are whole.
    """
    refuse = getattr(logits, "refuse", None)
    if refuse is not None:
        refuse(error)


@lru_cache(maxsize=len(_BACKENDS))
def _imported(module: str) -> Backend:
    return cast("Backend", import_module(module))


@lru_cache(maxsize=64)
def _library(kind: type) -> str:
    module = kind.__module__
    library = module.partition(".")[0]
    # Of tirage's own types, the shards of `sharded` alone stand for logits.
    return "" if library == "tirage" and not module.startswith(_BACKENDS["tirage"]) else library


def type_name(value: Any) -> str:
    """The name of a value's type, with its module unless it is built in."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
