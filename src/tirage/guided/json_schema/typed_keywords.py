"""What the keywords of one type say of its values: the values that satisfy them all, and those that break one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any

from tirage.errors import GrammarError
from tirage.guided.json_schema.constants import exact, unlisted, without
from tirage.guided.json_schema.document import OF_TYPE, Node
from tirage.guided.json_schema.formats import format_expression
from tirage.guided.json_schema.number_sets import common_numbers
from tirage.guided.json_schema.places import Path, refusal
from tirage.guided.json_schema.values import (
    ANYTHING,
    EVERYTHING,
    NEVER,
    Arrays,
    Condition,
    Conditions,
    Contained,
    Members,
    NumberBound,
    Numbers,
    Objects,
    RefusedValues,
    Strings,
    Values,
    ValueSet,
)
from tirage.guided.regular.ecma_regex import read_ecma
from tirage.guided.regular.expression import Expression

INTEGERS = Numbers(kind="integer")
_NOT = "cannot be enforced inside of not, or beside an alternative of oneOf that it does not exclude"


def typed_values(node: Node) -> ValueSet:
    """The values of each type that satisfy the keywords of that type, and `type` itself."""
    keys = node.keywords or {}
    types = keys.get("type")
    if isinstance(types, str):
        whole = types == "integer"
        kind = "number" if whole else types
        own = BY_TYPE.get(kind)
        if own is None or own.isdisjoint(keys):
            return {kind: (INTEGERS,) if whole else EVERYTHING[kind]}
        one = described(kind, keys, node, whole=whole)
        return {} if one is None else {kind: (one,)}
    names = EVERYTHING if types is None else types
    kinds = [kind for kind in EVERYTHING if kind in names or (kind == "number" and "integer" in names)]
    found = typed(kinds, keys, node, whole="number" not in names)
    return EVERYTHING if all(found.get(kind) is each for kind, each in EVERYTHING.items()) else found


def typed(kinds: Iterable[str], keys: dict[str, Any], node: Node, *, whole: bool) -> ValueSet:
    """The values of some types that satisfy the keywords of these types; of numbers the `whole` ones, if asked for."""
    found: dict[str, tuple[Values, ...]] = {}
    for kind in kinds:
        own = BY_TYPE.get(kind)
        if own is None or own.isdisjoint(keys):
            found[kind] = (INTEGERS,) if whole and kind == "number" else EVERYTHING[kind]
        elif (one := described(kind, keys, node, whole=whole)) is not None:
            found[kind] = (one,)
    return found


def described(kind: str, keys: dict[str, Any], node: Node, *, whole: bool) -> Values | None:
    """The values of one type that satisfy the keywords of that type, some of which are there; None for no value."""
    try:
        match kind:
            case "object":
                return objects(keys, node)
            case "string":
                return strings(keys, node)
            case "array":
                return arrays(keys, node)
            case _:
                return common_numbers(numbers(keys, node, whole=whole), Numbers())
    except GrammarError as error:
        return RefusedValues(error)


BY_TYPE: dict[str, frozenset[str]] = {
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "array": frozenset({
        "items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains", "maxContains"
    }),
    "object": frozenset({
        "properties", "patternProperties", "additionalProperties", "required", "minProperties", "maxProperties",
        "propertyNames",
    }),
}  # fmt: skip
"""The keywords of each type."""


def holds(node: Node) -> Conditions:
    """That a value satisfies a schema."""
    found: Conditions | None = node.memo
    if found is None:
        found = NEVER if node.keywords is None else ANYTHING
        if node.keywords:
            found = frozenset((Condition(node, True),))
        node.memo = found
    return found


VALUES_OF_TYPE: dict[Conditions, ValueSet] = {holds(node): typed_values(node) for node in OF_TYPE.values()}
"""The values of schemas of just one type."""


def fails(node: Node) -> Conditions:
    """That a value does not satisfy a schema."""
    if node.keywords is None:
        return ANYTHING
    return frozenset({Condition(node, holds=False)}) if node.keywords else NEVER


def opposite(conditions: Conditions) -> list[Conditions]:
    """Sets of conditions of which one is true exactly where these are not all."""
    return [frozenset({Condition(node, not is_true)}) for node, is_true in conditions]


# --- numbers ----------------------------------------------------------------------------------------------------------


def bounds(keys: dict[str, Any]) -> tuple[list[NumberBound], list[NumberBound]]:
    """The lower and the upper bounds; draft 4's `exclusiveMinimum: true` opens the bound beside it."""
    found: tuple[list[NumberBound], list[NumberBound]] = ([], [])
    for side, key, exclusive in (
        (found[0], "minimum", "exclusiveMinimum"),
        (found[1], "maximum", "exclusiveMaximum"),
    ):
        also = keys.get(exclusive)
        if key in keys:
            side.append(NumberBound(exact(keys[key]), also is True))
        if also is not None and not isinstance(also, bool):
            side.append(NumberBound(exact(also), is_open=True))
    return found


