"""The tools of a chat request: which ones the model may or must call, and the constraint that enforces it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from tirage.errors import GrammarError, ParamsError
from tirage.fields.rules import shown
from tirage.guided.json_schema.document import embedded
from tirage.guided.structural_tag import read_tags
from tirage.params import GuidedDecodingParams
from tirage.server.routes.call_readers import glm_reader, qwen_reader, read_deepseek, read_pythonic
from tirage.server.routes.tool_formats import CALLS_END, MARKERS, StrictTool, tool_tags
from tirage.server.routes.toolcalls import (
    ContentParser,
    HarmonyParser,
    JsonListParser,
    MarkerParser,
    NamedToolParser,
    ToolCallFactory,
    ToolCallParser,
    WholeTextParser,
    new_id,
    short_id,
)
from tirage.server.tool_call_parsers import TOOL_CALL_PARSERS, ToolCallFormat
from tirage.text.messages import check_tools

_PLACE = re.compile(
    r"^(?:schema at #(?:/items/anyOf/(\d+)/properties/parameters)?"
    r"|structural_tag at #/format.*/tags/(\d+)/content(?:/elements/1)?/json_schema)(?=[/ ])"
)
_SPACE = " ?"
"""Whitespace allowed inside calls: what models write there, and never so much that a model fills the text with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools that a request lets the model call.

    `mode` is "none", "auto" (the model decides), "required" (at least one of them) or "named" (the only one). A call
    that must come is written in `tool_format` if `formatted`, otherwise as JSON.
    """

    definitions: Sequence[Mapping[str, Any]] = ()
    mode: Literal["none", "auto", "required", "named"] = "none"
    parallel: bool = True
    tool_format: ToolCallFormat = "hermes"
    formatted: bool = False

    @property
    def keeps_format(self) -> bool:
        """Whether calls are written as the model writes calls of its own choice."""
        return self.mode == "auto" or (self.formatted and self.mode in {"required", "named"})

    @property
    def shown(self) -> Sequence[Mapping[str, Any]] | None:
        """The tools that the chat template gets; None when the model must not call any."""
        return None if self.mode == "none" else self.definitions

    @property
    def names(self) -> list[str]:
        """The functions' names."""
        return [tool["function"]["name"] for tool in self.definitions]

    @property
    def markers(self) -> Sequence[str]:
        """What the model writes around calls of its own choice."""
        return MARKERS[self.tool_format] if self.keeps_format else ()

    def constraint(self) -> GuidedDecodingParams | None:
        """What the text must be: arguments of the named tool, a list of calls, or calls in the model's own format."""
        if self.keeps_format and (self.mode != "auto" or any(is_strict(tool) for tool in self.definitions)):
            tags = json.dumps(self._tags(), ensure_ascii=False)
            # Its messages hold the reasoning, too.
            whole = self.tool_format == "harmony"
            return GuidedDecodingParams(structural_tag=tags, whitespace_pattern=_SPACE, enable_in_reasoning=whole)
        if self.mode == "named":
            return GuidedDecodingParams(json=parameters(self.definitions[0]), whitespace_pattern=_SPACE)
        if self.mode == "required":
            schema = list_schema(self.definitions, parallel=self.parallel)
            return GuidedDecodingParams(json=schema, whitespace_pattern=_SPACE)
        return None

    def reworded(self, message: str) -> str:
        """An error message about the constraint, as one about the parameters of the function at fault."""
        found = _PLACE.search(message)
        if self.mode == "none" or found is None:
            return message
        index = int(found[1] or found[2] or 0)
        rest = message[found.end() :].rpartition(": schema at #")[2] if found[2] else message[found.end() :]
        if "$ref" in parameters(self.definitions[index]) and "allOf" not in parameters(self.definitions[index]):
            rest = rest.removeprefix("/allOf/0")
        return f"parameters of the function {self.names[index]!r} at #{rest}"

    def parser(self, *, separate: bool = False) -> ToolCallParser:
        """A parser for one message; in Harmony's, with `separate`, it tells the reasoning too."""
        if self.mode == "none" and not separate:
            return ContentParser()
        ids = short_id if self.tool_format in {"mistral", "mistral_args"} else new_id
        calls = ToolCallFactory(self.names, parallel=self.parallel, new_id=ids)
        if self.mode == "named" and not self.formatted:
            return NamedToolParser(calls, self.names[0])
        if self.mode == "required" and not self.formatted:
            return JsonListParser(calls)
        if self.tool_format == "harmony":
            return HarmonyParser(calls, separate=separate)
        return marked_parser(self.tool_format, calls, self.definitions)

    def fits_format(self) -> bool:
        """Whether the format can hold the arguments of calls that must come."""
        try:
            read_tags(json.dumps(self._tags(), ensure_ascii=False), closed=False)
        except GrammarError:
            return False
        return True

    def _tags(self) -> dict[str, Any]:
        """Calls in the model's format; the arguments of strict tools, and those that must come, keep their schemas."""
        required = self.mode != "auto"
        tools = [
            StrictTool(name=tool["function"]["name"], schema=parameters(tool) if required or is_strict(tool) else None)
            for tool in self.definitions
        ]
        parallel = self.parallel and self.mode != "named"
        return tool_tags(self.tool_format, tools, parallel=parallel, required=required)


