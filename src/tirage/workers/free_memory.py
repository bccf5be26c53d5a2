"""Memory that the C library has been given back, and keeps."""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any


def return_free_memory() -> None:
    """Returns free memory to the system, where the C library can (glibc); takes a few milliseconds.

    For after work that needed much for a moment: what is free would stay with the process until something needs it.
    """
    trim = _trim()
    if trim is not None:
        trim(0)


@cache
def _trim() -> Any:
    # Windows has no library without a name.
    return None if sys.platform == "win32" else getattr(ctypes.CDLL(None), "malloc_trim", None)
