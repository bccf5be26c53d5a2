"""`tirage audit`: whether a server obeys the sampling parameters of its requests."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tirage.cli.given import check_files
from tirage.cli.output import QuietOption, note, print_rich

if TYPE_CHECKING:
    from tirage.audit import AuditReport


OnlyOption = Annotated[
    list[str] | None, typer.Option("--only", metavar="NAME", help="check this alone, and what it stands on")
]


def audit(
    url: Annotated[str, typer.Argument(metavar="URL", help="the server's address, such as http://localhost:8000")],
    dialect: Annotated[
        str | None,
        typer.Option(
            "--dialect", metavar="NAME", help="whose requests it reads; by default what it calls itself, or openai"
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option("--preset", metavar="NAME", help="the semantics to hold it to; by default its engine's"),
    ] = None,
    model_name: Annotated[
        str | None, typer.Option("--model-name", metavar="NAME", help="its model, if it has several")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option("--api-key", metavar="KEY", help="its key; by default TIRAGE_API_KEY of the environment"),
    ] = None,
    only: OnlyOption = None,
    json_file: Annotated[Path | None, typer.Option("--json", metavar="FILE", help="write the report as JSON")] = None,
    html_file: Annotated[
        Path | None, typer.Option("--html", metavar="FILE", help="write the report as a page with plots")
    ] = None,
    max_requests: Annotated[int, typer.Option("--max-requests", metavar="N", help="requests at most")] = 2000,
    max_seconds: Annotated[float, typer.Option("--max-seconds", metavar="S", help="seconds at most")] = 120.0,
    concurrency: Annotated[int, typer.Option("--concurrency", metavar="N", help="requests at once")] = 8,
    level: Annotated[
        float, typer.Option("--level", metavar="P", help="chance of any false alarm in the whole audit")
    ] = 0.01,
    timeout_s: Annotated[float, typer.Option("--timeout-s", metavar="S", help="seconds to wait for an answer")] = 30.0,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", help="makes the audit's own choices repeatable")
    ] = None,
    quiet: QuietOption = False,
) -> None:
    """Check whether a server obeys its sampling parameters. The table goes to stdout.

    Exit statuses: 0 nothing found, 1 a parameter is not obeyed, 2 something could not be tested.
    """
    from tirage.audit import AuditLimits
    from tirage.audit import audit as run

    check_files({"--json": json_file, "--html": html_file})
    limits = AuditLimits(requests=max_requests, seconds=max_seconds, concurrency=concurrency, level=level)
    with _bar(max_requests, shown=not quiet) as advance:
        report = run(
            url,
            dialect=dialect,
            preset=preset,
            model_name=model_name,
            api_key=api_key or os.environ.get("TIRAGE_API_KEY"),
            only=only or (),
            limits=limits,
            seed=seed,
            timeout_s=timeout_s,
            progress=advance,
        )
    _write(report, json_file, html_file)
    _show(report, notes=not quiet)
    raise typer.Exit(report.exit_status)


def _show(report: AuditReport, *, notes: bool) -> None:
    """Prints the table to stdout, and notes to stderr."""
    print_rich(report.table())
    if notes:
        for each in (*report.notes, report.summary()):
            note(each)


def _write(report: AuditReport, json_file: Path | None, html_file: Path | None) -> None:
    from tirage.audit.page import audit_page

    if json_file is not None:
        json_file.write_text(json.dumps(report.to_dict(), indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    if html_file is not None:
        html_file.write_text(audit_page(report), encoding="utf-8")


@contextmanager
def _bar(total: int, *, shown: bool) -> Iterator[Callable[[int], None]]:
    """A block with a bar of requests on a terminal's stderr, and what moves it."""
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not (shown and console.is_terminal)) as bar:
        task = bar.add_task("requests", total=total)
        yield lambda count: bar.update(task, completed=count)
