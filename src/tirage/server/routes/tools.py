"""Tools of a chat request: which ones the model may or must call, and the constraint that makes it."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from tirage.errors import ParamsError
from tirage.fields.rules import shown
from tirage.params import GuidedDecodingParams
from tirage.server.routes.toolcalls import (
    Calls,
    Listed,
    Marked,
    Named,
    PlainText,
    ToolCallParser,
    Whole,
    new_id,
    short_id,
)
from tirage.text.messages import check_tools

Form = Literal["hermes", "mistral", "llama3"]
MARKS: Mapping[Form, str] = {"hermes": "<tool_call>", "mistral": "[TOOL_CALLS]", "llama3": "<|python_tag|>"}
_END = "</tool_call>"
_PLACE = re.compile(
    r"^(?:schema at #(?:/items/anyOf/(\d+)/properties/parameters)?"
    r"|structural_tag at #/format/tags/(\d+)/content/json_schema)(?=[/ ])"
)
_SPACE = " ?"
"""Whitespace inside calls: what models write there, and no room to ramble."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools that a request lets the model call.

    `mode` is "none", "auto" (the model decides), "required" (at least one of them) or "named" (the only one).
    """

    definitions: Sequence[Mapping[str, Any]] = ()
    mode: Literal["none", "auto", "required", "named"] = "none"
    parallel: bool = True
    form: Form = "hermes"

    @property
    def shown(self) -> Sequence[Mapping[str, Any]] | None:
        """What the chat template is told; nothing when nothing may be called."""
        return None if self.mode == "none" else self.definitions

    @property
    def names(self) -> list[str]:
        """The functions' names."""
        return [tool["function"]["name"] for tool in self.definitions]

    @property
    def mark(self) -> str | None:
        """What the text holds before a call that the model makes by itself."""
        return MARKS[self.form] if self.mode == "auto" else None

    def constraint(self) -> GuidedDecodingParams | None:
        """What the text must be: the arguments of the named one, a list of calls, or strict calls inside free text."""
        if self.mode == "named":
            return GuidedDecodingParams(json=parameters(self.definitions[0]), whitespace_pattern=_SPACE)
        if self.mode == "required":
            schema = list_schema(self.definitions, parallel=self.parallel)
            return GuidedDecodingParams(json=schema, whitespace_pattern=_SPACE)
        if self.mode == "auto" and any(is_strict(tool) for tool in self.definitions):
            tags = json.dumps(self._tags(), ensure_ascii=False)
            return GuidedDecodingParams(structural_tag=tags, whitespace_pattern=_SPACE)
        return None

    def worded(self, message: str) -> str:
        """What is said of the constraint, said of the schema of a function's parameters."""
        found = _PLACE.search(message)
        if self.mode == "none" or found is None:
            return message
        index = int(found[1] or found[2] or 0)
        rest = message[found.end() :].rpartition(": schema at #")[2] if found[2] else message[found.end() :]
        return f"parameters of the function {self.names[index]!r} at #{rest}"

    def parser(self) -> ToolCallParser:
        """A parser for one message."""
        if self.mode == "none":
            return PlainText()
        ids = short_id if self.form == "mistral" else new_id
        calls = Calls(self.names, parallel=self.parallel, new_id=ids)
        if self.mode == "named":
            return Named(calls, self.names[0])
        if self.mode == "required":
            return Listed(calls)
        if self.form == "llama3":
            return Whole(calls, MARKS["llama3"])
        return Marked(calls, MARKS[self.form], _END if self.form == "hermes" else None)

    def _tags(self) -> dict[str, Any]:
        """Free text in which whatever follows the mark of a call is a call; strict ones keep their schemas."""
        if self.form != "hermes":
            raise ParamsError(
                f"tools must not be strict with tool_choice 'auto' for a model of the form {self.form}, got "
                f"strict=True; name the function in tool_choice, or leave strict out"
            )
        structures = [
            {
                "begin": f'{MARKS["hermes"]}\n{{"name": {json.dumps(tool["function"]["name"])}, "arguments": ',
                "schema": parameters(tool) if is_strict(tool) else {"type": "object"},
                "end": "}\n" + _END,
            }
            for tool in self.definitions
        ]
        return {"type": "structural_tag", "structures": structures, "triggers": [MARKS["hermes"]]}


