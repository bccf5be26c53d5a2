"""Translation of structural tags, and of the schemas in them, to llguidance's Lark notation."""

from __future__ import annotations

import json
from itertools import groupby
from typing import Any

from tirage.guided.expression import Expression, LiteralText, choice, sequence, to_regex
from tirage.guided.gbnf_to_lark import regex_lark
from tirage.guided.llguidance_features import adapted, installed_features, schema_rule
from tirage.guided.python_regex import read_pattern


def json_rule(schema: str, whitespace: str) -> str:
    """A schema as part of a Lark rule; GrammarError for one that the installed llguidance would not enforce."""
    return schema_rule(adapted(json.loads(schema), installed_features()), whitespace)


def tagged_lark(given: dict[str, Any], whitespace: str) -> str:
    """A Lark grammar for a format that `read_tags` has validated."""
    return StructuralTagWriter(whitespace).lark(given)


class StructuralTagWriter:
    """Writes one Lark rule per format."""

    def __init__(self, whitespace: str) -> None:
        self._whitespace = whitespace
        self._lines: list[str] = []

    def lark(self, given: dict[str, Any]) -> str:
        """The expression grammar, beginning with the rule `start`."""
        start = self._rule(given)
        return "\n".join([f"start: {start}", *self._lines, "FREE: /(.|\\n)+/"]) + "\n"

    def _add(self, body: str, options: str = "") -> str:
        name = f"f{len(self._lines)}"
        self._lines.append(f"{name}{options}: {body}")
        return name

    def _rule(self, given: dict[str, Any]) -> str:
        """Adds the rule of a format; returns its name."""
        expression = regular(given)
        if expression is not None:
            return self._pattern(expression)
        match given["type"]:
            case "json_schema":
                return self._add(json_rule(json.dumps(given["json_schema"]), self._whitespace))
            case "sequence":
                return self._add(" ".join(map(self._rule, merged_runs(given["elements"]))))
            case "or":
                return self._add(" | ".join(map(self._rule, given["elements"])))
            case "tag":
                return self._add(self._tag(given, given["begin"]))
            case "tags_with_separator":
                return self._separated(given)
        return self._triggered(given)

    def _pattern(self, node: Expression) -> str:
        start, lexeme = regex_lark(node).splitlines()
        name = f"P{len(self._lines)}"
        self._lines.append(lexeme.replace("LEXEME", name, 1))
        return self._add(start.removeprefix("start: ").replace("LEXEME", name, 1))

    def _tag(self, given: dict[str, Any], begin: str) -> str:
        expression = regular(given | {"begin": begin})
        if expression is not None:
            return self._pattern(expression)
        if given["content"]["type"] == "any_text":
            return f"{quote(begin)} {self._until(given['end'])}"
        return " ".join(part for part in (quote(begin), self._rule(given["content"]), quote(given["end"])) if part)

    def _until(self, end: str) -> str:
        """Adds a rule for free text up to and including the first `end`; returns its name."""
        return self._add(f"/(.|\\n)*{to_regex(LiteralText(end))}/", "[lazy]")

    def _separated(self, given: dict[str, Any]) -> str:
        tag = self._add(" | ".join(f"({self._tag(one, one['begin'])})" for one in given["tags"]))
        more = "" if given["stop_after_first"] else f" ({quote(given['separator'])} {tag})*"
        return self._add(f"{tag}{more}" if given["at_least_one"] else f"({tag}{more})?")

    def _triggered(self, given: dict[str, Any]) -> str:
        """Adds a rule for free text in which what follows a trigger must be one of its tags; returns its name."""
        bodies = []
        for trigger in given["triggers"]:
            # Free text ends at the first trigger, so it cannot contain one.
            tags = [tag for tag in given["tags"] if tag["begin"].startswith(trigger)]
            inner = [f"({self._tag(tag, tag['begin'].removeprefix(trigger))})" for tag in tags]
            bodies.append(f"{self._until(trigger)} ({' | '.join(inner)})")
        tagged = f"({' | '.join(bodies)})"
        if given["at_least_one"]:
            first = self._add(" | ".join(f"({self._tag(tag, tag['begin'])})" for tag in given["tags"]))
            return self._add(first if given["stop_after_first"] else f"{first} {tagged}* FREE?")
        return self._add(f"{tagged} | FREE?" if given["stop_after_first"] else f"{tagged}* FREE?")


def regular(given: dict[str, Any]) -> Expression | None:
    """The format as one expression; None if it contains a schema or free text.

    An expression becomes one lexeme. Adjacent lexemes would each take the longest match, wherever a part could end.
    """
    match given["type"]:
        case "const_string":
            return LiteralText(given["value"])
        case "regex":
            return read_pattern(given["pattern"])
        case "sequence" | "or":
            parts = [regular(one) for one in given["elements"]]
            known = [part for part in parts if part is not None]
            if len(known) < len(parts):
                return None
            return sequence(known) if given["type"] == "sequence" else choice(known)
        case "tag":
            inner = regular(given["content"])
            return None if inner is None else sequence([*text(given["begin"]), inner, *text(given["end"])])
    return None


def merged_runs(elements: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The elements of a sequence, with runs of regular formats merged into one format each."""
    runs = [(expression, list(run)) for expression, run in groupby(elements, lambda one: regular(one) is not None)]
    parts = [[{"type": "sequence", "elements": run}] if expression else run for expression, run in runs]
    return [one for part in parts for one in part]


def text(spelled: str) -> list[Expression]:
    """A text as the parts of a sequence: none if it is empty."""
    return [LiteralText(spelled)] if spelled else []


def quote(text: str) -> str:
    """A text as a lexeme; "" if it is empty."""
    return f"/{to_regex(LiteralText(text))}/" if text else ""
