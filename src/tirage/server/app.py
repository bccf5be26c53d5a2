"""The ASGI application: its parts, and its life from loading the model to draining."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import time
from collections.abc import AsyncIterator, Callable, Collection
from typing import Any

from fastapi import APIRouter, FastAPI
from starlette.types import Scope

from tirage.engine import parse_speculative_config
from tirage.errors import ParamsError, TirageError
from tirage.llm import LLM
from tirage.models.vllm import parse_engine_args
from tirage.params import SamplingParams
from tirage.server.auth import OPEN_PATHS, Auth
from tirage.server.errors import add_handlers
from tirage.server.health import Health
from tirage.server.logs import escape
from tirage.server.media import MediaLoader, sampling_rate_of, takes_images
from tirage.server.metrics import Metrics
from tirage.server.middleware import RequestMiddleware
from tirage.server.next_token import NextTokenExplainer
from tirage.server.options import Options
from tirage.server.plugins import load_processors, read_adapters
from tirage.server.rate_limit import RateLimiter, RateLimitMiddleware
from tirage.server.replay import model_info_of
from tirage.server.request_manager import RequestManager
from tirage.server.response_store import ResponseStore
from tirage.server.routes import ADMIN_ROUTERS, ROUTERS, adapters, playground
from tirage.server.threads import in_thread, use_threads
from tirage.warm import compiling, warmup

# How long the shutdown waits for the engine's thread.
_CLOSE_S = 2.0
# Kernels that were compiled at an earlier start are loaded within this time.
_LOADED_S = 2.0
# How often the log reports that kernels are still being prepared.
_REPORT_S = 10.0
_log = logging.getLogger("tirage.server")


def create_app(
    options: Options, *, llm: LLM | None = None, failed: Callable[[TirageError], None] | None = None
) -> FastAPI:
    """The application; without `llm` it loads the model after it has started, and calls `failed` if that fails.

    Routes that need the admin key exist only when the operator has set one.
    """
    app = FastAPI(title="tirage", docs_url=None, redoc_url=None, lifespan=lifespan, redirect_slashes=False)
    state = app.state
    state.options, state.manager, state.media, state.metrics = options, None, None, Metrics()
    state.explainer = None
    state.responses = ResponseStore(options.limits.max_stored_bytes)
    state.rate_limiter = RateLimiter.of(options)
    state.health = Health(patience_s=options.limits.health_timeout)
    state.llm, state.failed, state.own = llm, failed, llm is None
    add_handlers(app)
    routers = routers_of(options)
    for router in routers:
        app.include_router(router)
    paths = {path_of(route) for router in routers for route in router.routes}
    check_root(options.root_path, paths)
    state.metrics.know_routes(paths)
    state.paths = sorted(path for path in paths if "{" not in path)
    add_middleware(app)
    return app


def check_root(root: str | None, paths: Collection[str]) -> None:
    """Raises ParamsError for a root path that begins a route: nothing would tell whether a proxy has removed it."""
    if root is not None and any(path.startswith(f"{root}/") for path in paths):
        raise ParamsError(f"--root-path must not begin a route of this server, got {root!r}; choose another path")


def routers_of(options: Options) -> tuple[APIRouter, ...]:
    """The routers of the application: those that are always there, and those that the options turn on."""
    admin = ADMIN_ROUTERS if options.admin_key is not None else ()
    more = () if options.lora_root is None else (adapters.router,)
    return (*ROUTERS, *admin, *more, *(() if options.no_playground else (playground.router,)))


def add_middleware(app: FastAPI) -> None:
    """Adds the middleware: request checks and CORS outermost, then authentication."""
    options, metrics = app.state.options, app.state.metrics

    def record(scope: Scope, status: int, seconds: float) -> None:
        metrics.answered(path_of(scope.get("route")), status, seconds)
        log_request(scope, status, seconds)

    open_paths = OPEN_PATHS if options.protect_metrics else OPEN_PATHS | {"/metrics"}
    open_paths |= frozenset() if options.no_playground else playground.open_paths()
    if options.requests_per_minute is not None or options.tokens_per_minute is not None:
        app.add_middleware(RateLimitMiddleware, limiter=app.state.rate_limiter)
    by_address = options.tenant_by == "address"
    keys = {"api_keys": options.api_key, "key_weights": options.key_weight, "admin_key": options.admin_key}
    app.add_middleware(Auth, **keys, open_paths=open_paths, by_address=by_address)
    app.add_middleware(RequestMiddleware, options=options, record=record)


def path_of(route: Any) -> str:
    """The path of a route as declared, such as `/v1/models/{name}`; empty for None."""
    return getattr(route, "path", "")


def log_request(scope: Scope, status: int, seconds: float) -> None:
    """Logs a request in one line, without its body and its key."""
    method, path, ms = scope["method"], escape(scope["path"])[:200], seconds * 1000
    fields = {"id": scope["tirage.id"], "method": method, "path": path, "status": status, "ms": round(ms, 1)}
    level = logging.DEBUG if path in {"/health", "/metrics"} else logging.INFO
    _log.log(level, "%s %s %d %.1f ms %s", method, path, status, ms, scope["tirage.id"], extra={"fields": fields})


@contextlib.asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Loads the model while the server already answers; closes the engine at the end."""
    loading = asyncio.create_task(load(app))
    yield
    app.state.health.enter("draining")
    loading.cancel()
    await asyncio.gather(loading, return_exceptions=True)
    if app.state.manager is not None:
        app.state.manager.close()
    if app.state.media is not None:
        app.state.media.close()
    if app.state.llm is not None and app.state.own:
        try:
            await asyncio.wait_for(in_thread(app.state.llm.close), _CLOSE_S)
        except TimeoutError:
            _log.error("the engine did not end within %g seconds", _CLOSE_S)


