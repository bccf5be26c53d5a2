"""What shards must agree on before they draw, found out by all of them at once: an error instead of a hang."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import blake2b

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tirage.backends import MAX_VOCAB, Rows
from tirage.backends.sharded.communicate import Communicator
from tirage.errors import ParamsError

_ALIKE = tuple(field.name for field in fields(Rows) if field.name != "memo")


@dataclass(frozen=True, slots=True)
class Layout:
    """Which token ids each shard holds: [start, stop) by rank, together [0, vocab_size)."""

    bounds: tuple[tuple[int, int], ...]
    vocab_size: int

    @classmethod
    def of(cls, bounds: Sequence[tuple[int, int]], vocab_size: int) -> Layout:
        """A checked Layout; ParamsError for a gap, an overlap, or a vocabulary beyond 2^20."""
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

    def before(self, rank: int) -> list[int]:
        """Ranks whose tokens have lower ids than those of `rank`."""
        return [other for other, span in enumerate(self.bounds) if (span, other) < (self.bounds[rank], rank)]


def meet(
    comm: Communicator, rows: int, start: int, width: int, vocab_size: int, refusal: ParamsError | None, like: Tensor
) -> Layout:
    """The Layout of all shards; the same ParamsError on each of them when they do not fit together.

    `refusal` is why this shard's own logits were turned down, if they were. One round, 40 bytes.
    """
    mine = [refusal is not None, rows, start, start + width, vocab_size]
    told = comm.gather(torch.tensor(mine, dtype=torch.int64, device=like.device)).tolist()
    if refusal is not None:
        raise refusal
    refused = [rank for rank, said in enumerate(told) if said[0]]
    if refused:
        raise ParamsError(f"logits of every shard must be accepted, got a refusal from shards {refused}; see there")
    for at, name in ((1, "the same number of rows"), (4, "the same vocab_size")):
        seen = [said[at] for said in told]
        if len(set(seen)) > 1:
            raise ParamsError(f"shards must have {name}, got {seen} by rank")
    return Layout.of([(said[2], said[3]) for said in told], vocab_size)


def agree(comm: Communicator, rows: Rows, unseeded: Sequence[int], like: Tensor) -> None:
    """Settle one seed for rows that have none, those of rank 0; ParamsError on every shard when anything else differs.

    8 bytes, and where rows are unseeded 8 for each of them in a second round.
    """
    digests = comm.gather(torch.tensor([digest(rows, unseeded)], dtype=torch.int64, device=like.device))[:, 0].tolist()
    if len(set(digests)) > 1:
        odd = [rank for rank, said in enumerate(digests) if said != digests[0]]
        raise ParamsError(
            f"params, history, step, mask and sample_index must be equal on every shard, got others on {odd} than on 0"
        )
    if len(unseeded):
        rows.seeds[unseeded] = comm.gather(torch.from_numpy(rows.seeds[unseeded]).to(like.device))[0].cpu().numpy()


def digest(rows: Rows, unseeded: Sequence[int] = ()) -> int:
    """64 bits, signed, of everything that `rows` ask; fresh seeds do not count."""
    hashed = blake2b(digest_size=8)
    for name in _ALIKE:
        array = getattr(rows, name)
        hashed.update(f"{name}{array.shape}".encode())
        hashed.update((_seedless(array, unseeded) if name == "seeds" else array).tobytes())
    return int.from_bytes(hashed.digest(), "little", signed=True)


def _seedless(seeds: NDArray[np.int64], unseeded: Sequence[int]) -> NDArray[np.int64]:
    kept = seeds.copy()
    kept[list(unseeded)] = 0
    return kept
