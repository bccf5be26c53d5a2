"""`tirage conformance`: the golden vectors, asked of somebody else's program."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tirage.cli.given import check_alone
from tirage.cli.output import QuietOption, note
from tirage.errors import ParamsError

if TYPE_CHECKING:
    from tirage.conformance import Vector


def conformance(
    program: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- PROGRAM [ARG]...", help="the program: JSON lines in, JSON lines out"),
    ] = None,
    topic: Annotated[list[str] | None, typer.Option(metavar="NAME", help="only vectors of this file")] = None,
    rule: Annotated[
        list[str] | None, typer.Option(metavar="RULE", help="only vectors of this rule, such as S-O2")
    ] = None,
    preset: Annotated[list[str] | None, typer.Option(metavar="NAME", help="only vectors of this preset")] = None,
    vectors: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="other vectors than those of this release")
    ] = None,
    timeout: Annotated[float, typer.Option(metavar="SECONDS", help="for one answer")] = 10.0,
    start_timeout: Annotated[float, typer.Option(metavar="SECONDS", help="for the first answer of a process")] = 60.0,
    as_json: Annotated[bool, typer.Option("--json", help="print the report as JSON, with every verdict")] = False,
    show: Annotated[bool, typer.Option("--print", help="print the vectors themselves, and run nothing")] = False,
    show_requests: Annotated[
        bool, typer.Option("--print-requests", help="print what a program would be asked, and run nothing")
    ] = False,
    show_schema: Annotated[bool, typer.Option("--print-schema", help="print the JSON Schema of a vector")] = False,
    quiet: QuietOption = False,
) -> None:
    """Run the golden vectors against a program: exit status 0 when all that it supports are right, 1 when not.

    The program reads a JSON object per line and answers each with one line before it reads the next; docs/vectors.md
    has the format. What it does not support it says, and that fails nothing, but some vectors must pass.
    """
    from tirage.conformance import read_vectors, schema

    check_alone({"--print": show, "--print-requests": show_requests, "--print-schema": show_schema})
    if show_schema:
        print(json.dumps(schema(), indent=2))
        return
    chosen = read_vectors(vectors, topics=topic or (), rules=rule or (), presets=preset or ())
    if show or show_requests:
        for vector in chosen:
            print(json.dumps(vector.request if show_requests else dict(vector.data)))
        return
    conforms = check(program or [], chosen, timeout=timeout, start_timeout=start_timeout, as_json=as_json, quiet=quiet)
    raise typer.Exit(0 if conforms else 1)


def check(
    program: list[str], chosen: list[Vector], *, timeout: float, start_timeout: float, as_json: bool, quiet: bool
) -> bool:
    """Prints the report on a program; whether it conforms. Raises ParamsError for a program that cannot be started."""
    if not program:
        raise ParamsError("PROGRAM must be a command after --, got nothing; tirage conformance -- python sampler.py")
    from tirage.conformance import SamplerProgram, check_program

    with SamplerProgram(program, timeout_s=timeout, start_timeout_s=start_timeout) as running:
        report = check_program(running, chosen)
    print(json.dumps(report.to_dict()) if as_json else "\n".join(report.lines()))
    sys.stdout.flush()
    if not report.conforms and not quiet:
        note("it does not conform" if report.failures else "nothing was tested: it supports none of the vectors")
    return report.conforms
