"""`tirage batch`: the texts of a file of prompts."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from tirage.cli.model import BackendOption, DeviceOption, DtypeOption, EngineArgOption, ModelOption
from tirage.cli.options import OF_TEXTS, parse_options, sampling_options
from tirage.cli.output import QuietOption, note
from tirage.cli.ray_options import (
    NumCpusOption,
    NumGpusOption,
    RayAddressOption,
    RayOption,
    WorkersOption,
    given_for_ray,
)
from tirage.params import RequestOutputKind


@sampling_options(more=OF_TEXTS)
def batch(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="JSON lines or Parquet: id, prompt or messages, params")],
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="where results go; an interrupted run goes on in its own")
    ],
    model: ModelOption = "tiny",
    backend: BackendOption = "auto",
    dtype: DtypeOption = None,
    device: DeviceOption = None,
    engine_arg: EngineArgOption = None,
    max_running: Annotated[
        int, typer.Option("--max-running", metavar="INTEGER", help="samples that run at once", rich_help_panel="Model")
    ] = 32,
    output: Annotated[
        str,
        typer.Option(
            "--output", metavar="FORM", help="form of the results: jsonl or parquet", rich_help_panel="Output"
        ),
    ] = "jsonl",
    quiet: QuietOption = False,
    ray: RayOption = False,
    ray_address: RayAddressOption = None,
    workers: WorkersOption = None,
    num_cpus: NumCpusOption = None,
    num_gpus: NumGpusOption = None,
    **options: Any,
) -> None:
    """Generate for a file of prompts. Each row's seed follows from its id, so every run gives the same texts.

    Lines of OpenAI's batch format are taken too. The exit status is 1 when rows failed; they are in OUT/errors.
    """
    from tirage.cluster import Cluster, generate
    from tirage.models.vllm import parse_engine_args

    params = parse_options(options).replace(output_kind=RequestOutputKind.CUMULATIVE)
    given = given_for_ray(ray, address=ray_address, workers=workers, num_cpus=num_cpus, num_gpus=num_gpus)
    opened = {"backend": backend, "dtype": dtype, "device": device, "max_running": max_running}
    opened["engine_args"] = parse_engine_args(engine_arg or ())
    with bar(not quiet) as progress:
        done = generate(
            file,
            params,
            out=out,
            model=model,
            output=output,
            progress=progress,
            cluster=None if given is None else Cluster(**given),
            **opened,
        )
    if not quiet:
        note(f"{done.rows} rows done, {done.earlier} before, {done.failed} failed; results in {out}")
    raise typer.Exit(1 if done.failed else 0)


@contextlib.contextmanager
def bar(shown: bool) -> Iterator[Callable[[float, int], None]]:
    """A block with a bar on a terminal's stderr, and what is given the rows done, running ones in parts, and all."""
    if not shown or not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.fields[rows]}/{task.total} rows"), BarColumn(), TimeRemainingColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown_bar:
        task = shown_bar.add_task("", total=None, rows=0)
        yield lambda done, total: shown_bar.update(task, completed=done, total=total, rows=int(done))
