"""Backends: the same steps, executed where the logits live.

`SamplingMetadata` is everything a kernel needs to know about B rows, as arrays; `Drawn` is everything it gives back. A
kernel may be as fast as it likes, but it must agree bit for bit with `backends/numpy/plain.py` on every field.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from importlib import import_module
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from tirage.errors import ParamsError
from tirage.operators.row import Process

STEP_WIDTH = 6
"""int64 columns of one step: the operation and its operands a..e."""


class View(IntEnum):
    """Which distribution `logprobs` describes: the model's own, the edited one, or the one drawn from."""

    NONE = 0
    RAW = 1
    PROCESSED = 2
    SAMPLED = 3


MAX_VOCAB = 1 << 20
"""Largest vocabulary: above it the integer sums could leave 64 bits (S-N6)."""


class Frame(Protocol):
    """Requests ready to be drawn: `tirage.sampling_batch.SamplingBatch`, as far as a backend needs to know it."""

    @property
    def processes(self) -> Sequence[Process | None] | None:
        """Custom processors of each row, or None when no row has any."""
        ...

    @property
    def wants_logprobs(self) -> bool:
        """True when some row has a view."""
        ...

    @property
    def unseeded(self) -> Sequence[int]:
        """Rows that got a fresh seed because their parameters name none."""
        ...

    def asked(self) -> bytes:
        """Bytes that are equal where all parameters, histories and sample indices are."""
        ...

    @property
    def checks_masks(self) -> NDArray[np.bool_]:
        """bool [B]: rows whose semantics applies a mask only after the draw ("resample")."""
        ...

    def rows(self, mask: NDArray[np.int32] | None) -> SamplingMetadata:
        """The packed rows of this moment."""
        ...


class Backend(Protocol):
    """One array library: how its arrays come in, are drawn from, and go out. Each is a module of this package."""

    def as_logits(self, logits: Any) -> Any:
        """Checked logits as the library's float32 [B, V]."""
        ...

    def as_mask(self, mask: Any, shape: tuple[int, ...]) -> Any:
        """A checked bitmask int32 [B, ceil(V / 32)], or None."""
        ...

    def draw(self, logits: Any, frame: Frame, mask: Any) -> Drawn:
        """A Drawn whose arrays belong to the library."""
        ...

    def to_numpy(self, array: Any) -> NDArray:
        """An array of the library as NumPy."""
        ...

    def from_numpy(self, array: NDArray, like: Any) -> Any:
        """Host values as an array of the library, where `like` lives."""
        ...


_BACKENDS = {
    "numpy": "tirage.backends.numpy",
    "torch": "tirage.backends.torch",
    "jax": "tirage.backends.jax",
    "jaxlib": "tirage.backends.jax",
    "tirage": "tirage.backends.sharded",
}
"""Module that an array's type comes from -> the backend that draws from it."""

_LIBRARIES = tuple(dict.fromkeys(name.rpartition(".")[2] for key, name in _BACKENDS.items() if key != "tirage"))


