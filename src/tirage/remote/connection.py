"""Requests to a server: with a limit on everything, and sent again where that can do no harm."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from tirage.errors import ParamsError, RemoteError, TirageError
from tirage.fields.rules import shown
from tirage.remote.events import MOST_BYTES, EventParser
from tirage.remote.values import message_of, parse

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses after which a request is sent again: its seed is in it, so a second answer is as good as the first."""
_REFUSED = frozenset({400, 413, 422})
_BACKOFF_S, _LONGEST_WAIT_S = 0.5, 60.0
_CONNECT_S = 10.0
_MOST_ERROR_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    """Where a server is and how it is spoken to; `url` ends before `/v1`."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    timeout_s: float = 600.0
    retries: int = 3

    def __post_init__(self) -> None:
        object.__setattr__(self, "url", checked_address(self.url))
        if self.api_key is not None and (not isinstance(self.api_key, str) or not self.api_key.isprintable()):
            raise ParamsError("api_key must be a text without line breaks or None, got something else")
        number = isinstance(self.timeout_s, (int, float)) and not isinstance(self.timeout_s, bool)
        if not number or not 0 < self.timeout_s < float("inf"):
            raise ParamsError(f"timeout_s must be a positive number of seconds, got {self.timeout_s!r}")
        if isinstance(self.retries, bool) or not isinstance(self.retries, int) or self.retries < 0:
            raise ParamsError(f"retries must be an integer of at least 0, got {self.retries!r}")


def checked_address(url: str) -> str:
    """The address without a trailing `/` or `/v1`. Raises ParamsError for one that is none, or has more in it."""
    parts = urlsplit(url)
    try:
        known = parts.hostname and (parts.port is None or parts.port > 0)
    except ValueError:
        known = False
    if not known:
        raise ParamsError(f"model must be an address such as http://localhost:8000, got {shown(url)}")
    if parts.username is not None or parts.query or parts.fragment:
        raise ParamsError(
            "model must be an address without user, query and fragment, got one with them; give a key as api_key"
        )
    return url.rstrip("/").removesuffix("/v1").rstrip("/")


class RemoteServer:
    """A server, as one event loop speaks to it: `get` and `post` give JSON, `events` the JSON of a stream's events.

    Each raises RemoteError for a server that is not there, fails, cuts its answer off, or takes more than `timeout_s`
    seconds for an answer or an event; and ParamsError for a request that the server refuses. Until an answer has begun
    a request is sent again up to `retries` times: where no connection was made or it was cut, and for the statuses of
    `_AGAIN`; after a growing time, or the server's own `Retry-After` of up to a minute.
    """

    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self._made: httpx.AsyncClient | None = None

    async def get(self, path: str) -> Any:
        """The JSON at a path."""
        return await self._whole("GET", path, None)

    async def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """The JSON that answers a body of JSON."""
        return await self._whole("POST", path, body)

    async def events(self, path: str, body: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """The JSON of each event of the stream that answers a body, up to `[DONE]` or the end."""
        response = await self._within(path, self._send("POST", path, body))
        try:
            kind = response.headers.get("content-type", "")
            if not kind.startswith("text/event-stream"):
                raise self._error(path, f"must answer with an event stream, got {shown(kind)}")
            found = self._data(response, path)
            while (data := await self._within(path, anext(found, b"[DONE]"))) != b"[DONE]":
                yield parse(data)
        finally:
            await response.aclose()

    async def close(self) -> None:
        """Closes all connections."""
        if self._made is not None:
            await self._made.aclose()

    async def _whole(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        return await self._within(path, self._read_whole(method, path, body))

    async def _read_whole(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        response = await self._send(method, path, body)
        try:
            return parse(await self._read(response, path, MOST_BYTES))
        finally:
            await response.aclose()

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response:
        """The answer with status 200, its body unread; errors and repetitions as the class says."""
        attempt = 0
        while isinstance(found := await self._attempt(method, path, body), _Failure):
            wait = found.wait_s if found.wait_s is not None else _BACKOFF_S * 2**attempt * (0.5 + random.random())
            if not found.again or attempt == self.options.retries or wait > _LONGEST_WAIT_S:
                raise found.error
            await asyncio.sleep(wait)
            attempt += 1
        return found

    async def _attempt(self, method: str, path: str, body: Mapping[str, Any] | None) -> httpx.Response | _Failure:
        """The answer if its status is 200, or else why there is none."""
        import httpx

        client = self._client()
        try:
            request = client.build_request(method, path, json=body)
            response = await client.send(request, stream=True)
        except httpx.TransportError as error:
            slow = isinstance(error, httpx.TimeoutException) and not isinstance(error, httpx.ConnectTimeout)
            reason = f"does not answer: {type(error).__name__}: {error}"
            return _Failure(self._error(path, reason), again=not slow)
        if response.status_code == 200:
            return response
        with contextlib.suppress(RemoteError):
            return self._failure(path, response, await self._read(response, path, _MOST_ERROR_BYTES))
        return self._failure(path, response, b"")

    def _failure(self, path: str, response: httpx.Response, body: bytes) -> _Failure:
        """What an answer with another status than 200 means."""
        status = response.status_code
        try:
            message = message_of(parse(body))
        except RemoteError:
            message = shown(body[:200].decode("utf-8", "replace"))
        if status in _REFUSED:
            return _Failure(ParamsError(f"{self.options.url} refuses the request: {message}"), again=False)
        hint = {401: "; give api_key", 403: "; give api_key", 404: "; check the address and the dialect"}.get(
            status, ""
        )
        if 300 <= status < 400:
            hint = f"; it sends on to {shown(response.headers.get('location', ''))}, which is not followed"
        error = self._error(path, f"answers with status {status}: {message}{hint}", status)
        return _Failure(error, again=status in _AGAIN, wait_s=seconds_of(response.headers.get("retry-after")))

    async def _data(self, response: httpx.Response, path: str) -> AsyncIterator[bytes]:
        """The data of the events of an answer."""
        parser = EventParser()
        async for piece in self._pieces(response, path):
            for data in parser.feed(piece):
                yield data

    async def _read(self, response: httpx.Response, path: str, most: int) -> bytes:
        body = bytearray()
        async for piece in self._pieces(response, path):
            body += piece
            if len(body) > most:
                await response.aclose()
                raise self._error(path, f"must answer with at most {most} bytes, got more")
        return bytes(body)

    async def _pieces(self, response: httpx.Response, path: str) -> AsyncIterator[bytes]:
        """The body as it comes. Raises RemoteError where it is cut off."""
        import httpx

        coding = response.headers.get("content-encoding", "identity")
        if coding != "identity":
            raise self._error(path, f"must answer without compression, got {shown(coding)}")
        try:
            async for piece in response.aiter_raw():
                yield piece
        except httpx.TransportError as error:
            raise self._error(path, f"cut its answer off: {type(error).__name__}: {error}") from error

    async def _within(self, path: str, result: Awaitable[T]) -> T:
        """The result, if it is there within `timeout_s` seconds. Raises RemoteError after that."""
        seconds = self.options.timeout_s
        try:
            async with asyncio.timeout(seconds):
                return await result
        except TimeoutError:
            raise self._error(path, f"must answer within {seconds:g} seconds (timeout_s), it did not") from None

    def _error(self, path: str, message: str, status: int | None = None) -> RemoteError:
        return RemoteError(f"{self.options.url}{path} {message}", status=status)

    def _client(self) -> httpx.AsyncClient:
        """The HTTP client, made in the event loop that uses it."""
        import httpx

        if self._made is None:
            key = self.options.api_key
            headers = {"accept-encoding": "identity", **({} if key is None else {"authorization": f"Bearer {key}"})}
            timeout = httpx.Timeout(None, connect=min(_CONNECT_S, self.options.timeout_s))
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=16)
            self._made = httpx.AsyncClient(
                base_url=self.options.url, headers=headers, timeout=timeout, limits=limits, follow_redirects=False
            )
        return self._made


@dataclass(frozen=True, slots=True)
class _Failure:
    """Why a request has no answer, whether it may be sent again, and when if the server says so."""

    error: TirageError
    again: bool
    wait_s: float | None = None


def seconds_of(value: str | None) -> float | None:
    """The seconds that a `Retry-After` header asks for, a number or a date; None without one that can be read."""
    if value is None:
        return None
    if value.strip().isdecimal():
        return float(value)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None
