"""What two sets of JSON values have in common."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from tirage.guided.json_schema.number_sets import common_numbers
from tirage.guided.json_schema.places import refusal
from tirage.guided.json_schema.steps import Steps
from tirage.guided.json_schema.values import (
    EVERYTHING,
    Arrays,
    Booleans,
    Conditions,
    Null,
    Numbers,
    Objects,
    RefusedValues,
    Strings,
    Values,
    ValueSet,
)
from tirage.guided.regular.regular_language import LanguageError, matches

TOO_MUCH = "cannot be enforced: its pattern and its lengths are too much together; leave minLength and maxLength out"

_MOST_COMPARED = 2_000


def intersection(one: ValueSet, other: ValueSet, steps: Steps | None = None) -> ValueSet:
    """The values in both sets; raises StepsError when comparing them takes more than `steps`."""
    if one is EVERYTHING or other is EVERYTHING:
        return other if one is EVERYTHING else one
    found: dict[str, tuple[Values, ...]] = {}
    for kind in one:
        if kind in other:
            if steps is not None:
                steps.take(len(one[kind]) * len(other[kind]))
            values = tuple(dict.fromkeys(intersections(one[kind], other[kind])))
            if values:
                found[kind] = values
    return found


def intersections(one: tuple[Values, ...], other: tuple[Values, ...]) -> Iterator[Values]:
    """What any two of the sets of one type have in common."""
    for kind in EVERYTHING.values():
        if kind is one or kind is other:
            yield from other if kind is one else one
            return
    for a, b in product(one, other):
        both = common(a, b)
        if both is not None:
            yield both


def union(sets: list[ValueSet]) -> ValueSet:
    """The values in any of the sets."""
    if len(sets) == 1:
        return sets[0]
    found: dict[str, dict[Values, None]] = {}
    for one in sets:
        for kind, values in one.items():
            found.setdefault(kind, {}).update(dict.fromkeys(values))
    return {kind: tuple(values) for kind, values in found.items()}


def common(one: Values, other: Values) -> Values | None:
    """The values of one type that are in both sets; None if that is known to be none."""
    if isinstance(one, RefusedValues):
        return one
    match one, other:
        case _, RefusedValues():
            return other
        case Null(), Null():
            return one
        case Booleans(values), Booleans(others):
            return Booleans(values & others) if values & others else None
        case Numbers(), Numbers():
            return common_numbers(one, other)
        case Strings(), Strings():
            try:
                return common_strings(one, other)
            except LanguageError:
                return RefusedValues(refusal(one.path, TOO_MUCH))
        case Arrays(), Arrays():
            return common_arrays(one, other)
        case Objects(), Objects():
            return common_objects(one, other)
    raise TypeError("values of two types have nothing in common")


def common_strings(one: Strings, other: Strings) -> Strings | None:
    """The strings in both sets; None if there are none, as far as lengths and constants tell.

    Raises LanguageError where too many constants would have to be compared with a pattern.
    """
    low, high = max(one.low, other.low), lowest(one.high, other.high)
    if high is not None and low > high:
        return None
    values = one.values if other.values is None else other.values
    if values is not None:
        if len(values) > _MOST_COMPARED and (one.patterns or other.patterns):
            raise LanguageError("too many constants")
        left = tuple(value for value in values if is_among(value, one) and is_among(value, other))
        return Strings(values=left, path=one.path or other.path) if left else None
    return Strings(
        low=low,
        high=high,
        patterns=tuple(dict.fromkeys(one.patterns + other.patterns)),
        not_patterns=tuple(dict.fromkeys(one.not_patterns + other.not_patterns)),
        not_values=one.not_values + other.not_values,
        path=one.path or other.path,
    )


def is_among(text: str, strings: Strings) -> bool:
    """Whether a string is in a set of strings; raises LanguageError for patterns that are too large to follow."""
    return (
        len(text) >= strings.low
        and (strings.high is None or len(text) <= strings.high)
        and (strings.values is None or text in strings.values)
        and text not in strings.not_values
        and all(matches(each, text) for each in strings.patterns)
        and not any(matches(each, text) for each in strings.not_patterns)
    )


def common_arrays(one: Arrays, other: Arrays) -> Arrays | None:
    """The arrays in both sets; None if there are none, as far as their lengths tell."""
    low, high = max(one.low, other.low), lowest(one.high, other.high)
    if high is not None and low > high:
        return None
    places = range(max(len(one.prefix), len(other.prefix)))
    is_all = one.evaluated is None or other.evaluated is None
    return Arrays(
        prefix=tuple(item_at(one, i) | item_at(other, i) for i in places),
        rest=one.rest | other.rest,
        low=low,
        high=high,
        contained=tuple(dict.fromkeys(one.contained + other.contained)),
        unique=one.unique or other.unique,
        evaluated=None if is_all else max(one.evaluated or 0, other.evaluated or 0),
        path=one.path or other.path,
    )


def item_at(arrays: Arrays, place: int) -> Conditions:
    """What holds for the item at a place."""
    return arrays.prefix[place] if place < len(arrays.prefix) else arrays.rest


def common_objects(one: Objects, other: Objects) -> Objects | None:
    """The objects in both sets; None if there are none, as far as their sizes tell."""
    low, high = max(one.low, other.low), lowest(one.high, other.high)
    required = tuple(dict.fromkeys(one.required + other.required))
    if high is not None and max(low, len(required)) > high:
        return None
    return Objects(
        members=tuple(dict.fromkeys(one.members + other.members)),
        required=required,
        names=one.names | other.names,
        low=low,
        high=high,
        some=tuple(dict.fromkeys(one.some + other.some)),
        path=one.path or other.path,
    )


def lowest(one: int | None, other: int | None) -> int | None:
    """The lower of two upper bounds, None being none."""
    return min((each for each in (one, other) if each is not None), default=None)
