"""The values of `const` and `enum`, and all others."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

from tirage.guided.json_schema.document import Node
from tirage.guided.json_schema.intersections import intersection, union
from tirage.guided.json_schema.values import (
    ANYTHING,
    EVERYTHING,
    NEVER,
    Arrays,
    Booleans,
    Condition,
    Conditions,
    Members,
    Null,
    Numbers,
    Objects,
    Strings,
    Values,
    ValueSet,
)


def constants(values: list[Any], node: Node) -> ValueSet:
    """The set of some values, which stand at a node."""
    found: dict[str, tuple[Values, ...]] = {}
    by_type: dict[str, list[Any]] = {}
    for value in values:
        by_type.setdefault(type_of(value), []).append(value)
    for kind, each in by_type.items():
        match kind:
            case "null":
                found[kind] = (Null(),)
            case "boolean":
                found[kind] = (Booleans(frozenset(each)),)
            case "number":
                found[kind] = (Numbers(values=tuple(dict.fromkeys(map(exact, each))), path=node.path),)
            case "string":
                found[kind] = (Strings(values=tuple(dict.fromkeys(each)), path=node.path),)
            case "array":
                found[kind] = tuple(constant_array(value, node) for value in each)
            case _:
                found[kind] = tuple(constant_object(value, node) for value in each)
    return found


def other_values(values: list[Any], node: Node) -> ValueSet:
    """All values but these, which stand at a node."""
    found: ValueSet = EVERYTHING
    for value in values:
        found = intersection(found, other_than(value, node))
    return found


def other_than(value: Any, node: Node) -> ValueSet:
    """All values but one."""
    kind = type_of(value)
    rest = {each: sets for each, sets in EVERYTHING.items() if each != kind}
    match kind:
        case "null":
            return rest
        case "boolean":
            return rest | {kind: (Booleans(frozenset({not value})),)}
        case "number":
            return rest | {kind: (Numbers(not_values=(exact(value),), path=node.path),)}
        case "string":
            return rest | {kind: (Strings(not_values=(value,), path=node.path),)}
        case "array":
            return union([rest, {kind: other_arrays(value, node)}])
    return union([rest, {kind: other_objects(value, node)}])


def type_of(value: Any) -> str:
    """The JSON type of a value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object" if isinstance(value, dict) else "number"


def exact(value: float | Decimal) -> int | Decimal:
    """A number without a needless fraction."""
    if isinstance(value, float):
        value = Decimal(repr(value))
    return int(value) if value == int(value) else value


def constant(value: Any, node: Node, *, holds: bool = True) -> Conditions:
    """That a value is this one, or is not."""
    return frozenset({Condition(Node(node.path, node.draft, node.base, {"const": value}), holds)})


def constant_array(value: list[Any], node: Node) -> Arrays:
    """The set of one array."""
    items = tuple(constant(each, node) for each in value)
    return Arrays(prefix=items, low=len(value), high=len(value), path=node.path)


def constant_object(value: dict[str, Any], node: Node) -> Objects:
    """The set of one object, its members in their order."""
    named = {name: constant(each, node) for name, each in value.items()}
    members = Members(named=named, others=NEVER, evaluates=False)
    return Objects(members=(members,), required=tuple(value), path=node.path)


def other_arrays(value: list[Any], node: Node) -> tuple[Arrays, ...]:
    """All arrays but one."""
    shorter = (Arrays(high=len(value) - 1, path=node.path),) if value else ()
    different = (
        Arrays(prefix=(*[ANYTHING] * i, constant(each, node, holds=False)), low=i + 1, path=node.path)
        for i, each in enumerate(value)
    )
    return (*shorter, Arrays(low=len(value) + 1, path=node.path), *different)


def other_objects(value: dict[str, Any], node: Node) -> tuple[Objects, ...]:
    """All objects but one."""
    more = Objects(some=(unlisted(tuple(value), node),), path=node.path)
    missing = (without(name, node) for name in value)
    different = (
        Objects(
            members=(Members({name: constant(each, node, holds=False)}, evaluates=False),),
            required=(name,),
            path=node.path,
        )
        for name, each in value.items()
    )
    return (more, *missing, *different)


def without(name: str, node: Node) -> Objects:
    """The objects without a member of that name."""
    return Objects(members=(Members({name: NEVER}, evaluates=False),), path=node.path)


def unlisted(names: tuple[str, ...], node: Node) -> Conditions:
    """That a name is none of these."""
    if not names:
        return ANYTHING
    return frozenset({Condition(Node(node.path, node.draft, node.base, {"enum": list(names)}), holds=False)})
