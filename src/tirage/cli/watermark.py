"""Watermarks on the command line: as JSON, or in a file, so that the key stands in no list of processes."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tirage.cli.given import read_file
from tirage.errors import ParamsError

KEY_VARIABLE = "TIRAGE_WATERMARK_KEY"
"""The variable of the environment that may hold the key of a text's watermark."""


def parse_watermark(text: str) -> Any:
    """The value of JSON text, or of the file that `@PATH` names. Raises ParamsError, which does not show the text."""
    source = text
    if text.startswith("@"):
        try:
            source = read_file(Path(text[1:]).expanduser())
        except (OSError, UnicodeDecodeError) as error:
            raise ParamsError(f"watermark must be JSON or @FILE, got {text}, which cannot be read") from error
    try:
        return json.loads(source)
    except (ValueError, RecursionError):
        raise ParamsError('watermark must be JSON such as {"scheme": "gumbel", "key": ...}, or @FILE') from None


def read_key(text: str) -> int | list[int]:
    """The key in an option: an integer, decimal or with 0x, or several with commas; `@FILE` reads it from a file.

    Raises ParamsError, which does not show the text, for anything else.
    """
    if text.startswith("@"):
        try:
            text = read_file(Path(text[1:]).expanduser())
        except (OSError, UnicodeDecodeError) as error:
            raise ParamsError(f"key must be integers or @FILE, got {text}, which cannot be read") from error
    try:
        found = [int(part.strip(), 0) for part in text.strip().strip("[]").split(",")]
    except ValueError:
        raise ParamsError("key must be an integer, or for synthid several with commas, got other text") from None
    return found if len(found) > 1 else found[0]


def key_for(record: Mapping[str, Any]) -> int | list[int] | None:
    """The key of the environment for a record of a watermarked text; None for others, or where there is none."""
    found = os.environ.get(KEY_VARIABLE) if record["params"].get("watermark") else None
    return read_key(found) if found else None
