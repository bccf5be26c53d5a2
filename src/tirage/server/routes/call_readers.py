"""Readers of the calls in a text, in the formats that are not JSON as a whole.

A reader gives the (name, arguments as JSON text) of every call in a text of calls alone, and an empty list for any
other text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tirage.guided.tagged_arguments import STYLES, is_text_in
from tirage.server.routes.call_json import arguments_of, read_text, read_value
from tirage.server.routes.tool_formats import CALL_BEGIN, CALL_END, CALL_SEP
from tirage.server.routes.toolcalls import is_in_string

Calls = list[tuple[str, str]]
_FENCE = "\n```"
_QWEN_CALL = re.compile(r"\s*<function=([^>\n]+)>(.*)</function>\s*", re.DOTALL)
_QWEN_NAME = re.compile(r"\s*<function=([^>\n]+)>")
_QWEN_ARGUMENT = re.compile(r"<parameter=([^>\n]+)>\n?")
_GLM_CALL = re.compile(r"\s*([^\s<]+)\s*((?:<arg_key>.*)?)", re.DOTALL)
_GLM_NAME = re.compile(r"\s*([^\s<]+)")
_GLM_ARGUMENT = re.compile(r"<arg_key>(.*?)</arg_key>\s*<arg_value>", re.DOTALL)
_NAMES = {"true": True, "false": False, "null": None}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaggedForm:
    """How calls are written whose arguments stand between tags.

    `call` finds the name and the arguments of a whole call, `name` the name at its beginning, and `argument` the name
    of an argument before its value. After the value come `end` and the tag that ends it, the first of the `marks`; none
    of them stands in a value that is not quoted.
    """

    call: re.Pattern[str]
    name: re.Pattern[str]
    argument: re.Pattern[str]
    marks: Sequence[str]
    end: str = ""


class TaggedReader:
    """Reads a call whose arguments stand between tags: text for what its function takes as text, otherwise JSON."""

    def __init__(self, form: TaggedForm, definitions: Sequence[Mapping[str, Any]]) -> None:
        self._form, self._mark = form, re.compile("|".join(map(re.escape, form.marks)))
        self._schemas = {tool["function"]["name"]: tool["function"].get("parameters") or {} for tool in definitions}
        self._are_texts: dict[tuple[str, str], bool] = {}

    def __call__(self, text: str) -> Calls:
        found = self._form.call.fullmatch(text)
        if found is None:
            return []
        arguments = arguments_of(dict(self._arguments(found[1], found[2])))
        return [] if arguments is None else [(found[1], arguments)]

    def end_of(self, text: str, mark: str, *, last: bool) -> int:
        """Where the mark that ends a call stands outside its values, -1 if it has not come.

        A value that never ends hides no mark: one with a mark that no value has, and, in the `last` text, any other.
        """
        end, at, named = text.find(mark), 0, self._form.name.match(text)
        while end >= 0 and (begin := self._form.argument.search(text, at)) and begin.end() <= end:
            found = self._value_end(named[1] if named else "", begin, text)
            if found is None and not last:
                return -1
            is_closed = found is not None and found[0] == self._form.marks[0]
            at = found.end() if found is not None and is_closed else begin.end()
            end = end if at <= end else text.find(mark, at)
        return end

    def _arguments(self, function: str, text: str) -> Iterator[tuple[str, Any]]:
        """The names and values of the arguments in a text of arguments."""
        at, tag = 0, self._form.marks[0]
        while begin := self._form.argument.search(text, at):
            found = self._value_end(function, begin, text)
            end = found.start() if found is not None and found[0] == tag else text.find(tag, begin.end())
            if end < 0:
                return
            yield begin[1], self._value(function, begin[1], text[begin.end() : end].removesuffix(self._form.end))
            at = end + len(tag)

    def _value_end(self, function: str, begin: re.Match[str], text: str) -> re.Match[str] | None:
        """The first mark after the beginning of a value, in JSON outside its strings; None if none has come."""
        start = begin.end()
        is_json = not self._is_text(function, begin[1]) and text[start:].lstrip()[:1] in ("{", "[", '"')
        marks = self._mark.finditer(text, start)
        return next((each for each in marks if not (is_json and is_in_string(text[start : each.start()]))), None)

    def _is_text(self, function: str, name: str) -> bool:
        """Whether an argument is written as it is."""
        if (function, name) not in self._are_texts:
            self._are_texts[function, name] = is_text_in(self._schemas.get(function, {}), name)
        return self._are_texts[function, name]

    def _value(self, function: str, name: str, text: str) -> Any:
        if self._is_text(function, name):
            return text
        try:
            return read_text(text)
        except ValueError:
            return text


_QWEN = TaggedForm(call=_QWEN_CALL, name=_QWEN_NAME, argument=_QWEN_ARGUMENT, marks=STYLES["qwen_xml"].marks, end="\n")
_GLM = TaggedForm(call=_GLM_CALL, name=_GLM_NAME, argument=_GLM_ARGUMENT, marks=STYLES["glm_xml"].marks)


def qwen_reader(definitions: Sequence[Mapping[str, Any]]) -> TaggedReader:
    """The reader of Qwen's XML calls of these functions."""
    return TaggedReader(_QWEN, definitions)


def glm_reader(definitions: Sequence[Mapping[str, Any]]) -> TaggedReader:
    """The reader of GLM's calls of these functions."""
    return TaggedReader(_GLM, definitions)


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
