"""Conversations of Anthropic's API as those of a chat: system prompts, content blocks, tool calls and their results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tirage.dialects import DialectError
from tirage.fields.rules import shown
from tirage.server.media import MediaItem
from tirage.server.routes.reasoning import ReasoningTags, with_reasoning
from tirage.text import ChatTemplate

Part = dict[str, Any] | MediaItem
_CACHE = "cache_control"
_BLOCKS: Mapping[str, frozenset[str]] = {
    "text": frozenset({"text", _CACHE, "citations"}),
    "image": frozenset({"source", _CACHE}),
    "tool_use": frozenset({"id", "name", "input", _CACHE, "caller"}),
    "tool_result": frozenset({"tool_use_id", "content", "is_error", _CACHE}),
    "thinking": frozenset({"thinking", "signature"}),
    "redacted_thinking": frozenset({"data"}),
}
"""The types of blocks, and the members of each."""
_ROLES: Mapping[str, tuple[str, ...]] = {
    "user": ("text", "image", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
    "system": ("text",),
}
"""The roles, and the types of blocks in their messages."""
_BILLING = "x-anthropic-billing-header"
"""How a block begins that Claude Code writes for Anthropic's accounts; it differs from one request to the next."""


@dataclass(slots=True)
class ChatMessages:
    """The messages of a chat as they are collected.

    `template` and `tags` say where an earlier message has its reasoning. `names` are those of the tool calls by id.
    """

    template: ChatTemplate
    tags: ReasoningTags
    messages: list[dict[str, Any]] = field(default_factory=list)
    names: dict[str, str] = field(default_factory=dict)

    def add(self, role: str, parts: Sequence[Part], **more: Any) -> None:
        """Appends a message; one of the same role as the last is joined with it, unless either has tool calls."""
        last = self.messages[-1] if self.messages else dict[str, Any]()
        if last.get("role") == role != "tool" and not (more or last.keys() - {"role", "content"}):
            last["content"] = [*last["content"], *parts]
        else:
            self.messages.append({"role": role, "content": list(parts), **more})

    def add_system(self, parts: Sequence[Part]) -> None:
        """Appends a system message, or joins it with the first where the template shows no later one."""
        if self.messages and not self.template.takes_later_system:
            first = self.messages[0]
            if first["role"] == "system":
                first["content"] = [*first["content"], *parts]
            else:
                self.messages.insert(0, {"role": "system", "content": list(parts)})
        else:
            self.add("system", parts)

    def add_user(self, blocks: Sequence[Mapping[str, Any]], place: str) -> None:
        """Appends the message of a user: the results of tools as messages of their own, in their order."""
        parts: list[Part] = []
        for index, block in enumerate(blocks):
            where = f"{place}[{index}]"
            if block["type"] != "tool_result":
                parts.append(part_of(block, where))
                continue
            if parts:
                self.add("user", parts)
            parts = []
            self._add_result(block, where)
        if parts:
            self.add("user", parts)

    def _add_result(self, block: Mapping[str, Any], place: str) -> None:
        name = text_of(block, "tool_use_id", place)
        blocks = read_blocks(block.get("content") or "", f"{place}.content", ("text", "image"))
        parts = [part_of(each, f"{place}.content[{index}]") for index, each in enumerate(blocks)]
        failed = block.get("is_error")
        if not isinstance(failed, (bool, type(None))):
            raise refused(f"{place}.is_error", "true or false", failed)
        if name not in self.names:
            raise refused(f"{place}.tool_use_id", "that of a tool_use before it", name, remedy="send the tool_use too")
        if failed:
            parts = failed_result(parts)
        self.add("tool", parts, tool_call_id=name, name=self.names[name])

    def add_assistant(self, blocks: Sequence[Mapping[str, Any]], place: str) -> None:
        """Appends an earlier message of the assistant, with its reasoning and its calls."""
        texts: list[Part] = []
        thoughts, calls = list[str](), list[dict[str, Any]]()
        for index, block in enumerate(blocks):
            where = f"{place}[{index}]"
            match block["type"]:
                case "text":
                    texts.append(part_of(block, where))
                case "thinking":
                    thoughts.append(text_of(block, "thinking", where))
                case "tool_use":
                    calls.append(self._call(block, where))
                case _:
                    # What is redacted was written by another model, and nobody here can read it.
                    pass
        more: dict[str, Any] = {"tool_calls": calls} if calls else {}
        if any(thoughts):
            found = with_reasoning({"content": texts}, "\n".join(thoughts), self.template, self.tags)
            texts = found.pop("content")
            more |= found
        if texts or more:
            self.add("assistant", texts, **more)

    def _call(self, block: Mapping[str, Any], place: str) -> dict[str, Any]:
        call_id, name = text_of(block, "id", place), text_of(block, "name", place)
        if not isinstance(block.get("input"), dict):
            raise refused(f"{place}.input", "an object", block.get("input"))
        self.names[call_id] = name
        return {"id": call_id, "type": "function", "function": {"name": name, "arguments": block["input"]}}

    def finished(self) -> list[dict[str, Any]]:
        """The messages, with a plain text for a content that is one."""
        return [{**message, "content": plain(message)} for message in self.messages]


