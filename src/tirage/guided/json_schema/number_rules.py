"""Sets of numbers as terminals, and as rules where multiples take many states."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from math import lcm

from tirage.errors import GrammarError
from tirage.guided.json_schema.json_multiples import multiples
from tirage.guided.json_schema.json_numbers import constant, integers, numbers, spellings
from tirage.guided.json_schema.json_tokens import ANY_INTEGER, ANY_NUMBER
from tirage.guided.json_schema.number_sets import decimal_of
from tirage.guided.json_schema.places import fail
from tirage.guided.json_schema.values import NumberBound, Numbers
from tirage.guided.regular.expression import (
    DIGIT,
    NOTHING,
    Alternatives,
    Chars,
    Complement,
    Expression,
    LiteralText,
    Repeat,
    RuleReference,
    Sequence,
    Terminal,
    choice,
    intersection,
    sequence,
)

Add = Callable[[str, Expression], RuleReference]
_INTEGER, _NUMBER = Numbers(kind="integer"), Numbers()
_MINUS, _DIGITS = Repeat(LiteralText("-"), 0, 1), Repeat(Chars(DIGIT), 1, None)
_WHOLE = sequence([_MINUS, _DIGITS, Repeat(sequence([LiteralText("."), Repeat(LiteralText("0"), 1, None)]), 0, 1)])
"""Every spelling of an integer, and others."""


def number_expression(one: Numbers, name: str, add: Add) -> Expression:
    """A set of numbers as a terminal, or as rules whose names begin with `name`.

    Raises GrammarError with the path for multiples that cannot be enforced.
    """
    if one in (_NUMBER, _INTEGER):
        return ANY_NUMBER if one == _NUMBER else ANY_INTEGER
    if one.values is not None:
        return Terminal(choice([constant(value) for value in one.values]))
    try:
        return bounded(one, name, add)
    except GrammarError as error:
        fail(one.path, f"cannot be enforced: {error}")


def bounded(one: Numbers, name: str, add: Add) -> Expression:
    """The numbers of a set that is no list of values; those that leave some out have no exponents."""
    excluded = [spellings(value) for value in one.not_values]
    excluded += [_WHOLE] if one.kind == "fraction" else []
    excluded += [single(multiples(each, range_of(one, plain=True))) for each in one.not_multiples]
    within = range_of(one, plain=bool(excluded or one.multiples))
    if one.multiples:
        rules = multiples(least_common(one.multiples), within)
        if len(rules) > 1 and not excluded:
            return added(rules, name, add)
        within = single(rules)
    found = intersection([within, *map(Complement, excluded)])
    return Terminal(found) if found != NOTHING else NOTHING


def range_of(one: Numbers, *, plain: bool) -> Expression:
    """The numbers between the bounds of a set; `plain` ones have no exponents."""
    low, high = one.low, one.high
    if one.kind == "integer":
        return integers(whole_bound(low, 1), whole_bound(high, -1))
    return numbers(
        low.value if low else None,
        high.value if high else None,
        open_low=low is not None and low.is_open,
        open_high=high is not None and high.is_open,
        exponents=not plain,
    )


def single(rules: dict[str, Expression]) -> Expression:
    """The only rule of multiples; GrammarError if they take several."""
    if len(rules) > 1:
        raise GrammarError("multipleOf must be a rounder number where other numbers are left out")
    [only] = rules.values()
    return only


def added(rules: dict[str, Expression], name: str, add: Add) -> RuleReference:
    """A reference to the first of several rules over characters, added under names that begin with `name`."""
    for inner, node in rules.items():
        add(f"{name}_{inner}", by_characters(node, name))
    return RuleReference(f"{name}_{next(iter(rules))}")


def by_characters(node: Expression, name: str) -> Expression:
    """The expression with a terminal for each character, and references to rules whose names begin with `name`."""
    match node:
        case RuleReference(inner):
            return RuleReference(f"{name}_{inner}")
        case Sequence(parts):
            return Sequence(tuple(by_characters(part, name) for part in parts))
        case Alternatives(parts):
            return Alternatives(tuple(by_characters(part, name) for part in parts))
        case Repeat(part, low, high):
            return Repeat(by_characters(part, name), low, high)
    return Terminal(node)


def least_common(each: tuple[int | Decimal, ...]) -> int | Decimal:
    """The least number that is a multiple of all."""
    found = Fraction(each[0])
    for value in map(Fraction, each[1:]):
        both = lcm(found.numerator * value.denominator, value.numerator * found.denominator)
        found = Fraction(both, found.denominator * value.denominator)
    return decimal_of(found)


def whole_bound(bound: NumberBound | None, sign: int) -> int | None:
    """The first integer that a lower (`sign` 1) or upper (-1) bound allows."""
    if bound is None:
        return None
    value = int(bound.value)
    if value == bound.value:
        return value + sign if bound.is_open else value
    return value + 1 if sign == 1 and bound.value > 0 else value - 1 if sign == -1 and bound.value < 0 else value
