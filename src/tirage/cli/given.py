"""What a command is given: options that exclude each other, and its standard input."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

from tirage.errors import ParamsError

MOST_CHARACTERS = 1 << 28
"""The longest text of a file that an option names: a device such as /dev/zero has no end."""


def check_alone(given: Mapping[str, bool]) -> None:
    """Raises ParamsError where two of the options are given, which ask for different things."""
    names = [name for name, is_given in given.items() if is_given]
    if len(names) > 1:
        raise ParamsError(f"{names[0]} must not go with {names[1]}; give one")


def check_left_out(because: str, **options: Any) -> None:
    """Raises ParamsError for the first of the options that is given, which would have no effect."""
    for name, value in options.items():
        if value is not None and value is not False and value not in ("", []):
            raise ParamsError(f"--{name.replace('_', '-')} must be left out {because}")


def check_files(files: Mapping[str, Path | None]) -> None:
    """Raises ParamsError for a file, by its option, that cannot be written; None is one that was not asked for."""
    for option, file in files.items():
        if file is not None and file.is_dir():
            raise ParamsError(f"{option} must be a file, got the folder {str(file)!r}; give it a name")
        if file is not None and not file.parent.is_dir():
            raise ParamsError(f"{option} must be in a folder that exists, got {str(file)!r}; make the folder first")


def read_file(path: Path) -> str:
    """The text of a file or pipe. Raises OSError and UnicodeDecodeError, and ParamsError for one that does not end."""
    with path.open(encoding="utf-8") as file:
        found = file.read(MOST_CHARACTERS + 1)
    if len(found) > MOST_CHARACTERS:
        raise ParamsError(f"{path} must hold at most {MOST_CHARACTERS} characters, got more; is it the right file?")
    return found


def stdin_for(wanted: str) -> TextIO:
    """The standard input, from which `wanted` comes. Raises ParamsError where it is closed, as a daemon has it."""
    if sys.stdin is None:
        raise ParamsError(f"stdin must be open for {wanted}, got a closed one; give it input")
    return sys.stdin


def read_prompt(prompt: str) -> str:
    """The prompt, or for - the text on stdin. Raises ParamsError where that is closed or no text."""
    if prompt != "-":
        return prompt
    source = stdin_for("PROMPT -")
    try:
        return source.read()
    except UnicodeDecodeError as error:
        raise ParamsError(f"PROMPT must be text, got bytes on stdin that are not {error.encoding}") from None
