"""The application: its parts, and its life from loading to draining."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable

from fastapi import FastAPI

from tirage.errors import TirageError
from tirage.llm import LLM
from tirage.params import SamplingParams
from tirage.server.desk import Desk
from tirage.server.errors import add_handlers
from tirage.server.health import Health
from tirage.server.options import Options
from tirage.server.routes import ROUTERS

_log = logging.getLogger("tirage.server")


def create_app(
    options: Options, *, llm: LLM | None = None, failed: Callable[[TirageError], None] | None = None
) -> FastAPI:
    """The application; without `llm` it loads the model once it serves, and calls `failed` when that cannot be."""
    app = FastAPI(title="tirage", docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.options, app.state.health, app.state.desk = options, Health(), None
    app.state.llm, app.state.failed = llm, failed
    add_handlers(app)
    for router in ROUTERS:
        app.include_router(router)
    return app


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Loads the model beside the server, which answers meanwhile."""
    loading = asyncio.create_task(load(app))
    yield
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)


async def load(app: FastAPI) -> None:
    """Makes the desk, and has the model answer once before anyone is let in."""
    options, health = app.state.options, app.state.health
    try:
        if app.state.llm is None:
            _log.info("loading %s", options.model_name)
            app.state.llm = await asyncio.to_thread(open_llm, options)
        health.phase = "probing"
        _log.info("probing the model")
        await asyncio.to_thread(probe, app.state.llm)
    except TirageError as error:
        health.phase = "failed"
        if app.state.failed is None:
            raise
        app.state.failed(error)
        return
    app.state.desk = Desk(app.state.llm, options)
    health.phase = "ready"
    _log.info("ready: %s", options.model_name)


def open_llm(options: Options) -> LLM:
    """The model that the options name."""
    return LLM(
        options.model,
        backend=options.backend,
        chat_template=options.chat_template,
        max_running=options.limits.max_running,
        dtype=options.dtype,
        device=options.device,
        prefix_bytes=options.prefix_bytes,
    )


def probe(llm: LLM) -> None:
    """Draws one token, so that the first client waits for nothing that can be done now."""
    completion = llm.generate([[0]], SamplingParams(max_tokens=1, temperature=0.0, detokenize=False))[0]
    if completion.finish_reason == "error":
        stop = completion.stop
        raise TirageError(f"the model does not answer: {stop.matched_text or stop.kind if stop else 'no stop'}")
