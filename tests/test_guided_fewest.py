"""The completion of the fewest tokens, against all sequences of tokens there are, judged by other parsers."""

from __future__ import annotations

import contextlib
import json
import random
import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

import jsonschema
import numpy as np
import pytest
from guided_cases import GRAMMARS, PATTERNS, SCHEMAS, allows, derives

from tirage import GuidedDecodingParams
from tirage.guided import BYTES, ClosingPath, Compiler, CompletionFinder, Matcher, Vocabulary
from tirage.guided.closing.boolean_automaton import DEAD
from tirage.guided.closing.budgets import WorkLimitError
from tirage.guided.closing.constraint_rules import ROOT, constraint_rules
from tirage.guided.closing.recognizer import Recognizer
from tirage.guided.closing.shortest_completion import CompletionState

BY_BYTE = Compiler(BYTES)
DEPTH, TEXTS = 5, 1_500


@dataclass(frozen=True)
class Task:
    """A constraint, a vocabulary, and whether a text satisfies the constraint, by a parser of someone else."""

    mode: dict[str, Any]
    tokens: tuple[bytes, ...]
    accepts: Callable[[bytes], bool]

    @property
    def guided(self) -> GuidedDecodingParams:
        return GuidedDecodingParams(**self.mode)


def fewest(task: Task, prefix: bytes, viable: Matcher, unusable: frozenset[int]) -> int | None:
    """The fewest tokens after the prefix, found by trying every sequence; DEPTH + 1 when more are needed.

    None when there are too many sequences. The matcher only says which texts are not worth going on with.
    """
    words = sorted({token for i, token in enumerate(task.tokens) if token and i not in unusable})
    layer, seen = {prefix: viable}, {prefix}
    for count in range(DEPTH + 1):
        if any(map(task.accepts, layer)):
            return count
        following: dict[bytes, Matcher] = {}
        for text, place in layer.items():
            for word in words:
                if text + word not in seen and goes_on(place, word):
                    seen.add(text + word)
                    following[text + word] = place.fork()
                    assert all(map(following[text + word].accept, word))
            if len(seen) > TEXTS:
                return None
        layer = following
    return DEPTH + 1


def check(task: Task, seed: int) -> Iterator[int]:
    """From places of texts drawn at random: found exactly when the budget allows it, with tokens that are a way."""
    rng = random.Random(seed)
    grammar = BY_BYTE.compile(task.guided)
    letters = Vocabulary((*task.tokens, *BYTES.tokens))
    finder = CompletionFinder(task.guided, letters)
    unusable = frozenset(i for i in range(len(task.tokens)) if rng.random() < 0.1)
    matcher, prefix = grammar.matcher(), b""
    for _ in range(4):
        least = fewest(task, prefix, matcher.fork(), unusable)
        if least is not None:
            place = place_of(task, letters, finder, prefix, unusable)
            yield from check_place(task, prefix, least, place, rng)
        usable = [t for i, t in enumerate(task.tokens) if t and goes_on(matcher, t)]
        if not usable:
            return
        prefix += (word := rng.choice(usable))
        assert all(map(matcher.accept, word))


def check_place(task: Task, prefix: bytes, least: int, place: ClosingPath, rng: random.Random) -> Iterator[int]:
    """At both sides of the edge, and with one other budget near it: each of them comes at some place of some seed."""
    budgets = {least - 1, least, rng.choice([least - 2, least + 1, least + 2, least + 3])}
    for budget in sorted(budget for budget in budgets if 0 <= budget <= DEPTH):
        closing = place.fork()
        assert closing.fits(budget) == (budget >= least), (task.mode, task.tokens, prefix, budget, least)
        if budget < least:
            continue
        way = closing.tokens or []
        assert len(way) <= budget
        assert task.accepts(prefix + b"".join(task.tokens[i] for i in way))
        assert not closing.fits(least - 1)
        yield len(way) - least


