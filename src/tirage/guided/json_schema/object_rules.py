"""Objects as rules: the named members in their order, then the others."""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple, Protocol

from tirage.guided.json_schema.expansion import Expansion
from tirage.guided.json_schema.intersections import TOO_MUCH
from tirage.guided.json_schema.json_tokens import JsonTokens, either, other_strings, string, strings
from tirage.guided.json_schema.places import fail, refusal
from tirage.guided.json_schema.string_sets import EVERY_STRING, string_expression
from tirage.guided.json_schema.values import ANYTHING, NEVER, Conditions, Objects, Strings
from tirage.guided.regular.expression import (
    ANY_TEXT,
    EMPTY,
    NOTHING,
    Complement,
    Expression,
    Repeat,
    RuleReference,
    Sequence,
    choice,
    intersection,
    is_nothing,
    sequence,
    text,
)
from tirage.guided.regular.regular_language import LanguageError

RUN = 16
"""Most optional members that are written one after the other."""
_NO_ANSWERS: frozenset[int] = frozenset()
STATES = 2_000
"""Most states of counting the members of an object."""


class Rules(Protocol):
    """Where rules are written."""

    expansion: Expansion
    tokens: JsonTokens
    members: int
    """How many members have been named in all objects."""

    def value(self, conditions: Conditions) -> Expression:
        """What stands for a value that satisfies the conditions."""
        ...

    def member(self, conditions: Conditions) -> Expression | None:
        """As `value`; None if no value is known to satisfy the conditions."""
        ...

    def add(self, name: str, node: Expression) -> RuleReference:
        """Adds a rule; gives the reference to it."""
        ...


class Member(NamedTuple):
    """A member with one name: its text, whether it must be there, and which sets of names of `some` it is in."""

    node: Sequence
    is_required: bool
    answers: frozenset[int]


_NODE: Callable[[Member | Others], Expression] = attrgetter("node")
_IS_REQUIRED: Callable[[Member], bool] = attrgetter("is_required")


class Others(NamedTuple):
    """Members whose names are not listed: their text, and which sets of names of `some` these are in."""

    node: Expression
    answers: frozenset[int]


def answers_all(members: list[Member], some: tuple[Conditions, ...]) -> bool:
    """Whether the members that must be there have a name in each set of `some`."""
    answered = frozenset[int]().union(*(member.answers for member in members if member.is_required))
    return len(answered) == len(some)


