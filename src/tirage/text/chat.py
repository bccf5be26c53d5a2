"""Chats as prompts: a model's own template, or plain `role: content` lines.

Templates come with models, and messages from anyone. A template therefore runs in a sandbox, and a message
that spells a special token is encoded apart, as ordinary letters, so that it cannot end its own turn.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from tirage.errors import ModelError, ParamsError
from tirage.text.tokenizer import Tokenizer, check_unicode

Message = Mapping[str, Any]


class ChatTemplate:
    """Messages to prompt ids.

    `source` is Jinja text in the Hugging Face convention; without one, and without one in the tokenizer's
    settings, the built-in plain form is used and `is_plain` is true.
    """

    def __init__(self, tokenizer: Tokenizer, source: str | None = None) -> None:
        self._tokenizer = tokenizer
        found = source if source is not None else template_text(tokenizer.settings.get("chat_template"))
        self.is_plain = found is None
        self._template = compile_template(found) if found is not None else None

    def render(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> str:
        """The prompt text of a conversation, ending where the assistant is to speak.

        Raises ParamsError for malformed messages and for those the template refuses.
        """
        return self._render(check_messages(messages), add_generation_prompt)

    def encode(self, messages: Sequence[Message], *, add_generation_prompt: bool = True) -> list[int]:
        """The prompt ids of a conversation."""
        checked = check_messages(messages)
        for message in checked:
            if self._tokenizer.spells_special_token(message["role"]):
                raise ParamsError(f"role must not hold special tokens, got {message['role']!r}")
        if any(self._tokenizer.spells_special_token(message["content"]) for message in checked):
            return self._encode_apart(checked, add_generation_prompt)
        text = self._render(checked, add_generation_prompt)
        return self._tokenizer.encode(text, add_special_tokens=self.is_plain)

    def _encode_apart(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> list[int]:
        """Ids with every content encoded by itself; the rendered template only ever sees stand-ins."""
        stand_ins = {secrets.token_hex(16): message["content"] for message in messages}
        hidden = [{**message, "content": name} for message, name in zip(messages, stand_ins, strict=True)]
        rest = self._render(hidden, add_generation_prompt)
        ids = self._tokenizer.encode("") if self.is_plain else []
        for name, content in stand_ins.items():
            before, _, rest = rest.partition(name)
            ids += self._tokenizer.encode(before, add_special_tokens=False)
            ids += self._tokenizer.encode_plain(content)
        return ids + self._tokenizer.encode(rest, add_special_tokens=False)

    def _render(self, messages: list[dict[str, Any]], add_generation_prompt: bool) -> str:
        if self._template is None:
            lines = [f"{message['role']}: {message['content']}\n" for message in messages]
            return "".join(lines) + ("assistant:" if add_generation_prompt else "")
        try:
            return self._template.render(
                messages=messages,
                add_generation_prompt=add_generation_prompt,
                bos_token=self._tokenizer.bos_token,
                eos_token=self._tokenizer.eos_token,
            )
        except ParamsError:
            raise
        except Exception as error:  # a template may fail in any way that Python can
            raise ModelError(f"the chat template failed: {type(error).__name__}: {error}") from error


def check_messages(messages: Sequence[Message]) -> list[dict[str, Any]]:
    """Copies of the messages, each known to have a role and a text content."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ParamsError(
            "messages must be a non-empty list of {'role': ..., 'content': ...}, "
            f"got {type(messages).__name__} {messages!r:.60}"
        )
    for index, message in enumerate(messages):
        for key in ("role", "content"):
            value = message.get(key) if isinstance(message, Mapping) else None
            if not isinstance(value, str):
                raise ParamsError(f"messages[{index}] must have a text {key!r}, got {message!r:.80}")
            check_unicode(value)
    return [dict(message) for message in messages]


def template_text(setting: Any) -> str | None:
    """The template of a tokenizer's settings: a text, or the one named `default` of a list."""
    if isinstance(setting, list):
        named = {entry.get("name"): entry.get("template") for entry in setting if isinstance(entry, Mapping)}
        setting = named.get("default")
    return setting if isinstance(setting, str) else None


def compile_template(source: str) -> Any:
    """The template, ready to render in a sandbox without access to Python; ModelError if malformed."""
    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals["raise_exception"] = refuse
    environment.filters["tojson"] = to_json
    try:
        return environment.from_string(source)
    except (TemplateError, RecursionError) as error:
        raise ModelError(f"the chat template is not valid: {error}") from error


def refuse(message: str) -> NoReturn:
    """Called by templates for conversations they cannot express."""
    raise ParamsError(f"messages were refused by the chat template: {message}")


def to_json(value: Any, indent: int | None = None) -> str:
    """JSON without the HTML escapes of Jinja's own filter, which models were never trained on."""
    return json.dumps(value, ensure_ascii=False, indent=indent)
