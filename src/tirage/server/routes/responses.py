"""`/v1/responses`: OpenAI's newer API, of items instead of messages, and the responses that the server keeps."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tirage.dialects import DialectError
from tirage.errors import ParamsError
from tirage.server import errors
from tirage.server.errors import Refusal
from tirage.server.http_request import in_worker_thread, is_lenient, manager_of, read_json, tenant_of
from tirage.server.response_store import ResponseStore, StoredResponse
from tirage.server.routes.chat import submit_chat
from tirage.server.routes.openai_answer import model_of
from tirage.server.routes.responses_answer import ResponseAnswer
from tirage.server.routes.responses_kept import input_of, is_reference, not_kept, without_references
from tirage.server.routes.responses_request import (
    RESPONSES,
    ChatOfItems,
    ResponsesRequest,
    chat_of,
    read_responses,
)
from tirage.server.sse import JsonParts, dump
from tirage.workers.quick_switching import quickly

router = APIRouter(tags=["openai"])
_MESSAGE = re.compile(r"\bmessages\[(\d+)\]")
_FUNCTION = re.compile(r"(\btools\[\d+\])\.function\b")
_PAGE, _MOST = 20, 100


@router.post("/v1/responses", openapi_extra=RESPONSES.body)
async def create(raw_request: Request) -> Response:
    """The model's next items, as JSON or as a stream of events."""
    manager, body = manager_of(raw_request), await read_json(raw_request)
    lenient, store, tenant = is_lenient(raw_request), store_of(raw_request), tenant_of(raw_request)
    request = await in_worker_thread(raw_request, read_responses, body, manager.options, manager.llm, lenient=lenient)
    keeps, previous = keeps_response(request, store), previous_of(request, raw_request)

    def conversation() -> tuple[ChatOfItems, bytes]:
        items = without_references(request.items, store, tenant)
        before = [] if previous is None else previous.conversation()
        chat = chat_of(request, items, manager, before=before, lenient=lenient)
        return chat, dump(items) if keeps else b""

    if previous is None and not any(map(is_reference, request.items)):
        chat, items = await in_worker_thread(raw_request, conversation)
    else:
        # What is kept may be long where the request is short.
        chat, items = await asyncio.to_thread(quickly, conversation)
    try:
        running = await submit_chat(chat.request, raw_request, prompt="input")
    except (ParamsError, Refusal) as error:
        raise in_words_of_items(error, chat.places) from error

    def keep(response_id: str, parts: Sequence[bytes]) -> None:
        older = () if previous is None else (*previous.before, previous)
        store.keep(StoredResponse(id=response_id, response=parts, items=items, before=older), tenant=tenant)

    model = model_of(running.group, manager)
    return ResponseAnswer(request, chat.request, running, model=model, keep=keep if keeps else None).response()


@router.get("/v1/responses/{response_id}")
async def retrieve(response_id: str, raw_request: Request) -> Response:
    """A response that the server keeps; raises Refusal 404 for any other, and 400 for `stream=true`."""
    if raw_request.query_params.get("stream", "false").lower() not in ("false", "0"):
        text = "stream must be false: a response is kept when it has ended; leave it out"
        raise Refusal(400, text, param="stream")
    return JsonParts(found(response_id, raw_request).response)


@router.delete("/v1/responses/{response_id}")
async def delete(response_id: str, raw_request: Request) -> Response:
    """Says that a response is no longer kept; raises Refusal 404 for one that was not."""
    if not store_of(raw_request).delete(response_id, tenant=tenant_of(raw_request)):
        raise not_kept(response_id, "response_id")
    return JSONResponse({"id": response_id, "object": "response", "deleted": True})


@router.post("/v1/responses/{response_id}/cancel")
async def cancel(response_id: str, raw_request: Request) -> Response:
    """Raises Refusal: no response runs in the background, and one that is kept has ended."""
    found(response_id, raw_request)
    text = "response must run in the background to be cancelled, which none does here; close its stream to end it"
    raise Refusal(400, text, param="response_id")


@router.get("/v1/responses/{response_id}/input_items")
async def input_items(response_id: str, raw_request: Request) -> Response:
    """The items of a response's own input, the last one first, in pages of `limit` after the item `after`.

    Raises Refusal for a response that is not kept, and for a query that breaks its rule.
    """
    items, query = input_of(found(response_id, raw_request)), raw_request.query_params
    if query.get("order", "desc") not in ("asc", "desc"):
        raise Refusal(400, f"order must be asc or desc, got {query['order']!r:.40}; leave it out", param="order")
    ordered = items if query.get("order") == "asc" else items[::-1]
    if "after" in query:
        place = next((index for index, item in enumerate(ordered) if item["id"] == query["after"]), None)
        if place is None:
            raise Refusal(400, f"after must be the id of an item, got {query['after']!r:.80}", param="after")
        ordered = ordered[place + 1 :]
    page = ordered[: page_size(query.get("limit"))]
    ids = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return JSONResponse({"object": "list", "data": page, **ids, "has_more": len(ordered) > len(page)})


def page_size(given: str | None) -> int:
    """How many items a page has; raises Refusal for anything but a number of 1 to 100."""
    if given is None:
        return _PAGE
    if not given.isascii() or not given.isdecimal() or not 1 <= len(given) <= 3 or not 1 <= int(given) <= _MOST:
        raise Refusal(400, f"limit must be an integer in [1, {_MOST}], got {given!r:.40}; leave it out", param="limit")
    return int(given)


def store_of(raw_request: Request) -> ResponseStore:
    """The responses that the server keeps."""
    return raw_request.app.state.responses


def found(response_id: str, raw_request: Request) -> StoredResponse:
    """A response of this tenant; raises Refusal 404 for any other."""
    stored = store_of(raw_request).find(response_id, tenant=tenant_of(raw_request))
    if stored is None:
        raise not_kept(response_id, "response_id")
    return stored


def keeps_response(request: ResponsesRequest, store: ResponseStore) -> bool:
    """Whether the response is kept, as `store` says; raises DialectError where none is and the request wants it."""
    wanted = request.own.fields["store"]
    if wanted and not store.max_bytes:
        rule = "store must be false where the server keeps no response, got true"
        raise DialectError(f"{rule}; the operator can have them kept with --max-stored-bytes", "store")
    return wanted is not False and store.max_bytes > 0


def previous_of(request: ResponsesRequest, raw_request: Request) -> StoredResponse | None:
    """The response that the request goes on from; raises Refusal 404 for one that is not kept."""
    name = request.own.fields["previous_response_id"]
    if name is None:
        return None
    stored = store_of(raw_request).find(name, tenant=tenant_of(raw_request))
    if stored is None:
        raise not_kept(name, "previous_response_id")
    return stored


def in_words_of_items(error: ParamsError | Refusal, places: Sequence[str]) -> Refusal:
    """The refusal for an error about messages and chat tools, about items and tools as the client has sent them."""

    def place_of(match: re.Match[str]) -> str:
        index = int(match[1])
        return places[index] if index < len(places) else "input"

    def reworded(text: str) -> str:
        named = _FUNCTION.sub(r"\1", _MESSAGE.sub(place_of, text))
        for theirs, ours in (("reasoning_effort", "reasoning.effort"), ("messages", "input")):
            named = ours + named.removeprefix(theirs) if named.startswith(theirs) else named
        return named

    refusal = errors.of(error)
    param = None if refusal.param is None else reworded(refusal.param)
    return Refusal(
        refusal.status,
        reworded(refusal.message),
        type=refusal.type,
        param=param,
        code=refusal.code,
        headers=refusal.headers,
    )
