"""`tirage explain`: the stages of one draw."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tirage.cli.model import BackendOption, DeviceOption, DtypeOption, EngineArgOption, ModelOption, open_model
from tirage.cli.options import parse_options, sampling_options
from tirage.cli.output import note, print_rich


@sampling_options
def explain(
    prompt: Annotated[str, typer.Argument(help="text whose next token is drawn; - reads it from stdin")],
    model: ModelOption = "tiny",
    backend: BackendOption = "auto",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    engine_arg: EngineArgOption = None,
    position: Annotated[int, typer.Option(help="token of the prompt after which the draw is explained")] = -1,
    html: Annotated[Path | None, typer.Option(help="write a page to this file instead")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
    **options: Any,
) -> None:
    """Show every stage of one draw: what each parameter removed, and which tokens were left."""
    params = parse_options(options)
    text = sys.stdin.read() if prompt == "-" else prompt
    explanation = open_model(model, backend=backend, dtype=dtype, device=device, engine_arg=engine_arg).explain(
        text, params, position=position
    )
    if html is not None:
        html.write_text(explanation.to_html(), encoding="utf-8")
        note(f"wrote {html}")
    elif as_json:
        print(json.dumps(explanation.to_dict(), ensure_ascii=False))
    else:
        print_rich(explanation)
