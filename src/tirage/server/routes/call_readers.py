"""Readers of the calls in a text, in the formats that are not JSON as a whole.

A reader gives the (name, arguments as JSON text) of every call in a text of calls alone, and an empty list for any
other text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tirage.guided.tagged_arguments import is_text_in
from tirage.server.routes.call_json import arguments_of, read_text, read_value
from tirage.server.routes.tool_formats import CALL_BEGIN, CALL_END, CALL_SEP

Calls = list[tuple[str, str]]
_FENCE = "\n```"
_QWEN_CALL = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_QWEN_ARGUMENT = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)
_GLM_CALL = re.compile(r"\s*([^\s<]+)\s*((?:<arg_key>.*)?)", re.DOTALL)
_GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>(.*?)</arg_value>", re.DOTALL)
_NAMES = {"true": True, "false": False, "null": None}


class TaggedReader:
    """Reads a call whose arguments stand between tags: text for what its function takes as text, otherwise JSON."""

    def __init__(
        self, call: re.Pattern[str], argument: re.Pattern[str], definitions: Sequence[Mapping[str, Any]]
    ) -> None:
        self._call, self._argument = call, argument
        self._schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in definitions}

    def __call__(self, text: str) -> Calls:
        found = self._call.fullmatch(text)
        if found is None:
            return []
        schema = self._schemas.get(found[1], {})
        arguments = arguments_of({
            name: self._value(schema, name, value) for name, value in self._argument.findall(found[2])
        })
        return [] if arguments is None else [(found[1], arguments)]

    def _value(self, schema: Any, name: str, text: str) -> Any:
        if is_text_in(schema, name):
            return text
        try:
            return read_text(text)
        except ValueError:
            return text


def qwen_reader(definitions: Sequence[Mapping[str, Any]]) -> TaggedReader:
    """The reader of Qwen's XML calls of these functions."""
    return TaggedReader(_QWEN_CALL, _QWEN_ARGUMENT, definitions)


def glm_reader(definitions: Sequence[Mapping[str, Any]]) -> TaggedReader:
    """The reader of GLM's calls of these functions."""
    return TaggedReader(_GLM_CALL, _GLM_ARGUMENT, definitions)


def read_deepseek(text: str) -> Calls:
    """The calls between DeepSeek's marks, of version 3 or 3.1."""
    found: Calls = []
    at = 0
    while (begin := text.find(CALL_BEGIN, at)) >= 0:
        head, mark, rest = text[begin + len(CALL_BEGIN) :].partition(CALL_SEP)
        name, fence, block = rest.partition("\n```json\n") if head == "function" else (head, "", rest)
        start = len(text) - len(block)
        try:
            value, end = read_value(text, skipped(text, start))
        except ValueError:
            return []
        last = (_FENCE if fence else "") + CALL_END
        end = skipped(text, end) if not fence else end
        arguments = arguments_of(value) if isinstance(value, dict) else None
        if not mark or arguments is None or not text.startswith(last, end):
            return []
        found.append((name.strip(), arguments))
        at = end + len(last)
    return found if not text[at:].strip() else []


def skipped(text: str, at: int) -> int:
    """Where the text goes on after space."""
    return at + len(text[at:]) - len(text[at:].lstrip(" \n\t\r"))


def read_pythonic(text: str) -> Calls:
    """The calls of a list of calls in Python, with keyword arguments that are constants."""
    try:
        node = ast.parse(text.strip(), mode="eval").body
        listed = node.elts if isinstance(node, ast.List) else []
        return [python_call(one) for one in listed]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def python_call(node: ast.expr) -> tuple[str, str]:
    """One call; ValueError for anything else."""
    if not isinstance(node, ast.Call) or node.args or any(each.arg is None for each in node.keywords):
        raise ValueError("not a call with keyword arguments")
    arguments = arguments_of({str(each.arg): python_value(each.value) for each in node.keywords})
    if arguments is None:
        raise ValueError("not the arguments of a call")
    return ".".join(parts_of(node.func)), arguments


def parts_of(node: ast.expr) -> Iterator[str]:
    """The parts of a dotted name; ValueError for another expression."""
    if isinstance(node, ast.Attribute):
        yield from parts_of(node.value)
        yield node.attr
    elif isinstance(node, ast.Name):
        yield node.id
    else:
        raise ValueError("not a name")


def python_value(node: ast.expr) -> Any:
    """The value of a constant in Python or in JSON; ValueError for another expression."""
    match node:
        case ast.Constant(value=str() | int() | float() | bool() | None as value):
            return value
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as value)):
            return -value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [python_value(part) for part in parts]
        case ast.Dict(keys=keys, values=values):
            return {python_key(key): python_value(value) for key, value in zip(keys, values, strict=True)}
    raise ValueError("not a constant")


def python_key(node: ast.expr | None) -> str:
    """The key of an object; ValueError for one that is no text."""
    key = None if node is None else python_value(node)
    if not isinstance(key, str):
        raise ValueError("not a text")
    return key
