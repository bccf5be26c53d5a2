"""A request to a server, as it is before a route writes it down."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tirage.engine import as_prompt
from tirage.errors import ParamsError
from tirage.fields.rules import shown
from tirage.params import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteRequest:
    """A prompt, of text or of ids, or the messages of a chat, with the parameters that its answer is read by.

    `fields` are the sampling fields in the server's own words; where `by_default`, sampling is left to the server. The
    answer goes on with the last message with `continue_final_message`.
    """

    params: SamplingParams
    seed: int
    fields: Mapping[str, Any]
    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    messages: Sequence[Mapping[str, Any]] | None = None
    continue_final_message: bool = False
    adapter: str | None = None
    salt: str = ""
    stream: bool = False
    by_default: bool = False


def prompt_parts(prompt: Any) -> dict[str, Any]:
    """Text, ids, adapter and salt of a prompt, by their names. Raises ParamsError for one that cannot be sent."""
    given = as_prompt(prompt)
    for name in ("embeds", "images", "audio"):
        value = getattr(given, name)
        if value is not None and len(value):
            raise ParamsError(f"prompt {name} must be left out for a server, which takes text and token ids")
    if len(given.output_ids):
        raise ParamsError("prompt output_ids must be left out for a server, which takes text and token ids")
    ids = None if given.token_ids is None else tuple(map(checked_id, given.token_ids))
    # Whether an empty text is a prompt, the server knows: where its tokenizer begins texts with a BOS token it is one.
    if ids == ():
        raise ParamsError("prompt must hold at least one token, got none; begin it with a BOS token or some text")
    return {"text": given.text, "token_ids": ids, "adapter": given.adapter, "salt": given.salt}


def checked_id(token_id: Any) -> int:
    """A token id as an integer. Raises ParamsError for anything else."""
    if isinstance(token_id, (bool, np.bool_)) or not isinstance(token_id, (int, np.integer)) or token_id < 0:
        raise ParamsError(f"prompt token ids must be integers >= 0, got {token_id!r:.60}")
    return int(token_id)


def checked_messages(messages: Any) -> list[Any]:
    """The messages as JSON will carry them. Raises ParamsError for what it cannot."""
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence) or not messages:
        raise ParamsError(f"messages must be a list of at least one message, got {shown(messages)}")
    for index, message in enumerate(messages):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise ParamsError(
                f'messages[{index}] must be an object such as {{"role": "user", "content": ...}}, got {shown(message)}'
            )
        try:
            json.dumps(message, allow_nan=False)
        except (TypeError, ValueError, RecursionError):
            raise ParamsError(
                f"messages[{index}] must be JSON to be sent; give an image as image_url with a data URL"
            ) from None
    return [dict(message) for message in messages]
