"""Arrays as rules: the first items by their place, then the others."""

from __future__ import annotations

from tirage.guided.json_schema.intersections import item_at
from tirage.guided.json_schema.json_tokens import either
from tirage.guided.json_schema.object_rules import Rules
from tirage.guided.json_schema.places import fail
from tirage.guided.json_schema.typed_keywords import opposite
from tirage.guided.json_schema.unique_items import UniqueItems
from tirage.guided.json_schema.values import Arrays, Conditions
from tirage.guided.regular.expression import (
    EMPTY,
    NOTHING,
    Expression,
    Repeat,
    RuleReference,
    Sequence,
    sequence,
)

RUN = 8
"""Most optional items that are written one inside the other."""
STATES = 2_000
"""Most states of counting the items of an array."""


class ArrayRules:
    """Writes the rules of one set of arrays."""

    def __init__(self, rules: Rules, name: str, arrays: Arrays) -> None:
        self._rules, self._name, self._arrays = rules, name, arrays
        self._tokens = rules.tokens
        self._low, self._high = arrays.low, self._possible(arrays.high)

    def expression(self) -> Expression:
        """The arrays as an expression.

        Raises GrammarError for items that cannot be told apart or counted.
        """
        low, high, arrays = self._low, self._high, self._arrays
        if high is not None and low > high:
            return NOTHING
        if arrays.unique and (high is None or high > 1) and not self._are_disjoint():
            if arrays.contained:
                fail((*arrays.path, "uniqueItems"), "cannot be enforced beside contains")
            return UniqueItems(self._rules, self._name, arrays, low, high).expression()
        if arrays.contained:
            return self._counted()
        return self._uncounted()

    def _possible(self, high: int | None) -> int | None:
        """The greatest number of items, given those for which there is no value."""
        arrays = self._arrays
        for i in range(len(arrays.prefix) + 1):
            conditions = item_at(arrays, i)
            if conditions and self._rules.expansion.is_nothing(conditions):
                return i if high is None else min(i, high)
        return high

    def _are_disjoint(self) -> bool:
        """Whether no two items can be equal, as all have places whose values exclude each other."""
        if self._high is None or self._high > len(self._arrays.prefix):
            return False
        items = [item_at(self._arrays, i) for i in range(self._high)]
        return all(self._rules.expansion.is_nothing(items[i] | items[j]) for j in range(len(items)) for i in range(j))

    def _item(self, place: int) -> Expression:
        return self._rules.value(item_at(self._arrays, place))

    def _in_brackets(self, body: Expression) -> Expression:
        return Sequence((self._tokens.open_array, body, self._tokens.close_array))

    def _uncounted(self) -> Expression:
        low, high = self._low, self._high
        empty = [] if low else [self._tokens.empty_array]
        if high == 0:
            return either(empty)
        fixed = len(self._arrays.prefix)
        comma = self._tokens.comma
        listed = max(1, fixed if high is None else min(fixed, high))
        rest: Expression = EMPTY
        if high is None or high > max(fixed, 1):
            more = None if high is None else high - max(fixed, 1)
            rest = Repeat(Sequence((comma, self._item(fixed))), max(0, low - max(fixed, 1)), more)
        items: list[Expression] = [Sequence((comma, self._item(i))) for i in range(1, listed)]
        needed = min(max(0, low - 1), len(items))
        if needed < len(items):
            rest = Repeat(self._some(items, needed, len(items), rest), 0, 1)
        return either([*empty, self._in_brackets(sequence([self._item(0), *items[:needed], rest]))])

    def _some(self, items: list[Expression], start: int, end: int, rest: Expression) -> Expression:
        """The first of some items, one or more, and after all of them the rest; long runs are divided in two."""
        if end - start <= RUN:
            found = sequence([items[end - 1], rest])
            for item in reversed(items[start : end - 1]):
                found = Sequence((item, Repeat(found, 0, 1)))
            return found
        middle = (start + end) // 2
        fewer = self._some(items, start, middle, EMPTY)
        more = Sequence((self._all(items, start, middle), self._some(items, middle, end, rest)))
        return self._rules.add(f"{self._name}_a{start}_{end}", either([fewer, more]))

    def _all(self, items: list[Expression], start: int, end: int) -> Expression:
        """All of some items."""
        if end - start <= RUN:
            return Sequence(tuple(items[start:end]))
        middle = (start + end) // 2
        both = Sequence((self._all(items, start, middle), self._all(items, middle, end)))
        return self._rules.add(f"{self._name}_b{start}_{end}", both)

    # --- contains -----------------------------------------------------------------------------------------------------

    def _counted(self) -> Expression:
        """Arrays in which the items that satisfy `contains` are counted; a rule for each state of counting."""
        contained = self._arrays.contained
        places = self._last_place() + 1
        states = places
        for each in contained:
            states *= (each.low if each.high is None else each.high) + 1
        if states > STATES:
            fail((*self._arrays.path, "contains"), f"must be counted in fewer than {STATES} states")
        done: dict[tuple[int, tuple[int, ...]], RuleReference] = {}
        counts = (0,) * len(contained)
        empty = [] if self._low or any(each.low for each in contained) else [self._tokens.empty_array]
        return either([*empty, Sequence((self._tokens.open_array, self._state(0, counts, done)))])

    def _last_place(self) -> int:
        """The place from which on all items are alike and no bound is left."""
        ends = (len(self._arrays.prefix), self._low, self._high or 0, 1)
        return max(ends)

    def _state(
        self, place: int, counts: tuple[int, ...], done: dict[tuple[int, tuple[int, ...]], RuleReference]
    ) -> RuleReference:
        key = (place, counts)
        if key not in done:
            name = f"{self._name}_c{len(done)}"
            done[key] = RuleReference(name)
            self._rules.add(name, either(self._ways(place, counts, done)))
        return done[key]

    def _ways(
        self, place: int, counts: tuple[int, ...], done: dict[tuple[int, tuple[int, ...]], RuleReference]
    ) -> list[Expression]:
        arrays, comma = self._arrays, self._tokens.comma if place else EMPTY
        ways: list[Expression] = []
        is_enough = all(count >= each.low for count, each in zip(counts, arrays.contained, strict=True))
        if place and place >= self._low and is_enough:
            ways.append(self._tokens.close_array)
        if self._high is not None and place >= self._high:
            return ways
        following = min(place + 1, self._last_place())
        for conditions, after in self._kinds(item_at(arrays, place), counts):
            if not (conditions and self._rules.expansion.is_nothing(conditions)):
                ways.append(sequence([comma, self._rules.value(conditions), self._state(following, after, done)]))
        return ways

    def _kinds(self, item: Conditions, counts: tuple[int, ...]) -> list[tuple[Conditions, tuple[int, ...]]]:
        """The kinds of the next item by what it satisfies, each with the counts after it."""
        kinds: list[tuple[Conditions, tuple[int, ...]]] = [(item, ())]
        for count, (conditions, low, high) in zip(counts, self._arrays.contained, strict=True):
            divided: list[tuple[Conditions, tuple[int, ...]]] = []
            for found, after in kinds:
                if high is None:
                    # Whether an item that need not count does so is left open.
                    divided.append((found, (*after, count)))
                    if count < low:
                        divided.append((found | conditions, (*after, count + 1)))
                    continue
                divided += [(found | other, (*after, count)) for other in opposite(conditions)]
                if count < high:
                    divided.append((found | conditions, (*after, count + 1)))
            kinds = divided
        return kinds
