"""The logarithm of masses as an operator of PyTorch's, `torch.ops.tirage.log_mass`: one launch, nothing read back."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from tirage.exact import logs

torch.library.define("tirage::log_mass", "(Tensor mass) -> Tensor")


def log_mass(mass: Tensor) -> Tensor:
    """ln of integer masses int64 [B], at least 1, in units of 2^-40 of the maximum's weight: float32 [B] (S-L1)."""
    return torch.ops.tirage.log_mass(mass)


@torch.library.register_fake("tirage::log_mass")
def _shapes(mass: Tensor) -> Tensor:
    return torch.empty(mass.shape, dtype=torch.float32, device=mass.device)


@torch.library.impl("tirage::log_mass", "CPU")
def _on_cpu(mass: Tensor) -> Tensor:
    return torch.from_numpy(np.array([logs.log_mass(int(each)) for each in mass.numpy()], np.float32))


@torch.library.impl("tirage::log_mass", "CUDA")
def _on_cuda(mass: Tensor) -> Tensor:
    from tirage.backends.torch.triton import log_masses

    with torch.cuda.device_of(mass):
        return log_masses(mass)