def find(array: Any) -> Backend:
    """The backend of an array, by its type alone: no library is imported that the caller does not use."""
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
    """Say why arguments are refused to those who wait for them: the other shards of the same rows, if there are any.

    They, and the caller, then get one ParamsError that names this shard; for logits in one place nothing happens.
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


@dataclass(slots=True, kw_only=True)
class SamplingMetadata:
    """B rows ready to be drawn: steps, tables and keys of the randomness, as plain arrays.

    `programs` int64 [B, S, 6]: steps as (op, a, b, c, d, e), ended by op 0. `edit_ids` int32 [E] and
    `edit_values` float32 [E]: what BAN and ADD refer to (operands are absolute positions). Sparse history counts
    of row r are columns `count_start[r] : count_start[r + 1]` of `count_ids`, `prompt_counts`, `output_counts`.
    `masks` int32 [B, ceil(V / 32)], least significant bit first, 1 = allowed, or shape (0, 0) when no row has one.
    `seeds`, `steps`, `samples` int64 [B] key the uniforms (S-W7). `views` int8 [B] holds View codes, `top_n`
    int32 [B] how many top entries a row asks for; the ids whose logprobs row r asks for are
    `asked_ids[asked_start[r] : asked_start[r + 1]]`. `protected_ids` (with `protected_start`) survive XTC.
    `checks` int32 [B, ceil(V / 32)] or (0, 0): where `resample` bool [B] is set, a mask that counts only when the
    token drawn without it is not allowed. `memo` is for what a backend works out from programs, views and masks; it
    is emptied when they change.
    """

    programs: NDArray[np.int64]
    edit_ids: NDArray[np.int32]
    edit_values: NDArray[np.float32]
    count_start: NDArray[np.int64]
    count_ids: NDArray[np.int32]
    prompt_counts: NDArray[np.int32]
    output_counts: NDArray[np.int32]
    masks: NDArray[np.int32]
    seeds: NDArray[np.int64]
    steps: NDArray[np.int64]
    samples: NDArray[np.int64]
    views: NDArray[np.int8]
    top_n: NDArray[np.int32]
    asked_start: NDArray[np.int64]
    asked_ids: NDArray[np.int32]
    protected_start: NDArray[np.int64]
    protected_ids: NDArray[np.int32]
    checks: NDArray[np.int32]
    resample: NDArray[np.bool_]
    memo: dict[str, Any] = field(default_factory=dict)

    @property
    def count(self) -> int:
        """B."""
        return self.programs.shape[0]

    @property
    def wants_logprobs(self) -> bool:
        """True when some row has a view."""
        return bool(self.views.any())


@dataclass(slots=True)
class Drawn:
    """What drawing B rows gives: plain arrays, with sentinels where a row asked for nothing.

    `token_ids` int64 [B] (-1 for a bad row), `sampled_logprobs` float32 [B] (NaN for a bad row), `support` int64 [B],
    `status` int8 [B] (0 ok, 1 non-finite logits, 2 no allowed token). In each row's view: `logprobs` float32 [B] and
    `ranks` int64 [B] of the drawn token, `top_ids` int64 [B, N] (-1 beyond) and `top_logprobs` float32 [B, N]
    (-inf beyond) in (key descending, id ascending) order, `asked_logprobs` float32 [A], one per asked id.
    Rows without a view hold NaN, 0, -1, -inf, NaN there; bad rows NaN, 0, -1, NaN, NaN.
    """

    token_ids: NDArray[np.int64]
    sampled_logprobs: NDArray[np.float32]
    support: NDArray[np.int64]
    status: NDArray[np.int8]
    logprobs: NDArray[np.float32]
    ranks: NDArray[np.int64]
    top_ids: NDArray[np.int64]
    top_logprobs: NDArray[np.float32]
    asked_logprobs: NDArray[np.float32]

    @classmethod
    def empty(cls, rows: SamplingMetadata, *, keep: bool = False) -> Drawn:
        """A Drawn of the right shapes, filled with the sentinels of rows that asked for nothing.

        With `keep`, rows without any view are given the same arrays for views each time: nothing but their sentinels
        may be written there, and they must not be handed out.
        """
        b = rows.count
        views = rows.memo.get("views") if keep else None
        if views is None:
            views = _empty_views(rows)
            if keep and not rows.wants_logprobs:
                rows.memo["views"] = views
        return cls(
            _filled(b, -1, np.int64),
            _filled(b, np.nan, np.float32),
            np.zeros(b, np.int64),
            np.zeros(b, np.int8),
            *views,
        )

    def moved(self, move: Callable[[NDArray], Any], *, viewed: bool = True) -> Drawn:
        """This Drawn with its arrays passed through `move`, into another library or onto another device.

        Unless some row is `viewed`, logprobs, ranks and top entries hold sentinels only and stay where they are.
        """
        views: list[Any] = [self.logprobs, self.ranks, self.top_ids, self.top_logprobs, self.asked_logprobs]
        return Drawn(
            move(self.token_ids),
            move(self.sampled_logprobs),
            move(self.support),
            move(self.status),
            *(map(move, views) if viewed else views),
        )


def _empty_views(rows: SamplingMetadata) -> tuple[NDArray[Any], ...]:
    """The arrays of a Drawn that describe a view, filled with sentinels."""
    b, n = rows.count, max(rows.top_n.tolist(), default=0)
    return (
        _filled(b, np.nan, np.float32),
        np.zeros(b, np.int64),
        _filled((b, n), -1, np.int64),
        _filled((b, n), -np.inf, np.float32),
        _filled(rows.asked_ids.size, np.nan, np.float32),
    )


def _filled(shape: int | tuple[int, int], value: float, dtype: type[np.generic]) -> NDArray[Any]:
    # What np.full does, without its wrapper: several of them were a sixth of a small draw.
    array = np.empty(shape, dtype)
    array.fill(value)
    return array
