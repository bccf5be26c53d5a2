"""Fields of a request that are the route's own: what they may be, and what their absence means."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from tirage.dialects import DialectError
from tirage.params.rules import BrokenRuleError, Custom, Rule, shown


@dataclass(frozen=True, slots=True)
class Field:
    """One field: its name, the values it takes, what it is when absent or null, and what it means."""

    name: str
    rule: Rule
    default: Any = None
    meaning: str = ""

    def read(self, body: Mapping[str, Any]) -> Any:
        """The checked value; DialectError with the name when it breaks the rule."""
        value = body.get(self.name)
        if value is None:
            return self.default
        try:
            return self.rule.check(value)
        except BrokenRuleError as broken:
            message = f"{self.name}{broken.where} must be {broken.rule}, got {shown(broken.value)}"
            raise DialectError(f"{message}; leave it out", f"{self.name}{broken.where}") from None


def table(fields: Iterable[Field]) -> dict[str, Field]:
    """The fields by name."""
    return {each.name: each for each in fields}


def read_fields(fields: Mapping[str, Field], body: Mapping[str, Any]) -> dict[str, Any]:
    """The value of every field, in the body or by default."""
    return {name: each.read(body) for name, each in fields.items()}


def checked(text: str, holds: Callable[[Any], bool]) -> Rule:
    """A rule that a value is as the text says."""

    def check(value: Any) -> Any:
        if not holds(value):
            raise BrokenRuleError(text, value)
        return value

    return Custom(text, check, lambda value: value, lambda plain: plain)


def only(*values: Any, because: str) -> Rule:
    """A rule for a field of which only some values can be kept; `because` says why the others cannot."""
    names = " or ".join(shown(value) for value in values) or "left out"
    return checked(f"{names}: {because}", lambda value: any(value == v and type(value) is type(v) for v in values))


ANY_TEXT = checked("a text", lambda value: isinstance(value, str))
ANY_LIST = checked("a list", lambda value: isinstance(value, list))
ANY_OBJECT = checked("an object", lambda value: isinstance(value, dict))
ANYTHING = checked("any value", lambda value: True)
SHORT_TEXT = checked("a text of at most 512 characters", lambda value: isinstance(value, str) and len(value) <= 512)
