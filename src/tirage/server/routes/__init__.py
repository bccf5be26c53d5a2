"""The routes, one module per family; each has a `router`."""

from __future__ import annotations

from fastapi import APIRouter

from tirage.server.routes import generate, status, text

ROUTERS: tuple[APIRouter, ...] = (
    generate.router,
    status.router,
    text.router,
)
"""Every router of the application, in the order of the documentation."""
