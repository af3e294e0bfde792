"""GET / and what it loads: the chat page. Its files are read once and served from memory."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from headrace.server.errors import NOT_FOUND, APIError

router = APIRouter(include_in_schema=False)

TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}

# Everything comes from this server and scripts cannot make markup of text, so that a model's answer stays text whatever
# it says. The page cannot be framed by others.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "base-uri 'none'",
        "object-src 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)


@dataclass(frozen=True)
class PageFile:
    """One file of the page.

    Attributes:
        body: its bytes.
        media_type: what it is sent as.
        etag: of these bytes.
    """

    body: bytes
    media_type: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """The files of the page by name."""
    found = {}
    for entry in files("headrace.server").joinpath("page").iterdir():
        media_type = TYPES.get("." + entry.name.rpartition(".")[2])
        if media_type is not None:
            body = entry.read_bytes()
            etag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
            found[entry.name] = PageFile(body, f"{media_type}; charset=utf-8", etag)
    return found


@router.api_route("/", methods=["GET", "HEAD"])
def index(request: Request) -> Response:
    """The page."""
    return _answer(request, "index.html")


@router.api_route("/page/{name}", methods=["GET", "HEAD"])
def part(name: str, request: Request) -> Response:
    """A file that the page loads."""
    return _answer(request, name)


def _answer(request: Request, name: str) -> Response:
    file = page_files().get(name)
    if file is None:
        raise APIError(404, f"the page has no file {name!r}", type=NOT_FOUND)
    headers = {
        "ETag": file.etag,
        "Cache-Control": "no-cache",  # kept by the browser, asked for anew each time: an upgrade is seen at once
        "Content-Security-Policy": POLICY,
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
    }
    known = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.media_type)
