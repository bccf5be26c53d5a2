"""The error that every route answers with: a status and {"error": {"message", "type", "param", "code"}}.

On Anthropic's routes it is {"type": "error", "error": {"type", "message"}, "request_id"}.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from tirage.errors import GrammarError, ParamsError, UnavailableError, nearest
from tirage.text import Stop

_log = logging.getLogger("tirage.server")
# A message repeats some of what the client sent, which may be long or contain control characters.
_MESSAGE_CHARS = 1000
_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    415: "invalid_request_error",
    429: "rate_limit_error",
    503: "service_unavailable_error",
    504: "timeout_error",
}
_ANTHROPIC_PATH = re.compile(r"/v1/messages(?:/.*)?")
_ANTHROPIC_TYPES = {**_TYPES, 413: "request_too_large", 503: "overloaded_error"}
# In the words by which agents know that they have to shorten the conversation.
_TOO_LONG = re.compile(r"prompt must hold at most (\d+) tokens, the model's context, got (\d+);")
NO_THREADS = "thread_unsupported_request"
"""Anthropic's code for a `thread`, which its clients then do without."""
OVERLOADED = 529
"""Anthropic's status of a server whose queue is full; other routes have 503."""
_SUBJECT = re.compile(
    r"(?:number of )?([a-z_]\w*(?:\[\d+\]|\.\w+)*)"
    r"(?: option| entries| strings| characters| times the number of prompts| token ids| images| audio)?"
    r" (?:must|were refused) "
)
_PYTHON = re.compile(r"""(?<!\w)(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|None|True|False)(?!\w)""")
_WORDS = {"None": "null", "True": "true", "False": "false"}
_UNKNOWN = "the server failed; its log says more"


class Refusal(Exception):  # noqa: N818  (an answer, not only an error)
    """An answer that is an error. `param` is the field at fault, in the client's spelling."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str | None = None,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message = status, clean(message)
        self.type = type or _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
        self.param, self.code, self.headers = param, code, dict(headers or {})


def envelope(refusal: Refusal) -> dict[str, Any]:
    """The JSON body of a refusal."""
    return {
        "error": {
            "message": refusal.message,
            "type": refusal.type,
            "param": refusal.param,
            "code": refusal.code,
        }
    }


def is_anthropic(path: str) -> bool:
    """Whether a path is one of Anthropic's routes, on which errors have its form."""
    return _ANTHROPIC_PATH.fullmatch(path) is not None


def anthropic_envelope(refusal: Refusal, request_id: str) -> dict[str, Any]:
    """The JSON body of a refusal on Anthropic's routes, and the event of a stream."""
    kind = _ANTHROPIC_TYPES.get(refusal.status, "api_error" if refusal.status >= 500 else "invalid_request_error")
    # There is no other place for the name of the field.
    is_named = refusal.param is None or refusal.param in refusal.message
    error: dict[str, Any] = {"type": kind, "message": refusal.message}
    if (found := _TOO_LONG.search(refusal.message)) is not None:
        error["message"] = f"prompt is too long: {found[2]} tokens > {found[1]} maximum; {refusal.message}"
    elif not is_named:
        error["message"] = clean(f"{refusal.param}: {refusal.message}")
    if refusal.code == NO_THREADS:
        error["details"] = {"error_code": NO_THREADS}
    return {"type": "error", "error": error, "request_id": request_id}


def of(error: BaseException) -> Refusal:
    """The refusal for an exception; it hides the cause of one that is not the client's fault."""
    if isinstance(error, Refusal):
        return error
    if isinstance(error, (ParamsError, GrammarError)):
        code = "invalid_grammar" if isinstance(error, GrammarError) else None
        text = in_json(str(error))
        return Refusal(400, text, param=getattr(error, "param", None) or subject(text), code=code)
    if isinstance(error, UnavailableError):
        text = "the server is closing" if error.closing else "the queue is full; try again later"
        return Refusal(503, text, code="overloaded", headers={"retry-after": "1"})
    if isinstance(error, HTTPException):
        return Refusal(error.status_code, http_message(error), headers=error.headers)
    if isinstance(error, RequestValidationError):
        return Refusal(400, "the request is malformed: " + "; ".join(str(e.get("msg", "")) for e in error.errors()))
    _log.error("a request failed: %s: %s", type(error).__name__, error, exc_info=error)
    return Refusal(500, _UNKNOWN)


def of_stop(stop: Stop | None) -> Refusal:
    """The refusal for a sample that ended with an error."""
    kind = stop.kind if stop is not None else "model_failed"
    text = stop.matched_text if stop is not None else None
    if kind in {"no_allowed_token", "grammar_failed", "constraint_budget", "kept_too_wide"}:
        return Refusal(400, text or "the constraints left no token that could be drawn; allow more", code=kind)
    if kind == "non_finite_logits":
        return Refusal(500, "the model's logits were not finite numbers", code=kind)
    if kind == "processor_failed":
        return Refusal(500, text or "a logits processor failed; the log says more", code=kind)
    if kind == "abort":
        return Refusal(503, "the request was aborted", code="aborted")
    return Refusal(500, _UNKNOWN, code=kind)


def timed_out() -> Refusal:
    """The refusal of a request that ran out of time."""
    return Refusal(
        504, "the request took too long; the operator can raise the limit with --request-timeout", code="timeout"
    )


def http_message(error: HTTPException) -> str:
    """The message for an error of the web framework, with a hint."""
    phrase = HTTPStatus(error.status_code).phrase.lower()
    hints = {404: "; GET /openapi.json lists the routes", 405: "; GET /openapi.json lists the methods"}
    return f"{phrase}{hints.get(error.status_code, '')}"


def in_json(message: str) -> str:
    """A message with JSON's spelling of None, True and False, except inside quotation marks."""
    return _PYTHON.sub(lambda found: _WORDS.get(found[0], found[0]), message)


def subject(message: str) -> str | None:
    """The field name that a message begins with, such as `top_p` in `top_p must be ...`; None without one."""
    found = _SUBJECT.match(message)
    return found[1] if found else None


def clean(message: str) -> str:
    """A message that is safe to show: no control characters, no memory addresses, limited in length."""
    text = re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda m: repr(m[0])[1:-1], message)
    text = re.sub(r"\b0x[0-9a-fA-F]{4,}\b", "0x...", text)
    text = re.sub(r"[\ud800-\udfff]", "\ufffd", text)
    return text if len(text) <= _MESSAGE_CHARS else text[: _MESSAGE_CHARS - 3] + "..."


class RefusalResponse(Response):
    """The response of a refusal, in the form of the route that it answers."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(status_code=refusal.status)
        self._refusal = refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal, status = self._refusal, self._refusal.status
        body = envelope(refusal)
        if is_anthropic(scope["path"]):
            body = anthropic_envelope(refusal, scope.get("tirage.id", ""))
            status = OVERLOADED if refusal.code == "overloaded" else status
        await JSONResponse(body, status_code=status, headers=refusal.headers)(scope, receive, send)


def respond(refusal: Refusal) -> Response:
    """The response of a refusal."""
    return RefusalResponse(refusal)


def add_handlers(app: FastAPI) -> None:
    """Registers a handler that turns every exception of a route into the envelope."""

    async def handle(request: Request, error: Exception) -> Response:
        refusal = of(error)
        if isinstance(error, HTTPException) and error.status_code == 404:
            refusal.message += clean(nearest(request.url.path, app.state.paths))
        return respond(refusal)

    for kind in (Refusal, ParamsError, GrammarError, UnavailableError, HTTPException, RequestValidationError):
        app.add_exception_handler(kind, handle)
