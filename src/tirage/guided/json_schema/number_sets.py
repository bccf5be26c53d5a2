"""Arithmetic of sets of numbers: what two have in common, and whether that is nothing."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

from tirage.guided.json_schema.values import NumberBound, Numbers

_FEW = 64


def common_numbers(one: Numbers, other: Numbers) -> Numbers | None:
    """The numbers in both sets; None if there are none, as far as bounds, multiples and constants tell."""
    if {one.kind, other.kind} == {"integer", "fraction"}:
        return None
    merged = Numbers(
        kind=other.kind if one.kind == "number" else one.kind,
        low=tighter(one.low, other.low, 1),
        high=tighter(one.high, other.high, -1),
        multiples=one.multiples + other.multiples,
        not_multiples=one.not_multiples + other.not_multiples,
        values=one.values if other.values is None else other.values,
        not_values=one.not_values + other.not_values,
        path=one.path or other.path,
    )
    if merged.values is not None:
        left = tuple(value for value in merged.values if is_among(value, one) and is_among(value, other))
        return Numbers(values=left, path=merged.path) if left else None
    if is_contradictory(merged):
        return None
    if merged.low and merged.high:
        return between(merged, merged.low, merged.high)
    return merged


def is_contradictory(numbers: Numbers) -> bool:
    """Whether the multiples of a set of numbers exclude each other."""
    if numbers.kind == "fraction" and any(Fraction(each).denominator == 1 for each in numbers.multiples):
        return True
    whole = (1,) if numbers.kind == "integer" else ()
    return any(Fraction(a) % Fraction(b) == 0 for a in (*numbers.multiples, *whole) for b in numbers.not_multiples)


def between(numbers: Numbers, low: NumberBound, high: NumberBound) -> Numbers | None:
    """Numbers with two bounds; a few of them as constants, None if there are none."""
    if low.value > high.value or (low.value == high.value and (low.is_open or high.is_open)):
        return None
    if low.value == high.value:
        return Numbers(values=(low.value,), path=numbers.path) if is_among(low.value, numbers) else None
    steps = [Fraction(each) for each in numbers.multiples] + [Fraction(1)] * (numbers.kind == "integer")
    if steps:
        step = max(steps)
        first, last = -(-Fraction(low.value) // step), Fraction(high.value) // step
        if last - first < _FEW and (numbers.not_values or numbers.not_multiples or len(steps) > 1 or last <= first):
            found = (decimal_of(step * k) for k in range(first, last + 1))
            values = tuple(value for value in found if is_among(value, numbers))
            return Numbers(values=values, path=numbers.path) if values else None
    return numbers


def decimal_of(value: Fraction) -> int | Decimal:
    """A fraction whose decimal notation ends, exactly."""
    if value.denominator == 1:
        return value.numerator
    twos = fives = 0
    denominator = value.denominator
    while denominator % 2 == 0:
        denominator, twos = denominator // 2, twos + 1
    while denominator % 5 == 0:
        denominator, fives = denominator // 5, fives + 1
    places = max(twos, fives)
    return Decimal(value.numerator * 10**places // value.denominator).scaleb(-places)


def is_among(value: int | Decimal, numbers: Numbers) -> bool:
    """Whether a number is in a set of numbers."""
    exact = Fraction(value)
    return (
        (numbers.kind == "number" or (numbers.kind == "integer") == (exact.denominator == 1))
        and (
            numbers.low is None or value > numbers.low.value or (value == numbers.low.value and not numbers.low.is_open)
        )
        and (
            numbers.high is None
            or value < numbers.high.value
            or (value == numbers.high.value and not numbers.high.is_open)
        )
        and all(exact % Fraction(each) == 0 for each in numbers.multiples)
        and all(exact % Fraction(each) != 0 for each in numbers.not_multiples)
        and (numbers.values is None or value in numbers.values)
        and value not in numbers.not_values
    )


def tighter(one: NumberBound | None, other: NumberBound | None, sign: int) -> NumberBound | None:
    """The bound that leaves less, of two low ones (`sign` 1) or two high ones (-1)."""
    if one is None or other is None:
        return one or other
    return max(one, other, key=lambda bound: (sign * bound.value, bound.is_open))
