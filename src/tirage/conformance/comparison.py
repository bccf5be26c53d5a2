"""What differs between a program's answer and a vector: exact where the vector is exact."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tirage.conformance.vectors import Vector

TOLERANCE = 1e-6
"""How far an answer may be from a number that a vector has in decimal, which was worked out by hand."""


@dataclass(frozen=True, slots=True)
class WrongField:
    """A field of an answer that is not what the vector says."""

    field: str
    expected: Any
    got: Any

    def __str__(self) -> str:
        return f"{self.field} must be {_short(self.expected)}, got {_short(self.got)}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def differences(vector: Vector, answer: Mapping[str, Any]) -> tuple[WrongField, ...]:
    """The fields in which an answer differs from the vector; of those that it leaves out or has as null, none does.

    Of a row that cannot be drawn (`status` above 0) only status and token are looked at.
    """
    outcome = vector.outcome
    if outcome.get("status", 0):
        outcome = {name: outcome[name] for name in ("status", "token")}
    return tuple(
        WrongField(name, expected, answer[name])
        for name, expected in outcome.items()
        if answer.get(name) is not None and not _EQUAL[name](expected, answer[name])
    )


def compared(vector: Vector, answer: Mapping[str, Any]) -> tuple[str, ...]:
    """The fields of an answer that the vector knows."""
    return tuple(name for name in vector.outcome if answer.get(name) is not None)


def _integer(expected: Any, got: Any) -> bool:
    return isinstance(got, int) and not isinstance(got, bool) and got == expected


def _number(expected: Any, got: Any) -> bool:
    """Equal in every bit of binary32 to a number in hexadecimal; near to one in decimal, and 0 only where it is 0."""
    value = _float(got)
    if value is None:
        return False
    if isinstance(expected, str):
        return _word(value) == _word(float.fromhex(expected))
    return abs(value - expected) <= TOLERANCE and (value == 0) == (expected == 0)


def _float(value: Any) -> float | None:
    """The number that a JSON value stands for: a number, or text in decimal or hexadecimal."""
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        return None
    try:
        return float.fromhex(value) if "0x" in value.lower() else float(value)
    except (ValueError, OverflowError):
        return None


def _word(value: float) -> int:
    """The bits of the binary32 number nearest to `value`, one pattern for every NaN."""
    if math.isnan(value):
        return 0x7FC00000
    try:
        return struct.unpack("<I", struct.pack("<f", value))[0]
    except OverflowError:
        return 0x7F800000 if value > 0 else 0xFF800000


def _ids(expected: list[int], got: Any) -> bool:
    return isinstance(got, list) and len(got) == len(expected) and all(map(_integer, expected, _ordered(got)))


def _ordered(ids: list[Any]) -> list[Any]:
    return sorted(ids) if all(isinstance(one, int) for one in ids) else ids


def _weights(expected: Mapping[str, int], got: Any) -> bool:
    return (
        isinstance(got, Mapping)
        and got.keys() == expected.keys()
        and all(_integer(weight, got[token]) for token, weight in expected.items())
    )


def _numbers(expected: list[Any], got: Any) -> bool:
    return isinstance(got, list) and len(got) == len(expected) and all(map(_number, expected, got))


def _top(expected: list[Any], got: Any) -> bool:
    """Pairs of an id and a log-probability, in their order."""
    if not isinstance(got, list) or len(got) != len(expected):
        return False
    return all(
        isinstance(pair, list) and len(pair) == 2 and _integer(known[0], pair[0]) and _number(known[1], pair[1])
        for known, pair in zip(expected, got, strict=True)
    )


_EQUAL: Mapping[str, Callable[[Any, Any], bool]] = {
    "status": _integer,
    "token": _integer,
    "support": _ids,
    "weights": _weights,
    "W": _integer,
    "law": _numbers,
    "sampled_logprob": _number,
    "logprob": _number,
    "rank": _integer,
    "top": _top,
    "given": _numbers,
}
