"""Grammar masks against those of other libraries: which tokens may come after a text, over a trained tokenizer.

Each constraint is walked by texts that its own mask allows; at every step the library is asked which tokens it allows
there. The tokenizer is that of `tiny`: 512 pieces with byte fallback, trained on English.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

import tirage
from tirage import GuidedDecodingParams
from tirage.guided import Compiler, Matcher, Vocabulary

STEPS, WALKS = 40, 3

REGEXES = (
    "[a-z]+",
    "(yes|no|maybe)",
    "[0-9]{4}-[0-9]{2}-[0-9]{2}",
    "(a|ab|abc)d?",
    "[A-Z][a-z]{2,8}( [A-Z][a-z]{2,8})*",
    "-?(0|[1-9][0-9]*)(\\.[0-9]+)?",
    "(the|then|there|these)( (fox|dog)){0,3}\\.",
    '[^"]*"',
    "x{3,5}y*",
    "\u00e9[a-z\u00e9]{1,4}",
)
SCHEMAS: tuple[Mapping[str, Any], ...] = (
    {"type": "integer"},
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["red", "green", 3, None, True]},
    {"const": {"a": [1, "x"]}},
    {"type": "array", "items": {"type": "boolean"}},
    {"type": "array", "items": {"type": "integer"}, "minItems": 1, "maxItems": 3},
    {
        "type": "object",
        "properties": {"name": {"enum": ["fox", "dog"]}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    {
        "type": "object",
        "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    {"anyOf": [{"type": "boolean"}, {"type": "array", "items": {"type": "null"}, "maxItems": 2}]},
    {"$defs": {"n": {"type": "integer"}}, "type": "array", "items": {"$ref": "#/$defs/n"}},
)
CHOICES: tuple[Sequence[str], ...] = (("yes", "no"), ("a", "ab", "abc"), ("The fox", "The dog", "A fox."))


@cache
def vocabulary() -> Vocabulary:
    """The pieces of `tiny`."""
    llm = tirage.LLM("tiny")
    assert llm.tokenizer is not None
    return Vocabulary.of(llm.tokenizer, llm.model.vocab_size)


def constraints() -> Iterator[tuple[str, Any, GuidedDecodingParams]]:
    """The mode, what is asked for, and the parameters here."""
    for pattern in REGEXES:
        yield "regex", pattern, GuidedDecodingParams(regex=pattern)
    for schema in SCHEMAS:
        yield "json", schema, GuidedDecodingParams(json=schema, disable_any_whitespace=True)
    for texts in CHOICES:
        yield "choice", list(texts), GuidedDecodingParams(choice=list(texts))


def questions() -> Iterator[tuple[dict[str, Any], list[int]]]:
    """Each question for an adapter, and the tokens that are allowed here."""
    compiler, pieces = Compiler(vocabulary()), [token.hex() for token in vocabulary().tokens]
    yield {"vocabulary": pieces}, []
    for number, (mode, wanted, params) in enumerate(constraints()):
        grammar = compiler.compile(params)
        for walk in range(WALKS):
            rng = np.random.default_rng([number, walk])
            for step, (tokens, allowed) in enumerate(_walk(grammar.matcher(), rng)):
                asked = {"id": f"{mode}/{number}/{walk}/{step}", "mode": mode, "wanted": wanted, "tokens": tokens}
                yield asked, allowed


def _walk(matcher: Matcher, rng: np.random.Generator) -> Iterator[tuple[list[int], list[int]]]:
    """The tokens so far and those allowed next, along one text."""
    tokens: list[int] = []
    for _ in range(STEPS):
        allowed = _allowed(matcher)
        yield list(tokens), allowed
        if not allowed:
            return
        tokens.append(int(rng.choice(allowed)))
        assert matcher.accept(tokens[-1])


def _allowed(matcher: Matcher) -> list[int]:
    mask = np.zeros(matcher.vocabulary.words, np.int32)
    matcher.fill_mask(mask)
    bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
    return np.flatnonzero(bits[: matcher.vocabulary.width]).tolist()


DIFFERENCES: Mapping[str, Mapping[str, str]] = {
    "xgrammar": {"S-G11": "a constant number has one spelling: no `.0` after a whole one"},
    "llguidance": {
        "S-G11": "a constant number has one spelling: no `.0` after a whole one",
        "S-G2": "where the next byte is determined, only the token that the tokenizer would cut there is allowed "
        "(the tokenizer that it is given here cuts every byte alone)",
    },
}
"""What a library does in another way, by the rule of SPEC.md that holds here. The texts are the same, but for S-G11."""


def classify_mask(library: str, mode: str, ours: Sequence[int], theirs: Sequence[int]) -> tuple[str, str | None]:
    """The class of one mask, and the rule of a documented difference: the library allows a part of what we allow."""
    if sorted(theirs) == list(ours):
        return "equal", None
    tokens = vocabulary().tokens
    # `.0` after a whole constant.
    rest = [token for token in ours if mode != "json" or tokens[token] != b"."]
    if theirs and sorted(theirs) == rest:
        return "documented", "S-G11"
    following = {tokens[token][:1] for token in rest}
    if "S-G2" in DIFFERENCES[library] and len(following) == 1 and list(theirs) == [_token_of(*following)]:
        return "documented", "S-G2"
    return "wrong", None


def _token_of(byte: bytes) -> int:
    """The token that the adapter's tokenizer cuts for one byte: of two with this text the later one."""
    return max(token for token, text in enumerate(vocabulary().tokens) if text == byte)


def judged(library: str, answers: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str, str, str | None]]:
    """The mode, the id, the class and the rule or the reason of a refusal of each mask."""
    asked = list(questions())[1:]
    for (row, ours), answer in zip(asked, answers, strict=True):
        assert row["id"] == answer["id"], (row["id"], answer["id"])
        if "refused" in answer:
            kind, why = "refused", answer["refused"]
        else:
            kind, why = classify_mask(library, row["mode"], ours, answer["allowed"])
        yield row["mode"], row["id"], kind, why
