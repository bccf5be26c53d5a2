"""A fix for llvmlite, without which vLLM's CPU worker does not start in a process that has loaded Numba."""

from __future__ import annotations

import sys
from typing import Any


def hide_special_names() -> None:
    """Lets llvmlite's library object deny attributes such as `__dict__`, which it takes for functions of LLVM.

    vLLM looks for kernels in every object of every module and asks each for its `__dict__`; that of llvmlite's library
    is a function, and vLLM ends with an AttributeError. Does nothing where llvmlite is not loaded, or mended.
    """
    ffi = sys.modules.get("llvmlite.binding.ffi")
    kind: Any = type(getattr(ffi, "lib", None))
    found = vars(kind).get("__getattr__") if kind.__module__ == "llvmlite.binding.ffi" else None
    if found is None or getattr(found, "denies_special_names", False):
        return

    def attribute(self: Any, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
        return found(self, name)

    attribute.denies_special_names = True  # type: ignore[attr-defined]
    kind.__getattr__ = attribute
