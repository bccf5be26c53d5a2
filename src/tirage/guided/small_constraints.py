"""The constraints that are small enough to be compiled without a trial in a child process, and on any stack.

The first are short, and use nothing that multiplies the work of the compiler. Such a constraint compiles in a few
milliseconds; tests/test_guided_small.py has the worst ones. SPEC.md S-G5.
"""

from __future__ import annotations

from tirage.guided.constraint import Constraint
from tirage.guided.regular.expression import Alternatives, Expression, LiteralText, Repeat, RuleReference, Sequence

WEIGHT = 1024
"""Most positions in a pattern, choice or GBNF grammar."""
SCHEMA_CHARS = 500_000
"""Most characters of the grammar of a schema; its work grows with them, as repetitions are never written out."""
FEW_RULES = 100
"""Most rules of a schema that is compiled on the stack of any thread; each may lead to the next."""


def is_small(constraint: Constraint, grammar: str) -> bool:
    """Whether the constraint, whose grammar is given in Lark, may be compiled without a trial."""
    match constraint.kind:
        case "json":
            return len(grammar) <= SCHEMA_CHARS
        case "regex":
            return weight(constraint.expression) <= WEIGHT
        case "gbnf":
            return sum(map(weight, constraint.rules.values())) <= WEIGHT
    return False


def is_shallow(constraint: Constraint) -> bool:
    """Whether the compiler recurses so little that a megabyte of stack is enough."""
    if constraint.schema is not None:
        return len(constraint.schema.rules) <= FEW_RULES
    return constraint.kind == "regex"


def weight(node: Expression) -> int:
    """The number of positions of characters in an expression, repetitions written out; a rule reference counts as 4."""
    match node:
        case LiteralText(text):
            return len(text)
        case Sequence(parts) | Alternatives(parts):
            return sum(map(weight, parts))
        case Repeat(part, low, high):
            return weight(part) * max(1, low + 1 if high is None else high)
        case RuleReference():
            return 4
    return 1
