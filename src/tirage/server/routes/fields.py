"""The fields of a route's body: one table per route, from which come checks, defaults, known names and the schema."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tirage.dialects import DialectError
from tirage.dialects.schema import nullable, schema_of
from tirage.dialects.unsupported import Unsupported
from tirage.fields.rules import BrokenRuleError, Plain, Rule, shown
from tirage.params import SamplingParams


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, the values it takes, its value when absent or null, and what it means.

    A field `per_prompt` may hold a list with one value for each prompt of a batch. `remedy` ends its error message.
    """

    name: str
    rule: Rule
    default: Any = None
    meaning: str = ""
    per_prompt: bool = False
    remedy: str = "leave it out"

    def read(self, body: Mapping[str, Any], where: str = "") -> Any:
        """The checked value in a body; raises DialectError with `where` and the name when it breaks the rule."""
        return self.check(body.get(self.name), where + self.name)

    def check(self, value: Any, place: str) -> Any:
        """The value as the rule stores it, the default for null; raises DialectError with the place of a wrong one."""
        if value is None:
            return self.default
        try:
            return self.rule.check(value)
        except BrokenRuleError as broken:
            place += broken.where
            message = f"{place} must be {broken.rule}, got {shown(broken.value)}; {self.remedy}"
            raise DialectError(message, place) from None

    @property
    def has_reader(self) -> bool:
        """Whether a reader of its own checks the field, after `read`, which accepts any value."""
        return isinstance(self.rule, Structured)

    def schema(self) -> dict[str, Any]:
        """JSON Schema of the values, null included."""
        found = self.rule.schema if isinstance(self.rule, Checked) else schema_of(self.rule)
        values = one_or_list(found) if self.per_prompt else nullable(found)
        return {**values, "description": self.meaning, "default": self.default}


def table(fields: Iterable[Field]) -> dict[str, Field]:
    """The fields by name."""
    return {each.name: each for each in fields}


def check_streamed_samples(params: SamplingParams, where: str = "") -> None:
    """Raises DialectError for the parameters of a stream that choose among samples, which the end alone can tell."""
    if params.best_of is not None and params.best_of > params.n:
        place = f"{where}best_of"
        raise DialectError(f"{place} must be n to stream, got {params.best_of}; leave it out", place)


def read_fields(fields: Mapping[str, Field], body: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    """The value of every field, from the body or by default; `where` is put before the names in errors."""
    return {name: each.read(body, where) for name, each in fields.items()}


@dataclass(frozen=True, slots=True)
class Checked(Plain):
    """A rule given by a predicate, `holds`; `schema` is its JSON Schema."""

    text: str
    holds: Callable[[Any], bool]
    schema: Mapping[str, Any]

    def check(self, value: Any) -> Any:
        """The value; raises BrokenRuleError when `holds` is false of it."""
        if not self.holds(value):
            raise BrokenRuleError(self.text, value)
        return value


@dataclass(frozen=True, slots=True)
class Only(Checked):
    """The rule of a field that is accepted only at the values where it changes nothing."""

    unsupported: Unsupported


def only(*values: Any, because: str) -> Only:
    """A rule that accepts only these values, or none; `because` says why it refuses the others."""
    names = " or ".join(shown(value) for value in values) or "left out"
    unsupported = Unsupported(because, values)
    schema = {"enum": list(values)} if values else {"type": "null"}
    return Only(f"{names}: {because}", unsupported.takes, schema, unsupported)


@dataclass(frozen=True, slots=True)
class Structured(Checked):
    """The rule of a field with a reader of its own, which checks what a rule cannot."""


def structured(schema: Mapping[str, Any]) -> Structured:
    """The rule of a field with a reader of its own; the schema describes what that accepts."""
    return Structured("any value", lambda value: True, schema)


NOTED = "noted by nobody; accepted because clients send it"
"""The meaning of a field that says who or what a request is for and has no effect on the answer."""

ANY_TEXT = Checked("a text", lambda value: isinstance(value, str), {"type": "string"})
ANY_LIST = Checked("a list", lambda value: isinstance(value, list), {"type": "array"})
ANY_OBJECT = Checked("an object", lambda value: isinstance(value, dict), {"type": "object"})
ANYTHING = structured({})
METADATA = Checked(
    "an object of at most 16 texts of at most 512 characters, with names of at most 64, and no parameter",
    lambda value: (
        isinstance(value, dict)
        and len(value) <= 16
        and all(len(name) <= 64 and isinstance(text, str) and len(text) <= 512 for name, text in value.items())
    ),
    {"type": "object", "maxProperties": 16, "additionalProperties": {"type": "string", "maxLength": 512}},
)
SHORT_TEXT = Checked(
    "a text of at most 512 characters",
    lambda value: isinstance(value, str) and len(value) <= 512,
    {"type": "string", "maxLength": 512},
)


CACHE_SALT = Checked(
    "a text of 1 to 512 characters",
    lambda value: isinstance(value, str) and 0 < len(value) <= 512,
    {"type": "string", "minLength": 1, "maxLength": 512},
)
"""What parts the cached prefixes of one key's requests, as in vLLM."""


def one_or_list(schema: Mapping[str, Any]) -> dict[str, Any]:
    """JSON Schema of one value for all prompts, or a list with one for each."""
    return {"anyOf": [dict(schema), {"type": "array", "items": nullable(schema), "minItems": 1}, {"type": "null"}]}


class HasSchema(Protocol):
    """What has a JSON Schema: a field of a route or of a dialect."""

    def schema(self) -> dict[str, Any]: ...


def object_schema(*tables: Mapping[str, HasSchema], required: Sequence[str] = ()) -> dict[str, Any]:
    """JSON Schema of an object with these fields and no others; of two with one name the last counts."""
    properties = {name: each.schema() for fields in tables for name, each in fields.items()}
    schema: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**schema, "required": list(required)} if required else schema


def json_body(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body has this schema."""
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": dict(schema)}}}}
