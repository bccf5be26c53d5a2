"""ECMA-262 patterns as expressions: the whole strings in which a pattern is found.

A pattern is translated from its end to its beginning: what it matches at a place, followed by what comes after. The
assertions `^`, `$`, `\\b` and `\\B` speak of the two neighbours of a place, so a place is described by what is known of
them; a look-ahead is an intersection with all that follows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import groupby

from tirage.errors import GrammarError
from tirage.guided.reduction import children, nullable
from tirage.guided.regular.charset import Ranges, common, complement
from tirage.guided.regular.ecma_syntax import (
    Boundary,
    CharClass,
    Concatenation,
    Disjunction,
    EcmaSyntaxError,
    Irregular,
    Lookahead,
    Node,
    Quantified,
    parse_ecma,
)
from tirage.guided.regular.expression import (
    ANY_TEXT,
    EMPTY,
    NOTHING,
    WORD,
    Chars,
    Expression,
    LiteralText,
    Repeat,
    RuleReference,
    choice,
    complement_of,
    intersection,
    optional,
    sequence,
)
from tirage.guided.regular.right_linear import NotLinearError, TooLargeError, solve
from tirage.workers.cancel import checkpoint

LENGTH, WORK, LOOP_POSITIONS = 20_000, 60_000, 5_000
"""Limits of one pattern: its characters; the nodes of all expressions that are made, of each term for every place where
it can stand; the positions of characters in one repetition with assertions inside."""
_TOO_LARGE = "pattern must be smaller: its repetitions and assertions multiply; shorten them"
_NO_WORD = complement(WORD)
_SOME_TEXT = Repeat(ANY_TEXT.part, 1, None)


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What is known of the neighbours of a place in a string.

    `before` is the character before it: "none", of a "word", or an "other"; `ahead` is what must follow: "any" text,
    a character of a "word", an "other" one or the end, or the "end".
    """

    before: str = "none"
    ahead: str = "any"


After = Callable[[Neighbours], Expression]
PLACES = [
    Neighbours(before, ahead) for before in ("none", "word", "other") for ahead in ("any", "word", "other", "end")
]
_AHEAD: dict[str, Expression] = {
    "any": ANY_TEXT,
    "word": sequence([Chars(WORD), ANY_TEXT]),
    "other": optional(sequence([Chars(_NO_WORD), ANY_TEXT])),
    "end": EMPTY,
}


def read_ecma(pattern: str) -> Expression:
    """The strings, whole, in which a pattern is found as ECMA-262 finds it: `^a` gives the strings that begin with a.

    It is read with the flag `u` if it is valid so, else without; a character is a code point in both. Raises
    GrammarError, with the position as `place`, for an invalid pattern, a back-reference, a look-behind, a look-ahead
    in a repetition (except before each character up to the end) and a pattern that would become too large.
    """
    if len(pattern) > LENGTH:
        raise GrammarError(f"pattern must have at most {LENGTH} characters, got {len(pattern)}; split it")
    try:
        tree = parse_ecma(pattern)
    except EcmaSyntaxError as error:
        place = f"character {error.at}"
        raise GrammarError(
            f"pattern must be a regular expression of ECMA-262, got {pattern!r:.60}: {error} ({place})", place=place
        ) from None
    try:
        return PatternTranslator(tree).strings()
    except RecursionError:
        raise GrammarError(_TOO_LARGE) from None


