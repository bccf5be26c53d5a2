"""What a command is given: options that exclude each other, and its standard input."""

from __future__ import annotations

from collections.abc import Mapping

from tirage.errors import ParamsError


def check_alone(given: Mapping[str, bool]) -> None:
    """Raises ParamsError where two of the options are given, which ask for different things."""
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        raise ParamsError(f"{names[0]} must not go with {names[1]}; give one")
