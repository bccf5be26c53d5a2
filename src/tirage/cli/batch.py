"""`tirage batch`: the texts of a file of prompts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tirage.cli.model import BackendOption, DeviceOption, DtypeOption, EngineArgOption, ModelOption, open_model
from tirage.cli.options import parse_options, sampling_options
from tirage.cli.output import QuietOption, note
from tirage.params import RequestOutputKind


@sampling_options
def batch(
    file: Annotated[Path, typer.Argument(help="JSON lines or Parquet: id, prompt or messages, params")],
    out: Annotated[Path, typer.Option("--out", help="folder of the results; an interrupted run goes on in its own")],
    model: ModelOption = "tiny",
    backend: BackendOption = "auto",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    engine_arg: EngineArgOption = None,
    max_running: Annotated[int, typer.Option("--max-running", help="samples that run at once")] = 32,
    output: Annotated[str, typer.Option("--output", help="form of the results: jsonl or parquet")] = "jsonl",
    quiet: QuietOption = False,
    **options: Any,
) -> None:
    """Generate for a file of prompts. Each row's seed follows from its id, so every run gives the same texts.

    Lines of OpenAI's batch format are taken too. The exit status is 1 when rows failed; they are in OUT/errors.
    """
    from tirage.cluster import generate

    params = parse_options(options).replace(output_kind=RequestOutputKind.CUMULATIVE)
    llm = open_model(model, backend=backend, dtype=dtype, device=device, engine_arg=engine_arg, max_running=max_running)
    with bar(not quiet) as progress:
        done = generate(file, params, out=out, model=llm, output=output, progress=progress)
    if not quiet:
        note(f"{done.rows} rows done, {done.earlier} before, {done.failed} failed; results in {out}")
    raise typer.Exit(1 if done.failed else 0)


@contextlib.contextmanager
def bar(shown: bool) -> Iterator[Callable[[int, int], None]]:
    """A block with a bar on a terminal's stderr, and what is called with the number of rows done and of all."""
    if not shown or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = "rows", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown_bar:
        task = shown_bar.add_task("", total=None)
        yield lambda done, total: shown_bar.update(task, completed=done, total=total)