class ObjectRules:
    """Writes the rules of one set of objects."""

    def __init__(self, rules: Rules, name: str, objects: Objects) -> None:
        self._rules, self._name, self._objects = rules, name, objects
        self._tokens, self._expansion = rules.tokens, rules.expansion
        # The names that are listed, and the sets of names that `propertyNames` allows; None for any.
        self._listed: tuple[str, ...] = ()
        self._allowed: list[Strings] | None = None

    def expression(self) -> Expression:
        """The objects as an expression.

        Raises GrammarError for patterns that are too large to compare and a `minProperties` that cannot be counted.
        """
        try:
            if self._objects.names is not ANYTHING:
                self._allowed = self._expansion.names(self._objects.names)
            self._listed = tuple(self._names())
            members = self._members()
            if members is None:
                return NOTHING
            self._rules.members += len(members)
            others = self._others()
        except LanguageError:
            raise refusal(self._objects.path, TOO_MUCH) from None
        low, high, some = self._objects.low, self._objects.high, self._objects.some
        if low:
            low = self._needed(low, members, others)
        is_free = high is None or (not others and len(members) <= high)
        if is_free and low <= 1 and (not some or answers_all(members, some)):
            return self._uncounted(members, others, is_some=low > 0)
        if not members and not some:
            return self._only_others(others, low, high)
        return self._counted(members, others, low)

    # --- members ------------------------------------------------------------------------------------------------------

    def _names(self) -> dict[str, None]:
        """The names that are listed: of properties, required ones, and those of `propertyNames` if it lists them."""
        objects = self._objects
        names: dict[str, None] = {}
        for each in objects.members:
            names |= dict.fromkeys(each.named)
        names |= dict.fromkeys(objects.required)
        allowed = self._allowed
        if allowed is not None and all(one.values is not None for one in allowed):
            names |= dict.fromkeys(value for one in allowed for value in one.values or ())
        return names

    def _members(self) -> list[Member] | None:
        """The members with listed names, in their order; None if a required one cannot be."""
        found: list[Member] = []
        objects, member = self._objects, self._rules.member
        required, colon, conditions = set(objects.required), self._tokens.colon, self._expansion.member
        for name in self._listed:
            value = member(conditions(objects, name))
            if value is not None:
                answered = self._answered(name) if objects.some else _NO_ANSWERS
                found.append(Member(Sequence((string(name), colon, value)), name in required, answered))
            elif name in required:
                return None
        return found

    def _answered(self, name: str) -> frozenset[int]:
        """Which sets of names of `some` a name is in."""
        some = self._objects.some
        return frozenset(i for i, one in enumerate(some) if self._expansion.is_name(one, name))

    def _others(self) -> list[Others]:
        """The members whose names are not listed, by the patterns that their names match."""
        objects, found, names, allowed = self._objects, [], self._listed, self._allowed
        patterns: list[Expression] = []
        for each in objects.members:
            if each.patterns:
                patterns += [pattern for pattern, _ in each.patterns]
        if not patterns and allowed is None and not objects.some:
            value = self._rules.member(self._conditions(()))
            node = None if value is None else Sequence((other_strings(names), self._tokens.colon, value))
            return [] if node is None else [Others(node, _NO_ANSWERS)]
        if not patterns and objects.members and all(each.others >= NEVER for each in objects.members):
            return []
        listed = [Complement(choice(list(map(text, names))))] if names else []
        told_apart = tuple(dict.fromkeys((*patterns, *map(self._some, objects.some))))
        for region in self._expansion.regions(told_apart, names):
            value = self._rules.member(self._conditions(region.inside))
            if value is None:
                continue
            for one in allowed if allowed is not None else [EVERY_STRING]:
                key = intersection([*region.all, *listed, string_expression(one)])
                if is_nothing(key) or (one != EVERY_STRING and self._expansion.has_no_text(key)):
                    continue
                node = Sequence((strings(key), self._tokens.colon, value))
                found.append(Others(node, self._answers(region.inside)))
        return found

    def _some(self, conditions: Conditions) -> Expression:
        """The names that satisfy the conditions."""
        found = self._expansion.names(conditions)
        return ANY_TEXT if found is None else choice(list(map(string_expression, found)))

    def _conditions(self, inside: tuple[Expression, ...]) -> Conditions:
        """What holds for a member whose name matches these patterns and no others, and is not listed."""
        found = ANYTHING
        for each in self._objects.members:
            own = [inner for pattern, inner in each.patterns if pattern in inside] if inside else []
            found |= ANYTHING.union(*own) if own else each.others
        return found

    def _answers(self, inside: tuple[Expression, ...]) -> frozenset[int]:
        return frozenset(i for i, one in enumerate(self._objects.some) if self._some(one) in inside)

    def _needed(self, low: int, members: list[Member], others: list[Others]) -> int:
        """The least number of members, 0 where the required ones are enough; GrammarError if it cannot be counted."""
        count = sum(member.is_required for member in members)
        # A name may come twice, so that only one of the members that are not listed is sure to count.
        if others and low > count + 1:
            fail(
                (*self._objects.path, "minProperties"),
                f"must be at most one more than the number of required properties, {count}, got {low}; "
                "or allow no additionalProperties",
            )
        return 0 if low <= count else low

    # --- rules --------------------------------------------------------------------------------------------------------

    def _uncounted(self, members: list[Member], others: list[Others], *, is_some: bool) -> Expression:
        tokens = self._tokens
        required = [*map(_IS_REQUIRED, members)]
        if True not in required:
            body = self._all_optional(members, others)
            empty = [] if is_some else [tokens.empty_object]
            return either([*empty, self._in_braces(body)] if not is_nothing(body) else empty)
        first = required.index(True)
        parts: list[Expression] = []
        for i, (node, is_required, _) in enumerate(members):
            if i < first:
                parts.append(Repeat(Sequence((*node.parts, tokens.comma)), 0, 1))
            elif i == first:
                parts += node.parts
            else:
                after = (tokens.comma, *node.parts)
                parts += after if is_required else (Repeat(Sequence(after), 0, 1),)
        if others:
            parts.append(self._more(others))
        return Sequence((tokens.open_object, *parts, tokens.close_object))

    def _in_braces(self, body: Expression) -> Expression:
        return Sequence((self._tokens.open_object, body, self._tokens.close_object))

    def _more(self, others: list[Others]) -> Expression:
        """Any number of other members, a comma before each."""
        if not others:
            return EMPTY
        return Repeat(Sequence((self._tokens.comma, either([*map(_NODE, others)]))), 0, None)

    def _all_optional(self, members: list[Member], others: list[Others]) -> Expression:
        """At least one member, of which none is required."""
        rest = self._more(others)
        starts = [self._some_of(members, 0, len(members))[0]] if members else []
        starts += [either([*map(_NODE, others)])] if others else []
        return sequence([either(starts), rest]) if starts else NOTHING

    def _some_of(self, members: list[Member], start: int, end: int) -> tuple[Expression, Expression]:
        """One or more of some members in their order; and any number of them, a comma before each, if others precede.

        Long runs are divided in two, so that rules do not lead deep and the end of a member concerns few of them.
        """
        if end - start <= RUN:
            return self._run(members, start, end)
        middle = (start + end) // 2
        first, before = self._some_of(members, start, middle)
        later, after = self._some_of(members, middle, end)
        some = self._rules.add(f"{self._name}_f{start}_{end}", either([Sequence((first, after)), later]))
        return some, self._rules.add(f"{self._name}_g{start}_{end}", Sequence((before, after))) if start else NOTHING

    def _run(self, members: list[Member], start: int, end: int) -> tuple[Expression, Expression]:
        """As `_some_of` for few members: a rule for each, and one for it and those after it."""
        starts: list[Expression] = []
        rest: Expression = EMPTY
        for i in reversed(range(start, end)):
            node = self._rules.add(f"{self._name}_m{i}", members[i].node) if i else members[i].node
            starts.append(sequence([node, rest]))
            if i:
                after = Repeat(Sequence((self._tokens.comma, node)), 0, 1)
                rest = self._rules.add(f"{self._name}_t{i}", sequence([after, rest]))
        return either(starts[::-1]), rest if start else NOTHING

    def _only_others(self, others: list[Others], low: int, high: int | None) -> Expression:
        """From `low` to `high` members, none of which is listed."""
        empty = [] if low else [self._tokens.empty_object]
        if not others or high == 0:
            return either(empty)
        node = either([each.node for each in others])
        if high != 1:
            again = Sequence((self._tokens.comma, node))
            node = Sequence((node, Repeat(again, max(0, low - 1), None if high is None else high - 1)))
        return either([*empty, self._in_braces(node)])

    def _counted(self, members: list[Member], others: list[Others], low: int) -> Expression:
        """Members of which so many are there, and names of each set of `some`; a rule for each state of counting."""
        some, high = len(self._objects.some), self._objects.high
        most = max(low, 1) if high is None else high
        if (len(members) + 1) * (most + 1) << some > STATES:
            fail(self._objects.path, f"must count its members in fewer than {STATES} states; leave maxProperties out")
        return CountedMembers(self._rules, self._name, members, others, low=low, high=high, some=some).expression()


