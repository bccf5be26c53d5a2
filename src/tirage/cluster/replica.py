"""A replica of Ray Serve: the server's application over a model of its own."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from tirage.cluster.every_replica import Answered, EveryReplica, Recorded
from tirage.errors import TirageError
from tirage.server.app import create_app, open_llm, probe
from tirage.server.logs import set_up
from tirage.server.options import Options
from tirage.warm import warmup

_POLL_S = 0.02


class Replica:
    """A model and the application that serves it. Ray Serve calls what is not underscored, and the two hooks.

    The model is loaded, compiled for and tried before the replica counts as started, so that no request waits for that.
    """

    def __init__(self, options: Options) -> None:
        set_up(options.log_format, options.log_level)
        warmup()
        self._llm = open_llm(options)
        probe(self._llm)
        self._app = create_app(options, llm=self._llm)
        self._app.router.lifespan_context = until_ready(self._app.router.lifespan_context)

    def __serve_build_asgi_app__(self) -> ASGIApp:
        from ray import serve  # pyright: ignore[reportMissingImports]

        context = serve.get_replica_context()
        return EveryReplica(self._app, serve.get_deployment_handle(context.deployment, context.app_name))

    async def check_health(self) -> None:
        """Raises TirageError when the engine makes no progress, whereupon Ray replaces the replica."""
        if self._app.state.health.phase in {"stalled", "failed"}:
            raise TirageError("the engine has work and makes no progress")

    async def answer(self, request: Recorded) -> tuple[str, Answered]:
        """The name of this replica, and its own answer to a request that concerns every replica."""
        from ray import serve  # pyright: ignore[reportMissingImports]

        return serve.get_replica_context().replica_id.unique_id, await request.answered_by(self._app)

    def __del__(self) -> None:
        llm = getattr(self, "_llm", None)
        if llm is not None:
            llm.close()


def until_ready(lifespan: Callable[[FastAPI], Any]) -> Callable[[FastAPI], Any]:
    """The lifespan of an application, whose start takes until it accepts requests."""

    @contextlib.asynccontextmanager
    async def started(app: FastAPI) -> AsyncIterator[Any]:
        async with lifespan(app) as state:
            while app.state.health.phase not in {"ready", "failed"}:
                await asyncio.sleep(_POLL_S)
            yield state

    return started
