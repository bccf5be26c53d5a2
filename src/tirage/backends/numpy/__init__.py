"""NumPy arrays: plain NumPy that answers at once, and Numba kernels that take over when they are compiled."""

from tirage.backends.numpy.arrays import as_logits, as_mask, from_numpy, to_numpy
from tirage.backends.numpy.dispatch import draw

__all__ = ["as_logits", "as_mask", "draw", "from_numpy", "to_numpy"]
