"""A wall clock that is wrong by the seconds in a file: a server under test imports this module as a processor's."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_SHIFT = Path(os.environ.get("TIRAGE_CHAOS_SHIFT", "nowhere"))
_time = time.time


def shifted() -> float:
    """Seconds since the epoch, as a clock says it that somebody has set."""
    try:
        return _time() + float(_SHIFT.read_text() or 0)
    except (OSError, ValueError):
        return _time()


def plain(logits: Any, args: Sequence[dict[str, Any]]) -> Any:
    """The logits as they are."""
    del args
    return logits


time.time = shifted