def read_tools(tools: Any, choice: Any, parallel: Any, *, form: Form) -> Tools:
    """The tools of a request's `tools`, `tool_choice` and `parallel_tool_calls`; ParamsError for what is not right."""
    definitions = check_tools(tools) or []
    if not isinstance(parallel, (bool, type(None))):
        raise ParamsError(f"parallel_tool_calls must be a bool, got {parallel!r:.40}")
    if not definitions:
        # SGLang's clients send its default, "auto", with every request.
        if not (choice is None or choice in ("none", "auto")):
            raise ParamsError(f"tool_choice must go with tools, got {choice!r:.80} without any; leave it out")
        return Tools(form=form)
    mode, names = read_choice(choice)
    unknown = next((name for name in names or () if name not in names_of(definitions)), None)
    if unknown is not None:
        raise ParamsError(f"tool_choice must name one of the tools, got {unknown!r:.80}")
    check_parameters(definitions)
    chosen = [tool for tool in definitions if names is None or tool["function"]["name"] in names]
    return Tools(definitions=chosen, mode=mode, parallel=parallel is not False, form=form)


def check_parameters(definitions: Sequence[Mapping[str, Any]]) -> None:
    """ParamsError for a function whose arguments would be no object."""
    for index, tool in enumerate(definitions):
        kind = parameters(tool).get("type", "object")
        if kind != "object":
            rule = 'must have the type "object", which arguments are'
            raise ParamsError(f"tools[{index}].function.parameters {rule}, got {shown(kind)}; change the type")


def read_choice(choice: Any) -> tuple[Literal["none", "auto", "required", "named"], list[str] | None]:
    """The mode of a `tool_choice`, and the names that it is limited to."""
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
    """The name in an entry of `allowed_tools`."""
    match tool:
        case {"type": "function", "function": {"name": str(name)}}:
            return name
    raise ParamsError(f'tool_choice must allow tools of the form {{"type": "function", ...}}, got {tool!r:.80}')


def names_of(definitions: Sequence[Mapping[str, Any]]) -> list[str]:
    return [tool["function"]["name"] for tool in definitions]


def is_strict(tool: Mapping[str, Any]) -> bool:
    """Whether arguments must satisfy the schema even where the model decides to call."""
    return tool["function"].get("strict") is True


def parameters(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a function's arguments, always an object's; a function that declares none takes none."""
    schema = tool["function"].get("parameters") or {"properties": {}, "additionalProperties": False}
    return schema if "$ref" in schema else {"type": "object", **schema}


def list_schema(definitions: Sequence[Mapping[str, Any]], *, parallel: bool) -> dict[str, Any]:
    """The schema of a list of calls, `[{"name": ..., "parameters": ...}]`."""
    calls = []
    for index, tool in enumerate(definitions):
        # A document of its own inside ours: its references start from it, and it may be of another draft.
        own = {**parameters(tool), "$id": f"tool:{index}"}
        properties = {"name": {"const": tool["function"]["name"]}, "parameters": own}
        calls.append({
            "type": "object",
            "properties": properties,
            "required": ["name", "parameters"],
            "additionalProperties": False,
        })
    schema: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
    return schema if parallel else {**schema, "maxItems": 1}


def form_of(template: str) -> Form:
    """How a model whose chat template this is writes its calls."""
    if MARKS["hermes"] in template or "tools" not in template:
        return "hermes"
    if MARKS["mistral"] in template:
        return "mistral"
    return "llama3" if MARKS["llama3"] in template or "<|start_header_id|>" in template else "hermes"
