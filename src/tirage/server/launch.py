"""`tirage serve`: the socket, the event loop and signals."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
import threading
import time
from types import FrameType

import uvicorn
from fastapi import FastAPI

from tirage.engine import SpeculativeConfig, parse_speculative_config
from tirage.errors import ModelError, TirageError
from tirage.models import find_model
from tirage.models.vllm import parse_engine_args, require_vllm
from tirage.server.app import create_app
from tirage.server.connection import Connection, OpenConnections
from tirage.server.cors import AllowedOrigins
from tirage.server.descriptors import ACCEPTED_AT_ONCE, most_connections
from tirage.server.logs import set_up
from tirage.server.options import Options
from tirage.server.plugins import read_adapters
from tirage.server.preparation import POOL
from tirage.server.tls import check_tls, tls_of
from tirage.server.watermark import operator_watermark

_log = logging.getLogger("tirage.server")
# Aborted requests end within a step and send their last event; then connections are closed.
_GRACE_S = 2.0
# Connections that may wait to be accepted.
_QUEUED = 1024


class DrainingServer(uvicorn.Server):
    """uvicorn's server, but it drains on the first signal and exits at once on the second."""

    def __init__(self, config: uvicorn.Config, app: FastAPI, options: Options) -> None:
        super().__init__(config)
        self._app, self._options = app, options

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handles a signal; does not record it as uvicorn does, which would raise it again at the end."""
        del frame
        if self.should_exit:
            os._exit(128 + sig)
        self._app.state.health.enter("draining")
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts as uvicorn does, then lets more connections wait to be accepted than are accepted at once."""
        await super().startup(sockets)
        for listener in sockets or ():
            listener.listen(_QUEUED)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Lets requests finish while new ones are refused, aborts the rest, then shuts down as uvicorn does."""
        manager = self._app.state.manager
        if manager is None:
            await super().shutdown(sockets)
            return
        _log.info("draining")
        drain = asyncio.create_task(manager.drain(self._options.limits.drain_timeout))
        await super().shutdown(sockets)
        drain.cancel()
        await asyncio.gather(drain, return_exceptions=True)
        _log.info("ended")


def serve(options: Options) -> int:
    """Serves until a signal; the exit status. Raises TirageError when the address or the model cannot be used."""
    check_early(options)
    listener = listen(options)
    set_up(options.log_format, options.log_level)
    failures: list[TirageError] = []

    def failed(error: TirageError) -> None:
        failures.append(error)
        server.should_exit = True

    app = create_app(options, failed=failed)
    server = DrainingServer(config_of(app, options), app, options)
    _log.info("listening on %s", url_of(listener, tls=options.ssl_certfile is not None))
    if not options.api_key and not is_loopback(options.host):
        _log.warning("anyone who reaches %s may use the model; --api-key asks for a key", options.host)
    server.run(sockets=[listener])
    if failures:
        raise failures[0]
    exit_if_hanging()
    return 0


def config_of(app: FastAPI, options: Options) -> uvicorn.Config:
    """uvicorn's settings."""
    limits = options.limits
    connections = OpenConnections(most_connections(limits.max_connections))
    found = {"limits": limits, "open": connections, "origins": AllowedOrigins(options.cors_origin)}
    protocol = type("LimitedConnection", (Connection,), found)
    return uvicorn.Config(
        app,
        http=protocol,
        backlog=ACCEPTED_AT_ONCE,
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=limits.keep_alive,  # type: ignore[arg-type]  # seconds, whole or not
        timeout_graceful_shutdown=limits.drain_timeout + _GRACE_S,  # type: ignore[arg-type]
        **tls_of(options),
    )


def check_early(options: Options) -> None:
    """Raises ModelError or ParamsError for options that are certain to fail, before the server listens."""
    find_model(options.model)
    read_adapters(options)
    parse_engine_args(options.engine_arg)
    check_tls(options)
    SpeculativeConfig.of(parse_speculative_config(options.speculative_config), options.draft)
    if options.draft is not None:
        find_model(options.draft)
    if options.backend == "vllm":
        require_vllm()
    operator_watermark(options.watermark)
    if options.chat_template is not None and not options.chat_template.is_file():
        raise ModelError(f"--chat-template must be a file, got {options.chat_template}")
    for flag, folder in (("--media-root", options.media_root), ("--lora-root", options.lora_root)):
        if folder is not None and not folder.is_dir():
            raise ModelError(f"{flag} must be a folder, got {folder}")


def exit_if_hanging() -> None:
    """Exits the process if a thread that the interpreter would wait for is still running; otherwise returns."""
    deadline = time.monotonic() + _GRACE_S
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and (not thread.daemon or thread.name.startswith(POOL)):
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                _log.error("%s is still running and was abandoned", thread.name)
                logging.shutdown()
                os._exit(0)


def listen(options: Options) -> socket.socket:
    """A listening socket on the host and port; raises TirageError when the address cannot be used."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        address = f"{options.host}:{options.port}"
        reason = error.strerror or str(error)
        raise TirageError(f"{address} cannot be used: {reason}; choose another --port, or 0 for any") from error
    listener.listen(_QUEUED)
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the host."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def url_of(listener: socket.socket, *, tls: bool = False) -> str:
    """The URL of a socket."""
    host, port = listener.getsockname()[:2]
    scheme = "https" if tls else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"
