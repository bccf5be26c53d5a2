"""What a load balancer and an operator look at."""

from __future__ import annotations

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response

router = APIRouter(tags=["status"])


@router.get("/health")
async def health(request: Request) -> Response:
    """200 when the model answers, 503 until then and when it no longer does."""
    state = request.app.state.health
    return JSONResponse({"status": state.phase}, status_code=200 if state.taking else 503)
