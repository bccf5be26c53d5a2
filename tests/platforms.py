"""What only some platforms have, as marks that say so."""

from __future__ import annotations

import os
import sys

import pytest

needs_triton = pytest.mark.skipif(
    sys.platform != "linux", reason=f"Triton is published for Linux alone, this is {sys.platform}"
)

needs_newest_triton = pytest.mark.skipif(
    "TIRAGE_OLDEST" in os.environ, reason="recorded_triton.py follows the interpreter of Triton 3.9"
)
