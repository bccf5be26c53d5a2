"""Structural tags: free text in which the parts between tags follow grammars of their own.

Both JSON forms in use are read. The older one lists tags and triggers:
`{"type": "structural_tag", "structures": [{"begin", "schema", "end"}], "triggers": [...]}`. The newer one is a tree of
formats, `{"type": "structural_tag", "format": {...}}`: those in FORMATS are enforced, those in REFUSED refused with the
reason. SPEC.md S-G7.
"""

from __future__ import annotations

import json
from typing import Any, NoReturn

from tirage.errors import GrammarError, nearest
from tirage.guided.gbnf import read_gbnf
from tirage.guided.json_schema import read_schema
from tirage.guided.json_schema.json_text import DEPTH, parse_json
from tirage.guided.json_schema.places import Path, show, shown
from tirage.guided.tagged_arguments import tagged_arguments
from tirage.workers.cancel import checkpoint

FORMATS: dict[str, dict[str, type]] = {
    "const_string": {"value": str},
    "json_schema": {"json_schema": object},
    "qwen_xml_parameter": {"json_schema": object},
    "regex": {"pattern": str},
    "grammar": {"grammar": str},
    "token": {"token": object},
    "sequence": {"elements": list},
    "or": {"elements": list},
    "optional": {"content": dict},
    "star": {"content": dict},
    "plus": {"content": dict},
    "repeat": {"min": int, "max": int, "content": dict},
    "tag": {"begin": object, "content": dict, "end": object},
    "triggered_tags": {"triggers": list, "tags": list},
    "tags_with_separator": {"tags": list, "separator": str},
    "any_text": {},
}
"""Format -> its required fields and their types, besides `type`."""
SWITCHES = {"triggered_tags": ("at_least_one", "stop_after_first"),
            "tags_with_separator": ("at_least_one", "stop_after_first")}  # fmt: skip
"""Format -> its optional boolean fields, false by default."""
EXCLUDING = ("any_text", "triggered_tags")
"""The formats with `excludes`: texts that do not appear in their free text."""
_TOKENS = "its text is free of tokens, not of strings; use excludes"
REFUSED = {
    "any_tokens": _TOKENS,
    "exclude_token": _TOKENS,
    "token_triggered_tags": "use triggered_tags, whose triggers may be spellings of special tokens",
    "dispatch": "use triggered_tags",
    "token_dispatch": "use triggered_tags",
}
"""Formats of xgrammar that are refused -> why, or what to use."""
_LIMITS = {
    "any_order": (False, "properties have the order of the schema"),
    "max_whitespace_cnt": (None, "whitespace_pattern says it for the whole text"),
    "max_tokens": (None, "how a text is cut into tokens decides nothing"),
    "max_chars": (None, "use a regex"),
}
"""Fields of xgrammar that are taken at one value only -> that value, and why, or what to use."""
_MOST_REPEATS = 1000


def read_tags(text: str, *, closed: bool = False) -> str:
    """The format of a structural tag as JSON text in the newer form, validated; its schemas are those of `read_schema`.

    Raises GrammarError with the path for anything unknown, missing or contradictory.
    """
    try:
        given = parse_json(text, exact=False)
    except GrammarError as error:
        # The reader calls what it reads a schema.
        raise GrammarError("structural_tag" + str(error).removeprefix("schema"), place=error.place) from None
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
    checkpoint()
    if len(path) > 2 * DEPTH:
        fail(path[:8], f"must be nested at most {DEPTH} levels deep")
    kind = kind_of(given, path)
    given = without_limits(given, kind, path)
    switches = dict.fromkeys(SWITCHES.get(kind, ()), False)
    options = switches | ({"excludes": []} if kind in EXCLUDING else {}) | ({"style": "json"} if "json" in kind else {})
    out = options | given
    check_fields(out, FORMATS[kind] | {name: type(value) for name, value in options.items()}, path)
    check_place(kind, path, given)
    if "json_schema" in out:
        return read_schema_format(out, path, closed)
    if kind == "token":
        return read_token(out["token"], path)
    if kind in {"grammar", "repeat"}:
        check_leaf(out, kind, path)
    if kind in EXCLUDING and not all(isinstance(one, str) and one for one in out["excludes"]):
        fail((*path, "excludes"), "must be a list of non-empty strings")
    for key in ("elements", "tags"):
        if key in given:
            out[key] = read_list(given, key, path, closed)
    if "content" in given:
        out["content"] = read_format(given["content"], (*path, "content"), closed)
    if kind == "tag":
        return read_tag(out, path)
    if kind == "triggered_tags":
        check_triggers(out, path)
    return out