def chat_messages(
    messages: Any, system: Any, *, template: ChatTemplate, tags: ReasoningTags
) -> tuple[list[dict[str, Any]], bool]:
    """The messages of a chat, images as MediaItems, and whether the last one is to be continued.

    Raises DialectError that names the message, block or member at fault.
    """
    conversation = ChatMessages(template, tags)
    if system is not None and (parts := system_parts(system, "system")):
        conversation.add_system(parts)
    if not isinstance(messages, list) or not messages:
        raise refused("messages", "a list of at least one message", messages)
    for index, message in enumerate(messages):
        add_message(conversation, message, f"messages[{index}]", last=index == len(messages) - 1)
    return conversation.finished(), continues(conversation, messages)


def add_message(conversation: ChatMessages, message: Any, place: str, *, last: bool) -> None:
    """Adds one message of the request; raises DialectError for a malformed one."""
    role = message.get("role") if isinstance(message, Mapping) else None
    if not isinstance(role, str) or role not in _ROLES:
        raise refused(f"{place}.role", '"user", "assistant" or "system"', role)
    unknown = next((name for name in message if name not in {"role", "content"}), None)
    if unknown is not None:
        raise refused(f"{place}.{unknown!s:.60}", "left out, a message has role and content", message[unknown])
    where = f"{place}.content"
    if role == "system":
        conversation.add_system(system_parts(message.get("content"), where))
        return
    blocks = read_blocks(message.get("content"), where, _ROLES[role])
    if not blocks and not (last and role == "assistant"):
        raise refused(where, "a text or a list of at least one block", message.get("content"))
    if role == "user":
        conversation.add_user(blocks, where)
    else:
        conversation.add_assistant(blocks, where)


def continues(conversation: ChatMessages, messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether the last message is the beginning of the answer; raises DialectError for one that cannot be."""
    place, last = f"messages[{len(messages) - 1}]", conversation.messages[-1] if conversation.messages else None
    if last is None:
        raise refused("messages", "a list with at least one message that has a content", messages)
    if messages[-1]["role"] != "assistant" or not messages[-1]["content"]:
        return False
    if "tool_calls" in last:
        raise refused(place, "followed by the results of its tool calls", "none", remedy="add a message of the user")
    if not any(isinstance(part, dict) and part["text"] for part in last["content"]):
        raise refused(place, "left out where it has no text to continue", last["content"])
    return True


def read_blocks(content: Any, place: str, kinds: Sequence[str]) -> list[Mapping[str, Any]]:
    """The blocks of a content, a text being one; raises DialectError for blocks of other types, or malformed ones."""
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    if not isinstance(content, list):
        raise refused(place, "a text or a list of blocks", content)
    return [read_block(block, f"{place}[{index}]", kinds) for index, block in enumerate(content)]


def read_block(block: Any, place: str, kinds: Sequence[str]) -> Mapping[str, Any]:
    """A block of one of these types; raises DialectError for any other, and for members that it does not have."""
    kind = block.get("type") if isinstance(block, Mapping) else None
    if not isinstance(kind, str) or kind not in kinds:
        raise refused(f"{place}.type", f"{' or '.join(kinds)} here", kind, remedy="send what it says as text")
    for name, value in block.items():
        if name != "type" and name not in _BLOCKS[kind] and value is not None:
            raise refused(f"{place}.{name!s:.60}", f"left out, a block {kind} has no such member here", value)
    return block


def part_of(block: Mapping[str, Any], place: str) -> Part:
    """A part of a chat's message; raises DialectError for a malformed block."""
    if block["type"] == "text":
        return {"type": "text", "text": text_of(block, "text", place)}
    return image_of(block.get("source"), f"{place}.source")


def image_of(source: Any, place: str) -> MediaItem:
    """The image of a source; raises DialectError for anything but base64 and a URL."""
    match source:
        case {"type": "base64", "media_type": str(kind), "data": str(data), **rest} if not rest:
            return MediaItem("image", place, f"data:{kind};base64,{data}")
        case {"type": "url", "url": str(url), **rest} if not rest:
            return MediaItem("image", place, url)
    kind = source.get("type") if isinstance(source, Mapping) else source
    raise refused(place, "an object of type base64 with media_type and data, or of type url with url", kind)


def system_parts(content: Any, place: str) -> list[Part]:
    """The texts of a system prompt, without what is written for Anthropic's accounts alone."""
    blocks = read_blocks(content, place, _ROLES["system"])
    parts = [part_of(block, f"{place}[{index}]") for index, block in enumerate(blocks)]
    return [part for part in parts if isinstance(part, dict) and not part["text"].startswith(_BILLING)]


def failed_result(parts: Sequence[Part]) -> list[Part]:
    """The result of a tool that has failed, which says so at its beginning."""
    first = parts[0] if parts else None
    if isinstance(first, dict):
        return [{**first, "text": f"Error: {first['text']}"}, *parts[1:]]
    return [{"type": "text", "text": "Error"}, *parts]


def plain(message: Mapping[str, Any]) -> Any:
    """The content of a message: a text for one part, None for a message of tool calls alone."""
    content = message["content"]
    if not content:
        return None if "tool_calls" in message else ""
    return content[0]["text"] if len(content) == 1 and isinstance(content[0], dict) else content


def text_of(block: Mapping[str, Any], name: str, place: str) -> str:
    """A text member of a block; raises DialectError for anything else."""
    value = block.get(name)
    if not isinstance(value, str):
        raise refused(f"{place}.{name}", "a text", value)
    return value


def refused(place: str, rule: str, value: Any, *, remedy: str = "correct it") -> DialectError:
    """The error for a value that breaks a rule."""
    return DialectError(f"{place} must be {rule}, got {shown(value)}; {remedy}", place)