def goes_on(matcher: Matcher, word: bytes) -> bool:
    taken = sum(1 for _ in takewhile(matcher.accept, word))
    matcher.rollback(taken)
    return taken == len(word)


def place_of(
    task: Task, letters: Vocabulary, finder: CompletionFinder, prefix: bytes, unusable: frozenset[int]
) -> ClosingPath:
    """Where a text stands after a prefix, spelled byte by byte by the last tokens, which no completion may use."""
    width = len(task.tokens)
    spare = frozenset(range(width, letters.width))
    closing = ClosingPath(BY_BYTE.compile(task.guided).matcher(), letters, unusable | spare, finder=finder)
    for byte in prefix:
        closing.advance(width + byte)
    return closing


# --- random constraints ------------------------------------------------------------------------------------------


def random_pattern(rng: random.Random, depth: int = 3) -> str:
    if not depth or rng.random() < 0.3:
        return rng.choice(["a", "b", "c", "ab", "[ab]", "[^a]", "é", "[b-é]", "."])
    inner = random_pattern(rng, depth - 1)
    form = rng.randrange(4)
    if form == 0:
        return f"({inner}|{random_pattern(rng, depth - 1)})"
    if form == 1:
        return f"({inner})" + rng.choice(["*", "+", "?", "{2}", "{1,3}", "{2,}"])
    return inner + random_pattern(rng, depth - 1)


def random_words(rng: random.Random, pieces: Sequence[bytes], texts: Sequence[bytes]) -> tuple[bytes, ...]:
    """Tokens made of pieces or cut out of texts, across their structure and inside characters; not always enough."""
    words = {b"".join(rng.choices(pieces, k=rng.randint(1, 3))) for _ in range(rng.randint(2, 6))}
    for _ in range(rng.randint(2, 6)):
        text = rng.choice(texts)
        start = rng.randrange(len(text))
        words.add(text[start : start + rng.randint(1, 4)])
    words |= {piece for piece in pieces if rng.random() < 0.7}
    return (b"", *rng.sample(sorted(words), len(words)))


def pattern_task(rng: random.Random) -> Task:
    while True:
        pattern = random_pattern(rng)
        matches = re.compile(pattern, re.ASCII)
        if not matches.fullmatch("") or pattern[-1] in "+}":
            break
    words = random_words(rng, [b"a", b"b", b"c", "é".encode()[:1], "é".encode()[1:]], ["abécab".encode(), b"bcabca"])
    return Task({"regex": pattern}, words, lambda text: decodes(text) and bool(matches.fullmatch(text.decode())))


