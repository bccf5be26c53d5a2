"""The options that select a model, and the LLM that they select."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirage.cli.given import check_left_out

if TYPE_CHECKING:
    from tirage.llm import LLM

_PANEL: dict[str, Any] = {"rich_help_panel": "Model"}
_API_KEY = "TIRAGE_API_KEY"
ModelOption = Annotated[
    str, typer.Option("--model", metavar="NAME|PATH", help="a bundled model, a Hugging Face folder or a GGUF file")
]
AnyModelOption = Annotated[
    str,
    typer.Option(
        "--model", metavar="NAME|PATH|URL", help="a bundled model, a folder, a GGUF file, or a server with --dialect"
    ),
]
DialectOption = Annotated[
    str | None,
    typer.Option("--dialect", metavar="NAME", help="of a server: vllm, sglang, openai, llamacpp or tirage", **_PANEL),
]
ApiKeyOption = Annotated[
    str | None,
    typer.Option("--api-key", metavar="KEY", envvar=_API_KEY, help="of a server: sent as a bearer token", **_PANEL),
]
ModelNameOption = Annotated[
    str | None,
    typer.Option("--model-name", metavar="NAME", help="of a server: its model, if it has several", **_PANEL),
]
BackendOption = Annotated[
    str, typer.Option("--backend", metavar="NAME", help="auto, torch, numpy, jax or vllm", **_PANEL)
]
DtypeOption = Annotated[
    str | None,
    typer.Option(
        "--dtype", metavar="NAME", help="on PyTorch: auto, float32, bfloat16, float16, or int8 on a CPU", **_PANEL
    ),
]
DeviceOption = Annotated[
    str | None, typer.Option("--device", metavar="NAME", help="on PyTorch: cpu, cuda, cuda:1, ...", **_PANEL)
]
EngineArgOption = Annotated[
    list[str] | None,
    typer.Option(
        "--engine-arg", metavar="NAME=VALUE", help="on vLLM: an argument of its engine; may be repeated", **_PANEL
    ),
]

DraftOption = Annotated[
    str | None,
    typer.Option("--draft", metavar="NAME|PATH", help="a smaller model that drafts text, for speed alone", **_PANEL),
]
SpeculativeConfigOption = Annotated[
    str | None,
    typer.Option("--speculative-config", metavar="JSON", help='drafts for speed alone: {"method": "ngram"}', **_PANEL),
]


def open_any(
    model: str, dialect: str | None, api_key: str | None, *, model_name: str | None = None, **options: Any
) -> LLM:
    """The LLM of that name or folder, or of the server at that address, which takes none of the other options."""
    from tirage.llm import LLM, is_address

    if dialect is None and model_name is None and not is_address(model):
        if api_key != os.environ.get(_API_KEY):
            check_left_out("with a model in this process", api_key=api_key)
        return open_model(model, **options)
    defaults = {"backend": "auto", "dtype": None, "device": None, "engine_arg": None, "draft": None}
    defaults["speculative_config"] = None
    given = {name: value for name, value in options.items() if value != defaults.get(name)}
    server = {"dialect": dialect, "model_name": model_name, "api_key": api_key}
    return LLM(model, **{name: value for name, value in server.items() if value is not None}, **given)


def open_model(
    model: str, *, engine_arg: list[str] | None = None, speculative_config: str | None = None, **options: Any
) -> LLM:
    """The LLM of that name or folder, with the options of `LLM`. Raises ModelError for the address of a server."""
    # Imported here, so that `tirage --help` is fast.
    from tirage.engine import parse_speculative_config
    from tirage.errors import ModelError
    from tirage.llm import LLM, is_address
    from tirage.models.vllm import parse_engine_args

    if is_address(model):
        raise ModelError(f"model must be in this process here, got {model!r:.80}; tirage generate takes an address")
    config = parse_speculative_config(speculative_config)
    with loading(model):
        return LLM(model, engine_args=parse_engine_args(engine_arg or ()), speculative_config=config, **options)


def loading(model: str) -> contextlib.AbstractContextManager[object]:
    """A block during which a terminal's stderr says that a model is loaded."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    from rich.console import Console

    return Console(stderr=True).status(f"loading {model}", spinner="line")
