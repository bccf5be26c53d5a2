"""API keys, compared in constant time, on every route but the health checks."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Container, Sequence

from starlette.types import ASGIApp, Receive, Scope, Send

from tirage.engine import Tenant
from tirage.server.errors import Refusal, respond

OPEN_PATHS = frozenset({"/health", "/ready"})
"""Load balancers and supervisors use these without a key."""
_BEARER = b"bearer "


class Auth:
    """ASGI middleware that requires a key if the operator has set any, but not for `open_paths`.

    It sets two entries of the scope: `tirage.tenant`, a `Tenant` whose name is the same text for the same key and ""
    without one, and `tirage.admin`. `key_weights` are the weights of the keys, in their order; 1 each without them. A
    key sent to a server that requires none still identifies the tenant; with `by_address` the client's address does,
    unless the key is one of the operator's.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        api_keys: Sequence[str],
        key_weights: Sequence[int] = (),
        admin_key: str | None,
        open_paths: Container[str] = OPEN_PATHS,
        by_address: bool = False,
    ) -> None:
        self._open, self._by_address = open_paths, by_address
        self._app, self._secret = app, secrets.token_bytes(32)
        self._keys = [self._digest(key.encode()) for key in api_keys]
        self._weights = dict(zip(self._keys, key_weights, strict=False))
        self._admin = None if admin_key is None else self._digest(admin_key.encode())

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = key_of(scope["headers"])
        digest = self._digest(given or b"")
        admin = given is not None and self._admin is not None and hmac.compare_digest(digest, self._admin)
        # All keys are compared, so that the time does not reveal which one matched.
        known = sum(hmac.compare_digest(digest, key) for key in self._keys) > 0 and given is not None
        if self._keys and scope["path"] not in self._open and not (known or admin):
            await refused(given)(scope, receive, send)
            return
        scope["tirage.admin"] = admin
        if self._by_address and not (known or admin):
            scope["tirage.tenant"] = Tenant(self._digest(network_of(scope)).hex())
        else:
            scope["tirage.tenant"] = Tenant(digest.hex(), self._weights.get(digest, 1)) if given else Tenant()
        await self._app(scope, receive, send)

    def _digest(self, key: bytes) -> bytes:
        return hmac.new(self._secret, key, hashlib.sha256).digest()


def network_of(scope: Scope) -> bytes:
    """The address of a client; of IPv6 the first 64 bits, as a client may have all that begin with them."""
    text = (scope.get("client") or ("",))[0]
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return text.encode()
    return address.packed if address.version == 4 else address.packed[:8]


def key_of(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """The key of a request: that of `Authorization`, or else of Anthropic's `x-api-key`; None without one."""
    if any(name == b"authorization" for name, _ in headers):
        return bearer(headers)
    values = [value.strip() for name, value in headers if name == b"x-api-key"]
    return (values[0] or None) if len(values) == 1 else None


def bearer(headers: Sequence[tuple[bytes, bytes]]) -> bytes | None:
    """The key of `Authorization: Bearer KEY`; None without one, or with several."""
    values = [value for name, value in headers if name == b"authorization"]
    if len(values) != 1 or not values[0].lower().startswith(_BEARER):
        return None
    return values[0][len(_BEARER) :].strip() or None


def refused(given: bytes | None) -> ASGIApp:
    """The answer to a missing or a wrong key."""
    message = (
        "the key is not known here"
        if given
        else "a key must be sent as `Authorization: Bearer KEY` or `x-api-key: KEY`"
    )
    headers = {"www-authenticate": "Bearer", "connection": "close"}
    return respond(Refusal(401, message, code="invalid_api_key", headers=headers))
