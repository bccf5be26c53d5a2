"""Patterns, formats and bounds, closed at the fewest tokens that suffice, with a real vocabulary."""

from __future__ import annotations

import json
import random
from functools import cache
from typing import Any

import jsonschema
import pytest
from expression_texts import Texts

from tirage import LLM, GuidedDecodingParams, SamplingParams
from tirage.guided import CompletionFinder, Vocabulary
from tirage.guided.closing.boolean_automaton import DEAD
from tirage.guided.closing.budgets import RemainingWork
from tirage.guided.closing.recognizer import Recognizer
from tirage.guided.closing.shortest_completion import CompletionState
from tirage.guided.json_schema.formats import FORMATS, format_expression
from tirage.guided.json_schema.json_numbers import numbers
from tirage.guided.json_schema.json_strings import json_string
from tirage.guided.regular.ecma_regex import read_ecma
from tirage.guided.regular.expression import Expression

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
        "price": {"type": "number", "exclusiveMinimum": 0, "maximum": 1000},
        "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
        "email": {"type": "string", "format": "email"},
        "tags": {
            "type": "array",
            "items": {"type": "string", "minLength": 2, "maxLength": 10},
            "minItems": 1,
            "maxItems": 3,
        },
        "kind": {"enum": ["retail", "wholesale"]},
    },
    "required": ["code", "price", "quantity", "email", "tags", "kind"],
    "additionalProperties": False,
}
LETTER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "a": {"type": "string"},
        "b": {"type": "string"},
        "c": {"type": "string"},
        "to": {"format": "email"},
    },
    "required": ["a", "b", "c", "to"],
    "additionalProperties": False,
}
LETTER["properties"]["to"]["type"] = "string"
EVENT: dict[str, Any] = {
    "type": "object",
    "properties": {"at": {"type": "string", "format": "date-time"}, "id": {"type": "string", "format": "uuid"},
                   "host": {"type": "string", "format": "hostname"},
                   "weight": {"type": "number", "multipleOf": 0.25, "minimum": 1}},
    "required": ["at", "id", "host", "weight"],
    "additionalProperties": False,
}  # fmt: skip


@cache
def tiny() -> LLM:
    return LLM("tiny")


def fewest(schema: dict[str, Any]) -> int:
    llm = tiny()
    vocabulary = Vocabulary.of(llm.tokenizer, llm.model.vocab_size)
    found = CompletionState(CompletionFinder(GuidedDecodingParams(json=schema), vocabulary), frozenset()).fewest(
        1 << 20
    )
    assert found is not None
    return len(found)


@pytest.mark.slow
@pytest.mark.parametrize("schema", [ORDER, LETTER, EVENT], ids=["order", "letter", "event"])
def test_a_text_closes_exactly_when_a_completion_fits(schema: dict[str, Any]) -> None:
    least = fewest(schema)
    assert least > 15
    guided = GuidedDecodingParams(json=schema)
    for limit, seed in ((least - 1, 0), (least, 1), (least + 9, 2)):
        params = SamplingParams(seed=seed, max_tokens=limit, guided_decoding=guided, close_grammar=True)
        [reply] = tiny().generate("Once upon a time", params)
        assert reply.grammar_complete == (limit >= least), (limit, reply.text)
        if limit >= least:
            checker = jsonschema.FormatChecker()
            jsonschema.Draft202012Validator(schema, format_checker=checker).validate(json.loads(reply.text))


@pytest.mark.slow
def test_equal_requests_close_in_the_same_tokens_whatever_was_asked_before() -> None:
    params = SamplingParams(
        seed=5, max_tokens=fewest(ORDER) + 9, guided_decoding=GuidedDecodingParams(json=ORDER), close_grammar=True
    )
    [first] = tiny().generate("Once", params)
    [again, other] = tiny().generate(["Once", "Twice"], params)
    assert again.token_ids == first.token_ids
    assert other.grammar_complete


# --- the automata that the search follows ------------------------------------------------------------------------

SAMPLES: list[tuple[Expression, str]] = [
    *((json_string(format_expression(name)), "abz019:/.-@+TZ[]xn ") for name in FORMATS if not name.startswith("i")),
    (json_string(read_ecma(r"^(?!.*\.\.)(?=.*a)[a-c.]{2,6}$")), "abc."),
    (json_string(read_ecma(r"\bcat\b")), "catfo "),
    (json_string(read_ecma(r"^(?:(?!foo).)+$")), "fox"),
    (numbers(-1.5, 20, open_high=True), "-.0123459"),
]


@pytest.mark.slow
@pytest.mark.parametrize("index", range(len(SAMPLES)))
def test_the_search_follows_what_llguidance_follows(index: int) -> None:
    node, letters = SAMPLES[index]
    recognizer, texts, rng = Recognizer({"root": node}, "root"), Texts(node), random.Random(index)
    shortest = recognizer.shortest_text(0, 100, RemainingWork(10_000))
    assert shortest is not None
    assert len(shortest) == recognizer.min_bytes(0)
    good = [shortest.decode()]
    for _ in range(200):
        text = rng.choice(good)
        at = rng.randrange(len(text) + 1)
        text = text[:at] + rng.choice(letters) + text[at + rng.randrange(2) :]
        assert follows(recognizer, text) == (text in texts), text
        good += [text] if text in texts else []
    assert len(good) > 5


def follows(recognizer: Recognizer, text: str) -> bool:
    state = 0
    for byte in text.encode():
        state = recognizer.step(state, byte)
        if state == DEAD:
            return False
    return recognizer.complete(state)
