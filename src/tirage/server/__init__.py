"""The HTTP server: SGLang's, OpenAI's and FastDeploy's routes over one engine. Needs the extra `serve`."""

from __future__ import annotations

import gc
from typing import TYPE_CHECKING

from tirage.errors import TirageError

if TYPE_CHECKING:
    from fastapi import FastAPI

    from tirage.llm import LLM
    from tirage.server.options import Options

__all__ = ["create_app", "run"]


def create_app(llm: LLM, options: Options | None = None) -> FastAPI:
    """The ASGI application for a model that is already loaded.

    Raises TirageError when the packages of the extra `serve` are missing.
    """
    check_installed()
    from tirage.server.app import create_app as create
    from tirage.server.options import Options as Defaults

    return create(options or Defaults(), llm=llm)


def run(options: Options) -> int:
    """Serves until a signal; the exit status. Logs the address and progress on stderr.

    Raises TirageError when the address cannot be used, the model cannot be loaded, or the extra `serve` is missing.
    """
    # What is imported stays: looking through it for garbage would take a seventh of the time that a start takes.
    gc.disable()
    try:
        check_installed()
        from tirage.server.launch import serve
    finally:
        gc.freeze()
        gc.enable()
    return serve(options)


def check_installed() -> None:
    """Raises TirageError, with the command that installs it, when a package of the extra is missing."""
    try:
        import fastapi
        import prometheus_client
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise TirageError(f"the server needs the package {error.name!r}; run: pip install 'tirage[serve]'") from error
    del fastapi, prometheus_client
