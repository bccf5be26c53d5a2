"""Sets of characters as sorted, disjoint ranges of code points."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

Ranges = tuple[tuple[int, int], ...]
LAST = 0x10FFFF
_NEVER_FIRST = (1 << 0xC2) - (1 << 0x80)
# Surrogates are not characters: UTF-8 cannot encode them.
_HOLE = (0xD800, 0xDFFF)
EVERY: Ranges = ((0, _HOLE[0] - 1), (_HOLE[1] + 1, LAST))


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """The same characters as sorted ranges that neither overlap nor touch; surrogates are dropped."""
    out: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if out and low <= out[-1][1] + 1:
            out[-1] = out[-1][0], max(out[-1][1], high)
        else:
            out.append((low, high))
    return tuple(out) if not out or out[-1][1] < _HOLE[0] else common(tuple(out), EVERY)


def common(one: Ranges, other: Ranges) -> Ranges:
    """The characters that are in both sets."""
    pairs = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple(sorted((low, high) for low, high in pairs if low <= high))


def complement(ranges: Ranges) -> Ranges:
    """Every character that is not in the set."""
    out, start = [], 0
    for low, high in merged(ranges):
        if low > start:
            out.append((start, low - 1))
        start = high + 1
    if start <= LAST:
        out.append((start, LAST))
    return common(tuple(out), EVERY)


def fold_ascii(ranges: Ranges) -> Ranges:
    """The set with the other case of each of its ASCII letters."""
    letters = [point for point in (*range(65, 91), *range(97, 123)) if holds(ranges, point)]
    return merged([*ranges, *((point ^ 32, point ^ 32) for point in letters)])


def holds(ranges: Ranges, point: int) -> bool:
    """Whether the set has this character."""
    return any(low <= point <= high for low, high in ranges)


@lru_cache(maxsize=4096)
def first_bytes(ranges: Ranges) -> int:
    """The bytes that can begin a character of the set in UTF-8, as the bits of a 256-bit integer."""
    bits = 0
    for low, high in ranges:
        for byte in range(first_byte(low), first_byte(high) + 1):
            bits |= 1 << byte
    return bits & ~_NEVER_FIRST


def first_byte(point: int) -> int:
    """The first byte of a character in UTF-8."""
    if point < 0x80:
        return point
    if point < 0x800:
        return 0xC0 | point >> 6
    return 0xE0 | point >> 12 if point < 0x10000 else 0xF0 | point >> 18
