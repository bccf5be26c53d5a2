"""Every format of tool calls: what its grammar allows is read back as the call, and nothing else is allowed."""

from __future__ import annotations

import json
from functools import cache
from typing import Any, get_args

import jsonschema
import numpy as np
import pytest
from test_toolcalls import accepts, read

from tirage.errors import GrammarError
from tirage.guided import BYTES, ClosingPath, Compiler, Grammar, Matcher, Vocabulary
from tirage.params import GuidedDecodingParams
from tirage.server.routes.tool_formats import CALL_BEGIN, CALL_END, CALL_SEP, CALLS_BEGIN, CALLS_END
from tirage.server.routes.tools import read_tools, tool_call_format
from tirage.server.tool_call_parsers import ToolCallFormat

pytestmark = pytest.mark.slow

FORMATS: tuple[ToolCallFormat, ...] = get_args(ToolCallFormat)
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 5},
        "days": {"type": "integer", "minimum": 1, "maximum": 30},
        "kind": {"enum": ["a b", "x"]},
        "tags": {"type": "array", "items": {"type": ["boolean", "null"]}, "maxItems": 2},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NONE = {"type": "object", "properties": {}, "additionalProperties": False}


def function(name: str, schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema, "strict": True}}


TOOLS = [function("weather", CITY), function("time", NONE)]
ROME = {"city": "Rome", "days": 3}
FULL = {**ROME, "kind": "a b", "tags": [True, None]}


QWEN, GLM = "<parameter={}>\n{}\n</parameter>\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n"


def xml(values: dict[str, Any], argument: str) -> str:
    written = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return "".join(argument.format(key, value) for key, value in written.items())


def written(tool_format: ToolCallFormat, name: str, values: dict[str, Any]) -> str:
    """A call as models write it."""
    text = json.dumps(values)
    python = ", ".join(f"{key}={value!r}" for key, value in values.items())
    return {
        "hermes": f'<tool_call>\n{{"name": "{name}", "arguments": {text}}}\n</tool_call>',
        "mistral": f'[TOOL_CALLS] [{{"name": "{name}", "arguments": {text}}}]',
        "mistral_args": f"[TOOL_CALLS]{name}[ARGS]{text}",
        "llama3": f'{{"name": "{name}", "parameters": {text}}}',
        "pythonic": f"[{name}({python.replace('True', 'true').replace('None', 'null')})]".replace("'", '"'),
        "qwen_xml": f"<tool_call>\n<function={name}>\n{xml(values, QWEN)}</function>\n</tool_call>",
        "deepseek_v3": f"{CALLS_BEGIN}{CALL_BEGIN}function{CALL_SEP}{name}\n```json\n{text}\n```{CALL_END}{CALLS_END}",
        "deepseek_v31": f"{CALLS_BEGIN}{CALL_BEGIN}{name}{CALL_SEP}{text}{CALL_END}{CALLS_END}",
        "glm45": f"<tool_call>{name}\n{xml(values, GLM)}</tool_call>",
        "harmony": f"<|channel|>commentary to=functions.{name} <|constrain|>json<|message|>{text}",
    }[tool_format]


@cache
def grammar_of(tool_format: ToolCallFormat, parallel: bool = True) -> Grammar:
    constraint = read_tools(TOOLS, "auto", parallel, tool_format=tool_format).constraint()
    assert constraint is not None
    return Compiler(BYTES).compile(constraint)


def takes(tool_format: ToolCallFormat, text: str, *, parallel: bool = True) -> bool:
    matcher = grammar_of(tool_format, parallel).matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.complete


def calls_in(tool_format: ToolCallFormat, text: str) -> list[tuple[str, Any]]:
    """The calls of a text, which is read whole and letter by letter."""
    tools = read_tools(TOOLS, "auto", True, tool_format=tool_format)
    content, calls = read(tools.parser(), text)
    assert (content, calls) == read(tools.parser(), *text)
    return [(name, json.loads(arguments)) for name, arguments in calls]


def spoken(tool_format: ToolCallFormat) -> str:
    """What may stand before a call."""
    if tool_format == "harmony":
        return "<|channel|>analysis<|message|>Hm, 1 < 2.<|end|><|start|>assistant"
    return "" if tool_format in {"llama3", "pythonic"} else "I look it up. "


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize("values", [ROME, FULL])
def test_a_call_that_keeps_its_schema_is_allowed_and_read(tool_format: ToolCallFormat, values: dict[str, Any]) -> None:
    text = spoken(tool_format) + written(tool_format, "weather", values)
    assert takes(tool_format, text)
    assert calls_in(tool_format, text) == [("weather", values)]