def numbers(keys: dict[str, Any], node: Node, *, whole: bool) -> Numbers:
    """The numbers that satisfy the keywords of numbers."""
    lows, highs = bounds(keys)
    return Numbers(
        kind="integer" if whole else "number",
        low=max(lows, default=None),
        high=min(highs, key=lambda bound: (bound.value, not bound.is_open), default=None),
        multiples=(exact(keys["multipleOf"]),) if "multipleOf" in keys else (),
        path=node.path,
    )


def other_numbers(keys: dict[str, Any], node: Node) -> Iterator[Numbers]:
    """The numbers that break a keyword of numbers, by keyword."""
    lows, highs = bounds(keys)
    for low in lows:
        yield Numbers(high=NumberBound(low.value, not low.is_open), path=node.path)
    for high in highs:
        yield Numbers(low=NumberBound(high.value, not high.is_open), path=node.path)
    if "multipleOf" in keys:
        yield Numbers(not_multiples=(exact(keys["multipleOf"]),), path=node.path)


# --- strings ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def known_pattern(pattern: str) -> Expression:
    """The strings in which a pattern is found; raises GrammarError as `read_ecma` does."""
    return read_ecma(pattern)


def pattern_of(pattern: str, path: tuple[str | int, ...]) -> Expression:
    """The strings in which a pattern is found; GrammarError with the path for one that cannot be enforced."""
    try:
        return known_pattern(pattern)
    except GrammarError as error:
        reason = str(error).removeprefix("pattern ")
        raise refusal(path, f"is a pattern that cannot be enforced: it {reason}") from None


def string_patterns(keys: dict[str, Any], node: Node) -> tuple[Expression, ...]:
    """The expressions of `pattern` and of a `format` that restricts strings."""
    found = []
    if "pattern" in keys:
        found.append(pattern_of(keys["pattern"], (*node.path, "pattern")))
    if "format" in keys:
        found.append(format_expression(keys["format"]))
    return tuple(found)


def strings(keys: dict[str, Any], node: Node) -> Strings:
    """The strings that satisfy the keywords of strings."""
    high = keys.get("maxLength")
    return Strings(
        low=int(keys.get("minLength", 0)),
        high=None if high is None else int(high),
        patterns=string_patterns(keys, node),
        path=node.path,
    )


def other_strings(keys: dict[str, Any], node: Node) -> Iterator[Values]:
    """The strings that break a keyword of strings, by keyword."""
    if keys.get("minLength", 0) > 0:
        yield Strings(high=int(keys["minLength"]) - 1, path=node.path)
    if "maxLength" in keys:
        yield Strings(low=int(keys["maxLength"]) + 1, path=node.path)
    for pattern in string_patterns(keys, node):
        yield Strings(not_patterns=(pattern,), path=node.path)


# --- arrays -----------------------------------------------------------------------------------------------------------


def places(keys: dict[str, Any]) -> tuple[tuple[Node, ...], Node | None]:
    """The schemas of the first items, and that of all others."""
    first, rest = keys.get("prefixItems"), keys.get("items")
    if isinstance(rest, tuple):
        return first or rest, keys.get("additionalItems")
    return first or (), rest


def contained(keys: dict[str, Any]) -> Contained | None:
    """What `contains` asks for; None for nothing."""
    if "contains" not in keys:
        return None
    high = keys.get("maxContains")
    return Contained(holds(keys["contains"]), int(keys.get("minContains", 1)), None if high is None else int(high))


def arrays(keys: dict[str, Any], node: Node) -> Arrays:
    """The arrays that satisfy the keywords of arrays."""
    first, rest = places(keys)
    inner, high = contained(keys), keys.get("maxItems")
    if inner and inner.high is not None and inner.low > inner.high:
        high = -1
    return Arrays(
        prefix=tuple(map(holds, first)),
        rest=ANYTHING if rest is None else holds(rest),
        low=int(keys.get("minItems", 0)),
        high=None if high is None else int(high),
        contained=() if inner is None or (inner.low == 0 and inner.high is None) else (inner,),
        unique=keys.get("uniqueItems", False),
        evaluated=len(first) if rest is None else None,
        path=node.path,
    )


def other_arrays(keys: dict[str, Any], node: Node) -> Iterator[Values]:
    """The arrays that break a keyword of arrays, by keyword."""
    path, (first, rest), inner = node.path, places(keys), contained(keys)
    if keys.get("minItems", 0) > 0:
        yield Arrays(high=int(keys["minItems"]) - 1, path=path)
    if "maxItems" in keys:
        yield Arrays(low=int(keys["maxItems"]) + 1, path=path)
    for i, item in enumerate(first):
        yield Arrays(prefix=(*[ANYTHING] * i, fails(item)), low=i + 1, path=path)
    if rest is not None and rest.keywords is None:
        yield Arrays(low=len(first) + 1, path=path)
    elif rest is not None and not first:
        yield Arrays(contained=(Contained(fails(rest), 1, None),), path=path)
    elif rest is not None:
        key = "additionalItems" if isinstance(keys["items"], tuple) else "items"
        yield RefusedValues(refusal((*path, key), _NOT))
    if inner and inner.low > 0:
        yield Arrays(contained=(Contained(inner.conditions, 0, inner.low - 1),), path=path)
    if inner and inner.high is not None:
        yield Arrays(contained=(Contained(inner.conditions, inner.high + 1, None),), path=path)
    if keys.get("uniqueItems"):
        yield RefusedValues(refusal((*path, "uniqueItems"), _NOT))