def marked_parser(
    tool_format: ToolCallFormat, calls: ToolCallFactory, definitions: Sequence[Mapping[str, Any]]
) -> ToolCallParser:
    """A parser for a message in which the model may have written calls by itself."""
    begin = MARKERS[tool_format][0]
    match tool_format:
        case "mistral" | "mistral_args":
            return MarkerParser(calls, begin, None)
        case "llama3":
            return WholeTextParser(calls, "{", begin)
        case "pythonic":
            return WholeTextParser(calls, "[", begin, end="<|python_end|>", read=read_pythonic)
        case "qwen_xml" | "glm45":
            reader = (qwen_reader if tool_format == "qwen_xml" else glm_reader)(definitions)
            return MarkerParser(calls, begin, "</tool_call>", read=reader, find_end=reader.end_of)
        case "deepseek_v3" | "deepseek_v31":
            return MarkerParser(calls, begin, CALLS_END, read=read_deepseek)
    return MarkerParser(calls, begin, "</tool_call>")


def read_tools(
    tools: Any, choice: Any, parallel: Any, *, tool_format: ToolCallFormat, formatted: bool = False
) -> Tools:
    """The tools in a request's `tools`, `tool_choice` and `parallel_tool_calls`; raises ParamsError for wrong ones.

    Calls that must come are written in the format if `formatted` and it can hold their schemas, otherwise as JSON.
    """
    definitions = check_tools(tools) or []
    if not isinstance(parallel, (bool, type(None))):
        raise ParamsError(f"parallel_tool_calls must be a bool, got {parallel!r:.40}")
    if not definitions:
        # SGLang's clients send its default, "auto", with every request.
        if not (choice is None or choice in ("none", "auto")):
            raise ParamsError(f"tool_choice must go with tools, got {choice!r:.80} without any; leave it out")
        return Tools(tool_format=tool_format)
    mode, names = read_choice(choice)
    unknown = next((name for name in names or () if name not in names_of(definitions)), None)
    if unknown is not None:
        raise ParamsError(f"tool_choice must name one of the tools, got {unknown!r:.80}")
    check_parameters(definitions)
    chosen = [tool for tool in definitions if names is None or tool["function"]["name"] in names]
    found = Tools(definitions=chosen, mode=mode, parallel=parallel is not False, tool_format=tool_format)
    return replace(found, formatted=True) if formatted and found.fits_format() else found


