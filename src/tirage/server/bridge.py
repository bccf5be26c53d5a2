"""From calls to running requests: what the desk asks of the engine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from tirage.engine import Request, as_prompt
from tirage.llm import LLM

if TYPE_CHECKING:
    from tirage.server.desk import Call


def prepare(llm: LLM, call: Call, tenant: str) -> Request:
    """The engine's request for a call; for a thread of the pool, because it tokenises and compiles."""
    if call.messages is not None:
        given = dict(call.template_args)
        tools = given.pop("tools", None)
        return llm.chat_request(call.messages, call.params, salt=tenant, tools=tools, arguments=given)
    return llm.request(replace(as_prompt(call.prompt), salt=tenant), call.params, hidden_states=call.hidden_states)


def submit_all(engine: Any, requests: Sequence[Request], *, buffer: int, patience_s: float | None) -> list[Any]:
    """Handles of requests that all run."""
    return engine.submit_all(requests, buffer=buffer, patience_s=patience_s)
