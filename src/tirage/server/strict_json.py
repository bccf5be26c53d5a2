"""Strict JSON: from the bytes of a body to plain Python values, or a ParamsError that says what is wrong.

Python's own parser takes more than JSON (NaN, lone surrogates, repeated keys) and fails in more ways than one
(RecursionError for brackets, ValueError for long integers), so the body is checked first. Numbers are converted by
Python functions: other threads can run between two of them, so that a body of millions of numbers that is parsed in a
thread does not block the event loop.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from tirage.errors import ParamsError

MAX_DEPTH = 64
MAX_PARTS = 200_000
MAX_VALUES = 4_000_000
MAX_DIGITS = 4_300

# A string, or one character of structure. The closing quote is optional so that a string that never ends is read
# once and not once from each of its quotes; quantifiers are possessive, so nothing is tried twice.
_STRUCTURE = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?|([\[{\]},:])', re.DOTALL)
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Backslashes occur only in strings, so reading from left to right tells an escape from an escaped backslash.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|(u[dD][89a-fA-F][0-9a-fA-F]{2})|.)", re.DOTALL
)


def parse(body: bytes, *, depth: int = MAX_DEPTH) -> Any:
    """The value of a body of strict JSON: dict, list, str, int, float, bool or None. Raises ParamsError.

    Strict means: UTF-8 without a byte order mark, no NaN and no number beyond binary64, no lone surrogate, no key
    twice in an object, nothing after the value. At most `depth` brackets may be open at once; the digits of an
    integer, and the number of values (and of objects, arrays and keys, which take more memory), are limited by the
    constants above. Takes time and memory in proportion to the body.
    """
    check_structure(body, depth=depth)
    check_surrogates(body)
    try:
        return _DECODER.decode(decode(body))
    except json.JSONDecodeError as error:
        raise ParamsError(
            f"body must be valid JSON: {error.msg} at line {error.lineno}, column {error.colno}"
        ) from None


def parse_object(body: bytes, *, depth: int = MAX_DEPTH) -> dict[str, Any]:
    """The JSON object in a body; raises ParamsError for any other value."""
    value = parse(body, depth=depth)
    if not isinstance(value, dict):
        raise ParamsError(f"body must be a JSON object, got {_KINDS[type(value)]}")
    return value


def decode(body: bytes) -> str:
    """The body's text; raises ParamsError unless it is UTF-8 without a byte order mark."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ParamsError(f"body must be UTF-8, got byte 0x{body[error.start]:02x} at position {error.start}") from None
    if text.startswith("\ufeff"):
        raise ParamsError("body must be JSON, got a byte order mark at position 0; leave it out")
    return text


def check_structure(body: bytes, *, depth: int) -> None:
    """Raises ParamsError for brackets too deep or too many values, in at most one pass and without recursion."""
    opened = body.count(b"[") + body.count(b"{")
    if opened <= depth and body.count(b",") < MAX_VALUES and opened + body.count(b":") <= MAX_PARTS:
        return
    level = parts = commas = 0
    for match in _STRUCTURE.finditer(body):
        kind = match[1]
        if kind == b",":
            commas += 1
        elif kind:
            parts += kind in b"[{:"
            level += (kind in b"[{") - (kind in b"]}")
        if level > depth:
            _too_much(f"at most {depth} levels deep")
        if parts > MAX_PARTS or commas >= MAX_VALUES:
            _too_much(f"of at most {MAX_PARTS} objects, arrays and keys and {MAX_VALUES} values")


def check_surrogates(body: bytes) -> None:
    """Raises ParamsError for an escaped lone surrogate, which UTF-8 cannot encode."""
    if _SURROGATE.search(body) is None:
        return
    for match in _ESCAPE.finditer(body):
        if match.lastindex is not None:
            raise ParamsError(
                f"body must be text without lone surrogates, got \\{match[1].decode()} at position {match.start()}; "
                "write the character whole"
            )


def _too_much(rule: str) -> NoReturn:
    raise ParamsError(f"body must be JSON {rule}, got more; send less in one request")


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ParamsError(f"body must be JSON whose integers have at most {MAX_DIGITS} digits, got {len(digits)}")
    return int(digits)


def _float(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise ParamsError(f"body must be JSON whose numbers fit binary64, got {digits:.60}")
    return value


def _constant(name: str) -> NoReturn:
    raise ParamsError(f"body must be valid JSON, got {name}; use null or a finite number")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        keys: set[str] = set()
        twice = next(key for key, _ in pairs if key in keys or keys.add(key))
        raise ParamsError(f"body must be JSON whose objects name each key once, got {twice[:60]!r} twice")
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_object, parse_int=_integer, parse_float=_float, parse_constant=_constant)
_KINDS = {
    list: "an array", str: "a string", int: "a number", float: "a number", bool: "a boolean", type(None): "null",
}  # fmt: skip