def decodes(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def choice_task(rng: random.Random) -> Task:
    choices = sorted({"".join(rng.choices("abc日", k=rng.randint(1, 7))) for _ in range(rng.randint(1, 5))})
    words = random_words(rng, [b"a", b"b", b"c", *(bytes([b]) for b in "日".encode())], [c.encode() for c in choices])
    return Task({"choice": choices}, words, lambda text: text in {c.encode() for c in choices})


def random_schema(rng: random.Random, depth: int = 2) -> dict[str, Any]:
    simple: list[dict[str, Any]] = [
        {"type": "integer"}, {"type": "integer", "minimum": 9, "maximum": 102}, {"type": "null"},
        {"enum": [1, "a", 11]}, {"type": "string", "maxLength": 2}, {"type": "string", "minLength": 1},
        {"type": "boolean"}, {"type": "integer", "maximum": -1}, {"const": {"a": [1]}},
        {"type": "integer", "minimum": 10},
    ]  # fmt: skip
    form = rng.randrange(5) if depth else 4
    if form == 0:
        low = rng.randrange(3)
        return {
            "type": "array",
            "items": random_schema(rng, depth - 1),
            "minItems": low,
            "maxItems": low + rng.randrange(2),
        }
    if form == 1:
        named = {name: random_schema(rng, depth - 1) for name in rng.sample(["a", "b", "ab"], 2)}
        required = [name for name in named if rng.random() < 0.6]
        return {"type": "object", "properties": named, "required": required, "additionalProperties": False}
    if form == 2:
        return {"anyOf": [random_schema(rng, depth - 1), random_schema(rng, depth - 1)]}
    if form == 3:
        return {
            "type": "object",
            "properties": {"a": random_schema(rng, 0)},
            "required": rng.choice([["a"], ["b"], []]),
        }
    return rng.choice(simple)


def schema_task(rng: random.Random) -> Task:
    schema = random_schema(rng)
    pieces = [b'"', b"{", b"}", b"[", b"]", b":", b",", b"1", b"0", b"a", b"b", b"null", b"true", b"-", b'":']
    words = random_words(rng, pieces, [b'{"a":1,"ab":[', b'"],"b":"a"}', b'[{"a":"b"},10]', b"null],[true"])
    return Task({"json": schema, "disable_any_whitespace": rng.random() < 0.5}, words, valid_for(schema))


VALUES: list[tuple[dict[str, Any], bytes]] = [
    ({"type": "string", "pattern": "^[a-c]{2}-[0-9]$"}, b'"ab-1""c-0"'),
    ({"type": "string", "pattern": "a[^\"\\\\]b"}, b'"a-b""xazb"'),
    ({"type": "string", "pattern": "^(?!ab)[abc]+$", "minLength": 2, "maxLength": 4}, b'"ba""aab""ab"'),
    ({"type": "string", "pattern": "^(?=.*b)(?=.*c)[abc]{2,5}$"}, b'"bc""acb""cab"'),
    ({"type": "string", "format": "ipv4"}, b'"1.0.10.11""0.0.0.0"'),
    ({"type": "string", "format": "date"}, b'"2024-02-29""2000-01-10"'),
    ({"type": "number", "exclusiveMinimum": 9.5, "maximum": 10}, b"9.6 10.0 9.51"),
    ({"type": "number", "minimum": -0.25, "exclusiveMaximum": 0}, b"-0.1 -0.25 -0.20"),
    ({"type": "integer", "multipleOf": 7, "minimum": 10}, b"14 21 105 700"),
    ({"type": "number", "multipleOf": 0.25, "minimum": 1}, b"1.25 2.5 10.0"),
    ({"allOf": [{"type": "integer", "minimum": 9}, {"maximum": 101}]}, b"10 99 101"),
    ({"const": 9007199254740993}, b"9007199254740993.0"),
    ({"type": "object", "patternProperties": {"^a": {"const": 1}}, "additionalProperties": False, "minProperties": 1},
     b'{"ab":1,"a":1}'),
]  # fmt: skip


def value_task(rng: random.Random) -> Task:
    schema, text = rng.choice(VALUES)
    pieces = [bytes([byte]) for byte in sorted(set(text))]
    words = random_words(rng, pieces, [text])
    return Task({"json": schema, "disable_any_whitespace": True}, words, valid_for(schema))


def valid_for(schema: dict[str, Any]) -> Callable[[bytes], bool]:
    """JSON that satisfies the schema, and in which named properties come once and in their order."""
    validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())

    def in_order(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        if len(set(names)) < len(names):
            raise ValueError("twice")
        return dict(pairs)

    def accepts(text: bytes) -> bool:
        try:
            value = json.loads(text, object_pairs_hook=in_order)
        except ValueError:
            return False
        return validator.is_valid(value) and orderly(schema, value)

    return accepts


def orderly(schema: dict[str, Any], value: Any) -> bool:
    if "anyOf" in schema:
        parts = [one for one in schema["anyOf"] if jsonschema.Draft202012Validator(one).is_valid(value)]
        return any(orderly(one, value) for one in parts)
    if isinstance(value, list):
        return all(orderly(schema.get("items", {}), one) for one in value)
    if isinstance(value, dict) and "properties" in schema:
        named = [*schema["properties"], *(name for name in schema["required"] if name not in schema["properties"])]
        places = [named.index(name) if name in named else len(named) for name in value]
        inner = all(orderly(schema["properties"].get(name, {}), one) for name, one in value.items())
        return inner and all(one <= other for one, other in pairwise(places))
    return True


def grammar_task(rng: random.Random) -> Task:
    cfg = rng.choice(GRAMMARS)
    accepts = derives(cfg)
    pieces = [bytes([byte]) for byte in b"ab(cx1)=;.+if [e]d"]
    words = random_words(rng, pieces, [b"(()())ab", b"a=[b];c=1;", b"if a.ifb.", b"aabb", b"(1+2)+3", b"abbcde"])
    return Task({"grammar": cfg.gbnf}, words, lambda text: decodes(text) and accepts(text.decode()))


TASKS = {
    "patterns": pattern_task,
    "choices": choice_task,
    "schemas": schema_task,
    "values": value_task,
    "grammars": grammar_task,
}


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, *(pytest.param(s, marks=pytest.mark.exhaustive) for s in range(1, 20))])
@pytest.mark.parametrize("kind", TASKS)
def test_a_completion_is_found_exactly_when_the_budget_allows_one(kind: str, seed: int) -> None:
    assert sum(1 for _ in some_tasks(kind, seed, 10)) > 2


