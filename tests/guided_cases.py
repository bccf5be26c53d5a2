"""Constraints for the tests, with checks that share nothing with the code under test, and texts drawn at random."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jsonschema
import numpy as np

import tirage
from tirage import GuidedDecodingParams, SamplingParams
from tirage.guided import Compiler, Grammar, Matcher, Vocabulary

WORDS = re.findall(
    r"\S+",
    """hello he hel world ld true tr null false rue nu {" ": ": "} }, ], [" ", "a \\u00 \\n 12 123 00 0. -1 e5 aa ab
abab red green blue name age item () (( )) +( 1+ )* *2 a=b; <fn fn> ::= é日 日本 2024- -01 @x .com""",
)
MARKS = ["\n", "\n\n", "  ", "☃"]


def small_vocabulary(padding: int = 3) -> Vocabulary:
    """All bytes, some longer tokens (one of them part of a character), padding, and two special tokens at the end."""
    longer = [word.encode() for word in dict.fromkeys([*WORDS, *MARKS]) if len(word.encode()) > 1]
    tokens = [*(bytes([b]) for b in range(256)), *longer, "日".encode()[:2], *[b""] * padding, b"", b""]
    return Vocabulary(tuple(tokens), {len(tokens) - 2: b"<eos>", len(tokens) - 1: b"<pad>"})


VOCABULARY = small_vocabulary()
EOS = VOCABULARY.width - 2
COMPILER = Compiler(VOCABULARY)


def compiled(**guided: Any) -> Grammar:
    """The grammar of GuidedDecodingParams(**guided) over the small vocabulary."""
    return COMPILER.compile(GuidedDecodingParams(**guided))


def spelled(tokens: Sequence[int]) -> bytes:
    return b"".join(VOCABULARY.tokens[i] for i in tokens)


def allows(matcher: Matcher, token_id: int) -> bool:
    """Whether the token may come next."""
    mask = np.zeros(matcher.vocabulary.words, np.int32)
    matcher.fill_mask(mask)
    return bool(mask[token_id // 32] >> (token_id % 32) & 1)


def texts(
    grammar: Grammar, count: int, *, limit: int = 120, seed: int = 0, **params: Any
) -> Iterator[tuple[str, bool]]:
    """Texts of `count` models with random logits under the grammar, each with whether it ended before the limit.

    Models like what closes: else most random texts would never end.
    """
    batch = tirage.Batch(VOCABULARY.width, count)
    rng = np.random.default_rng(seed)
    for i in range(count):
        batch.add(SamplingParams(seed=seed * 100_003 + i, **params))
    matchers = [grammar.matcher([EOS]) for _ in range(count)]
    drawn: list[list[int]] = [[] for _ in range(count)]
    liked = np.zeros(VOCABULARY.width, np.float32)
    liked[[*b'"}])=;.', EOS]] = 3
    ended = [False] * count
    for _ in range(limit):
        if all(ended):
            break
        logits = (rng.normal(size=(count, VOCABULARY.width)) * 2 + liked).astype(np.float32)
        mask = np.full((count, VOCABULARY.words), -1, np.int32)
        for row, matcher in enumerate(matchers):
            if not ended[row]:
                matcher.fill_mask(mask[row])
        tokens = batch.sample(logits, mask).token_ids
        batch.advance(tokens)
        for row, token in enumerate(tokens.tolist()):
            if ended[row]:
                continue
            assert matchers[row].accept(token), f"{token} after {spelled(drawn[row])!r}"
            if token != EOS:
                drawn[row].append(token)
            ended[row] = matchers[row].done
    for row in range(count):
        yield spelled(drawn[row]).decode("utf-8", "strict" if ended[row] else "replace"), ended[row]


# --- schemas -----------------------------------------------------------------------------------------------------

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 3}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: list[dict[str, Any]] = [
    PERSON,
    {"type": "integer", "minimum": -12, "maximum": 345},
    {"type": "number", "exclusiveMinimum": 0.5, "maximum": 2.25},
    {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 1000},
    {"type": "string", "minLength": 2, "maxLength": 4},
    {"type": "string", "pattern": "^[a-c]{2,4}é?$"},
    {"type": "string", "pattern": "a\\d", "maxLength": 5},
    {"type": "string", "format": "date"},
    {"type": "string", "format": "uuid"},
    {"type": "string", "format": "ipv4"},
    {"enum": ["red", "green", 3, None, {"a": [1]}, "q\"\\u"]},
    {"const": {"k": [True, "é", 1.5]}},
    {"type": ["boolean", "null"]},
    {"type": "array", "items": {"enum": [0, "a"]}, "minItems": 2, "maxItems": 4},
    {"prefixItems": [{"type": "integer", "maximum": 9, "minimum": 0}, {"type": "string", "maxLength": 2}],
     "type": "array", "items": False, "minItems": 1},
    {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "boolean"},
     "maxProperties": 3, "required": ["a"]},
    {"type": "object", "patternProperties": {"^a": {"type": "null"}}, "additionalProperties": False,
     "maxProperties": 2},
    {"anyOf": [{"type": "integer", "maximum": 5, "minimum": 0}, {"type": "string", "maxLength": 1}]},
    {"oneOf": [{"type": "boolean"}, {"type": "array", "maxItems": 0}]},
    {"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 6}]},
    {"allOf": [{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
               {"properties": {"b": {"type": "null"}}, "required": ["b"]}], "maxProperties": 2},
    {"$defs": {"tree": {"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9},
     "next": {"anyOf": [{"$ref": "#/$defs/tree"}, {"type": "null"}]}}, "required": ["v", "next"],
     "additionalProperties": False}}, "$ref": "#/$defs/tree"},
    {"type": "object", "required": ["x"], "additionalProperties": {"type": "integer", "maximum": 99, "minimum": 0},
     "maxProperties": 2},
]  # fmt: skip


def satisfies(schema: dict[str, Any]) -> Callable[[str], bool]:
    """A check of JSON text against a schema of draft 2020-12, formats included."""
    checker = jsonschema.Draft202012Validator.FORMAT_CHECKER
    validator = jsonschema.Draft202012Validator(schema, format_checker=checker)

    def check(text: str) -> bool:
        # RFC 3339 has a year 0000, a leap year like 0004; Python's dates begin with the year 1.
        return validator.is_valid(json.loads(text.replace('"0000-', '"0004-')))

    return check


# --- patterns ----------------------------------------------------------------------------------------------------

PATTERNS = [
    "hello|help|he", "[a-c]{2,5}é?", r"\d{3}-\d{2,4}", r"(ab|a)(c|bcd)*d?", "(?i)red|Green[x-z]", r"[^\W\d]{1,6}",
    r"(?:\([a-z]*\)){1,3}", r"-?(0|[1-9]\d{0,5})(\.\d+)?", r"[\w.]+@[\w]+\.(com|org)", r".{0,5}!", r"(?s:.){2}",
    r"日本|日|[☃é]{1,3}", r"^start(a*?b)+$", r"\x41\u00e9\t?\n", r"[\]\\^-]{1,4}", "(a|b)*abb", "(|x)y{2}",
]  # fmt: skip


def matches(pattern: str) -> Callable[[str], bool]:
    return lambda text: re.fullmatch(pattern, text, re.ASCII) is not None


# --- grammars ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cfg:
    """A context-free grammar twice: in GBNF, and as alternatives of symbols for a recogniser of its own.

    A symbol is the name of a rule, or a set of characters.
    """

    gbnf: str
    rules: dict[str, list[list[str | frozenset[str]]]]


def chars(text: str) -> frozenset[str]:
    return frozenset(text)


def word(text: str) -> list[str | frozenset[str]]:
    return [chars(c) for c in text]


LOWER, DIGITS = chars("abcdefghijklmnopqrstuvwxyz"), chars("0123456789")
GRAMMARS = [
    Cfg('root ::= "(" root ")" root | ""', {"root": [[chars("("), "root", chars(")"), "root"], []]}),
    Cfg(
        'root ::= expr\nexpr ::= term ("+" term)*\nterm ::= [0-9]+ | "(" expr ")"',
        {
            "root": [["term"], ["root", chars("+"), "term"]],
            "term": [["digits"], [chars("("), "root", chars(")")]],
            "digits": [[DIGITS], ["digits", DIGITS]],
        },
    ),
    Cfg(
        'root ::= stmt+\nstmt ::= name "=" val ";" "\\n"?\nname ::= [a-z]+\nval ::= name | [0-9]{1,3} | "[" val "]"',
        {
            "root": [["stmt"], ["root", "stmt"]],
            "stmt": [["name", *word("="), "val", *word(";")], ["name", *word("="), "val", *word(";\n")]],
            "name": [[LOWER], ["name", LOWER]],
            "val": [["name"], [DIGITS], [DIGITS] * 2, [DIGITS] * 3, [chars("["), "val", chars("]")]],
        },
    ),
    Cfg('root ::= "a" root "b" | "ab"', {"root": [[chars("a"), "root", chars("b")], word("ab")]}),
    Cfg(
        'root ::= w\nw ::= "if" t | [a-z]+ t\nt ::= " " w | "." # greedy lexers trip here\n',
        {
            "root": [[*word("if"), "t"], ["n", "t"]],
            "n": [[LOWER], ["n", LOWER]],
            "t": [[chars(" "), "root"], word(".")],
        },
    ),
    Cfg(
        'root ::= pal\npal ::= "a" pal "a" | [bc] pal? [bc] | "aa" | ""',
        {
            "root": [
                [chars("a"), "root", chars("a")],
                [chars("bc"), "root", chars("bc")],
                [chars("bc"), chars("bc")],
                word("aa"),
                [],
            ]
        },
    ),
    Cfg(
        'root ::= x "b" | y\nx ::= [a-b] x | "c"\ny ::= [a-b]+ "b" "d" y | "e"',
        {
            "root": [["x", chars("b")], ["y"]],
            "x": [[chars("ab"), "x"], [chars("c")]],
            "y": [["abs", *word("bd"), "y"], word("e")],
            "abs": [[chars("ab")], ["abs", chars("ab")]],
        },
    ),
]


def derives(cfg: Cfg) -> Callable[[str], bool]:
    """An Earley recogniser of the grammar's own rules."""

    def check(text: str) -> bool:
        items: list[set[tuple[str, int, int, int]]] = [set() for _ in range(len(text) + 1)]
        items[0] |= {("root", k, 0, 0) for k in range(len(cfg.rules["root"]))}
        for at in range(len(text) + 1):
            step(cfg, text, items, at)
        return any(rule == "root" and start == 0 and dot == len(cfg.rules[rule][k])
                   for rule, k, dot, start in items[-1])  # fmt: skip

    return check


def step(cfg: Cfg, text: str, items: list[set[tuple[str, int, int, int]]], at: int) -> None:
    """Completes the items at one place and scans its character."""
    queue = list(items[at])
    while queue:
        rule, k, dot, start = queue.pop()
        body = cfg.rules[rule][k]
        new: set[tuple[str, int, int, int]] = set()
        if dot == len(body):
            waiting = [(o, j, p, b) for o, j, p, b in items[start] if p < len(cfg.rules[o][j])]
            new = {(o, j, p + 1, b) for o, j, p, b in waiting if cfg.rules[o][j][p] == rule}
        elif isinstance(symbol := body[dot], str):
            new = {(symbol, j, 0, at) for j in range(len(cfg.rules[symbol]))}
            if any((symbol, j, len(cfg.rules[symbol][j]), at) in items[at] for j in range(len(cfg.rules[symbol]))):
                new.add((rule, k, dot + 1, start))  # the symbol matched nothing here already
        elif at < len(text) and text[at] in symbol:
            items[at + 1].add((rule, k, dot + 1, start))
        queue.extend(new - items[at])
        items[at] |= new
