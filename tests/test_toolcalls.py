"""Calls of functions in text: every way a text is cut gives the same pieces; constraints for forced choices."""

from __future__ import annotations

import json
from typing import Any, get_args

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tirage.errors import GrammarError, ParamsError
from tirage.guided import BYTES, Compiler
from tirage.params import GuidedDecodingParams
from tirage.server.routes.reasoning import ReasoningParser
from tirage.server.routes.tool_formats import CALL_BEGIN, CALL_END, CALL_SEP, CALLS_BEGIN, CALLS_END, HEADERS, MARKERS
from tirage.server.routes.toolcalls import (
    Content,
    MessagePart,
    Reasoning,
    ToolCall,
    ToolCallArguments,
    ToolCallParser,
    read_calls,
)
from tirage.server.routes.tools import ToolCallFormat, Tools, list_schema, read_tools, tool_call_format

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "weather", "parameters": CITY}}
TIME = {"type": "function", "function": {"name": "time"}}
PARIS = ("weather", '{"city": "Paris"}')
CALL = '{"name": "weather", "arguments": {"city": "Paris"}}'


def tools(choice: Any = "auto", *, parallel: bool | None = None, tool_format: ToolCallFormat = "hermes") -> Tools:
    return read_tools([WEATHER, TIME], choice, parallel, tool_format=tool_format)


def read(parser: ToolCallParser, *texts: str) -> tuple[str, list[tuple[str, str]]]:
    """The content and the calls of a text that comes in pieces."""
    content, calls = "", []
    pieces = [piece for text in texts for piece in parser.feed(text)] + parser.finish()
    for piece in pieces:
        match piece:
            case Content(text):
                content += text
            case ToolCall(index, _, name, arguments):
                assert len(calls) == index
                calls.append((name, arguments))
            case ToolCallArguments(index, arguments):
                calls[index] = (calls[index][0], calls[index][1] + arguments)
    return content, calls


TEXTS: list[tuple[ToolCallFormat, str, str, list[tuple[str, str]]]] = [
    ("hermes", "Just text, 1 < 2 <tool", "Just text, 1 < 2 <tool", []),
    ("hermes", f"<tool_call>\n{CALL}\n</tool_call>", "", [PARIS]),
    ("hermes", f"Let me see.\n<tool_call>{CALL}</tool_call>\n", "Let me see.", [PARIS]),
    ("hermes", f'<tool_call>{CALL}</tool_call>\n<tool_call>{{"name":"time"}}</tool_call>', "", [PARIS, ("time", "{}")]),
    ("hermes", f"<tool_call>\n{CALL}", "", [PARIS]),
    ("hermes", "<tool_call>{broken</tool_call> so", "<tool_call>{broken</tool_call> so", []),
    ("hermes", '<tool_call>{"name": "other"}</tool_call>', '<tool_call>{"name": "other"}</tool_call>', []),
    ("hermes", "  \n", "  \n", []),
    ("mistral", f"[TOOL_CALLS][{CALL}]", "", [PARIS]),
    ("mistral", f"[TOOL_CALLS] [{CALL}, {CALL}]", "", [PARIS, PARIS]),
    ("mistral", 'Well [TOOL_CALLS]weather[ARGS]{"city": "Paris"}', "Well", [PARIS]),
    ("mistral", 'weather{"city": "Paris"}', 'weather{"city": "Paris"}', []),
    ("mistral", "[TOOL_CALLS]nothing", "[TOOL_CALLS]nothing", []),
    ("llama3", '{"name": "weather", "parameters": {"city": "Paris"}}', "", [PARIS]),
    ("llama3", f"<|python_tag|>{CALL}; {CALL}", "", [PARIS, PARIS]),
    ("llama3", '{"name": "Ann"}', '{"name": "Ann"}', []),
    ("llama3", f"Look: {CALL}", f"Look: {CALL}", []),
]


@pytest.mark.parametrize(("tool_format", "text", "content", "calls"), TEXTS)
def test_calls_are_told_apart_from_what_is_said(
    tool_format: ToolCallFormat, text: str, content: str, calls: list[tuple[str, str]]
) -> None:
    assert (content, calls) == read(tools(tool_format=tool_format).parser(), text)
    assert (content, calls) == read(tools(tool_format=tool_format).parser(), *text)


