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
from tirage.guided.regular.charset import EVERY
from tirage.guided.regular.expression import (
    EMPTY,
    Alternatives,
    Chars,
    Complement,
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
FEW_MEMBERS = 32
"""Most members that objects name where whitespace is skipped: the library, which counts the rules that each token may
lead to, would give up at many of them."""
EMPTY_TEXT = '""'
_RULE, _TERMINAL = "\0", "\1"
"""Stand for the prefix before the names of rules and of terminals that many grammars have."""
_ANY = f"{_RULE}any"
_STRING, _SPACE = f"{_TERMINAL}S", f"{_TERMINAL}W"
"""The terminals of any string and of whitespace, which others are made of."""
_APART = '")*+}'
"""What a name may follow without a space; after `?` it would be read as part of the name."""
_BARE = ('"{"', '"}"', '"["', '"]"', '"{""}"', '"[""]"', '","', '":"')
"""The tokens of JSON, in the order of `JsonTokens.all`, as terminals between which whitespace is skipped."""


def may_skip(grammar: SchemaGrammar) -> bool:
    """Whether a lexer may skip whitespace between the terminals of a grammar, which it reads faster than in each.

    It may where any whitespace may be left out, and where the objects have few members.
    """
    return grammar.is_spaced and grammar.tokens.is_space_optional and grammar.members <= FEW_MEMBERS


def schema_lark(grammar: SchemaGrammar, start: str = "start", prefix: str = "", *, skips: bool = False) -> str:
    """The lines of a Lark grammar with a rule `start`; all other names begin with `prefix`.

    With `skips` the whitespace is what the grammar ignores between its terminals, which have then to be ignored only
    once in a row; otherwise it is part of them. `may_skip` has to hold. Raises GrammarError for rules of which too many
    follow each other.
    """
    rules = grammar.rules
    if len(rules) > MOST_DEPTH and (found := depth(rules, ROOT)) > MOST_DEPTH:
        rule = f"must lead from schema to schema in at most about {MOST_DEPTH:,} steps, got {found:,}"
        raise GrammarError(f"schema {rule}; let schemas refer to each other in fewer steps")
    names = {ANY: _ANY}
    for name in rules:
        if name != ANY:
            names[name] = f"{_RULE}r{len(names)}"
    # Where the first rule only refers to another, that one is the start.
    root = rules[ROOT]
    first = root.name if isinstance(root, RuleReference) and root.name != ANY else ROOT
    names[first] = start
    known = known_names(grammar.tokens, skips)
    writer = LarkWriter(names, grammar.tokens, known)
    lines: list[str] = []
    for name, node in rules.items():
        if name == first or name != ROOT:
            lines.append(writer.rule(name, node))
    text = known.defined("\n".join([*lines, *writer.terminals, ""]))
    # A string of Lark may hold no DEL, and nothing but strings does: regular expressions spell it.
    return text.replace(_RULE, prefix).replace(_TERMINAL, prefix.upper()).replace("\x7f", "\\u007f")


class KnownNames(NamedTuple):
    """The terminals of JSON, and the rule of any value, which is in most grammars.

    `texts` are what stands for terminals, by identity, since equality compares whole expressions; `lines` are those of
    terminals by their names, each after those that it is in; `anything` are the rule of any value and its line;
    `skipped` is the line that tells what is skipped between terminals, if there is one.
    """

    texts: Mapping[int, str]
    lines: Mapping[str, str]
    anything: tuple[Expression, str] = EMPTY, ""
    skipped: str = ""

    def defined(self, text: str) -> str:
        """The lines of a grammar with those of the terminals in them; no name begins with another."""
        for name, line in self.lines.items():
            if name in text:
                text += line
        return text + self.skipped


@lru_cache(maxsize=16)
def known_names(tokens: JsonTokens, skips: bool) -> KnownNames:
    """The names for one kind of whitespace, which is skipped or part of the terminals."""
    texts, lines = {id(ANY_STRING): _STRING}, dict[str, str]()
    nodes = {"N": ANY_NUMBER, "I": ANY_INTEGER}
    if skips:
        texts |= zip(map(id, tokens.all), _BARE, strict=True)
    else:
        nodes |= {f"J{i}": node for i, node in enumerate(tokens.all)}
    for letters, node in nodes.items():
        if not isinstance(node.part, LiteralText):
            name = f"{_TERMINAL}{letters}"
            texts[id(node)], lines[name] = name, f"{name}:{printed(node.part, tokens)}\n"
    for name, node in ((_STRING, ANY_STRING.part), (_SPACE, tokens.space)):
        lines[name] = f"{name}:{lark_terminal(node)}\n"
    node = any_value(tokens)[ANY]
    line = LarkWriter({ANY: _ANY}, tokens, KnownNames(texts, lines)).rule(ANY, node)
    skipped = f"%ignore {lark_terminal(some_of(tokens.space))}\n" if skips and tokens.space != EMPTY else ""
    return KnownNames(texts, lines, (node, line), skipped)


def some_of(space: Expression) -> Expression:
    """Whitespace without the empty text: a lexer that may skip nothing would do so before each terminal."""
    match space:
        case Repeat(Chars() as part, 0, high):
            return Repeat(part, 1, high)
    return Intersection((space, Repeat(Chars(EVERY), 1, None)))


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
        """An expression; there is a space before a name only where it would be read as part of what it follows."""
        # Most parts are terminals that have been written before, or name a member.
        written = self._written
        if isinstance(node, Sequence):
            text = ""
            for part in node.parts:
                piece = written.get(id(part)) or self._part(part)
                # Names alone begin with a character before all that is printed.
                text += f" {piece}" if piece < "\2" and text[-1:] not in _APART else piece
            return text
        if isinstance(node, Alternatives):
            pieces: list[str] = []
            for part in node.parts:
                pieces.append((written.get(id(part)) or self._write(part)) or EMPTY_TEXT)
            return "|".join(pieces)
        return written.get(id(node)) or self._part(node)

    def _part(self, node: Expression) -> str:
        """A part of a sequence."""
        if isinstance(node, Terminal):
            part = node.part
            text = encode_basestring(part.text) if isinstance(part, LiteralText) else self._terminal(node)
        elif isinstance(node, RuleReference):
            text = self._names[node.name]
        elif isinstance(node, Repeat):
            return f"({self._write(node.part) or EMPTY_TEXT}){count(node.low, node.high)}"
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
        if isinstance(part, Intersection) and part.parts[0] is ANY_STRING.part:
            body = _other_names(part) or _print(part, self._tokens)
        elif is_constant(part):
            # Not remembered, as the same constants are unlikely to come again.
            body = _print(part, self._tokens)
        else:
            body = printed(part, self._tokens)
        name = self._bodies.get(body)
        if name is None:
            name = self._bodies[body] = f"{_TERMINAL}T{len(self._bodies)}"
            self.terminals.append(f"{name}:{body}")
        return name


def _other_names(node: Intersection) -> str:
    """All strings but the names of one object; "" if one of these has no spelling of its own as a string."""
    _, complement = node.parts
    assert isinstance(complement, Complement)
    names = complement.part.parts if isinstance(complement.part, Alternatives) else (complement.part,)
    texts: list[str] = []
    for name in names:
        if not isinstance(name, LiteralText):
            return ""
        texts.append(encode_basestring(name.text))
    return f"{_STRING}&~({'|'.join(texts)})"
