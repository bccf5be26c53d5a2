"""The server under audit: its requests, counted and limited, in the fields of its dialect."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tirage.audit.limits import AuditLimits
from tirage.audit.position import AuditPrompt
from tirage.dialects import DialectError
from tirage.engine import LogprobEntry
from tirage.errors import ModelError, ParamsError, RemoteError, TirageError
from tirage.params import SamplingParams
from tirage.remote.answer import AnswerPart
from tirage.remote.connection import RemoteServer
from tirage.remote.event_loop import all_or_first_failure
from tirage.remote.formats import FORMATS
from tirage.remote.llm import checked
from tirage.remote.request import RemoteRequest
from tirage.remote.routes import OURS, REMOTE_DIALECTS, RemoteDialect, RemoteRoute
from tirage.remote.values import member, members, typed


class NotTestedError(TirageError):
    """What was to be tested cannot be; the message says why."""


class RefusedError(NotTestedError):
    """A request that the server refuses, in its own words."""


@dataclass(slots=True, kw_only=True)
class RequestCount:
    """What has been asked so far: the number of requests, and when the audit began."""

    requests: int = 0
    started: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """The seconds since the beginning."""
        return time.monotonic() - self.started


class AuditedServer:
    """A server that is asked in one dialect, at most `limits.requests` times and for `limits.seconds` seconds.

    `name` is the model's name in requests, `owner` what the server calls itself; both are known after `look`. `preset`
    is the meaning that requests are written in. `answering` are the names of models that answers to `name` have told.
    """

    def __init__(self, connection: RemoteServer, dialect: str | None, *, name: str | None, limits: AuditLimits) -> None:
        self._connection, self._limits = connection, limits
        self._dialect, self.name, self.owner = dialect, name or "", ""
        self._named = name is not None
        self.answering: set[str] = set()
        self._running = asyncio.Semaphore(limits.concurrency)
        self.count = RequestCount()
        self._known: dict[tuple[str, SamplingParams], dict[str, Any]] = {}
        self.advance: Callable[[], None] = lambda: None

    @property
    def dialect_name(self) -> str:
        """The name of the dialect: the one given, or the one that the server's own name stands for."""
        if self._dialect is not None:
            return self._dialect
        return next((name for name, each in REMOTE_DIALECTS.items() if self.owner in each.owners), "openai")

    @property
    def dialect(self) -> RemoteDialect:
        """The routes of the dialect."""
        return REMOTE_DIALECTS[self.dialect_name]

    @property
    def preset(self) -> str:
        """The meaning that the dialect gives to parameters."""
        return self.dialect.prompts.dialect.preset

    @property
    def top(self) -> int:
        """How many of the likeliest tokens the server lists."""
        return 5 if self.dialect_name == "openai" else 20

    async def look(self) -> None:
        """Finds out what the server calls itself, and the model's name.

        One that has no `/v1/models` is asked all the same, by the name that was given. Raises RemoteError for a server
        that is not there, and ModelError for one of several models where none was named.
        """
        try:
            found = typed(await self._within(self._connection.get("/v1/models")), dict, "models")
        except RemoteError as error:
            if error.status != 404:
                raise
            return
        listed = members(found, "data", dict)
        self.owner = member(listed[0], "owned_by", str, "") if listed else ""
        names = [member(each, "id", str) for each in listed if not each.get("parent")]
        if not self._named and len(names) > 1:
            raise ModelError(f"model_name must be one of {', '.join(names[:20])}, as the server has several; got none")
        self.name = self.name if self._named else (names or [""])[0]

    def has(self, *names: str, route: RemoteRoute | None = None) -> bool:
        """Whether the dialect has fields for these of our parameters."""
        table = (route or self.dialect.prompts).dialect
        return set(names) <= {name for entry in table.entries.values() for name in entry.ours}

    async def ask(self, prompt: AuditPrompt, params: SamplingParams, *, model: str | None = None) -> AnswerPart:
        """The answer to a prompt, for parameters in the meaning of the dialect.

        Raises NotTestedError for what cannot be asked or is refused, and for an audit whose time or requests are spent;
        RemoteError for a server that fails.
        """
        route = self.dialect.prompts
        fields = self._fields(route, params)
        text, ids = (prompt, None) if isinstance(prompt, str) else (None, prompt)
        request = RemoteRequest(params=params, seed=0, fields=fields, text=text, token_ids=ids)
        return await self._answer(route, request, model)

    async def ask_chat(self, message: str, params: SamplingParams) -> AnswerPart:
        """The answer to a user's message, as `ask` for a prompt."""
        route = self.dialect.chats
        messages = [{"role": "user", "content": message}]
        fields = self._fields(route, params)
        return await self._answer(route, RemoteRequest(params=params, seed=0, fields=fields, messages=messages), None)

    async def ask_all(self, prompts: Sequence[tuple[AuditPrompt, SamplingParams]]) -> list[AnswerPart]:
        """The answers to several requests, asked at once; the first failure ends the others."""
        return await all_or_first_failure(self.ask(prompt, params) for prompt, params in prompts)

    def _fields(self, route: RemoteRoute, params: SamplingParams) -> dict[str, Any]:
        """The fields that say what `params` say, all of them. Raises NotTestedError where they cannot say it.

        Requests that differ in their seeds alone are written once.
        """
        if params.seed is None:
            return self._written(route, params)
        plain = params.replace(seed=1)
        if (route.path, plain) not in self._known:
            self._known[route.path, plain] = self._written(route, plain)
        seeds = [entry.name for entry in route.dialect.entries.values() if "seed" in entry.ours]
        known = self._known[route.path, plain]
        return {**known, **{name: params.seed for name in seeds if name in known}}

    def _written(self, route: RemoteRoute, params: SamplingParams) -> dict[str, Any]:
        try:
            plain, lost = route.dialect.written(params, explicit=True)
        except (DialectError, ParamsError) as error:
            raise NotTestedError(f"{route.dialect.name} cannot be asked for it: {error}") from error
        lost = [name for name in lost if name not in ("logprobs_mode", "semantics")]
        if lost:
            raise NotTestedError(f"{route.dialect.name} has no field for {' and '.join(lost)}")
        if self.owner == OURS:
            data = params.to_dict()
            plain |= {name: data[name] for name in ("semantics", "logprobs_mode")}
        return plain

    async def _answer(self, route: RemoteRoute, request: RemoteRequest, model: str | None) -> AnswerPart:
        form = FORMATS[route.form](route, request)
        body = {**form.body(self.name if model is None else model), **self._beside}
        async with self._running:
            if self.count.requests >= self._limits.requests:
                raise NotTestedError(
                    f"the audit's {self._limits.requests} requests are spent; give more (max_requests)"
                )
            self.count.requests += 1
            self.advance()
            try:
                answer = checked(await self._within(self._connection.post(route.path, body)))
            except ParamsError as error:
                raise RefusedError(str(error)) from error
        if model is None and isinstance(answer, dict) and isinstance(told := answer.get("model"), str):
            self.answering.add(told)
        return with_ids(form.read(answer))

    @property
    def _beside(self) -> dict[str, Any]:
        """Fields that ask for ids in place of tokens' texts, of which several tokens may have the same."""
        return {"return_tokens_as_token_ids": True} if self.owner == "vllm" else {}

    async def _within(self, answer: Any) -> Any:
        """What is awaited, unless the audit's time is spent before."""
        left = self._limits.seconds - self.count.seconds
        try:
            async with asyncio.timeout(max(left, 0.0)):
                return await answer
        except TimeoutError:
            spent = f"the audit's {self._limits.seconds:g} seconds are spent; give more (max_seconds)"
            raise NotTestedError(spent) from None


_AS_ID = "token_id:"


def with_ids(answer: AnswerPart) -> AnswerPart:
    """The answer with ids in its entries where their texts are `token_id:N`."""
    samples = tuple(replace(each, logprobs=tuple(map(_with_id, each.logprobs))) for each in answer.samples)
    return replace(answer, samples=samples)


def _with_id(entry: LogprobEntry) -> LogprobEntry:
    top = tuple(map(_with_id, entry.top))
    number = entry.text.removeprefix(_AS_ID)
    if number == entry.text or not number.isdecimal():
        return replace(entry, top=top)
    return replace(entry, token_id=int(number), top=top)