@settings(deadline=None)
@given(
    st.sampled_from(TEXTS),
    st.lists(st.integers(0, 80), max_size=6).map(sorted),
)
def test_the_pieces_do_not_depend_on_how_the_text_is_cut(
    case: tuple[ToolCallFormat, str, str, list[tuple[str, str]]], cuts: list[int]
) -> None:
    tool_format, text, content, calls = case
    pieces = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert (content, calls) == read(tools(tool_format=tool_format).parser(), *pieces)


SCRAPS = (
    *(CALL, '{"name":"weather","parameters":{}}', '{"name":"other"}', 'weather{"x":1}', "weather(x=1)", '(y="]")'),
    *("[", "]", "; ", ", ", "\n", " ", "  ", "a", "é", '"', "\\", "{", "}", "<", "<|", "|>", "weather", "function"),
    *("<function=weather>", "</function>", "<parameter=x>", "</parameter>", "</tool_call>", "[ARGS]", "\n```json\n"),
    *("\n```", CALL_BEGIN, CALL_SEP, CALL_END, CALLS_END, "<think>", "</thi", "</think>"),
)
"""What texts with calls are made of, and what comes near."""
OF_HARMONY = (
    *("<|start|>", "assistant", " to=", " to=functions.weather", "<|channel|>", "analysis", "final", "<|message|>"),
    *("<|end|>", "<|call|>", "<|return|>", "a", " ", "{}", *(header.format("weather") for header in HEADERS)),
)


@settings(deadline=None, max_examples=150)
@pytest.mark.parametrize("tool_format", get_args(ToolCallFormat))
@given(
    st.sampled_from(["auto", "auto", "required", {"type": "function", "function": {"name": "weather"}}]),
    st.sampled_from([None, None, "plain", "opened", "kept"]),
    st.data(),
)
def test_every_parser_reads_any_text_the_same_however_it_is_cut(
    tool_format: ToolCallFormat, choice: Any, reasoning: str | None, data: st.DataObject
) -> None:
    own = OF_HARMONY if tool_format == "harmony" else MARKERS[tool_format]
    scrap = st.sampled_from(SCRAPS) | st.sampled_from(own)
    text = "".join(data.draw(st.lists(scrap, max_size=9)))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=6).map(sorted))

    def parts(*texts: str) -> list[tuple[str, Any]]:
        parser = tools(choice, tool_format=tool_format).parser()
        if reasoning is not None:
            options = {"opened": reasoning == "opened", "separated": reasoning != "kept"}
            parser = ReasoningParser(parser, ("<think>", "</think>"), **options)
        return merged([piece for text in texts for piece in parser.feed(text)] + parser.finish())

    expected = parts(text)
    assert expected == parts(*text)
    assert expected == parts(*(text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)))


def merged(parts: list[MessagePart]) -> list[tuple[str, Any]]:
    """The parts with texts and arguments put together that follow on one another."""
    found: list[tuple[str, Any]] = []
    for part in parts:
        kind = type(part).__name__
        match part:
            case Content(text) | Reasoning(text) if found and found[-1][0] == kind:
                found[-1] = (kind, found[-1][1] + text)
            case Content(text) | Reasoning(text):
                found.append((kind, text))
            case ToolCall(index, _, name, arguments):
                found.append((kind, (index, name, arguments)))
            case ToolCallArguments(index, more):
                kind, (last, name, arguments) = found[-1]
                assert (kind, last) == ("ToolCall", index)
                found[-1] = (kind, (index, name, arguments + more))
    return found


HARMONY_CALL = '<|channel|>commentary to=functions.weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>'


@pytest.mark.parametrize(
    ("text", "content", "calls"),
    [
        (f"Sure. {HARMONY_CALL}", "Sure. ", [PARIS]),
        (f"Go to=x <|start|>assistant{HARMONY_CALL}", "Go to=x ", [PARIS]),
        ("Go to=x and <|channel|>final<|message|>yes<|end|>", "Go to=x and yes", []),
        (f"Go to={'x' * 300}{HARMONY_CALL}", f"Go to={'x' * 300}", [PARIS]),
        ('hello to=functions.time<|channel|>commentary json<|message|>{}<|call|> "a"', 'hello "a"', [("time", "{}")]),
        ("<|start|>assistant to=a or <|channel|>b", "<|start|>assistant to=a or <|channel|>b", []),
    ],
)
def test_a_message_of_harmonys_begins_anywhere(text: str, content: str, calls: list[tuple[str, str]]) -> None:
    assert (content, calls) == read(tools(tool_format="harmony").parser(), text)
    assert (content, calls) == read(tools(tool_format="harmony").parser(), *text)


