"""Sets of values as rules of a grammar."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import lru_cache

from tirage.errors import GrammarError
from tirage.guided.json_schema.array_rules import ArrayRules
from tirage.guided.json_schema.document import OF_TYPE, Document
from tirage.guided.json_schema.expansion import Expansion
from tirage.guided.json_schema.grammar import ROOT, SchemaGrammar
from tirage.guided.json_schema.intersections import TOO_MUCH
from tirage.guided.json_schema.json_strings import string_literal
from tirage.guided.json_schema.json_tokens import (
    ANY_INTEGER,
    ANY_NUMBER,
    ANY_STRING,
    FALSE,
    NULL,
    TRUE,
    JsonTokens,
    either,
    strings,
)
from tirage.guided.json_schema.number_rules import number_expression
from tirage.guided.json_schema.object_rules import ObjectRules
from tirage.guided.json_schema.places import fail
from tirage.guided.json_schema.steps import STEPS, StepsError
from tirage.guided.json_schema.string_sets import string_expression
from tirage.guided.json_schema.typed_keywords import holds
from tirage.guided.json_schema.values import (
    ANYTHING,
    EVERYTHING,
    NEVER,
    Arrays,
    Booleans,
    Conditions,
    Null,
    Numbers,
    Objects,
    RefusedValues,
    Strings,
    Values,
    ValueSet,
)
from tirage.guided.reduction import in_order, is_productive, prune, reachable
from tirage.guided.regular.expression import (
    ANY_TEXT,
    NOTHING,
    Expression,
    Intersection,
    RuleReference,
    Terminal,
    is_nothing,
)
from tirage.guided.regular.regular_language import LanguageError
from tirage.workers.cancel import checkpoint

ANY = "any"
RULES = 6_000
"""Most rules of a grammar, which take up to 9 KB each; of a thousand schemas in use none needs 1,700."""


_OF_TYPE: dict[Conditions, Expression] = {
    holds(OF_TYPE["string"]): ANY_STRING,
    holds(OF_TYPE["number"]): ANY_NUMBER,
    holds(OF_TYPE["integer"]): ANY_INTEGER,
    holds(OF_TYPE["boolean"]): either([TRUE, FALSE]),
    holds(OF_TYPE["null"]): NULL,
}
"""What stands for values of which no more than their type is said."""


class RuleWriter:
    """Writes one rule for the values of each set of conditions, when a rule refers to it."""

    def __init__(self, expansion: Expansion, tokens: JsonTokens) -> None:
        self.expansion, self.tokens = expansion, tokens
        self.rules: dict[str, Expression] = {}
        self._written: dict[Conditions, Expression] = dict(_OF_TYPE)
        self._members: dict[Conditions, Expression | None] = dict(_OF_TYPE)
        self.is_complete, self.is_spaced, self.members = True, True, 0
        self._queue: deque[tuple[str, ValueSet]] = deque()

    def write(self, conditions: Conditions) -> None:
        """Writes the rules of all values that satisfy the conditions, beginning with `ROOT`."""
        # The first rule of all, also where others are written before it.
        self.rules[ROOT] = NOTHING
        self.rules[ROOT] = self.value(conditions)
        while self._queue:
            name, values = self._queue.popleft()
            self.rules[name] = self._any_of(name, values)

    def write_as(self, name: str, conditions: Conditions, values: ValueSet) -> None:
        """Writes the rule of some values, which stands for those that satisfy the conditions."""
        self.rules[name] = NOTHING
        self._written[conditions] = RuleReference(name)
        self.rules[name] = self._any_of(name, values)

    def value(self, conditions: Conditions) -> Expression:
        """A reference to the rule of the values that satisfy the conditions, or the terminal that they are."""
        found = self._written.get(conditions)
        if found is None:
            if conditions:
                found = self._value(self.expansion.values(conditions))
            else:
                self.rules |= any_value(self.tokens)
                found = RuleReference(ANY)
            self._written[conditions] = found
        return found

    def member(self, conditions: Conditions) -> Expression | None:
        """As `value`; None if no value is known to satisfy the conditions."""
        checkpoint()
        if conditions in self._members:
            return self._members[conditions]
        is_none = bool(conditions) and (conditions >= NEVER or self.expansion.is_nothing(conditions))
        found = self._members[conditions] = None if is_none else self.value(conditions)
        return found

    def _value(self, values: ValueSet) -> Expression:
        if "array" not in values and "object" not in values:
            found = self._any_of(f"n{len(self._written)}", values)
            self.is_complete &= not is_nothing(found)
            return found
        name = f"v{len(self._written)}_{len(self._queue)}"
        self.rules[name] = NOTHING
        self._queue.append((name, values))
        return RuleReference(name)

    def _any_of(self, name: str, values: ValueSet) -> Expression:
        parts: list[Expression] = []
        for each in values.values():
            for one in each:
                parts.append(self._one(f"{name}_{len(parts)}", one))
        return either(parts)

    def _one(self, name: str, one: Values) -> Expression:
        match one:
            case Objects():
                return ObjectRules(self, name, one).expression()
            case Strings():
                return self._string(one)
            case Arrays():
                return ArrayRules(self, name, one).expression()
            case Numbers():
                return number_expression(one, name, self.add_unspaced)
            case Booleans(values):
                return either([terminal for value, terminal in ((True, TRUE), (False, FALSE)) if value in values])
            case Null():
                return NULL
            case RefusedValues(error):
                raise error

    def _string(self, one: Strings) -> Expression:
        if one.values is not None:
            return Terminal(either([*map(string_literal, one.values)]))
        found = string_expression(one)
        if found == ANY_TEXT:
            return ANY_STRING
        try:
            is_empty = found == NOTHING or (isinstance(found, Intersection) and self.expansion.has_no_text(found))
        except LanguageError:
            fail(one.path, TOO_MUCH)
        return NOTHING if is_empty else strings(found)

    def add(self, name: str, node: Expression) -> RuleReference:
        """Adds a rule; gives the reference to it. Raises GrammarError when there are too many."""
        checkpoint()
        if len(self.rules) >= RULES:
            fail((), f"must describe its values in fewer than {RULES} rules; make it smaller")
        self.rules[name] = node
        return RuleReference(name)

    def add_unspaced(self, name: str, node: Expression) -> RuleReference:
        """As `add`, for a rule inside which there is no whitespace."""
        self.is_spaced = False
        return self.add(name, node)


@lru_cache(maxsize=16)
def any_value(tokens: JsonTokens) -> Mapping[str, Expression]:
    """The rules of any value, of which the first is `ANY`: the same in every grammar."""
    writer = RuleWriter(Expansion(Document(True)), tokens)
    writer.write_as(ANY, ANYTHING, EVERYTHING)
    return writer.rules


def grammar_of(document: Document, tokens: JsonTokens) -> SchemaGrammar:
    """The grammar of a document; `tokens` are those of JSON with the whitespace around them.

    Raises GrammarError for what cannot be exact, and for a schema that no value satisfies.
    """
    expansion = Expansion(document)
    writer = RuleWriter(expansion, tokens)
    try:
        writer.write(holds(document.root))
    except StepsError:
        fail(
            (), f"must combine its parts in fewer than {STEPS} steps; leave out oneOf, not or allOf where they are many"
        )
    rules = pruned(writer.rules, any_value(tokens), is_complete=writer.is_complete)
    return SchemaGrammar(rules, tokens, writer.members, writer.is_spaced, tuple(document.ignored))


def pruned(
    rules: dict[str, Expression], known: Mapping[str, Expression], *, is_complete: bool
) -> dict[str, Expression]:
    """The rules that lead to some text, as the `known` ones do; GrammarError when the first, `ROOT`, does not.

    `is_complete` says that all alternatives in rules that lead to some text do so, too.
    """
    alive = set(known)
    left, size = list(rules), -1
    # Most rules come before those they refer to, and those of runs of members after them.
    while left and len(left) != size:
        size, names, left = len(left), reversed(left), []
        for name in names:
            checkpoint()
            if name in alive or is_productive(rules[name], alive):
                alive.add(name)
            else:
                left.append(name)
    if ROOT not in alive:
        raise GrammarError("schema cannot be enforced: no value satisfies it", place="#")
    if is_complete and not left:
        return rules
    kept = {name: prune(rules[name], alive) for name in in_order(rules, ROOT) if name in alive}
    return {name: kept[name] for name in reachable(kept, ROOT)}
