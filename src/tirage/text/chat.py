"""Chats as prompts: a model's own template, or plain `role: content` lines.

Templates come with models, and messages from anyone. A template therefore runs in a sandbox with limits, and what a
client writes cannot become a control token: see `tirage.text.control`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tirage.errors import ParamsError
from tirage.text.control import ControlTokens, Guarded
from tirage.text.messages import Message, check_messages, check_tools
from tirage.text.template import Template
from tirage.text.tokenizer import Tokenizer
from tirage.text.toolprompt import describe_tools

RESERVED = frozenset({
    *("messages", "conversation", "tools", "documents", "bos_token", "eos_token", "chat_template", "template"),
    *("add_generation_prompt", "continue_final_message", "tokenize", "return_dict", "return_tensors"),
    *("raise_exception", "strftime_now"),
})
"""Names of a template's variables that come from the server or the model, never from a request's arguments."""


class ChatTemplate:
    """Messages to prompt ids.

    `source` is Jinja text in the Hugging Face convention; without one, and without one in the tokenizer's
    settings, the built-in plain form is used and `is_plain` is true.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None) -> None:
        self._tokenizer = tokenizer
        found = source if source is not None else template_text(tokenizer.settings.get("chat_template"))
        self.is_plain = found is None
        self.source = found or ""
        self._template = None if found is None else Template(found)
        self._control = ControlTokens(tokenizer)

    @property
    def takes_tools(self) -> bool:
        """Whether the template shows tools by itself; others get them described in the system message."""
        return "tools" in self._variables

    def takes(self, name: str, value: Any) -> bool:
        """Whether the template heeds a variable; one that knows no thinking keeps it off, as asked."""
        return name in self._variables or (name in {"enable_thinking", "thinking"} and value is False)

    @property
    def _variables(self) -> frozenset[str]:
        return frozenset() if self._template is None else self._template.variables

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> str:
        """The prompt text of a conversation, ending where the assistant is to speak.

        `tools` are function definitions in OpenAI's form; `arguments` are further variables of the template. Raises
        ParamsError for malformed messages and tools, arguments that the template does not know, and conversations
        that it refuses or cannot render within a second and 8 million characters.
        """
        given = self._read(messages, tools, arguments)
        return self._render(given, add_generation_prompt)

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
    ) -> list[int]:
        """The prompt ids of a conversation; control tokens are the template's alone.

        Takes and raises what `render` does; a role that spells a control token is refused too.
        """
        guarded = self._guard(self._read(messages, tools, arguments))
        text = self._render(guarded.content, add_generation_prompt)
        return guarded.encode(text, add_special_tokens=self.is_plain)

    def text_with_media(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        marks: Mapping[str, str],
    ) -> str:
        """The prompt text of a conversation with parts of images or audio, for the model's processor to encode.

        `marks` spell the places of "image" and "audio" where no template knows parts. Takes and raises what
        `encode` does; a text that spells a control token is refused, for the processor would read it as one.
        """
        guarded = self._guard(self._read(messages, tools, arguments))
        content = guarded.content if "type" in self.source else with_marks(guarded.content, marks)
        return guarded.text(self._render(content, add_generation_prompt=True))

    def _guard(self, given: Mapping[str, Any]) -> Guarded:
        for message in given["messages"]:
            if self._control.spelled_in(message["role"]):
                raise ParamsError(f"role must not hold special tokens, got {message['role']!r}")
        return self._control.guard(given)

    def _read(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        arguments: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        """Everything a client has a say in, checked, in the form that templates take."""
        checked = [self._known_role(message) for message in check_messages(messages)]
        known = check_tools(tools)
        if not self.takes_tools:
            checked, known = describe_tools(checked, known), None
        return {**self._check_arguments(arguments or {}), "messages": checked, "tools": known}

    def _known_role(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with the name that templates know for OpenAI's newer word for the system."""
        renamed = message["role"] == "developer" and "developer" not in self.source
        return {**message, "role": "system"} if renamed else message

    def _check_arguments(self, arguments: Mapping[str, Any]) -> dict[str, Any]:
        for name, value in arguments.items():
            if name in RESERVED:
                raise ParamsError(f"chat_template_kwargs must not set {name!r}; only the server may")
            if not self.takes(name, value):
                raise ParamsError(
                    f"chat_template_kwargs must name variables of the model's chat template, got {str(name)[:64]!r}"
                )
        return {name: value for name, value in arguments.items() if name in self._variables}

    def _render(self, given: Mapping[str, Any], add_generation_prompt: bool) -> str:
        if self._template is None:
            lines = [f"{message['role']}: {message['content'] or ''}\n" for message in given["messages"]]
            return "".join(lines) + ("assistant:" if add_generation_prompt else "")
        return self._template.render(
            **given,
            add_generation_prompt=add_generation_prompt,
            bos_token=self._tokenizer.bos_token,
            eos_token=self._tokenizer.eos_token,
        )


def with_marks(given: Mapping[str, Any], marks: Mapping[str, str]) -> dict[str, Any]:
    """The conversation with every list of parts as one text, in which marks stand for images and audio."""

    def text_of(content: Any) -> Any:
        parts = content if isinstance(content, list) else None
        return content if parts is None else "".join(part.get("text") or marks.get(part["type"], "") for part in parts)

    messages = [{**message, "content": text_of(message["content"])} for message in given["messages"]]
    return {**given, "messages": messages}


def template_text(setting: Any) -> str | None:
    """The template of a tokenizer's settings: a text, or the one named `default` of a list."""
    if isinstance(setting, list):
        named = {entry.get("name"): entry.get("template") for entry in setting if isinstance(entry, Mapping)}
        setting = named.get("default")
    return setting if isinstance(setting, str) else None