def test_harmonys_text_that_is_no_message_comes_at_once() -> None:
    parser = tools(tool_format="harmony").parser()
    texts = ["You", " can", " to", " too <", "b> <|", "x"]
    said = [merged(parser.feed(text)) for text in texts]
    shown = ["You", " can", None, " to too ", "<b> ", "<|x"]
    assert said == [[] if text is None else [("Content", text)] for text in shown]


WRONG_ARGUMENTS = (
    *('{"x": NaN}', '{"x": Infinity}', '{"x": [-Infinity]}', '{"x": 1e999}', '{"x": "\\ud83d"}', '{"\\ude00": 1}'),
    *(
        "5",
        "null",
        "[]",
        '"text"',
        '"[1]"',
        '"{\\"x\\": NaN}"',
        '"{\\"x\\": \\"\\\\ud83d\\"}"',
        '{"x": ' + "[" * 80 + "]" * 80 + "}",
    ),
)
WRITTEN: dict[ToolCallFormat, str] = {
    "hermes": '<tool_call>{{"name": "weather", "arguments": {}}}</tool_call>',
    "mistral": '[TOOL_CALLS] [{{"name": "weather", "arguments": {}}}]',
    "mistral_args": "[TOOL_CALLS]weather[ARGS]{}",
    "llama3": '{{"name": "weather", "parameters": {}}}',
    "deepseek_v3": f"{CALLS_BEGIN}{CALL_BEGIN}function{CALL_SEP}weather\n```json\n{{}}\n```{CALL_END}{CALLS_END}",
    "deepseek_v31": f"{CALLS_BEGIN}{CALL_BEGIN}weather{CALL_SEP}{{}}{CALL_END}{CALLS_END}",
}


@pytest.mark.parametrize("arguments", WRONG_ARGUMENTS)
@pytest.mark.parametrize("tool_format", WRITTEN)
def test_arguments_that_no_answer_can_hold_make_no_call(tool_format: ToolCallFormat, arguments: str) -> None:
    text = f"So: {WRITTEN[tool_format].format(arguments)}"
    text = text if tool_format != "llama3" else text.removeprefix("So: ")
    assert read(tools(tool_format=tool_format).parser(), text) == (text, [])
    assert read(tools(tool_format=tool_format).parser(), *text) == (text, [])


@pytest.mark.parametrize("arguments", WRONG_ARGUMENTS)
def test_harmonys_arguments_that_no_answer_can_hold_are_content(arguments: str) -> None:
    text = HARMONY_CALL.replace('{"city": "Paris"}', arguments)
    assert read(tools(tool_format="harmony").parser(), text) == (arguments, [])


@pytest.mark.parametrize("argument", ["1e999", "-1e999", '"\\ud83d"', '{"a": [1e999]}', "NaN"])
def test_constants_of_python_that_no_answer_can_hold_make_no_call(argument: str) -> None:
    text = f"[weather(city={argument})]"
    assert read(tools(tool_format="pythonic").parser(), text) == (text, [])


@pytest.mark.parametrize("argument", ["1e999", '"\\ud83d"', "NaN", "[Infinity]"])
def test_values_between_tags_that_no_answer_can_hold_are_texts(argument: str) -> None:
    for tool_format, text in (
        ("qwen_xml", "<tool_call>\n<function=time>\n<parameter=x>\n{}\n</parameter>\n</function>\n</tool_call>"),
        ("glm45", "<tool_call>time\n<arg_key>x</arg_key>\n<arg_value>{}</arg_value>\n</tool_call>"),
    ):
        content, [(name, arguments)] = read(tools(tool_format=tool_format).parser(), text.format(argument))
        assert (content, name, json.loads(arguments)) == ("", "time", {"x": argument})


def test_a_listed_call_that_no_answer_can_hold_is_content() -> None:
    call = '{"name": "time", "parameters": {"x": 1e999}}'
    assert read(tools("required").parser(), f'[{call}, {{"name": "time", "parameters": {{}}}}]') == (
        call,
        [("time", "{}")],
    )


@pytest.mark.parametrize("text", ["", " ", "<thi", "<think>", "<think>Well, {</thin"])
def test_a_call_that_must_come_is_none_before_the_reasoning_has_ended(text: str) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "weather"}}):
        parser = ReasoningParser(tools(choice).parser(), ("<think>", "</think>"), opened=False)
        parts = [part for each in text for part in parser.feed(each)] + parser.finish()
        assert not any(isinstance(part, (ToolCall, ToolCallArguments)) for part in parts)
        assert "".join(part.text for part in parts if isinstance(part, (Content, Reasoning))) == text.removeprefix(
            "<think>"
        )


