"""JAX arrays whose vocabulary lies on one axis of a mesh: drawn by `shard_map`, eagerly or inside `jit`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from numpy.typing import NDArray

from tirage.backends import Drawn, Frame, Rows
from tirage.backends.jax.arrays import as_logits, is_traced
from tirage.backends.jax.dispatch import arrays_of, narrowed, refuse_unseeded, stand_in, tabled, widened
from tirage.backends.jax.program import Program, programs
from tirage.backends.sharded.axis import Axis
from tirage.backends.sharded.mesh_draw import draw
from tirage.backends.sharded.mesh_filters import FILTERS
from tirage.errors import ParamsError, nearest
from tirage.stages import FIRST_FILTER, Op

Group = tuple[NDArray[np.int32], Program]
"""Rows that run one program: which they are, and the program."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshLogits:
    """Logits [B, W] or [W], a JAX array, concrete or traced, whose vocabulary lies on `axis` of `mesh` and stays there.

    `vocab_size` is V where the columns were padded to divide evenly (W > V: what is in the padding does not matter);
    None means W. Columns that do not divide evenly are padded here. Axes of either type, Auto or Explicit; rows are
    the same on all other axes. The Draw is replicated over the mesh. Inside jit rows need seeds. Stages: all edits,
    temperature, top-k, top-p, min-p, epsilon; a request that needs another one is refused by name.

    Each device contributes, in bytes per row: entry 12, temperature, greedy and min-p 4, epsilon 20; top-k 8 k up to
    k = 256, else 20 and 4 in each of at most 32 rounds; top-p 56 (joint scope 72) and 16 in each of at most 32 rounds;
    the draw 36; logprobs 28 + 8 top_n + 4 for each asked id (processed 24, sampled 8).
    """

    logits: Any
    mesh: Mesh
    axis: str
    vocab_size: int | None = None

    def ready(self) -> ReadyMesh:
        """The logits, checked and laid out over the mesh."""
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
        axis = Axis(self.axis, count, (wide + room) // count)
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
    axis: Axis
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

    def draw(self, frame: Frame, mask: Any) -> Drawn:
        """One token per row, replicated over the mesh."""
        if is_traced(self.matrix, mask):
            refuse_unseeded(frame)
        rows = frame.rows(stand_in(frame, self.shape, mask))
        refuse(frame, rows, mask)
        known = mask if is_traced(mask) else None
        groups = [(members.astype(np.int32), program) for members, program in programs(rows, self.vocab_size, known)]
        blank: dict[str, Any] = dict(arrays_of(narrowed(Drawn.empty(rows))))
        blank["asked_logprobs"] = tabled(blank["asked_logprobs"], rows.asked_start)
        found = _drawn(self.matrix, groups, blank, mesh=self.mesh, axis=self.axis, vocab_size=self.vocab_size)
        if not is_traced(self.matrix, mask):
            held = np.arange(blank["asked_logprobs"].shape[1]) < np.diff(rows.asked_start)[:, None]
            found["asked_logprobs"] = np.asarray(found["asked_logprobs"])[held]
        return Drawn(**cast("dict[str, Any]", found))


def refuse(frame: Frame, rows: Rows, mask: Any) -> None:
    """Raise ParamsError, by name, for what a mesh does not run."""
    if frame.processes:
        raise ParamsError("logits_processors must see whole rows, got a mesh; gather the logits for these requests")
    if rows.resample.any() or (is_traced(mask) and frame.checks_masks):
        raise ParamsError(
            'mask_mode must be "first" on a mesh, got a mask with "resample"; gather the logits for these requests'
        )
    used = {int(op) for op in np.unique(rows.programs[:, :, 0]) if op >= FIRST_FILTER}
    for op in sorted(used - set(FILTERS)):
        raise ParamsError(
            f"stages must be among those that a mesh runs, got {Op(op).name.lower()}; gather the logits for these "
            "requests, or use Shards"
        )


@partial(jax.jit, static_argnames=("mesh", "axis", "vocab_size"))
def _drawn(
    matrix: Array, groups: list[Group], blank: dict[str, Any], *, mesh: Mesh, axis: Axis, vocab_size: int
) -> dict[str, Array]:
    spread, whole = PartitionSpec(None, axis.name), PartitionSpec()

    def local(logits: Array, groups: list[Group], out: dict[str, Any]) -> dict[str, Array]:
        ids = axis.start + jnp.arange(axis.width, dtype=jnp.int32)
        # What pads the vocabulary is out before anything else looks at it.
        logits = jnp.where(ids < vocab_size, logits, -np.inf)
        for members, program in groups:
            out = _filled(out, members, draw(axis, logits[members], program))
        return out

    run = jax.shard_map(local, mesh=mesh, in_specs=(spread, whole, whole), out_specs=whole, check_vma=False)
    return run(matrix, groups, blank)


def _filled(out: dict[str, Any], members: Any, found: dict[str, Array]) -> dict[str, Any]:
    """`out` with the fields of the rows `members`."""
    new = dict(out)
    for name, value in found.items():
        wide = widened(name, value, out[name].shape[1], found["status"]) if value.ndim == 2 else value
        new[name] = out[name].at[members].set(wide)
    return new
