"""The routes of the web page, without a browser: headers, caching, compression, and what the vendored files are."""

from __future__ import annotations

import gzip
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import urllib3

from driver.web.pages import MEDIA_TYPES, POLICY, STATIC
from forebay.http.server import Server
from forebay.security.access import Guard
from tests.driver.web import canned
from tests.support.state.guarded import settings

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

VENDOR = STATIC / "vendor"
OWN = [path for path in STATIC.rglob("*") if path.suffix in MEDIA_TYPES and VENDOR not in path.parents]


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A driver that requires tokens."""
    folder = tmp_path_factory.mktemp("tokens")
    tokens = folder / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("operator the-token-of-an-operator\n")
    guard = Guard(settings(folder, token_file=str(tokens)))
    with Server(canned.driver_application(canned.healthy(), guard), "http://127.0.0.1:0", guard=guard) as server:
        yield server.url


def ask(url: str, path: str, method: str = "GET", **headers: str) -> urllib3.BaseHTTPResponse:
    names = {name.replace("_", "-"): value for name, value in headers.items()}
    return urllib3.request(method, url + path, headers=names, retries=False, decode_content=False)


def paths(url: str) -> list[str]:
    """Return the paths of the files that the first page names."""
    return re.findall(r'(?:href|src)="(/web/[^"]+)"', ask(url, "/").data.decode())


def test_page_needs_no_token_and_its_headers_forbid_what_it_does_not_use(url: str) -> None:
    for path in ("/", *paths(url)):
        answer = ask(url, path)
        assert answer.status == 200, path
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-type"].split(";")[0] == MEDIA_TYPES[Path(path).suffix or ".html"]
    assert ask(url, "/v1/overview").status == 401


def test_every_module_and_style_of_the_page_is_served_as_it_is(url: str) -> None:
    """Also those that only a module imports: the first page names all of them, so that they load at the same time."""
    named = {path.split("/", 3)[3]: path for path in paths(url)}
    files = {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.suffix in MEDIA_TYPES}
    assert named.keys() == files.keys() - {"index.html"}
    for name, path in named.items():
        assert ask(url, path).data == files[name].read_bytes()
        assert gzip.decompress(ask(url, path, accept_encoding="br, gzip;q=0.9").data) == files[name].read_bytes()


def test_browser_keeps_files_and_asks_only_for_the_first_page(url: str) -> None:
    first = ask(url, "/")
    assert first.headers["cache-control"] == "no-cache"
    again = ask(url, "/", if_none_match=f'"other", W/{first.headers["etag"]}')
    assert (again.status, again.data) == (304, b"")
    assert ask(url, "/", if_none_match='"other"').status == 200
    for path in paths(url):
        assert "immutable" in ask(url, path).headers["cache-control"]


def test_head_has_the_headers_of_get_without_the_body(url: str) -> None:
    for path in ("/", paths(url)[0]):
        head, got = ask(url, path, "HEAD"), ask(url, path)
        assert (head.status, head.data) == (200, b"")
        assert head.headers["content-length"] == got.headers["content-length"] == str(len(got.data))
        assert head.headers["etag"] == got.headers["etag"]


@pytest.mark.parametrize(
    "path", ["/web/", "/web/main.js", "/web/0/main.js", "/web/../pages.py", "/web/%2e%2e/pages.py"]
)
def test_only_the_files_of_the_page_are_served(url: str, path: str) -> None:
    assert ask(url, path).status == 404


def test_vendored_files_are_the_published_ones() -> None:
    """``vendor.json`` names package, version, licence and digest of each; its licence is beside it."""
    listed = json.loads((VENDOR / "vendor.json").read_text())
    assert {path.name for path in VENDOR.iterdir() if path.suffix in MEDIA_TYPES} == listed.keys()
    for name, entry in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == entry["sha256"], name
        licence = VENDOR / f"{name.split('.')[0]}.LICENSE"
        assert {"MIT": "Permission is hereby granted", "Apache-2.0": "Apache License"}[
            entry["license"]
        ] in licence.read_text()


def test_page_names_no_other_host_and_has_no_inline_script_or_style() -> None:
    for path in OWN:
        text = path.read_text(encoding="utf-8")
        hosts = set(re.findall(r"https?://[^\s\"'`)?:]+", text)) - {"http://www.w3.org/2000/svg"}
        assert not hosts, (path, hosts)
    index = (STATIC / "index.html").read_text()
    assert not re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=", index)


def test_no_file_is_longer_than_a_module_may_be() -> None:
    assert {path.name: lines for path in OWN if (lines := len(path.read_text().splitlines())) > 500} == {}
