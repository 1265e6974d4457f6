"""``/docs``: the rendered OpenAPI document. Its files need no token, come from this service alone, and have no inline script."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import urllib3
from playwright.sync_api import expect

from driver.http.api import tracker_application
from driver.web.documentation import REFERENCE
from driver.web.pages import PAGES
from forebay.http.server import Server
from forebay.model.errors import UsageError
from forebay.security.access import Guard
from tests.conftest import missing
from tests.support.servers import chromium
from tests.support.state.guarded import settings
from tests.support.state.observed import no_stream

VENDOR = REFERENCE / "vendor"
TOKEN = "the-token-of-a-reader"


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


def test_browser_shows_the_api_after_a_login_and_asks_no_other_host(tmp_path: Path) -> None:
    """Chromium, against a service with tokens. The document needs one, the page does not."""
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(f"reader {TOKEN}\n")
    guard = Guard(settings(tmp_path, token_file=str(tokens)))

    def nothing(*_: Any) -> Future[Any]:
        return Future()

    app = tracker_application(
        nothing, status=nothing, ready=lambda: None, release="test", guard=guard, observer=no_stream()
    )
    try:
        opened = chromium.running()
        browser = opened.__enter__()
    except UsageError as error:
        missing(str(error))
    wrong: list[str] = []
    try:
        with Server(app, "http://127.0.0.1:0", guard=guard, pages=PAGES) as server:
            page = browser.new_page()
            page.on("pageerror", lambda error: wrong.append(str(error)))
            page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
            page.on(
                "request",
                lambda asked: None if asked.url.startswith((server.url, "data:")) else wrong.append(asked.url),
            )
            page.goto(f"{server.url}/docs")
            field = page.get_by_label("Token of any role")
            field.fill("not-a-token-of-this-service")
            field.press("Enter")
            expect(page.get_by_text("does not know this token")).to_be_visible(timeout=30_000)
            field.fill(TOKEN)
            field.press("Enter")
            row = page.get_by_text("/v1/blocks/{block_id}/records")
            expect(row).to_be_visible(timeout=30_000)
            row.click()
            expect(page.get_by_text("Roles: query, operator").first).to_be_visible()
            page.get_by_text("/v1/operator/stop").click()
            expect(page.get_by_text("Roles: operator").first).to_be_visible()
            page.get_by_text("/v1/caller").click()
            expect(page.get_by_role("button", name="Try it out")).to_have_count(2)  # not at the action
            page.get_by_role("button", name="Try it out").last.click()
            page.get_by_role("button", name="Execute").click()
            expect(page.get_by_text('"reader"').first).to_be_visible(timeout=30_000)
            assert field.is_hidden() and TOKEN not in page.url
    finally:
        opened.__exit__(None, None, None)
    refused = [said for said in wrong if "401" in said]
    assert len(refused) == 2 and refused == wrong, wrong
