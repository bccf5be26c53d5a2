"""The HTTP routes, one module per family; each has a `router`."""

from __future__ import annotations

from fastapi import APIRouter

from tirage.server.routes import (
    chat,
    completions,
    constraints,
    control,
    explain,
    generate,
    messages,
    models,
    responses,
    score,
    status,
    text,
)

ROUTERS: tuple[APIRouter, ...] = (
    generate.router,
    completions.router,
    chat.router,
    responses.router,
    messages.router,
    status.router,
    text.router,
    constraints.router,
    score.router,
    explain.router,
    models.router,
    control.router,
)
"""The routers of the application. They are tried one after the other: those that draw come first."""

ADMIN_ROUTERS: tuple[APIRouter, ...] = (control.admin_router,)
"""Routers that exist only when the operator has set an admin key."""
