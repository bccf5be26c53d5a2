"""Numba kernels: what `plain` and `outcome` do, without a sort, on as many threads as wanted.

`start()` compiles in the background, `ready()` says when `draw` may be called and `law_ready()` when `law` may; until
then, and wherever `supports` is false, the plain path serves with the same results. Numba itself is imported by the
compiling thread.
"""

from __future__ import annotations

from tirage.backends.numpy.kernels.pool import draw, law, set_threads, single_draw, threads
from tirage.backends.numpy.kernels.support import operations, supports
from tirage.backends.numpy.kernels.warm import compiling, law_ready, ready, single_ready, start, wait

__all__ = [
    "compiling",
    "draw",
    "law",
    "law_ready",
    "operations",
    "ready",
    "set_threads",
    "single_draw",
    "single_ready",
    "start",
    "supports",
    "threads",
    "wait",
]
