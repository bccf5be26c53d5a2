"""Large tokenizer files of model folders, read on trial in a child process: some would take all memory or hours."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from tirage.errors import ModelError
from tirage.workers.children import Child

MOST_BYTES = 256 * 2**20
"""The largest tokenizer.json; those of published models have up to 40 MiB."""
TRIED_BYTES = 2**20
"""Files of at most so many bytes are read at once: what they take is in proportion to their size."""
SECONDS, MEGABYTES = 60.0, 4096
"""Processor time and memory that a file may take to be read."""
_PATIENCE = 10.0
"""Wall-clock time, as a multiple of the processor time: the machine may be busy."""


def check_file(path: Path) -> None:
    """Raises ModelError for a tokenizer.json that is too large, or takes too much time or memory to be read."""
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ModelError(f"{path} must be at most {MOST_BYTES} bytes of JSON, got {size}; is it the right file?")
    if size > TRIED_BYTES:
        read_on_trial(path)


def read_on_trial(path: Path) -> None:
    """Reads a tokenizer in a child process; ModelError when that fails, or takes too much."""
    script = Path(__file__).with_name("tokenizer_trial_worker.py")
    child = Child(script, str(path.absolute()), str(SECONDS), str(MEGABYTES << 20), environment=os.environ)
    try:
        line = child.line(time.monotonic() + SECONDS * _PATIENCE)
    finally:
        child.kill()
    if line is None or not line.endswith(b"\n"):
        raise ModelError(f"{path} must be readable within {SECONDS:g} s and {MEGABYTES} MB, got one that is not")
    if error := json.loads(line)["error"]:
        raise ModelError(f"{path} is not a valid tokenizer: {error}")