@pytest.mark.parametrize(
    "text", ["", "  [", f"[{CALL}", f"[{CALL}]", f"[{CALL}, ", f"[{CALL[:-2]}", '[{"na', "Well, no", "[Well"]
)
def test_a_text_without_a_list_of_calls_is_content_but_the_beginning_of_a_call_is_not(text: str) -> None:
    content = text if "Well" in text else ""
    assert read(tools("required").parser(), *text) == (content, [PARIS] if CALL in text else [])


SAYING = {"type": "object", "properties": {"z": {"type": "string"}, "o": {"type": "object"}, "x": {}}}
SAY = {"type": "function", "function": {"name": "say", "parameters": SAYING}}
TAGGED: dict[ToolCallFormat, tuple[str, str, str]] = {
    "qwen_xml": ("<tool_call>\n<function=say>\n", "<parameter={}>\n{}\n</parameter>\n", "</function>\n</tool_call>"),
    "glm45": ("<tool_call>say\n", "<arg_key>{}</arg_key>\n<arg_value>{}</arg_value>\n", "</tool_call>"),
}
SAID: list[tuple[dict[str, str], dict[str, Any]]] = [
    ({"z": "a</tool_call>b"}, {"z": "a</tool_call>b"}),
    ({"z": "</tool_call>"}, {"z": "</tool_call>"}),
    ({"z": '"</tool_call>', "x": "1"}, {"z": '"</tool_call>', "x": 1}),
    ({"o": '{"a": "</parameter></arg_value></tool_call>"}', "z": "</tool_call>"},
     {"o": {"a": "</parameter></arg_value></tool_call>"}, "z": "</tool_call>"}),
    ({"x": 'a 5" screen </tool_call>'}, {"x": 'a 5" screen </tool_call>'}),
]  # fmt: skip


@pytest.mark.parametrize("tool_format", TAGGED)
@pytest.mark.parametrize(("values", "arguments"), SAID)
def test_an_end_mark_inside_a_value_between_tags_ends_no_call(
    tool_format: ToolCallFormat, values: dict[str, str], arguments: dict[str, Any]
) -> None:
    begin, argument, end = TAGGED[tool_format]
    call = begin + "".join(argument.format(name, value) for name, value in values.items()) + end
    text = f"One {call} and {call} more"
    definitions = read_tools([SAY], None, None, tool_format=tool_format)
    for pieces in ([text], list(text)):
        content, calls = read(definitions.parser(), *pieces)
        assert content == "One and more"
        assert [(name, json.loads(found)) for name, found in calls] == [("say", arguments)] * 2


@pytest.mark.parametrize("tool_format", TAGGED)
def test_a_value_that_never_ends_hides_no_end_of_its_call(tool_format: ToolCallFormat) -> None:
    begin, argument, end = TAGGED[tool_format]
    cut = argument.partition("\n</")[0] if tool_format == "qwen_xml" else argument.partition("{}</arg_v")[0] + "{}"
    text = begin + cut.format("z", "a\n") + end + "So " + begin + argument.format("z", "b") + end + " it is."
    for pieces in ([text], list(text)):
        content, calls = read(read_tools([SAY], None, None, tool_format=tool_format).parser(), *pieces)
        assert content == "So it is."
        assert calls == [("say", "{}"), ("say", '{"z": "b"}')]


def test_without_parallel_calls_only_the_first_is_reported() -> None:
    text = f"<tool_call>{CALL}</tool_call>" * 3
    assert read(tools(parallel=False).parser(), text) == ("", [PARIS])


def test_a_named_choice_makes_the_whole_text_arguments() -> None:
    named = tools({"type": "function", "function": {"name": "weather"}})
    assert read(named.parser(), '{"city"', ': "Paris"}') == ("", [PARIS])
    assert read(named.parser()) == ("", [("weather", "")])
    constraint = named.constraint()
    assert constraint is not None
    assert constraint.to_dict()["json"] == CITY


