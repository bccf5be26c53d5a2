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

from tirage import LLM, GrammarError, GuidedDecodingParams, SamplingParams
from tirage.guided import Compiler, Matcher, Vocabulary

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
    *({"type": kind, "content": TAGS[0]} for kind in ("optional", "star", "plus")),
    {"type": "sequence", "elements": [
        {"type": "star", "content": {"type": "const_string", "value": "y"}}, {"type": "plus", "content": NUMBER}]},
    {"type": "repeat", "min": 1, "max": 2, "content": {"type": "or", "elements": TAGS}},
    {"type": "repeat", "min": 2, "max": -1, "content": {"type": "const_string", "value": "x"}},
    {"type": "grammar", "grammar": 'root ::= "x" root "y" | r0 ","?\nr0 ::= [0-9]+ | "=c>"'},
    tag("a", {"type": "grammar", "grammar": 'root ::= "1" root | "2"'}),
    tag("a", {"type": "any_text", "excludes": ["x", "22"]}),
    {"type": "tag", "begin": "<f=a>", "content": NUMBER, "end": ["</f>", ",", "</f>y"]},
    {"type": "tag", "begin": "<f=a>", "content": {"type": "any_text"}, "end": ["</f>", ","]},
    {"type": "triggered_tags", "triggers": ["<f"], "tags": TAGS, "excludes": ["y", "x1"]},
]  # fmt: skip
PIECES = ["", "<f", "=a>", "=b>", "=c>", "<f=a>", "<f=b>", "1", "22", "x<", "x", "y", "</f>", ",", "<", "</f", " "]
CALLS = [
    "<f=a>1</f>",
    "<f=b>x<</f>",
    "x<f=a>22</f>",
    ",",
    "y",
    "<f=a></f>",
    "<f=a>x</f",
    "</f>",
    "x1",
    "xxx22",
    "xxx",
    "<f=a>112</f>",
    "",
]


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


XML = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["a b", "c"]},
        "days": {"$ref": "#/$defs/days"},
        "note": {"type": ["string", "null"]},
    },
    "required": ["city", "days"],
    "$defs": {"days": {"enum": [1, 22]}},
}
QWEN = [
    "<parameter=city>\nRome\n</parameter>\n",
    "<parameter=kind>\na b\n</parameter>\n",
    "<parameter=days>\n22\n</parameter>\n",
    '<parameter=note>\n"x"\n</parameter>\n',
]


@pytest.mark.parametrize(
    "given",
    [
        {"type": "qwen_xml_parameter", "json_schema": XML},
        {"type": "json_schema", "json_schema": XML, "style": "qwen_xml"},
    ],
)
def test_arguments_stand_between_tags(given: dict[str, Any]) -> None:
    grammar = over_bytes(structural_tag=json.dumps({"type": "structural_tag", "format": given}))
    city, kind, days, note = QWEN
    right = [city + days, city + kind + days, city + days + note, "".join(QWEN), city.replace("Rome", "<a\nb>") + days]
    right += [city + days + note.replace('"x"', "null"), city.replace("Rome", "") + days]
    assert [takes(grammar, text) for text in right] == [True] * len(right)
    wrong = [
        "",
        city,
        days + city,
        city + city + days,
        city.replace("Rome", "too long") + days,
        city + kind.replace("b", "x") + days,
    ]
    wrong += [
        city + days.replace("22", "2"),
        city.replace("Rome", "</func") + days + "x",
        city + days + note.replace('"x"', "x"),
    ]
    wrong.append(city.replace("Rome", "a<parameter=x>") + days)
    assert [takes(grammar, text) for text in wrong] == [False] * len(wrong)


def test_arguments_in_glms_form() -> None:
    given = {"type": "json_schema", "json_schema": XML, "style": "glm_xml"}
    grammar = over_bytes(structural_tag=json.dumps({"type": "structural_tag", "format": given}))
    city, days = (
        "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n".format(*each) for each in (("city", "R"), ("days", 1))
    )
    assert takes(grammar, city + days)
    assert not takes(grammar, city + days.replace("1", "3"))


