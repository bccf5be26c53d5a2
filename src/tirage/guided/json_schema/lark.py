"""The grammar of a schema in llguidance's Lark notation."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from json.encoder import encode_basestring
from typing import NamedTuple

from tirage.errors import GrammarError
from tirage.guided.json_schema.emission import ANY, any_value
from tirage.guided.json_schema.grammar import ROOT, SchemaGrammar
from tirage.guided.json_schema.json_tokens import ANY_INTEGER, ANY_NUMBER, ANY_STRING, JsonTokens
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
    writer = LarkWriter(names, grammar.tokens, words(grammar.tokens))
    lines = [writer.rule(name, node) for name, node in rules.items() if name == first or name != ROOT]
    text = "\n".join([*lines, *writer.lines, ""])
    return text.replace(_RULE, prefix).replace(_TERMINAL, prefix.upper())


class Word(NamedTuple):
    """What stands for a node, and the lines that define the terminals in it."""

    text: str
    lines: tuple[str, ...] = ()


Words = Mapping[int, Word]
"""Words by the identity of their nodes, since equality compares whole expressions."""


@lru_cache(maxsize=16)
def words(tokens: JsonTokens) -> Words:
    """The words that many grammars have: terminals of JSON, and the rule of any value, which is in most of them."""
    found = {id(ANY_STRING): Word(f"{_STRING} ", (shared(tokens)[_STRING],))}
    nodes = {"N": ANY_NUMBER, "I": ANY_INTEGER} | {f"J{i}": node for i, node in enumerate(tokens.all)}
    for name, node in nodes.items():
        if not isinstance(node.part, LiteralText):
            body = printed(node.part, tokens)
            found[id(node)] = Word(f"{_TERMINAL}{name} ", (*body.lines, f"{_TERMINAL}{name}:{body.text}"))
    writer, anything = LarkWriter({ANY: _ANY}, tokens, found), any_value(tokens)[ANY]
    return found | {id(anything): Word(writer.rule(ANY, anything), tuple(writer.lines))}


@lru_cache(maxsize=16)
def shared(tokens: JsonTokens) -> Mapping[str, str]:
    """The lines of the terminals that others are made of, by their names."""
    nodes = {_STRING: ANY_STRING.part, _SPACE: tokens.space}
    return {name: f"{name}:{lark_terminal(node)}" for name, node in nodes.items()}


_PRINTED: RecentlyUsed[Word] = RecentlyUsed(most=512, size=1 << 16)


def printed(node: Expression, tokens: JsonTokens) -> Word:
    """The right side of a terminal; remembered, since that of a format takes a while."""
    return _PRINTED.get((node, tokens), lambda: _print(node, tokens), lambda word: len(word.text))


def _print(node: Expression, tokens: JsonTokens) -> Word:
    names = {ANY_STRING.part: _STRING} | ({} if tokens.space == EMPTY else {tokens.space: _SPACE})
    text = lark_terminal(node, names)
    return Word(text, tuple(line for name, line in shared(tokens).items() if name in text))


class LarkWriter:
    """Writes rules, whose names are given, and notes the lines that define their terminals; equal terminals are one."""

    def __init__(self, names: Mapping[str, str], tokens: JsonTokens, known: Words) -> None:
        self._names, self._tokens, self._known = names, tokens, known
        self._terminals: dict[str, str] = {}
        # By identity, as in `Words`; the grammar keeps the nodes alive.
        self._written: dict[int, str] = {}
        self.lines: dict[str, None] = {}

    def rule(self, name: str, node: Expression) -> str:
        """The line of a rule."""
        checkpoint()
        known = self._known.get(id(node))
        if known is not None and not isinstance(node, Terminal):
            self.lines.update(dict.fromkeys(known.lines))
            return known.text
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
            text = encode_basestring(part.text) if isinstance(part, LiteralText) else self._terminal(node)
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

    def _terminal(self, node: Terminal) -> str:
        known = self._known.get(id(node))
        if known is None:
            body, lines = printed(node.part, self._tokens)
            name = self._terminals.get(body)
            if name is None:
                name = self._terminals[body] = f"{_TERMINAL}T{len(self._terminals)}"
            known = Word(f"{name} ", (*lines, f"{name}:{body}"))
        self.lines.update(dict.fromkeys(known.lines))
        return known.text
