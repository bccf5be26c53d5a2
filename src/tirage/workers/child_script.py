"""What the scripts of child processes share: limits that they set for themselves, and the loop over their tasks."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from typing import Any

Answer = dict[str, Any]


def limit_memory(growth: int) -> None:
    """Limits the growth of this process from here on to `growth` bytes, where the system reports its size."""
    size = _size()
    if size is not None:
        _limit("AS", size + growth, final=False)


def drop_rights(growth: int) -> None:
    """As `limit_memory`, for good, and forbids files, sockets and processes."""
    size = _size()
    if size is None:
        return
    for name, most in {"AS": size + growth, "FSIZE": 0, "CORE": 0, "NPROC": 0, "NOFILE": 0}.items():
        _limit(name, most, final=True)


def _size() -> int | None:
    """Bytes of address space; None where the system does not report them."""
    try:
        import resource

        with open("/proc/self/statm", encoding="ascii") as status:
            return int(status.read().split()[0]) * resource.getpagesize()
    except (ImportError, OSError):
        return None


def _limit(name: str, most: int, *, final: bool) -> None:
    import resource

    kind = getattr(resource, f"RLIMIT_{name}")
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (most, most if final else resource.getrlimit(kind)[1]))


def answer_lines(answer: Callable[[Answer], Answer]) -> None:
    """Answers each line of the input, a JSON object, by a line with another, until the input ends."""
    for line in sys.stdin:
        sys.stdout.write(json.dumps(answer(json.loads(line))) + "\n")
        sys.stdout.flush()
