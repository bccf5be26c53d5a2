"""Reduction of grammars: useless alternatives are removed, small rules are inlined."""

from __future__ import annotations

from collections.abc import Mapping

from tirage.errors import GrammarError
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
    choice,
    sequence,
)
from tirage.workers.cancel import checkpoint

# Positions of characters, and expressions inside each other, up to which a rule is inlined; larger ones stay rules.
INLINE, INLINE_DEPTH = 512, 16


def reduced(rules: dict[str, Expression], root: str) -> dict[str, Expression]:
    """The rules that the root needs after dead alternatives are removed and small rules are inlined.

    A rule is not inlined if it refers to itself, directly or not, or is too large. Raises GrammarError when no text
    satisfies the root.
    """
    alive = productive(rules)
    if root not in alive:
        raise GrammarError(f"grammar must lead to some text, got a rule {root!r} that never ends; give it an end")
    pruned = {name: prune(node, alive) for name, node in rules.items() if name in alive}
    inlined: dict[str, Expression] = {}
    for name in in_order(pruned, root):
        checkpoint()
        inlined[name] = inline(pruned[name], inlined)
    return {name: inlined[name] for name in reachable(inlined, root)}


def references(node: Expression) -> list[str]:
    """The rules that an expression refers to, in their order, without those it has referred to before."""
    checkpoint()
    found: dict[str, None] = {}
    left = [node]
    while left:
        node = left.pop()
        if isinstance(node, RuleReference):
            found[node.name] = None
        elif isinstance(node, (Sequence, Alternatives)):
            left += [part for part in node.parts[::-1] if not isinstance(part, Terminal)]
        elif isinstance(node, Repeat):
            left.append(node.part)
        elif not isinstance(node, Terminal):
            left.extend(reversed(children(node)))
    return list(found)


def children(node: Expression) -> tuple[Expression, ...]:
    """The expressions right inside an expression."""
    match node:
        case Sequence(parts) | Alternatives(parts) | Intersection(parts):
            return parts
        case Repeat(part) | Complement(part) | Terminal(part):
            return (part,)
    return ()


def productive(rules: dict[str, Expression]) -> set[str]:
    """The names of the rules that match some text."""
    alive: set[str] = set()
    size = -1
    while len(alive) > size:
        size = len(alive)
        # Rules usually come before those they refer to, so the last ones are settled first.
        for name in reversed(rules):
            checkpoint()
            if name not in alive and is_productive(rules[name], alive):
                alive.add(name)
    return alive


def is_productive(node: Expression, alive: set[str]) -> bool:
    """Whether an expression matches some text, given the rules that do."""
    if isinstance(node, (Sequence, Intersection)):
        for part in node.parts:
            # Most parts are terminals or may be left out.
            if isinstance(part, Terminal) or (isinstance(part, Repeat) and part.low == 0):
                continue
            if not is_productive(part, alive):
                return False
        return True
    if isinstance(node, RuleReference):
        return node.name in alive
    if isinstance(node, Repeat):
        return node.low == 0 or is_productive(node.part, alive)
    if isinstance(node, Alternatives):
        return Terminal in map(type, node.parts) or any(is_productive(part, alive) for part in node.parts)
    return bool(node.ranges) if isinstance(node, Chars) else True


def prune(node: Expression, alive: set[str]) -> Expression:
    """A productive expression without its unproductive alternatives."""
    match node:
        case Sequence(parts):
            return sequence([prune(part, alive) for part in parts])
        case Alternatives(parts):
            return choice([prune(part, alive) for part in parts if is_productive(part, alive)])
        case Repeat(part, low, high):
            return Repeat(prune(part, alive), low, high) if is_productive(part, alive) else EMPTY
    return node


def reachable(rules: dict[str, Expression], root: str) -> list[str]:
    """The names of the rules that the root refers to, directly or not; the root comes first."""
    found, queue = {root: None}, [root]
    while queue:
        for name in references(rules[queue.pop()]):
            if name not in found:
                found[name] = None
                queue.append(name)
    return list(found)


def in_order(rules: Mapping[str, Expression], root: str) -> list[str]:
    """The names of the reachable rules, each after the rules it refers to as far as cycles allow."""
    done: dict[str, None] = {}
    stack = [(root, iter(references(rules[root])))]
    open_rules = {root}
    while stack:
        name, names = stack[-1]
        following = next((n for n in names if n not in open_rules), None)
        if following is None:
            done[name] = None
            stack.pop()
        else:
            open_rules.add(following)
            stack.append((following, iter(references(rules[following]))))
    return list(done)


def depth(rules: Mapping[str, Expression], root: str) -> int:
    """The most rules of which each refers to the next, cycles left out."""
    found: dict[str, int] = {}
    for name in in_order(rules, root):
        found[name] = 1 + max((found.get(each, 0) for each in references(rules[name])), default=0)
    return found[root]


def inline(node: Expression, ready: dict[str, Expression]) -> Expression:
    """The expression with references to small rules replaced by those rules."""
    match node:
        case RuleReference(name):
            return ready[name] if name in ready and is_inlined(ready[name]) else node
        case Sequence(parts):
            return sequence([inline(part, ready) for part in parts])
        case Alternatives(parts):
            return choice([inline(part, ready) for part in parts])
        case Repeat(part, low, high):
            return Repeat(inline(part, ready), low, high)
    return node


def is_inlined(node: Expression) -> bool:
    """Whether an expression is small enough to take the place of references to it."""
    return nesting(node) <= INLINE_DEPTH and positions(node) <= INLINE


def nesting(node: Expression) -> int:
    """How many expressions stand inside each other."""
    return 1 + max(map(nesting, children(node)), default=0)


def positions(node: Expression) -> int:
    """The number of character positions of an expression; 2^40 or more if it refers to rules."""
    match node:
        case LiteralText(text):
            return len(text)
        case Chars():
            return 1
        case Sequence(parts) | Alternatives(parts) | Intersection(parts):
            return sum(map(positions, parts))
        case Complement(part) | Terminal(part):
            return positions(part)
        case Repeat(part, low, high):
            # x{2,5} has five positions of x, x{2,} three.
            return positions(part) * max(1, low + 1 if high is None else high)
    return 1 << 40


def nullable(node: Expression, empty: set[str]) -> bool:
    """Whether an expression matches the empty text, given the rules that do."""
    match node:
        case RuleReference(name):
            return name in empty
        case Sequence(parts) | Intersection(parts):
            return all(nullable(part, empty) for part in parts)
        case Terminal(part):
            return nullable(part, empty)
        case Complement(part):
            return not nullable(part, empty)
        case Alternatives(parts):
            return any(nullable(part, empty) for part in parts)
        case Repeat(part, low):
            return low == 0 or nullable(part, empty)
    return False
