"""Translation of grammar rules to Lark: the rules are cut into lexemes without changing what they match.

llguidance reads a grammar in two layers: a lexer that always prefers the longest match, and rules over its lexemes.
Lexemes of one character are always correct but slow. A longer one is correct if the longest match is never the wrong
one: after a text that some lexeme matches, no other lexeme may continue with a byte that the grammar also allows to
come next. This module cuts the rules into the largest such lexemes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tirage.guided.reduction import nullable, positions, reduced
from tirage.guided.regular.charset import first_bytes
from tirage.guided.regular.expression import (
    Alternatives,
    Chars,
    Expression,
    LiteralText,
    Repeat,
    RuleReference,
    Sequence,
    count,
    to_regex,
)
from tirage.guided.regular.position_automaton import PositionAutomaton, extensions

LARGEST = 256
"""Most positions of characters in one lexeme; the search for conflicts grows with the product of two lexemes'."""
GROUPS = 16
"""Most groups inside each other in a rule; llguidance reads about 30."""
STEPS = 100_000
"""Steps that the search for conflicts may take before all lexemes are cut to one character."""

Grammar = dict[str, Expression]


def to_lark(rules: Grammar, root: str = "root") -> str:
    """A Lark grammar, with the start rule `start`, that matches the same texts as `root` does.

    Raises GrammarError when no text satisfies the root.
    """
    small = reduced(rules, root)
    only = small[root]
    if positions(only) < 1 << 40:
        return regex_lark(only)
    return LexemeSplitter(small, root).lark()


def regex_lark(node: Expression) -> str:
    """A Lark grammar of a single lexeme that matches one expression without rule references."""
    optional = "" if not nullable(node, set()) else ' | ""'
    return f"start: LEXEME{optional}\nLEXEME: /{to_regex(node)}/\n"


class LexemeSplitter:
    """Finds the lexemes of a grammar by trial: it begins with the largest and cuts those that are in conflict."""

    def __init__(self, rules: Grammar, root: str) -> None:
        self._rules, self._root = rules, root
        self._split: set[Expression] = set()
        self._empty = empty_rules(rules)
        self._automata: dict[Expression, PositionAutomaton] = {}
        # Keyed by identity, because equality compares whole trees; keeping the node keeps its id from being reused.
        self._fits: dict[int, tuple[Expression, bool]] = {}

    def lark(self) -> str:
        """The rules in Lark's notation."""
        lexemes = self._resolve_conflicts()
        numbers = {lexeme: f"L{i}" for i, lexeme in enumerate(lexemes)}
        names = {name: f"r{i}" for i, name in enumerate(self._rules)} | {self._root: "start"}
        rules = RuleBodies(names, numbers, self._is_lexeme)
        lines = [f"{names[name]}: {rules.body(node, 0)}" for name, node in self._rules.items()]
        lines += [f"{name}: {body}" for name, body in rules.added.items()]
        lines += [f"{number}: /{to_regex(lexeme)}/" for lexeme, number in numbers.items()]
        return "\n".join(lines) + "\n"

    def _resolve_conflicts(self) -> list[Expression]:
        """The lexemes, cut until no two are in conflict."""
        budget = STEPS
        while True:
            lexemes = list(dict.fromkeys(x for node in self._rules.values() for x in self._lexemes(node)))
            follow = FollowSets(self._rules, self._empty, self._is_lexeme).of
            wrong, budget = self._conflicts(lexemes, follow, budget)
            if budget < 0:
                wrong = {x for x in lexemes if positions(x) > 1}
            if not wrong:
                return lexemes
            self._split |= wrong

    def _conflicts(
        self, lexemes: list[Expression], follow: dict[Expression, int], budget: int
    ) -> tuple[set[Expression], int]:
        """The lexemes that could continue where another one has to end, and the rest of the budget."""
        wrong: set[Expression] = set()
        for longer in lexemes:
            if isinstance(longer, Chars):
                continue
            for shorter in lexemes:
                bits, steps = extensions(self._automaton(shorter), self._automaton(longer), budget)
                budget -= steps
                if budget < 0:
                    return wrong, budget
                if bits & follow.get(shorter, 0):
                    wrong.add(longer)
                    break
        return wrong, budget

    def _automaton(self, lexeme: Expression) -> PositionAutomaton:
        if lexeme not in self._automata:
            self._automata[lexeme] = PositionAutomaton.of(lexeme)
        return self._automata[lexeme]

    def _is_lexeme(self, node: Expression) -> bool:
        if isinstance(node, RuleReference):
            return False
        if id(node) not in self._fits:
            self._fits[id(node)] = node, positions(node) <= LARGEST and not nullable(node, set())
        return self._fits[id(node)][1] and node not in self._split

    def _lexemes(self, node: Expression) -> list[Expression]:
        if self._is_lexeme(node):
            return [node]
        return [lexeme for part in parts_of(node) for lexeme in self._lexemes(part)]


