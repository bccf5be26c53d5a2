"""What a route says about its body in the description of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

TEXT = {"type": "string"}
TRUE_OR_FALSE = {"type": "boolean"}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0}}


def json_body(properties: Mapping[str, Any], *, required: Sequence[str] = ()) -> dict[str, Any]:
    """The `openapi_extra` of a route whose body is a JSON object with these fields and no others."""
    schema: dict[str, Any] = {"type": "object", "properties": dict(properties), "additionalProperties": False}
    if required:
        schema["required"] = list(required)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def fields_of(extra: Mapping[str, Any]) -> list[str]:
    """The names of the fields in what `json_body` returned."""
    return list(extra["requestBody"]["content"]["application/json"]["schema"]["properties"])
