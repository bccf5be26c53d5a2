"""A proxy before a server of ours, in the form of `/generate`, that breaks one promise about parameters."""

from __future__ import annotations

import asyncio
import copy
import random
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from tirage.semantics import PRESETS

Body = dict[str, Any]
_LAW = ["temperature", "top_p", "top_k", "min_p"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A fault: what it does to a request's body and to its answer, and the check that must name it."""

    found: str
    ask: Callable[[Body, int], Body] = lambda body, running: body
    answer: Callable[[Any, Body], Any] = lambda answer, body: answer


def dropped(*names: str) -> Callable[[Body, int], Body]:
    """Leaves fields of `sampling_params` out."""
    return lambda body, running: changed(body, **dict.fromkeys(names))


def changed(body: Body, **values: Any) -> Body:
    """The body with other fields of `sampling_params`, or beside them; None leaves one out."""
    new = copy.deepcopy(body)
    for name, value in values.items():
        inner = new if name in new else new["sampling_params"]
        inner.pop(name, None)
        if value is not None:
            inner[name] = value
    return new


def mapped(name: str, change: Callable[[Any], Any]) -> Callable[[Body, int], Body]:
    """Changes a field of `sampling_params`."""
    return lambda body, running: changed(body, **{name: change(body["sampling_params"][name])})


def options(**values: Any) -> Callable[[Body, int], Body]:
    """Changes options of the meaning of parameters."""
    return lambda body, running: changed(
        body, semantics=PRESETS["canonical"].replace(name="faulty", **values).to_dict()
    )


def _top_k(value: int) -> int:
    return value + 1 if value > 0 else value


def _seed_under_load(body: Body, running: int) -> Body:
    return changed(body, sampling_seed=random.randrange(2**31)) if running > 1 else body


def _sharper(answer: Any, body: Body) -> Any:
    """Log-probabilities as of temperature 0.5, normalised over the listed ones."""
    import math

    for each in answer if isinstance(answer, list) else [answer]:
        meta = each["meta_info"]
        for own, top in zip(
            meta.get("output_token_logprobs") or [], meta.get("output_top_logprobs") or [], strict=False
        ):
            if top:
                total = math.log(sum(math.exp(2 * one[0]) for one in top))
                own[0] = 2 * own[0] - total
                for one in top:
                    one[0] = 2 * one[0] - total
    return answer


def _too_large(answer: Any, body: Body) -> Any:
    """Log-probabilities that sum to more than 1."""
    for each in answer if isinstance(answer, list) else [answer]:
        for top in each["meta_info"].get("output_top_logprobs") or []:
            for one in top or []:
                one[0] += 0.4
    return answer


def _noisy_greedy(body: Body, running: int) -> Body:
    greedy = body["sampling_params"]["temperature"] == 0 and random.random() < 0.3
    return changed(body, temperature=1.0, sampling_seed=random.randrange(2**31)) if greedy else body


def _copies(answer: Any, body: Body) -> Any:
    return [{**answer[0], "index": i} for i in range(len(answer))] if isinstance(answer, list) else answer


def _one_less(answer: Any, body: Body) -> Any:
    return answer[:-1] if isinstance(answer, list) and len(answer) > 1 else answer


def _negated(value: Any) -> Any:
    return {key: -bias for key, bias in value.items()} if value else value


_OTHERS = [stage for stage in PRESETS["canonical"].stages if stage not in {"temperature", "adaptive_p"}]
LATE_TEMPERATURE = (*_OTHERS, "temperature", "adaptive_p")
"""The stages of `canonical` with the temperature behind all filters, and nothing else changed; adaptive-p is last."""

FAULTS: Mapping[str, Fault] = {
    "temperature ignored": Fault(found="temperature", ask=mapped("temperature", lambda t: 1.0 if t else t)),
    "temperature squared": Fault(found="temperature", ask=mapped("temperature", lambda t: t**2)),
    "top_k ignored": Fault(found="top_k", ask=dropped("top_k")),
    "top_k off by one": Fault(found="top_k", ask=mapped("top_k", _top_k)),
    "top_p ignored": Fault(found="top_p", ask=dropped("top_p")),
    "top_p too small": Fault(found="top_p", ask=mapped("top_p", lambda p: p if p == 1 else max(p - 0.3, 0.01))),
    "min_p ignored": Fault(found="min_p", ask=dropped("min_p")),
    "min_p squared": Fault(found="min_p", ask=mapped("min_p", lambda p: p**2)),
    "top_p before temperature": Fault(found="preset", ask=options(stages=LATE_TEMPERATURE)),
    "frequency_penalty ignored": Fault(found="frequency_penalty", ask=dropped("frequency_penalty")),
    "frequency_penalty counts the prompt": Fault(found="frequency_penalty", ask=options(frequency_history="both")),
    "presence_penalty ignored": Fault(found="presence_penalty", ask=dropped("presence_penalty")),
    "presence_penalty added": Fault(found="presence_penalty", ask=mapped("presence_penalty", lambda p: -p)),
    "repetition_penalty ignored": Fault(found="repetition_penalty", ask=dropped("repetition_penalty")),
    "repetition_penalty inverted": Fault(found="repetition_penalty", ask=mapped("repetition_penalty", lambda r: 1 / r)),
    "logit_bias ignored": Fault(found="logit_bias", ask=dropped("logit_bias")),
    "logit_bias subtracted": Fault(
        found="logit_bias",
        ask=lambda body, running: changed(body, logit_bias=_negated(body["sampling_params"].get("logit_bias"))),
    ),
    "seed ignored": Fault(found="seed", ask=lambda body, running: changed(body, sampling_seed=random.randrange(2**31))),
    "one seed for all": Fault(found="another seed", ask=lambda body, running: changed(body, sampling_seed=7)),
    "seed depends on the batch": Fault(found="seed under load", ask=_seed_under_load),
    "copies": Fault(found="n", answer=_copies),
    "a sample too few": Fault(found="n", answer=_one_less),
    "log-probabilities of another temperature": Fault(found="logprobs", answer=_sharper),
    "log-probabilities that sum to more": Fault(found="logprobs", answer=_too_large),
    "greedy draws at random now and then": Fault(found="greedy", ask=_noisy_greedy),
    "stop ignored": Fault(found="stop", ask=dropped("stop")),
    "stop left in the text": Fault(found="stop", ask=lambda body, running: changed(body, no_stop_trim=True)),
    "a token too many": Fault(found="max_tokens", ask=mapped("max_new_tokens", lambda limit: limit + 1)),
    "min_tokens ignored": Fault(found="min_tokens", ask=dropped("min_new_tokens")),
    "schema ignored": Fault(found="json schema", ask=dropped("json_schema")),
}
"""Every planted fault by its name."""


class FaultyServer:
    """A proxy before the server at `url`; within its block `fault` can be changed at any time."""

    def __init__(self, url: str, fault: Fault | None = None) -> None:
        self._target, self.fault, self._running = url, fault, 0
        self._client: httpx.AsyncClient | None = None
        routes = [Route("/generate", self._generate, methods=["POST"]), Route("/v1/models", self._models)]
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        config = uvicorn.Config(Starlette(routes=routes), log_level="warning", lifespan="off", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> FaultyServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()

    def _serve(self) -> None:
        async def run() -> None:
            async with httpx.AsyncClient(base_url=self._target, timeout=60) as self._client:
                await self._server.serve([self._socket])

        asyncio.run(run())

    async def _models(self, request: Request) -> Response:
        assert self._client is not None
        found = await self._client.get("/v1/models")
        return JSONResponse(found.json(), found.status_code)

    async def _generate(self, request: Request) -> Response:
        assert self._client is not None
        body = await request.json()
        self._running += 1
        try:
            # What came with this request has been counted once the loop has run.
            await asyncio.sleep(0.002)
            asked = body if self.fault is None else self.fault.ask(body, self._running)
            found = await self._client.post("/generate", json=asked)
        finally:
            self._running -= 1
        answer = found.json()
        if found.status_code == 200 and self.fault is not None:
            answer = self.fault.answer(answer, body)
        return JSONResponse(answer, found.status_code)
