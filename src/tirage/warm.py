"""`warmup`: have every kernel compiled or loaded before the first request; `compiling`: which of the two it is."""

from __future__ import annotations

from tirage.backends.numpy import kernels


def compiling() -> bool:
    """Whether the kernels are being compiled, or were, because no earlier process of this machine has left them."""
    return kernels.compiling()


def warmup() -> None:
    """Returns when every kernel of this installation is in use.

    The first time on a machine this compiles (a while, on one core); the result is cached on disk, so later
    processes load it in well under a second. Nobody has to call it: without it the plain NumPy path answers at once,
    with the same tokens, and the kernels take over when they are ready.
    """
    kernels.wait()
