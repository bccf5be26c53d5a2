"""Translation of structural tags, and of the schemas in them, to llguidance's Lark notation."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from tirage.guided.gbnf import read_gbnf
from tirage.guided.gbnf_to_lark import regex_lark, to_lark
from tirage.guided.json_schema import compile_schema
from tirage.guided.json_schema.lark import schema_lark
from tirage.guided.regular.expression import Expression, LiteralText, Repeat, choice, count, sequence, to_regex
from tirage.guided.regular.python_regex import read_pattern

CHAR = "(?:.|\\n)"
ANY = f"{CHAR}*"


def tagged_lark(given: dict[str, Any], whitespace: str, special: Mapping[int, bytes] | None = None) -> str:
    """A Lark grammar for a format that `read_tags` has validated.

    What is spelled like one of the `special` tokens may be written by that token, too.
    """
    known = {spelled.decode("utf-8", "replace"): i for i, spelled in (special or {}).items() if spelled}
    text = json.dumps(given, ensure_ascii=False)
    return StructuralTagWriter(whitespace, {one: i for one, i in known.items() if as_json(one) in text}).lark(given)


def as_json(text: str) -> str:
    """A text as it stands inside a JSON string."""
    return json.dumps(text, ensure_ascii=False)[1:-1]


class StructuralTagWriter:
    """Writes one Lark rule per format. `special` are the special tokens that may be part of it, by spelling."""

    def __init__(self, whitespace: str, special: Mapping[str, int]) -> None:
        self._whitespace, self._special = whitespace, special
        longest_first = sorted(special, key=len, reverse=True)
        self._tokens = re.compile("|".join(map(re.escape, longest_first))) if special else None
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
        expression = self._regular(given)
        if expression is not None:
            return self._pattern(expression)
        match given["type"]:
            case "const_string":
                return self._add(self._text(given["value"]))
            case "json_schema":
                return self._schema(given["json_schema"])
            case "grammar":
                return self._grammar(given["grammar"])
            case "sequence":
                return self._add(" ".join(map(self._rule, self._merged(given["elements"]))) or '""')
            case "or":
                return self._add(" | ".join(map(self._rule, given["elements"])))
            case "optional" | "star" | "plus" | "repeat":
                return self._add(f"({self._rule(given['content'])}){count(*bounds(given))}")
            case "tag":
                return self._add(self._tag(given, given["begin"]))
            case "tags_with_separator":
                return self._separated(given)
        return self._triggered(given)

    def _schema(self, schema: Any) -> str:
        """Adds the rules of a schema; returns the name of the first."""
        name = f"f{len(self._lines)}"
        grammar = compile_schema(json.dumps(schema, ensure_ascii=False), self._whitespace)
        self._lines += schema_lark(grammar, name, f"{name}_").removesuffix("\n").split("\n")
        return name

    def _regular(self, given: dict[str, Any]) -> Expression | None:
        """The format as one expression; None if it contains a schema, free text or special tokens."""
        holds_token = self._tokens is not None and self._tokens.search(json.dumps(given, ensure_ascii=False))
        return None if holds_token else regular(given)

    def _merged(self, elements: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The elements of a sequence, with runs of regular formats merged into one format each."""
        runs = [(known, list(run)) for known, run in groupby(elements, lambda one: self._regular(one) is not None)]
        parts = [[{"type": "sequence", "elements": run}] if known else run for known, run in runs]
        return [one for part in parts for one in part]

    def _text(self, text: str) -> str:
        """A text as lexemes and special tokens; "" if it is empty."""
        if self._tokens is None or not self._tokens.search(text):
            return quote(text)
        spelled = self._tokens.findall(text)
        others = self._tokens.split(text)
        parts = [quote(others[0])]
        for token, other in zip(spelled, others[1:], strict=True):
            parts += [f"({self._token(token)} | {quote(token)})", quote(other)]
        return " ".join(filter(None, parts))

    def _token(self, spelled: str) -> str:
        return f"<[{self._special[spelled]}]>"

    def _pattern(self, node: Expression) -> str:
        start, lexeme = regex_lark(node).splitlines()
        name = f"P{len(self._lines)}"
        self._lines.append(lexeme.replace("LEXEME", name, 1))
        return self._add(start.removeprefix("start: ").replace("LEXEME", name, 1))

    def _grammar(self, text: str) -> str:
        """Adds the rules of a grammar in GBNF under names of their own; returns that of its root."""
        prefix = f"g{len(self._lines)}"
        for line in to_lark(read_gbnf(text)).splitlines():
            name, _, body = line.partition(": ")
            if not name.isupper() and not re.fullmatch(r"L\d+", name):
                body = re.sub(r"\b(?:start|LEXEME|r\d+|L\d+)\b", lambda found: renamed(prefix, found[0]), body)
            self._lines.append(f"{renamed(prefix, name)}: {body}")
        return renamed(prefix, "start")

    def _tag(self, given: dict[str, Any], begin: str) -> str:
        expression = self._regular(given | {"begin": begin})
        if expression is not None:
            return self._pattern(expression)
        content = given["content"]
        if content["type"] == "any_text":
            until = self._until(given["end"], content["excludes"], content.get("lengths"))
            return " ".join(filter(None, (self._text(begin), until)))
        ends = [self._text(end) for end in given["end"]]
        last = ends[0] if len(ends) == 1 else "(" + " | ".join(end or '""' for end in ends) + ")"
        return " ".join(filter(None, (self._text(begin), self._rule(content), last))) or '""'

    def _until(self, ends: Sequence[str], excludes: Sequence[str], lengths: Sequence[int | None] | None = None) -> str:
        """Adds a rule for free text up to and including the first of `ends`; returns its name."""
        last = "|".join(to_regex(LiteralText(end)) for end in ends)
        free = self._free(excludes, lengths)
        whole = f"/{ANY}(?:{last})/" if free == f"/{ANY}/" else self._terminal(f"({free}) /(?:{last})/")
        lazy = self._add(whole, "[lazy]")
        begun = [(end, self._tokens.match(end)) for end in ends] if self._tokens is not None else []
        tokens = {end: found[0] for end, found in begun if found is not None}
        if not tokens:
            return lazy
        low, high = lengths or (0, None)
        bare = self._terminal(self._free([*excludes, *tokens], [max(1, low or 0), high]))
        by_token = " | ".join(f"{self._token(one)} {self._text(end[len(one) :])}" for end, one in tokens.items())
        return self._add(f"{lazy} | {bare}{'' if low else '?'} ({by_token})")

    def _free(self, excludes: Sequence[str], lengths: Sequence[int | None] | None = None) -> str:
        """The expression of a terminal for free text without some strings."""
        low, high = lengths or (0, None)
        free = f"/{ANY}/" if not low and high is None else f"/{CHAR}{count(low or 0, high)}/"
        if not excludes:
            return free
        return f"{free} & ~/{ANY}(?:{'|'.join(to_regex(LiteralText(one)) for one in excludes)}){ANY}/"

    def _terminal(self, body: str) -> str:
        """Adds a terminal; returns its name."""
        name = f"T{len(self._lines)}"
        self._lines.append(f"{name}: {body}")
        return name

    def _separated(self, given: dict[str, Any]) -> str:
        tag = self._add(" | ".join(f"({self._tag(one, one['begin'])})" for one in given["tags"]))
        more = "" if given["stop_after_first"] else f" ({self._text(given['separator'])} {tag})*"
        return self._add(f"{tag}{more}" if given["at_least_one"] else f"({tag}{more})?")

    def _triggered(self, given: dict[str, Any]) -> str:
        """Adds a rule for free text in which what follows a trigger must be one of its tags; returns its name."""
        bodies, excludes = [], given["excludes"]
        last = "FREE" if not excludes else self._terminal(self._free(excludes, (1, None)))
        for trigger in given["triggers"]:
            # Free text ends at the first trigger, so it cannot contain one.
            tags = [tag for tag in given["tags"] if tag["begin"].startswith(trigger)]
            inner = [f"({self._tag(tag, tag['begin'].removeprefix(trigger))})" for tag in tags]
            bodies.append(f"{self._until([trigger], excludes)} ({' | '.join(inner)})")
        tagged = f"({' | '.join(bodies)})"
        if given["at_least_one"]:
            first = self._add(" | ".join(f"({self._tag(tag, tag['begin'])})" for tag in given["tags"]))
            return self._add(first if given["stop_after_first"] else f"{first} {tagged}* {last}?")
        return self._add(f"{tagged} | {last}?" if given["stop_after_first"] else f"{tagged}* {last}?")


def renamed(prefix: str, name: str) -> str:
    """The name of a rule or, in capitals, of a terminal of a grammar that is part of another."""
    return f"{prefix.upper()}{name}" if name[0].isupper() else f"{prefix}{name}"


def bounds(given: dict[str, Any]) -> tuple[int, int | None]:
    """How often the content of a format may come."""
    most = given.get("max", -1)
    known: dict[str, tuple[int, int | None]] = {"optional": (0, 1), "star": (0, None), "plus": (1, None)}
    return known.get(given["type"], (given.get("min", 0), None if most < 0 else most))


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
        case "optional" | "star" | "plus" | "repeat":
            inner = regular(given["content"])
            return None if inner is None else Repeat(inner, *bounds(given))
        case "tag":
            inner = regular(given["content"])
            last = choice([sequence(text(end)) for end in given["end"]])
            return None if inner is None else sequence([*text(given["begin"]), inner, last])
    return None


def text(spelled: str) -> list[Expression]:
    """A text as the parts of a sequence: none if it is empty."""
    return [LiteralText(spelled)] if spelled else []


def quote(text: str) -> str:
    """A text as a lexeme; "" if it is empty."""
    return f"/{to_regex(LiteralText(text))}/" if text else ""
