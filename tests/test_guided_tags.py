"""Structural tags: the older and the newer form, against another implementation, and in generated text."""

from __future__ import annotations

import itertools
import json
import re
from typing import Any

import jsonschema
import numpy as np
import pytest
import xgrammar
from guided_cases import compiled, texts
from small_tokenizers import byte_level_tokenizer
from test_guided import over_bytes, takes
from test_guided_closing import EOS, Talker

from tirage import LLM, GuidedDecodingParams, SamplingParams

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 6}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city"],
    "additionalProperties": False,
}
TIME = {"type": "object", "properties": {"zone": {"enum": ["utc", "cet"]}}, "required": ["zone"],
        "additionalProperties": False}  # fmt: skip
SGLANG = {
    "type": "structural_tag",
    "structures": [
        {"begin": "<function=weather>", "schema": WEATHER, "end": "</function>"},
        {"begin": "<function=time>", "schema": TIME, "end": "</function>"},
    ],
    "triggers": ["<function="],
}
"""SGLang's form of function calls, as its documentation has it."""
NUMBER = {"type": "json_schema", "json_schema": {"enum": [1, 22]}}
SWITCHES = [
    dict(zip(("at_least_one", "stop_after_first"), values, strict=True))
    for values in itertools.product([False, True], [False, True])
]


def tag(name: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tag", "begin": f"<f={name}>", "content": content, "end": "</f>"}


TAGS = [tag("a", NUMBER), tag("b", {"type": "const_string", "value": "x<"})]
FORMATS: list[dict[str, Any]] = [
    *({"type": "triggered_tags", "triggers": ["<f"], "tags": TAGS} | switches for switches in SWITCHES),
    {"type": "triggered_tags", "triggers": ["<f=a", "<f=b"], "tags": TAGS},
    *({"type": "tags_with_separator", "separator": ",", "tags": TAGS} | switches for switches in SWITCHES),
    tag("a", {"type": "any_text"}),
    tag("b", {"type": "regex", "pattern": "[x<]{1,3}"}),
    {"type": "sequence", "elements": [
        {"type": "regex", "pattern": "x*"}, {"type": "const_string", "value": "x"}, NUMBER]},
    {"type": "or", "elements": [NUMBER, {"type": "regex", "pattern": "[xy]+"}, TAGS[0]]},
    {"type": "sequence", "elements": [{"type": "or", "elements": [TAGS[0], {"type": "const_string", "value": "y"}]},
                                      {"type": "tags_with_separator", "separator": "x", "tags": TAGS[:1]}]},
]  # fmt: skip
PIECES = ["", "<f", "=a>", "=b>", "=c>", "<f=a>", "<f=b>", "1", "22", "x<", "x", "y", "</f>", ",", "<", "</f", " "]
CALLS = ["<f=a>1</f>", "<f=b>x<</f>", "x<f=a>22</f>", ",", "y", "<f=a></f>", "<f=a>x</f", "</f>", "x1", "xxx22", ""]


def compiler() -> xgrammar.GrammarCompiler:
    tokens = [*(bytes([byte]) for byte in range(256)), b"<end>"]
    info = xgrammar.TokenizerInfo(tokens, vocab_size=257, stop_token_ids=[256])
    return xgrammar.GrammarCompiler(info, max_threads=1)


@pytest.mark.parametrize("given", FORMATS, ids=lambda given: json.dumps(given)[:90])
def test_formats_take_what_xgrammar_takes(given: dict[str, Any]) -> None:
    asked = {"type": "structural_tag", "format": given}
    ours = over_bytes(structural_tag=json.dumps(asked), disable_any_whitespace=True)
    theirs = compiler().compile_structural_tag(asked)
    rng = np.random.default_rng(5)
    tried = ["".join(pair) for pair in itertools.product(CALLS, repeat=2)]
    tried += ["".join(rng.choice(PIECES, rng.integers(1, 7))) for _ in range(200)]
    tried += ["".join(rng.choice(CALLS, rng.integers(1, 4))) for _ in range(100)]
    taken, differing = 0, []
    for text in dict.fromkeys(tried):
        matcher = xgrammar.GrammarMatcher(theirs)
        expected = matcher.accept_string(text) and matcher.is_completed()
        taken += expected
        if takes(ours, text) != expected:
            differing.append((text, expected))
    assert differing == []
    assert taken > 0


def calls_in(text: str) -> list[str]:
    """The names called in a text of LIKELY, each call checked against its schema; what is left must hold no call."""
    found = re.findall(r"=(weather|time)>(.*?)</function>", text, re.DOTALL)
    for name, body in found:
        jsonschema.validate(json.loads(body), {"weather": WEATHER, "time": TIME}[name])
    assert "=" not in re.sub(r"=(weather|time)>.*?</function>", "", text, flags=re.DOTALL)
    return [name for name, _ in found]


LIKELY = json.loads(json.dumps(SGLANG).replace("<function=", "="))
"""The same with a trigger of one character, which random text holds now and then."""
NEWER = {"type": "structural_tag", "format": {
    "type": "triggered_tags",
    "triggers": LIKELY["triggers"],
    "tags": [{"type": "tag", "begin": one["begin"], "end": one["end"],
              "content": {"type": "json_schema", "json_schema": one["schema"]}} for one in LIKELY["structures"]],
    "at_least_one": True,
}}  # fmt: skip


@pytest.mark.parametrize(("asked", "count"), [(LIKELY, 5), (NEWER, 20)], ids=["older", "newer"])
def test_every_call_in_generated_text_is_whole_and_satisfies_its_schema(asked: dict[str, Any], count: int) -> None:
    calls = 0
    for text, ended in texts(compiled(structural_tag=json.dumps(asked)), 40, limit=90, seed=3):
        if ended:
            found = calls_in(text)
            calls += len(found)
            assert asked is LIKELY or (found and text.startswith("="))
    assert calls >= count


@pytest.mark.slow
def test_a_model_that_only_wants_to_call_closes_its_calls_in_time() -> None:
    llm = LLM(Talker(b"=ab"), tokenizer=byte_level_tokenizer(), generation_config={"eos_token_id": EOS})
    asked = GuidedDecodingParams(structural_tag=json.dumps(LIKELY))
    called = []
    for seed in range(6):
        params = SamplingParams(seed=seed, max_tokens=90, close_grammar=True, guided_decoding=asked)
        done = llm.generate("p", params)[0]
        assert done.grammar_complete, done.text
        called += calls_in(done.text)
    assert len(called) >= 6
    assert set(called) == {"weather", "time"}


def test_disable_additional_properties_reaches_the_schemas_of_tags() -> None:
    opened = {"type": "structural_tag", "format": tag("a", {"type": "json_schema", "json_schema": {
        "type": "object", "properties": {"k": {"type": "null"}}}})}  # fmt: skip
    text = '<f=a>{"k":null,"z":1}</f>'
    assert takes(over_bytes(structural_tag=json.dumps(opened)), text)
    assert not takes(over_bytes(structural_tag=json.dumps(opened), disable_additional_properties=True), text)