def test_a_required_choice_is_a_list_of_calls() -> None:
    required = tools("required")
    text = '[{"name": "weather", "parameters": {"city": "Paris"}},\n{"name": "time", "parameters": {}}]'
    assert read(required.parser(), *text) == ("", [PARIS, ("time", "{}")])
    assert read(required.parser(), text[:-5]) == ("", [PARIS])
    constraint = required.constraint()
    assert constraint is not None
    schema = json.loads(str(constraint.to_dict()["json"])) if isinstance(constraint.json, str) else constraint.json
    jsonschema.validate(json.loads(text), schema)
    for wrong in ("[]", '[{"name": "other", "parameters": {}}]', '[{"name": "weather", "parameters": {}}]'):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(json.loads(wrong), schema)


def test_references_in_parameters_hold_inside_the_list() -> None:
    place = {"$defs": {"P": {"type": "integer"}}, "type": "object", "properties": {"at": {"$ref": "#/$defs/P"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": place}}
    schema = list_schema([WEATHER, tool], parallel=False)
    jsonschema.validate([{"name": "f", "parameters": {"at": 3}}], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([{"name": "f", "parameters": {"at": "x"}}], schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([{"name": "f", "parameters": {}}] * 2, schema)


def of_digit(**root: Any) -> dict[str, Any]:
    """A schema of an object whose member `a` is referred to from a definition of one digit."""
    digit = {"type": "integer", "minimum": 0, "maximum": 9}
    named = {"properties": {"a": {"$ref": "#/$defs/x"}}, "required": ["a"], "$defs": {"x": digit}}
    return {"type": "object", **named, "additionalProperties": False, **root}


DRAFT7 = "http://json-schema.org/draft-07/schema#"
OWN = "https://e.org/s"
DOCUMENTS: list[dict[str, Any]] = [
    of_digit(),
    {"$ref": "#/definitions/S", "definitions": {"S": of_digit()}, "$defs": of_digit()["$defs"], "$schema": DRAFT7},
    {"$ref": "#/definitions/S", "definitions": {"S": of_digit()}, "$defs": of_digit()["$defs"]},
    {
        "$ref": "#/kept/S",
        "kept": {"S": of_digit()},
        "$defs": of_digit()["$defs"],
        "$schema": DRAFT7,
        "maxProperties": 0,
    },
    of_digit(**{"$schema": "http://json-schema.org/draft-04/schema#"}),
    of_digit(**{"$id": OWN, "properties": {"a": {"$ref": f"{OWN}#/$defs/x"}}}),
    of_digit(**{"$id": OWN, "$schema": DRAFT7}),
    of_digit(**{"$id": "s.json", "properties": {"a": {"$ref": "s.json#/$defs/x"}}}),
    of_digit(**{"$id": "#s", "$schema": DRAFT7}),
]


@pytest.mark.parametrize("schema", DOCUMENTS, ids=range(len(DOCUMENTS)))
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "f"}}], ids=str)
def test_parameters_are_documents_of_their_own(schema: dict[str, Any], choice: Any) -> None:
    # The other one has the same `$id`, and something else at the place to which the reference points.
    other = {"$id": schema.get("$id", OWN), **CITY, "$defs": {"x": {"type": "string"}}}
    given = [{"type": "function", "function": {"name": name, "parameters": each}} for name, each in
             (("g", other), ("f", schema), ("h", other))]  # fmt: skip
    constraint = read_tools(given, choice, None, tool_format="hermes").constraint()
    assert constraint is not None
    call = '[{{"name": "f", "parameters": {}}}]' if choice == "required" else "{}"
    assert accepts(constraint, call.format('{"a": 3}'))
    for wrong in ("{}", '{"a": "b"}', '{"a": 10}', '{"a": 3, "b": 1}'):
        assert not accepts(constraint, call.format(wrong)), wrong


@pytest.mark.parametrize(
    ("parameters", "any_object"), [({"parameters": {}}, True), ({"parameters": None}, False), ({}, False)]
)
def test_the_empty_schema_is_any_object_and_none_is_no_arguments(parameters: dict[str, Any], any_object: bool) -> None:
    given = [{"type": "function", "function": {"name": "f", **parameters}}]
    for choice, call in (
        ("required", '[{{"name": "f", "parameters": {}}}]'),
        ({"type": "function", "function": {"name": "f"}}, "{}"),
    ):
        constraint = read_tools(given, choice, None, tool_format="hermes").constraint()
        assert constraint is not None
        assert accepts(constraint, call.format("{}"))
        assert accepts(constraint, call.format('{"a": [1]}')) is any_object
        assert not accepts(constraint, call.format("3"))


def test_a_reference_that_leads_nowhere_is_named_at_its_place_in_the_parameters() -> None:
    for more in ({"$schema": DRAFT7}, {"$id": OWN}):
        schema = {"$ref": "#/definitions/T", "definitions": {"S": {}}, **more}
        given = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
        required = read_tools(given, "required", None, tool_format="hermes")
        constraint = required.constraint()
        assert constraint is not None
        with pytest.raises(GrammarError) as caught:
            Compiler(BYTES).compile(constraint)
        assert required.reworded(str(caught.value)).startswith("parameters of the function 'f' at #/$ref must point to")


def test_a_strict_tool_binds_the_calls_that_a_model_makes_by_itself() -> None:
    strict = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
    constraint = read_tools([strict, TIME], "auto", None, tool_format="hermes").constraint()
    assert constraint is not None
    assert constraint.structural_tag is not None
    given = json.loads(constraint.structural_tag)
    assert [tag["content"]["json_schema"] for tag in given["format"]["tags"]] == [CITY, {"type": "object"}]


def accepts(constraint: GuidedDecodingParams, text: str) -> bool:
    """Whether the whole text satisfies the constraint."""
    matcher = Compiler(BYTES).compile(constraint).matcher()
    return all(matcher.accept(byte) for byte in text.encode()) and matcher.complete


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ('{"name": "weather", "arguments": {"city": "Paris"}}', True),
        ('{"name": "weather", "arguments": {"city":"Paris"}}', True),
        ('{"name": "time", "arguments": {"any": 1}}', True),
        ('{"name": "weather", "arguments": {}}', False),
        ('{"name": "weather", "arguments": {"city": 3}}', False),
        ('{"name": "other", "arguments": {}}', False),
    ],
)
def test_free_text_may_hold_only_calls_that_keep_their_schemas(arguments: str, kept: bool) -> None:
    strict = {"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}
    constraint = read_tools([strict, TIME], "auto", None, tool_format="hermes").constraint()
    assert constraint is not None
    assert accepts(constraint, "Just text, 1 < 2.")
    assert kept == accepts(constraint, f"So: <tool_call>\n{arguments}\n</tool_call>")


@pytest.mark.parametrize(
    ("choice", "mode", "names"),
    [
        (None, "auto", ["weather", "time"]),
        ("none", "none", ["weather", "time"]),
        ("required", "required", ["weather", "time"]),
        ({"type": "function", "function": {"name": "time"}}, "named", ["time"]),
        (
            {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "required", "tools": [{"type": "function", "function": {"name": "time"}}]},
            },
            "required",
            ["time"],
        ),
    ],
)
def test_every_choice_of_tools_is_read(choice: Any, mode: str, names: list[str]) -> None:
    read = tools(choice)
    assert (mode, names) == (read.mode, read.names)
    assert (read.shown is None) == (mode == "none")


