"""`tirage explain`: the stages of one draw, of the same draw under several presets, or of every draw of a text."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirage.cli.model import BackendOption, DeviceOption, DtypeOption, EngineArgOption, ModelOption, open_model
from tirage.cli.options import parse_options, sampling_options
from tirage.cli.output import note, print_rich
from tirage.errors import ParamsError

if TYPE_CHECKING:
    from tirage.llm import LLM
    from tirage.params import SamplingParams


@sampling_options()
def explain(
    prompt: Annotated[
        str, typer.Argument(metavar="PROMPT", help="text whose next token is drawn; - reads it from stdin")
    ],
    model: ModelOption = "tiny",
    backend: BackendOption = "auto",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    engine_arg: EngineArgOption = None,
    position: Annotated[
        int, typer.Option(metavar="INTEGER", help="token of the prompt after which the draw is explained")
    ] = -1,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="PRESET", help="explain it under this semantics too; may be repeated"),
    ] = None,
    every_token: Annotated[bool, typer.Option("--every-token", help="draw a text, and explain each token")] = False,
    continuation: Annotated[
        str | None, typer.Option(metavar="TEXT", help="explain each token of this text after the prompt")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="write a page to this file")] = None,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="write a figure to this file: PNG, SVG or PDF")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON instead of a table")] = False,
    **options: Any,
) -> None:
    """Show every stage of one draw: what each parameter removed, and which tokens were left."""
    params = parse_options(options)
    whole = every_token or continuation is not None
    given = {"--compare": bool(compare), "--every-token or --continuation": whole, "--position": position != -1}
    check_alone(given, plot)
    text = sys.stdin.read() if prompt == "-" else prompt
    llm = open_model(model, backend=backend, dtype=dtype, device=device, engine_arg=engine_arg)
    if whole:
        found: Any = llm.explain_text(text, params, output_ids=continuation_ids(llm, text, continuation))
    elif compare:
        found = llm.compare(text, [params, *(under(params, name) for name in compare)])
    else:
        found = llm.explain(text, params, position=position)
    if plot is not None:
        found.plot().savefig(plot)
        note(f"wrote {plot}")
    elif html is not None:
        html.write_text(found.to_html(), encoding="utf-8")
        note(f"wrote {html}")
    elif as_json:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
    else:
        print_rich(found)


def check_alone(given: dict[str, bool], plot: Path | None) -> None:
    """Raises ParamsError for options that ask for different things."""
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        raise ParamsError(f"{names[0]} must not go with {names[1]}; give one")
    if plot is not None and names and names != ["--position"]:
        raise ParamsError(f"--plot must be of one draw, got {names[0]}; use --html")


def under(params: SamplingParams, semantics: str) -> SamplingParams:
    """The parameters under another semantics; raises ParamsError for one that lacks a stage which they need."""
    return params.replace(semantics=semantics)


def continuation_ids(llm: LLM, prompt: str, continuation: str | None) -> list[int] | None:
    """The ids of a text that continues the prompt; None without one.

    Raises ParamsError where the tokens of the prompt are others with the text behind it.
    """
    if continuation is None:
        return None
    before, both = llm.tokenizer.encode(prompt), llm.tokenizer.encode(prompt + continuation)
    if both[: len(before)] != before:
        raise ParamsError("--continuation must begin where a token of the prompt ends; move its beginning")
    return both[len(before) :]
