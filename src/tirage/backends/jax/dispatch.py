"""Which path draws JAX logits: NumPy's kernels on borrowed host memory, or stages compiled into the caller's program.

All give the same bits. Concrete arrays in host memory are borrowed without a copy, those of another device are copied;
both are drawn by the NumPy paths. Under jit, vmap or scan the stages are traced. What they cannot do is drawn on the
host, through a callback, for the whole call: custom processors, and a mask for a row whose semantics checks it after
the draw ("resample").
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from numpy.typing import NDArray

from tirage.backends.groups import runs_only, taken
from tirage.backends.jax import traced
from tirage.backends.jax.arrays import is_traced, to_numpy
from tirage.backends.jax.program import programs
from tirage.backends.numpy import dispatch as host
from tirage.errors import ParamsError
from tirage.operators.row import Process
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn, SamplingMetadata

_WIDTHS = {"token_ids": np.int32, "support": np.int32, "ranks": np.int32, "top_ids": np.int32}


def draw(logits: Array, batch: SamplingBatch, mask: Any) -> Drawn:
    """One token for each row of float32 logits [B, V], as JAX arrays; traced when logits or mask are."""
    if not is_traced(logits, mask):
        return draw_rows(logits, batch.metadata(None if mask is None else to_numpy(mask)), batch.processes)
    refuse_unseeded(batch)
    refuse_records(batch)
    rows = batch.metadata(stand_in(batch, logits.shape, mask))
    if needs_host(batch, rows, mask).any():
        return Drawn(**cast("dict[str, Any]", by_callback(logits, batch, rows, mask, np.arange(rows.count))))
    return _traced(logits, rows, mask)


def draw_rows(logits: Array, rows: SamplingMetadata, processes: Sequence[Process | None] | None = None) -> Drawn:
    """One token for each row of concrete logits [B, V], drawn by the host's kernels, where the logits live."""
    drawn = narrowed(host.draw_rows(to_numpy(logits), rows, processes))
    return drawn.moved(lambda array: jax.device_put(array, logits.sharding), viewed=rows.wants_logprobs)


def narrowed(drawn: Drawn) -> Drawn:
    """The Drawn, whose integers are now int32, as JAX has them without x64."""
    for name, dtype in _WIDTHS.items():
        setattr(drawn, name, getattr(drawn, name).astype(dtype))
    return drawn


def refuse_unseeded(batch: SamplingBatch) -> None:
    """Raise ParamsError for rows whose seed would be frozen into the compiled program."""
    if batch.unseeded:
        raise ParamsError(
            f"seed must be given inside jit, got None for rows {list(batch.unseeded)}; a fresh seed would be frozen "
            "into the compiled program"
        )


def refuse_records(batch: SamplingBatch) -> None:
    """Raise ParamsError for rows that ask for a record, whose size a compiled program cannot know."""
    if batch.base.records is not None:
        raise ParamsError(
            f"return_kept must be False inside jit, got True for rows {batch.base.recorded.tolist()}; the number of "
            "kept ids is not known there: sample outside, or compute tirage.jax.log_law from the recorded ids"
        )


def stand_in(batch: SamplingBatch, shape: tuple[int, ...], mask: Any) -> NDArray[np.int32] | None:
    """A mask [B, ceil(V / 32)] that allows everything, in place of one whose bits are not known yet."""
    if mask is None or not is_traced(mask):
        return mask if mask is None else to_numpy(mask)
    return np.full((shape[0], -(-shape[1] // 32)), -1, np.int32)


def needs_host(batch: SamplingBatch, rows: SamplingMetadata, mask: Any) -> NDArray[np.bool_]:
    """bool [B]: rows that no trace can draw: those with an operation that it does not know, and late masks."""
    checked = batch.checks_masks if is_traced(mask) else rows.resample
    return ~runs_only(rows, traced.operations()) | checked


def by_callback(
    logits: Array, batch: SamplingBatch, rows: SamplingMetadata, mask: Any, which: NDArray[np.int64]
) -> dict[str, Array]:
    """The fields of a Drawn of the rows `which` [n], drawn from their `logits` [n, V] on the host inside a trace."""
    some = taken(rows, which)
    shapes = {
        name: jax.ShapeDtypeStruct(a.shape, a.dtype) for name, a in arrays_of(narrowed(Drawn.empty(some))).items()
    }

    def run(x: Any, words: Any) -> dict[str, NDArray]:
        now = batch.metadata(np.asarray(words) if words.size else None)
        return arrays_of(on_host(np.ascontiguousarray(x, np.float32), batch, now, which))

    words = jnp.zeros((0, 0), jnp.int32) if mask is None else jnp.asarray(mask)
    found = jax.pure_callback(run, shapes, logits, words, vmap_method="sequential")
    return {**found, "asked_logprobs": tabled(found["asked_logprobs"], some.asked_start)}


def on_host(
    logits: NDArray[np.float32], batch: SamplingBatch, rows: SamplingMetadata, which: NDArray[np.int64]
) -> Drawn:
    """The rows `which` [n], drawn from their `logits` [n, V] by the host's kernels."""
    processes = None if batch.processes is None else [batch.processes[r] for r in which.tolist()]
    part = taken(rows, which)
    drawn = narrowed(host.draw_rows(logits, part, processes))
    rows.take_back(which, part)
    return drawn


def tabled(flat: Array, start: NDArray[np.int64]) -> Array:
    """Asked logprobs, row after row, as [B, N] with NaN past a row's own."""
    widest = int(np.diff(start).max(initial=0))
    at = start[:-1, None] + np.arange(widest)
    return jnp.where(at < start[1:, None], jnp.append(flat, np.float32(np.nan))[np.minimum(at, flat.size)], np.nan)


def arrays_of(drawn: Drawn) -> dict[str, NDArray]:
    """The fields of a Drawn by name, each of the same shape."""
    return {name: getattr(drawn, name) for name in Drawn.__slots__}


def _traced(logits: Array, rows: SamplingMetadata, mask: Any) -> Drawn:
    out = {name: jnp.asarray(array) for name, array in arrays_of(narrowed(Drawn.empty(rows))).items()}
    out["asked_logprobs"] = tabled(out["asked_logprobs"], rows.asked_start)
    for members, program in programs(rows, logits.shape[1], mask if is_traced(mask) else None):
        drawn = traced.draw(logits if members.size == rows.count else logits[members], program)
        for name, value in arrays_of(drawn).items():
            wide = widened(name, value, out[name].shape[1], drawn.status) if value.ndim == 2 else value
            out[name] = out[name].at[members].set(wide)
    return Drawn(**cast("dict[str, Any]", out))


def widened(name: str, value: Any, width: int, status: Any) -> Array:
    """Top entries and asked logprobs [B, width], with the columns that another group of rows asks for."""
    fill = {"top_ids": -1, "top_logprobs": -np.inf}.get(name, np.nan)
    wide = jnp.pad(value, ((0, 0), (0, width - value.shape[1])), constant_values=fill)
    return wide if name == "top_ids" else jnp.where(status[:, None] == 0, wide, np.float32(np.nan))
