"""JSON schemas: validated keyword by keyword, and normalised to draft 2020-12 for the compilers."""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tirage.errors import GrammarError, nearest
from tirage.guided.discriminators import Resolve, has_discriminator
from tirage.guided.schema_keywords import ANNOTATIONS, DRAFTS, ENFORCED, NOTED_FORMATS, REFUSED, is_number

NODES = 20_000
DEPTH = 64
# Keywords whose value is a schema, a list of schemas, or an object whose values are schemas.
_SINGLE = ("additionalProperties", "additionalItems", "items")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
Path = tuple[str | int, ...]


def read_schema(source: Mapping[str, Any] | str, *, closed: bool = False) -> str:
    """The schema as JSON text in the form of draft 2020-12, without annotations.

    `closed` forbids properties that are not named, in every object that the schema describes. Raises GrammarError with
    the path for invalid JSON, for a keyword that is unknown, cannot be enforced or has an invalid value, for a
    reference that leaves the schema or points nowhere, and for a cycle of references with nothing in between.
    """
    schema = parse_json(source) if isinstance(source, str) else source
    if isinstance(schema, bool):
        return "{}" if schema else fail((), "must allow some value, got false")
    if not isinstance(schema, dict):
        fail((), f"must be an object or true, got {show(schema)}")
    return json.dumps(SchemaReader(schema, closed).read(), ensure_ascii=False, separators=(",", ":"))


def parse_json(text: str) -> Any:
    """The value of JSON text.

    Raises GrammarError, with line and column if known, for invalid JSON, a property named twice in one object, values
    nested too deeply, and integers of thousands of digits.
    """
    try:
        return json.loads(text, object_pairs_hook=_distinct, parse_constant=_no_constant)
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
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise GrammarError(f"schema must not name a property twice in one object, got {name[:60]!r}")
        found[name] = value
    return found


def _no_constant(name: str) -> NoReturn:
    raise GrammarError(f"schema must be valid JSON: {name} is not a JSON value")


@dataclass(frozen=True, slots=True)
class Resource:
    """The schema resource that a schema belongs to.

    `draft` is the draft it is written in, 0 if none is named; `base` is the path of the nearest `$id`, from which
    references are resolved.
    """

    draft: int = 0
    base: Path = ()

    def of(self, schema: dict[str, Any], path: Path) -> Resource:
        """The resource of a schema inside this one, which may be an embedded document with its own `$schema` or `$id`.

        Raises GrammarError for a draft that is not supported and an `$id` that is no string.
        """
        draft, name = self.draft, schema.get("$id", "")
        if "$schema" in schema:
            draft = draft_of(schema["$schema"], (*path, "$schema"))
        if not isinstance(name, str):
            fail((*path, "$id"), f"must be a string, got {show(name)}")
        return Resource(draft, path if name and not name.startswith("#") else self.base)


def draft_of(name: Any, path: Path) -> int:
    """The draft that `$schema` names; GrammarError for one that is not supported."""
    bare = name.removeprefix("https://").removeprefix("http://").rstrip("#") if isinstance(name, str) else ""
    if bare not in DRAFTS:
        fail(path, f"must be draft 2020-12, 2019-09, 7 or 6, got {show(name)}")
    return DRAFTS[bare]


