"""``/docs``: the rendered OpenAPI document. Its files need no token, come from this service alone, and have no inline script."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import pytest
import urllib3

from driver.http.api import tracker_application
from driver.web.documentation import REFERENCE
from forebay.http.server import Server
from tests.support.observed import no_stream

VENDOR = REFERENCE / "vendor"


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    def nothing(*_: Any) -> Future[Any]:
        return Future()

    app = tracker_application(nothing, status=nothing, ready=lambda: None, release="test", observer=no_stream())
    with Server(app, "http://127.0.0.1:0") as server:
        yield server.url


def ask(url: str, path: str, **headers: str) -> urllib3.BaseHTTPResponse:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return urllib3.request("GET", url + path, headers=named, retries=False, decode_content=False)


def test_page_and_its_files_are_served_with_a_strict_policy(url: str) -> None:
    page = ask(url, "/docs")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    named = re.findall(r'(?:href|src)="(/docs/[^"]+)"', page.data.decode())
    names = {path.split("/", 3)[3] for path in named}
    assert names == {"vendor/swagger-ui.css", "docs.css", "vendor/swagger-ui-bundle.js", "docs.js"}
    for path in named:
        answer = ask(url, path, accept_encoding="gzip")
        assert gzip.decompress(answer.data) == (REFERENCE / path.split("/", 3)[3]).read_bytes()
        assert "immutable" in answer.headers["cache-control"]
    for path in ("/docs", named[0]):
        policy = ask(url, path).headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy
        assert ask(url, path).headers["x-content-type-options"] == "nosniff"
    assert ask(url, "/docs", if_none_match=page.headers["etag"]).status == 304
    for other in ("/docs/", "/docs/docs.js", "/docs/0/docs.js", "/docs/../documentation.py"):
        assert ask(url, other).status == (200 if other == "/docs/" else 404), other


def test_own_files_have_no_inline_script_and_name_no_other_host() -> None:
    html = (REFERENCE / "docs.html").read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=", html)
    for path in REFERENCE.glob("docs.*"):
        assert not re.search(r"https?://", path.read_text()), path


def test_viewer_is_the_published_one() -> None:
    listed = json.loads((VENDOR / "vendor.json").read_text())
    assert {path.name for path in VENDOR.iterdir() if path.suffix in (".js", ".css")} == listed.keys()
    for name, entry in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == entry["sha256"], name
    assert "Apache License" in (VENDOR / "swagger-ui.LICENSE").read_text()


def test_document_names_roles_refusals_and_the_token(url: str) -> None:
    found = json.loads(ask(url, "/v1/openapi.json").data)
    records = found["paths"]["/v1/blocks/{block_id}/records"]["get"]
    assert records["description"] == "Roles: query, operator"
    assert found["paths"]["/v1/caller"]["get"]["description"] == "Roles: any"
    refused = records["responses"]["400"]["content"]["application/json"]["schema"]
    assert refused == {"$ref": "#/components/schemas/Refusal"}
    assert found["components"]["securitySchemes"]["token"] == {"type": "http", "scheme": "bearer"}
    assert {"life", "from", "until"} <= found["components"]["schemas"]["BatchRange"]["properties"].keys()
