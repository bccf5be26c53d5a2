"""`tirage serve --ray`: a deployment on a cluster, until a signal ends it."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Mapping
from typing import Any

from tirage.cluster.deployment import checked, deployment
from tirage.cluster.ray_cluster import cluster, require_ray
from tirage.errors import ModelError
from tirage.server.launch import check_early, is_loopback, listen, url_of
from tirage.server.logs import set_up
from tirage.server.options import Options

NAME = "tirage"
_log = logging.getLogger("tirage.server")


def serve_on_ray(settings: Mapping[str, Any], *, address: str | None = None, **deployed: Any) -> int:
    """Serves until a signal, with the `settings` of the server and what `deployment` takes besides; the exit status.

    Raises ParamsError for a wrong setting; TirageError when Ray is missing, no cluster answers, or the address or the
    model cannot be used.
    """
    serve = require_ray().serve
    model = settings.get("model", "tiny")
    rest = {name: value for name, value in settings.items() if name != "model"}
    options = checked(model, rest)
    set_up(options.log_format, options.log_level)
    made = deployment(model, **rest, **deployed)
    if address is None and "RAY_ADDRESS" not in os.environ:
        check_early(options)
    with cluster(address):
        host, port, url = place(options)
        logging.getLogger("ray").setLevel(logging.WARNING)
        serve.start(
            http_options={"host": host, "port": port, "keep_alive_timeout_s": max(1, round(options.limits.keep_alive))}
        )
        run(serve, made)
        _log.info("listening on %s, through Ray's proxies", url)
        if not options.api_key and not is_loopback(options.host):
            _log.warning("anyone who reaches %s may use the model; --api-key asks for a key", options.host)
        wait_for_signal()
        _log.info("draining")
        serve.delete(NAME)
    _log.info("ended")
    return 0


def place(options: Options) -> tuple[str, int, str]:
    """Host, port and URL for the proxies: with port 0 a free one. Raises TirageError for one that is taken."""
    listener = listen(options)
    try:
        return options.host, listener.getsockname()[1], url_of(listener)
    finally:
        listener.close()


def run(serve: Any, made: Any) -> None:
    """Starts the replicas; raises ModelError, with the last error of one of them, when they do not start."""
    try:
        serve.run(made.bind(), name=NAME, route_prefix="/")
    except RuntimeError as error:
        application = serve.status().applications.get(NAME)
        told = "" if application is None else "".join(each.message for each in application.deployments.values())
        errors = [line.strip() for line in told.splitlines() if "Error: " in line]
        raise ModelError(f"the replicas do not start: {errors[-1] if errors else error}") from error


def wait_for_signal() -> None:
    """Returns on SIGTERM or SIGINT; a second one ends the process at once."""
    told = threading.Event()

    def handle(number: int, _: object) -> None:
        if told.is_set():
            os._exit(128 + number)
        told.set()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, handle)
    while not told.wait(1.0):
        pass
