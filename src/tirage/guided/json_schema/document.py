"""A schema as written: its parts with their paths and drafts, and where each reference leads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin

from tirage.errors import GrammarError, nearest
from tirage.guided.json_schema.formats import FORMATS
from tirage.guided.json_schema.json_text import DEPTH
from tirage.guided.json_schema.keywords import (
    ANNOTATIONS,
    DRAFTS,
    ENFORCED,
    LISTS,
    MAPS,
    NOTED_FORMATS,
    SINGLE,
    TYPE_NAMES,
    is_annotation,
)
from tirage.guided.json_schema.places import Path, fail, pointer, refusal, show
from tirage.workers.cancel import checkpoint

_SPELLED = frozenset({
    "const",
    "enum",
    "properties",
    "required",
    "dependentRequired",
    "dependentSchemas",
    "dependencies",
})
_EXCLUSIVE = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
NODES = 20_000
"""Most schemas in a document."""
_NAMED_BY = frozenset({"$schema", "id", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor"})
_UNREAD: dict[str, Any] = {}
"""The keywords of a node that is being read."""
_DETAILED = frozenset({"items", "format", *_EXCLUSIVE})
"""Keywords of which some values say nothing, or are right only beside others."""
_UNEVALUATED = frozenset({"unevaluatedProperties", "unevaluatedItems"})
_TYPE_ALONE = ANNOTATIONS | {"type"}
_AS_WRITTEN = frozenset({"type", "format", "pattern", "$ref", "$schema", "$id"})
_NAMING = frozenset({"$schema", "$id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "definitions", "$defs"})
_HOLDING = frozenset({"$schema", "definitions", "$defs"})
"""Naming keywords that stand beside `$ref` in any draft."""


@dataclass(slots=True, eq=False)
class Node:
    """One schema of a document.

    `keywords` are those that decide something, with the schemas inside them as nodes; None for the schema `false`.
    `draft` is 0 if none is named, `base` the URI from which its references start. `memo` keeps what says that a value
    satisfies it.
    """

    path: Path
    draft: int
    base: str
    keywords: dict[str, Any] | None = field(default_factory=dict)
    memo: Any = None

    def __repr__(self) -> str:
        return f"Node({pointer(self.path)})"


OF_TYPE = {name: Node((name,), 0, "", {"type": name}) for name in TYPE_NAMES}
"""One node for all schemas of just one type, in any document: most are of that kind, and it is worked out once."""


class Document:
    """All schemas of one document, by path, URI and anchor.

    `ignored` are the places of what is written there and decides nothing, though it is no known annotation;
    `has_unevaluated` says whether any schema asks what others have evaluated. Without `has_surrogates` no text in it is
    known to hold one, so that none is looked for.
    """

    def __init__(self, schema: dict[str, Any] | bool, *, strict: bool = False, has_surrogates: bool = True) -> None:
        self._raw, self._strict = schema, strict
        self._spelled: frozenset[str] = _SPELLED if has_surrogates else frozenset()
        self._nodes: dict[Path, Node] = {}
        self._resources: dict[str, list[Node]] = {}
        self._anchors: dict[tuple[str, str], Node] = {}
        self._dynamic: dict[str, list[Node]] = {}
        self.ignored: list[str] = []
        self.has_unevaluated = False
        self.root = self._read(schema, (), 0, "")
        self._resources.setdefault("", [self.root])

    # --- reading ------------------------------------------------------------------------------------------------------

    def _read(self, schema: Any, path: Path, draft: int, base: str) -> Node:
        checkpoint()
        if len(self._nodes) >= NODES:
            fail(path, f"must hold at most {NODES} schemas")
        if len(path) > 2 * DEPTH:
            fail(path[: 2 * DEPTH], f"must be nested at most {DEPTH} levels deep")
        if isinstance(schema, bool):
            node = self._nodes[path] = Node(path, draft, base, {} if schema else None)
            return node
        if _TYPE_ALONE.issuperset(schema) and (shared := self._shared(schema.get("type"), path)):
            return shared
        is_named, outer = not _NAMED_BY.isdisjoint(schema), base
        if is_named:
            draft, base = self._identify(schema, path, draft, base)
        node = self._nodes[path] = Node(path, draft, base, _UNREAD)
        if is_named:
            if base != outer:
                self._resources.setdefault(base, []).append(node)
            self._name(schema, node)
        node.keywords = found = self._keywords(schema, node)
        if len(found) == 1 and not is_named and (shared := self._shared(found.get("type"), path)):
            return shared
        return node

    def _shared(self, kind: Any, path: Path) -> Node | None:
        """The node of all schemas of just one type, now at a path as well; None for one that has to be its own."""
        if not isinstance(kind, str) or kind not in OF_TYPE or not path or path[-1] in _UNEVALUATED:
            return None
        node = self._nodes[path] = OF_TYPE[kind]
        return node

    def _identify(self, schema: dict[str, Any], path: Path, draft: int, base: str) -> tuple[int, str]:
        """The draft and the base URI of a schema, which may be a document of its own inside another."""
        if "$schema" in schema:
            draft = draft_of(schema["$schema"], (*path, "$schema"))
        key = "id" if draft == 4 else "$id"
        name = schema.get(key)
        if name is None or (0 < draft <= 7 and "$ref" in schema):
            return draft, base
        if not isinstance(name, str):
            if key == "id":
                return draft, base
            fail((*path, key), f"must be a string, got {show(name)}")
        if name.startswith("#"):
            return draft, base
        return draft, urldefrag(resolved(base, name, (*path, key)))[0]

    def _name(self, schema: dict[str, Any], node: Node) -> None:
        """Notes the anchors of a schema."""
        key = "id" if node.draft == 4 else "$id"
        own = schema.get(key)
        if isinstance(own, str) and own.startswith("#") and len(own) > 1:
            self._add_anchor(own[1:], node, key)
        for key in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(key), str):
                self._add_anchor(schema[key], node, key)
                if key == "$dynamicAnchor":
                    self._dynamic.setdefault(schema[key], []).append(node)
        if schema.get("$recursiveAnchor") is True:
            self._dynamic.setdefault("", []).append(node)

    def _add_anchor(self, name: str, node: Node, key: str) -> None:
        if self._anchors.setdefault((node.base, name), node) is not node:
            fail((*node.path, key), f"must be a name of its own, got {show(name)} a second time")

    def _keywords(self, schema: dict[str, Any], node: Node) -> dict[str, Any]:
        found: dict[str, Any] = {}
        alone = 0 < node.draft <= 7 and "$ref" in schema
        for key, value in schema.items():
            enforced = ENFORCED.get(key)
            if enforced is None or (alone and key != "$ref" and key not in _NAMING):
                if enforced is not None or not (is_annotation(key) or (key == "id" and node.draft == 4)):
                    self._ignore(key, node)
                continue
            rule, is_right = enforced
            if not is_right(value):
                fail((*node.path, key), f"must be {rule}, got {show(value)}")
            if key in _DETAILED and not self._decides(key, value, schema, node):
                continue
            read = value if key in _AS_WRITTEN else self._value(key, value, node)
            if key not in _NAMING:
                found[key] = read
        return found

    def _decides(self, key: str, value: Any, schema: dict[str, Any], node: Node) -> bool:
        """Whether a value of a detailed keyword decides something; GrammarError for one that is wrong where it is."""
        if key == "format" and value not in FORMATS:
            self._ignore_format(value, node)
            return False
        if key == "items" and isinstance(value, list) and (node.draft == 2020 or "prefixItems" in schema):
            fail((*node.path, key), "must be one schema in draft 2020-12; use prefixItems")
        if key in _EXCLUSIVE and isinstance(value, bool) and _EXCLUSIVE[key] not in schema:
            fail((*node.path, key), f"must be a number where there is no {_EXCLUSIVE[key]}, got {show(value)}")
        return True

    def _ignore(self, key: str, node: Node) -> None:
        """Notes a keyword that decides nothing; GrammarError if all keywords have to."""
        if self._strict:
            rule = "must not stand beside $ref in this draft, which would ignore it; use allOf"
            unknown = f"is not a known keyword{nearest(key, ENFORCED)}; leave it out"
            fail((*node.path, key), rule if key in ENFORCED else unknown)
        self.ignored.append(pointer((*node.path, key)))

    def _ignore_format(self, name: str, node: Node) -> None:
        """Notes a format that is not known; GrammarError if all formats have to be."""
        if name in NOTED_FORMATS:
            return
        if self._strict:
            fail(
                (*node.path, "format"), f"must be one of {', '.join(FORMATS)}, got {show(name)}{nearest(name, FORMATS)}"
            )
        self.ignored.append(pointer((*node.path, "format")))

    def _value(self, key: str, value: Any, node: Node) -> Any:
        """The value of a keyword, with the schemas inside it as nodes."""
        path = (*node.path, key)
        if key in self._spelled:
            check_spelling(value, path)
        if key in MAPS:
            found: dict[str, Any] = {}
            for name, inner in value.items():
                is_list = isinstance(inner, list)
                found[name] = inner if is_list else self._read(inner, (*path, name), node.draft, node.base)
            return found
        if key in LISTS or (key == "items" and isinstance(value, list)):
            return tuple(self._read(inner, (*path, i), node.draft, node.base) for i, inner in enumerate(value))
        if key in SINGLE:
            if key in _UNEVALUATED:
                self.has_unevaluated = True
            return self._read(value, path, node.draft, node.base)
        return Decimal(repr(value)) if isinstance(value, float) else value

    def schemas(self) -> Iterator[tuple[Path, Any]]:
        """All schemas of the document as they are written, with their paths."""
        return ((path, self._at(path)) for path in self._nodes)

    # --- references ---------------------------------------------------------------------------------------------------

    def target(self, node: Node, key: str) -> Node:
        """The schema that a reference of a node leads to.

        Raises GrammarError for one that leaves the document, points nowhere, or depends on where it is reached from.
        """
        assert node.keywords is not None
        reference, at = node.keywords[key], (*node.path, key)
        found = self._find(reference, node.base, at)
        name = "" if key == "$recursiveRef" else divided(reference)[1]
        several = self._dynamic.get(name, []) if key != "$ref" else []
        if found in several and len(several) > 1:
            fail(at, "is a keyword that cannot be enforced where several schemas have the anchor; use $ref")
        return found

    def _find(self, reference: str, base: str, at: Path) -> Node:
        address, fragment = divided(reference)
        uri = base if not address else urldefrag(resolved(base, address, at))[0]
        if uri not in self._resources:
            fail(at, f"must be a reference into the schema itself, got {show(reference)}; nothing is fetched")
        resource = max(self._resources[uri], key=lambda each: common(each.path, at))
        goal = unquote(fragment)
        if goal and not goal.startswith("/"):
            found = self._anchors.get((resource.base, goal))
        else:
            found = self._at_pointer(resource, goal)
        if found is None:
            hint = nearest(reference, map(pointer, list(self._nodes)[:2000])) if len(reference) < 200 else ""
            fail(at, f"must point to a schema, got {reference[:60]!r}{hint}")
        return found

    def _at_pointer(self, resource: Node, goal: str) -> Node | None:
        steps, value = list(resource.path), self._at(resource.path)
        for part in goal.split("/")[1:]:
            name: str | int = part.replace("~1", "/").replace("~0", "~")
            if isinstance(value, list):
                name = int(name) if str(name).isdecimal() else -1
                value = value[name] if 0 <= name < len(value) else None
            else:
                value = value.get(name) if isinstance(value, dict) else None
            if value is None:
                return None
            steps.append(name)
        path = tuple(steps)
        if path in self._nodes:
            return self._nodes[path]
        # A place that no keyword calls a schema, such as #/components/schemas/Name.
        is_schema = isinstance(value, (bool, dict))
        return self._read(value, path, resource.draft, resource.base) if is_schema else None

    def _at(self, path: Path) -> Any:
        value: Any = self._raw
        for part in path:
            value = value[part]
        return value


def embedded(schema: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A document as a part of another one, with its references and its draft; `name` is its `$id` if it has none."""
    try:
        draft = draft_of(schema["$schema"], ()) if "$schema" in schema else 0
    except GrammarError:
        draft = 0
    key = "id" if draft == 4 else "$id"
    if 0 < draft <= 7 and "$ref" in schema:
        # An `$id` beside `$ref` would decide nothing, as all that stands there.
        outer = {each: value for each, value in schema.items() if each in _HOLDING or each not in ENFORCED}
        inner = {each: value for each, value in schema.items() if each not in outer}
        return {**outer, key: name, "allOf": [inner]}
    own = schema.get(key)
    is_named = isinstance(own, str) and own.partition("#")[0] != ""
    return dict(schema) if is_named else {**schema, key: name}


