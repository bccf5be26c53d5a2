"""The requests in flight: `Batch` holds them on the host, one `like` a JAX array in arrays that `jax.jit` can carry."""

from tirage.batch.host import Batch

__all__ = ["Batch"]
