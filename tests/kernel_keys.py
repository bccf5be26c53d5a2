"""Which Triton kernels a call would compile for a CUDA device, without one."""

from __future__ import annotations

from typing import Any

import pytest


def kernel_keys(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[tuple[str, ...]]]:
    """By kernel, the keys that Triton would compile it for; launches run nothing from now on, but add theirs."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import make_backend
    from triton.runtime import jit

    backend, found = make_backend(GPUTarget("cuda", 90, 32)), dict[str, set[tuple[str, ...]]]()

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **options: Any) -> None:
        bind = jit.create_function_from_signature(self.signature, self.params, backend)
        _, key, options = bind(*args, **options)
        found.setdefault(self.__name__, set()).add((*map(str, key), str(options)))

    monkeypatch.setattr(jit.JITFunction, "run", run)
    return found
