"""JSON schemas: read, checked keyword by keyword, and put into one form for the compilers."""

from __future__ import annotations

import itertools
import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tirage.errors import GrammarError, nearest
from tirage.guided.keywords import ANNOTATIONS, DRAFTS, ENFORCED, NOTED_FORMATS, REFUSED, is_number
from tirage.guided.unions import Follow, told_apart

NODES = 20_000
DEPTH = 64
# Where a keyword's value holds schemas: itself, the members of a list, or the values of an object.
_SINGLE = ("additionalProperties", "additionalItems", "items")
_LISTS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAPS = ("properties", "patternProperties", "$defs", "definitions")
Path = tuple[str | int, ...]


def read_schema(source: Mapping[str, Any] | str, *, closed: bool = False) -> str:
    """The schema as JSON text in the form of draft 2020-12, with annotations left out.

    `closed` forbids, in every object that the schema describes, properties that it does not name. Raises
    GrammarError with the path for JSON text that is not valid, a keyword that is unknown, cannot be enforced or has
    a value of the wrong form, a reference that leaves the schema or points nowhere, and a cycle of references
    without anything in between.
    """
    schema = parse_json(source) if isinstance(source, str) else source
    if isinstance(schema, bool):
        return "{}" if schema else fail((), "must allow some value, got false")
    if not isinstance(schema, dict):
        fail((), f"must be an object or true, got {show(schema)}")
    return json.dumps(SchemaReader(schema, closed).read(), ensure_ascii=False, separators=(",", ":"))


def parse_json(text: str) -> Any:
    """The value of JSON text, in which no object names a property twice; GrammarError with line and column."""
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
    """What holds for a schema and those inside it: the draft it is written in (0 where none is named), and the place
    that its references start from, that of the nearest `$id`."""

    draft: int = 0
    base: Path = ()

    def of(self, schema: dict[str, Any], path: Path) -> Resource:
        """The same for a schema inside, which may be another document that was put there: with `$schema`, `$id`."""
        draft, name = self.draft, schema.get("$id", "")
        if "$schema" in schema:
            draft = draft_of(schema["$schema"], (*path, "$schema"))
        if not isinstance(name, str):
            fail((*path, "$id"), f"must be a string, got {show(name)}")
        return Resource(draft, path if name and not name.startswith("#") else self.base)


def draft_of(name: Any, path: Path) -> int:
    """The draft that `$schema` names."""
    bare = name.removeprefix("https://").removeprefix("http://").rstrip("#") if isinstance(name, str) else ""
    if bare not in DRAFTS:
        fail(path, f"must be draft 2020-12, 2019-09, 7 or 6, got {show(name)}")
    return DRAFTS[bare]


class SchemaReader:
    """Checks a schema and rewrites it."""

    def __init__(self, schema: dict[str, Any], closed: bool) -> None:
        self._schema, self._closed, self._nodes = schema, closed, 0

    def read(self) -> dict[str, Any]:
        """The whole schema, rewritten."""
        written = self._rewrite(self._schema, (), Resource())
        if written is False:
            fail(("not",), "must leave some value over, got a schema that every value satisfies")
        places, follow = check_references(written)
        check_bounds(written)
        for schema in places.values():
            if isinstance(schema, dict) and "oneOf" in schema and "anyOf" not in schema:
                self._tell_apart(schema, follow)
        return written

    def _tell_apart(self, schema: dict[str, Any], follow: Follow) -> None:
        if told_apart(schema["oneOf"], follow):
            schema["anyOf"] = schema.pop("oneOf")

    def _rewrite(self, schema: Any, path: Path, around: Resource) -> Any:
        self._nodes += 1
        if self._nodes > NODES:
            fail(path, f"must hold at most {NODES} schemas")
        if len(path) > 2 * DEPTH:
            fail(path[: 2 * DEPTH], f"must be nested at most {DEPTH} levels deep")
        if isinstance(schema, bool):
            return schema
        here = around.of(schema, path)
        kept = plainer({key: value for key, value in schema.items() if not is_annotation(key)})
        if isinstance(kept, bool):
            return kept
        for key, value in kept.items():
            check_keyword(key, value, (*path, key))
        check_together(kept, path)
        if self._closed:
            close(kept, path)
        inner = {key: self._inner(key, value, (*path, key), here) for key, value in kept.items()}
        return self._one_form(inner, path, here.draft)

    def _inner(self, key: str, value: Any, path: Path, here: Resource) -> Any:
        """A keyword's value with the schemas in it rewritten."""
        if key in {"properties", "required"}:
            for name in value:
                check_spelling(name, path)
        if key in _MAPS:
            return {name: self._rewrite(inner, (*path, name), here) for name, inner in value.items()}
        if key in _LISTS and isinstance(value, list):
            return [self._rewrite(inner, (*path, i), here) for i, inner in enumerate(value)]
        if key == "$ref" and here.base and (value == "#" or value.startswith("#/")):
            return pointer(here.base) + value[1:]
        return self._rewrite(value, path, here) if key in _SINGLE else value

    def _one_form(self, schema: dict[str, Any], path: Path, draft: int) -> dict[str, Any]:
        """Tuples as draft 2020-12 writes them."""
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
    """Whether a keyword says nothing about which values are valid."""
    return key in ANNOTATIONS or key.startswith("x-")


