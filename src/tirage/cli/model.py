"""The options that select a model, and the LLM that they select."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from tirage.llm import LLM

ModelOption = Annotated[
    str, typer.Option("--model", help="a bundled model, a local Hugging Face folder or a GGUF file")
]
BackendOption = Annotated[str, typer.Option("--backend", help="auto, torch, numpy or vllm")]
DtypeOption = Annotated[
    str | None, typer.Option("--dtype", help="on PyTorch: auto, float32, bfloat16, float16, or int8 on a CPU")
]
DeviceOption = Annotated[str | None, typer.Option("--device", help="on PyTorch: cpu, cuda, cuda:1, ...")]
EngineArgOption = Annotated[
    list[str] | None,
    typer.Option("--engine-arg", metavar="NAME=VALUE", help="on vLLM: an argument of its engine; may be repeated"),
]


def open_model(model: str, *, engine_arg: list[str] | None = None, **options: Any) -> LLM:
    """The LLM of that name or folder, with the options of `LLM`."""
    # Imported here, so that `tirage --help` is fast.
    from tirage.llm import LLM
    from tirage.models.vllm import parse_engine_args

    return LLM(model, engine_args=parse_engine_args(engine_arg or ()), **options)
