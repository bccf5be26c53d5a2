"""The grammar of a schema in llguidance's Lark notation."""

from __future__ import annotations

from functools import lru_cache
from json.encoder import encode_basestring

from tirage.errors import GrammarError
from tirage.guided.json_schema.grammar import ROOT, SchemaGrammar
from tirage.guided.json_schema.json_tokens import ANY_STRING
from tirage.guided.reduction import depth
from tirage.guided.regular.expression import (
    EMPTY,
    Alternatives,
    Expression,
    LiteralText,
    Repeat,
    RuleReference,
    Sequence,
    Terminal,
    count,
)
from tirage.guided.regular.lark_terminal import lark_terminal
from tirage.workers.cancel import checkpoint

MOST_DEPTH = 2_500
"""Most rules that follow each other: llguidance recurses into them, on a stack of 64 MiB (`llguidance_backend`)."""


def schema_lark(grammar: SchemaGrammar, start: str = "start", prefix: str = "") -> list[str]:
    """The lines of a Lark grammar with a rule `start`; all other names begin with `prefix`.

    Raises GrammarError for rules of which too many follow each other.
    """
    if len(grammar.rules) > MOST_DEPTH and (found := depth(grammar.rules, ROOT)) > MOST_DEPTH:
        rule = f"must lead from schema to schema in at most about {MOST_DEPTH:,} steps, got {found:,}"
        raise GrammarError(f"schema {rule}; let schemas refer to each other in fewer steps")
    return LarkWriter(grammar, start, prefix).lines()


EMPTY_TEXT = '""'
_STRING, _SPACE = "\0S", "\0W"
"""Stand for the terminals of any string and of whitespace, which others are made of."""


@lru_cache(maxsize=512)
def printed(node: Expression, space: Expression) -> str:
    """The right side of a terminal; remembered, since that of a format takes a while."""
    names = {ANY_STRING.part: _STRING} | ({} if space == EMPTY else {space: _SPACE})
    return lark_terminal(node, names)


class LarkWriter:
    """Names rules and terminals; equal terminals are one."""

    def __init__(self, grammar: SchemaGrammar, start: str, prefix: str) -> None:
        self._grammar, self._prefix = grammar, prefix
        self._names = {name: f"{prefix}r{i}" for i, name in enumerate(grammar.rules)}
        self._names[next(iter(grammar.rules))] = start
        self._terminals: dict[str, str] = {}
        # By identity, since equality compares whole expressions; the grammar keeps them alive.
        self._written: dict[int, str] = {}

    def lines(self) -> list[str]:
        """The rules, then the terminals."""
        rules = [self._rule(name, node) for name, node in self._grammar.rules.items()]
        return [*rules, *(f"{name}:{body}" for body, name in self._terminals.items())]

    def _rule(self, name: str, node: Expression) -> str:
        checkpoint()
        return f"{self._names[name]}:{self._write(node) or EMPTY_TEXT}"

    def _write(self, node: Expression) -> str:
        """An expression; a space after terminals and before rules keeps names apart, and a rule from a `?`."""
        # Most parts are terminals that have been written before, or name a member.
        if isinstance(node, Sequence):
            written = self._written
            return "".join([written.get(id(part)) or self._part(part) for part in node.parts])
        if isinstance(node, Repeat):
            return f"({self._write(node.part).rstrip() or EMPTY_TEXT}){count(node.low, node.high)}"
        if isinstance(node, Alternatives):
            written = self._written
            return "|".join([
                (written.get(id(part)) or self._write(part)).rstrip() or EMPTY_TEXT for part in node.parts
            ])
        return self._written.get(id(node)) or self._part(node)

    def _part(self, node: Expression) -> str:
        """A part of a sequence."""
        if isinstance(node, Terminal):
            part = node.part
            text = encode_basestring(part.text) if isinstance(part, LiteralText) else self._terminal(part)
        elif isinstance(node, RuleReference):
            text = f" {self._names[node.name]}"
        elif isinstance(node, Alternatives):
            return f"({self._write(node)})"
        elif isinstance(node, (Sequence, Repeat)):
            return self._write(node)
        else:
            raise ValueError(f"{type(node).__name__} cannot be part of a rule")
        self._written[id(node)] = text
        return text

    def _terminal(self, part: Expression) -> str:
        body = printed(part, self._grammar.space)
        if "\0" in body:
            if _STRING in body:
                body = body.replace(_STRING, self._named(printed(ANY_STRING.part, EMPTY)))
            if _SPACE in body:
                body = body.replace(_SPACE, self._named(printed(self._grammar.space, EMPTY)))
        return f"{self._named(body)} "

    def _named(self, body: str) -> str:
        found = self._terminals.get(body)
        if found is None:
            found = self._terminals[body] = f"{self._prefix.upper()}T{len(self._terminals)}"
        return found