@pytest.mark.parametrize(
    ("given", "choice", "parallel", "message"),
    [
        ([], "required", None, "tool_choice must go with tools"),
        (None, {"type": "function"}, None, "tool_choice must go with tools"),
        ([WEATHER], "any", None, 'tool_choice must be "none"'),
        ([WEATHER], {"type": "function", "function": {"name": "f"}}, None, "must name one of the tools, got 'f'"),
        (
            [WEATHER],
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [3]}},
            None,
            "must allow tools",
        ),
        ([WEATHER], None, "yes", "parallel_tool_calls must be a bool"),
    ],
)
def test_a_malformed_choice_is_refused_by_name(given: Any, choice: Any, parallel: Any, message: str) -> None:
    with pytest.raises(ParamsError, match=message):
        read_tools(given, choice, parallel, tool_format="hermes")


@pytest.mark.parametrize(
    ("template", "tool_format"),
    [
        ("{{ tools }}<tool_call>", "hermes"),
        ("{{ tools }}[TOOL_CALLS]", "mistral"),
        ("{{ tools }}<|start_header_id|>", "llama3"),
        ("{{ tools }}", "hermes"),
        ("[TOOL_CALLS]", "hermes"),
        ("", "hermes"),
    ],
)
def test_the_form_of_calls_is_that_of_the_chat_template(template: str, tool_format: str) -> None:
    assert tool_format == tool_call_format(template)


def test_what_is_no_list_of_calls_has_none() -> None:
    assert read_calls("") == read_calls("[1]") == read_calls(f"{CALL} x") == read_calls("[" * 3000) == []
    assert read_calls('{"name": "f", "arguments": "{\\"a\\": 1}"}') == [("f", '{"a": 1}')]
