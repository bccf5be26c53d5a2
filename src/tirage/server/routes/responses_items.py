"""The items of `/v1/responses` as messages of a chat: what a user, a function and the model itself have said.

An item is checked where it is read, so that an error names its place in the request's `input`. What the model said in a
row, its reasoning, its text and its calls, is one message.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tirage.dialects import DialectError
from tirage.errors import nearest
from tirage.fields.rules import shown
from tirage.server.media import MediaItem, read_part
from tirage.text.messages import NAME

Message = dict[str, Any]
ROLES = ("user", "assistant", "system", "developer")
_STATUSES = ("in_progress", "completed", "incomplete")
_EVERY = ("type", "id", "status")


class PlacedItem(NamedTuple):
    """An item, and its place in the request for error messages, such as `input[2]`."""

    place: str
    item: Any


class PlacedMessage(NamedTuple):
    """A message of a chat, and the place of the first item that it is made of."""

    place: str
    message: Message


def messages_of(items: Iterable[PlacedItem], *, lenient: bool = False) -> list[PlacedMessage]:
    """The messages that the items are; raises DialectError, which names the place of a wrong one.

    With `lenient` the members that an item does not have are ignored.
    """
    found: list[PlacedMessage] = []
    calls = set[str]()
    for place, item in items:
        kind = kind_of(place, item)
        check_members(place, item, kind, lenient=lenient)
        message = _READERS[kind](place, item)
        check_call(place, item, kind, calls)
        if message is None:
            continue
        if found and continues(found[-1].message, message):
            found[-1] = PlacedMessage(found[-1].place, joined(found[-1].message, message))
        else:
            found.append(PlacedMessage(place, message))
    return [PlacedMessage(place, {"content": empty(message), **message}) for place, message in found]


def kind_of(place: str, item: Any) -> str:
    """The type of an item; one with a role and no type is a message. Raises DialectError for any other."""
    if not isinstance(item, Mapping):
        raise DialectError(
            f'{place} must be an item such as {{"role": "user", "content": ...}}, got {shown(item)}', place
        )
    kind = item.get("type") or ("message" if "role" in item else None)
    if isinstance(kind, str) and kind in _READERS:
        return kind
    if isinstance(kind, str) and kind == "item_reference":
        raise DialectError(
            f"{place}.id must be that of an item that this server keeps, got {shown(item.get('id'))}", place
        )
    known = ", ".join([*_READERS, "item_reference"])
    raise DialectError(f"{place}.type must be one of {known}, got {shown(kind)}; leave the item out", f"{place}.type")


def check_members(place: str, item: Mapping[str, Any], kind: str, *, lenient: bool) -> None:
    """Raises DialectError for a member that items of this kind do not have, and for a wrong status."""
    known = (*_EVERY, *_MEMBERS[kind])
    unknown = next((name for name in item if item[name] is not None and name not in known), None)
    if unknown is not None and not lenient:
        hint = nearest(str(unknown), known) or "; leave it out"
        raise DialectError(f"{place} must hold known members, got {shown(unknown)}{hint}", f"{place}.{unknown}")
    if item.get("status") is not None and item["status"] not in _STATUSES:
        rule = f"{place}.status must be one of {', '.join(_STATUSES)}"
        raise DialectError(f"{rule}, got {shown(item['status'])}; leave it out", f"{place}.status")


def check_call(place: str, item: Mapping[str, Any], kind: str, calls: set[str]) -> None:
    """Adds the id of a call to those of `calls` before it; DialectError for an output that belongs to none of them."""
    if kind == "function_call":
        calls.add(item["call_id"])
    elif kind == "function_call_output" and item["call_id"] not in calls:
        raise DialectError(
            f"{place}.call_id must be that of a function_call before it, got {shown(item['call_id'])}; send the call "
            "too, or previous_response_id",
            f"{place}.call_id",
        )


def continues(last: Message, new: Message) -> bool:
    """Whether what the model says next belongs to its last message: reasoning comes first, calls come last."""
    if last["role"] != "assistant" or new["role"] != "assistant" or "reasoning_content" in new:
        return False
    return "tool_calls" in new or not {"content", "tool_calls"} & set(last)


def joined(last: Message, new: Message) -> Message:
    """Two parts of what the model said as one message."""
    calls = [*last.get("tool_calls", ()), *new.get("tool_calls", ())]
    return {**last, **new, **({"tool_calls": calls} if calls else {})}


def empty(message: Message) -> str | None:
    """The content of a message that has none."""
    return None if "tool_calls" in message else ""


def read_message(place: str, item: Mapping[str, Any]) -> Message:
    """A message of any role; raises DialectError for other roles and contents."""
    role, content = item.get("role"), item.get("content")
    if role not in ROLES:
        raise DialectError(f"{place}.role must be one of {', '.join(ROLES)}, got {shown(role)}", f"{place}.role")
    if role == "assistant":
        return {"role": role, "content": said(f"{place}.content", content)}
    return {"role": role, "content": told(f"{place}.content", content)}


def said(place: str, content: Any) -> str:
    """The text of an earlier answer: a text, or parts of it."""
    if isinstance(content, str):
        return content
    return "".join(read_said(f"{place}[{index}]", part) for index, part in enumerate(parts_of(place, content)))


def read_said(place: str, part: Any) -> str:
    """The text of a part of an earlier answer; raises DialectError for another part."""
    match part:
        case {"type": "output_text" | "input_text", "text": str(text)} | {"type": "refusal", "refusal": str(text)}:
            return text
    rule = f'{place} must be a part {{"type": "output_text", "text": ...}} of an earlier answer'
    raise DialectError(f"{rule}, got {shown(part)}", place)


def told(place: str, content: Any) -> str | list[Any]:
    """The content of what the model is told, in the form of chat completions: a text, or a list of parts."""
    if isinstance(content, str):
        return content
    return [read_told(f"{place}[{index}]", part) for index, part in enumerate(parts_of(place, content))]


def parts_of(place: str, content: Any) -> list[Any]:
    """A list of parts; raises DialectError for anything else."""
    if not isinstance(content, list) or not content:
        raise DialectError(f"{place} must be a text or a list of parts, got {shown(content)}", place)
    return content


def read_told(place: str, part: Any) -> dict[str, Any] | MediaItem | None:
    """A part in the form of chat completions; raises DialectError, and MediaError for media that cannot be read."""
    match part:
        case {"type": "input_text", "text": str(text), **rest} if no_more(rest):
            return {"type": "text", "text": text}
        case {"type": "input_audio", "input_audio": audio, **rest} if no_more(rest):
            return read_part(place, {"type": "input_audio", "input_audio": audio})
        case {"type": "input_image", "image_url": str(url), **rest} if no_more({**rest, "detail": None}):
            return read_part(place, {"type": "image_url", "image_url": {"url": url, "detail": rest.get("detail")}})
        case {"type": "input_image"}:
            rule = f"{place} must have a text image_url and perhaps detail, as files are not kept here"
        case {"type": "input_file"}:
            rule = f"{place} must not be a file, which is not read here"
        case _:
            rule = f"{place} must be a part of type input_text and its text, input_image or input_audio"
    raise DialectError(f"{rule}, got {shown(part)}; leave it out", place)


def no_more(rest: Mapping[str, Any]) -> bool:
    """Whether other members are null."""
    return all(value is None for value in rest.values())


def read_call(place: str, item: Mapping[str, Any]) -> Message:
    """A call that the model has made; raises DialectError for one without name or arguments."""
    name, arguments = item.get("name"), item.get("arguments")
    if not isinstance(name, str) or not NAME.fullmatch(name):
        rule = f"{place}.name must be 1 to 64 of a-z, A-Z, 0-9, '_', '-' and '.'"
        raise DialectError(f"{rule}, got {shown(name)}", f"{place}.name")
    if not isinstance(arguments, str):
        raise DialectError(f"{place}.arguments must be JSON as a text, got {shown(arguments)}", f"{place}.arguments")
    function = {"name": name, "arguments": arguments}
    call = {"id": call_id_of(place, item), "type": "function", "function": function}
    return {"role": "assistant", "tool_calls": [call]}


def read_output(place: str, item: Mapping[str, Any]) -> Message:
    """What a function returned."""
    content = told(f"{place}.output", item.get("output"))
    return {"role": "tool", "tool_call_id": call_id_of(place, item), "content": content}


def call_id_of(place: str, item: Mapping[str, Any]) -> str:
    """The id that a call and its output share; raises DialectError where there is none."""
    found = item.get("call_id")
    if not isinstance(found, str) or not found:
        raise DialectError(
            f"{place}.call_id must be the text that the call has, got {shown(found)}", f"{place}.call_id"
        )
    return found


def read_reasoning(place: str, item: Mapping[str, Any]) -> Message | None:
    """What the model has reasoned, or else its summary; None for an item without text. Raises DialectError."""
    if item.get("encrypted_content"):
        remedy = "this server cannot decrypt it; send the item with its content, or leave it out"
        raise DialectError(f"{place}.encrypted_content must be left out: {remedy}", f"{place}.encrypted_content")
    for name, kind in (("content", "reasoning_text"), ("summary", "summary_text")):
        parts = item.get(name) or []
        texts = [part["text"] for part in parts if is_text(part, kind)] if isinstance(parts, list) else None
        if texts is None or len(texts) != len(parts):
            rule = f'{place}.{name} must be a list of {{"type": "{kind}", "text": ...}}'
            raise DialectError(f"{rule}, got {shown(parts)}", f"{place}.{name}")
        if any(texts):
            return {"role": "assistant", "reasoning_content": "\n".join(texts)}
    return None


def is_text(part: Any, kind: str) -> bool:
    """Whether a part is a text of this type."""
    return isinstance(part, Mapping) and part.get("type") == kind and isinstance(part.get("text"), str)


_READERS: Mapping[str, Callable[[str, Mapping[str, Any]], Message | None]] = {
    "message": read_message,
    "function_call": read_call,
    "function_call_output": read_output,
    "reasoning": read_reasoning,
}
_MEMBERS: Mapping[str, tuple[str, ...]] = {
    "message": ("role", "content", "phase"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output", "name"),
    "reasoning": ("summary", "content", "encrypted_content"),
}


def listed_items(items: Sequence[Any], response_id: str) -> list[dict[str, Any]]:
    """The items of an input as the server lists them: each with an id, a type and a status, contents as parts."""
    suffix = response_id.partition("_")[2]
    return [listed_item(item, f"{suffix}_in{index}") for index, item in enumerate(items)]


def listed_item(item: Mapping[str, Any], suffix: str) -> dict[str, Any]:
    """One item with all that a list of items has of it."""
    kind = item.get("type") or "message"
    made = {**item, "type": kind, "id": item.get("id") or f"{_PREFIXES[kind]}_{suffix}"}
    made["status"] = item.get("status") or "completed"
    if kind == "message" and isinstance(item["content"], str):
        made["content"] = [part_of(item["role"], item["content"])]
    return made


def part_of(role: str, text: str) -> dict[str, Any]:
    """The part that a text is in a message of this role."""
    if role == "assistant":
        return {"type": "output_text", "text": text, "annotations": []}
    return {"type": "input_text", "text": text}


_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
