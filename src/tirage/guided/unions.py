"""Alternatives of which no value satisfies two, because a property tells them apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

Follow = Callable[[dict[str, Any]], Any]
"""The schema that a `$ref` of a schema points to."""
_LONGEST = 64


def told_apart(branches: Sequence[Any], follow: Follow) -> bool:
    """Whether a property that every branch requires has other constants in each: then `oneOf` means `anyOf`."""
    objects = [followed(branch, follow) for branch in branches]
    if not all(each.get("type") == "object" for each in objects):
        return False
    shared = set.intersection(*(set(each.get("required", ())) for each in objects))
    return any(is_discriminator([tags_of(each, name, follow) for each in objects]) for name in sorted(shared))


def followed(schema: Any, follow: Follow) -> dict[str, Any]:
    """The schema that stands behind references; an empty one where that is no object or takes too many steps."""
    for _ in range(_LONGEST):
        if not isinstance(schema, dict):
            return {}
        if "$ref" not in schema:
            return schema
        schema = follow(schema)
    return {}


def tags_of(schema: dict[str, Any], name: str, follow: Follow) -> set[str] | None:
    """The strings that a property of an object may be; None when there is no telling."""
    inner = followed(schema.get("properties", {}).get(name), follow)
    values = inner.get("enum", [inner["const"]] if "const" in inner else None)
    if values is None or not all(isinstance(value, str) for value in values):
        return None
    return set(values)


def is_discriminator(tags: Sequence[set[str] | None]) -> bool:
    """Whether the values of a property are known in every branch and in no two the same."""
    known = [each for each in tags if each is not None]
    return len(known) == len(tags) and sum(map(len, known)) == len(set[str]().union(*known))
