"""Rows in the form of OpenAI's Batch API, answered by the routes of the server itself."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Any

from tirage.cluster.rows import COMPLETIONS, BatchRow, Outcome, check_with_default, seed_of
from tirage.errors import ParamsError, TirageError
from tirage.llm import LLM
from tirage.server import create_app
from tirage.server.options import Options

_LONG_S = 1e7
_OK = 200
_LIMITS = ("max_tokens", "max_completion_tokens")


class OpenAIRoutes:
    """The server's application over a model, without a socket; it starts with the first row.

    What an answer says of when and how it was made is left out, so that a rerun gives the same bytes: `created` is 0,
    `id` and those of tool calls follow from the row's, and the count of cached tokens is dropped.
    """

    def __init__(self, llm: LLM, base: int, common: Mapping[str, Any]) -> None:
        self._llm, self._base, self._common = llm, base, common
        self._app: Any = None
        self._life = contextlib.AsyncExitStack()
        self._starting = asyncio.Lock()

    async def answer(self, number: int, row: BatchRow) -> Outcome:
        """What the row's route answers; an error of any other status than 200 fails the row."""
        body = self._body(row)
        await self._start()
        status, content = await post(self._app, str(row.url), json.dumps(body).encode())
        answer = json.loads(content)
        if status != _OK:
            message = answer.get("error", {}).get("message", f"status {status}")
            return Outcome(error={"line": number, "custom_id": row.id, "error": message, "status_code": status})
        name = hashlib.sha256(f"{self._base}:{row.id}".encode("utf-8", "surrogatepass")).hexdigest()[:24]
        response = {"status_code": status, "request_id": f"req_{name}", "body": repeatable(answer, name)}
        result = {"id": f"batch_req_{name}", "custom_id": row.id, "response": response, "error": None}
        return Outcome(results=(result,))

    def _body(self, row: BatchRow) -> dict[str, Any]:
        """The body of a row with its seed and the limit of the run; ParamsError for other parameters of the run."""
        for name in self._common:
            if name != "max_tokens":
                raise ParamsError(f"{name} must stand in the body of a row in OpenAI's form, got it for the whole run")
        body = {name: value for name, value in (row.body or {}).items() if value is not None or name not in _LIMITS}
        if body.get("seed") is None:
            body["seed"] = seed_of(row.id, self._base)
        return with_limit(body, self._common["max_tokens"], url=row.url) if self._common else body

    async def _start(self) -> None:
        async with self._starting:
            if self._app is not None:
                return
            limits = {"request_timeout": _LONG_S, "max_queue": 1 << 16, "max_running": self._llm.max_running}
            failures: list[TirageError] = []
            app = create_app(self._llm, Options.of(**limits))
            app.state.failed = failures.append
            await self._life.enter_async_context(app.router.lifespan_context(app))
            while app.state.manager is None and not failures:
                await asyncio.sleep(0.01)
            if failures:
                raise failures[0]
            self._app = app

    async def close(self) -> None:
        """Ends the application."""
        await self._life.aclose()


def with_limit(body: dict[str, Any], limit: int | None, *, url: str | None) -> dict[str, Any]:
    """The body with the limit of the run, unless it has its own; ParamsError for a wrong one, or none that can hold."""
    own = [name for name in _LIMITS if name in body]
    for name in own:
        check_with_default("max_tokens", body[name], default=limit, field=name)
    if own:
        return body
    if limit is None and url == COMPLETIONS:
        # The route has a limit of its own where none is given.
        raise ParamsError(f"max_tokens must stand in the body of a row for {url}, got None for the whole run")
    return {**body, "max_tokens": limit}


def repeatable(answer: dict[str, Any], name: str) -> dict[str, Any]:
    """An answer without what differs between two runs; `name` are 24 hexadecimal digits, from which its ids follow."""
    usage = {key: value for key, value in answer.get("usage", {}).items() if key != "prompt_tokens_details"}
    prefix = str(answer.get("id", "")).partition("-")[0]
    numbers = itertools.count()
    choices = [with_call_ids(choice, name, numbers) for choice in answer.get("choices", ())]
    return {**answer, "id": f"{prefix}-{name}", "created": 0, "choices": choices, "usage": usage}


def with_call_ids(choice: dict[str, Any], name: str, numbers: Iterator[int]) -> dict[str, Any]:
    """A choice whose tool calls have ids that follow from the row's name and their numbers in the answer."""
    message = choice.get("message") or {}
    calls = message.get("tool_calls")
    if not calls:
        return choice
    named = [{**call, "id": call_id(call["id"], name, next(numbers))} for call in calls]
    return {**choice, "message": {**message, "tool_calls": named}}


def call_id(found: str, name: str, number: int) -> str:
    """An id in the form of a random one, with or without a prefix before its digits; no two numbers have the same."""
    prefix, mark, digits = found.rpartition("_")
    size = len(digits)
    return f"{prefix}{mark}{(int(name[:size], 16) + number) % 16**size:0{size}x}"


async def post(app: Any, path: str, body: bytes) -> tuple[int, bytes]:
    """Status and body of an ASGI application's answer to a body of JSON."""
    headers = {"host": "localhost", "content-type": "application/json", "content-length": str(len(body))}
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST", "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": b"", "root_path": "", "client": ("127.0.0.1", 0),
        "server": ("localhost", 80), "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
    }  # fmt: skip
    unsent, status, parts = [body], 0, list[bytes]()

    async def receive() -> dict[str, Any]:
        if not unsent:
            # No more comes, and nobody leaves.
            await asyncio.Event().wait()
        return {"type": "http.request", "body": unsent.pop(), "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)
        parts.append(message.get("body", b""))

    await app(scope, receive, send)
    return status, b"".join(parts)