@pytest.mark.parametrize("tool_format", FORMATS)
@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("weather", {"city": "Rome"}),
        ("weather", {"city": "too long", "days": 3}),
        ("weather", {"city": "Rome", "days": 31}),
        ("weather", {**ROME, "other": 1}),
        ("weather", {**ROME, "kind": "b"}),
        ("wether", ROME),
        ("time", {"a": 1}),
    ],
)
def test_a_call_that_breaks_its_schema_cannot_be_written(
    tool_format: ToolCallFormat, name: str, values: dict[str, Any]
) -> None:
    assert not takes(tool_format, spoken(tool_format) + written(tool_format, name, values))


@pytest.mark.parametrize("tool_format", FORMATS)
def test_text_without_a_call_is_free(tool_format: ToolCallFormat) -> None:
    begin = "<|channel|>final<|message|>" if tool_format == "harmony" else ""
    for text in ("No call.", "1 < 2 & [x] {y}\n\ndone", " <b> "):
        assert takes(tool_format, begin + text)
        assert calls_in(tool_format, begin + text) == []
    tools = read_tools(TOOLS, "auto", True, tool_format=tool_format)
    assert read(tools.parser(), f"{begin}No call.") == ("No call.", [])


SEVERAL: dict[ToolCallFormat, str] = {
    "hermes": "{}\n{}",
    "mistral": '[TOOL_CALLS] [{{"name": "weather", "arguments": {2}}}, {{"name": "time", "arguments": {{}}}}]',
    "mistral_args": "{}{}",
    "llama3": "{}; {}",
    "pythonic": '[weather(city="Rome", days=3), time()]',
    "qwen_xml": "{}\n{}",
    "deepseek_v31": f"{CALLS_BEGIN}{CALL_BEGIN}weather{CALL_SEP}{{2}}{CALL_END}"
    f"{CALL_BEGIN}time{CALL_SEP}{{{{}}}}{CALL_END}{CALLS_END}",
    "glm45": "{}{}",
}


@pytest.mark.parametrize("tool_format", SEVERAL)
def test_calls_may_be_parallel_or_not(tool_format: ToolCallFormat) -> None:
    one, other = written(tool_format, "weather", ROME), written(tool_format, "time", {})
    text = SEVERAL[tool_format].format(one, other, json.dumps(ROME))
    assert takes(tool_format, text)
    assert calls_in(tool_format, text) == [("weather", ROME), ("time", {})]
    assert not takes(tool_format, text, parallel=False)
    assert takes(tool_format, one, parallel=False)


NAMED = {"type": "function", "function": {"name": "weather"}}


@pytest.mark.parametrize("tool_format", FORMATS)
def test_calls_that_must_come_keep_the_format_too(tool_format: ToolCallFormat) -> None:
    one, other = written(tool_format, "weather", ROME), written(tool_format, "time", {})
    several = "{}\n{}" if tool_format == "glm45" else SEVERAL.get(tool_format, "No calls.")
    both = several.format(one, other, json.dumps(ROME))
    free = [{**tool, "function": {**tool["function"], "strict": False}} for tool in TOOLS]
    for choice, parallel in (("required", True), (NAMED, True), ("required", False)):
        tools = read_tools(free, choice, parallel, tool_format=tool_format, formatted=True)
        constraint = tools.constraint()
        assert constraint is not None
        assert accepts(constraint, one)
        assert read(tools.parser(), *one) == read(tools.parser(), one) == ("", [("weather", json.dumps(ROME))])
        assert accepts(constraint, both) == (choice == "required" and parallel and tool_format in SEVERAL)
        assert accepts(constraint, other) == (choice == "required")
        for wrong in ("", "No call.", f"So: {one}", written(tool_format, "weather", {"city": "Rome"}), f"{one} Done."):
            assert not accepts(constraint, wrong)


def test_calls_that_must_come_are_json_where_the_format_cannot_hold_their_schema() -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": "^x+$"}}, "required": ["a"]}
    tools = read_tools([function("f", schema)], "required", True, tool_format="qwen_xml", formatted=True)
    constraint = tools.constraint()
    assert constraint is not None
    assert accepts(constraint, '[{"name": "f", "parameters": {"a": "xx"}}]')
    assert read(tools.parser(), '[{"name": "f", "parameters": {"a": "xx"}}]') == ("", [("f", '{"a": "xx"}')])


