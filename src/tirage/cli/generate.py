"""`tirage generate`: the continuation of a text."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from tirage.cli.model import BackendOption, DeviceOption, DtypeOption, EngineArgOption, ModelOption, open_model
from tirage.cli.options import parse_options, sampling_options
from tirage.cli.output import QuietOption, note, show, summary


@sampling_options
def generate(
    prompt: Annotated[str, typer.Argument(help="text to continue; - reads it from stdin")],
    model: ModelOption = "tiny",
    backend: BackendOption = "auto",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    engine_arg: EngineArgOption = None,
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Continue a text. Only the new text goes to stdout, while it is generated."""
    params = parse_options(options)
    llm = open_model(model, backend=backend, dtype=dtype, device=device, engine_arg=engine_arg)
    text = sys.stdin.read() if prompt == "-" else prompt
    completion = show(llm.stream(text, params))
    if not quiet:
        note(summary(completion))
    if completion.finish_reason == "error":
        raise typer.Exit(1)
