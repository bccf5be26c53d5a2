"""Pages of other origins in a real browser: those that the operator allows call every route, and others none."""

from __future__ import annotations

from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest
from browser import needs_chromium, open_browser
from servers import shared

pytestmark = [needs_chromium, pytest.mark.slow]

CALLS = """async (base) => {
  const headers = {
    "content-type": "application/json", "authorization": "Bearer x", "x-stainless-os": "Linux",
    "x-stainless-retry-count": "0", "anthropic-version": "2023-06-01",
  };
  const call = (path, method, body, more = {}) =>
    fetch(base + path, { method, headers: { ...headers, ...more }, body: JSON.stringify(body) });
  const text = await call("/v1/completions", "POST", { prompt: "Once", max_tokens: 4, seed: 1 });
  const kept = await (await call("/v1/responses", "POST", { input: "Hi", max_output_tokens: 4 })).json();
  const dropped = await call("/v1/responses/" + kept.id, "DELETE");
  const refused = await call("/v1/completions", "POST", {}, { "content-type": "text/plain" });
  return {
    text: [text.status, (await text.json()).choices[0].text.length > 0, text.headers.get("x-request-id") !== null],
    dropped: (await dropped.json()).deleted,
    refused: [refused.status, (await refused.json()).error.type],
  };
}"""
"""What OpenAI's and Anthropic's clients send from a page, and what they read of the answers."""


class Page(BaseHTTPRequestHandler):
    """An empty page."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing is logged."""


@pytest.fixture
def pages() -> Iterator[int]:
    """The port of a server of pages."""
    with HTTPServer(("127.0.0.1", 0), Page) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def test_pages_of_an_allowed_origin_call_the_server_as_clients_do_and_others_do_not(pages: int) -> None:
    server = shared("tiny", "--cors-origin", f"http://127.0.0.1:{pages}")
    with open_browser() as browser:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{pages}/")
        found = page.evaluate(CALLS, server.url)
        page.goto(f"http://localhost:{pages}/")
        elsewhere = page.evaluate("(url) => fetch(url + '/v1/models').then(() => 'read', () => 'refused')", server.url)
    assert found == {"text": [200, True, True], "dropped": True, "refused": [415, "invalid_request_error"]}
    assert elsewhere == "refused"
