"""`POST /v1/messages` and `/v1/messages/count_tokens`: Anthropic's Messages API."""

from __future__ import annotations

import re

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tirage.llm import LLM
from tirage.server.admission import check_length
from tirage.server.engine_input import EngineInput
from tirage.server.errors import Refusal
from tirage.server.http_request import in_worker_thread, is_lenient, manager_of, read_json, tenant_of
from tirage.server.routes.chat import read_chat, submit_chat
from tirage.server.routes.messages_events import AnthropicAnswer
from tirage.server.routes.messages_request import COUNT_BODY, MESSAGES_BODY, read_messages_request
from tirage.server.routes.openai_answer import model_of
from tirage.server.routes.openai_request import OpenAIRequest

router = APIRouter(tags=["anthropic"])
_VERSION = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


@router.post("/v1/messages", openapi_extra=MESSAGES_BODY)
async def messages(raw_request: Request) -> Response:
    """The assistant's next message in Anthropic's form, as JSON or as a stream of events."""
    manager, request = manager_of(raw_request), await read_request(raw_request)
    running = await submit_chat(request, raw_request, prompt="messages", must_fit=False)
    model, request_id = model_of(running.group, manager), raw_request.scope["tirage.id"]
    return AnthropicAnswer(request, running.group, running.reader, model=model, request_id=request_id).response()


@router.post("/v1/messages/count_tokens", openapi_extra=COUNT_BODY)
async def count_tokens(raw_request: Request) -> Response:
    """The number of tokens of the prompt that the same body has on `/v1/messages`; it may exceed the context."""
    manager, request = manager_of(raw_request), await read_request(raw_request, counting=True)
    engine_input = (await read_chat(request, raw_request)).engine_input
    check_length(engine_input, manager.llm, manager.options.limits)
    count = await manager.in_pool(lambda: prompt_length(manager.llm, engine_input), tenant=tenant_of(raw_request))
    return JSONResponse({"input_tokens": count})


async def read_request(raw_request: Request, *, counting: bool = False) -> OpenAIRequest:
    """The chat that a request describes; raises Refusal for a version of the API that is no date."""
    manager, body = manager_of(raw_request), await read_json(raw_request)
    version = raw_request.headers.get("anthropic-version")
    if version is not None and not _VERSION.fullmatch(version):
        rule = "anthropic-version must be a date such as 2023-06-01"
        raise Refusal(400, f"{rule}, got {version!r:.60}; leave the header out", param="anthropic-version")
    options = {"lenient": is_lenient(raw_request), "counting": counting}
    return await in_worker_thread(raw_request, read_messages_request, body, manager.options, manager.llm, **options)


def prompt_length(llm: LLM, engine_input: EngineInput) -> int:
    """The number of tokens of a chat's prompt; for a thread of the pool, because it tokenises."""
    return llm.chat_inputs(
        engine_input.messages or (),
        tools=engine_input.tools,
        arguments=engine_input.template_args,
        continue_final_message=engine_input.continue_final_message,
    ).length
