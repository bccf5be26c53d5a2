"""Kept responses in a request of `/v1/responses`: what it goes on from, and the items that it only refers to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tirage.dialects import DialectError
from tirage.engine import Tenant
from tirage.fields.rules import shown
from tirage.server.errors import Refusal
from tirage.server.response_store import ResponseStore, StoredResponse
from tirage.server.routes.responses_items import listed_items


def not_kept(response_id: str, param: str) -> Refusal:
    """The answer to the id of a response or an item that is not kept."""
    text = (
        f"{param} must be that of a response that this server keeps, got {response_id!r:.80}; it keeps those of "
        "store=true until --max-stored-bytes are full or it ends: send all items"
    )
    return Refusal(404, text, type="invalid_request_error", param=param, code="response_not_found")


def input_of(stored: StoredResponse) -> list[dict[str, Any]]:
    """The items of a response's own input, as they are listed."""
    return listed_items(stored.input(), stored.id)


def is_reference(item: Any) -> bool:
    """Whether an item only names another one."""
    if not isinstance(item, Mapping) or "role" in item:
        return False
    return isinstance(item.get("id"), str) and item.get("type", "item_reference") == "item_reference"


def without_references(items: Sequence[Any], store: ResponseStore, tenant: Tenant) -> list[Any]:
    """The items, with those that references name in their place.

    Raises Refusal 404 for one that is not kept, and DialectError for one that is named twice.
    """
    known: dict[str, Mapping[str, Any]] = {}
    named: set[str] = set()
    found = []
    for index, item in enumerate(items):
        if not is_reference(item):
            found.append(item)
            continue
        place, name = f"input[{index}].id", item["id"]
        if name in named:
            raise DialectError(f"{place} must name another item than those before, got {shown(name)} twice", place)
        named.add(name)
        response_id = response_of(name)
        if response_id not in known:
            known[response_id] = items_of(store.find(response_id, tenant=tenant))
        if name not in known[response_id]:
            raise not_kept(name, place)
        found.append(known[response_id][name])
    return found


def response_of(item_id: str) -> str:
    """The id of the response that an item would belong to by its own id."""
    parts = item_id.split("_")
    return f"resp_{parts[1]}" if len(parts) == 3 else ""


def items_of(stored: StoredResponse | None) -> dict[str, Any]:
    """The items of a response's own input and of its output, by id; none without a response."""
    items = [] if stored is None else [*input_of(stored), *stored.output()]
    return {item["id"]: item for item in items}
