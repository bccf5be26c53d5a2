"""Numba kernels: what `plain` and `outcome` do, without a sort, on as many threads as wanted.

`start()` compiles in the background. `ready()` says when `draw` may be called, `law_ready()` when `law` may, and
`held_ready()` when laws on given ids may be asked for; until then, and wherever `supports` is false, the plain path
serves with the same results. Numba itself is imported by the compiling thread.
"""

from __future__ import annotations

from tirage.backends.numpy.kernels.pool import (
    SingleRecord,
    draw,
    gather,
    law,
    marked_mass,
    mass_of,
    set_threads,
    single_draw,
    threads,
    write_marked,
    write_shares,
)
from tirage.backends.numpy.kernels.support import operations, supports
from tirage.backends.numpy.kernels.warm import compiling, held_ready, law_ready, ready, single_ready, start, wait

__all__ = [
    "SingleRecord",
    "compiling",
    "draw",
    "gather",
    "held_ready",
    "law",
    "law_ready",
    "marked_mass",
    "mass_of",
    "operations",
    "ready",
    "set_threads",
    "single_draw",
    "single_ready",
    "start",
    "supports",
    "threads",
    "wait",
    "write_marked",
    "write_shares",
]