def common(path: Path, other: Path) -> int:
    """How many steps two paths have in common."""
    return next((i for i, (a, b) in enumerate(zip(path, other, strict=False)) if a != b), min(len(path), len(other)))


def divided(reference: str) -> tuple[str, str]:
    """The address and the fragment of a reference; mostly it has only that."""
    if reference.startswith("#"):
        return "", reference[1:]
    address, fragment = urldefrag(reference)
    return address, fragment


def draft_of(name: Any, path: Path) -> int:
    """The draft that `$schema` names; GrammarError for one that is not supported."""
    bare = name.removeprefix("https://").removeprefix("http://").rstrip("#") if isinstance(name, str) else ""
    if bare not in DRAFTS:
        fail(path, f"must be draft 2020-12, 2019-09, 7, 6 or 4, got {show(name)}")
    return DRAFTS[bare]


def check_spelling(value: Any, path: Path) -> None:
    """Raises GrammarError for a name or a constant with surrogates, which no text in UTF-8 has."""
    if isinstance(value, str) and not value.isascii() and any("\ud800" <= c <= "\udfff" for c in value):
        fail(path, f"must hold no surrogate, got {show(value)}; leave it out")
    if isinstance(value, list):
        for inner in value:
            check_spelling(inner, path)
    if isinstance(value, dict):
        for name, inner in value.items():
            check_spelling(name, path)
            check_spelling(inner, path)


def resolved(base: str, name: str, path: Path) -> str:
    """A URI reference against a base; GrammarError for one that is none."""
    try:
        return urljoin(base, name) if not name.startswith("urn:") else name
    except ValueError:
        raise refusal(path, f"must be a URI reference, got {show(name)}") from None
