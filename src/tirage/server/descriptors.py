"""How many connections fit into the process's limit of open files."""

from __future__ import annotations

import logging

_log = logging.getLogger("tirage.server")
RESERVE = 256
"""Descriptors kept for the model, child processes, and connections that are accepted before others are closed."""
ACCEPTED_AT_ONCE = 32
"""Connections that the event loop accepts in one go; it learns only afterwards that they are too many."""


def most_connections(wanted: int) -> int:
    """The most connections that may be open: `wanted`, or what the limit of open files leaves room for.

    The soft limit is raised first, as far as is needed and the hard one allows. The log says when that is not enough.
    """
    limit = raised_limit(wanted + RESERVE)
    if limit is None or limit >= wanted + RESERVE:
        return wanted
    most = max(limit - RESERVE, limit // 2)
    _log.warning(
        "at most %d connections can be open and not %d (--max-connections), for the process may have no more than %d "
        "open files; raise that limit (ulimit -n)", most, wanted, limit,
    )  # fmt: skip
    return most


def raised_limit(needed: int) -> int | None:
    """The number of files that the process may have open, raised towards `needed`; None where there is no limit."""
    try:
        import resource
    except ImportError:
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return None
    if soft >= needed:
        return soft
    raised = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    except (OSError, ValueError):
        return soft
    return raised
