"""Strict JSON in the text of a model: what an answer can hold and a client can send back.

Python's own reader takes more: NaN, lone surrogates, numbers that become infinite.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tirage.server.strict_json import MAX_DEPTH, check_structure


def read_value(text: str, at: int = 0) -> tuple[Any, int]:
    """The JSON value that begins at this place, and where it ends; ValueError for anything else."""
    try:
        return _DECODER.raw_decode(text, at)
    except RecursionError:
        raise ValueError("more brackets than can be read") from None


def read_text(text: str) -> Any:
    """The value of a JSON text; ValueError for anything else, and for a value that an answer cannot hold."""
    try:
        value = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("more brackets than can be read") from None
    write_text(value)
    return value


def write_text(value: Any) -> str:
    """The value as JSON; ValueError for infinite numbers, lone surrogates and brackets deeper than a body may have."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise ValueError("more brackets than can be written") from None
    check_structure(text.encode(), depth=MAX_DEPTH)
    return text


def arguments_of(value: Any) -> str | None:
    """The arguments of a call as JSON text, from an object or from a JSON text of one; None for anything else."""
    try:
        if not isinstance(value, str):
            return write_text(value) if isinstance(value, dict) else None
        value.encode()
        return value if isinstance(read_text(value), dict) else None
    except ValueError:
        return None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
