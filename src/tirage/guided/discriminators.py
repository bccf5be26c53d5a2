"""Schemas in `oneOf` that exclude each other because a property, the discriminator, differs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Resolve = Callable[[dict[str, Any]], Any]
"""Gives the schema that the `$ref` of a schema points to."""
_LONGEST = 64


def has_discriminator(branches: Sequence[Any], resolve: Resolve) -> bool:
    """Whether the branches have a discriminator: a required property with different constants in each.

    Then `oneOf` means the same as `anyOf`.
    """
    objects = [resolved(branch, resolve) for branch in branches]
    if not all(each.get("type") == "object" for each in objects):
        return False
    shared = set.intersection(*(set(each.get("required", ())) for each in objects))
    return any(is_discriminator([property_values(each, name, resolve) for each in objects]) for name in sorted(shared))


def resolved(schema: Any, resolve: Resolve) -> dict[str, Any]:
    """The schema that a chain of references leads to; an empty one if it is no object or the chain is too long."""
    for _ in range(_LONGEST):
        if not isinstance(schema, dict):
            return {}
        if "$ref" not in schema:
            return schema
        schema = resolve(schema)
    return {}


def property_values(schema: dict[str, Any], name: str, resolve: Resolve) -> set[str] | None:
    """The strings that a property may be by its `enum` or `const`; None when it is not so restricted."""
    inner = resolved(schema.get("properties", {}).get(name), resolve)
    values = inner.get("enum", [inner["const"]] if "const" in inner else None)
    if values is None or not all(isinstance(value, str) for value in values):
        return None
    return set(values)


def is_discriminator(tags: Sequence[set[str] | None]) -> bool:
    """Whether the values of a property are known in every branch and no value occurs in two."""
    known = [each for each in tags if each is not None]
    return len(known) == len(tags) and sum(map(len, known)) == len(set[str]().union(*known))