@pytest.mark.parametrize("kind", TASKS)
def test_a_completion_is_found_exactly_when_the_budget_allows_one_in_short(kind: str) -> None:
    assert sum(1 for _ in some_tasks(kind, 99, 3)) > 1


def some_tasks(kind: str, seed: int, count: int) -> Iterator[int]:
    rng = random.Random(f"{kind} {seed}")
    for _ in range(count):
        yield from check(TASKS[kind](rng), rng.randrange(1000))


@pytest.mark.parametrize(
    ("pattern", "tokens", "least"),
    [
        ("[ab]{4,6}x", "a aa x", 3),
        ("[ab]{4,}x", "a aa x", 3),
        ("[ab]{4,6}x", "b a bab x bx", 2),
        ("([ab]{2}c){2,3}x", "a b c ab abc abcab cx x", 2),
        ("[ab]{0,3}x", "abbx bx a", 1),
        ("(a{1,3}b){2}", "a aaa aab b baaab", 2),
        ("a{3,}b{2,}", "a aab b ab bb", 3),
    ],
)
def test_repetitions_are_counted(pattern: str, tokens: str, least: int) -> None:
    words = Vocabulary(tuple(one.encode() for one in tokens.split()))
    place = CompletionState(CompletionFinder(GuidedDecodingParams(regex=pattern), words), frozenset())
    assert place.fewest(least - 1) is None
    way = place.fewest(least + 2)
    assert way is not None
    assert len(way) == least
    assert re.fullmatch(pattern, b"".join(words.tokens[i] for i in way).decode())


# --- what the search rests on ------------------------------------------------------------------------------------


TRANSLATED: list[dict[str, Any]] = [
    *({"json": schema} for schema in SCHEMAS),
    *({"json": random_schema(random.Random(seed))} for seed in range(20)),
    *({"regex": pattern} for pattern in PATTERNS),
    *({"grammar": cfg.gbnf} for cfg in GRAMMARS),
    *({"json": {"type": "integer", "minimum": low, "maximum": low + size}} for low in (-105, -7, 0, 98) for size in
      (0, 3, 7, 120)),
    *({"json": {"type": "integer", bound: value}} for bound in ("minimum", "maximum") for value in (-40, 0, 7, 100)),
    {"json": {"type": "object", "properties": {"a": {}, "ab": {"type": "null"}}, "required": ["ab", 'x"\n']}},
    {"json": {"type": "object", "minProperties": 1, "maxProperties": 2}},
    {"json": {"enum": [0, -5, "a", "ab", [1, {"b": 2}], {}, "\\/\b"]}, "disable_any_whitespace": True},
    {"json": {"prefixItems": [{"type": "null"}, {"type": "boolean"}], "items": {"const": 1}, "minItems": 1}},
    {"json": {"type": "array", "items": {"type": "null"}}, "whitespace_pattern": "[ \\r]?"},
    {"choice": ["a", "ab", "abc", "b", "日", "本"]},
]  # fmt: skip


