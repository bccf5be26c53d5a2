"""The options of commands that run on a Ray cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import typer

from tirage.errors import ParamsError

_PANEL: dict[str, Any] = {"rich_help_panel": "On a Ray cluster"}
RayOption = Annotated[
    bool, typer.Option("--ray", help="run on a Ray cluster; without --ray-address one of this machine", **_PANEL)
]
RayAddressOption = Annotated[
    str | None,
    typer.Option(
        "--ray-address", metavar="ADDRESS", help="cluster to join, HOST:PORT; RAY_ADDRESS if not given", **_PANEL
    ),
]
ReplicasOption = Annotated[
    int | None, typer.Option("--replicas", metavar="INTEGER", help="copies of the model (default 1)", **_PANEL)
]
MaxReplicasOption = Annotated[
    int | None,
    typer.Option("--max-replicas", metavar="INTEGER", help="copies of the model that Ray may run under load", **_PANEL),
]
WorkersOption = Annotated[
    int | None, typer.Option("--workers", metavar="INTEGER", help="copies of the model (default 1)", **_PANEL)
]
NumCpusOption = Annotated[
    float | None,
    typer.Option("--num-cpus", metavar="NUMBER", help="CPUs of each copy of the model (default 1)", **_PANEL),
]
NumGpusOption = Annotated[
    float | None,
    typer.Option("--num-gpus", metavar="NUMBER", help="GPUs of each copy of the model (default 0)", **_PANEL),
]


def given_for_ray(ray: bool, **options: Any) -> Mapping[str, Any] | None:
    """The options of a cluster that were given; None where the command runs without one.

    `address` alone asks for a cluster. Raises ParamsError for any other without --ray.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if ray or "address" in given:
        return given
    for name in given:
        raise ParamsError(f"--{name.replace('_', '-')} must come with --ray")
    return None
