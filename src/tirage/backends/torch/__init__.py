"""PyTorch tensors: on the CPU they share memory with the NumPy backend, on a GPU they are drawn from where they are.

`dispatch` chooses the path: `triton` kernels for the common steps on CUDA, `eager` (plain tensor operations, any
device) for the other steps, and the host for the few rows that need Python.
"""

from tirage.backends.torch.arrays import as_logits, as_mask, from_numpy, to_numpy
from tirage.backends.torch.dispatch import draw

__all__ = ["as_logits", "as_mask", "draw", "from_numpy", "to_numpy"]
