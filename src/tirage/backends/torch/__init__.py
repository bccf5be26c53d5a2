"""PyTorch tensors: on the CPU they share memory with the NumPy backend, on a GPU they are drawn from where they are.

`dispatch` chooses the path: `triton` kernels for the common steps on CUDA, plain tensor operations on any device for
the other ones (`eager`), and the host for rows that need Python. `eager` and what it uses run over a `Communicator`:
whole rows are a group of one shard.
"""

from tirage.backends.torch.arrays import as_logits, as_mask, from_numpy, to_numpy
from tirage.backends.torch.dispatch import draw

__all__ = ["as_logits", "as_mask", "draw", "from_numpy", "to_numpy"]
