"""The rules of a constraint, in which its shortest completions are searched: the compiled grammars cannot be."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby

from tirage.guided.constraint import read_constraint
from tirage.guided.reduction import productive, prune
from tirage.guided.regular.expression import EMPTY, NOTHING, Alternatives, Expression, LiteralText, Sequence
from tirage.params import GuidedDecodingParams

ROOT = "root"
_MAX_TREE_DEPTH = 60


def constraint_rules(guided: GuidedDecodingParams) -> Mapping[str, Expression] | None:
    """The rules, of which `ROOT` is the start, that match the texts of a constraint and no others.

    None for Lark and structural tags, which have none. Raises GrammarError for an invalid constraint.
    """
    constraint = read_constraint(guided)
    match constraint.kind:
        case "regex":
            return {ROOT: one_of(list(guided.choice)) if guided.choice else constraint.expression}
        case "gbnf":
            alive = productive(constraint.rules)
            return {name: prune(node, alive) for name, node in constraint.rules.items() if name in alive}
        case "json":
            return None if constraint.schema is None else constraint.schema.rules
    return None


def one_of(texts: list[str]) -> Expression:
    """One of the texts, as a prefix tree of limited depth."""
    return prefix_tree(sorted(set(texts)), 0) if texts else NOTHING


def prefix_tree(texts: list[str], depth: int) -> Expression:
    """One of the texts, which are sorted and distinct, as a prefix tree."""
    first, last = texts[0], texts[-1]
    start = first[: next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]
    rests = [text[len(start) :] for text in texts]
    if len(texts) == 1 or depth == _MAX_TREE_DEPTH:
        return Alternatives(tuple(LiteralText(text) if text else EMPTY for text in texts))
    groups = [prefix_tree(list(group), depth + 1) for char, group in groupby(rests, key=lambda rest: rest[:1]) if char]
    alternatives = Alternatives((*groups, *(() if rests[0] else (EMPTY,))))
    return Sequence((LiteralText(start), alternatives)) if start else alternatives
