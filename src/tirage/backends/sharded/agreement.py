"""What shards must agree on before they draw; all of them find out at once, so there is an error instead of a hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from hashlib import blake2b
from typing import NoReturn

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends.torch.communicator import Communicator, VocabShard
from tirage.errors import ParamsError
from tirage.sampling_metadata import MAX_VOCAB, SamplingMetadata

_REASON_BYTES = 512
"""How much of the message of a refusal is sent to the other shards."""
_REFUSED = 1
"""What a shard says of itself that refused its arguments; else 0, or more where the Triton kernels run."""
_EQUAL_EVERYWHERE = tuple(
    field.name for field in fields(SamplingMetadata) if field.name not in {"memo", "records", "chances"}
)


@dataclass(frozen=True, slots=True)
class ShardLayout:
    """Which token ids each shard holds: [start, stop) by rank, together [0, vocab_size).

    `has_kernels` says that all of them lie where the Triton kernels run, and compute alike.
    """

    bounds: tuple[tuple[int, int], ...]
    vocab_size: int
    has_kernels: bool = False

    @classmethod
    def of(cls, bounds: Sequence[tuple[int, int]], vocab_size: int) -> ShardLayout:
        """A checked ShardLayout; ParamsError for a gap, an overlap, or a vocabulary beyond 2^20."""
        if not 1 <= vocab_size <= MAX_VOCAB:
            raise ParamsError(f"vocab_size must be in [1, {MAX_VOCAB}], got {vocab_size}")
        end = 0
        for start, stop in sorted(bounds):
            if start != end or stop < start:
                break
            end = stop
        else:
            if end == vocab_size:
                return cls(tuple(bounds), vocab_size)
        spans = ", ".join(f"[{start}, {stop})" for start, stop in bounds)
        raise ParamsError(f"shards must cover [0, {vocab_size}) once, without gap or overlap, got {spans}")

    def shard(self, comm: Communicator) -> VocabShard:
        """The shard of the rank of `comm`."""
        own = self.bounds[comm.rank], comm.rank
        lower = tuple(rank for rank, span in enumerate(self.bounds) if (span, rank) < own)
        return VocabShard(comm=comm, start=self.bounds[comm.rank][0], lower=lower)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardShape:
    """The shape of one shard's part of a draw, and a digest of everything that must be equal on all shards.

    `architecture` is 0 where no Triton kernels run, else a number above 1 of the kind of GPU.
    """

    rows: int
    start: int
    width: int
    vocab_size: int
    digest: int
    architecture: int


def agree(comm: Communicator, own: ShardShape, like: Tensor) -> ShardLayout:
    """The ShardLayout of all shards; the same ParamsError on each of them when they do not fit together.

    `like` is a tensor, of any shape, on this shard's device. One round, 48 bytes. A shard that refused its arguments
    takes part through `refuse` instead.
    """
    mine = [own.architecture, own.rows, own.start, own.start + own.width, own.vocab_size, own.digest]
    shapes = _gathered(comm, mine, like)
    if any(shape[0] == _REFUSED for shape in shapes):
        raise _refusal(comm, "", like)
    for at, name in ((1, "the same number of rows"), (4, "the same vocab_size")):
        seen = [shape[at] for shape in shapes]
        if len(set(seen)) > 1:
            raise ParamsError(f"shards must have {name}, got {seen} by rank")
    layout = ShardLayout.of([(shape[2], shape[3]) for shape in shapes], own.vocab_size)
    layout = replace(layout, has_kernels=is_one_kind([shape[0] for shape in shapes]))
    odd = [rank for rank, shape in enumerate(shapes) if shape[5] != shapes[0][5]]
    if odd:
        raise ParamsError(
            f"params, history, step, mask and sample_index must be equal on every shard, got others on {odd} than on 0"
        )
    return layout


def is_one_kind(architectures: Sequence[int]) -> bool:
    """Whether the Triton kernels run on all shards, on GPUs of one kind: others may round what bounds a cut otherwise,
    and all shards have to look for it in the same range."""
    return min(architectures) > _REFUSED and len(set(architectures)) == 1


def refuse(comm: Communicator, error: Exception, like: Tensor) -> NoReturn:
    """Raise, on this and on every other shard, a ParamsError that says why this one refused its arguments.

    `like` is a tensor, of any shape, on this shard's device.
    """
    _gathered(comm, [_REFUSED, 0, 0, 0, 0, 0], like)
    raise _refusal(comm, str(error) or type(error).__name__, like) from error


def _gathered(comm: Communicator, values: list[int], like: Tensor) -> list[list[int]]:
    return comm.gather(torch.tensor(values, dtype=torch.int64, device=like.device)).tolist()


def _refusal(comm: Communicator, reason: str, like: Tensor) -> ParamsError:
    """The error of every shard once one has refused: each sends its reason, "" where it has none."""
    text = reason.encode()[:_REASON_BYTES].ljust(_REASON_BYTES, b"\0")
    sent = np.array(_gathered(comm, np.frombuffer(text, np.int64).tolist(), like), np.int64)
    reasons = [row.tobytes().rstrip(b"\0").decode(errors="ignore") for row in sent]
    named = "; ".join(f"shard {rank} refused: {reason}" for rank, reason in enumerate(reasons) if reason)
    return ParamsError(f"every shard must accept its arguments, {named}")


def share_seeds(comm: Communicator, rows: SamplingMetadata, unseeded: Sequence[int], like: Tensor) -> None:
    """Give the rows `unseeded` the seeds of rank 0; one round of 8 bytes for each, if there are any.

    `like` is a tensor, of any shape, on this shard's device.
    """
    if len(unseeded):
        rows.seeds[unseeded] = comm.gather(torch.from_numpy(rows.seeds[unseeded]).to(like.device))[0].cpu().numpy()


def digest(rows: SamplingMetadata, unseeded: Sequence[int] = (), asked: bytes = b"") -> int:
    """64 bits, signed, of all that `rows` ask for and of the bytes `asked`; fresh seeds do not count."""
    hashed = blake2b(asked, digest_size=8)
    for name in _EQUAL_EVERYWHERE:
        array = getattr(rows, name)
        hashed.update(f"{name}{array.shape}".encode())
        hashed.update((_seedless(array, unseeded) if name == "seeds" else array).tobytes())
    return int.from_bytes(hashed.digest(), "little", signed=True)


def _seedless(seeds: NDArray[np.int64], unseeded: Sequence[int]) -> NDArray[np.int64]:
    kept = seeds.copy()
    kept[list(unseeded)] = 0
    return kept
