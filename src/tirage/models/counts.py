"""Options of models that are counts."""

from __future__ import annotations

from typing import Any

from tirage.errors import ParamsError

_AT_ZERO = {"prefix_bytes": "0 keeps no prefixes", "prefill_batch_tokens": "0 prefills each prompt alone"}


def checked_count(name: str, count: Any) -> int:
    """The option itself; ParamsError, which names it, unless it is an integer of at least 0."""
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ParamsError(f"{name} must be an integer of at least 0, got {count!r:.80}; {_AT_ZERO[name]}")
    return count
