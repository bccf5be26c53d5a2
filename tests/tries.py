"""How many examples a property is tried on: a part of them in `make test`, all of them in `make exhaustive`."""

from __future__ import annotations

from hypothesis import settings

ALL, SOME = 100, 30
"""Examples of a property that asks for no number, in `make exhaustive` and in `make test`."""
FEWEST = 20
"""What is left in any case of a property that asks for as many."""


def tries(count: int = ALL) -> settings:
    """Settings for so many examples, of which `make test` tries the same part as of other properties."""
    return settings(max_examples=max(min(count, FEWEST), count * settings.default.max_examples // ALL))
