"""`Batch`, the running requests: held on the host or, with `like` a JAX array, in arrays that go through `jax.jit`."""

from tirage.batch.host import Batch

__all__ = ["Batch"]
