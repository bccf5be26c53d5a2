"""What only some platforms have, as marks that say so."""

from __future__ import annotations

import sys

import pytest

needs_triton = pytest.mark.skipif(
    sys.platform != "linux", reason=f"Triton is published for Linux alone, this is {sys.platform}"
)