async def load(app: FastAPI) -> None:
    """Opens the model, has it answer once, and makes the request manager; from then on requests are accepted."""
    state = app.state
    try:
        if state.llm is None:
            _log.info("loading %s", state.options.model_name)
            state.llm = await in_thread(open_llm, state.options)
        await prepare_kernels(state.health)
        state.health.enter("probing")
        _log.info("probing %s", state.options.model_name)
        await in_thread(probe, state.llm)
        model_info = await in_thread(model_info_of, state.llm, state.options.model_name)
    except Exception as error:
        state.health.enter("failed")
        known = error if isinstance(error, TirageError) else TirageError(f"the model cannot be loaded: {error!r}")
        if state.failed is None:
            raise
        state.failed(known)
        return
    progress = state.llm.engine.progress
    state.metrics.watch(progress)
    state.health.watch(progress)
    taken = {"sampling_rate": sampling_rate_of(state.llm), "takes_images": takes_images(state.llm)}
    state.media = MediaLoader(state.options, **taken)
    state.manager = RequestManager(
        state.llm,
        state.options,
        metrics=state.metrics,
        model_info=model_info,
        rate_limiter=state.rate_limiter,
    )
    state.explainer = NextTokenExplainer(state.manager)
    # What has been loaded stays; a garbage collection that visited it again would stop every stream for 0.2 s.
    gc.collect()
    gc.freeze()
    state.health.enter("ready")
    _log.info("ready: %s", state.options.model_name)


async def prepare_kernels(health: Health) -> None:
    """Returns when the kernels are ready; logs the progress when they have to be compiled first.

    They would also compile in the background, but beside a busy engine that takes very long.
    """
    began, warm = time.monotonic(), asyncio.create_task(in_thread(warmup))
    done, _ = await asyncio.wait({warm}, timeout=_LOADED_S)
    while not done:
        seconds = time.monotonic() - began
        if compiling():
            health.enter("compiling")
            _log.info("compiling kernels, %.0f s so far (only at the first start on a machine)", seconds)
        else:
            _log.info("loading kernels, %.0f s so far", seconds)
        done, _ = await asyncio.wait({warm}, timeout=_REPORT_S)
    await warm


def open_llm(options: Options) -> LLM:
    """The model of the options, with the operator's processors and adapters."""
    load_processors(options)
    use_threads(options.threads)
    limits = options.limits
    llm = LLM(
        options.model,
        backend=options.backend,
        chat_template=options.chat_template,
        max_running=limits.max_running,
        max_waiting=limits.max_queue,
        dtype=options.dtype,
        device=options.device,
        adapters=read_adapters(options) or None,
        enable_lora=True if options.lora_root is not None else None,
        prefix_bytes=options.prefix_bytes,
        prefill_batch_tokens=options.prefill_batch_tokens,
        engine_args=parse_engine_args(options.engine_arg),
        processor_timeout=limits.processor_timeout,
        reasoning_parser=options.reasoning_parser,
        speculative_config=parse_speculative_config(options.speculative_config),
        draft=options.draft,
    )
    # Once more, for a library that came with the model.
    use_threads(options.threads)
    return llm


def probe(llm: LLM) -> None:
    """Draws one token, so that the first client does not wait for the model's first pass; raises TirageError."""
    completion = llm.generate([[0]], SamplingParams(max_tokens=1, temperature=0.0, detokenize=False))[0]
    if completion.finish_reason == "error":
        stop = completion.stop
        raise TirageError(f"the model does not answer: {stop.matched_text or stop.kind if stop else 'no stop'}")
