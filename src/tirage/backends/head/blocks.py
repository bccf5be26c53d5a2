"""A model's head and its last hidden states: logits of some tokens at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tirage.backends import type_name
from tirage.errors import ParamsError
from tirage.sampling_metadata import MAX_VOCAB

_TYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
BLOCK = 8192
"""Tokens of a block: [B, 8192] float32 is 1 MiB at B = 32."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """`hidden` [B, D], `weight` [V, D] and `bias` [V] or None, of one floating type.

    Logits are hidden @ weight.T + bias. They are computed for `block` tokens at a time, in the type of the tensors as
    the model's own head would, then rounded to float32. The same block has the same bits each time.
    """

    hidden: Tensor
    weight: Tensor
    bias: Tensor | None
    block: int = BLOCK

    @classmethod
    def of(cls, hidden: Any, weight: Any, bias: Any = None, *, block: int = BLOCK) -> Head:
        """The checked head; `hidden` [D] counts as one row. Raises ParamsError for wrong types, shapes and devices."""
        for name, value, ranks in (("hidden", hidden, (1, 2)), ("weight", weight, (2,)), ("bias", bias, (1,))):
            if value is not None or name != "bias":
                _check_tensor(name, value, ranks)
        if isinstance(block, bool) or not isinstance(block, int) or block < 1:
            raise ParamsError(f"block must be a whole number of tokens, at least 1, got {block!r}")
        rows = hidden.detach() if hidden.ndim == 2 else hidden.detach()[None]
        size, width = weight.shape
        if not 1 <= size <= MAX_VOCAB:
            raise ParamsError(f"weight must have 1 to {MAX_VOCAB} rows, one per token, got {size}")
        if rows.shape[1] != width:
            raise ParamsError(
                f"hidden must have shape [B, {width}] for weight {list(weight.shape)}, got {list(hidden.shape)}"
            )
        if bias is not None and len(bias) != size:
            raise ParamsError(f"bias must have shape [{size}] for weight {list(weight.shape)}, got {list(bias.shape)}")
        for name, value in (("weight", weight), ("bias", bias)):
            if value is not None and (value.dtype, value.device) != (hidden.dtype, hidden.device):
                raise ParamsError(
                    f"{name} must be {hidden.dtype} on {hidden.device} as hidden is, got {value.dtype} on "
                    f"{value.device}; convert it with {name}.to(hidden)"
                )
        return cls(hidden=rows, weight=weight.detach(), bias=None if bias is None else bias.detach(), block=block)

    @property
    def shape(self) -> tuple[int, int]:
        """(B, V)."""
        return self.hidden.shape[0], self.weight.shape[0]

    @property
    def is_cpu(self) -> bool:
        """Whether the tensors are on the CPU."""
        return self.hidden.is_cpu

    @property
    def device(self) -> torch.device:
        """Where the tensors are, and the results will be."""
        return self.hidden.device

    @property
    def bounds(self) -> list[tuple[int, int]]:
        """The first token of each block and the one after its last."""
        size = self.shape[1]
        return [(start, min(start + self.block, size)) for start in range(0, size, self.block)]

    def logits(self, start: int, stop: int) -> Tensor:
        """Logits float32 [B, stop - start] of the tokens [start, stop), for all rows."""
        return self._of(self.hidden, start, stop)

    def whole(self, rows: Sequence[int]) -> Tensor:
        """Logits float32 [n, V] of some rows, block after block."""
        hidden = self.hidden[list(rows)]
        out = hidden.new_empty((len(hidden), self.shape[1]), dtype=torch.float32)
        for start, stop in self.bounds:
            out[:, start:stop] = self._of(hidden, start, stop)
        return out

    def batches(self, rows: Sequence[int]) -> Iterator[Sequence[int]]:
        """The rows in lists whose whole logits take the memory of one block of all rows, or are one row."""
        count, size = self.shape
        most = max(1, count * self.block // size)
        yield from (rows[at : at + most] for at in range(0, len(rows), most))

    def _of(self, hidden: Tensor, start: int, stop: int) -> Tensor:
        part = self.weight[start:stop].T
        logits = hidden @ part if self.bias is None else torch.addmm(self.bias[start:stop], hidden, part)
        return logits.to(torch.float32)


def _check_tensor(name: str, value: Any, ranks: tuple[int, ...]) -> None:
    if not isinstance(value, Tensor) or value.layout != torch.strided or value.is_meta:
        raise ParamsError(f"{name} must be a dense torch.Tensor with data, got {type_name(value)}")
    if value.ndim not in ranks:
        raise ParamsError(f"{name} must have {' or '.join(map(str, ranks))} dimensions, got {list(value.shape)}")
    if value.dtype not in _TYPES:
        raise ParamsError(f"{name} must be float16, bfloat16, float32 or float64, got {value.dtype}")
