"""The routes of the web page. They hold no data, so they need no token.

Each file has a path with the digest of all files, so browsers keep it without asking again. Only the first page is asked for each
time. All files are in memory, as they are and compressed.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from litestar import HttpMethod, Request, Response, route
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.params import FromPath

from forebay.http.application import needs

STATIC = Path(__file__).parent / "static"
#: the media types of the files by their suffix; other files are not served. The framework adds the character set
MEDIA_TYPES = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
}
#: nothing from another host, no inline script or style, no frame around the page, no form that is sent by the browser
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "vary": "accept-encoding",
}
#: paths of the pages, to which another site may link
PAGES = frozenset({"/", "/docs"})
KEEP = "public, max-age=31536000, immutable"
ASK_AGAIN = "no-cache"
GET_AND_HEAD = [HttpMethod.GET, HttpMethod.HEAD]


@dataclass(frozen=True, slots=True)
class File:
    """One file. ``tag``: its entity tag; ``cache``: the value of ``cache-control``."""

    body: bytes
    compressed: bytes
    media_type: str
    tag: str
    cache: str

    def answer(self, headers: Mapping[str, str]) -> Response[bytes]:
        """Return the response to a request with ``headers``, whose names are in lower case."""
        fixed = {**HEADERS, "etag": self.tag, "cache-control": self.cache}
        if self.tag in (tag.strip().removeprefix("W/") for tag in headers.get("if-none-match", "").split(",")):
            return Response(b"", status_code=304, headers=fixed, media_type=self.media_type)
        accepted = [coding.split(";")[0].strip() for coding in headers.get("accept-encoding", "").split(",")]
        if "gzip" in accepted:
            return Response(self.compressed, headers={**fixed, "content-encoding": "gzip"}, media_type=self.media_type)
        return Response(self.body, headers=fixed, media_type=self.media_type)


@functools.cache
def read_files(folder: Path = STATIC) -> tuple[File, dict[str, File]]:
    """Return the first page, and the other files by their paths below ``/web/``.

    They are read and compressed once for all streams of a process.
    """
    paths = sorted(path for path in folder.rglob("*") if path.suffix in MEDIA_TYPES and path.name != "index.html")
    bodies = {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}
    digest = hashlib.sha256()
    for name, body in bodies.items():
        digest.update(name.encode() + b"\0" + hashlib.sha256(body).digest())
    version = digest.hexdigest()[:16]
    # without these, the browser would find each module only after it has read the one that imports it
    preloads = "\n    ".join(
        f'<link rel="modulepreload" href="/web/{version}/{name}">'
        for name in bodies
        if Path(name).suffix in (".js", ".mjs") and name not in ("theme.js", "vendor/uPlot.iife.min.js")
    )
    index = (folder / "index.html").read_text(encoding="utf-8")
    index = index.replace("{version}", version).replace("{preloads}", preloads)
    files = {f"{version}/{name}": file_of(body, Path(name).suffix, KEEP) for name, body in bodies.items()}
    return file_of(index.encode(), ".html", ASK_AGAIN), files


def file_of(body: bytes, suffix: str, cache: str) -> File:
    """Return the file, also compressed. ``cache``: the value of ``cache-control``."""
    compressed = gzip.compress(body, compresslevel=9, mtime=0)
    return File(body, compressed, MEDIA_TYPES[suffix], f'"{hashlib.sha256(body).hexdigest()[:32]}"', cache)


def page_routes() -> list[HTTPRouteHandler]:
    """Return the routes ``/`` and ``/web/…``."""
    first, files = read_files()

    @route("/", http_method=GET_AND_HEAD, include_in_schema=False, opt=needs())
    async def page(request: Request[Any, Any, Any]) -> Response[bytes]:
        return first.answer(request.headers)

    @route("/web/{path:path}", http_method=GET_AND_HEAD, include_in_schema=False, opt=needs())
    async def page_file(request: Request[Any, Any, Any], path: FromPath[str]) -> Response[bytes]:
        found = files.get(path.lstrip("/"))
        if found is None:
            raise NotFoundException(f"the page has no file {request.url.path}")
        return found.answer(request.headers)

    return [page, page_file]
