"""The bundled model made slow, or hung: a server under test imports this module with its logits processors.

`TIRAGE_TEST_STEP_S` is the time of a step; a step does not end while the file `TIRAGE_TEST_HANG` exists, nor this
import while the file `TIRAGE_TEST_LOAD` does. A server that ends waits for a step that hangs, but not for the half
minute of other servers.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tirage.engine import engine
from tirage.models import llama

_STEP_S = float(os.environ.get("TIRAGE_TEST_STEP_S", "0"))
_decode = llama.LlamaNumpy.decode


def wait_while(variable: str) -> None:
    """Returns when the file that an environment variable names is gone."""
    name = os.environ.get(variable)
    while name and Path(name).exists():
        time.sleep(0.02)


def decode(self: llama.LlamaNumpy, *arguments: Any) -> Any:
    """The model's own step, later."""
    time.sleep(_STEP_S)
    wait_while("TIRAGE_TEST_HANG")
    return _decode(self, *arguments)


def plain(logits: np.ndarray, args: Sequence[dict[str, Any]]) -> np.ndarray:
    """The logits as they are."""
    del args
    return logits


llama.LlamaNumpy.decode = decode  # type: ignore[method-assign]
engine._GRACE_S = 5.0
wait_while("TIRAGE_TEST_LOAD")
