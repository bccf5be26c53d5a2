"""Structural tags in llguidance's notation."""

from __future__ import annotations

import json
from typing import Any

from tirage.guided.expression import Text, to_regex
from tirage.guided.lexemes import regex_lark
from tirage.guided.pattern import read_pattern


def tagged_lark(given: dict[str, Any], whitespace: str) -> str:
    """Lark text for a format that `read_tags` has checked."""
    return Writer(whitespace).lark(given)


class Writer:
    """Writes a rule per format."""

    def __init__(self, whitespace: str) -> None:
        self._whitespace = whitespace
        self._lines: list[str] = []

    def lark(self, given: dict[str, Any]) -> str:
        """Every rule, `start` first."""
        start = self._rule(given)
        return "\n".join([f"start: {start}", *self._lines, "FREE: /(.|\\n)+/"]) + "\n"

    def _add(self, body: str, options: str = "") -> str:
        name = f"f{len(self._lines)}"
        self._lines.append(f"{name}{options}: {body}")
        return name

    def _rule(self, given: dict[str, Any]) -> str:
        """The name of a rule for a format."""
        from tirage.guided.llg import json_rule

        match given["type"]:
            case "const_string":
                return self._add(quote(given["value"]))
            case "json_schema":
                return self._add(json_rule(json.dumps(given["json_schema"]), self._whitespace))
            case "regex":
                return self._pattern(given["pattern"])
            case "sequence":
                return self._add(" ".join(map(self._rule, given["elements"])))
            case "or":
                return self._add(" | ".join(map(self._rule, given["elements"])))
            case "tag":
                return self._add(self._tag(given, given["begin"]))
        return self._triggered(given)

    def _pattern(self, pattern: str) -> str:
        start, lexeme = regex_lark(read_pattern(pattern)).splitlines()
        name = f"P{len(self._lines)}"
        self._lines.append(lexeme.replace("LEXEME", name, 1))
        return self._add(start.removeprefix("start: ").replace("LEXEME", name, 1))

    def _tag(self, given: dict[str, Any], begin: str) -> str:
        return " ".join(part for part in (quote(begin), self._rule(given["content"]), quote(given["end"])) if part)

    def _triggered(self, given: dict[str, Any]) -> str:
        """Free text in which a trigger, as soon as it is written, binds what follows to its tags."""
        bodies = []
        for trigger in given["triggers"]:
            # A lazy lexeme ends with the first trigger, so free text cannot run past one.
            free = self._add(f"/(.|\\n)*{to_regex(Text(trigger))}/", "[lazy]")
            tags = [tag for tag in given["tags"] if tag["begin"].startswith(trigger)]
            inner = [f"({self._tag(tag, tag['begin'].removeprefix(trigger))})" for tag in tags]
            bodies.append(f"{free} ({' | '.join(inner)})")
        return self._add(f"({' | '.join(bodies)})* FREE?")


def quote(text: str) -> str:
    """A text as a lexeme; nothing for the empty one."""
    return f"/{to_regex(Text(text))}/" if text else ""
