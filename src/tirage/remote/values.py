"""Values of a server's JSON, each checked before it is used; RemoteError for one of another type."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from tirage.errors import RemoteError
from tirage.fields.rules import shown

_WORDS = {str: "a text", int: "an integer", float: "a number", list: "a list", dict: "an object"}


def parse(data: bytes) -> Any:
    """The JSON value. Raises RemoteError for anything else."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        text = data[:200].decode("utf-8", "replace")
        raise RemoteError(f"the server must answer with JSON, got {shown(text)}") from None


def wrong(name: str, rule: str, value: Any) -> RemoteError:
    """The error for a member of an answer that breaks its rule."""
    return RemoteError(f"{name} of the server's answer must be {rule}, got {shown(value)}; is it the right dialect?")


def typed(value: Any, kind: type[Any], name: str) -> Any:
    """The value itself, an integer as a float where one is asked for. Raises RemoteError for one of another type."""
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 2**63 else value
    if not isinstance(value, kind) or isinstance(value, bool):
        raise wrong(name, _WORDS[kind], value)
    # JSON can spell halves of characters, which no output takes.
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def member(found: Mapping[str, Any], name: str, kind: type[Any], default: Any = ...) -> Any:
    """A member of an object; `default`, if there is one, for null and for none. Raises RemoteError as `typed` does."""
    value = found.get(name)
    if value is None and default is not ...:
        return default
    return typed(value, kind, name)


def members(found: Mapping[str, Any], name: str, kind: type[Any]) -> list[Any]:
    """A list of values of one type; empty for null and for none. Raises RemoteError as `typed` does."""
    return [typed(value, kind, name) for value in member(found, name, list, [])]


def token_ids(found: Mapping[str, Any], name: str) -> tuple[int, ...]:
    """A list of token ids. Raises RemoteError for one that is no id."""
    ids = members(found, name, int)
    if bad := [each for each in ids if not 0 <= each < 2**31]:
        raise wrong(name, "token ids", bad[0])
    return tuple(ids)


def logprob(value: Any, name: str = "logprob") -> float:
    """A log-probability; NaN for null. Raises RemoteError as `typed` does."""
    return math.nan if value is None else typed(value, float, name)


def message_of(answer: Any) -> str:
    """What an error of a server says: in OpenAI's form, FastAPI's, or any other."""
    if isinstance(answer, dict):
        inner = next((answer[name] for name in ("error", "message", "detail") if answer.get(name)), answer)
        if isinstance(inner, dict) and inner.get("message"):
            inner = inner["message"]
        answer = inner
    text = answer if isinstance(answer, str) else json.dumps(answer, default=str)
    return "".join(letter if letter.isprintable() else " " for letter in text)[:400]