class SchemaReader:
    """Validates a schema and normalises it."""

    def __init__(self, schema: dict[str, Any], closed: bool) -> None:
        self._schema, self._closed, self._nodes = schema, closed, 0

    def read(self) -> dict[str, Any]:
        """The whole schema, normalised; raises GrammarError as `read_schema` does."""
        written = self._normalise(self._schema, (), Resource())
        if written is False:
            fail(("not",), "must leave some value over, got a schema that every value satisfies")
        places, resolve = check_references(written)
        check_bounds(written)
        for schema in places.values():
            if isinstance(schema, dict) and "oneOf" in schema and "anyOf" not in schema:
                self._replace_one_of(schema, resolve)
        return written

    def _replace_one_of(self, schema: dict[str, Any], resolve: Resolve) -> None:
        if has_discriminator(schema["oneOf"], resolve):
            schema["anyOf"] = schema.pop("oneOf")

    def _normalise(self, schema: Any, path: Path, around: Resource) -> Any:
        self._nodes += 1
        if self._nodes > NODES:
            fail(path, f"must hold at most {NODES} schemas")
        if len(path) > 2 * DEPTH:
            fail(path[: 2 * DEPTH], f"must be nested at most {DEPTH} levels deep")
        if isinstance(schema, bool):
            return schema
        here = around.of(schema, path)
        kept = simplified({key: value for key, value in schema.items() if not is_annotation(key)})
        if isinstance(kept, bool):
            return kept
        for key, value in kept.items():
            check_keyword(key, value, (*path, key))
        check_together(kept, path)
        if self._closed:
            close(kept, path)
        inner = {key: self._normalise_value(key, value, (*path, key), here) for key, value in kept.items()}
        return self._with_prefix_items(inner, path, here.draft)

    def _normalise_value(self, key: str, value: Any, path: Path, here: Resource) -> Any:
        """The value of a keyword, with the schemas inside it normalised."""
        if key in {"properties", "required"}:
            for name in value:
                check_spelling(name, path)
        if key in _MAPS:
            return {name: self._normalise(inner, (*path, name), here) for name, inner in value.items()}
        if key in _LISTS and isinstance(value, list):
            return [self._normalise(inner, (*path, i), here) for i, inner in enumerate(value)]
        if key == "$ref" and here.base and (value == "#" or value.startswith("#/")):
            return pointer(here.base) + value[1:]
        return self._normalise(value, path, here) if key in _SINGLE else value

    def _with_prefix_items(self, schema: dict[str, Any], path: Path, draft: int) -> dict[str, Any]:
        """The schema with tuples as draft 2020-12 writes them."""
        if draft in {6, 7} and "$ref" in schema and len(schema) > 1:
            others = sorted(set(schema) - {"$ref", "definitions", "$defs"})
            if others:
                fail((*path, others[0]), "must not stand beside $ref in this draft, which would ignore it; use allOf")
        rest = schema.pop("additionalItems", None)
        if isinstance(schema.get("items"), list):
            if draft == 2020 or "prefixItems" in schema:
                fail((*path, "items"), "must be one schema in draft 2020-12; use prefixItems")
            schema["prefixItems"] = schema.pop("items")
            if rest is not None:
                schema["items"] = rest
        elif rest is not None:
            fail((*path, "additionalItems"), "must go with a list of items, which is not there; leave it out")
        return schema


def is_annotation(key: str) -> bool:
    """Whether a keyword does not affect validation."""
    return key in ANNOTATIONS or key.startswith("x-")


def is_anything(schema: Any) -> bool:
    """Whether a schema accepts every value."""
    return schema is True or (isinstance(schema, dict) and all(map(is_annotation, schema)))


def simplified(schema: dict[str, Any]) -> dict[str, Any] | bool:
    """The schema without keywords that have no effect, and with others replaced by keywords that are enforced.

    Replaced are draft 4's `exclusiveMinimum: true`, `not` of everything (False), `propertyNames` with a list of names,
    and an `$id` that is an anchor, as drafts 6 and 7 allow.
    """
    found = {key: value for key, value in schema.items() if key not in {"$schema", "$id"}}
    if schema.get("$id", "").startswith("#"):
        found["$anchor"] = schema["$id"][1:]
    if "not" in found and is_anything(found["not"]):
        return False
    for limit, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(found.get(exclusive), bool) and limit in found:
            bound = found.pop(limit)
            found[exclusive if found.pop(exclusive) else limit] = bound
    if found.get("uniqueItems") is False:
        del found["uniqueItems"]
    if "format" in found and not is_restricting(found):
        del found["format"]
    return without_property_names(found)


def is_restricting(schema: dict[str, Any]) -> bool:
    """Whether a `format` restricts values: some formats only describe a purpose, and all concern strings only."""
    types = schema.get("type", "string")
    return schema["format"] not in NOTED_FORMATS and "string" in (types if isinstance(types, list) else [types])


