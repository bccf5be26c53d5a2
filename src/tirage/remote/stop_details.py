"""What ended a text, as our own server tells it beyond what SGLang and vLLM do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tirage.remote.values import member
from tirage.text import Stop, StopKind

_KINDS: Mapping[str, StopKind] = {
    "eos": "eos",
    "token": "token",
    "string": "string",
    "regex": "regex",
    "grammar": "grammar",
}
"""The kinds of ends that a text with finish reason "stop" may have."""


def told_stop(details: Mapping[str, Any], found: Stop | None) -> Stop | None:
    """The stop of a text by these details; `found`, which follows from what other servers tell, where they are none.

    Raises RemoteError for details of other types.
    """
    kind = _KINDS.get(member(details, "kind", str, ""))
    if kind is None:
        return found
    text = member(details, "matched_text", str, None)
    if kind == "grammar":
        # The last token is told as what matched, as SGLang does, but it is text.
        return Stop(kind=kind, matched="close_grammar" if details.get("closed") is True else None, matched_text=text)
    return replace(found or Stop(kind=kind), kind=kind, matched_text=text)
