"""The routes of ``/docs``: the OpenAPI document rendered by Swagger UI. The files hold no data, so they need no token.

Browsers ask the driver for the document itself, with the token that they have.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from litestar import Request, Response, route
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from driver.web.pages import ASK_AGAIN, GET_AND_HEAD, KEEP, MEDIA_TYPES, File, file_of
from forebay.http.application import needs

REFERENCE = Path(__file__).parent / "reference"


@lru_cache(maxsize=1)
def read_files() -> tuple[File, Mapping[str, File]]:
    """Return the page, and the other files by their paths below ``/docs/``. They are large, so they are only read when a browser
    asks for the page."""
    paths = sorted(path for path in REFERENCE.rglob("*") if path.suffix in MEDIA_TYPES and path.name != "docs.html")
    bodies = {path.relative_to(REFERENCE).as_posix(): path.read_bytes() for path in paths}
    version = hashlib.sha256(b"".join(hashlib.sha256(body).digest() for body in bodies.values())).hexdigest()[:16]
    index = (REFERENCE / "docs.html").read_text(encoding="utf-8").replace("{version}", version)
    files = {f"{version}/{name}": file_of(body, Path(name).suffix, KEEP) for name, body in bodies.items()}
    return file_of(index.encode(), ".html", ASK_AGAIN), files


def documentation_routes() -> list[HTTPRouteHandler]:
    """Return the routes ``/docs`` and ``/docs/…``."""

    @route("/docs", http_method=GET_AND_HEAD, include_in_schema=False, opt=needs())
    async def docs(request: Request[Any, Any, Any]) -> Response[bytes]:
        index, _ = await asyncio.to_thread(read_files)
        return index.answer(request.headers)

    @route("/docs/{path:path}", http_method=GET_AND_HEAD, include_in_schema=False, opt=needs())
    async def docs_file(request: Request[Any, Any, Any], path: FromPath[str]) -> Response[bytes]:
        _, files = await asyncio.to_thread(read_files)
        found = files.get(path.lstrip("/"))
        if found is None:
            raise NotFoundException(f"there is no file {request.url.path}")
        return found.answer(request.headers)

    return [docs, docs_file]
