"""Multiples of a number as expressions: an automaton that keeps the remainder of the digits read so far."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal

from tirage.errors import GrammarError
from tirage.guided.json_schema.json_numbers import Number, exact, split
from tirage.guided.regular.charset import holds
from tirage.guided.regular.expression import EMPTY, Expression, RuleReference, chars, choice, sequence
from tirage.guided.regular.position_automaton import PositionAutomaton
from tirage.guided.regular.right_linear import TooLargeError, solve
from tirage.workers.cancel import checkpoint

MAX_STATES = 1000
"""Most states of an automaton; multiples of n take about n, without its factors 2 and 5."""

MAX_POSITIONS = 1000
"""Most positions of characters in an expression that replaces the rules of an automaton."""


@dataclass(frozen=True, slots=True)
class Read:
    """What is known of the digits read so far.

    `positions` are where the text stands in the expression of the bounds (None: nowhere yet), `remainder` is that of
    the digits without their point, and `decimals` the number of digits after the point, None before it.
    """

    positions: frozenset[int] | None = None
    remainder: int = 0
    decimals: int | None = None


class MultipleAutomaton:
    """The automaton of the multiples of `of` among the numbers of an expression, which have no exponents."""

    def __init__(self, of: Decimal, within: Expression) -> None:
        _, digits = split(of)
        self._places = len(digits)
        self._modulus = int(of.scaleb(self._places))
        self._bounds = PositionAutomaton.of(within)
        self._coprime, self._tail = without_tens(self._modulus)
        self._alike: dict[tuple[int, ...], int] = {}
        self.edges: dict[Read, dict[str, Read]] = {}
        todo = [Read()]
        while todo:
            state = todo.pop()
            if state in self.edges:
                continue
            if len(self.edges) == MAX_STATES:
                raise GrammarError(f"multipleOf must be simpler, got {of} with bounds; use a smaller or rounder number")
            checkpoint()
            following = {char: self._after(state, char) for char in "-.0123456789"}
            self.edges[state] = {char: after for char, after in following.items() if after is not None}
            todo += self.edges[state].values()

    def _after(self, state: Read, char: str) -> Read | None:
        auto = self._bounds
        reachable: Iterable[int] = (
            auto.first if state.positions is None else {q for p in state.positions for q in auto.after[p]}
        )
        positions = frozenset(q for q in reachable if holds(auto.sets[q], ord(char)))
        if not positions:
            return None
        if char == "-":
            return Read(positions, state.remainder, state.decimals)
        if char == ".":
            return Read(positions, state.remainder, 0)
        if state.decimals == self._places:
            # All digits that follow are zeros.
            return Read(positions, state.remainder, state.decimals) if char == "0" else None
        remainder = self._representative((state.remainder * 10 + int(char)) % self._modulus)
        return Read(positions, remainder, None if state.decimals is None else state.decimals + 1)

    def _representative(self, remainder: int) -> int:
        """The first remainder that was met of those from which the same digits lead to a multiple."""
        last = (-remainder * 10**count % self._modulus for count in range(self._tail))
        wanted = (digits if digits < 10**count else -1 for count, digits in enumerate(last))
        return self._alike.setdefault((remainder % self._coprime, *wanted), remainder)

    def accepts(self, state: Read) -> bool:
        """Whether a number may end in a state."""
        missing = self._places - (state.decimals or 0)
        ends = state.positions is not None and not state.positions.isdisjoint(self._bounds.last)
        return ends and not state.remainder * 10**missing % self._modulus

    def classes(self) -> dict[Read, int]:
        """The states by number, equal for states from which the same texts lead to an end (Moore, 1956)."""
        number = {state: int(self.accepts(state)) for state in self.edges}
        while True:
            checkpoint()
            kinds = {
                state: (number[state], *(number[after[char]] if char in after else -1 for char in "-.0123456789"))
                for state, after in self.edges.items()
            }
            names = {kind: i for i, kind in enumerate(dict.fromkeys(kinds.values()))}
            if len(names) == len(set(number.values())):
                return number
            number = {state: names[kind] for state, kind in kinds.items()}


def without_tens(number: int) -> tuple[int, int]:
    """The part of a number that has no factor 2 or 5, and the least power of ten that the other part divides."""
    count = 0
    while (shared := math.gcd(number, 10)) > 1:
        number, count = number // shared, count + 1
    return number, count


def multiples(of: Number, within: Expression) -> dict[str, Expression]:
    """Rules of which `start` matches the multiples of `of`, which is above 0, among the numbers of an expression.

    The expression has no exponents and no rules. There is `start` alone where its expression is small, else one rule
    for each state of an automaton. Raises GrammarError where they would be more than 1,000.
    """
    automaton = MultipleAutomaton(exact(of), within)
    number = automaton.classes()
    rules: dict[str, Expression] = {}
    for state, after in automaton.edges.items():
        name = f"s{number[state]}"
        if name not in rules:
            ends = [EMPTY] if automaton.accepts(state) else []
            rules[name] = choice([*ends, *_steps(after, number)])
    rules["start"] = rules[f"s{number[Read()]}"]
    with contextlib.suppress(TooLargeError):
        return {"start": solve(rules, "start", limit=MAX_POSITIONS)}
    return rules


def _steps(after: dict[str, Read], number: dict[Read, int]) -> list[Expression]:
    by_target: dict[int, str] = {}
    for char, state in after.items():
        by_target[number[state]] = by_target.get(number[state], "") + char
    return [sequence([chars(letters), RuleReference(f"s{target}")]) for target, letters in by_target.items()]