def is_anything(schema: Any) -> bool:
    """Whether a schema lets every value through."""
    return schema is True or (isinstance(schema, dict) and all(map(is_annotation, schema)))


def plainer(schema: dict[str, Any]) -> dict[str, Any] | bool:
    """A schema without what names it and what lets every value through, and in the words that are enforced.

    Those are draft 4's `exclusiveMinimum: true`, `not` of everything, `propertyNames` that are listed, and an `$id`
    that is an `$anchor`, as it may be in drafts 6 and 7.
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
    if "format" in found and not is_judging(found):
        del found["format"]
    return with_names(found)


def is_judging(schema: dict[str, Any]) -> bool:
    """Whether a `format` makes values invalid: it says nothing of what is no string, and some only what it is for."""
    types = schema.get("type", "string")
    return schema["format"] not in NOTED_FORMATS and "string" in (types if isinstance(types, list) else [types])


def with_names(schema: dict[str, Any]) -> dict[str, Any]:
    """A schema with `propertyNames` in other words, where they may be any string or one of a list."""
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
    """GrammarError for a keyword that is not enforced, or whose value has the wrong form."""
    if key in REFUSED:
        fail(path, f"is a keyword that cannot be enforced; {REFUSED[key]}")
    if key not in ENFORCED:
        fail(path, f"is not a known keyword{nearest(key, ENFORCED)}; leave it out")
    rule, is_right = ENFORCED[key]
    if not is_right(value):
        remote = key == "$ref" and isinstance(value, str)
        fail(path, f"must be {rule}, got {show(value)}" + ("; nothing is fetched" if remote else ""))


def check_together(schema: dict[str, Any], path: Path) -> None:
    """GrammarError for keywords that cannot be enforced, or contradict each other, together."""
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
    """GrammarError for a constant that has no exact JSON text."""
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
    """GrammarError for a string that the compilers would not write as it is: most control characters, surrogates."""
    for c in text:
        if (c < " " and c not in "\b\t\n\f\r") or c == "\x7f" or "\ud800" <= c <= "\udfff":
            fail(path, f"must hold no character {show(c)}, which cannot be written exactly; leave it out")


def close(schema: dict[str, Any], path: Path) -> None:
    """Forbids properties that the schema does not name."""
    if "allOf" in schema or ("$ref" in schema and "properties" in schema):
        key = "allOf" if "allOf" in schema else "$ref"
        fail((*path, key), "cannot go with disable_additional_properties, each part would forbid the others'")
    describes = schema.get("type") == "object" or "object" in list(schema.get("type") or ())
    if describes or "properties" in schema or "patternProperties" in schema:
        schema.setdefault("additionalProperties", False)


def check_references(schema: dict[str, Any]) -> tuple[dict[Path, Any], Follow]:
    """All schemas inside by their paths, and how to follow a reference of one of them.

    Raises GrammarError for a reference that points nowhere, or comes back to itself with nothing in between.
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
    goals: dict[Path, Path] = {}
    for path, inner in places.items():
        if isinstance(inner, dict) and "$ref" in inner:
            goals[path] = target(inner["$ref"], anchors, places, (*path, "$ref"))
    state: dict[Path, bool] = {}
    for path in places:
        _visit(path, goals, places, state)
    ends = {id(places[path]): places[goal] for path, goal in goals.items()}
    return places, lambda inner: ends[id(inner)]


def check_bounds(schema: dict[str, Any]) -> None:
    """GrammarError for two bounds of fractions between which llguidance lets the excluded one through.

    That is an exclusive bound at a whole number with the opposite bound less than 1 away. All bounds are compared with
    all others, because parts of a schema may judge the same number.
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


def _visit(start: Path, goals: Mapping[Path, Path], places: Mapping[Path, Any], state: dict[Path, bool]) -> None:
    """Depth-first search for a cycle over references and combinations; `state` is True once a place is done."""
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
        stack.extend((inner, False) for inner in same_value(path, goals, places) if not state.get(inner, False))


def same_value(path: Path, goals: Mapping[Path, Path], places: Mapping[Path, Any]) -> Iterator[Path]:
    """The schemas that judge the very value which the schema at `path` judges."""
    if path in goals:
        yield goals[path]
    schema = places[path]
    for key in ("allOf", "anyOf", "oneOf"):
        if isinstance(schema, dict) and key in schema:
            yield from ((*path, key, i) for i in range(len(schema[key])))


def target(reference: str, anchors: Mapping[str, Path], places: Mapping[Path, Any], at: Path) -> Path:
    """The path that a reference names."""
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
    """Every schema inside a schema with its path, itself first."""
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
    """GrammarError that names the place in the schema."""
    place = shown(path)
    raise GrammarError(f"schema at {place} {rule}", place=place)


def pointer(path: Path) -> str:
    """A path as a JSON pointer."""
    return "#" + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in path)


def shown(path: Path) -> str:
    """A path as it may stand in a message: a JSON pointer, of which too long a one keeps its beginning."""
    text = pointer(path)
    return text if len(text) <= 200 else text[:197] + "..."


def show(value: Any) -> str:
    """A value as it may stand in a message."""
    text = json.dumps(value, ensure_ascii=True, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
