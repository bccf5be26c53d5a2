"""The playground: one page at `/`, which uses this server's own routes and loads nothing from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import Response

from tirage.server.errors import Refusal
from tirage.server.playground.page import page

router = APIRouter(include_in_schema=False)

_ICON = "icon.svg"
_HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    # Asked for again each time, and answered with 304: a newer server has a newer page.
    "cache-control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """A file of the page: its bytes, and the headers that they are sent with."""

    content: bytes
    headers: Mapping[str, str]


@cache
def page_files() -> Mapping[str, PageFile]:
    """The files by path: the page, which has its styles and scripts inside, and its icon."""
    found = page()
    policy = (
        f"default-src 'none'; script-src {found.script_source}; style-src {found.style_source}; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    icon = files("tirage.server.playground").joinpath(_ICON).read_bytes()
    return {
        "/": page_file(found.content, "text/html", policy),
        f"/playground/{_ICON}": page_file(icon, "image/svg+xml", policy),
    }


def page_file(content: bytes, kind: str, policy: str) -> PageFile:
    """A file with its headers, among them a tag that changes with its content."""
    tag = hashlib.sha256(content).hexdigest()[:16]
    own = {"content-type": f"{kind}; charset=utf-8", "etag": f'"{tag}"', "content-security-policy": policy}
    return PageFile(content, {**_HEADERS, **own})


def open_paths() -> frozenset[str]:
    """The paths that need no key: the page asks for it, and sends it with what it asks of other routes."""
    return frozenset(page_files())


@router.get("/")
@router.head("/")
async def page_at_root(request: Request) -> Response:
    """The page."""
    return answer(page_files()["/"], request)


@router.get("/playground/{name}")
@router.head("/playground/{name}")
async def part(name: str, request: Request) -> Response:
    """A file of the page; raises Refusal 404 for any other name."""
    found = page_files().get(f"/playground/{name}")
    if found is None:
        raise Refusal(404, f"the playground has no file {name!r:.80}; its page is at /")
    return answer(found, request)


def answer(file: PageFile, request: Request) -> Response:
    """The file, or 304 for a client that has it."""
    known = request.headers.get("if-none-match") == file.headers["etag"]
    return Response(status_code=304, headers=file.headers) if known else Response(file.content, headers=file.headers)
