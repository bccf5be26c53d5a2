"""Budgets of requests and tokens by tenant, and of the bytes of bodies that wait."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from servers import Server

from tirage import LLM, ParamsError, Prompt, SamplingParams
from tirage.engine import Tenant
from tirage.errors import UnavailableError
from tirage.server.app import create_app
from tirage.server.auth import Auth, network_of
from tirage.server.engine_input import EngineInput
from tirage.server.errors import Refusal
from tirage.server.metrics import Metrics
from tirage.server.options import Options
from tirage.server.pending_bodies import PendingBodies
from tirage.server.rate_limit import METERED_PATHS, RateLimiter, duration
from tirage.server.replay import model_info_of
from tirage.server.request_manager import RequestManager

A, B, C = (Tenant(name) for name in "abc")


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
        limiter.take_request(A)
    with pytest.raises(Refusal) as refused:
        limiter.take_request(A)
    assert (refused.value.status, refused.value.headers) == (429, {"retry-after": "20"})
    assert refused.value.message == (
        "requests must be at most 3 per minute, and this request needs 1; try again in 20s"
    )
    limiter.take_request(B)
    clock.now += 20
    limiter.take_request(A)
    clock.now += 3600
    assert limiter.headers(A)["x-ratelimit-remaining-requests"] == "3"


def test_tokens_are_reserved_and_settled_with_what_was_used() -> None:
    clock = Clock()
    limiter = RateLimiter(tokens_per_minute=600, clock=clock)
    reserved = limiter.reserve_tokens(A, 500)
    assert reserved == 500
    with pytest.raises(Refusal, match=r"tokens must be at most 600 per minute, and this request needs 200; .* 10s"):
        limiter.reserve_tokens(A, 200)
    limiter.settle_tokens(A, reserved, 40)
    assert limiter.headers(A) == {
        "x-ratelimit-limit-tokens": "600",
        "x-ratelimit-remaining-tokens": "560",
        "x-ratelimit-reset-tokens": "4s",
    }
    clock.now += 4
    # A request that may need more than a minute has waits for the whole budget, and owes the rest.
    assert limiter.reserve_tokens(A, 5000) == 600
    limiter.settle_tokens(A, 600, 900)
    assert limiter.headers(A)["x-ratelimit-remaining-tokens"] == "0"
    assert limiter.headers(A)["x-ratelimit-reset-tokens"] == "1m30s"


@pytest.mark.parametrize(
    "refusal", [UnavailableError("the queue is full"), ParamsError("adapter must be a loaded one"), RuntimeError("odd")]
)
def test_what_was_reserved_for_a_request_that_the_engine_refuses_is_given_back(
    refusal: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise refusal

    with LLM("tiny") as llm:
        limiter, info = RateLimiter(tokens_per_minute=1000, clock=Clock()), model_info_of(llm, "tiny")
        manager = RequestManager(llm, Options.of(), metrics=Metrics(), model_info=info, rate_limiter=limiter)
        monkeypatch.setattr(llm.engine, "submit_all", refuse)
        asked = EngineInput(prompt=Prompt(text="hi"), params=SamplingParams(max_tokens=400))
        with pytest.raises(type(refusal), match=str(refusal)):
            asyncio.run(manager.submit([asked], tenant=A))
        assert limiter.headers(A)["x-ratelimit-remaining-tokens"] == "1000"
        manager.close()


def test_without_keys_a_made_up_one_has_no_budget_of_its_own() -> None:
    limiter = RateLimiter.of(Options.of(requests_per_minute=1))
    limiter.take_request(A)
    with pytest.raises(Refusal):
        limiter.take_request(B)
    by_address = RateLimiter.of(Options.of(requests_per_minute=1, tenant_by="address"))
    by_address.take_request(A)
    by_address.take_request(B)


def test_without_limits_nothing_is_counted() -> None:
    limiter = RateLimiter()
    limiter.take_request(A)
    assert limiter.reserve_tokens(A, 10**9) == 0
    limiter.settle_tokens(A, 0, 10**9)
    assert limiter.headers(A) == {}


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0, "0ms"), (0.0201, "21ms"), (1, "1s"), (1.5, "1.5s"), (360, "6m0s"), (61.25, "1m1.25s")]
)
def test_durations_are_spelled_as_openai_does(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_one_tenant_cannot_hold_all_the_bytes_of_bodies() -> None:
    bodies = PendingBodies(1000)
    bodies.reserve(A, 750)
    with pytest.raises(Refusal, match="too many requests"):
        bodies.reserve(A, 1)
    bodies.reserve(B, 250)
    with pytest.raises(Refusal):
        bodies.reserve(C, 1)
    bodies.release(A, 750)
    bodies.reserve(C, 333)
    alone = PendingBodies(1000)
    alone.reserve(Tenant(), 1000)
    with pytest.raises(Refusal):
        alone.reserve(Tenant(), 1)


def tenant_of(address: str, key: str | None, secret: bytes | None = b"the same", **options: Any) -> Tenant:
    """The tenant that a request from an address with a key belongs to."""
    found: dict[str, Any] = {
        "type": "http", "path": "/", "client": (address, 1),
        "headers": [] if key is None else [(b"authorization", f"Bearer {key}".encode())],
    }  # fmt: skip

    async def app(scope: Any, receive: Any, send: Any) -> None:
        found.update(scope)

    auth = Auth(app, admin_key=None, **{"api_keys": (), **options})
    if secret is not None:
        auth._secret = secret
    asyncio.run(auth(found, None, None))  # type: ignore[arg-type]
    return found["tirage.tenant"]


def test_a_key_has_the_weight_that_its_place_gives_it() -> None:
    keys = {"api_keys": ("a", "b"), "key_weights": (2, 5), "secret": None}
    assert [tenant_of("10.0.0.1", key, **keys).weight for key in ("a", "b")] == [2, 5]
    assert tenant_of("10.0.0.1", "b", api_keys=("a", "b"), secret=None).weight == 1
    with pytest.raises(ParamsError, match=r"--key-weight must be given once for each --api-key .*, got 1 for 2 keys"):
        Options.of(api_key=("a", "b"), key_weight=(2,))
    with pytest.raises(ParamsError, match="--key-weight must be"):
        Options.of(api_key=("a",), key_weight=(0,))


def test_a_heavier_tenant_may_hold_more_bodies() -> None:
    bodies, heavy = PendingBodies(1000), Tenant("h", 3)
    bodies.reserve(A, 250)
    bodies.reserve(heavy, 500)
    # The last quarter: each up to its share, 250 and 750, and nobody beyond half of all.
    with pytest.raises(Refusal):
        bodies.reserve(A, 1)
    bodies.release(heavy, 500)
    bodies.reserve(A, 500)
    bodies.reserve(heavy, 250)


def test_without_keys_clients_can_be_told_apart_by_their_address() -> None:
    assert tenant_of("10.0.0.1", None) == tenant_of("10.0.0.2", None) == Tenant()
    assert tenant_of("10.0.0.1", None, by_address=True) != tenant_of("10.0.0.2", None, by_address=True)
    assert tenant_of("10.0.0.1", "a", by_address=True) == tenant_of("10.0.0.1", "b", by_address=True)


def test_an_ipv6_client_is_its_network() -> None:
    assert network_of({"client": ("2001:db8:1:2::1", 1)}) == network_of({"client": ("2001:db8:1:2:ffff::9", 2)})
    assert network_of({"client": ("2001:db8:1:2::1", 1)}) != network_of({"client": ("2001:db8:1:3::1", 1)})
    assert network_of({"client": None}) == b""


PLAIN_PATHS = {
    "/abort_request", "/check_constraint", "/flush_cache", "/tokenize", "/v1/tokenize", "/detokenize", "/v1/detokenize",
    "/v1/messages/count_tokens", "/v1/responses/{response_id}/cancel",
    "/load_lora_adapter", "/unload_lora_adapter", "/v1/load_lora_adapter", "/v1/unload_lora_adapter",
}  # fmt: skip
"""The routes that take a body, or none, and do not run the model."""


def test_every_route_that_runs_the_model_is_metered() -> None:
    options = Options(lora_root="/", admin_key="boss")
    paths = {path for path, methods in create_app(options).openapi()["paths"].items() if "post" in methods}
    assert paths - PLAIN_PATHS == METERED_PATHS


@pytest.mark.slow
def test_the_second_request_of_a_minute_is_refused_on_every_metered_route() -> None:
    paths = sorted(METERED_PATHS)
    keys = [flag for number in range(len(paths)) for flag in ("--api-key", f"key{number}")]
    with Server("tiny", *keys, "--requests-per-minute", "1") as server:
        for number, path in enumerate(paths):
            headers = {"authorization": f"Bearer key{number}"}
            answers = [server.post(path, {"wrong": 1}, headers=headers) for _ in range(2)]
            assert [answer.status_code for answer in answers] == [400, 429], path


@pytest.mark.slow
def test_a_server_with_limits_tells_them_and_answers_429() -> None:
    flags = ("--api-key", "one", "--api-key", "two", "--requests-per-minute", "2", "--tokens-per-minute", "60")
    body = {"prompt": "Once", "max_tokens": 3, "ignore_eos": True}
    with Server("tiny", *flags) as server:

        def ask(key: str) -> Any:
            return server.post("/v1/completions", body, headers={"authorization": f"Bearer {key}"})

        answers = [ask("one") for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200, 200, 429]
        assert answers[0].headers["x-ratelimit-limit-requests"] == "2"
        assert answers[0].headers["x-ratelimit-remaining-requests"] == "1"
        assert int(answers[0].headers["x-ratelimit-remaining-tokens"]) < 60
        assert answers[2].json()["error"]["code"] == "rate_limit_exceeded"
        assert answers[2].json()["error"]["type"] == "rate_limit_error"
        assert 1 <= int(answers[2].headers["retry-after"]) <= 30
        assert ask("two").status_code == 200
        large = server.post(
            "/v1/completions", {**body, "n": 100, "max_tokens": 50}, headers={"authorization": "Bearer two"}
        )
        assert large.status_code == 429
        assert "tokens must be at most 60 per minute" in large.json()["error"]["message"]
        assert "x-ratelimit-limit-requests" not in server.get("/health").headers