# --- objects ----------------------------------------------------------------------------------------------------------


_MEMBERS = frozenset({"properties", "patternProperties", "additionalProperties"})


def members(keys: dict[str, Any], node: Node) -> Members:
    """What the keywords say of the members of objects, by name."""
    others = keys.get("additionalProperties")
    patterns: list[tuple[Expression, Conditions]] = []
    for pattern, inner in keys.get("patternProperties", {}).items():
        patterns.append((pattern_of(pattern, (*node.path, "patternProperties", pattern)), holds(inner)))
    named: dict[str, Conditions] = {}
    for name, inner in keys.get("properties", {}).items():
        named[name] = holds(inner) if inner.memo is None else inner.memo
    return Members(
        named=named,
        patterns=tuple(patterns),
        others=ANYTHING if others is None else holds(others),
        evaluates_all=others is not None,
    )


def objects(keys: dict[str, Any], node: Node) -> Objects:
    """The objects that satisfy the keywords of objects."""
    high = keys.get("maxProperties")
    required = keys.get("required", ())
    return Objects(
        members=() if _MEMBERS.isdisjoint(keys) else (members(keys, node),),
        required=tuple(dict.fromkeys(required)),
        names=holds(keys["propertyNames"]) if "propertyNames" in keys else ANYTHING,
        low=int(keys.get("minProperties", 0)),
        high=None if high is None else int(high),
        path=node.path,
    )


def other_objects(keys: dict[str, Any], node: Node) -> Iterator[Values]:
    """The objects that break a keyword of objects, by keyword."""
    path = node.path
    for name in keys.get("required", ()):
        yield without(name, node)
    for name, inner in keys.get("properties", {}).items():
        yield Objects(members=(Members({name: fails(inner)}, evaluates=False),), required=(name,), path=path)
    if keys.get("minProperties", 0) > 0:
        yield Objects(high=int(keys["minProperties"]) - 1, path=path)
    if "maxProperties" in keys:
        yield Objects(low=int(keys["maxProperties"]) + 1, path=path)
    if "propertyNames" in keys:
        yield Objects(some=(fails(keys["propertyNames"]),), path=path)
    # A name may come twice, and the last one counts: only what holds of the name itself is certain.
    patterns = keys.get("patternProperties", {})
    for pattern, inner in patterns.items():
        at = (*path, "patternProperties", pattern)
        yield from other_members(matching(pattern, node, is_true=True), inner, node, at)
    others = keys.get("additionalProperties")
    if others is not None:
        named = unlisted(tuple(keys.get("properties", ())), node)
        unmatched = (matching(pattern, node, is_true=False) for pattern in patterns)
        yield from other_members(named.union(*unmatched), others, node, (*path, "additionalProperties"))


def matching(pattern: str, node: Node, *, is_true: bool) -> Conditions:
    """That a name matches a pattern, or does not."""
    path = (*node.path, "patternProperties")
    return frozenset({Condition(Node(path, node.draft, node.base, {"pattern": pattern}), is_true)})


def other_members(names: Conditions, inner: Node, node: Node, at: Path) -> Iterator[Values]:
    """The objects with a member of one of the names whose value breaks the schema at a place."""
    if inner.keywords is None:
        yield Objects(some=(names,), path=node.path)
    elif inner.keywords:
        yield RefusedValues(refusal(at, _NOT))


# --- not --------------------------------------------------------------------------------------------------------------


def broken(node: Node) -> list[ValueSet]:
    """The values that break the keywords of a type, or `type` itself."""
    keys = node.keywords or {}
    types = keys.get("type")
    names = EVERYTHING if types is None else [types] if isinstance(types, str) else types
    found: list[ValueSet] = [{
        kind: everything
        for kind, everything in EVERYTHING.items()
        if kind not in names and not (kind == "number" and "integer" in names)
    }]  # fmt: skip
    if "integer" in names and "number" not in names:
        found.append({"number": (Numbers(kind="fraction", path=node.path),)})
    for kind, each in (
        ("number", other_numbers), ("string", other_strings), ("array", other_arrays), ("object", other_objects)
    ):  # fmt: skip
        if not BY_TYPE[kind].isdisjoint(keys):
            try:
                found.append({kind: tuple(each(keys, node))})
            except GrammarError as error:
                found.append({kind: (RefusedValues(error),)})
    return [each for each in found if each]
