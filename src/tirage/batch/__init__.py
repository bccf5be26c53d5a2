"""`Batch`, the running requests: held on the host, in arrays that go through `jax.jit`, or in tensors on a device."""

from tirage.batch.host import Batch

__all__ = ["Batch"]
