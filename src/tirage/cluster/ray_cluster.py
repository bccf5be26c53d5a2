"""The Ray cluster that a run or a server uses: joined or started here, its machines checked."""

from __future__ import annotations

import contextlib
import importlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tirage.errors import TirageError
from tirage.server.replay import own_version

CALLBACK = "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH"
"""Ray's variable for middleware of its proxies, which is read where they start: with the cluster."""
MIDDLEWARE = "tirage.cluster.proxy.middleware"
_CONNECT_S = 5.0
_PROBE_S = 120.0


def require_ray() -> Any:
    """The module `ray`. Raises TirageError, with the command that installs it, when it is missing."""
    try:
        ray, *_ = (importlib.import_module(name) for name in ("ray", "ray.data", "ray.serve"))
    except ImportError as error:
        raise TirageError(f"Ray needs the package {error.name!r}; run: pip install 'tirage[ray]'") from error
    return ray


@contextlib.contextmanager
def cluster(address: str | None = None) -> Iterator[bool]:
    """A block within a Ray cluster; the value says whether it was started here, and so ends with the block.

    A process that belongs to a cluster stays in it. Otherwise it joins the one at `address`, or that of RAY_ADDRESS;
    without either one is started, of this machine alone. Raises TirageError when Ray is missing, when no cluster
    answers, and when a machine of it has no tirage or one of another version.
    """
    ray = require_ray()
    if ray.is_initialized():
        check_machines(ray)
        yield False
        return
    address = address or os.environ.get("RAY_ADDRESS")
    own = address in (None, "local")
    start(ray) if own else join(ray, str(address))
    try:
        if not own:
            check_machines(ray)
        yield own
    finally:
        ray.shutdown()


def start(ray: Any) -> None:
    """Starts a cluster of this machine alone."""
    # Read by the processes that Ray starts.
    os.environ.setdefault(CALLBACK, MIDDLEWARE)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    ray.init("local", include_dashboard=False, logging_level="WARNING")


def join(ray: Any, address: str) -> None:
    """Joins the cluster at an address; TirageError when there is none."""
    host, _, port = address.partition("://")[2].rpartition(":") if "://" in address else address.rpartition(":")
    try:
        if port.isdecimal():
            # Ray itself would try for minutes.
            socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S).close()
        ray.init(address, logging_level="WARNING")
    except (OSError, RuntimeError, ValueError) as error:
        reason = (str(error).strip() or repr(error)).splitlines()[0]
        raise TirageError(
            f"--ray-address must be that of a running Ray cluster, got {address}: {reason}; start one with "
            "`ray start --head`, or leave the address out for one on this machine; a cluster that wants a token takes "
            "that of RAY_AUTH_TOKEN, with RAY_AUTH_MODE=token"
        ) from error


def located(model: str | Path) -> str:
    """A model's name, or its folder as processes with another working directory find it."""
    return str(Path(model).absolute()) if Path(model).exists() else str(model)


def check_machines(ray: Any) -> None:
    """Raises TirageError unless every machine of the cluster has the tirage of this process."""
    from ray.util.scheduling_strategies import (  # pyright: ignore[reportMissingImports]
        NodeAffinitySchedulingStrategy as On,
    )

    # A function within a function travels whole, so that it also runs where tirage is missing.
    def installed() -> tuple[str | None, str]:
        try:
            from tirage.server.replay import own_version as found
        except ImportError as error:
            return None, str(error)
        return found(), ""

    probe = ray.remote(num_cpus=0, max_retries=1)(installed)
    machines = {each["NodeID"]: each["NodeManagerAddress"] for each in ray.nodes() if each["Alive"]}
    answers = {name: probe.options(scheduling_strategy=On(name, soft=False)).remote() for name in machines}
    for name, answer in answers.items():
        found, reason = ray.get(answer, timeout=_PROBE_S)
        if found != own_version():
            has = f"has tirage {found}" if found else f"has no tirage ({reason})"
            raise TirageError(
                f"every machine of the cluster must have tirage {own_version()}, and {machines[name]} {has}; install "
                "it there, in the environment in which Ray runs"
            )