def without_property_names(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with `propertyNames` replaced by `properties`, if it allows any string or a list of names."""
    if "propertyNames" not in schema:
        return schema
    names, rest = schema["propertyNames"], {key: value for key, value in schema.items() if key != "propertyNames"}
    if isinstance(names, dict) and names.get("type") == "string":
        names = {key: value for key, value in names.items() if key != "type"}
    if is_anything(names):
        return rest
    listed = names.get("enum") if isinstance(names, dict) and set(names) == {"enum"} else None
    is_list = isinstance(listed, list) and all(isinstance(name, str) for name in listed)
    if listed is None or not is_list or {"properties", "patternProperties"} & set(rest):
        return schema
    values = rest.get("additionalProperties", True)
    return rest | {"properties": dict.fromkeys(listed, values), "additionalProperties": False}


def check_keyword(key: str, value: Any, path: Path) -> None:
    """Raises GrammarError for a keyword that cannot be enforced or whose value is invalid."""
    if key in REFUSED:
        fail(path, f"is a keyword that cannot be enforced; {REFUSED[key]}")
    if key not in ENFORCED:
        fail(path, f"is not a known keyword{nearest(key, ENFORCED)}; leave it out")
    rule, is_right = ENFORCED[key]
    if not is_right(value):
        remote = key == "$ref" and isinstance(value, str)
        fail(path, f"must be {rule}, got {show(value)}" + ("; nothing is fetched" if remote else ""))


def check_together(schema: dict[str, Any], path: Path) -> None:
    """Raises GrammarError for keywords that contradict each other or cannot be enforced together."""
    least = schema.get("minProperties", 0)
    if least > max(1, len(schema.get("required", ()))):
        fail((*path, "minProperties"), f"must be at most the number of required properties or 1, got {least}")
    for low, high in (
        ("minLength", "maxLength"),
        ("minItems", "maxItems"),
        ("minProperties", "maxProperties"),
        ("minimum", "maximum"),
    ):
        if low in schema and high in schema and schema[low] > schema[high]:
            fail((*path, low), f"must be at most {high}, got {schema[low]} and {schema[high]}")
    for key in ("enum", "const"):
        if key in schema:
            check_values(schema[key], (*path, key))


def check_values(value: Any, path: Path) -> None:
    """Raises GrammarError for a constant that has no exact JSON text."""
    if isinstance(value, float) and not is_number(value):
        fail(path, f"must hold finite numbers, got {value}")
    if isinstance(value, str):
        check_spelling(value, path)
    if isinstance(value, dict):
        for name, inner in value.items():
            check_spelling(name, path)
            check_values(inner, (*path, name))
    if isinstance(value, list):
        for i, inner in enumerate(value):
            check_values(inner, (*path, i))


def check_spelling(text: str, path: Path) -> None:
    """Raises GrammarError for a string with characters that the compilers would not write exactly.

    They are most control characters, and surrogates.
    """
    for c in text:
        if (c < " " and c not in "\b\t\n\f\r") or c == "\x7f" or "\ud800" <= c <= "\udfff":
            fail(path, f"must hold no character {show(c)}, which cannot be written exactly; leave it out")


def close(schema: dict[str, Any], path: Path) -> None:
    """Forbids properties that the schema does not name, in place; GrammarError if parts would exclude each other."""
    if "allOf" in schema or ("$ref" in schema and "properties" in schema):
        key = "allOf" if "allOf" in schema else "$ref"
        fail((*path, key), "cannot go with disable_additional_properties, each part would forbid the others'")
    describes = schema.get("type") == "object" or "object" in list(schema.get("type") or ())
    if describes or "properties" in schema or "patternProperties" in schema:
        schema.setdefault("additionalProperties", False)


def check_references(schema: dict[str, Any]) -> tuple[dict[Path, Any], Resolve]:
    """All schemas inside a schema by their paths, and a function that resolves the reference of one of them.

    Raises GrammarError for a reference that points nowhere, and for one that leads back to itself with nothing in
    between.
    """
    places = dict(walk(schema, ()))
    anchors: dict[str, Path] = {}
    for path, inner in places.items():
        if (
            isinstance(inner, dict)
            and anchors.setdefault(inner.get("$anchor", ""), path) != path
            and "$anchor" in inner
        ):
            fail((*path, "$anchor"), f"must be a name of its own, got {show(inner['$anchor'])} a second time")
    targets: dict[Path, Path] = {}
    for path, inner in places.items():
        if isinstance(inner, dict) and "$ref" in inner:
            targets[path] = target(inner["$ref"], anchors, places, (*path, "$ref"))
    state: dict[Path, bool] = {}
    for path in places:
        _check_cycles(path, targets, places, state)
    ends = {id(places[path]): places[goal] for path, goal in targets.items()}
    return places, lambda inner: ends[id(inner)]


def check_bounds(schema: dict[str, Any]) -> None:
    """Raises GrammarError for an exclusive bound that llguidance would not enforce.

    That is one at a whole number, with the opposite bound less than 1 away. All bounds are compared with each other,
    because several parts of a schema may apply to the same number.
    """
    bounds = [
        (key, inner[key], (*path, key))
        for path, inner in walk(schema, ())
        if isinstance(inner, dict) and inner.get("type") != "integer"
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
        if key in inner
    ]
    far = {end: sorted(bound for key, bound, _ in bounds if key.endswith(end)) for end in ("inimum", "aximum")}
    for key, bound, path in bounds:
        if key.startswith("exclusive") and bound == int(bound):
            others = far["aximum" if key.endswith("inimum") else "inimum"]
            for i in (bisect_left(others, bound) - 1, bisect_right(others, bound)):
                if 0 <= i < len(others) and abs(others[i] - bound) < 1:
                    fail(path, f"must not be a whole number less than 1 away from the other bound, {others[i]}")


def _check_cycles(
    start: Path, targets: Mapping[Path, Path], places: Mapping[Path, Any], state: dict[Path, bool]
) -> None:
    """Raises GrammarError for a cycle of references and combinations, in a depth-first search from `start`.

    `state[path]` is False while a path is being visited, and True afterwards.
    """
    stack = [(start, False)]
    while stack:
        path, leaving = stack.pop()
        if leaving:
            state[path] = True
            continue
        if path in state:
            if not state[path]:
                fail(path, "must not lead back to itself through references alone")
            continue
        state[path] = False
        stack.append((path, True))
        stack.extend((inner, False) for inner in same_value(path, targets, places) if not state.get(inner, False))


def same_value(path: Path, targets: Mapping[Path, Path], places: Mapping[Path, Any]) -> Iterator[Path]:
    """The paths of the schemas that apply to the same value as the schema at `path`."""
    if path in targets:
        yield targets[path]
    schema = places[path]
    for key in ("allOf", "anyOf", "oneOf"):
        if isinstance(schema, dict) and key in schema:
            yield from ((*path, key, i) for i in range(len(schema[key])))


def target(reference: str, anchors: Mapping[str, Path], places: Mapping[Path, Any], at: Path) -> Path:
    """The path that a reference points to; GrammarError if there is no schema."""
    from urllib.parse import unquote

    goal = unquote(reference[1:])
    if goal in anchors:
        return anchors[goal]
    names = [name.replace("~1", "/").replace("~0", "~") for name in goal.split("/")[1:]]
    path = tuple(names)
    found = next((place for place in (path, _numbered(path)) if place in places), None)
    if found is None or goal[:1] not in {"", "/"}:
        known = map(pointer, itertools.islice(places, 2000))
        hint = nearest(reference, known) if len(reference) < 200 else ""
        fail(at, f"must point to a schema, got {reference[:60]!r}{hint}")
    return found


def _numbered(path: tuple[str, ...]) -> Path:
    return tuple(int(name) if name.isdecimal() else name for name in path)


def walk(schema: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """Every schema inside a schema with its path; the schema itself comes first."""
    yield path, schema
    if not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in _MAPS and isinstance(value, dict):
            inner: Any = value.items()
        elif key in _LISTS and isinstance(value, list):
            inner = enumerate(value)
        elif key in _SINGLE:
            yield from walk(value, (*path, key))
            continue
        else:
            continue
        for name, one in inner:
            yield from walk(one, (*path, key, name))


def fail(path: Path, rule: str) -> NoReturn:
    """Raises GrammarError with the place in the schema."""
    place = shown(path)
    raise GrammarError(f"schema at {place} {rule}", place=place)


def pointer(path: Path) -> str:
    """A path as a JSON pointer."""
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def shown(path: Path) -> str:
    """A path as a JSON pointer, shortened for messages."""
    text = pointer(path)
    return text if len(text) <= 200 else text[:197] + "..."


def show(value: Any) -> str:
    """A value as JSON text, shortened for messages."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