def closed(grammar: Grammar, begin: str, seed: int) -> str | None:
    """A text that begins so and goes on at random under the grammar, until it is closed the short way."""
    rng, matcher = np.random.default_rng(seed), grammar.matcher()
    path = ClosingPath(grammar.matcher(), BYTES)
    data = bytearray()

    def take(byte: int) -> bool:
        path.advance(byte)
        data.append(byte)
        return matcher.accept(byte)

    if not all(take(byte) for byte in begin.encode()):
        return None
    for _ in range(int(rng.integers(0, 60))):
        mask = np.zeros(BYTES.words, np.int32)
        matcher.fill_mask(mask)
        allowed = [byte for byte in range(256) if mask[byte // 32] >> (byte % 32) & 1 and byte < 128]
        likely = [byte for byte in allowed if chr(byte) in '"}{[],:0123 abxtf<>=/\\']
        if not allowed:
            break
        take(int(rng.choice(likely or allowed)))
    while path.tokens:
        take(path.tokens[0])
    return data.decode() if matcher.complete else None


BEGINNINGS: dict[ToolCallFormat, str] = {
    name: written(name, "weather", {}).partition("weather")[0] + "weather" for name in FORMATS
}


@pytest.mark.parametrize("tool_format", FORMATS)
def test_whatever_a_model_writes_is_read_as_calls_that_keep_their_schemas(tool_format: ToolCallFormat) -> None:
    schemas, found = {"weather": CITY, "time": NONE}, 0
    for seed in range(15):
        text = closed(grammar_of(tool_format, False), BEGINNINGS[tool_format], seed)
        if text is None:
            continue
        calls = calls_in(tool_format, text)
        assert calls, text
        for name, values in calls:
            jsonschema.validate(values, schemas[name])
        found += 1
    assert found >= 8


def random_schema(rng: np.random.Generator, depth: int = 0) -> dict[str, Any]:
    """An object of a few properties of all kinds."""
    kinds: list[Any] = [
        {"type": "string"},
        {"type": "integer", "minimum": -3},
        {"type": "boolean"},
        {"enum": ["p", "q r"]},
        {"type": ["string", "null"]},
        {"type": "array", "items": {"type": "number"}, "maxItems": 3},
        {"const": 7},
    ]
    if depth < 1:
        kinds.append(random_schema(rng, depth + 1))
    names = [f"k{i}" for i in range(int(rng.integers(0, 4)))]
    properties = {name: kinds[int(rng.integers(len(kinds)))] for name in names}
    required = [name for name in names if rng.random() < 0.6]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


@pytest.mark.exhaustive
@pytest.mark.parametrize("tool_format", FORMATS)
def test_random_schemas_are_kept_and_read(tool_format: ToolCallFormat) -> None:
    rng, found = np.random.default_rng(7), 0
    for seed in range(40):
        schema = random_schema(rng)
        tools = read_tools([function("weather", schema)], "auto", False, tool_format=tool_format)
        constraint = tools.constraint()
        assert constraint is not None
        text = closed(Compiler(BYTES).compile(constraint), BEGINNINGS[tool_format], seed)
        if text is None:
            continue
        _, calls = read(tools.parser(), text)
        assert calls, text
        jsonschema.validate(json.loads(calls[0][1]), schema)
        found += 1
    assert found >= 20


TEMPLATES: list[tuple[str, ToolCallFormat]] = [
    ("{{ tools }}<|start|>assistant<|channel|>", "harmony"),
    ("{{ tools }}<｜tool▁calls▁begin｜>```json", "deepseek_v3"),
    ("{{ tools }}<｜tool▁calls▁begin｜>", "deepseek_v31"),
    ("{{ tools }}<tool_call><function=example><parameter=a>", "qwen_xml"),
    ("{{ tools }}<tool_call>{name}<arg_key>", "glm45"),
    ("{{ tools }}<tool_call>", "hermes"),
    ("{{ tools }}[TOOL_CALLS]f[ARGS]", "mistral_args"),
    ("{{ tools }}[TOOL_CALLS]", "mistral"),
    ("{{ tools }}[func_name1(params_name1=params_value1)]<|start_header_id|>", "pythonic"),
    ("{{ tools }}<|start_header_id|>", "llama3"),
    ("<|start_header_id|>", "hermes"),
    ("{{ tools }}", "hermes"),
]


@pytest.mark.parametrize(("template", "tool_format"), TEMPLATES)
def test_the_template_tells_the_format(template: str, tool_format: ToolCallFormat) -> None:
    assert tool_call_format(template) == tool_format


@pytest.mark.parametrize(
    ("tool_format", "schema", "message"),
    [
        (
            "qwen_xml",
            {"properties": {"a": {"type": "string", "pattern": "x"}}},
            "'weather' at #/properties/a/pattern cannot",
        ),
        ("glm45", {"anyOf": [{}]}, "'weather' at #/anyOf cannot be held where arguments are written one by one"),
        ("pythonic", {"properties": {"from": {}}}, "'weather' at #/properties/from must be a name"),
        ("harmony", {"properties": {"a": {"pattern": "(a)\\1"}}}, "'weather' at #/properties/a/pattern"),
        ("deepseek_v3", {"properties": {"a": {"$ref": "a.json"}}}, "'weather' at #/properties/a/$ref"),
    ],
)
def test_what_cannot_be_held_is_told_of_the_function(tool_format: ToolCallFormat, schema: Any, message: str) -> None:
    tools = read_tools([TOOLS[1], function("weather", schema)], "auto", None, tool_format=tool_format)
    constraint = tools.constraint()
    assert constraint is not None
    with pytest.raises(GrammarError) as caught:
        Compiler(BYTES).compile(constraint)
    assert f"parameters of the function {message}" in tools.reworded(str(caught.value))


def test_functions_that_are_not_strict_take_any_arguments_beside_strict_ones() -> None:
    free = {"type": "function", "function": {"name": "time", "parameters": CITY}}
    for tool_format in FORMATS:
        constraint = read_tools([TOOLS[0], free], "auto", None, tool_format=tool_format).constraint()
        assert constraint is not None
        if tool_format != "pythonic":
            assert accepts(constraint, spoken(tool_format) + written(tool_format, "time", {"any": 1}))


def test_marks_may_be_special_tokens() -> None:
    tokens = (*(bytes([byte]) for byte in range(256)), *[b""] * 5)
    marks = (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_SEP, CALL_END)
    special = {256 + i: mark.encode() for i, mark in enumerate(marks)}
    constraint = read_tools(TOOLS, "auto", None, tool_format="deepseek_v31").constraint()
    assert constraint is not None
    matcher = Compiler(Vocabulary(tokens, special)).compile(constraint).matcher()
    parts: list[Any] = ["Hm. ", 256, 258, "weather", 259, json.dumps(ROME), 260, 257]
    assert all(follow(matcher, part) for part in parts)
    assert matcher.complete
    assert not matcher.accept(256)


def follow(matcher: Matcher, part: int | str) -> bool:
    return all(matcher.accept(token) for token in ([part] if isinstance(part, int) else part.encode()))


def test_harmonys_messages_are_told_apart() -> None:
    from tirage.server.routes.toolcalls import Content, HarmonyParser, Reasoning, ToolCall, ToolCallFactory

    text = (
        "<|channel|>analysis<|message|>Think.<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>"
        f"<|start|>assistant{written('harmony', 'weather', ROME)}<|call|>"
    )
    for pieces in ((text,), text):
        parser = HarmonyParser(ToolCallFactory(["weather"], parallel=True, new_id=lambda: "i"), separate=True)
        found = [piece for each in pieces for piece in parser.feed(each)] + parser.finish()
        assert "".join(each.text for each in found if isinstance(each, Reasoning)) == "Think."
        assert "".join(each.text for each in found if isinstance(each, Content)) == "Wait."
        assert [(each.name, json.loads(each.arguments)) for each in found if isinstance(each, ToolCall)] == [
            ("weather", ROME)
        ]
    parser = HarmonyParser(ToolCallFactory([], parallel=True, new_id=lambda: "i"), separate=True)
    assert parser.feed("plain < text") + parser.finish() == [Content("plain < text")]


def test_a_text_of_the_model_that_is_no_call_stays_content() -> None:
    texts: list[tuple[ToolCallFormat, str]] = [
        ("qwen_xml", "<tool_call>\n<function=other>\n</function>\n</tool_call>"),
        ("glm45", "<tool_call>other\n</tool_call>"),
        ("pythonic", "[weather(open('x'))]"),
        ("pythonic", "[1, 2]"),
        (
            "deepseek_v3",
            f"{CALLS_BEGIN}{CALL_BEGIN}function{CALL_SEP}weather\n```json\n{{broken\n```{CALL_END}{CALLS_END}",
        ),
        ("hermes", '<tool_call>{"name": "weather", "arguments": {"a": "</tool_call>'),
    ]
    for tool_format, text in texts:
        tools = read_tools(TOOLS, "auto", None, tool_format=tool_format)
        assert read(tools.parser(), text) == (text, [])


def test_an_end_mark_inside_a_string_ends_no_call() -> None:
    values = {"city": "</tool_call>"}
    text = written("hermes", "weather", values)
    assert calls_in("hermes", text) == [("weather", values)]


def test_the_compiled_constraint_is_a_structural_tag() -> None:
    constraint = read_tools(TOOLS, "auto", None, tool_format="hermes").constraint()
    assert isinstance(constraint, GuidedDecodingParams)
    assert constraint.mode == "structural_tag"
