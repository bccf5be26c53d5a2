"""The formats in which models write their tool calls, as structural tags.

They are those of the models' chat templates and of vLLM's, SGLang's and xgrammar's parsers. Each is free text until the
marker of a call, and then calls whose arguments keep the schemas of their functions; or, where a call is `required`,
calls alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tirage.server.tool_call_parsers import ToolCallFormat

Tag = dict[str, Any]
CALLS_BEGIN, CALLS_END = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL_BEGIN, CALL_SEP, CALL_END = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"
ANALYSIS, FINAL = "<|channel|>analysis<|message|>", "<|channel|>final<|message|>"
PREAMBLE, NEXT = "<|channel|>commentary<|message|>", "<|end|><|start|>assistant"
HEADERS = (
    "<|channel|>commentary to=functions.{} <|constrain|>json<|message|>",
    "<|channel|>commentary to=functions.{}<|constrain|>json<|message|>",
    " to=functions.{}<|channel|>commentary json<|message|>",
)
"""What OpenAI's open models write before the arguments of a call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StrictTool:
    """A function whose calls are held; `schema` is None where its arguments may be anything."""

    name: str
    schema: Mapping[str, Any] | None

    @property
    def object_schema(self) -> Mapping[str, Any]:
        """The schema of its arguments as JSON."""
        return {"type": "object"} if self.schema is None else self.schema


def tool_tags(
    tool_format: ToolCallFormat, tools: Sequence[StrictTool], *, parallel: bool, required: bool = False
) -> Tag:
    """The structural tag of a text that may hold calls of the tools; without `parallel` one call, and nothing after.

    With `required` the text is calls, without any other text but Harmony's analysis and preambles.
    """
    return {"type": "structural_tag", "format": _FORMATS[tool_format](tools, parallel, required)}


def as_json(schema: Mapping[str, Any], style: str = "json") -> Tag:
    """Arguments that keep a schema."""
    return {"type": "json_schema", "json_schema": schema} | ({} if style == "json" else {"style": style})


def tag(begin: str, content: Tag, end: str | list[str]) -> Tag:
    """Content between two texts."""
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def calls(tags: Sequence[Tag], separator: str, *, parallel: bool) -> Tag:
    """One call or, if `parallel`, several."""
    return {
        "type": "tags_with_separator",
        "tags": list(tags),
        "separator": separator,
        "at_least_one": True,
        "stop_after_first": not parallel,
    }


def triggered(trigger: str, tags: Sequence[Tag], *, once: bool) -> Tag:
    """Free text with calls after a trigger; with `once` nothing follows the first of the tags."""
    return {"type": "triggered_tags", "triggers": [trigger], "tags": list(tags), "stop_after_first": once}


def anywhere(trigger: str, tags: Sequence[Tag], parallel: bool, required: bool) -> Tag:
    """Calls anywhere in a text or, if `required`, nothing but calls on lines of their own."""
    if required:
        return calls(tags, "\n", parallel=parallel)
    return triggered(trigger, tags, once=not parallel)


def at_end(trigger: str, one: Tag, required: bool) -> Tag:
    """Free text and then one tag, with which the text ends; only the tag, if `required`."""
    return one if required else triggered(trigger, [one], once=True)


def either(called: Sequence[Tag], said: Tag, required: bool) -> Tag:
    """Calls, or text that begins otherwise; only calls, if `required`."""
    return {"type": "or", "elements": [*called, *([] if required else [said])]}


def hermes(tools: Sequence[StrictTool], parallel: bool, required: bool) -> Tag:
    """`<tool_call>\\n{"name": "f", "arguments": {...}}\\n</tool_call>`, anywhere in the text."""
    tags = [
        tag(
            f'<tool_call>\n{{"name": {json.dumps(tool.name)}, "arguments": ',
            as_json(tool.object_schema),
            "}\n</tool_call>",
        )
        for tool in tools
    ]
    return anywhere("<tool_call>", tags, parallel, required)


def mistral(tools: Sequence[StrictTool], parallel: bool, required: bool) -> Tag:
    """`[TOOL_CALLS] [{"name": "f", "arguments": {...}}, ...]` at the end of the text."""
    tags = [
        tag(f'{{"name": {json.dumps(tool.name)}, "arguments": ', as_json(tool.object_schema), "}") for tool in tools
    ]
    return at_end("[TOOL_CALLS]", tag("[TOOL_CALLS] [", calls(tags, ", ", parallel=parallel), "]"), required)


def mistral_args(tools: Sequence[StrictTool], parallel: bool, required: bool) -> Tag:
    """`[TOOL_CALLS]f[ARGS]{...}[TOOL_CALLS]g[ARGS]{...}` at the end of the text."""
    tags = [tag(f"{tool.name}[ARGS]", as_json(tool.object_schema), "") for tool in tools]
    several = calls(tags, "[TOOL_CALLS]", parallel=parallel)
    return at_end("[TOOL_CALLS]", tag("[TOOL_CALLS]", several, ""), required)


def llama3(tools: Sequence[StrictTool], parallel: bool, required: bool) -> Tag:
    """`{"name": "f", "parameters": {...}}; ...`, perhaps after `<|python_tag|>`, or text that begins otherwise."""
    tags = [
        tag(f'{{"name": {json.dumps(tool.name)}, "parameters": ', as_json(tool.object_schema), "}") for tool in tools
    ]
    mark = {"type": "optional", "content": {"type": "const_string", "value": "<|python_tag|>"}}
    whole = {"type": "sequence", "elements": [mark, calls(tags, "; ", parallel=parallel)]}
    said = {"type": "regex", "pattern": r"[ \n\t\r]*(?:[^{< \n\t\r](?:.|\n)*|<(?:[^|](?:.|\n)*)?)?"}
    return either([whole], said, required)


