"""Structural tags: free text in which the parts between tags follow grammars of their own.

Both JSON forms in use are read. The older one lists tags and triggers:
`{"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [...]}`. The newer one is a tree of
formats, `{"type": "structural_tag", "format": {...}}`; the formats in FORMATS are enforced. SPEC.md S-G7.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tirage.errors import GrammarError, nearest
from tirage.guided.schema import DEPTH, Path, parse_json, read_schema, show, shown

FORMATS: dict[str, dict[str, type]] = {
    "const_string": {"value": str},
    "json_schema": {"json_schema": object},
    "regex": {"pattern": str},
    "sequence": {"elements": list},
    "or": {"elements": list},
    "tag": {"begin": str, "content": dict, "end": str},
    "triggered_tags": {"triggers": list, "tags": list},
    "tags_with_separator": {"tags": list, "separator": str},
    "any_text": {},
}
"""Format -> its required fields and their types, besides `type`."""
SWITCHES = {"triggered_tags": ("at_least_one", "stop_after_first"),
            "tags_with_separator": ("at_least_one", "stop_after_first")}  # fmt: skip
"""Format -> its optional boolean fields, false by default."""


def read_tags(text: str, *, closed: bool = False) -> str:
    """The format of a structural tag as JSON text in the newer form, validated; its schemas are those of `read_schema`.

    Raises GrammarError with the path for anything unknown, missing or contradictory.
    """
    given = parse_json(text)
    if not isinstance(given, dict) or given.get("type") != "structural_tag":
        raise GrammarError('structural_tag must be an object with "type": "structural_tag"', place="#")
    if "structures" in given or "triggers" in given:
        check_fields(given, {"structures": list, "triggers": list}, ())
        given = {"type": "structural_tag", "format": from_triggers(given)}
    check_fields(given, {"format": dict}, ())
    return json.dumps(read_format(given["format"], ("format",), closed), ensure_ascii=False)


def from_triggers(given: dict[str, Any]) -> dict[str, Any]:
    """The older form as a format; GrammarError for a wrong field."""
    tags = []
    for i, tag in enumerate(given["structures"]):
        check_fields(tag, {"begin": str, "schema": object, "end": str}, ("structures", i), typed=False)
        content = {"type": "json_schema", "json_schema": tag["schema"]}
        tags.append({"type": "tag", "begin": tag["begin"], "content": content, "end": tag["end"]})
    return {"type": "triggered_tags", "triggers": given["triggers"], "tags": tags}


def read_format(given: Any, path: Path, closed: bool) -> dict[str, Any]:
    """One format, validated with those inside it; GrammarError with the path."""
    if len(path) > 2 * DEPTH:
        fail(path[:8], f"must be nested at most {DEPTH} levels deep")
    named = given.get("type") if isinstance(given, dict) else None
    kind = named if isinstance(named, str) else ""
    if kind not in FORMATS:
        hint = nearest(kind, FORMATS) if kind else ""
        fail(path, f"must be one of the formats {', '.join(FORMATS)}, got {show(named)}{hint}")
    out = dict.fromkeys(SWITCHES.get(kind, ()), False) | given
    check_fields(out, FORMATS[kind] | dict.fromkeys(SWITCHES.get(kind, ()), bool), path)
    check_place(kind, path, given)
    if kind == "json_schema":
        out["json_schema"] = json.loads(read_schema_at(given["json_schema"], (*path, "json_schema"), closed))
    for key in ("elements", "tags"):
        if key in given:
            out[key] = read_list(given, key, path, closed)
    if "content" in given:
        out["content"] = read_format(given["content"], (*path, "content"), closed)
    if kind == "triggered_tags":
        check_triggers(out, path)
    return out


def check_place(kind: str, path: Path, given: dict[str, Any]) -> None:
    """Raises GrammarError for free text that nothing ends, and for empty strings."""
    if kind == "any_text" and path[-1] != "content":
        fail(path, "must be the content of a tag, whose end ends it; use triggered_tags for free text between tags")
    if kind == "tag" and given["content"].get("type") == "any_text" and not given["end"]:
        fail((*path, "end"), "must not be empty after any_text, which nothing else ends")
    for key in ("value", "separator"):
        if given.get(key) == "":
            fail((*path, key), "must not be empty")


def read_list(given: dict[str, Any], key: str, path: Path, closed: bool) -> list[dict[str, Any]]:
    """The formats of a list; GrammarError for an empty list, and for tags of another format."""
    if not given[key]:
        fail((*path, key), "must not be empty")
    if key == "tags" and any(not isinstance(tag, dict) or tag.get("type", "tag") != "tag" for tag in given[key]):
        fail((*path, key), "must hold formats of type tag only")
    inner = [{"type": "tag"} | tag for tag in given[key]] if key == "tags" else given[key]
    return [read_format(one, (*path, key, i), closed) for i, one in enumerate(inner)]


def read_schema_at(schema: Any, path: Path, closed: bool) -> str:
    """The schema as `read_schema` gives it; GrammarError with the path from the structural tag on."""
    try:
        return read_schema(schema, closed=closed)
    except GrammarError as error:
        inner = (*path, *(part for part in error.place.split("/")[1:] if error.place.startswith("#")))
        fail(inner, f"must hold a schema that can be enforced: {error}")


def check_triggers(given: dict[str, Any], path: Path) -> None:
    """Raises GrammarError unless every tag begins with exactly one trigger and every trigger begins some tag."""
    triggers = given["triggers"]
    if not triggers or not all(isinstance(one, str) and one for one in triggers):
        fail((*path, "triggers"), "must be a non-empty list of non-empty strings")
    for i, tag in enumerate(given["tags"]):
        if sum(tag["begin"].startswith(one) for one in triggers) != 1:
            fail((*path, "tags", i, "begin"), f"must begin with exactly one of the triggers, got {show(tag['begin'])}")
    for one in triggers:
        if not any(tag["begin"].startswith(one) for tag in given["tags"]):
            fail((*path, "triggers"), f"must each begin some tag, got {show(one)}")


def check_fields(given: Any, fields: dict[str, type], path: Path, *, typed: bool = True) -> None:
    """Raises GrammarError for a field that is missing, unknown or of another type."""
    if not isinstance(given, dict):
        fail(path, f"must be an object, got {show(given)}")
    for key in given:
        if key not in fields and not (typed and key == "type"):
            fail((*path, key), f"is not supported{nearest(key, fields)}; leave it out")
    for key, kind in fields.items():
        if key not in given:
            fail(path, f"must have a field {key}")
        if not isinstance(given[key], kind):
            fail((*path, key), f"must be {_NAMES[kind]}, got {show(given[key])}")


_NAMES: dict[type, str] = {str: "a string", list: "a list", dict: "an object", bool: "true or false"}


def fail(path: Path, rule: str) -> NoReturn:
    """Raises GrammarError with the place in the structural tag."""
    place = shown(path)
    raise GrammarError(f"structural_tag at {place} {rule}", place=place)
