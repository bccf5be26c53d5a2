"""Fields far larger than anyone needs: refused at once, and the others hardly notice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from hostile import NORMAL, ROUTES, Client, Reply, check, memory
from servers import Server, shared

LONG = "x" * (4 << 20)
MANY = [7] * 600_000


@pytest.fixture
def server() -> Server:
    return shared("tiny")


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    made = Client(server)
    yield made
    made.close()


def with_param(route: str, name: str, value: Any) -> dict[str, Any]:
    if route != "/generate":
        return {**NORMAL[route], name: value}
    return {**NORMAL[route], "sampling_params": {**NORMAL[route]["sampling_params"], name: value}}


def refused(client: Client, route: str, body: Any) -> Reply:
    """A sound 400, after which the next normal request is served; memory is given back or was never taken."""
    before = memory(client._server)
    reply = client.send(route, body)
    check(reply, f"{route} {str(body)[:150]}")
    assert reply.status == 400, f"{route} {str(body)[:150]}: {reply.body[:200]!r}"
    assert memory(client._server) - before < 512 << 20
    assert client.send("/generate", NORMAL["/generate"]).status == 200
    return reply


TEXTS = (
    "temperature",
    "n",
    "stop",
    "seed",
    "logit_bias",
    "bad_words",
    "guided_regex",
    "guided_json",
    "response_format",
)
LISTS = ("temperature", "n", "stop", "stop_token_ids", "allowed_token_ids", "bad_words", "bad_words_token_ids")


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_of_megabytes_is_refused_in_any_field(client: Client, name: str) -> None:
    for value in (LONG, [LONG]):
        refused(client, "/v1/chat/completions", with_param("/v1/chat/completions", name, value))


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTS)
def test_a_list_of_hundred_thousands_is_refused_in_any_field(client: Client, name: str) -> None:
    for route in ROUTES:
        refused(client, route, with_param(route, name, MANY))


@pytest.mark.parametrize("name", ["xtc_protected_ids", "dry_breaker_token_ids", "dry_sequence_breakers", "logit_bias"])
def test_a_list_of_hundred_thousands_is_refused_in_our_own_fields(client: Client, name: str) -> None:
    refused(client, "/v1/completions", with_param("/v1/completions", name, MANY))


def test_the_tokens_whose_probabilities_are_asked_for_are_few(client: Client) -> None:
    for ids in (MANY, list(range(1025))):
        refused(client, "/generate", {**NORMAL["/generate"], "return_logprob": True, "token_ids_logprob": ids})


@pytest.mark.slow
def test_a_name_of_megabytes_and_thousands_of_names_are_refused(client: Client) -> None:
    for route in ROUTES:
        refused(client, route, {**NORMAL[route], LONG: 1})
        refused(client, route, with_param(route, LONG, 1))
        refused(client, route, {**NORMAL[route], **{f"temperaturf{i}": 1 for i in range(50_000)}})


@pytest.mark.slow
def test_texts_to_tokenise_and_tokens_to_decode_are_bounded(client: Client) -> None:
    for path in ("/tokenize", "/v1/tokenize"):
        refused(client, path, {"prompt": LONG})
        refused(client, path, {"prompt": ["a", LONG]})
        refused(client, path, {"prompt": ["a"] * 129})
    refused(client, "/detokenize", {"tokens": MANY})
    refused(client, "/detokenize", {"tokens": [[7]] * 1000})


NAMES = ("a\r\nx-other: b", "é", "名前", "\0", "\x1b[31m", "x" * 10_000, "a, b", "\u2028", "%s")


@pytest.mark.parametrize("name", NAMES)
def test_an_ignored_field_of_any_name_does_no_harm_to_the_header(client: Client, name: str) -> None:
    lenient = {"x-tirage-unknown-fields": "ignore"}
    for route in ROUTES:
        for body in ({**NORMAL[route], name: 1}, with_param(route, name, 1)):
            reply = client.send(route, body, headers=lenient)
            check(reply, f"{route} {name!r}")
            assert reply.status == 200
            assert "x-other" not in reply.headers
            assert 0 < len(reply.headers["x-tirage-ignored-fields"]) <= 1000
