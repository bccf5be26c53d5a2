"""The grammar of a schema in llguidance's Lark notation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring
from typing import NamedTuple

from tirage.errors import GrammarError
from tirage.guided.json_schema.emission import ANY, any_value
from tirage.guided.json_schema.grammar import ROOT, SchemaGrammar
from tirage.guided.json_schema.json_tokens import ANY_INTEGER, ANY_NUMBER, ANY_STRING, JsonTokens, is_constant
from tirage.guided.reduction import depth
from tirage.guided.regular.expression import (
    EMPTY,
    Alternatives,
    Expression,
    Intersection,
    LiteralText,
    Repeat,
    RuleReference,
    Sequence,
    Terminal,
    count,
)
from tirage.guided.regular.lark_terminal import Names, lark_terminal
from tirage.recently_used import RecentlyUsed
from tirage.workers.cancel import checkpoint

MOST_DEPTH = 2_500
"""Most rules that follow each other: llguidance recurses into them, on a stack of 64 MiB (`llguidance_backend`)."""
EMPTY_TEXT = '""'
_RULE, _TERMINAL = "\0", "\1"
"""Stand for the prefix before the names of rules and of terminals that many grammars have."""
_ANY = f"{_RULE}any"
_STRING, _SPACE = f"{_TERMINAL}S", f"{_TERMINAL}W"
"""The terminals of any string and of whitespace, which others are made of."""


def schema_lark(grammar: SchemaGrammar, start: str = "start", prefix: str = "") -> str:
    """The lines of a Lark grammar with a rule `start`; all other names begin with `prefix`.

    Raises GrammarError for rules of which too many follow each other.
    """
    rules = grammar.rules
    if len(rules) > MOST_DEPTH and (found := depth(rules, ROOT)) > MOST_DEPTH:
        rule = f"must lead from schema to schema in at most about {MOST_DEPTH:,} steps, got {found:,}"
        raise GrammarError(f"schema {rule}; let schemas refer to each other in fewer steps")
    names = {name: f"{_RULE}r{i}" for i, name in enumerate(rules)}
    names[ANY] = _ANY
    # Where the first rule only refers to another, that one is the start.
    root = rules[ROOT]
    first = root.name if isinstance(root, RuleReference) and root.name != ANY else ROOT
    names[first] = start
    known = known_names(grammar.tokens)
    writer = LarkWriter(names, grammar.tokens, known)
    lines = [writer.rule(name, node) for name, node in rules.items() if name == first or name != ROOT]
    text = known.defined("\n".join([*lines, *writer.terminals, ""]))
    return text.replace(_RULE, prefix).replace(_TERMINAL, prefix.upper())


class KnownNames(NamedTuple):
    """The terminals of JSON, and the rule of any value, which is in most grammars.

    `texts` are what stands for terminals, by identity, since equality compares whole expressions; `lines` are those of
    terminals by their names, each after those that it is in; `anything` are the rule of any value and its line.
    """

    texts: Mapping[int, str]
    lines: Mapping[str, str]
    anything: tuple[Expression, str] = EMPTY, ""

    def defined(self, text: str) -> str:
        """The lines of a grammar with those of the terminals in them; no name begins with another."""
        for name, line in self.lines.items():
            if name in text:
                text += line
        return text


@lru_cache(maxsize=16)
def known_names(tokens: JsonTokens) -> KnownNames:
    """The names for one kind of whitespace."""
    texts, lines = {id(ANY_STRING): f"{_STRING} "}, dict[str, str]()
    nodes = {"N": ANY_NUMBER, "I": ANY_INTEGER} | {f"J{i}": node for i, node in enumerate(tokens.all)}
    for letters, node in nodes.items():
        if not isinstance(node.part, LiteralText):
            name = f"{_TERMINAL}{letters}"
            texts[id(node)], lines[name] = f"{name} ", f"{name}:{printed(node.part, tokens)}\n"
    for name, node in ((_STRING, ANY_STRING.part), (_SPACE, tokens.space)):
        lines[name] = f"{name}:{lark_terminal(node)}\n"
    node = any_value(tokens)[ANY]
    line = LarkWriter({ANY: _ANY}, tokens, KnownNames(texts, lines)).rule(ANY, node)
    return KnownNames(texts, lines, (node, line))


_PRINTED: RecentlyUsed[str] = RecentlyUsed(most=512, size=1 << 16)


def printed(node: Expression, tokens: JsonTokens) -> str:
    """The right side of a terminal; remembered, since that of a format takes a while."""
    return _PRINTED.get((node, tokens), lambda: _print(node, tokens), len)


def _print(node: Expression, tokens: JsonTokens) -> str:
    return lark_terminal(node, inner_names(tokens))


@lru_cache(maxsize=16)
def inner_names(tokens: JsonTokens) -> Names:
    """What stands for any string and for whitespace inside other terminals."""
    return {ANY_STRING.part: _STRING} | ({} if tokens.space == EMPTY else {tokens.space: _SPACE})


class LarkWriter:
    """Writes rules, whose names are given, and the lines of terminals that are not known; equal ones are one."""

    def __init__(self, names: Mapping[str, str], tokens: JsonTokens, known: KnownNames) -> None:
        self._names, self._tokens, self._anything = names, tokens, known.anything
        self._bodies: dict[str, str] = {}
        # By identity, as in `KnownNames`; the grammar keeps the nodes alive.
        self._written: dict[int, str] = {**known.texts}
        self.terminals: list[str] = []

    def rule(self, name: str, node: Expression) -> str:
        """The line of a rule."""
        checkpoint()
        if node is self._anything[0]:
            return self._anything[1]
        return f"{self._names[name]}:{self._write(node) or EMPTY_TEXT}"

    def _write(self, node: Expression) -> str:
        """An expression; a space after terminals and before rules keeps names apart, and a rule from a `?`."""
        # Most parts are terminals that have been written before, or name a member.
        written = self._written
        if isinstance(node, Sequence):
            text = ""
            for part in node.parts:
                text += written.get(id(part)) or self._part(part)
            return text
        if isinstance(node, Alternatives):
            return "|".join([
                (written.get(id(part)) or self._write(part)).rstrip() or EMPTY_TEXT for part in node.parts
            ])
        return written.get(id(node)) or self._part(node)

    def _part(self, node: Expression) -> str:
        """A part of a sequence."""
        if isinstance(node, Terminal):
            part = node.part
            text = encode_basestring(part.text) if isinstance(part, LiteralText) else self._terminal(node)
        elif isinstance(node, RuleReference):
            text = f" {self._names[node.name]}"
        elif isinstance(node, Repeat):
            return f"({self._write(node.part).rstrip() or EMPTY_TEXT}){count(node.low, node.high)}"
        elif isinstance(node, Alternatives):
            return f"({self._write(node)})"
        elif isinstance(node, Sequence):
            return self._write(node)
        else:
            raise ValueError(f"{type(node).__name__} cannot be part of a rule")
        self._written[id(node)] = text
        return text

    def _terminal(self, node: Terminal) -> str:
        part = node.part
        # Constants, and strings but the names of one object: nobody will ask for them again.
        is_own = is_constant(part) or (isinstance(part, Intersection) and part.parts[0] is ANY_STRING.part)
        body = (_print if is_own else printed)(part, self._tokens)
        name = self._bodies.get(body)
        if name is None:
            name = self._bodies[body] = f"{_TERMINAL}T{len(self._bodies)}"
            self.terminals.append(f"{name}:{body}")
        return f"{name} "
