"""`tirage models`: the list of bundled models."""

from __future__ import annotations


def models() -> None:
    """List the models that come with tirage."""
    from tirage.models import bundled

    for name, description in bundled().items():
        print(f"{name}\t{description}")
