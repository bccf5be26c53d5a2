"""JSON text as values that keep every digit of a number."""

from __future__ import annotations

import json
import re
from decimal import Decimal
from typing import Any, NoReturn

from tirage.errors import GrammarError

_SURROGATE = re.compile(r"\\u[dD]|[\ud800-\udfff]")
_SPACE = " \t\n\r"
DEPTH = 64
"""Most levels of schemas inside each other."""


def has_surrogates(text: str) -> bool:
    """Whether a string in JSON text may hold a surrogate: one is there, or the escape of one."""
    is_plain = text.isascii() and "\\u" not in text
    return not is_plain and _SURROGATE.search(text) is not None


def parse_json(text: str, *, exact: bool = True) -> Any:
    """The value of JSON text; numbers with a fraction or an exponent are Decimals if `exact`, otherwise floats.

    Raises GrammarError, with line and column if known, for invalid JSON, a property named twice in one object, values
    nested too deeply, and integers of thousands of digits.
    """
    try:
        # As `decode` does it, whose patterns for whitespace take longer than this.
        value, end = (_EXACT if exact else _ROUNDED).raw_decode(text, len(text) - len(text.lstrip(_SPACE)))
        if rest := text[end:].lstrip(_SPACE):
            raise json.JSONDecodeError("Extra data", text, len(text) - len(rest))
        return value
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise GrammarError(f"schema must be valid JSON: {error.msg} ({where})", place=where) from None
    except RecursionError:
        raise GrammarError(f"schema must be nested at most {DEPTH} levels deep") from None
    except GrammarError:
        raise
    except ValueError:
        # Python reads no integer of more than 4300 digits.
        raise GrammarError("schema must hold no integer of thousands of digits; use a shorter one") from None


def _distinct(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise GrammarError(f"schema must not name a property twice in one object, got {name[:60]!r}")
            seen.add(name)
    return found


def _no_constant(name: str) -> NoReturn:
    raise GrammarError(f"schema must be valid JSON: {name} is not a JSON value")


_EXACT, _ROUNDED = (
    json.JSONDecoder(object_pairs_hook=_distinct, parse_constant=_no_constant, parse_float=number)
    for number in (Decimal, float)
)
