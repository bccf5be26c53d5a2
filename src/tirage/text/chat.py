"""Chat conversations as prompts: by the model's own template, or as plain `role: content` lines.

Templates come with models and messages from anyone, so a template runs in a sandbox with limits, and what a client
writes cannot become a control token: see `tirage.text.control`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from tirage.errors import ModelError, ParamsError
from tirage.text.continued import check_final, cut_at, final_text, with_mark
from tirage.text.control import ControlTokens, EscapedContent
from tirage.text.messages import Message, check_messages, check_tools
from tirage.text.template import Template
from tirage.text.tokenizer import Tokenizer
from tirage.text.tool_prompt import describe_tools

RESERVED = frozenset({
    *("messages", "conversation", "tools", "documents", "bos_token", "eos_token", "chat_template", "template"),
    *("add_generation_prompt", "continue_final_message", "tokenize", "return_dict", "return_tensors"),
    *("raise_exception", "strftime_now"),
})
"""Template variables that only the server and the model may set, never the arguments of a request."""


class ChatTemplate:
    """The chat template of a model: messages in, prompt out.

    `source` is Jinja text in the Hugging Face convention, by default that of the tokenizer's settings. If there is
    none, the built-in plain form is used and `is_plain` is True. `for_tools` is what renders conversations with tools:
    the one that the settings name `tool_use`, or else the template itself. Raises ModelError for invalid Jinja, and for
    settings that hold no template where one should be.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None) -> None:
        self._tokenizer = tokenizer
        found, tool_use = (source, None) if source is not None else templates_in(tokenizer.settings)
        self.for_tools: ChatTemplate = self if tool_use is None else ChatTemplate(tokenizer, tool_use)
        self.is_plain = found is None
        self.source = found or ""
        self._template = None if found is None else Template(found)
        self._control = ControlTokens(tokenizer)

    @property
    def takes_tools(self) -> bool:
        """Whether the template renders tools itself; for others they are described in the system message."""
        return "tools" in self._variables

    def takes(self, name: str, value: Any) -> bool:
        """Whether the template uses a variable. Turning thinking off is accepted by templates that do not know it."""
        return name in self._variables or (name in {"enable_thinking", "thinking"} and value is False)

    def reads(self, name: str) -> bool:
        """Whether the template asks messages for a member of this name."""
        return re.search(rf"""(?:\.|\[['"]|['"]){name}\b""", self.source) is not None

    @cached_property
    def takes_later_system(self) -> bool:
        """Whether the template shows a system message that is not the first message."""
        roles = ("system", "user", "assistant", "user", "system", "user")
        try:
            found = self.render([{"role": role, "content": f"message {i}"} for i, role in enumerate(roles)])
        except ParamsError:
            return False
        return "message 4" in found

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
        continue_final_message: bool = False,
    ) -> str:
        """The prompt text of a conversation, up to where the assistant's answer begins.

        `tools` are function definitions in OpenAI's form, `arguments` further variables of the template. Without
        `add_generation_prompt` the prompt ends with the last message; with `continue_final_message`, whatever the other
        says, it ends inside that message, an assistant's, after its text. Raises ParamsError for malformed messages and
        tools, for arguments that the template does not use, for conversations that it refuses or cannot render within a
        second and 8 million characters, and for a final message that cannot be continued.
        """
        template = self.for_tools if tools else self
        given = template._read(messages, tools, arguments, continued=continue_final_message)
        return template._render(given, add_generation_prompt, continued=continue_final_message)

    def encode(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[int]:
        """The prompt ids of a conversation, in which only the template produces control tokens.

        Takes the same arguments as `render`. Raises ParamsError as it does, and for a role that spells a control token.
        """
        template = self.for_tools if tools else self
        escaped = template._escape(template._read(messages, tools, arguments, continued=continue_final_message))
        text = template._render(escaped.content, add_generation_prompt, continued=continue_final_message)
        return escaped.encode(text, add_special_tokens=template.is_plain)

    def text_with_media(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        arguments: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        marks: Mapping[str, str],
    ) -> str:
        """The prompt text of a conversation with images or audio, which the model's processor will encode.

        `marks` are the placeholders of "image" and "audio", used if the template does not render content parts. Raises
        ParamsError as `encode` does, and for a text that spells a control token, because the processor would read it as
        one.
        """
        template = self.for_tools if tools else self
        escaped = template._escape(template._read(messages, tools, arguments, continued=continue_final_message))
        content = escaped.content if "type" in template.source else with_marks(escaped.content, marks)
        return escaped.text(template._render(content, add_generation_prompt, continued=continue_final_message))

    def _escape(self, given: Mapping[str, Any]) -> EscapedContent:
        for message in given["messages"]:
            if self._control.spelled_in(message["role"]):
                raise ParamsError(f"role must not hold special tokens, got {message['role']!r}")
        return self._control.escape(given)

    def _read(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        arguments: Mapping[str, Any] | None,
        *,
        continued: bool,
    ) -> dict[str, Any]:
        """Everything that the client supplies, validated, in the form that templates take."""
        checked = [self._with_known_role(message) for message in check_messages(messages)]
        if continued:
            check_final(checked)
        known = check_tools(tools)
        if not self.takes_tools:
            checked, known = describe_tools(checked, known), None
        return {**self._check_arguments(arguments or {}), "messages": checked, "tools": known}

    def _with_known_role(self, message: dict[str, Any]) -> dict[str, Any]:
        """The message with OpenAI's role `developer` renamed to `system`, unless the template knows it."""
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

    def _render(self, given: Mapping[str, Any], add_generation_prompt: bool, *, continued: bool) -> str:
        if not continued:
            return self._rendered(given, add_generation_prompt)
        opened, mark = with_mark(given)
        return cut_at(self._rendered(opened, False), mark, final_text(given["messages"]))

    def _rendered(self, given: Mapping[str, Any], add_generation_prompt: bool) -> str:
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
    """The conversation with every list of content parts as one text, with placeholders for images and audio."""

    def text_of(content: Any) -> Any:
        parts = content if isinstance(content, list) else None
        return content if parts is None else "".join(part.get("text") or marks.get(part["type"], "") for part in parts)

    messages = [{**message, "content": text_of(message["content"])} for message in given["messages"]]
    return {**given, "messages": messages}


def templates_in(settings: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """The chat template in a tokenizer's settings, and that for conversations with tools; None for one that is missing.

    The setting is a text, or several: an object of texts by name, or a list of objects with `name` and `template`, of
    which `default` and `tool_use` are read. Raises ModelError for anything else, which the plain form would hide.
    """
    setting = settings.get("chat_template")
    if setting is None or setting == [] or setting == {}:
        return None, None
    named = setting
    if isinstance(setting, list) and all(isinstance(each, Mapping) for each in setting):
        named = {str(each.get("name")): each.get("template") for each in setting}
    if not isinstance(named, Mapping):
        named = {"default": setting}
    found, tool_use = named.get("default"), named.get("tool_use")
    if not isinstance(found, str) or not isinstance(tool_use, (str, type(None))):
        raise ModelError(
            "chat_template of the tokenizer must be a text, or several with one named 'default', and one named "
            f"'tool_use' at most, got {setting!r:.60}; give one with chat_template or --chat-template"
        )
    return found, tool_use
