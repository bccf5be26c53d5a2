"""The tools of `/v1/responses`, which are flat, as chat completions have them, and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tirage.dialects import DialectError
from tirage.errors import nearest
from tirage.fields.rules import shown

_MEMBERS = ("name", "description", "parameters", "strict")
_INERT: Mapping[str, Any] = {"defer_loading": False, "async": False, "allowed_callers": ["direct"]}
"""Members of a function that are taken at these values only."""


def chat_tools(tools: Any) -> list[dict[str, Any]] | None:
    """The functions in the form of chat completions; raises DialectError for tools of another type."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise DialectError(f"tools must be a list of functions, got {shown(tools)}", "tools")
    return [chat_tool(f"tools[{index}]", tool) for index, tool in enumerate(tools)]


def chat_tool(place: str, tool: Any) -> dict[str, Any]:
    """One function, as `chat_tools` has it; what stands in it is checked where chat completions check it.

    Raises DialectError for a tool of another type, and for members that have no part here.
    """
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind != "function":
        rule = f'{place}.type must be "function": this server runs no tool itself'
        raise DialectError(f"{rule}, got {shown(kind)}; send a function", f"{place}.type")
    for name, value in tool.items():
        if name in ("type", *_MEMBERS) or value is None or value == _INERT.get(name, ...):
            continue
        if name in _INERT:
            rule = f"{place}.{name} must be {shown(_INERT[name])} or left out"
            raise DialectError(f"{rule}, got {shown(value)}", f"{place}.{name}")
        hint = nearest(str(name), _MEMBERS) or "; leave it out"
        raise DialectError(f"{place} must hold known members, got {shown(name)}{hint}", f"{place}.{name}")
    return {"type": "function", "function": {name: tool[name] for name in _MEMBERS if tool.get(name) is not None}}


def chat_choice(choice: Any) -> Any:
    """A `tool_choice` in the form of chat completions; raises DialectError for any other value."""
    match choice:
        case None | "none" | "auto" | "required":
            return choice
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
        case {"type": "allowed_tools", "mode": "auto" | "required" as mode, "tools": [_, *_] as tools}:
            return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": [*map(allowed_function, tools)]}}
    forms = '"none", "auto", "required", {"type": "function", "name": ...} or {"type": "allowed_tools", ...}'
    raise DialectError(f"tool_choice must be {forms}, got {shown(choice)}", "tool_choice")


def allowed_function(tool: Any) -> dict[str, Any]:
    """An entry of `allowed_tools` in the form of chat completions; raises DialectError for any other value."""
    match tool:
        case {"type": "function", "name": str(name)}:
            return {"type": "function", "function": {"name": name}}
    rule = 'tool_choice.tools must be functions, {"type": "function", "name": ...}'
    raise DialectError(f"{rule}, got {shown(tool)}", "tool_choice")


def shown_tools(definitions: Sequence[Mapping[str, Any]] | None) -> list[dict[str, Any]]:
    """Functions in the form of a response, with what they have left out."""
    return [
        {
            "type": "function",
            "name": tool["function"]["name"],
            "description": tool["function"].get("description"),
            "parameters": tool["function"].get("parameters"),
            "strict": tool["function"].get("strict") is True,
        }
        for tool in definitions or ()
    ]
