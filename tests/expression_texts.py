"""Whether texts match an expression, as llguidance reads the terminal that it is printed as."""

from __future__ import annotations

from collections.abc import Mapping

import llguidance

from tirage.guided import BYTES
from tirage.guided.llguidance_backend import LlguidanceTokenizer
from tirage.guided.reduction import nullable
from tirage.guided.regular.expression import EMPTY, NOTHING, Alternatives, Expression, RuleReference, Sequence
from tirage.guided.regular.lark_terminal import lark_terminal

_TOKENIZER = llguidance.LLTokenizer(llguidance.TokenizerWrapper(LlguidanceTokenizer(BYTES)), n_vocab=257)


class Texts:
    """The texts of an expression, or of rules of which `start` is the first."""

    def __init__(self, node: Expression | Mapping[str, Expression]) -> None:
        self._nothing = node == NOTHING
        if self._nothing:
            return
        lark = terminal_grammar(node) if not isinstance(node, Mapping) else rule_grammar(node)
        grammar = '%llguidance {"no_forcing": true}\n' + lark
        self._start = llguidance.LLMatcher(_TOKENIZER, grammar, log_level=0)
        assert not self._start.is_error(), self._start.get_error()

    def __contains__(self, text: str) -> bool:
        if self._nothing:
            return False
        matcher, spelled = self._start.deep_copy(), list(text.encode())
        taken = matcher.try_consume_tokens(spelled) if spelled else 0
        return taken == len(spelled) and matcher.is_accepting()


def terminal_grammar(node: Expression) -> str:
    """A Lark grammar of one terminal."""
    empty = ' | ""' if nullable(node, set()) else ""
    return f"start: LEXEME{empty}\nLEXEME: {lark_terminal(node)}\n"


def rule_grammar(rules: Mapping[str, Expression]) -> str:
    """A Lark grammar of rules whose references stand last in a sequence."""
    names = {name: name if name == "start" else f"rule_{name}" for name in rules}
    return "".join(f"{names[name]}: {alternatives(node, names)}\n" for name, node in rules.items())


def alternatives(node: Expression, names: Mapping[str, str]) -> str:
    """The right side of a rule."""
    parts = node.parts if isinstance(node, Alternatives) else (node,)
    return " | ".join(" ".join(one(item, names) for item in items(part)) or '""' for part in parts)


def items(node: Expression) -> tuple[Expression, ...]:
    return () if node == EMPTY else node.parts if isinstance(node, Sequence) else (node,)


def one(node: Expression, names: Mapping[str, str]) -> str:
    return names[node.name] if isinstance(node, RuleReference) else f"/{lark_terminal(node)[1:-1]}/"