@pytest.mark.parametrize("mode", TRANSLATED, ids=lambda mode: str(mode)[:60])
def test_the_rules_that_are_searched_allow_what_the_backend_allows(mode: dict[str, Any]) -> None:
    guided = GuidedDecodingParams(**mode)
    grammar, rules = BY_BYTE.compile(guided), constraint_rules(guided)
    assert rules is not None
    recognizer, rng = Recognizer(rules, ROOT), random.Random(1)
    for _ in range(5):
        matcher, state = grammar.matcher(), 0
        for _ in range(30):
            mask = np.zeros(8, np.int32)
            matcher.fill_mask(mask)
            allowed = set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())
            mine = {byte for byte in range(256) if recognizer.step(state, byte) != DEAD}
            assert (mine, recognizer.complete(state)) == (allowed, matcher.complete)
            liked = sorted(allowed & set(b'"}],:1')) or sorted(allowed)
            if not liked:
                break
            byte = rng.choice(liked if rng.random() < 0.5 else sorted(allowed))
            assert matcher.accept(byte)
            state = recognizer.step(state, byte)


HARD: list[dict[str, Any]] = [
    {"regex": ".*a.{12}b"},
    {"regex": "((a{1,1000}){1,1000}){1,1000}b"},
    {"regex": "(a|b|ab|ba|aa|bb)*c{20}"},
    {"regex": "(?i)" + "abcdefgh" * 2000},
    {"grammar": 'root ::= root "+" [0-9]+ | [0-9]+'},
    {"grammar": "root ::= " + " ".join(f'("{i}" root?)?' for i in range(500)) + ' "!"'},
    {"json": {"type": "array", "items": {"type": "string", "minLength": 500, "maxLength": 1000}, "minItems": 50}},
    {"json": {"enum": [f"value {i}" for i in range(4000)]}},
    {"choice": [f"choice number {i * 7919 % 100003}" for i in range(4000)]},
]


@pytest.mark.slow
@pytest.mark.parametrize("mode", HARD, ids=lambda mode: str(mode)[:50])
def test_a_search_that_could_explode_stays_within_its_work(mode: dict[str, Any]) -> None:
    guided = GuidedDecodingParams(**mode)
    grammar = BY_BYTE.compile(guided)
    place = CompletionState(CompletionFinder(guided, BYTES), frozenset())
    matcher, rng, start = grammar.matcher(), random.Random(1), time.thread_time()
    for _ in range(40):
        with contextlib.suppress(WorkLimitError):
            place.fewest(300)
        allowed = [byte for byte in range(256) if allows(matcher, byte)]
        byte = rng.choice(allowed) if allowed else 0
        # The library has limits of its own.
        if not matcher.accept(byte):
            break
        place.advance(bytes([byte]))
    # A second or two, mostly to read the constraint; without the limits minutes.
    assert time.thread_time() - start < 20


def test_an_answer_does_not_depend_on_what_other_texts_have_asked() -> None:
    guided = GuidedDecodingParams(json={"type": "array", "items": {"type": "string", "minLength": 3}, "minItems": 3})
    shared = CompletionFinder(guided, BYTES)
    answers: list[list[Any]] = []
    for shortest in (shared, shared, CompletionFinder(guided, BYTES)):
        place, found = CompletionState(shortest, frozenset()), list[Any]()
        for byte in b'["abc", "d':
            found += [place.fewest(40), place._work.left]
            place.advance(bytes([byte]))
        answers.append(found)
    assert answers[0] == answers[1] == answers[2]
    assert not shared.is_full
