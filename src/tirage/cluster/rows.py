"""A row of the input: an id, a prompt and parameters, in our own form or in that of OpenAI's Batch API."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tirage.errors import ParamsError, nearest
from tirage.exact.seeding import seeds
from tirage.fields.rules import shown
from tirage.params import FIELDS
from tirage.server import strict_json

MOST_ID_CHARS = 512
_OWN = ("id", "prompt", "messages", "params")
_OPENAI = ("custom_id", "method", "url", "body")
COMPLETIONS = "/v1/completions"
URLS = ("/v1/chat/completions", COMPLETIONS)
"""The routes that a row of OpenAI's form may ask."""
FORMS = ("tirage", "openai")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A checked row. `prompt` is a text or ids, `messages` a conversation; of OpenAI's form `url` and `body`."""

    id: str | int
    prompt: Any = None
    messages: Any = None
    params: Mapping[str, Any] | None = None
    url: str | None = None
    body: Mapping[str, Any] | None = None

    @property
    def form(self) -> str:
        """The form of the row, one of `FORMS`."""
        return "tirage" if self.url is None else "openai"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a row: its results, which are lines of the output, or why there is none."""

    results: tuple[Mapping[str, Any], ...] = ()
    error: Mapping[str, Any] | None = None


def read_row(line: bytes) -> BatchRow:
    """The row of a line of JSON. Raises ParamsError for what is not strict JSON, and for a row that breaks a rule."""
    given = strict_json.parse_object(line)
    return _read_openai(given) if "custom_id" in given else _read_own(given)


def _read_own(given: Mapping[str, Any]) -> BatchRow:
    _refuse_unknown(given, _OWN)
    if ("prompt" in given) == ("messages" in given):
        raise ParamsError("row must have either prompt or messages, got " + ("both" if "prompt" in given else "none"))
    params = {} if given.get("params") is None else given["params"]
    if not isinstance(params, Mapping):
        raise ParamsError(
            f"params must be an object of sampling parameters, got {shown(params)}; leave it out for none"
        )
    if "messages" in given and not isinstance(given["messages"], list):
        raise ParamsError(f"messages must be a list, got {shown(given['messages'])}")
    return BatchRow(id=_id(given, "id"), prompt=given.get("prompt"), messages=given.get("messages"), params=params)


def _read_openai(given: Mapping[str, Any]) -> BatchRow:
    _refuse_unknown(given, _OPENAI)
    url, body = given.get("url"), given.get("body")
    if given.get("method", "POST") != "POST":
        raise ParamsError(f"method must be 'POST', got {shown(given['method'])}")
    if url not in URLS:
        raise ParamsError(f"url must be one of {', '.join(URLS)}, got {shown(url)}")
    if not isinstance(body, Mapping):
        raise ParamsError(f"body must be an object, got {shown(body)}")
    if body.get("stream"):
        raise ParamsError("stream must be left out of a batch, got true")
    return BatchRow(id=_id(given, "custom_id"), url=url, body=body)


def named_id(line: bytes) -> dict[str, str | int | None]:
    """The member of a line that holds its row's id, also of a row that breaks a rule; None where none can be read."""
    try:
        given = strict_json.parse_object(line)
    except ParamsError:
        return {"id": None}
    name = "custom_id" if "custom_id" in given else "id"
    try:
        return {name: _id(given, name)}
    except ParamsError:
        return {name: None}


def _refuse_unknown(given: Mapping[str, Any], known: tuple[str, ...]) -> None:
    for name in given:
        if name not in known:
            raise ParamsError(f"row must have the fields {', '.join(known)}, got {shown(name)}{nearest(name, known)}")


def _id(given: Mapping[str, Any], name: str) -> str | int:
    value = given.get(name)
    if isinstance(value, bool) or not isinstance(value, (str, int)) or not 0 < len(str(value)) <= MOST_ID_CHARS:
        raise ParamsError(
            f"{name} must be a text of 1 to {MOST_ID_CHARS} characters or an integer, got {shown(value)}; "
            "the row's seed follows from it"
        )
    return value


def check_with_default(name: str, value: Any, *, default: Any, field: str | None = None) -> None:
    """Raises ParamsError for a wrong value of a sampling parameter, with the default that holds for the rows of a run.

    `field` is what the row calls it, if it is another name.
    """
    spec = replace(FIELDS[name], name=field or name, default=default)
    spec.check(spec.load(value))


def seed_of(row_id: str | int, base: int = 0) -> int:
    """The seed in [0, 2^63) of the row with that id: `tirage.seeds(key, 1)`, the key made of the id. SPEC.md S-S7.

    The key is the first 64 bits of SHA-256 of `base:id` in UTF-8, big-endian and signed. An integer and its decimal
    digits are one id. `base` is the seed of the whole run.
    """
    digest = hashlib.sha256(f"{base}:{row_id}".encode("utf-8", "surrogatepass")).digest()
    return seeds(int.from_bytes(digest[:8], "big", signed=True), 1)[0]
