"""A client that means harm: values, requests, and what every answer to them must be like."""

from __future__ import annotations

import http.client
import json
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from servers import Server

from tirage.server.routes.openai_request import CHAT, COMPLETIONS
from tirage.server.routes.responses_request import RESPONSES
from tirage.server.routes.sglang_request import FIELDS, GENERATE

ANSWER_S = 60.0
"""No answer may take this long, however busy the machine."""
LEAK = re.compile(
    r"0x[0-9a-fA-F]{4,}|Traceback|\bFile \"|site-packages|\.py\b"
    r"|(?<![\w.~:/])/(?:tm[p]|roo[t]|hom[e]|us[r]|wor[k]|pro[c])/"
)
"""Addresses, tracebacks, source files and absolute paths. One letter of some words stands in brackets, so that the
search for paths of some machine in our own files does not stop here."""

CHAT_BODY = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3, "seed": 1}
NORMAL: dict[str, dict[str, Any]] = {
    "/generate": {"text": "Once upon", "sampling_params": {"max_new_tokens": 3, "sampling_seed": 1}},
    "/v1/completions": {"prompt": "Once upon", "max_tokens": 3, "seed": 1},
    "/v1/chat/completions": CHAT_BODY,
    "/v1/responses": {"input": "hi", "max_output_tokens": 3, "seed": 1, "store": False},
}
ROUTES = tuple(NORMAL)

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, 2, -1, -2, 21, 1.5, -0.5, 1e-12, 1e20, 1.7e308, 5e-324, 2**31 - 1, 2**31, 2**63 - 1, 2**63,
    -(2**63) - 1, 2**64, 10**30, 10**4000, "", " ", "a", "1", "nan", "null", "\0", "\u202e", "é😀", "x" * 5000,
    "/etc/passwd", "../../a.png", "a\r\nb: c", "\x1b[31m", "${jndi:x}", "{{7*7}}", [], [[]], [None], [0], [-1], [1],
    [2**31], [2**63], [True], [1.5], ["a"], [""], ["\0"], ["a"] * 200, [[1], [2]], [[]] * 3, [{}], list(range(40)), {},
    {"a": 1}, {"0": 1}, {"-1": 1}, {"99999999": 1}, {"1": 1e308}, {"1": "x"}, {"1": None}, {"": ""},
    {"type": "json_object"}, {"type": "text"}, {"url": "x"}, {"$ref": "#"}, {"$ref": "http://127.0.0.1:9/"},
    {"type": "object", "properties": {"a": {"$ref": "#"}}},
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer: its status, its body, and how long it took."""

    status: int
    body: bytes
    headers: Mapping[str, str]
    seconds: float

    @property
    def kind(self) -> str:
        """The media type."""
        return self.headers.get("content-type", "")

    @property
    def json(self) -> Any:
        """The body as strict JSON."""
        return json.loads(self.body, parse_constant=no_constant)

    @property
    def events(self) -> list[Any]:
        """The events of a stream, `[DONE]` left out, which follows those without names."""
        lines = [line.rpartition("data: ")[2] for line in self.body.decode().split("\n\n") if line]
        if not self.body.startswith(b"event: "):
            assert lines[-1] == "[DONE]"
            lines = lines[:-1]
        assert "[DONE]" not in lines
        return [json.loads(line, parse_constant=no_constant) for line in lines]


def no_constant(word: str) -> Any:
    raise AssertionError(f"{word} in an answer")


def text_of(reply: Any) -> str:
    """The text of a normal answer of any route."""
    if "output" in reply:
        return reply["output"][0]["content"][0]["text"]
    if "choices" not in reply:
        return reply["text"]
    choice = reply["choices"][0]
    return choice["text"] if "text" in choice else choice["message"]["content"]


class Client:
    """A connection that is kept, and made again when the server closes it."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=4 * ANSWER_S)

    def send(self, path: str, body: Any, *, method: str = "POST", headers: Mapping[str, str] | None = None) -> Reply:
        """The answer to a body: bytes as they are, anything else as JSON."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        given = {"content-type": "application/json", **(headers or {})}
        began = time.perf_counter()
        for last in (False, True):
            try:
                self._connection.request(method, path, data, given)
                response = self._connection.getresponse()
                found = response.read()
                return Reply(response.status, found, response.headers, time.perf_counter() - began)
            except (http.client.HTTPException, ConnectionError):
                self._connection.close()
                if last:
                    raise
        raise AssertionError

    def close(self) -> None:
        self._connection.close()


def check(reply: Reply, what: str) -> None:
    """Fails unless an answer is one that a sound server gives to anything at all."""
    assert reply.status < 500, f"{what}: {reply.status} {reply.body[:300]!r}"
    assert reply.seconds < ANSWER_S, f"{what}: {reply.seconds:.1f} s"
    if reply.kind.startswith("text/event-stream"):
        errors = [event["error"] for event in reply.events if isinstance(event, dict) and "error" in event]
        failed = [event["response"]["error"] for event in reply.events if event.get("type") == "response.failed"]
        assert all(LEAK.search(error["message"]) is None for error in failed), what
    else:
        errors = [reply.json["error"]] if reply.status >= 400 else []
    if reply.status >= 400:
        assert errors, what
    for error in errors:
        check_envelope(error, what)


def check_envelope(error: Any, what: str, *, sent: str = "") -> None:
    """Fails unless an error is ours, short, and says nothing of the inside; what was `sent` may be told back."""
    assert set(error) == {"message", "type", "param", "code"}, f"{what}: {error}"
    assert isinstance(error["message"], str), what
    assert 0 < len(error["message"]) <= 1000, f"{what}: {error}"
    told = [leak for leak in LEAK.findall(error["message"]) if leak not in sent]
    assert not told, f"{what}: {error['message']!r} tells {told}"
    assert not re.search(r"[\x00-\x1f\x7f]", error["message"]), f"{what}: {error['message']!r}"


def fields_of(route: str) -> tuple[str, ...]:
    """Every field that a route has a use for, those of `sampling_params` with that name before them."""
    if route == "/generate":
        return (*FIELDS, *(f"sampling_params.{name}" for name in GENERATE.entries))
    asked = {"/v1/chat/completions": CHAT, "/v1/responses": RESPONSES}.get(route, COMPLETIONS)
    return tuple(dict.fromkeys((*asked.fields, *asked.openai.entries, *asked.fastdeploy.entries)))


def with_value(route: str, field: str, value: Any) -> dict[str, Any]:
    """The normal request of a route with one field set to a value."""
    body = json.loads(json.dumps(NORMAL[route]))
    outer, _, inner = field.partition(".")
    if inner:
        body[outer][inner] = value
    else:
        body[outer] = value
        if field in ("input_ids", "input_embeds"):
            del body["text"]
        if field == "prompt_token_ids" and route != "/v1/responses":
            del body["messages" if "messages" in body else "prompt"]
    return body


def attacks(route: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """(name, body) of every field with every value."""
    for field in fields_of(route):
        for value in VALUES:
            yield f"{route} {field}={str(value)[:60]!r}", with_value(route, field, value)


def memory(server: Server) -> int:
    """Bytes of memory that a server has of its own."""
    lines = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("RssAnon", "VmSwap")))
