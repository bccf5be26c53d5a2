"""Tools and choices of them in Anthropic's form, as those of a chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tirage.server.routes.messages_conversion import refused
from tirage.text.messages import NAME

_MEMBERS = frozenset({
    *("name", "type", "description", "input_schema", "strict", "input_examples", "cache_control"),
    *("defer_loading", "eager_input_streaming", "allowed_callers"),
})
_ORDER = ("name", "description", "parameters", "strict")
"""How the members of a function are ordered for chat templates, which show them so; as those of the other routes."""
_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(tools: Any) -> list[dict[str, Any]] | None:
    """The functions of a chat for a list of tools; None for none. Raises DialectError for a wrong one."""
    if tools is None:
        return None
    if not isinstance(tools, list):
        raise refused("tools", "a list", tools, remedy="leave it out")
    return [chat_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)] or None


def chat_tool(tool: Any, place: str) -> dict[str, Any]:
    """The function of a chat for one tool; raises DialectError for one that is not the client's own."""
    if not isinstance(tool, Mapping):
        raise refused(place, "an object", tool, remedy="leave it out")
    if tool.get("type") not in (None, "custom"):
        rule = "custom or left out, this server runs no tools and knows none by name"
        raise refused(f"{place}.type", rule, tool["type"], remedy="describe it with name and input_schema")
    for name, value in tool.items():
        if name not in _MEMBERS and value is not None:
            raise refused(
                f"{place}.{name!s:.60}", "left out, tools have no such member here", value, remedy="leave it out"
            )
    found = {**described(tool, place), "parameters": schema_of(tool, place)}
    return {"type": "function", "function": {name: found[name] for name in _ORDER if name in found}}


def described(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    """Name, description and `strict` of a tool; raises DialectError for wrong ones."""
    name, found = tool.get("name"), {}
    if not isinstance(name, str) or not NAME.fullmatch(name):
        raise refused(f"{place}.name", "1 to 64 of a-z, A-Z, 0-9, '_', '-' and '.'", name, remedy="rename it")
    for member, kind, rule in (("description", str, "a text"), ("strict", bool, "true or false")):
        value = tool.get(member)
        if value is not None and not isinstance(value, kind):
            raise refused(f"{place}.{member}", rule, value, remedy="leave it out")
        found |= {} if value is None else {member: value}
    for member in ("defer_loading", "eager_input_streaming"):
        if not isinstance(tool.get(member), (bool, type(None))):
            raise refused(f"{place}.{member}", "true or false", tool[member], remedy="leave it out")
    if tool.get("allowed_callers") not in (None, ["direct"]):
        rule = '["direct"], as nothing but the model calls tools here'
        raise refused(f"{place}.allowed_callers", rule, tool["allowed_callers"], remedy="leave it out")
    return {"name": name, **found}


def schema_of(tool: Mapping[str, Any], place: str) -> dict[str, Any]:
    """The schema of a tool's input, with its examples; raises DialectError for wrong ones."""
    schema, examples = tool.get("input_schema"), tool.get("input_examples")
    if not isinstance(schema, dict):
        raise refused(f"{place}.input_schema", "a JSON schema", schema, remedy='send {"type": "object"} for any input')
    if examples is None:
        return schema
    if not isinstance(examples, list) or not all(isinstance(each, dict) for each in examples):
        raise refused(f"{place}.input_examples", "a list of objects", examples, remedy="leave it out")
    return {**schema, "examples": examples}


def chat_tool_choice(choice: Any) -> tuple[Any, bool | None]:
    """A chat's `tool_choice` and `parallel_tool_calls`; raises DialectError for any other value."""
    if choice is None:
        return None, None
    kind = str(choice.get("type")) if isinstance(choice, Mapping) else ""
    known = {"type", "disable_parallel_tool_use"} | ({"name"} if kind == "tool" else set())
    is_named = kind == "tool" and isinstance(choice.get("name"), str)
    if not isinstance(choice, Mapping) or not (is_named or kind in _CHOICES) or not known >= set(choice):
        rule = 'an object of type "auto", "any" or "none", or of type "tool" with a name'
        raise refused("tool_choice", rule, choice, remedy="leave it out for auto")
    alone = choice.get("disable_parallel_tool_use")
    if not isinstance(alone, (bool, type(None))):
        raise refused("tool_choice.disable_parallel_tool_use", "true or false", alone, remedy="leave it out")
    named = {"type": "function", "function": {"name": choice.get("name")}}
    return named if is_named else _CHOICES[kind], None if alone is None else not alone
