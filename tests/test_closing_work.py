"""The work of finding how a constrained text may end: counted, bounded, and left off when nobody waits for it."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

import pytest

from tirage import GuidedDecodingParams
from tirage.guided import BYTES, Compiler, CompletionFinder
from tirage.guided.closing import byte_search
from tirage.guided.closing.boolean_automaton import NEVER
from tirage.guided.closing.budgets import RemainingWork, StepBudget, WorkLimitError
from tirage.guided.closing.byte_search import ByteSearch
from tirage.guided.closing.expression_graph import ExpressionGraph
from tirage.guided.closing.recognizer import Recognizer
from tirage.guided.closing.shortest_completion import CompletionState
from tirage.guided.gbnf import read_gbnf
from tirage.guided.matcher import Matcher
from tirage.guided.regular.expression import (
    Alternatives,
    Chars,
    Expression,
    LiteralText,
    Repeat,
    RuleReference,
    Sequence,
)
from tirage.workers.cancel import cancellable


def with_pattern(pattern: str) -> GuidedDecodingParams:
    """A string that matches a pattern."""
    return GuidedDecodingParams(json=json.dumps({"type": "string", "pattern": pattern}))


def many_ways(count: int) -> str:
    """A pattern that may go on in as many ways as there have been letters `a`."""
    return f"^(a|b)*a(a|b){{{count}}}$"


def state_of(guided: GuidedDecodingParams) -> CompletionState:
    """The state of a text that has not begun, over bytes."""
    return CompletionState(CompletionFinder(guided, BYTES), frozenset())


# --- the shortest text of each rule ------------------------------------------------------------------------------


def size_of(node: Expression, sizes: Mapping[str, int]) -> int:
    """The length of the shortest text of an expression, given those of the rules."""
    match node:
        case LiteralText(text):
            return len(text.encode())
        case Chars():
            return 1
        case RuleReference(name):
            return sizes[name]
        case Repeat(part, low, _):
            return min(NEVER, low * size_of(part, sizes)) if low else 0
        case Sequence(parts):
            return min(NEVER, sum(size_of(part, sizes) for part in parts))
        case Alternatives(parts):
            return min((size_of(part, sizes) for part in parts), default=NEVER)
    raise AssertionError(node)


def slow_sizes(rules: Mapping[str, Expression]) -> dict[str, int]:
    """The same for each rule: lowered until nothing changes."""
    sizes, before = dict.fromkeys(rules, NEVER), {}
    while before != sizes:
        before = dict(sizes)
        for name, body in rules.items():
            sizes[name] = size_of(body, sizes)
    return sizes


def random_grammar(rng: random.Random) -> str:
    """A few rules that refer to each other at random, some of which match no text."""
    names = ["root", *(f"r{index}" for index in range(rng.randrange(1, 7)))]

    def part() -> str:
        base = rng.choice(['"ab"', '"c"', "[d-f]", '""', *names])
        return rng.choice([base, base, f"({base})?", f"({base})*", f"({base}){{2,3}}"])

    def body() -> str:
        return " | ".join(" ".join(part() for _ in range(rng.randrange(1, 4))) for _ in range(rng.randrange(1, 3)))

    return "\n".join(f"{name} ::= {body()}" for name in names)


@pytest.mark.parametrize("seed", range(200))
def test_the_shortest_length_of_each_rule_is_that_of_a_slow_reference(seed: int) -> None:
    rules = read_gbnf(random_grammar(random.Random(seed)))
    graph = ExpressionGraph(rules, lambda part: Recognizer({"": part}, ""))
    found = {name: graph.least((graph.rule(name), 0, None)) for name in rules}
    assert found == slow_sizes(rules)


def test_each_rule_of_a_long_chain_is_looked_at_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, size = [], ExpressionGraph._size

    def counted(self: ExpressionGraph, node: int, sizes: list[int]) -> int:
        asked.append(node)
        return size(self, node, sizes)

    monkeypatch.setattr(ExpressionGraph, "_size", counted)
    rules = read_gbnf("root ::= r0\n" + "".join(f'r{i} ::= "a" r{i + 1}\n' for i in range(900)) + 'r900 ::= "b"')
    graph = ExpressionGraph(rules, lambda part: Recognizer({"": part}, ""))
    assert graph.least((graph.rule("root"), 0, None)) == 901
    assert len(asked) < 5 * len(graph.kinds)


# --- the completion of the fewest bytes --------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "size"), [(5, 8), (250, 253)])
def test_the_end_of_a_text_that_may_go_on_in_many_ways_is_found(count: int, size: int) -> None:
    text = state_of(with_pattern(many_ways(count))).shortest(2048)
    assert text is not None
    assert (len(text), {*text}) == (size, {*b'"a'})


@pytest.mark.parametrize(("count", "stacks"), [(313, 99_855), (314, 100_488)])
def test_before_a_text_a_hundred_thousand_stacks_are_the_most(count: int, stacks: int) -> None:
    state, left = state_of(with_pattern(many_ways(count))), RemainingWork(1_000_000)
    recognizer, _ = state._finder.ready(frozenset())
    text = recognizer.shortest_text(0, 2048, left)
    assert 1_000_000 - left.left == stacks
    if stacks <= 100_000:
        assert state.shortest(2048) == text
    else:
        with pytest.raises(WorkLimitError):
            state.shortest(2048)


@pytest.mark.parametrize("count", [1000, 2000])
def test_it_is_given_up_where_the_ways_are_too_many(count: int) -> None:
    with pytest.raises(WorkLimitError):
        state_of(with_pattern(many_ways(count))).shortest(2048)


@pytest.mark.parametrize("count", [3000, 16384])
def test_no_work_is_done_for_an_end_that_is_too_far(count: int) -> None:
    state = state_of(with_pattern(many_ways(count)))
    recognizer, _ = state._finder.ready(frozenset())
    stacks = RemainingWork(10)
    assert recognizer.shortest_text(0, 2048, stacks) is None
    assert stacks.left > 0


@pytest.mark.parametrize(("left", "is_found"), [(8, False), (9, True)])
def test_the_limit_counts_the_stacks_of_each_byte(left: int, is_found: bool) -> None:
    # Three ways at each of the three bytes.
    recognizer = Recognizer(read_gbnf('root ::= "ab" [c] | "ab" [d] "e" | "abcdefgh"'), "root")
    stacks = RemainingWork(left)
    try:
        found = recognizer.shortest_text(0, 100, stacks) == b"abc"
    except WorkLimitError:
        found = False
    assert found == is_found


def test_inside_a_text_less_work_may_be_done() -> None:
    state = state_of(with_pattern(many_ways(150)))
    assert state.shortest(2048) is not None
    state.advance(b'"aaaa')
    with pytest.raises(WorkLimitError):
        state.shortest(2048)


@pytest.mark.parametrize(
    "guided", [with_pattern(many_ways(250)), GuidedDecodingParams(grammar='root ::= "a" root | "b"')]
)
def test_the_search_is_left_off_when_its_request_is_cancelled(guided: Any) -> None:
    state = state_of(guided)
    state.prepare()

    def cancelled() -> None:
        raise TimeoutError

    with cancellable(cancelled), pytest.raises(TimeoutError):
        state.shortest(2048)
    assert state.shortest(2048) is not None


# --- the search over bytes -----------------------------------------------------------------------------------------

_GRAMMARS = (
    GuidedDecodingParams(json={"type": "object", "properties": {f"w{i}": {"type": "integer"} for i in range(40)}}),
    GuidedDecodingParams(json={"type": "array", "items": {"enum": ["ab", "abc", 1, None]}, "minItems": 3}),
    GuidedDecodingParams(regex="(a|bb|ccc){3,5}(x|yz)"),
    GuidedDecodingParams(grammar='root ::= "(" root ")" | [a-c]+ " " root | "x"'),
)


def ending_of(guided: GuidedDecodingParams, *, last: bytes, steps: int = 20_000) -> bytes | None:
    """A short text of a constraint that tokens can spell, which is one with these last bytes."""
    matcher = Compiler(BYTES).compile(guided).matcher()
    return byte_search.shortest(matcher, lambda text: text.endswith(last), StepBudget(steps))


@pytest.mark.parametrize("guided", _GRAMMARS)
@pytest.mark.parametrize("last", [b"}", b"]", b"x", b"zzz"])
def test_the_way_between_two_texts_does_not_matter(
    guided: GuidedDecodingParams, last: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ending_of(guided, last=last)
    begun = Compiler(BYTES).compile(guided)

    def go_to(self: ByteSearch, text: bytes) -> None:
        self._matcher, self._text = begun.matcher(), text
        assert all(map(self._matcher.accept, text))

    monkeypatch.setattr(ByteSearch, "_go_to", go_to)
    assert ending_of(guided, last=last) == found


def test_some_ends_are_found_and_some_are_not() -> None:
    ends = [ending_of(guided, last=last) for guided, last in zip(_GRAMMARS, (b"}", b"]", b"x", b"x"), strict=True)]
    assert ends == [b"{}", b"[1,1,1]", b"bbbbax", b"x"]
    assert ending_of(_GRAMMARS[2], last=b"zzz") is None


def test_a_search_over_bytes_holds_one_matcher(monkeypatch: pytest.MonkeyPatch) -> None:
    forks, fork = list[Matcher](), Matcher.fork

    def counted(self: Matcher) -> Matcher:
        forks.append(self)
        return fork(self)

    monkeypatch.setattr(Matcher, "fork", counted)
    assert ending_of(_GRAMMARS[0], last=b"zzz") is None
    assert len(forks) == 1


@pytest.mark.parametrize(("moves", "found"), [(0, None), (10, None), (100_000, b"bbbbax")])
def test_the_bytes_that_are_moved_over_are_bounded(
    moves: int, found: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(byte_search, "MAX_MOVES", moves)
    assert ending_of(_GRAMMARS[2], last=b"x") == found