class PatternTranslator:
    """Translates one syntax tree."""

    def __init__(self, tree: Node) -> None:
        self._tree, self._work, self._loops = tree, 0, 0
        # Keyed by identity, since equality compares whole trees; keeping the node keeps its id from being reused.
        self._sizes: dict[int, tuple[Expression, int]] = {}
        self._expressions: dict[int, tuple[Node, Expression | None]] = {}
        self._runs: dict[int, list[Node]] = {}
        self._words = any(isinstance(node, Boundary) and node.sign in {"\\b", "\\B"} for node in nodes_of(tree))

    def strings(self) -> Expression:
        """The strings in which the pattern is found; GrammarError as `read_ecma`."""
        found = self._before(self._tree, lambda place: _AHEAD[place.ahead])
        if not self._words:
            here, later = found(Neighbours()), found(Neighbours("other"))
            return choice([here, sequence([_SOME_TEXT, later])]) if here != later else sequence([ANY_TEXT, later])
        within: dict[Neighbours, Expression] = {
            Neighbours("word"): found(Neighbours("word")),
            Neighbours("other"): found(Neighbours("other")),
        }
        reached = [sequence([text_up_to(place), rest]) for place, rest in within.items()]
        return choice([found(Neighbours()), *reached])

    def _before(self, node: Node, after: After) -> After:
        """What the node matches at a place, followed by what comes `after` it."""

        @cache
        def found(place: Neighbours) -> Expression:
            expression = self._match(node, place, after)
            self._work += self._size(expression)
            if self._work > WORK:
                raise GrammarError(_TOO_LARGE)
            return expression

        return found

    def _size(self, node: Expression) -> int:
        """The number of nodes of an expression, which may occur in it many times."""
        if id(node) not in self._sizes:
            self._sizes[id(node)] = node, 1 + sum(map(self._size, children(node)))
        return self._sizes[id(node)][1]

    def _match(self, node: Node, place: Neighbours, after: After) -> Expression:
        checkpoint()
        if not isinstance(node, Boundary | Lookahead | Irregular) and (whole := self._plain(node)) is not None:
            return self._plainly(whole, place, after)
        match node:
            case CharClass(ranges):
                return self._character(ranges, place, after)
            case Concatenation():
                return self._concatenation(node, after)(place)
            case Disjunction(alternatives):
                return choice([self._before(one, after)(place) for one in alternatives])
            case Quantified(term, low, high):
                return self._repeat(term, low, high, place, after)
            case Boundary(sign):
                there = asserted(sign, place)
                return NOTHING if there is None else after(there)
            case Lookahead(term, negative):
                return self._look(term, negative, place, after)
            case Irregular(name, at):
                raise refusal(f"a {name}", f"character {at}")

    def _concatenation(self, node: Concatenation, after: After) -> After:
        for term in reversed(self._runs_of(node)):
            after = self._before(term, after)
            # Asked here, so that the calls for a long pattern are not nested.
            for before in ("none", "word", "other") if self._words else ("none", "other"):
                after(Neighbours(before))
        return after

    def _runs_of(self, node: Concatenation) -> list[Node]:
        """The terms, those without assertions put together where words do not matter."""
        if self._words:
            return list(node.terms)
        if id(node) not in self._runs:
            found = [(free, tuple(run)) for free, run in groupby(node.terms, is_free)]
            self._runs[id(node)] = [one for free, run in found for one in ([Concatenation(run)] if free else run)]
        return self._runs[id(node)]

    def _plain(self, node: Node) -> Expression | None:
        """The expression of a node without assertions; None for one with them, and where words matter."""
        if self._words:
            return None
        if id(node) not in self._expressions:
            self._expressions[id(node)] = node, expression_of(node) if is_free(node) else None
        return self._expressions[id(node)][1]

    def _plainly(self, whole: Expression, place: Neighbours, after: After) -> Expression:
        """An expression without assertions, followed by what comes after."""
        empty = nullable(whole, set())
        if place.ahead == "end":
            return after(place) if empty else NOTHING
        later = sequence([whole, after(Neighbours("other"))])
        return choice([after(place), later]) if empty and after(place) != after(Neighbours("other")) else later

    def _character(self, ranges: Ranges, place: Neighbours, after: After) -> Expression:
        """One character; what comes after it depends on whether it is one of a word."""
        parts: list[Expression] = []
        for kind, chars in (("word", WORD), ("other", _NO_WORD)):
            here = common(ranges, chars)
            if here and place.ahead in {"any", kind}:
                parts.append(sequence([Chars(here), after(Neighbours(kind))]))
        return choice(parts)

    def _look(self, term: Node, negative: bool, place: Neighbours, after: After) -> Expression:
        seen = self._seen(term, place)
        return intersection([complement_of(seen) if negative else seen, after(place)])

    def _seen(self, term: Node, place: Neighbours) -> Expression:
        """All that may follow a place where a look-ahead finds its term."""
        return self._before(term, lambda there: _AHEAD[there.ahead])(Neighbours(place.before))

    # --- repetitions with assertions inside --------------------------------------------------------------------------

    def _repeat(self, term: Node, low: int, high: int | None, place: Neighbours, after: After) -> Expression:
        tempered = self._tempered(term, low, high, place, after)
        if tempered is not None:
            return tempered
        following = after
        if high is None:
            following = self._endless(term, after)
        for _ in range(0 if high is None else high - low):
            following = either(after, self._before(term, following))
        for _ in range(low):
            following = self._before(term, following)
        return following(place)

    def _endless(self, term: Node, after: After) -> After:
        """Any number of repetitions: a system of equations, one for each place at which a repetition can begin."""
        self._loops += 1
        prefix = f"{self._loops} "
        repeated = self._before(term, lambda there: RuleReference(f"{prefix}{there.before} {there.ahead}"))
        equations = {
            f"{prefix}{place.before} {place.ahead}": choice([after(place), repeated(place)]) for place in PLACES
        }

        @cache
        def found(place: Neighbours) -> Expression:
            try:
                return solve(equations, f"{prefix}{place.before} {place.ahead}", limit=LOOP_POSITIONS)
            except TooLargeError:
                raise GrammarError(_TOO_LARGE) from None
            except NotLinearError:
                raise refusal("a look-ahead in a repetition", "followed by more than $") from None

        return found

    def _tempered(self, term: Node, low: int, high: int | None, place: Neighbours, after: After) -> Expression | None:
        """`(?:(?!a)b)*` where the string ends after it: what repeats b and has a nowhere. None for anything else."""
        terms = term.terms if isinstance(term, Concatenation) else (term,)
        looks = [one for one in terms if isinstance(one, Lookahead)]
        if self._words or not looks or len(terms) != len(looks) + 1 or not isinstance(terms[-1], CharClass):
            return None
        if place.ahead == "end":
            return NOTHING if low else after(place)
        if after(Neighbours("other")) != EMPTY:
            raise refusal("a look-ahead in a repetition", "followed by more than $")
        banned = [self._seen(one.term, Neighbours("other")) for one in looks if one.negative]
        banned += [complement_of(self._seen(one.term, Neighbours("other"))) for one in looks if not one.negative]
        nowhere = [complement_of(sequence([ANY_TEXT, intersection([_SOME_TEXT, one])])) for one in banned]
        repeated = intersection([Repeat(Chars(terms[-1].ranges), low, high), *nowhere])
        return choice([after(place), repeated]) if low == 0 else repeated


