"""Tools for models whose chat template does not render them: described in the system message, in Hermes' format."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

_INTRODUCTION = """You may call functions. Their signatures are between <tools> and </tools>:
<tools>
{}
</tools>
To call one, answer with its name and its arguments as JSON between <tool_call> and </tool_call>:
<tool_call>
{{"name": <name>, "arguments": <arguments>}}
</tool_call>"""


def describe_tools(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]] | None
) -> list[dict[str, Any]]:
    """The messages with tools in the system message, tool calls as assistant text and tool results as user messages.

    Without any of these, the messages are returned unchanged.
    """
    told = [plain_message(message) for message in messages]
    if not tools:
        return told
    text = _INTRODUCTION.format("\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools))
    if told[0]["role"] in {"system", "developer"} and isinstance(told[0]["content"], str):
        return [{**told[0], "content": f"{told[0]['content']}\n\n{text}"}, *told[1:]]
    return [{"role": "system", "content": text}, *told]


def plain_message(message: Mapping[str, Any]) -> dict[str, Any]:
    """A message without the fields that only templates with tools render."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = message.get("tool_calls")
    if not calls:
        return dict(message)
    texts = [message["content"]] if message["content"] else []
    for call in calls:
        function = {key: call["function"][key] for key in ("name", "arguments")}
        texts.append(f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>")
    return {"role": message["role"], "content": "\n".join(texts)}