class RuleBodies:
    """Writes expressions as the right sides of rules; `added` are rules for groups that would stand too deep."""

    def __init__(
        self, names: dict[str, str], numbers: dict[Expression, str], is_lexeme: Callable[[Expression], bool]
    ) -> None:
        self._names, self._numbers, self._is_lexeme = names, numbers, is_lexeme
        self.added: dict[str, str] = {}

    def body(self, node: Expression, depth: int) -> str:
        """An expression inside `depth` groups, without a group of its own."""
        if self._is_lexeme(node):
            return self._numbers[node]
        match node:
            case RuleReference(name):
                return self._names[name]
            case Alternatives(parts):
                return " | ".join(self.body(part, depth) for part in parts)
            case Repeat(part, low, high):
                inner = parts_of(node)[0]
                return self._group(inner, depth) + (count(low, high) if inner is part else "?")
        return " ".join(self._group(part, depth) for part in parts_of(node)) or '""'

    def _group(self, node: Expression, depth: int) -> str:
        """An expression as a part of another one."""
        if self._is_lexeme(node) or isinstance(node, RuleReference):
            return self.body(node, depth)
        if depth < GROUPS:
            return f"({self.body(node, depth + 1)})"
        name = f"r{len(self._names) + len(self.added)}"
        self.added[name] = ""
        self.added[name] = self.body(node, 0)
        return name


def parts_of(node: Expression) -> tuple[Expression, ...]:
    """The parts into which an expression is cut."""
    match node:
        case LiteralText(text):
            return tuple(Chars(((ord(c), ord(c)),)) for c in text)
        case Sequence(parts) | Alternatives(parts):
            return parts
        case Repeat(part, low, high) if low == 0 and high != 1 and not nullable(part, set()):
            return (Repeat(part, 1, high),)
        case Repeat(part):
            return (part,)
    return ()


def empty_rules(rules: Grammar) -> set[str]:
    """The names of the rules that match the empty text."""
    empty: set[str] = set()
    while fresh := {name for name, node in rules.items() if name not in empty and nullable(node, empty)}:
        empty |= fresh
    return empty


class FollowSets:
    """The follow sets of a grammar: for each lexeme, the bytes that can come right after it, as 256 bits, in `of`."""

    def __init__(self, rules: Grammar, empty: set[str], is_lexeme: Callable[[Expression], bool]) -> None:
        self._empty, self._is_lexeme = empty, is_lexeme
        self._first: dict[str, int] = dict.fromkeys(rules, 0)
        self._after: dict[str, int] = dict.fromkeys(rules, 0)
        self.of: dict[Expression, int] = {}
        changed = True
        while changed:
            new = {name: self._begins(node) for name, node in rules.items()}
            changed, self._first = new != self._first, new
        changed = True
        while changed:
            before = dict(self._after)
            for name, node in rules.items():
                self._propagate(node, self._after[name])
            changed = before != self._after

    def _begins(self, node: Expression) -> int:
        match node:
            case LiteralText(text):
                return first_bytes(((ord(text[0]),) * 2,))
            case Chars(ranges):
                return first_bytes(ranges)
            case RuleReference(name):
                return self._first[name]
            case Repeat(part):
                return self._begins(part)
            case Alternatives(parts):
                return any_of(map(self._begins, parts))
            case Sequence(parts):
                bits = 0
                for part in parts:
                    bits |= self._begins(part)
                    if not nullable(part, self._empty):
                        break
                return bits
        return 0

    def _propagate(self, node: Expression, after: int) -> None:
        """Records the bytes that can come after a node, for the node and its parts."""
        if self._is_lexeme(node):
            self.of[node] = self.of.get(node, 0) | after
            return
        match node:
            case RuleReference(name):
                self._after[name] |= after
            case Alternatives(parts):
                for part in parts:
                    self._propagate(part, after)
            case Repeat(part, _, high):
                again = 0 if high == 1 else self._begins(part)
                inner = parts_of(node)[0]
                self._propagate(inner, after | (again if inner is part else 0))
            case LiteralText() | Sequence():
                for part in reversed(parts_of(node)):
                    self._propagate(part, after)
                    after = self._begins(part) | (after if nullable(part, self._empty) else 0)


def any_of(bits: Iterable[int]) -> int:
    """The union of sets of bits."""
    together = 0
    for one in bits:
        together |= one
    return together