def either(one: After, other: After) -> After:
    """What comes after an optional repetition: what comes after all of them, or one more."""
    return cache(lambda place: choice([one(place), other(place)]))


def refusal(what: str, where: str) -> GrammarError:
    """The error for a construct that no finite automaton follows."""
    return GrammarError(f"pattern must not use {what} ({where}); write the alternatives out", place=where)


def asserted(sign: str, place: Neighbours) -> Neighbours | None:
    """The place when an assertion about its neighbours holds; None if it cannot."""
    if sign == "^":
        return place if place.before == "none" else None
    beside = "word" if (place.before == "word") == (sign == "\\B") else "other"
    wanted = "end" if sign == "$" else beside
    if place.ahead in {"any", wanted}:
        return Neighbours(place.before, wanted)
    return Neighbours(place.before, "end") if {place.ahead, wanted} == {"other", "end"} else None


def text_up_to(place: Neighbours) -> Expression:
    """Any text whose last character is of the kind that a place has before it."""
    return sequence([ANY_TEXT, Chars(WORD if place.before == "word" else _NO_WORD)])


def nodes_of(node: Node) -> list[Node]:
    """A node and all nodes inside it."""
    return [node, *(inner for part in parts_of(node) for inner in nodes_of(part))]


def parts_of(node: Node) -> tuple[Node, ...]:
    """The nodes right inside a node."""
    match node:
        case Concatenation(parts) | Disjunction(parts):
            return parts
        case Quantified(term) | Lookahead(term):
            return (term,)
    return ()


def is_free(node: Node) -> bool:
    """Whether a node has no assertion and nothing irregular inside."""
    return not isinstance(node, Boundary | Lookahead | Irregular) and all(map(is_free, parts_of(node)))


def expression_of(node: Node) -> Expression:
    """The expression of a node without assertions."""
    match node:
        case CharClass(ranges):
            single = len(ranges) == 1 and ranges[0][0] == ranges[0][1]
            return LiteralText(chr(ranges[0][0])) if single else Chars(ranges) if ranges else NOTHING
        case Concatenation(terms):
            return sequence([expression_of(term) for term in terms])
        case Disjunction(alternatives):
            return choice([expression_of(one) for one in alternatives])
        case Quantified(term, low, high):
            part = expression_of(term)
            if part == EMPTY or high == 0 or (part == NOTHING and low == 0):
                return EMPTY
            return part if (low, high) == (1, 1) or part == NOTHING else Repeat(part, low, high)
    raise ValueError(f"{type(node).__name__} has no expression of its own")