def kind_of(given: Any, path: Path) -> str:
    """The name of a format; GrammarError for one that is not enforced."""
    named = given.get("type") if isinstance(given, dict) else None
    kind = named if isinstance(named, str) else ""
    if kind in REFUSED:
        fail(path, f"must not be of the format {kind}; {REFUSED[kind]}")
    if kind not in FORMATS:
        hint = nearest(kind, FORMATS) if kind else ""
        fail(path, f"must be one of the formats {', '.join(FORMATS)}, got {show(named)}{hint}")
    return kind


def without_limits(given: dict[str, Any], kind: str, path: Path) -> dict[str, Any]:
    """The format without the fields that are taken at one value only; GrammarError for another value."""
    limits = _LIMITS if kind != "json_schema" else _LIMITS | {"excludes": ([], "use a pattern in the schema")}
    for name, (inert, reason) in limits.items():
        if name in given and given[name] not in (None, inert):
            fail((*path, name), f"must be left out, got {show(given[name])}; {reason}")
    return {name: value for name, value in given.items() if name not in limits}


def read_schema_format(given: dict[str, Any], path: Path, closed: bool) -> dict[str, Any]:
    """A schema, written as JSON or with tags around the arguments of a call."""
    style = "qwen_xml" if given["type"] == "qwen_xml_parameter" else given["style"]
    place = (*path, "json_schema")
    if style != "json":
        return tagged_arguments(
            given["json_schema"], style, place, lambda schema, at: read_schema_at(schema, at, closed)
        )
    schema = json.loads(read_schema_at(given["json_schema"], place, closed))
    return {"type": "json_schema", "json_schema": schema}


def read_token(token: Any, path: Path) -> dict[str, Any]:
    """A token as the text that it spells, which a special token of that spelling is, too; GrammarError for an id."""
    if not isinstance(token, str) or not token:
        fail((*path, "token"), f"must be the spelling of a token, got {show(token)}; ids differ from model to model")
    return {"type": "const_string", "value": token}


def check_leaf(given: dict[str, Any], kind: str, path: Path) -> None:
    """Raises GrammarError for what is no grammar or no number of repetitions."""
    if kind == "grammar":
        try:
            read_gbnf(given["grammar"])
        except GrammarError as error:
            fail((*path, "grammar"), f"must be a grammar in GBNF: {error}")
    if kind == "repeat" and not (0 <= given["min"] <= _MOST_REPEATS and -1 <= given["max"] <= _MOST_REPEATS):
        fail(path, f"must have min in [0, {_MOST_REPEATS}] and max in [-1, {_MOST_REPEATS}], where -1 is no limit")
    if kind == "repeat" and 0 <= given["max"] < given["min"]:
        fail((*path, "max"), f"must be -1 or at least min, which is {given['min']}, got {given['max']}")


def read_tag(given: dict[str, Any], path: Path) -> dict[str, Any]:
    """A tag whose `begin` is a string and whose `end` is a list of strings; GrammarError for anything else."""
    begin, end = given["begin"], given["end"]
    ends = end if isinstance(end, list) and end else [end]
    found = {"begin": spelled_tag(begin, (*path, "begin")), "end": [spelled_tag(one, (*path, "end")) for one in ends]}
    if given["content"]["type"] == "any_text" and not all(found["end"]):
        fail((*path, "end"), "must not be empty after any_text, which nothing else ends")
    return given | found


def spelled_tag(given: Any, path: Path) -> str:
    """A begin or an end of a tag as a string; GrammarError for what is neither a string nor a token."""
    if isinstance(given, dict) and given.get("type") == "token":
        return read_format(given, path, False)["value"]
    if not isinstance(given, str):
        rule = "a string or a token" if path[-1] == "begin" else "a string, a list of strings or a token"
        fail(path, f"must be {rule}, got {show(given)}")
    return given


def check_place(kind: str, path: Path, given: dict[str, Any]) -> None:
    """Raises GrammarError for free text that nothing ends, and for empty strings."""
    if kind == "any_text" and path[-1] != "content":
        fail(path, "must be the content of a tag, whose end ends it; use triggered_tags for free text between tags")
    if given.get("value") == "":
        fail((*path, "value"), "must not be empty")


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


_NAMES: dict[type, str] = {
    str: "a string", list: "a list", dict: "an object", bool: "true or false", int: "an integer"
}  # fmt: skip


def fail(path: Path, rule: str) -> NoReturn:
    """Raises GrammarError with the place in the structural tag."""
    place = shown(path)
    raise GrammarError(f"structural_tag at {place} {rule}", place=place)