class CountedMembers:
    """Writes the rules of objects whose members are counted.

    A state is how many listed names are behind, how many members there are, and which of `some` have been answered.
    """

    def __init__(
        self, rules: Rules, name: str, members: list[Member], others: list[Others],
        *, low: int, high: int | None, some: int,
    ) -> None:  # fmt: skip
        self._rules, self._name, self._members, self._others = rules, name, members, others
        self._low, self._high, self._all = low, high, frozenset(range(some))
        self._done: dict[tuple[int, int, frozenset[int]], Expression] = {}

    def expression(self) -> Expression:
        """The objects as an expression."""
        tokens = self._rules.tokens
        body = self._state(0, 0, frozenset())
        empty = [tokens.empty_object] if not self._low and not self._all and not self._has_required() else []
        return either([*empty, Sequence((tokens.open_object, body))])

    def _has_required(self) -> bool:
        return any(member.is_required for member in self._members)

    def _state(self, place: int, count: int, answered: frozenset[int]) -> Expression:
        """What may come in a state, as a reference to its rule."""
        key = (place, count, answered)
        if key not in self._done:
            name = f"{self._name}_s{len(self._done)}"
            self._done[key] = RuleReference(name)
            self._rules.add(name, either(self._ways(place, count, answered)))
        return self._done[key]

    def _ways(self, place: int, count: int, answered: frozenset[int]) -> list[Expression]:
        ways: list[Expression] = []
        comma = self._rules.tokens.comma if count else EMPTY
        is_full = self._high is not None and count >= self._high
        most = max(self._low, 1) if self._high is None else self._high
        following = min(count + 1, most)
        if place < len(self._members):
            member = self._members[place]
            if not is_full:
                after = self._state(place + 1, following, answered | member.answers)
                ways.append(sequence([comma, member.node, after]))
            if not member.is_required:
                ways.append(self._state(place + 1, count, answered))
            return ways
        if count and count >= self._low and answered == self._all:
            ways.append(self._rules.tokens.close_object)
        if not is_full:
            for other in self._others:
                ways.append(sequence([comma, other.node, self._state(place, following, answered | other.answers)]))
        return ways
