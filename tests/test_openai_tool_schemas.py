"""Forced calls under the schemas that published MCP servers and zod write (tests/data/tool_schemas)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from servers import Server, shared
from test_openai import USER

from tirage.guided import BYTES, Compiler
from tirage.guided.closing.budgets import StepBudget
from tirage.guided.closing.byte_search import completes, straight
from tirage.server.routes.tools import read_tools

DATA = Path(__file__).parent / "data" / "tool_schemas"
FILES = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(DATA.glob("*.json"))}
TOOLS = {f"{name}/{tool['name']}": tool["inputSchema"] for name, each in FILES.items() for tool in each["tools"]}
SHORT = {"filesystem", "github", "memory", "context7"}
SILENT = "{% for m in messages %}{{ m.content }}\n{% endfor %}{% if tools %}{% endif %}"


@cache
def server(folder: Path) -> Server:
    path = folder / "silent.jinja"
    path.write_text(SILENT, encoding="utf-8")
    return shared("tiny", "--chat-template", str(path), "--max-chars-per-token", "1000")


@pytest.fixture(scope="module")
def silent(tmp_path_factory: pytest.TempPathFactory) -> Server:
    """A server whose template shows no tools: their text is longer than the model's context."""
    return server(tmp_path_factory.getbasetemp())


def tool(name: str, schema: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, "parameters": schema}}


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name.rpartition("/")[2]}}


def ask(server: Server, names: list[str], choice: Any = "required", **body: Any) -> Any:
    given = {
        "messages": USER,
        "tools": [tool(name.rpartition("/")[2], TOOLS[name]) for name in names],
        "tool_choice": choice,
        "max_tokens": 450,
    }
    given |= {"seed": 1, "close_grammar": True, "parallel_tool_calls": False, **body}
    return server.post("/v1/chat/completions", given)


def checked(answer: Any, source: str) -> str:
    """The name of the one function that is called, whose arguments are an object and satisfy its schema."""
    assert answer.status_code == 200, answer.text
    [choice] = answer.json()["choices"]
    assert choice["finish_reason"] == "tool_calls", choice
    [call] = choice["message"]["tool_calls"]
    name = f"{source}/{call['function']['name']}"
    arguments = json.loads(call["function"]["arguments"])
    assert isinstance(arguments, dict)
    jsonschema.validate(arguments, plain(TOOLS[name]))
    return name


def plain(schema: Any) -> Any:
    """The schema as the validator reads it: with draft 4's `exclusiveMinimum: true` in today's words."""
    if isinstance(schema, list):
        return [plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: plain(value) for key, value in schema.items()}
    if found.get("exclusiveMinimum") is True:
        found["exclusiveMinimum"] = found.pop("minimum")
    return found


def test_the_data_names_its_sources() -> None:
    assert len(FILES) > 10
    assert all(each["source"] and each["licence"] and each["tools"] for each in FILES.values())
    assert sum("$schema" in schema for schema in TOOLS.values()) > 100


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.slow) for name in FILES]
)
def test_one_of_a_servers_tools_is_called_with_valid_arguments(silent: Server, name: str) -> None:
    names = [each for each in TOOLS if each.startswith(f"{name}/")]
    assert checked(ask(silent, names[:16]), name) in names


@pytest.mark.slow
@pytest.mark.parametrize("source", FILES)
def test_the_schema_of_every_tool_is_held(source: str) -> None:
    compiler = Compiler(BYTES)
    for name in (name for name in TOOLS if name.startswith(f"{source}/")):
        tools = read_tools([tool("f", TOOLS[name])], "required", False, tool_format="hermes")
        asked = tools.constraint()
        assert asked is not None
        matcher = compiler.compile(asked).matcher()
        # Of all texts the quickest to write, optional members left out; an e-mail address is none that is found so.
        text = straight(matcher, StepBudget(20_000))
        assert text is not None or name.endswith(("person", "formats"))
        if text is not None:
            [call] = json.loads(text)
            jsonschema.validate(call["parameters"], plain(TOOLS[name]))
        for wrong in ('[{"name": "f", "parameters": 1', '[{"name": "f", "parameters": {"' + "\x00"):
            assert not completes(matcher, wrong.encode() + b"}]")


NESTED = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "$id": "https://example.org/order",
    "type": "object",
    "properties": {
        "size": {"$ref": "#/definitions/size"},
        "pair": {"type": "array", "items": [{"const": 1}, {"const": 2}], "additionalItems": False, "minItems": 2},
    },
    "required": ["size", "pair"],
    "additionalProperties": False,
    "definitions": {"size": {"enum": ["small", "large"]}},
}


@pytest.mark.parametrize("choice", ["required", "named", "strict"])
def test_a_schema_keeps_its_own_draft_and_references_wherever_it_is_put(silent: Server, choice: str) -> None:
    inside = {"type": "object", "properties": {"a": NESTED}, "required": ["a"], "additionalProperties": False}
    schemas = {"order": NESTED, "wrap": inside}
    for name, schema in schemas.items():
        body: dict[str, Any] = {"tools": [tool(name, schema)], "tool_choice": "required", "max_tokens": 120}
        if choice == "named":
            body["tool_choice"] = named(name)
        if choice == "strict":
            body["tools"][0]["function"]["strict"] = True
            body |= {"tool_choice": "auto", "max_tokens": 4}
        body = {
            "messages": USER,
            "seed": 1,
            "close_grammar": True,
            "stream": True,
            "parallel_tool_calls": False,
            **body,
        }
        answer = silent.post("/v1/chat/completions", body)
        assert answer.status_code == 200, answer.text
        text = "".join(map(arguments, answer.text.split("\n\n")))
        if choice != "strict":
            value = json.loads(text)
            jsonschema.validate(value["a"] if name == "wrap" else value, NESTED)


def arguments(event: str) -> str:
    """What an event of a stream adds to the arguments of a call."""
    if not event.startswith("data: {"):
        return ""
    choices = json.loads(event.removeprefix("data: "))["choices"]
    return "".join(call["function"]["arguments"] for one in choices for call in one["delta"].get("tool_calls", ()))
