"""Text to tokens and back."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

from tirage.server.asking import desk_of, read_json
from tirage.server.errors import Refusal

router = APIRouter(tags=["text"])


@router.post("/tokenize")
async def tokenize(request: Request) -> Response:
    """The token ids of a text, given as `prompt` or `text`."""
    desk, body = desk_of(request), await read_json(request)
    text = body.get("prompt", body.get("text"))
    if not isinstance(text, str):
        raise Refusal(400, f"prompt must be a text, got {type(text).__name__}", param="prompt")
    ids = await asyncio.to_thread(desk.llm.tokenizer.encode, text)
    return JSONResponse({"tokens": ids, "count": len(ids), "max_model_len": desk.llm.model.max_length})
