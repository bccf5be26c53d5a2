"""Budgets of requests and tokens by tenant, and of the bytes of bodies that wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from servers import Server

from tirage.server.auth import Auth, network_of
from tirage.server.errors import Refusal
from tirage.server.options import Options
from tirage.server.pending_bodies import PendingBodies
from tirage.server.rate_limit import RateLimiter, duration


class Clock:
    """Seconds that pass when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_budget_is_spent_and_comes_back_evenly() -> None:
    clock = Clock()
    limiter = RateLimiter(requests_per_minute=3, clock=clock)
    for _ in range(3):
        limiter.take_request("a")
    with pytest.raises(Refusal) as refused:
        limiter.take_request("a")
    assert (refused.value.status, refused.value.headers) == (429, {"retry-after": "20"})
    assert refused.value.message == (
        "requests must be at most 3 per minute, and this request needs 1; try again in 20s"
    )
    limiter.take_request("b")
    clock.now += 20
    limiter.take_request("a")
    clock.now += 3600
    assert limiter.headers("a")["x-ratelimit-remaining-requests"] == "3"


def test_tokens_are_reserved_and_settled_with_what_was_used() -> None:
    clock = Clock()
    limiter = RateLimiter(tokens_per_minute=600, clock=clock)
    reserved = limiter.reserve_tokens("a", 500)
    assert reserved == 500
    with pytest.raises(Refusal, match=r"tokens must be at most 600 per minute, and this request needs 200; .* 10s"):
        limiter.reserve_tokens("a", 200)
    limiter.settle_tokens("a", reserved, 40)
    assert limiter.headers("a") == {
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "560",
        "x-ratelimit-reset-tokens": "4s",
    }
    clock.now += 4
    # A request that may need more than a minute has waits for the whole budget, and owes the rest.
    assert limiter.reserve_tokens("a", 5000) == 600
    limiter.settle_tokens("a", 600, 900)
    assert limiter.headers("a")["x-ratelimit-remaining-tokens"] == "0"
    assert limiter.headers("a")["x-ratelimit-reset-tokens"] == "1m30s"


def test_without_keys_a_made_up_one_has_no_budget_of_its_own() -> None:
    limiter = RateLimiter.of(Options.of(requests_per_minute=1))
    limiter.take_request("a")
    with pytest.raises(Refusal):
        limiter.take_request("b")
    by_address = RateLimiter.of(Options.of(requests_per_minute=1, tenant_by="address"))
    by_address.take_request("a")
    by_address.take_request("b")


def test_without_limits_nothing_is_counted() -> None:
    limiter = RateLimiter()
    limiter.take_request("a")
    assert limiter.reserve_tokens("a", 10**9) == 0
    limiter.settle_tokens("a", 0, 10**9)
    assert limiter.headers("a") == {}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0ms"), (0.0201, "21ms"), (1, "1s"), (1.5, "1.5s"), (360, "6m0s"), (61.25, "1m1.25s")]
)
def test_durations_are_spelled_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_one_tenant_cannot_hold_all_the_bytes_of_bodies() -> None:
    bodies = PendingBodies(1000)
    bodies.reserve("a", 750)
    with pytest.raises(Refusal, match="too many requests"):
        bodies.reserve("a", 1)
    bodies.reserve("b", 250)
    with pytest.raises(Refusal):
        bodies.reserve("c", 1)
    bodies.release("a", 750)
    bodies.reserve("c", 333)
    alone = PendingBodies(1000)
    alone.reserve("", 1000)
    with pytest.raises(Refusal):
        alone.reserve("", 1)


def tenant_of(address: str, key: str | None, **options: Any) -> str:
    """The tenant that a request from an address with a key belongs to."""
    found: dict[str, Any] = {
        "type": "http", "path": "/", "client": (address, 1),
        "headers": [] if key is None else [(b"authorization", f"Bearer {key}".encode())],
    }  # fmt: skip

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.update(scope)

    auth = Auth(app, admin_key=None, **{"api_keys": (), **options})
    auth._secret = b"the same in every test"
    asyncio.run(auth(found, None, None))  # type: ignore[arg-type]
    return found["tirage.tenant"]


def test_without_keys_clients_can_be_told_apart_by_their_address() -> None:
    assert tenant_of("10.0.0.1", None) == tenant_of("10.0.0.2", None) == ""
    assert tenant_of("10.0.0.1", None, by_address=True) != tenant_of("10.0.0.2", None, by_address=True)
    assert tenant_of("10.0.0.1", "a", by_address=True) == tenant_of("10.0.0.1", "b", by_address=True)


def test_an_ipv6_client_is_its_network() -> None:
    assert network_of({"client": ("2001:db8:1:2::1", 1)}) == network_of({"client": ("2001:db8:1:2:ffff::9", 2)})
    assert network_of({"client": ("2001:db8:1:2::1", 1)}) != network_of({"client": ("2001:db8:1:3::1", 1)})
    assert network_of({"client": None}) == b""


@pytest.mark.slow
def test_a_server_with_limits_tells_them_and_answers_429() -> None:
    flags = ("--api-key", "one", "--api-key", "two", "--requests-per-minute", "2", "--tokens-per-minute", "1000")
    body = {"prompt": "Once", "max_tokens": 3, "ignore_eos": True}
    with Server("tiny", *flags) as server:

        def ask(key: str) -> Any:
            return server.post("/v1/completions", body, headers={"authorization": f"Bearer {key}"})

        answers = [ask("one") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[0].headers["x-ratelimit-limit-requests"] == "2"
        assert answers[0].headers["x-ratelimit-remaining-requests"] == "1"
        assert int(answers[0].headers["x-ratelimit-remaining-tokens"]) < 1000
        assert answers[2].json()["error"]["code"] == "rate_limit_exceeded"
        assert answers[2].json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(answers[2].headers["retry-after"]) <= 30
        assert ask("two").status_code == 200
        large = server.post(
            "/v1/completions", {**body, "n": 100, "max_tokens": 50}, headers={"authorization": "Bearer two"}
        )
        assert large.status_code == 429
        assert "tokens must be at most 1000 per minute" in large.json()["error"]["message"]
        assert "x-ratelimit-limit-requests" not in server.get("/health").headers
