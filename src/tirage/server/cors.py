"""CORS: what pages of the origins that the operator allows may send, and which answers they may read."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from fastapi.responses import Response
from starlette.types import Scope

_METHODS = ", ".join(("DELETE", "GET", "HEAD", "POST", "PUT"))
"""Those of the routes."""
_ASKED_METHOD, _ASKED_HEADERS = b"access-control-request-method", b"access-control-request-headers"


class AllowedOrigins:
    """The origins whose pages may call the server: those that the operator names, or all with `*`.

    Cookies and other credentials of the browser are never allowed, so `*` may stand for every header that is shown.
    """

    def __init__(self, origins: Collection[str]) -> None:
        self._origins, self._all = frozenset(origins), "*" in origins

    def allows(self, origin: str) -> bool:
        """Whether pages of this origin may call the server."""
        return self._all or origin in self._origins

    def headers(self, asked: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
        """The headers of the answer to a request with the headers `asked`, with which pages of allowed origins read it.

        A refusal has them too.
        """
        if not self._origins:
            return []
        origin = dict(asked).get(b"origin")
        vary = [] if self._all else [(b"vary", b"origin")]
        if origin is None or not self.allows(origin.decode("latin-1")):
            return vary
        shown = b"*" if self._all else origin
        return [*vary, (b"access-control-allow-origin", shown), (b"access-control-expose-headers", b"*")]

    def preflight(self, scope: Scope) -> Response | None:
        """The answer to a browser that asks on behalf of a page what it may send; None for any other request.

        It may send any header: which clients send which ones changes with their versions, and keys are checked later.
        """
        given = dict(scope["headers"])
        origin = given.get(b"origin", b"").decode("latin-1")
        if scope["method"] != "OPTIONS" or _ASKED_METHOD not in given or not self.allows(origin):
            return None
        headers = {"access-control-allow-methods": _METHODS, "access-control-max-age": "600"}
        if asked := given.get(_ASKED_HEADERS):
            headers |= {"access-control-allow-headers": asked.decode("latin-1"), "vary": _ASKED_HEADERS.decode()}
        return Response(headers=headers)
