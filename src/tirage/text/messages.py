"""Validation of chat messages and tools in OpenAI's form, and their preparation for templates."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tirage.errors import ParamsError
from tirage.text.tokenizer import check_unicode

Message = Mapping[str, Any]
NAME = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
MOST_TOOLS = 128
OTHER_OUTPUTS = ("function_call", "audio")
"""Fields of OpenAI's assistant messages that no template renders; `tool_calls` has replaced the first."""


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages, validated and prepared for a template.

    A message has a text `role` and a `content`: a text, a list of parts, or None if it has `tool_calls`. If all parts
    are text, they become one text with a line each. The arguments of tool calls, JSON text on the wire, become the
    objects that templates expect; text that is not JSON stays text. Raises ParamsError that names the message at fault.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ParamsError(
            "messages must be a non-empty list of {'role': ..., 'content': ...}, "
            f"got {type(messages).__name__} {messages!r:.60}"
        )
    return [check_message(message, f"messages[{index}]") for index, message in enumerate(messages)]


def check_message(message: Any, path: str) -> dict[str, Any]:
    """A copy of one message, validated and prepared; ParamsError if it is malformed."""
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str):
        raise ParamsError(f"{path} must have a text 'role', got {message!r:.80}")
    for name in OTHER_OUTPUTS:
        if message.get(name) is not None:
            raise ParamsError(f"{path}.{name} must be left out, no template shows it, got {message[name]!r:.80}")
    for text in strings(message):
        check_unicode(text)
    ready = {**message, "content": check_content(message, path)}
    if message.get("tool_calls") is not None:
        ready["tool_calls"] = check_calls(message["tool_calls"], f"{path}.tool_calls")
    else:
        ready.pop("tool_calls", None)
    return ready


def check_content(message: Message, path: str) -> str | list[Any] | None:
    """The content of a message as a template takes it; ParamsError if it is malformed."""
    content = message.get("content")
    if isinstance(content, str) or (content is None and message.get("tool_calls")):
        return content
    if not isinstance(content, (list, tuple)) or not content:
        raise ParamsError(f"{path} must have a text 'content' or a list of parts, got {content!r:.80}")
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if not isinstance(kind, str):
            raise ParamsError(f"{path}.content[{index}] must be a part with a text 'type', got {part!r:.80}")
        if kind == "text" and not isinstance(part.get("text"), str):
            raise ParamsError(f"{path}.content[{index}] must have a text 'text', got {part!r:.80}")
    if all(part["type"] == "text" for part in content):
        return "\n".join(part["text"] for part in content)
    return [dict(part) for part in content]


def check_calls(calls: Any, path: str) -> list[dict[str, Any]]:
    """Earlier tool calls, with arguments that are JSON as objects; ParamsError if one is malformed."""
    if not isinstance(calls, (list, tuple)):
        raise ParamsError(f"{path} must be a list, got {type(calls).__name__}")
    ready = []
    for index, call in enumerate(calls):
        function = call.get("function") if isinstance(call, Mapping) else None
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(function, Mapping) or not isinstance(name, str) or not NAME.fullmatch(name):
            raise ParamsError(f"{path}[{index}] must have a function with a name, got {call!r:.80}")
        arguments = read_arguments(function.get("arguments", "{}"))
        ready.append({**call, "function": {**function, "arguments": arguments}})
    return ready


def read_arguments(arguments: Any) -> Any:
    """The object that a JSON text holds; anything else unchanged."""
    if not isinstance(arguments, str):
        return arguments
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    return value if isinstance(value, dict) else arguments


def check_tools(tools: Any) -> list[dict[str, Any]] | None:
    """Copies of the function definitions; None for none. Raises ParamsError that names the tool at fault."""
    if tools is None:
        return None
    if not isinstance(tools, (list, tuple)) or len(tools) > MOST_TOOLS:
        got = f"{len(tools)}" if isinstance(tools, (list, tuple)) else type(tools).__name__
        raise ParamsError(f"tools must be a list of at most {MOST_TOOLS} functions, got {got}")
    checked = [check_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools)]
    names = [tool["function"]["name"] for tool in checked]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ParamsError(f"tools must have different names, got {twice!r} twice")
    return checked or None


def check_tool(tool: Any, path: str) -> dict[str, Any]:
    """A copy of one function definition; ParamsError if it is malformed."""
    kind = tool.get("type") if isinstance(tool, Mapping) else None
    if kind != "function":
        raise ParamsError(f"{path}.type must be 'function', got {kind!r:.40}")
    function = tool.get("function")
    name = function.get("name") if isinstance(function, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(name, str) or not NAME.fullmatch(name):
        raise ParamsError(f"{path}.function.name must be 1 to 64 of a-z, A-Z, 0-9, '_', '-' and '.', got {name!r:.80}")
    for key, kinds, rule in (("description", str, "a text"), ("parameters", Mapping, "a JSON schema")):
        value = function.get(key)
        if value is not None and not isinstance(value, kinds):
            raise ParamsError(f"{path}.function.{key} must be {rule}, got {type(value).__name__}")
    if not isinstance(function.get("strict"), (bool, type(None))):
        raise ParamsError(f"{path}.function.strict must be a bool, got {function['strict']!r:.40}")
    for text in strings(tool):
        check_unicode(text)
    return {"type": "function", "function": dict(function)}


def strings(value: Any) -> Iterator[str]:
    """Every string inside nested data, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from strings(key)
            yield from strings(inner)
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from strings(inner)
