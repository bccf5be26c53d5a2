"""Arguments of calls that are written one by one: between tags, as Qwen's and GLM's models do, or as in Python.

Between tags strings stand as they are, without quotes, and everything else as JSON. SPEC.md S-G7.
"""

from __future__ import annotations

import json
import keyword
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from tirage.errors import GrammarError
from tirage.guided.json_schema.places import Path, show, shown

Format = dict[str, Any]
ReadSchema = Callable[[Any, Path], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TagStyle:
    """How an argument is written: `begin` with its name for `{}`, the value, and `end`.

    A string holds none of `marks`, by which parsers find their way; without marks it is written as JSON. Between two
    arguments stands the `separator`; with one, those that are required come first.
    """

    begin: str
    end: str
    marks: tuple[str, ...] = ()
    separator: str = ""


STYLES: Mapping[str, TagStyle] = {
    "qwen_xml": TagStyle(
        begin="<parameter={}>\n", end="\n</parameter>\n", marks=("</parameter>", "<parameter=", "</function>")
    ),
    "glm_xml": TagStyle(
        begin="<arg_key>{}</arg_key>\n<arg_value>", end="</arg_value>\n", marks=("</arg_value>", "<arg_key>")
    ),
    "pythonic": TagStyle(begin="{}=", end="", separator=", "),
}
"""Styles by xgrammar's names, and that of Llama's calls in Python, of which xgrammar has none."""
_OBJECT = frozenset({"type", "properties", "required", "additionalProperties"})
_SCOPE = frozenset({"$defs", "definitions", "$schema", "$id"})
_DEFINITIONS = ("$defs", "definitions")
_NOTES = frozenset({"title", "description", "default", "examples", "example", "deprecated", "$comment", "strict"})
_NAME = re.compile(r"[^<>\n]+")


def tagged_arguments(schema: Any, style: str, path: Path, read: ReadSchema) -> dict[str, Any]:
    """The format of the arguments of an object schema in a style; `read` gives the JSON text of a schema that is held.

    Properties come in the order of the schema, and none that it does not name. Raises GrammarError, with the place,
    for what cannot be held when arguments are written one by one.
    """
    if style not in STYLES:
        rule = f"must be json or one of {', '.join(STYLES)}, got {show(style)}"
        fail((*path[:-1], "style"), f"{rule}; write the arguments with tags and json_schema")
    form, required, optional = STYLES[style], list[Format](), list[Format]()
    for name, inner, is_required in properties_of(schema, path):
        place = (*path, "properties", name)
        check_name(name, form, place)
        value = value_format(inner, form, place, read)
        tag = {"type": "tag", "begin": form.begin.format(name), "content": value, "end": [form.end]}
        if form.separator:
            (required if is_required else optional).append(tag)
        else:
            required.append(tag if is_required else {"type": "optional", "content": tag})
    return {
        "type": "sequence",
        "elements": separated(required, optional, form.separator) if form.separator else required,
    }


def separated(required: list[Format], optional: list[Format], separator: str) -> list[Format]:
    """Required arguments and then optional ones, with a separator between two."""
    between = {"type": "const_string", "value": separator}

    def after(tags: list[Format]) -> list[Format]:
        return [{"type": "optional", "content": {"type": "sequence", "elements": [between, tag]}} for tag in tags]

    if required:
        return [part for tag in required for part in (between, tag)][1:] + after(optional)
    ways = [{"type": "sequence", "elements": [tag, *after(optional[i + 1 :])]} for i, tag in enumerate(optional)]
    return [{"type": "optional", "content": {"type": "or", "elements": ways}}] if ways else []


def check_name(name: str, form: TagStyle, path: Path) -> None:
    """Raises GrammarError for the name of an argument that cannot be written."""
    if form.separator and (not name.isidentifier() or keyword.iskeyword(name)):
        fail(path, "must be a name that a keyword argument of Python may have")
    if not _NAME.fullmatch(name):
        fail(path, "must be a name without <, > and line breaks")


def properties_of(schema: Any, path: Path) -> list[tuple[str, Any, bool]]:
    """The properties of an object schema: name, schema with what it refers to, and whether it is required.

    Raises GrammarError for keywords that say something of the object besides its properties.
    """
    schema = resolved(schema, schema, path) if isinstance(schema, dict) else {} if schema is True else schema
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        fail(path, f"must be a schema of an object, got {show(schema)}")
    other = next((key for key in schema if key not in _OBJECT | _SCOPE | _NOTES and not key.startswith("x-")), None)
    if other is not None:
        fail((*path, other), "cannot be held where arguments are written one by one; describe them in properties")
    scope = {key: schema[key] for key in ("$schema", "$defs", "definitions") if key in schema}
    named, required = schema.get("properties", {}), schema.get("required", [])
    if not isinstance(named, dict) or not isinstance(required, list):
        fail(path, "must have an object of properties and a list of those that are required")
    found = [(name, with_scope(inner, scope), name in required) for name, inner in named.items()]
    return found + [(name, {}, True) for name in required if name not in named]


def with_scope(schema: Any, scope: Mapping[str, Any]) -> Any:
    """A part of a schema as one of its own."""
    return {**scope, **schema} if isinstance(schema, dict) else schema


def resolved(schema: Any, root: Any, path: Path) -> Any:
    """A schema with a reference at its top followed, inside `root`; GrammarError for one that leads nowhere."""
    for _ in range(8):
        reference = schema.get("$ref") if isinstance(schema, dict) else None
        if reference is None:
            return schema
        schema = {**referred(reference, root, path), **{key: root[key] for key in _DEFINITIONS if key in root}}
    return fail(path, "must not refer to itself")


def referred(reference: Any, root: Any, path: Path) -> dict[str, Any]:
    """The schema that a reference names, one of the definitions of `root`; GrammarError for any other reference."""
    for kind in _DEFINITIONS:
        if isinstance(reference, str) and reference.startswith(f"#/{kind}/"):
            found = root.get(kind, {}).get(reference[len(kind) + 3 :])
            if isinstance(found, dict):
                return found
    return fail((*path, "$ref"), f"must be a reference into $defs where arguments are tagged, got {show(reference)}")


def value_format(schema: Any, form: TagStyle, path: Path, read: ReadSchema) -> dict[str, Any]:
    """The format of a value: text where the schema allows strings alone, otherwise JSON."""
    inner = resolved(schema, schema, path) if isinstance(schema, dict) else schema
    if not form.marks or not is_text(inner):
        return {"type": "json_schema", "json_schema": json.loads(read(schema, path))}
    read(schema, path)
    values = [inner["const"]] if "const" in inner else inner.get("enum")
    if values is not None:
        wrong = next((value for value in values if any(mark in value for mark in form.marks) or not value), None)
        if wrong is not None:
            fail(path, f"must list texts that are not empty and hold no tag, got {show(wrong)}")
        return {"type": "or", "elements": [{"type": "const_string", "value": value} for value in values]}
    other = next((key for key in ("pattern", "format") if key in inner), None)
    if other is not None:
        fail((*path, other), "cannot be held in a text without quotes; use enum, or leave it out")
    lengths = [inner.get("minLength", 0), inner.get("maxLength")]
    return {"type": "any_text", "excludes": list(form.marks), "lengths": lengths}


def is_text_in(schema: Any, name: str) -> bool:
    """Whether the property of that name in an object schema is written as it is, without quotes."""
    try:
        found = next((inner for each, inner, _ in properties_of(schema, ()) if each == name), {})
        return is_text(resolved(found, found, ()) if isinstance(found, dict) else found)
    except GrammarError:
        return False


def is_text(schema: Any) -> bool:
    """Whether a schema allows strings and nothing else, as far as its type or its constants say."""
    if not isinstance(schema, dict):
        return False
    values = [schema["const"]] if "const" in schema else schema.get("enum", [None])
    return schema.get("type") in ("string", ["string"]) or all(isinstance(value, str) for value in values)


def fail(path: Path, rule: str) -> NoReturn:
    """Raises GrammarError with the place in the structural tag."""
    place = shown(path)
    raise GrammarError(f"structural_tag at {place} {rule}", place=place)