def pythonic(tools: Sequence[StrictTool], parallel: bool, required: bool) -> Tag:
    """`[f(a=1), g(b="x")]`, or text that does not begin with a bracket."""
    tags = [tag(f"{tool.name}(", as_json(tool.schema or {}, "pythonic"), ")") for tool in tools]
    whole = tag("[", calls(tags, ", ", parallel=parallel), "]")
    said = {"type": "regex", "pattern": r"[ \n\t\r]*(?:[^\[< \n\t\r](?:.|\n)*|<(?:[^|](?:.|\n)*)?)?"}
    marked = tag("<|python_start|>", whole, "<|python_end|>")
    return either([whole, marked], said, required)


def qwen_xml(tools: Sequence[StrictTool], parallel: bool, required: bool) -> Tag:
    """`<tool_call>\\n<function=f>\\n<parameter=a>\\n...\\n</parameter>\\n</function>\\n</tool_call>`, anywhere."""
    end = "</function>\n</tool_call>"
    tags = [tagged(f"<tool_call>\n<function={tool.name}>\n", tool, end, "qwen_xml") for tool in tools]
    return anywhere("<tool_call>", tags, parallel, required)


def glm45(tools: Sequence[StrictTool], parallel: bool, required: bool) -> Tag:
    """`<tool_call>f\\n<arg_key>a</arg_key>\\n<arg_value>...</arg_value>\\n</tool_call>`, anywhere."""
    tags = [tagged(f"<tool_call>{tool.name}\n", tool, "</tool_call>", "glm_xml") for tool in tools]
    return anywhere("<tool_call>", tags, parallel, required)


def tagged(begin: str, tool: StrictTool, end: str, style: str) -> Tag:
    """A call whose arguments stand between tags."""
    return tag(begin, {"type": "any_text"} if tool.schema is None else as_json(tool.schema, style), end)


def deepseek_v3(tools: Sequence[StrictTool], parallel: bool, required: bool) -> Tag:
    """Calls between marks at the end of the text, each with its arguments in a block of JSON."""
    tags = [
        tag(f"{CALL_BEGIN}function{CALL_SEP}{tool.name}\n```json\n", as_json(tool.object_schema), f"\n```{CALL_END}")
        for tool in tools
    ]
    return at_end(CALLS_BEGIN, tag(CALLS_BEGIN, calls(tags, "\n", parallel=parallel), CALLS_END), required)


def deepseek_v31(tools: Sequence[StrictTool], parallel: bool, required: bool) -> Tag:
    """Calls between marks at the end of the text, each with its arguments as JSON."""
    tags = [tag(f"{CALL_BEGIN}{tool.name}{CALL_SEP}", as_json(tool.object_schema), CALL_END) for tool in tools]
    return at_end(CALLS_BEGIN, tag(CALLS_BEGIN, calls(tags, "", parallel=parallel), CALLS_END), required)


def harmony(tools: Sequence[StrictTool], parallel: bool, required: bool) -> Tag:
    """Messages of OpenAI's open models: analysis and preambles, then an answer or a call, which ends the text."""
    before = [tag(begin, {"type": "any_text"}, NEXT) for begin in (ANALYSIS, PREAMBLE)]
    bodies = [[header(tool.name), as_json(tool.object_schema)] for tool in tools]
    tags = [tag("", {"type": "sequence", "elements": body}, "") for body in bodies]
    said = {"type": "optional", "content": {"type": "regex", "pattern": r"(?:.|\n)+"}}
    answer = {"type": "sequence", "elements": [{"type": "const_string", "value": FINAL}, said]}
    last = either([calls(tags, "", parallel=False)], answer, required)
    several = {"type": "star", "content": {"type": "or", "elements": before}}
    return {"type": "sequence", "elements": [several, last]}


def header(name: str) -> Tag:
    """What stands before the arguments of a call."""
    return {"type": "or", "elements": [{"type": "const_string", "value": each.format(name)} for each in HEADERS]}


_FORMATS: Mapping[ToolCallFormat, Callable[[Sequence[StrictTool], bool, bool], Tag]] = {
    "hermes": hermes,
    "mistral": mistral,
    "mistral_args": mistral_args,
    "llama3": llama3,
    "pythonic": pythonic,
    "qwen_xml": qwen_xml,
    "deepseek_v3": deepseek_v3,
    "deepseek_v31": deepseek_v31,
    "glm45": glm45,
    "harmony": harmony,
}
MARKERS: Mapping[ToolCallFormat, tuple[str, ...]] = {
    "hermes": ("<tool_call>", "</tool_call>"),
    "mistral": ("[TOOL_CALLS]",),
    "mistral_args": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "llama3": ("<|python_tag|>",),
    "pythonic": ("<|python_start|>", "<|python_end|>"),
    "qwen_xml": ("<tool_call>", "</tool_call>"),
    "deepseek_v3": (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_SEP, CALL_END),
    "deepseek_v31": (CALLS_BEGIN, CALLS_END, CALL_BEGIN, CALL_SEP, CALL_END),
    "glm45": ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>"),
    "harmony": ("<|channel|>", "<|message|>", "<|start|>", "<|end|>", "<|constrain|>", "<|call|>", "<|return|>"),
}
"""What a format is written with; a tokenizer may have special tokens for it. The first begins a call."""
