"""Conversations whose final message is left open, so that the model continues it: an assistant's prefill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tirage.errors import ParamsError
from tirage.text.control import fresh_characters
from tirage.text.messages import Message, strings


def check_final(messages: Sequence[Message]) -> None:
    """Raises ParamsError unless the final message is the assistant's, with a text and without tool calls."""
    last = messages[-1]
    if last["role"] != "assistant":
        wrong = f"end with the assistant's message where continue_final_message is true, got {last['role']!r:.40}"
        raise ParamsError(f"messages must {wrong}; add one, or leave continue_final_message out")
    if last.get("tool_calls"):
        raise ParamsError("messages must end without tool_calls where continue_final_message is true; leave one out")
    if last_text(last["content"]) is None:
        raise ParamsError("messages must end with a text where continue_final_message is true; add a part of text")


def final_text(messages: Sequence[Message]) -> str:
    """The text with which the final message ends; empty where it has none."""
    content = messages[-1].get("content") if messages and isinstance(messages[-1], Mapping) else None
    return last_text(content) or ""


def last_text(content: Any) -> str | None:
    """A content that is a text, or the last text among its parts."""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, (list, tuple)) else ()
    texts = [part.get("text") for part in parts if isinstance(part, Mapping) and part.get("type") == "text"]
    return texts[-1] if texts and isinstance(texts[-1], str) else None


def with_mark(given: Mapping[str, Any]) -> tuple[dict[str, Any], str]:
    """The conversation with a mark at the end of its final text, and the mark.

    It is a character that occurs nowhere else, and a space, by which `cut_at` knows whether the template trims texts.
    """
    [character] = fresh_characters(1, set("".join(strings(given))))
    mark = f"{character} "
    *before, last = given["messages"]
    return {**given, "messages": [*before, {**last, "content": marked(last["content"], mark)}]}, mark


def marked(content: Any, mark: str) -> Any:
    """The content with the mark after its last text."""
    if isinstance(content, str):
        return content + mark
    at = max(index for index, part in enumerate(content) if part.get("type") == "text")
    return [{**part, "text": part["text"] + mark} if index == at else part for index, part in enumerate(content)]


def cut_at(rendered: str, mark: str, text: str) -> str:
    """The prompt up to the mark, where the final `text` ends; trimmed if the template has trimmed that.

    Raises ParamsError for a template that does not show the whole text, as transformers does.
    """
    at = rendered.rfind(mark[0])
    if at < 0 or text.strip() not in rendered:
        rule = "end with a text that the chat template shows whole where continue_final_message is true"
        raise ParamsError(f"messages must {rule}, got {text!r:.60}, of which it drops a part; leave that out")
    return rendered[:at] if rendered.startswith(mark, at) else rendered[:at].rstrip()


def generation_prompt(add_generation_prompt: bool | None, continue_final_message: bool) -> bool:
    """Whether a chat's prompt ends with the header of the assistant's message; by default unless it continues one.

    Raises ParamsError for both.
    """
    if add_generation_prompt and continue_final_message:
        rule = "must be false where continue_final_message is true"
        raise ParamsError(f"add_generation_prompt {rule}, got True for both; leave one out")
    return not continue_final_message if add_generation_prompt is None else add_generation_prompt