def check_parameters(definitions: Sequence[Mapping[str, Any]]) -> None:
    """ParamsError for a function whose arguments would be no object."""
    for index, tool in enumerate(definitions):
        kind = parameters(tool).get("type", "object")
        if kind != "object":
            rule = 'must have the type "object", which arguments are'
            raise ParamsError(f"tools[{index}].function.parameters {rule}, got {shown(kind)}; change the type")


def read_choice(choice: Any) -> tuple[Literal["none", "auto", "required", "named"], list[str] | None]:
    """The mode of a `tool_choice`, and the names it allows, None for all; raises ParamsError for any other value."""
    match choice:
        case None | "auto":
            return "auto", None
        case "none" | "required":
            return choice, None
        case {"type": "function", "function": {"name": str(name)}}:
            return "named", [name]
        case {
            "type": "allowed_tools",
            "allowed_tools": {"mode": "auto" | "required" as mode, "tools": [_, *_] as tools},
        }:
            return mode, [allowed_name(tool) for tool in tools]
    raise ParamsError(
        'tool_choice must be "none", "auto", "required" or {"type": "function", "function": {"name": ...}}, '
        f"got {choice!r:.80}"
    )


def allowed_name(tool: Any) -> str:
    """The name in an entry of `allowed_tools`; raises ParamsError for any other value."""
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    raise ParamsError(f'tool_choice must allow tools of the form {{"type": "function", ...}}, got {tool!r:.80}')


def names_of(definitions: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names of the functions."""
    return [tool["function"]["name"] for tool in definitions]


def is_strict(tool: Mapping[str, Any]) -> bool:
    """Whether arguments must satisfy the schema even when the model itself decides to call."""
    return tool["function"].get("strict") is True


def parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments, always an object; a function without parameters takes no arguments."""
    schema = tool["function"].get("parameters")
    if schema is None:
        schema = {"properties": {}, "additionalProperties": False}
    return schema if "$ref" in schema else {"type": "object", **schema}


def list_schema(definitions: Sequence[Mapping[str, Any]], *, parallel: bool) -> dict[str, Any]:
    """The schema of a list of calls, `[{"name": ..., "parameters": ...}]`."""
    calls = []
    for index, tool in enumerate(definitions):
        own = embedded(parameters(tool), f"tool:{index}")
        properties = {"name": {"const": tool["function"]["name"]}, "parameters": own}
        calls.append({
            "type": "object",
            "properties": properties,
            "required": ["name", "parameters"],
            "additionalProperties": False,
        })
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    return schema if parallel else {**schema, "maxItems": 1}


_SIGNS: Sequence[tuple[ToolCallFormat, tuple[str, ...]]] = (
    ("harmony", ("<|channel|>", "tools")),
    ("deepseek_v3", ("<｜tool▁calls▁begin｜>", "```json", "tools")),
    ("deepseek_v31", ("<｜tool▁calls▁begin｜>", "tools")),
    ("qwen_xml", ("<function=", "<parameter=", "tools")),
    ("glm45", ("<arg_key>", "tools")),
    ("hermes", ("<tool_call>",)),
    ("mistral_args", ("[TOOL_CALLS]", "[ARGS]", "tools")),
    ("mistral", ("[TOOL_CALLS]", "tools")),
    ("pythonic", ("func_name1(", "tools")),
    ("pythonic", ("<|python_start|>", "tools")),
    ("llama3", ("<|python_tag|>", "tools")),
    ("llama3", ("<|start_header_id|>", "tools")),
)
"""What a chat template holds for a format; the first that fits counts."""


def tool_call_format(template: str, parser: str | None = None) -> ToolCallFormat:
    """The format in which a model writes its tool calls: that of a parser, or what its chat template shows."""
    if parser is not None:
        return TOOL_CALL_PARSERS[parser]
    found: list[ToolCallFormat] = [name for name, signs in _SIGNS if all(sign in template for sign in signs)]
    return found[0] if found else "hermes"
