"""Arrays whose items differ: rules for each set of values that have been used, where there are few values."""

from __future__ import annotations

from math import comb

from tirage.guided.json_schema.intersections import item_at
from tirage.guided.json_schema.json_numbers import constant
from tirage.guided.json_schema.json_tokens import FALSE, NULL, TRUE, either, string
from tirage.guided.json_schema.object_rules import Rules
from tirage.guided.json_schema.places import fail
from tirage.guided.json_schema.values import Arrays, Booleans, Conditions, Null, Numbers, Strings
from tirage.guided.regular.expression import EMPTY, Expression, RuleReference, Sequence, Terminal, sequence

STATES = 512
"""Most sets of used values."""


class UniqueItems:
    """Writes the rules of arrays whose items are of a few values, each at most once."""

    def __init__(self, rules: Rules, name: str, arrays: Arrays, low: int, high: int | None) -> None:
        self._rules, self._name, self._arrays = rules, name, arrays
        self._low, self._high = low, high
        self._done: dict[frozenset[Expression], RuleReference] = {}

    def expression(self) -> Expression:
        """The arrays as an expression; GrammarError where the items have too many values."""
        tokens = self._rules.tokens
        count = len(self._values(self._arrays.rest)) if not self._arrays.prefix else 0
        most = count if self._high is None else min(self._high, count)
        if sum(comb(count, size) for size in range(most + 1)) > STATES:
            self._fail()
        empty = [] if self._low else [tokens.empty_array]
        return either([*empty, Sequence((tokens.open_array, self._state(frozenset())))])

    def _state(self, used: frozenset[Expression]) -> RuleReference:
        if used not in self._done:
            if len(self._done) >= STATES:
                self._fail()
            self._done[used] = RuleReference(f"{self._name}_u{len(self._done)}")
            self._rules.add(self._done[used].name, either(self._ways(used)))
        return self._done[used]

    def _ways(self, used: frozenset[Expression]) -> list[Expression]:
        place, tokens = len(used), self._rules.tokens
        ways: list[Expression] = [tokens.close_array] if place and place >= self._low else []
        if self._high is None or place < self._high:
            comma = tokens.comma if place else EMPTY
            left = (value for value in self._values(item_at(self._arrays, place)) if value not in used)
            ways += [sequence([comma, value, self._state(used | {value})]) for value in left]
        return ways

    def _values(self, conditions: Conditions) -> list[Expression]:
        """The values that satisfy the conditions, if they are few scalars."""
        found: list[Expression] = []
        for each in self._rules.expansion.values(conditions).values():
            for one in each:
                match one:
                    case Null():
                        found.append(NULL)
                    case Booleans(values):
                        found += [terminal for value, terminal in ((True, TRUE), (False, FALSE)) if value in values]
                    case Numbers(values=values) if values is not None:
                        found += [Terminal(constant(value)) for value in values]
                    case Strings(values=values) if values is not None:
                        found += map(string, values)
                    case _:
                        self._fail()
        return list(dict.fromkeys(found))

    def _fail(self) -> None:
        rule = "is a keyword that cannot be enforced unless the items are of a few values, as of an enum, in fewer than"
        fail((*self._arrays.path, "uniqueItems"), f"{rule} {STATES} combinations; bound the list with maxItems instead")
