"""Grammar rules that accept every text of a constraint, and perhaps more: a superset of its language.

The compiled grammars of the backends cannot be searched; these rules can (`token_search`). Where they accept more than
the constraint, for example numbers with fractional bounds, what is found with them has to be checked.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from tirage.guided.charset import Ranges, complement
from tirage.guided.closing.integer_range import integers
from tirage.guided.constraint import Constraint, read_constraint
from tirage.guided.expression import (
    DIGIT,
    EMPTY,
    Alternatives,
    Chars,
    Expression,
    LiteralText,
    Repeat,
    RuleReference,
    Sequence,
)
from tirage.guided.gbnf import read_gbnf
from tirage.guided.llguidance_features import installed_features
from tirage.guided.python_regex import read_pattern
from tirage.guided.reduction import productive, prune
from tirage.guided.schema import pointer, target, walk
from tirage.params import GuidedDecodingParams

MAX_PARTS = 8000
"""Most schemas, names and values in a schema that is translated."""
_MAX_TREE_DEPTH = 60
_NOTHING = Alternatives(())
_NEVER_PLAIN: Ranges = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
"""The characters that JSON strings do not contain unescaped: control characters, the quote and the backslash."""
_UNESCAPED = complement((*_NEVER_PLAIN, (0x7F, 0x7F)))
_ESCAPED = '"\\bfnrt'
_CHAR = Alternatives((
    Chars(_UNESCAPED),
    Sequence((LiteralText("\\"), Chars(tuple((ord(c), ord(c)) for c in sorted(_ESCAPED))))),
))
_LOOSE_CHAR = Alternatives((
    Chars(complement(_NEVER_PLAIN)),
    Sequence((LiteralText("\\"), Chars(tuple((ord(c), ord(c)) for c in sorted('"/\\bfnrtu'))))),
))
_LOOSE_SPACE = Repeat(Chars(((9, 10), (13, 13), (32, 32))), 0, 8)
_DIGITS = Repeat(Chars(DIGIT), 1, None)
_MINUS = Repeat(LiteralText("-"), 0, 1)
_WHOLE = Alternatives((LiteralText("0"), Sequence((Chars(((49, 57),)), Repeat(Chars(DIGIT), 0, None)))))
_FRACTION = Repeat(Sequence((LiteralText("."), _DIGITS)), 0, 1)
_POWER = Repeat(Sequence((Chars(((69, 69), (101, 101))), Repeat(Chars(((43, 43), (45, 45))), 0, 1), _DIGITS)), 0, 1)
_NUMBER = Sequence((_MINUS, _WHOLE, _FRACTION, _POWER))
_TYPES: dict[str, type | tuple[type, ...]] = {
    "null": type(None), "boolean": bool, "integer": int, "number": (int, float), "string": str, "array": list,
    "object": dict,
}  # fmt: skip
_TRANSLATED = {
    "type", "$defs", "definitions", "$anchor", "enum", "const", "anyOf", "oneOf", "allOf", "$ref", "minLength",
    "maxLength", "minimum", "maximum", "items", "prefixItems", "minItems", "maxItems", "properties", "required",
    "additionalProperties", "minProperties", "maxProperties",
}  # fmt: skip
_ALONE = ("$ref", "enum", "const", "anyOf", "oneOf", "allOf")


@dataclass(frozen=True, slots=True)
class SupersetGrammar:
    """Rules, of which `root` is the start, that match every text of a constraint; if `exact`, they match no other."""

    rules: dict[str, Expression]
    root: str
    exact: bool


def superset_grammar(guided: GuidedDecodingParams, *, backend: str = "llguidance") -> SupersetGrammar | None:
    """The rules for a constraint that this backend compiles; None for Lark, structural tags and too large schemas.

    Raises GrammarError for an invalid constraint.
    """
    constraint = read_constraint(guided)
    match constraint.kind:
        case "regex":
            expression = one_of(list(guided.choice)) if guided.choice else constraint.expression
            return SupersetGrammar({"root": expression}, "root", exact=True)
        case "gbnf":
            rules = read_gbnf(constraint.text)
            alive = productive(rules)
            return SupersetGrammar(
                {name: prune(rules[name], alive) for name in rules if name in alive}, "root", exact=True
            )
        case "json":
            return SchemaGrammar(constraint, loose=backend == "xgrammar").read()
    return None


def space_of(whitespace: str) -> Expression:
    """The optional whitespace between two JSON tokens, as the installed llguidance reads its pattern."""
    space = read_pattern(whitespace)
    if installed_features().bounded_whitespace:
        return space
    if isinstance(space, Repeat) and space.low <= 1:
        return Repeat(space.part, space.low, None)
    return Repeat(space, 1, None)


class SchemaGrammar:
    """Translates a schema in the form of `read_schema` to rules.

    `loose` follows xgrammar, which accepts more escapes and spaces than its options say.
    """

    def __init__(self, constraint: Constraint, *, loose: bool) -> None:
        self._schema = json.loads(constraint.text)
        spaces, self._loose = constraint.whitespace, loose
        self._space: Expression = _LOOSE_SPACE if loose else space_of(spaces) if spaces else EMPTY
        self._char = _LOOSE_CHAR if loose else _CHAR
        self._rules: dict[str, Expression] = {}
        self._exact = not loose
        self._places = dict(walk(self._schema, ()))
        self._anchors = {
            inner["$anchor"]: path
            for path, inner in self._places.items()
            if isinstance(inner, dict) and "$anchor" in inner
        }

    def read(self) -> SupersetGrammar | None:
        """The rules; None if the schema is too large."""
        if sum(size_of(schema) for schema in self._places.values()) > MAX_PARTS:
            return None
        self._rules["any"] = self._any_of_types({}, "any")
        for path, schema in self._places.items():
            name = pointer(path)
            self._rules[name] = self._value(schema, name) if isinstance(schema, dict) else self._bare(schema)
        return SupersetGrammar(self._rules, "#", self._exact)

    def _bare(self, schema: bool) -> Expression:
        return RuleReference("any") if schema else _NOTHING

    def _mark_inexact(self) -> None:
        """Records that the rules accept more than the schema does."""
        self._exact = False

    def _value(self, schema: dict[str, Any], name: str) -> Expression:
        if not set(schema) <= _TRANSLATED:
            self._mark_inexact()
        keys = [key for key in _ALONE if key in schema]
        others = set(schema) - {"$defs", "definitions", "$anchor", *keys[:1]}
        if not keys:
            return self._any_of_types(schema, name)
        values = schema.get("enum", [schema.get("const")])
        if keys[0] in {"enum", "const"}:
            return self._constants(values, schema, others)
        if others:
            self._mark_inexact()
        if keys[0] == "$ref":
            return RuleReference(pointer(target(schema["$ref"], self._anchors, self._places, ())))
        if keys[0] == "allOf":
            if len(schema["allOf"]) > 1:
                self._mark_inexact()
            return RuleReference(f"{name}/allOf/0")
        return Alternatives(tuple(RuleReference(f"{name}/{keys[0]}/{i}") for i in range(len(schema[keys[0]]))))

    def _constants(self, values: list[Any], schema: dict[str, Any], others: set[str]) -> Expression:
        types = schema.get("type", list(_TYPES))
        types = [types] if isinstance(types, str) else types
        if others - {"type"}:
            self._mark_inexact()
        parts = [self._constant(value) for value in values if any(is_type(value, one) for one in types)]
        texts = [part.text for part in parts if isinstance(part, LiteralText)]
        return Alternatives((one_of(texts), *(part for part in parts if not isinstance(part, LiteralText))))

    def _constant(self, value: Any) -> Expression:
        if isinstance(value, dict):
            pairs: list[Expression] = [
                Sequence((self._name(key), self._constant(inner))) for key, inner in value.items()
            ]
            return self._between("{", pairs, "}")
        if isinstance(value, list):
            return self._between("[", [self._constant(inner) for inner in value], "]")
        if isinstance(value, float):
            self._mark_inexact()
            return _NUMBER
        return LiteralText(json.dumps(value, ensure_ascii=False))

    def _name(self, name: str) -> Expression:
        return Sequence((LiteralText(json.dumps(name, ensure_ascii=False)), self._space, LiteralText(":"), self._space))

    @property
    def _comma(self) -> Expression:
        return Sequence((self._space, LiteralText(","), self._space))

    def _between(self, opening: str, parts: list[Expression], closing: str) -> Expression:
        """The parts in brackets, separated by commas."""
        if not parts:
            return Sequence((LiteralText(opening), self._space, LiteralText(closing)))
        inner = [one for part in parts for one in (self._comma, part)][1:]
        return self._bracketed(opening, Sequence(tuple(inner)), closing)

    def _bracketed(self, opening: str, inner: Expression, closing: str) -> Expression:
        return Sequence((LiteralText(opening), self._space, inner, self._space, LiteralText(closing)))

    # --- by type -----------------------------------------------------------------------------------------------------

    def _any_of_types(self, schema: dict[str, Any], name: str) -> Expression:
        types = schema.get("type", ["null", "boolean", "number", "string", "array", "object"])
        types = [types] if isinstance(types, str) else types
        # Numbers include the integers; bounds can differ for the two.
        return Alternatives(tuple(self._typed(one, schema, name) for one in types))

    def _typed(self, kind: str, schema: dict[str, Any], name: str) -> Expression:
        match kind:
            case "null":
                return LiteralText("null")
            case "boolean":
                return Alternatives((LiteralText("true"), LiteralText("false")))
            case "integer" | "number":
                return self._number(kind, schema)
            case "string":
                chars = Repeat(self._char, schema.get("minLength", 0), schema.get("maxLength"))
                return Sequence((LiteralText('"'), chars, LiteralText('"')))
            case "array":
                return self._array(schema, name)
        return self._object(schema, name)

    def _number(self, kind: str, schema: dict[str, Any]) -> Expression:
        low, high = schema.get("minimum"), schema.get("maximum")
        if low is None and high is None:
            return _NUMBER if kind == "number" else Sequence((_MINUS, _WHOLE))
        if kind == "integer" and all(bound is None or bound == int(bound) for bound in (low, high)):
            return integers(None if low is None else int(low), None if high is None else int(high))
        self._mark_inexact()
        return _NUMBER if kind == "number" else Sequence((_MINUS, _WHOLE))

    def _array(self, schema: dict[str, Any], name: str) -> Expression:
        fixed = [f"{name}/prefixItems/{i}" for i in range(len(schema.get("prefixItems", ())))]
        rest = f"{name}/items" if "items" in schema else "any"
        low, high = schema.get("minItems", 0), schema.get("maxItems")
        if schema.get("items") is False:
            high = len(fixed) if high is None else min(high, len(fixed))
        fixed = fixed[:high]
        left = None if high is None else high - len(fixed)
        after: Expression = Repeat(Sequence((self._comma, RuleReference(rest))), max(0, low - len(fixed)), left)
        if not fixed:
            least = max(0, low - 1)
            again = Repeat(
                Sequence((self._comma, RuleReference(rest))), least, None if high is None else max(0, high - 1)
            )
            return self._listed(Sequence((RuleReference(rest), again)), low, high)
        for i in reversed(range(1, len(fixed))):
            self._rules[f"{name}//{i}"] = after
            one = Sequence((self._comma, RuleReference(fixed[i]), RuleReference(f"{name}//{i}")))
            after = one if i < low else Repeat(one, 0, 1)
        return self._listed(Sequence((RuleReference(fixed[0]), after)), low, high)

    def _listed(self, inner: Expression, low: int, high: int | None) -> Expression:
        """A list of items, or an empty list if `low` is 0."""
        alternatives = [] if low else [self._between("[", [], "]")]
        return Alternatives((*alternatives, *(() if high == 0 else (self._bracketed("[", inner, "]"),))))

    def _object(self, schema: dict[str, Any], name: str) -> Expression:
        named = {key: f"{name}/properties/{pointer((key,))[2:]}" for key in schema.get("properties", {})}
        rest = f"{name}/additionalProperties" if "additionalProperties" in schema else "any"
        required = schema.get("required", ())
        named |= {key: rest for key in required if key not in named}
        if "patternProperties" in schema:
            rest = "any"
        any_name = Sequence((LiteralText('"'), Repeat(self._char, 0, None), LiteralText('"')))
        key = any_name if self._loose else other_than(list(named))
        extra: Expression = Sequence((key, self._space, LiteralText(":"), self._space, RuleReference(rest)))
        low, high = schema.get("minProperties", 0), schema.get("maxProperties")
        if low <= len(set(required)):
            low = 0
        if named and (low or high is not None):
            self._mark_inexact()
            low, high = 0, None
        return self._members(name, named, set(required), (extra, low, high))

    def _members(
        self, name: str, named: dict[str, str], required: set[str], rest: tuple[Expression, int, int | None]
    ) -> Expression:
        """An object: its named members in order, then others. `rest` is the rule of another member, and its bounds."""
        extra, low, high = rest
        others: Expression = Repeat(
            Sequence((self._comma, extra)), max(0, low - 1), None if high is None else max(0, high - 1)
        )
        none = Sequence((self._space, LiteralText("}")))
        first = Sequence((self._space, extra, others, self._space, LiteralText("}")))
        head: Expression = Alternatives((*(() if low else (none,)), *(() if high == 0 else (first,))))
        tail: Expression = Sequence((others, self._space, LiteralText("}")))
        for i, (key, value) in reversed(list(enumerate(named.items()))):
            self._rules[f"{name}/tail/{i}"], self._rules[f"{name}/head/{i}"] = tail, head
            after, skip = RuleReference(f"{name}/tail/{i}"), RuleReference(f"{name}/head/{i}")
            member = Sequence((self._name(key), RuleReference(value)))
            needed = key in required
            head = Alternatives((Sequence((self._space, member, after)), *(() if needed else (skip,))))
            more: Expression = Sequence((self._comma, member))
            tail = Sequence((more if needed else Repeat(more, 0, 1), after))
        return Sequence((LiteralText("{"), head))


def one_of(texts: list[str]) -> Expression:
    """One of the texts, as a prefix tree of limited depth."""
    return prefix_tree(sorted(set(texts)), 0) if texts else _NOTHING


def prefix_tree(texts: list[str], depth: int) -> Expression:
    """One of the texts, which are sorted and distinct, as a prefix tree."""
    first, last = texts[0], texts[-1]
    start = first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
    rests = [text[len(start) :] for text in texts]
    if len(texts) == 1 or depth == _MAX_TREE_DEPTH:
        return Alternatives(tuple(LiteralText(text) if text else EMPTY for text in texts))
    groups = [prefix_tree(list(group), depth + 1) for char, group in groupby(rests, key=lambda rest: rest[:1]) if char]
    alternatives = Alternatives((*groups, *(() if rests[0] else (EMPTY,))))
    return Sequence((LiteralText(start), alternatives)) if start else alternatives


def is_type(value: Any, kind: str) -> bool:
    """Whether a constant is of a JSON type."""
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, _TYPES[kind])


def size_of(schema: Any) -> int:
    """The number of names and values in one schema."""
    if not isinstance(schema, dict):
        return 1
    return 1 + sum(len(value) for value in schema.values() if isinstance(value, (list, dict)))


def other_than(names: list[str]) -> Expression:
    """The JSON strings that are none of these names, each in its only spelling."""
    return Sequence((LiteralText('"'), differing([tuple(spelled(name)) for name in names])))


def spelled(name: str) -> list[str]:
    """The characters of a string, each as JSON spells it."""
    return [json.dumps(char, ensure_ascii=False)[1:-1] for char in name]


def differing(names: list[tuple[str, ...]]) -> Expression:
    """The rest of a JSON string, with its closing quote, that is the rest of none of the names."""
    if not names:
        return Sequence((Repeat(_CHAR, 0, None), LiteralText('"')))
    alternatives: list[Expression] = [] if () in names else [LiteralText('"')]
    firsts = sorted({name[0] for name in names if name})
    plain = tuple((ord(c), ord(c)) for c in firsts if len(c) == 1)
    free = complement(tuple(sorted({*complement(_UNESCAPED), *plain})))
    escapes = tuple((ord(c), ord(c)) for c in sorted(_ESCAPED) if "\\" + c not in firsts)
    other = Alternatives((Chars(free), Sequence((LiteralText("\\"), Chars(escapes)))))
    alternatives.append(Sequence((other, Repeat(_CHAR, 0, None), LiteralText('"'))))
    alternatives += [
        Sequence((LiteralText(c), differing([name[1:] for name in names if name[:1] == (c,)]))) for c in firsts
    ]
    return Alternatives(tuple(alternatives))
