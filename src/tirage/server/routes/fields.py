"""Fields of a request that are the route's own: what they may be, and what their absence means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tirage.dialects import Dialect, DialectError
from tirage.dialects.schema import nullable, schema_of
from tirage.dialects.unsupported import Unsupported
from tirage.fields.rules import BrokenRuleError, Rule, shown


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, the values it takes, what it is when absent or null, and what it means."""

    name: str
    rule: Rule
    default: Any = None
    meaning: str = ""

    def read(self, body: Mapping[str, Any], where: str = "") -> Any:
        """The checked value; DialectError with `where` and the name when it breaks the rule."""
        value = body.get(self.name)
        if value is None:
            return self.default
        try:
            return self.rule.check(value)
        except BrokenRuleError as broken:
            place = f"{where}{self.name}{broken.where}"
            message = f"{place} must be {broken.rule}, got {shown(broken.value)}; leave it out"
            raise DialectError(message, place) from None

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the values, null among them."""
        found = self.rule.schema if isinstance(self.rule, Checked) else schema_of(self.rule)
        return {**nullable(found), "description": self.meaning}


def table(fields: Iterable[Field]) -> dict[str, Field]:
    """The fields by name."""
    return {each.name: each for each in fields}


def read_fields(fields: Mapping[str, Field], body: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The value of every field, in the body or by default; `where` is put before the names in errors."""
    return {name: each.read(body, where) for name, each in fields.items()}


@dataclass(frozen=True, slots=True)
class Checked:
    """A rule that `holds` decides; `schema` is its JSON Schema."""

    text: str
    holds: Callable[[Any], bool]
    schema: Mapping[str, Any]

    def check(self, value: Any) -> Any:
        if not self.holds(value):
            raise BrokenRuleError(self.text, value)
        return value

    def dump(self, value: Any) -> Any:
        return value

    def load(self, plain: Any) -> Any:
        return plain


@dataclass(frozen=True, slots=True)
class Only(Checked):
    """The rule of a field that changes nothing at the values that it takes."""

    unsupported: Unsupported


def only(*values: Any, because: str) -> Only:
    """A rule for a field of which only some values can be kept; `because` says why the others cannot."""
    names = " or ".join(shown(value) for value in values) or "left out"
    unsupported = Unsupported(because, values)
    schema = {"enum": list(values)} if values else {"type": "null"}
    return Only(f"{names}: {because}", unsupported.takes, schema, unsupported)


NOTED = "noted by nobody; accepted because clients send it"
"""What a field means that tells who or what a request is for, and has no part in its answer."""


ANY_TEXT = Checked("a text", lambda value: isinstance(value, str), {"type": "string"})
ANY_LIST = Checked("a list", lambda value: isinstance(value, list), {"type": "array"})
ANY_OBJECT = Checked("an object", lambda value: isinstance(value, dict), {"type": "object"})
ANYTHING = Checked("any value", lambda value: True, {})
TEXTS_BY_NAME = Checked(
    "an object of texts, none of which is a parameter",
    lambda value: isinstance(value, dict) and all(isinstance(each, str) for each in value.values()),
    {"type": "object", "additionalProperties": {"type": "string"}},
)
SHORT_TEXT = Checked(
    "a text of at most 512 characters",
    lambda value: isinstance(value, str) and len(value) <= 512,
    {"type": "string", "maxLength": 512},
)


def body_schema(fields: Mapping[str, Field], dialect: Dialect) -> dict[str, Any]:
    """What a route adds to its entry of the OpenAPI document: the schema of its body."""
    sampling = dialect.schema()
    own = {name: each.schema() for name, each in fields.items()}
    unsupported = {name: each.schema() for name, each in dialect.unsupported.items()}
    properties = {**unsupported, **sampling["properties"], **own}
    schema = {**sampling, "properties": properties}
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
