"""JAX: arrays in host memory are drawn from by the NumPy kernels; inside jit, vmap and scan a sort-free path is traced.

It needs no x64 and draws, bit for bit, what every other path draws. `Draw` is a pytree.
"""

from tirage.backends.jax import tree as _tree
from tirage.backends.jax.arrays import as_logits, as_mask, from_numpy, to_numpy
from tirage.backends.jax.dispatch import draw

_tree.register()

__all__ = ["as_logits", "as_mask", "draw", "from_numpy", "to_numpy"]
