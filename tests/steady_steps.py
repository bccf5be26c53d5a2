"""What a step of a batch on a device asks of PyTorch: operations and memory counted, and what waits for it refused."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

WAITING = frozenset({
    "aten._local_scalar_dense",
    "aten.equal",
    "aten.is_nonzero",
    "aten.item",
    "aten.masked_select",
    "aten.nonzero",
    "aten.scalar_tensor",
    "aten.unique_consecutive",
    "aten.unique_dim",
    "aten._unique2",
})
"""Operations whose result, or its shape, the host needs, and numbers that may have to be sent to the device."""


class HostReadError(Exception):
    """A step did what makes the host wait for the device."""


@dataclass
class Steps(TorchDispatchMode):
    """Counts what happens under it, by name; raises HostReadError for what waits, and for tensors that move.

    Views, which do nothing on a device, do not count. `nbytes` is how much memory was asked for.
    """

    operations: Counter[str] = field(default_factory=Counter)
    nbytes: int = 0

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).rpartition(".")[0]
        tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
        if name in WAITING:
            raise HostReadError(name)
        if name in {"aten.index", "aten.index_put", "aten.index_put_"} and _has_mask(args[1]):
            raise HostReadError(f"{name} by a mask")
        out = func(*args, **(kwargs or {}))
        made = [value for value in tree_flatten(out)[0] if isinstance(value, torch.Tensor)]
        if len({value.device for value in (*tensors, *made)}) > 1:
            raise HostReadError(f"{name} from one device to another")
        known = {value.untyped_storage()._cdata for value in tensors}
        self.operations[name] += not func.is_view
        self.nbytes += sum(each.nbytes for each in made if each.untyped_storage()._cdata not in known)
        return out


def _has_mask(indices: Any) -> bool:
    return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in indices)


def counted(step: Any, times: int) -> list[tuple[Counter[str], int]]:
    """What each of so many calls of `step` asks for: operations by name, and bytes."""
    found = []
    for _ in range(times):
        with Steps() as steps:
            step()
        found.append((steps.operations, steps.nbytes))
    return found
