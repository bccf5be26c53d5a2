"""What values a schema has, by type: combinations, references and conditions are worked out.

A schema and everything that applies to the same value become sets of values of each type. What applies to the items
and members inside stays a set of conditions, which is worked out when it is asked for; so schemas that refer to
themselves have an end.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

from tirage.guided.json_schema.constants import constants, other_values, without
from tirage.guided.json_schema.document import Document, Node
from tirage.guided.json_schema.formats import is_format
from tirage.guided.json_schema.intersections import intersection, item_at, union
from tirage.guided.json_schema.places import fail, refusal
from tirage.guided.json_schema.steps import Steps
from tirage.guided.json_schema.string_sets import string_expression
from tirage.guided.json_schema.typed_keywords import VALUES_OF_TYPE, broken, holds, typed_values
from tirage.guided.json_schema.values import (
    ANYTHING,
    EVERYTHING,
    NEVER,
    Arrays,
    Booleans,
    Condition,
    Conditions,
    Members,
    Objects,
    RefusedValues,
    Strings,
    Values,
    ValueSet,
)
from tirage.guided.regular.expression import Complement, Expression, choice, text
from tirage.guided.regular.expression import intersection as intersection_of
from tirage.guided.regular.regular_language import LanguageError, SearchSteps, is_empty, matches, some_length
from tirage.workers.cancel import checkpoint

_QUICK = 2_000
SAMPLES = (
    "", "a", "A", "0", "-", " ", "é", "aaaa", "1234", "2024-02-29", "12:30:00Z", "2024-02-29T12:30:00Z", "P1D",
    "2024-02-29T12:30:00.123Z", "user@example.com", "example.com", "http://example.com/a", "192.0.2.1", "2001:db8::1",
    "123e4567-e89b-42d3-a456-426614174000", "/a/b", "1/a", "aA1-", "a.b.c", "1.2.3", "x" * 64,
)  # fmt: skip
"""Texts of usual forms, tried where a pattern is too large to be searched at once."""
_DEPTH = 3
_MOST_EVALUATED = 5
_NOTHING: ValueSet = {}
_KNOWN: dict[Conditions, ValueSet] = {ANYTHING: EVERYTHING, **VALUES_OF_TYPE}
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_COMBINED = frozenset({
    *_REFERENCES, "allOf", "anyOf", "oneOf", "not", "if", "const", "enum", "dependentSchemas", "dependentRequired",
    "dependencies", "unevaluatedProperties", "unevaluatedItems",
})  # fmt: skip


class Region(NamedTuple):
    """The strings that match all of some patterns, and none of others."""

    inside: tuple[Expression, ...]
    outside: tuple[Expression, ...]

    @property
    def all(self) -> list[Expression]:
        """What such a string matches."""
        return [*self.inside, *map(Complement, self.outside)]


class _OpenError(Exception):
    """Raised where the values of a schema are asked for while they are being worked out."""


class Expansion:
    """The values of the schemas of one document; it remembers what it has worked out."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._sets: dict[Condition, ValueSet] = {}
        self._combined: dict[Conditions, ValueSet] = _KNOWN.copy()
        self._open: dict[Condition, bool] = {}
        self._without_text: dict[Expression, bool] = {}
        self._regions: dict[tuple[tuple[Expression, ...], tuple[str, ...]], list[Region]] = {}
        self._search = SearchSteps()
        self._nothing: dict[tuple[Conditions, int], bool] = {}
        self._looking = 0
        self._steps = Steps()

    # --- sets of values -----------------------------------------------------------------------------------------------

    def values(self, conditions: Conditions) -> ValueSet:
        """The values for which all conditions are true, without sets that are known to be empty.

        Raises StepsError for combinations that are too many, and GrammarError for references that lead nowhere, or back
        to themselves with nothing in between.
        """
        found = self._combined.get(conditions)
        if found is None:
            found = self._combined[conditions] = self._values(conditions)
        return found

    def _values(self, conditions: Conditions) -> ValueSet:
        if len(conditions) == 1:
            (condition,) = conditions
            keywords = condition.node.keywords
            found = self._set(self._plain(condition) if keywords and "$ref" in keywords else condition)
            return found if found is EVERYTHING else self._without_empty(found, 0)
        # In a known order, or the error for one of several wrong references would change from run to run.
        plain = {*map(self._plain, sorted(conditions, key=_place))}
        if len(plain) == 1:
            found = self._set(plain.pop())
        else:
            if any((node, not is_true) in plain for node, is_true in plain):
                return _NOTHING
            found = EVERYTHING
            for condition in sorted(plain, key=_place):
                found = self._both(found, self._set(condition))
        return found if found is EVERYTHING else self._without_empty(found, 0)

    def _plain(self, condition: Condition) -> Condition:
        """The condition on the schema that a schema of nothing but a reference leads to."""
        node = condition.node
        for _ in range(64):
            if not node.keywords or "$ref" not in node.keywords or len(node.keywords) != 1:
                break
            node = self._document.target(node, "$ref")
        return condition if node is condition.node else Condition(node, condition.holds)

    def _set(self, condition: Condition) -> ValueSet:
        checkpoint()
        found = self._sets.get(condition)
        if found is not None:
            return found
        if condition in self._open:
            if self._looking:
                raise _OpenError
            fail(condition.node.path, "must not lead back to itself through references alone")
        if len(self._open) > 150:
            fail(condition.node.path, "must not combine more than 150 schemas inside each other")
        self._open[condition] = True
        try:
            found = self._holding(condition.node) if condition.holds else self._failing(condition.node)
        finally:
            del self._open[condition]
        self._sets[condition] = found
        return found

    def _both(self, one: ValueSet, other: ValueSet) -> ValueSet:
        return intersection(one, other, self._steps)

    def _any(self, sets: list[ValueSet]) -> ValueSet:
        found = union(sets)
        self._steps.take(sum(map(len, found.values())))
        return found

    # --- a schema that holds ------------------------------------------------------------------------------------------

    def _holding(self, node: Node) -> ValueSet:
        keys = node.keywords
        if keys is None:
            return _NOTHING
        found = typed_values(node)
        if _COMBINED.isdisjoint(keys):
            return found
        for one in self._combinations(node, keys):
            found = self._both(found, one)
        if "unevaluatedProperties" in keys and "object" in found:
            inner = keys["unevaluatedProperties"]
            found = {**found, "object": tuple(unevaluated_members(each, inner) for each in found["object"])}
        if "unevaluatedItems" in keys and "array" in found:
            inner = keys["unevaluatedItems"]
            found = {**found, "array": tuple(unevaluated_items(each, inner) for each in found["array"])}
        return found

    def _combinations(self, node: Node, keys: dict[str, Any]) -> Iterator[ValueSet]:
        """The sets that the keywords of a schema which combine others describe."""
        if "const" in keys:
            yield constants([keys["const"]], node)
        if "enum" in keys:
            yield constants(keys["enum"], node)
        for key in _REFERENCES:
            if key in keys:
                yield self._set(Condition(self._document.target(node, key), holds=True))
        for inner in keys.get("allOf", ()):
            yield self._set(Condition(inner, holds=True))
        if "anyOf" in keys:
            yield self._any_of(keys["anyOf"])
        if "oneOf" in keys:
            yield self._one_of(keys["oneOf"], node)
        if "not" in keys:
            yield self._set(Condition(keys["not"], holds=False))
        if "if" in keys:
            yield self._if(keys)
        yield from self._dependencies(node, keys)

    def _any_of(self, branches: tuple[Node, ...]) -> ValueSet:
        sets = [self._set(Condition(branch, holds=True)) for branch in branches]
        if self._document.has_unevaluated and len(branches) <= _MOST_EVALUATED:
            # All branches that hold evaluate members and items, so those that hold together are a case of their own.
            together = list(sets)
            for size in range(2, len(sets) + 1):
                for chosen in combinations(sets, size):
                    found: ValueSet = EVERYTHING
                    for one in chosen:
                        found = self._both(found, one)
                    together.append(found)
            return self._any(together)
        return self._any(sets)

    def _one_of(self, branches: tuple[Node, ...], node: Node) -> ValueSet:
        """The values of exactly one branch; those of branches that exclude each other need no more said."""
        sets = [self._set(Condition(branch, holds=True)) for branch in branches]
        overlapping = {
            (i, j)
            for i, j in combinations(range(len(sets)), 2)
            if branches[i] is branches[j] or not self._is_nothing(self._both(sets[i], sets[j]), _DEPTH)
        }
        found = []
        for i, one in enumerate(sets):
            for j, branch in enumerate(branches):
                if (min(i, j), max(i, j)) in overlapping:
                    one = self._without_empty(self._both(one, self._set(Condition(branch, holds=False))), 1)
            found.append(one)
        return self._any(found)

    def _if(self, keys: dict[str, Any]) -> ValueSet:
        if not {"then", "else"} & set(keys) and not self._document.has_unevaluated:
            return EVERYTHING
        first, second = (
            self._both(
                self._set(Condition(keys["if"], is_true)),
                self._set(Condition(keys[key], holds=True)) if key in keys else EVERYTHING,
            )
            for is_true, key in ((True, "then"), (False, "else"))
        )
        return self._any([first, second])

    def _dependencies(self, node: Node, keys: dict[str, Any]) -> Iterator[ValueSet]:
        """For each dependency: no object, or one without the name, or one with it that satisfies the schema."""
        others = {kind: each for kind, each in EVERYTHING.items() if kind != "object"}
        for name, needed in dependencies(keys):
            there: ValueSet = {"object": (Objects(required=(name,), path=node.path),)}
            if isinstance(needed, Node):
                there = self._both(there, self._set(Condition(needed, holds=True)))
            else:
                there = {"object": (Objects(required=(*needed, name), path=node.path),)}
            yield self._any([others, {"object": (without(name, node),)}, there])

    # --- a schema that fails ------------------------------------------------------------------------------------------

    def _failing(self, node: Node) -> ValueSet:
        keys = node.keywords
        if keys is None:
            return EVERYTHING
        sets = broken(node)
        if not _COMBINED.isdisjoint(keys):
            sets += self._counterexamples(node, keys)
        return not_evaluating(self._any(sets)) if sets else _NOTHING

    def _counterexamples(self, node: Node, keys: dict[str, Any]) -> Iterator[ValueSet]:
        """For each keyword of a schema that combines others, the values that break it."""
        for key in ("const", "enum"):
            if key in keys:
                yield other_values([keys[key]] if key == "const" else keys[key], node)
        for key in _REFERENCES:
            if key in keys:
                yield self._set(Condition(self._document.target(node, key), holds=False))
        for inner in keys.get("allOf", ()):
            yield self._set(Condition(inner, holds=False))
        if "anyOf" in keys:
            yield self._none_of(keys["anyOf"])
        if "oneOf" in keys:
            yield self._none_of(keys["oneOf"])
            for one, other in combinations(keys["oneOf"], 2):
                yield self._both(self._set(Condition(one, holds=True)), self._set(Condition(other, holds=True)))
        if "not" in keys:
            yield self._set(Condition(keys["not"], holds=True))
        if "if" in keys:
            for key, is_true in (("then", True), ("else", False)):
                if key in keys:
                    one = self._set(Condition(keys["if"], is_true))
                    yield self._both(one, self._set(Condition(keys[key], holds=False)))
        yield from self._broken_dependencies(node, keys)
        for key, kind in (("unevaluatedProperties", "object"), ("unevaluatedItems", "array")):
            if key in keys and keys[key].keywords != {}:
                yield {kind: (RefusedValues(refusal((*node.path, key), "cannot be enforced inside of not")),)}

    def _none_of(self, branches: tuple[Node, ...]) -> ValueSet:
        found: ValueSet = EVERYTHING
        for branch in branches:
            found = self._both(found, self._set(Condition(branch, holds=False)))
        return found

    def _broken_dependencies(self, node: Node, keys: dict[str, Any]) -> Iterator[ValueSet]:
        for name, needed in dependencies(keys):
            there: ValueSet = {"object": (Objects(required=(name,), path=node.path),)}
            if isinstance(needed, Node):
                yield self._both(there, self._set(Condition(needed, holds=False)))
                continue
            for other in needed:
                yield self._both(there, {"object": (without(other, node),)})

    # --- nothing ------------------------------------------------------------------------------------------------------

    def _without_empty(self, sets: ValueSet, depth: int) -> ValueSet:
        """The sets of values without those that are known to be empty, which is looked for `depth` levels deep."""
        found: dict[str, tuple[Values, ...]] = {}
        for kind, each in sets.items():
            if each is EVERYTHING[kind]:
                found[kind] = each
            elif len(each) == 1:
                if not self._is_empty(each[0], depth):
                    found[kind] = each
            elif left := tuple([one for one in each if not self._is_empty(one, depth)]):
                found[kind] = left
        return found

    def is_nothing(self, conditions: Conditions, depth: int = 1) -> bool:
        """Whether no value is known to satisfy the conditions, as far as `depth` levels inside them tell."""
        if conditions is ANYTHING or depth == 0:
            return conditions >= NEVER
        key = (conditions, depth)
        found = self._nothing.get(key)
        if found is None:
            self._looking += 1
            self._steps.take()
            try:
                sets = self.values(conditions)
                # Those that are empty without a look inside are not among them.
                found = self._nothing[key] = not sets if depth == 1 else self._is_nothing(sets, depth - 1)
            except _OpenError:
                return False
            finally:
                self._looking -= 1
        return found

    def _is_nothing(self, sets: ValueSet, depth: int) -> bool:
        for each in sets.values():
            for one in each:
                if not self._is_empty(one, depth):
                    return False
        return True

    def _is_empty(self, one: Values, depth: int) -> bool:
        if isinstance(one, Strings):
            return self._is_empty_strings(one)
        if isinstance(one, Objects):
            if one.high is not None and max(one.low, len(one.required)) > one.high:
                return True
            if not one.required:
                return False
            self._steps.take(len(one.required) // 4)
            needed: list[Conditions] = []
            for name in one.required:
                needed.append(self.member(one, name))
            if not depth:
                return any(map(NEVER.issubset, needed))
            return any(self.is_nothing(each, depth) for each in needed)
        if isinstance(one, Arrays):
            short = one.high is not None and one.low > one.high
            places = range(min(one.low, len(one.prefix) + 1))
            return short or any(self.is_nothing(item_at(one, i), depth) for i in places)
        return isinstance(one, Booleans) and not one.values

    def member(self, objects: Objects, name: str) -> Conditions:
        """What holds for the member of a name; NEVER if there can be none."""
        if objects.names is not ANYTHING and not self.is_name(objects.names, name):
            return NEVER
        if len(objects.members) == 1:
            only = objects.members[0]
            return member_of(only, name) if only.patterns else only.named.get(name, only.others)
        return ANYTHING.union(*[member_of(each, name) for each in objects.members])

    def _is_empty_strings(self, strings: Strings) -> bool:
        """Whether a set of strings is empty; False where that is not known, which its terminal refuses."""
        if strings.values is not None or (strings.high is not None and strings.low > strings.high):
            return not strings.values
        if not strings.patterns and not strings.not_patterns:
            return False
        try:
            return self.has_no_text(string_expression(strings))
        except LanguageError:
            return False

    def regions(self, patterns: tuple[Expression, ...], listed: tuple[str, ...]) -> list[Region]:
        """How patterns divide the strings that are not listed: the parts that are not empty.

        Raises LanguageError for patterns that are too large to compare.
        """
        key = (patterns, listed)
        if key not in self._regions:
            rest = [Complement(choice(list(map(text, listed))))] if listed else []
            found = [Region((), ())]
            for pattern in patterns:
                parts = [
                    part
                    for inside, outside in found
                    for part in (Region((*inside, pattern), outside), Region(inside, (*outside, pattern)))
                ]
                found = [part for part in parts if not self.has_no_text(intersection_of([*part.all, *rest]))]
            self._regions[key] = found
        return self._regions[key]

    def has_no_text(self, node: Expression) -> bool:
        """Whether an expression matches no text; LanguageError where that is not known after so many steps."""
        found = self._without_text.get(node)
        if found is None:
            found = self._without_text[node] = self._has_no_text(node)
        return found

    def _has_no_text(self, node: Expression) -> bool:
        if is_format(node) or some_length(node) is not None:
            return False
        quick = SearchSteps(min(_QUICK, self._search.left))
        self._search.take(quick.left)
        with contextlib.suppress(LanguageError):
            found = is_empty(node, quick)
            self._search.left += quick.left
            return found
        # A usual text is found sooner than the search through a large product would find one.
        return not any(matches(node, sample) for sample in SAMPLES) and is_empty(node, self._search)

    def names(self, conditions: Conditions) -> list[Strings] | None:
        """The sets of strings that satisfy the conditions, None for all strings; GrammarError for what is not exact."""
        found = self.values(conditions).get("string", ())
        if found is EVERYTHING["string"]:
            return None
        for one in found:
            if isinstance(one, RefusedValues):
                raise one.error
        return [one for one in found if isinstance(one, Strings)]

    def is_name(self, conditions: Conditions, name: str) -> bool:
        """Whether a string satisfies the conditions."""
        one: ValueSet = {"string": (Strings(values=(name,)),)}
        return bool(intersection(self.values(conditions), one))


def _place(condition: Condition) -> tuple[Any, ...]:
    return len(condition.node.path), tuple(map(str, condition.node.path)), condition.holds


def dependencies(keys: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The names on which something depends, each with a schema or a list of names."""
    for key in ("dependentRequired", "dependentSchemas", "dependencies"):
        yield from keys.get(key, {}).items()


def member_of(members: Members, name: str) -> Conditions:
    """What one schema says of the member of a name; raises LanguageError for a pattern that cannot be followed."""
    if not members.patterns:
        return members.named.get(name, members.others)
    found = [inner for pattern, inner in members.patterns if matches(pattern, name)]
    if name in members.named:
        found.append(members.named[name])
    return ANYTHING.union(*found) if found else members.others


def unevaluated_members(objects: Values, inner: Node) -> Values:
    """Objects whose members that no schema has evaluated satisfy one."""
    if not isinstance(objects, Objects) or any(each.evaluates and each.evaluates_all for each in objects.members):
        return objects
    own = [each for each in objects.members if each.evaluates]
    rest = Members(
        named={name: ANYTHING for each in own for name in each.named},
        patterns=tuple((pattern, ANYTHING) for each in own for pattern, _ in each.patterns),
        others=holds(inner),
        evaluates_all=True,
    )
    return replace(objects, members=(*objects.members, rest))


def unevaluated_items(arrays: Values, inner: Node) -> Values:
    """Arrays whose items that no schema has evaluated satisfy one."""
    if not isinstance(arrays, Arrays) or arrays.evaluated is None:
        return arrays
    if arrays.contained and inner.draft != 2019:
        return RefusedValues(refusal(inner.path, "cannot be enforced beside contains"))
    places = range(max(len(arrays.prefix), arrays.evaluated))
    prefix = tuple(item_at(arrays, i) | (ANYTHING if i < arrays.evaluated else holds(inner)) for i in places)
    return replace(arrays, prefix=prefix, rest=arrays.rest | holds(inner), evaluated=None)


def not_evaluating(sets: ValueSet) -> ValueSet:
    """The sets as a schema that fails has them, which evaluates nothing."""
    return {
        kind: tuple(map(not_evaluating_values, each)) if kind in {"array", "object"} else each
        for kind, each in sets.items()
    }


def not_evaluating_values(one: Values) -> Values:
    """A set of values for which nothing is evaluated."""
    match one:
        case Objects(members=members) if any(each.evaluates for each in members):
            return replace(one, members=tuple(replace(each, evaluates=False) for each in members))
        case Arrays(evaluated=evaluated) if evaluated != 0:
            return replace(one, evaluated=0)
    return one
