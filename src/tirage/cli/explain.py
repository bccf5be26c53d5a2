"""`tirage explain`: the stages of one draw, of the same draw under several presets, or of every draw of a text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tirage.cli.given import check_alone, check_files, check_left_out, read_prompt
from tirage.cli.model import BackendOption, DeviceOption, DtypeOption, EngineArgOption, ModelOption, open_model
from tirage.cli.options import parse_options, sampling_options
from tirage.cli.output import note, print_rich
from tirage.errors import ParamsError

if TYPE_CHECKING:
    from tirage.llm import LLM
    from tirage.params import SamplingParams

_FIGURES = (".png", ".svg", ".pdf")
_OF_TEXTS = ("max_tokens", "stop", "stop_pattern")
"""Options that end a text, and decide nothing about one draw."""


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
    """Show every stage of one draw: what each parameter removed, and which tokens were left.

    A table goes to stdout. --json, --html and --plot are in its place, each or all of them.
    """
    params = parse_options(options)
    whole = every_token or continuation is not None
    check_alone({"--compare": bool(compare), "--every-token or --continuation": whole, "--position": position != -1})
    if not whole:
        of_texts = {name: options.get(name) for name in _OF_TEXTS}
        check_left_out("with one draw; --every-token explains a text", **of_texts)
    check_files({"--plot": plot, "--html": html})
    check_figure(plot, html, several="--compare" if compare else "--every-token or --continuation" if whole else "")
    text = read_prompt(prompt)
    llm = open_model(model, backend=backend, dtype=dtype, device=device, engine_arg=engine_arg)
    if whole:
        found: Any = llm.explain_text(text, params, output_ids=continuation_ids(llm, text, continuation))
    elif compare:
        found = llm.compare(text, [params, *(under(params, name) for name in compare)])
    else:
        found = llm.explain(text, params, position=position)
    write(found, plot, html)
    if as_json:
        print(json.dumps(found.to_dict(), ensure_ascii=False))
    elif plot is None and html is None:
        print_rich(found)


def check_figure(plot: Path | None, html: Path | None, *, several: str) -> None:
    """Raises ParamsError for a figure that cannot be written as asked, and TirageError without matplotlib.

    `several` is the option for more than one draw.
    """
    if plot is None:
        return
    if several:
        raise ParamsError(f"--plot must be of one draw, got {several}; use --html")
    if plot.suffix.lower() not in _FIGURES:
        raise ParamsError(f"--plot must be a PNG, SVG or PDF, got {str(plot)!r}; end its name in {', '.join(_FIGURES)}")
    if plot == html:
        raise ParamsError(f"--plot and --html must be two files, got {str(plot)!r} for both")
    from tirage.tracing.plot import figure_class

    figure_class()


def write(found: Any, plot: Path | None, html: Path | None) -> None:
    """Writes the figure and the page of an explanation to the files that are given, and notes on stderr."""
    if plot is not None:
        found.plot().savefig(plot)
        note(f"wrote {plot}")
    if html is not None:
        html.write_text(found.to_html(), encoding="utf-8")
        note(f"wrote {html}")


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
