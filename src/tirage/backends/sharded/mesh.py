"""JAX arrays whose vocabulary lies on one axis of a mesh: drawn by `shard_map`, eagerly or inside `jit`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from tirage.backends.groups import taken
from tirage.backends.jax import traced
from tirage.backends.jax.arrays import as_logits, is_traced
from tirage.backends.jax.dispatch import (
    arrays_of,
    by_callback,
    narrowed,
    needs_host,
    on_host,
    refuse_records,
    refuse_unseeded,
    stand_in,
    tabled,
    widened,
)
from tirage.backends.jax.program import TracedProgram, programs
from tirage.backends.sharded.axis import MeshAxis
from tirage.errors import ParamsError, nearest
from tirage.sampling_batch import SamplingBatch
from tirage.sampling_metadata import Drawn, SamplingMetadata

Group = tuple[NDArray[np.int32], TracedProgram]
"""Rows that run one program: which they are, and the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshLogits:
    """Logits [B, W] or [W], a JAX array, concrete or traced, whose vocabulary lies on `axis` of `mesh` and stays there.

    `vocab_size` is V where the columns were padded to divide evenly (W > V: what is in the padding does not matter);
    None means W. Columns that do not divide evenly are padded here. Axes of either type, Auto or Explicit; rows are
    the same on all other axes. The Draw is replicated over the mesh. Inside jit rows need seeds.

    Rows are drawn in parts. Only of a row with custom processors, or with a mask that its semantics checks after the
    draw ("resample"), do the devices gather the logits, 4 V bytes, and of that row alone; the host draws it.

    Each device contributes, in bytes per row: entry 8, min-p 4, greedy 8, epsilon 20; top-p 64 and 16 in each of at
    most 32 rounds, top-k above 256 likewise 48 and 16; the draw 36; logprobs 28 + 8 top_n + 4 for each asked id
    (processed 24, sampled 8). A top-k up to 256 costs 8 k, and nothing after it but logprobs that are not sampled's:
    its candidates are then on every device.
    """

    logits: Any
    mesh: Mesh
    axis: str
    vocab_size: int | None = None

    def ready(self) -> ReadyMesh:
        """The logits, checked and laid out over the mesh; raises ParamsError for what cannot be."""
        matrix = as_logits(self.logits)
        if not isinstance(self.mesh, Mesh):
            raise ParamsError(f"mesh must be a jax.sharding.Mesh, got {type(self.mesh).__name__}")
        if self.axis not in self.mesh.axis_names:
            names = tuple(map(str, self.mesh.axis_names))
            raise ParamsError(f"axis must be one of {list(names)}, got {self.axis!r}{nearest(str(self.axis), names)}")
        wide, size = matrix.shape[1], self.vocab_size
        if size is not None and (isinstance(size, bool) or not isinstance(size, int) or not 1 <= size <= wide):
            raise ParamsError(f"vocab_size must be in [1, {wide}], got {size!r}; logits have {wide} columns")
        count = self.mesh.shape[self.axis]
        room = -wide % count
        if room:
            matrix = jnp.pad(matrix, ((0, 0), (0, room)), constant_values=-np.inf)
        axis = MeshAxis(self.axis, count, (wide + room) // count)
        laid = _laid_out(matrix, self.mesh, PartitionSpec(None, self.axis))
        return ReadyMesh(matrix=laid, mesh=self.mesh, axis=axis, vocab_size=wide if size is None else size)


def _laid_out(array: Array, mesh: Mesh, spec: PartitionSpec) -> Array:
    if not is_traced(array):
        return jax.device_put(array, NamedSharding(mesh, spec))
    if any(kind == AxisType.Explicit for kind in mesh.axis_types):
        return jax.sharding.reshard(array, NamedSharding(mesh, spec))
    return jax.lax.with_sharding_constraint(array, NamedSharding(mesh, spec))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadyMesh:
    """float32 logits [B, n * width] over n devices, of which the first `vocab_size` columns count."""

    matrix: Array
    mesh: Mesh
    axis: MeshAxis
    vocab_size: int

    @property
    def shape(self) -> tuple[int, int]:
        """(B, V)."""
        return self.matrix.shape[0], self.vocab_size

    @property
    def like(self) -> Array:
        """An array where the results live."""
        return self.matrix

    def __getitem__(self, rows: Any) -> ReadyMesh:
        return replace(self, matrix=self.matrix[jnp.asarray(rows)])

    def draw(self, batch: SamplingBatch, mask: Any) -> Drawn:
        """One token per row, replicated over the mesh."""
        inside_jit = is_traced(self.matrix, mask)
        if inside_jit:
            refuse_unseeded(batch)
            refuse_records(batch)
        rows = batch.metadata(stand_in(batch, self.shape, mask))
        host = needs_host(batch, rows, mask)
        host[rows.recorded] = True
        groups = self._groups(rows, mask, np.flatnonzero(~host))
        found: dict[str, Any] = dict(arrays_of(narrowed(Drawn.empty(rows))))
        found["asked_logprobs"] = tabled(found["asked_logprobs"], rows.asked_start)
        place = {"mesh": self.mesh, "axis": self.axis, "vocab_size": self.vocab_size}
        if not host.all():
            found = _drawn(self.matrix, groups, found, **place)
        if host.any():
            found = self._filled_by_host(found, batch, rows, mask, np.flatnonzero(host))
        if not inside_jit:
            held = np.arange(found["asked_logprobs"].shape[1]) < np.diff(rows.asked_start)[:, None]
            found["asked_logprobs"] = np.asarray(found["asked_logprobs"])[held]
        return Drawn(**found)

    def _groups(self, rows: SamplingMetadata, mask: Any, which: NDArray[np.int64]) -> list[Group]:
        listed = programs(rows, self.vocab_size, mask if is_traced(mask) else None, which=which)
        return [(members.astype(np.int32), program) for members, program in listed]

    def _filled_by_host(
        self, found: dict[str, Any], batch: SamplingBatch, rows: SamplingMetadata, mask: Any, which: NDArray[np.int64]
    ) -> dict[str, Any]:
        """`found` with the rows `which`, whose logits alone are gathered and drawn on the host."""
        members = which.astype(np.int32)
        logits = _gathered(self.matrix, members, mesh=self.mesh, axis=self.axis, vocab_size=self.vocab_size)
        if is_traced(logits, mask):
            # Every device calls back: to tell the others what one was told is a collective that XLA may start before
            # those of the draw, and on a CPU the two can wait for each other for ever.
            words = jnp.zeros((0, 0), jnp.int32) if mask is None else jnp.asarray(mask)
            call = lambda x, words: by_callback(x, batch, rows, words, which)  # noqa: E731
            everywhere = PartitionSpec()
            run = jax.shard_map(call, mesh=self.mesh, in_specs=everywhere, out_specs=everywhere, check_vma=False)
            drawn = run(logits, words)
        else:
            drawn: dict[str, Any] = arrays_of(on_host(np.asarray(logits), batch, rows, which))
            drawn["asked_logprobs"] = tabled(drawn["asked_logprobs"], taken(rows, which).asked_start)
        return _with_rows(found, members, drawn, mesh=self.mesh)


@partial(jax.jit, static_argnames=("mesh", "axis", "vocab_size"))
def _drawn(
    matrix: Array,
    groups: list[Group],
    blank: dict[str, Any],
    *,
    mesh: Mesh,
    axis: MeshAxis,
    vocab_size: int,
) -> dict[str, Array]:
    """`blank` with the rows of the groups, each device drawing from its part."""

    def local(logits: Array, groups: list[Group], out: dict[str, Any]) -> dict[str, Array]:
        ids = axis.start + jnp.arange(axis.width, dtype=jnp.int32)
        # What pads the vocabulary is out before anything else looks at it.
        logits = jnp.where(ids < vocab_size, logits, -np.inf)
        for members, program in groups:
            out = _filled(out, members, arrays_of(traced.draw_on(axis, logits[members], program)))
        return out

    everywhere = PartitionSpec()
    specs = (PartitionSpec(None, axis.name), everywhere, everywhere)
    run = jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=everywhere, check_vma=False)
    return run(matrix, groups, blank)


@partial(jax.jit, static_argnames=("mesh", "axis", "vocab_size"))
def _gathered(matrix: Array, members: Any, *, mesh: Mesh, axis: MeshAxis, vocab_size: int) -> Array:
    """The whole logits of some rows, on every device."""
    local = lambda logits, members: axis.whole(logits[members])[:, :vocab_size]  # noqa: E731
    specs = (PartitionSpec(None, axis.name), PartitionSpec())
    return jax.shard_map(local, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)(matrix, members)


@partial(jax.jit, static_argnames=("mesh",))
def _with_rows(out: dict[str, Any], members: Any, found: dict[str, Any], *, mesh: Mesh) -> dict[str, Array]:
    """`out` with the fields of the rows `members`, on every device."""
    specs = (PartitionSpec(),) * 3
    run = jax.shard_map(_filled, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(), check_vma=False)
    return run(out, members, found)


def _filled(out: dict[str, Any], members: Any, found: Mapping[str, Any]) -> dict[str, Any]:
    """`out` with the fields of the rows `members`."""
    new = dict(out)
    for name, value in found.items():
        wide = widened(name, value, out[name].shape[1], found["status"]) if value.ndim == 2 else value
        new[name] = out[name].at[members].set(wide)
    return new
