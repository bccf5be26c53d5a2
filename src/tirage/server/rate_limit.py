"""Requests and tokens per minute of each tenant, with the headers that OpenAI's API has for them."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from tirage.engine import Tenant
from tirage.server.errors import Refusal, respond
from tirage.server.options import Options

METERED_PATHS = frozenset({
    "/generate", "/v1/completions", "/v1/chat/completions", "/v1/responses", "/v1/messages", "/explain",
    "/score", "/v1/score", "/generative_scoring",
})  # fmt: skip
"""The routes that run the model."""
# Tenants whose budgets are remembered: addresses could otherwise fill the memory.
_MEMORY = 10_000
_PERIOD_S = 60.0


@dataclass(slots=True)
class TokenBucket:
    """A budget of `capacity` a minute, which fills evenly and is full at first; `level` may be negative."""

    capacity: int
    level: float
    at: float

    def fill(self, now: float) -> None:
        """Adds what has come since the last call."""
        self.level = min(self.level + (now - self.at) * self.capacity / _PERIOD_S, self.capacity)
        self.at = now

    def seconds_until(self, level: float) -> float:
        """The time until the bucket has reached a level, 0.0 if it has."""
        return max(level - self.level, 0.0) * _PERIOD_S / self.capacity


class RateLimiter:
    """The budgets of tenants, of requests and of tokens; None is no limit. `clock` gives seconds."""

    def __init__(
        self,
        *,
        requests_per_minute: int | None = None,
        tokens_per_minute: int | None = None,
        by_tenant: bool = True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        limits = {"requests": requests_per_minute, "tokens": tokens_per_minute}
        self._limits = {kind: limit for kind, limit in limits.items() if limit is not None}
        self._by_tenant, self._clock = by_tenant, clock
        self._buckets: OrderedDict[tuple[str, Tenant], TokenBucket] = OrderedDict()

    @classmethod
    def of(cls, options: Options) -> RateLimiter:
        """The limiter of a server. Where clients need no key they could invent one, so all of them share a budget."""
        return cls(
            requests_per_minute=options.requests_per_minute,
            tokens_per_minute=options.tokens_per_minute,
            by_tenant=bool(options.api_key) or options.tenant_by == "address",
        )

    def take_request(self, tenant: Tenant) -> None:
        """Counts a request; raises Refusal 429 when the tenant has had too many."""
        self._take("requests", tenant, 1)

    def reserve_tokens(self, tenant: Tenant, count: int) -> int:
        """Takes the tokens that a request may come to, or the whole budget if they are more; how many it took.

        Raises Refusal 429 while the tenant does not have them.
        """
        return self._take("tokens", tenant, count)

    def settle_tokens(self, tenant: Tenant, reserved: int, used: int) -> None:
        """Gives back what a request has not used of its tokens, and takes what it has used beyond them."""
        bucket = self._bucket("tokens", tenant)
        if bucket is not None:
            bucket.level = min(bucket.level + reserved - used, bucket.capacity)

    def headers(self, tenant: Tenant) -> dict[str, str]:
        """OpenAI's headers: the limits, what is left of them, and when they are whole again."""
        found: dict[str, str] = {}
        for kind in self._limits:
            bucket = self._bucket(kind, tenant)
            assert bucket is not None
            found[f"x-ratelimit-limit-{kind}"] = str(bucket.capacity)
            found[f"x-ratelimit-remaining-{kind}"] = str(max(math.floor(bucket.level), 0))
            found[f"x-ratelimit-reset-{kind}"] = duration(bucket.seconds_until(bucket.capacity))
        return found

    def _take(self, kind: str, tenant: Tenant, count: int) -> int:
        bucket = self._bucket(kind, tenant)
        if bucket is None:
            return 0
        count = min(count, bucket.capacity)
        if bucket.level < count:
            raise too_many(kind, bucket, count)
        bucket.level -= count
        return count

    def _bucket(self, kind: str, tenant: Tenant) -> TokenBucket | None:
        """The present budget; None where there is no limit."""
        if kind not in self._limits:
            return None
        key, now = (kind, tenant if self._by_tenant else Tenant()), self._clock()
        bucket = self._buckets.setdefault(key, TokenBucket(self._limits[kind], self._limits[kind], now))
        self._buckets.move_to_end(key)
        while len(self._buckets) > _MEMORY:
            self._buckets.popitem(last=False)
        bucket.fill(now)
        return bucket


class RateLimitMiddleware:
    """ASGI middleware that counts the requests for METERED_PATHS, and adds the headers to their answers."""

    def __init__(self, app: ASGIApp, *, limiter: RateLimiter) -> None:
        self._app, self._limiter = app, limiter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] not in METERED_PATHS:
            await self._app(scope, receive, send)
            return
        tenant = scope["tirage.tenant"]

        async def answer(message: Message) -> None:
            if message["type"] == "http.response.start":
                own = [(name.encode(), value.encode()) for name, value in self._limiter.headers(tenant).items()]
                message = {**message, "headers": [*message.get("headers", ()), *own]}
            await send(message)

        try:
            self._limiter.take_request(tenant)
        except Refusal as refusal:
            await respond(refusal)(scope, receive, answer)
            return
        await self._app(scope, receive, answer)


def too_many(kind: str, bucket: TokenBucket, count: int) -> Refusal:
    """The answer to a client whose budget does not suffice."""
    wait_s = bucket.seconds_until(count)
    return Refusal(
        429,
        f"{kind} must be at most {bucket.capacity} per minute, and this request needs {count}; try again in "
        f"{duration(wait_s)}",
        code="rate_limit_exceeded",
        headers={"retry-after": str(math.ceil(wait_s))},
    )


def duration(seconds: float) -> str:
    """Seconds as OpenAI's headers have them, such as `6m0s`, `1.5s` or `20ms`; rounded up to milliseconds."""
    whole = math.ceil(seconds * 1000)
    if whole < 1000:
        return f"{whole}ms"
    minutes, rest = divmod(whole, 60_000)
    return f"{minutes}m{rest / 1000:g}s" if minutes else f"{rest / 1000:g}s"
