"""`tirage serve`: an address, a loop, and signals."""

from __future__ import annotations

import logging
import socket
import sys

import uvicorn

from tirage.errors import TirageError
from tirage.server.app import create_app
from tirage.server.options import Options

_log = logging.getLogger("tirage.server")


def serve(options: Options) -> int:
    """Serves until a signal; the exit status."""
    logging.basicConfig(stream=sys.stderr, level=options.log_level.upper(), format="%(message)s")
    listener = listen(options)
    troubles: list[TirageError] = []

    def failed(error: TirageError) -> None:
        troubles.append(error)
        server.should_exit = True

    app = create_app(options, failed=failed)
    server = uvicorn.Server(uvicorn.Config(app, log_config=None, access_log=False, server_header=False, ws="none"))
    _log.info("listening on %s", url_of(listener))
    server.run(sockets=[listener])
    if troubles:
        raise troubles[0]
    return 0


def listen(options: Options) -> socket.socket:
    """A socket on the host and port; TirageError that says what to do when it cannot be had."""
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as error:
        listener.close()
        address = f"{options.host}:{options.port}"
        raise TirageError(f"{address} cannot be used: {error.strerror}; choose another --port, or 0 for any") from error
    listener.listen(1024)
    return listener


def url_of(listener: socket.socket) -> str:
    """Where clients find a socket."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