REFUSALS = [
    ({"type": "token", "token": 5}, "#/format/token must be the spelling of a token, got 5; ids differ"),
    ({"type": "any_tokens"}, "#/format must not be of the format any_tokens; its text is free of tokens"),
    ({"type": "dispatch", "rules": []}, "must not be of the format dispatch; use triggered_tags"),
    (
        {"type": "json_schema", "json_schema": {}, "style": "kimi_k3_xml"},
        "#/format/style must be json or one of qwen_xml",
    ),
    ({"type": "json_schema", "json_schema": {}, "any_order": True}, "#/format/any_order must be left out, got true"),
    ({"type": "json_schema", "json_schema": {}, "excludes": ["x"]}, "#/format/excludes must be left out"),
    ({"type": "repeat", "min": 3, "max": 2, "content": NUMBER}, "#/format/max must be -1 or at least min"),
    ({"type": "grammar", "grammar": "root ::= ("}, "#/format/grammar must be a grammar in GBNF"),
    ({"type": "tag", "begin": 1, "content": NUMBER, "end": ""}, "#/format/begin must be a string or a token, got 1"),
    (
        {"type": "tag", "begin": "", "content": {"type": "any_text", "excludes": [""]}, "end": "x"},
        "excludes must be a list of non-empty",
    ),
    (
        {"type": "qwen_xml_parameter", "json_schema": {"anyOf": []}},
        "#/format/json_schema/anyOf cannot be held where arguments",
    ),
    (
        {"type": "qwen_xml_parameter", "json_schema": {"properties": {"a": {"type": "string", "pattern": "x"}}}},
        "properties/a/pattern cannot be held in a text without quotes",
    ),
    (
        {"type": "qwen_xml_parameter", "json_schema": {"properties": {"a": {"$ref": "#/x"}}}},
        "must be a reference into $defs",
    ),
]


@pytest.mark.parametrize(("given", "message"), REFUSALS)
def test_what_is_not_enforced_is_refused_with_its_place_and_reason(given: dict[str, Any], message: str) -> None:
    with pytest.raises(GrammarError) as caught:
        over_bytes(structural_tag=json.dumps({"type": "structural_tag", "format": given}))
    assert message in str(caught.value)


def test_a_special_token_stands_for_what_it_spells() -> None:
    tokens = (*(bytes([byte]) for byte in range(256)), b"", b"")
    compiler = Compiler(Vocabulary(tokens, {256: b"<call>", 257: b"<end>"}))
    call = {
        "type": "tag",
        "begin": "<call>f:",
        "content": {"type": "json_schema", "json_schema": {"enum": [1, 22]}},
        "end": [{"type": "token", "token": "<end>"}, ";"],
    }
    given = {
        "type": "triggered_tags",
        "triggers": ["<call>"],
        "tags": [call | {"end": "<end>"}, call | {"begin": "<call>g", "end": ";"}],
    }
    asked = json.dumps({"type": "structural_tag", "format": given})
    grammar = compiler.compile(GuidedDecodingParams(structural_tag=asked))

    def follows(*parts: int | str) -> bool:
        matcher = grammar.matcher()
        ids = [i for part in parts for i in ([part] if isinstance(part, int) else part.encode())]
        return all(matcher.accept(i) for i in ids) and matcher.complete

    assert follows("free text")
    assert follows("a", 256, "f:22", 257, "b", 256, "g1;")
    assert follows(256, "f:1<end>")
    assert follows("x<call>f:1", 257)
    assert not follows(256, "f:2", 257)
    assert not follows(256, "free")
    assert not follows("<call>free")
    assert not follows(257)
    one = json.dumps({"type": "structural_tag", "format": call})
    assert all(allowed(compiler.compile(GuidedDecodingParams(structural_tag=one)).matcher(), 256))


def allowed(matcher: Matcher, token: int) -> list[bool]:
    """Whether a token may come first."""
    mask = np.zeros(matcher.vocabulary.words, np.int32)
    matcher.fill_mask(mask)
    return [bool(mask[token // 32] >> (token % 32) & 1)]
