"""Requests that a browser sends for a web page, to services without and with tokens."""

from __future__ import annotations

import http.client
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec
import pytest

from driver.http.api import tracker_application
from driver.web.pages import PAGES
from executor_agent.api import AgentStatus, agent_application
from executor_agent.store import BlockStore
from forebay import messages as m
from forebay.http.client import Client
from forebay.http.cross_site import HOSTS_KEPT, CrossSite
from forebay.http.server import Server
from forebay.process.clock import SystemClock
from forebay.security.access import Guard
from tests.support.state.guarded import settings

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

STOP, REPORT = "/v1/operator/stop", "/v1/blocks/report"
BODIES = {STOP: msgspec.json.encode(m.StopRequest()), REPORT: b'{"receiver_id":"r","epoch":1,"blocks":[]}'}
JSON = ("content-type", "application/json")
TOKEN = "the-token-of-everybody"


class Submitted:
    """The requests that were allowed."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def __call__(self, request: Any = None) -> Future[Any]:
        self.requests.append(request)
        future: Future[Any] = Future()
        future.set_result(m.Done())
        return future


@pytest.fixture(scope="module")
def submitted_to_all() -> Submitted:
    return Submitted()


@pytest.fixture
def submitted(submitted_to_all: Submitted) -> Submitted:
    """The requests of this test alone."""
    submitted_to_all.requests.clear()
    return submitted_to_all


def guard(folder: Path, **security: Any) -> Guard:
    return Guard(settings(folder, **security))


@pytest.fixture(scope="module")
def driver(submitted_to_all: Submitted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    open_guard = guard(tmp_path_factory.mktemp("driver"), hosts=["Proxy.example."])
    app = tracker_application(
        submitted_to_all, status=submitted_to_all, ready=lambda: None, release="test", guard=open_guard
    )
    with Server(app, "http://127.0.0.1:0", guard=open_guard) as server:
        yield server.url


@pytest.fixture(scope="module")
def blocks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the agent's blocks."""
    return tmp_path_factory.mktemp("agent") / "blocks"


@pytest.fixture(scope="module")
def agent(blocks: Path) -> Iterator[str]:
    store = BlockStore(blocks, quota_bytes=1 << 30, clock=SystemClock())
    store.open()

    def status() -> AgentStatus:
        return AgentStatus(
            stream="s", host="h1", release="test", blocks=0, used_bytes=0, free_bytes=0, driver_epoch=0, deleted=0,
            refused_commands=0, silent_driver="",
        )  # fmt: skip

    app = agent_application(store, status, release="test", idle_seconds=30.0, guard=guard(blocks.parent))
    with Server(app, "http://127.0.0.1:0", guard=guard(blocks.parent)) as server:
        yield server.url


def ask(url: str, method: str, path: str, *headers: tuple[str, str]) -> tuple[int, str]:
    """Return status and body of a request with only ``headers`` and the length; ``host``: by default the URL's."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=30)
    try:
        connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
        if not any(name == "host" for name, _ in headers):
            connection.putheader("host", parts.netloc)
        for name, value in headers:
            connection.putheader(name, value.replace("{host}", parts.netloc))
        body = BODIES.get(path, b"") if method == "POST" else b""
        connection.putheader("content-length", str(len(body)))
        connection.endheaders(body)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


FOREIGN = [
    (403, ("origin", "https://evil.example")),
    (403, ("origin", "http://127.0.0.1:1")),
    (403, ("origin", "http://127.0.0.1")),
    (403, ("origin", "null")),
    (403, ("origin", "file://")),
    (403, ("origin", "chrome-extension://{host}")),
    (403, ("origin", "")),
    (403, ("sec-fetch-site", "cross-site")),
    (403, ("sec-fetch-site", "same-site")),
    (421, ("host", "evil.example")),
    (421, ("host", "127.0.0.1.evil.example:7080")),
    (421, ("host", "evil.example@127.0.0.1")),
    (421, ("host", "evil.example/127.0.0.1")),
    (421, ("host", "")),
]


@pytest.mark.parametrize(("status", "header"), FOREIGN)
@pytest.mark.parametrize("path", [STOP, REPORT])
def test_a_page_of_another_site_changes_nothing_at_a_driver_without_tokens(
    driver: str, submitted: Submitted, path: str, status: int, header: tuple[str, str]
) -> None:
    """Also on the short path for frequent messages."""
    answered, message = ask(driver, "POST", path, JSON, header)
    assert answered == status, message
    assert not submitted.requests


@pytest.mark.parametrize(("status", "header"), FOREIGN)
@pytest.mark.parametrize("path", ["/v1/status", "/v1/openapi.json", "/v1/health", "/v1/blocks/s/r1-1-1"])
def test_a_page_of_another_site_reads_nothing_from_an_agent_without_tokens(
    agent: str, path: str, status: int, header: tuple[str, str]
) -> None:
    assert ask(agent, "GET", path, header)[0] == status


@pytest.mark.parametrize(("status", "header"), FOREIGN)
def test_a_page_of_another_site_puts_no_copy_at_an_agent_without_tokens(
    agent: str, blocks: Path, status: int, header: tuple[str, str]
) -> None:
    assert ask(agent, "PUT", "/v1/blocks/s/r1-1-1", header)[0] == status
    assert list(blocks.iterdir()) == []


@pytest.mark.parametrize(("content_type", "status"), [("text/plain", 415), ("application/json", 405)])
def test_a_post_at_an_agent_needs_json(agent: str, content_type: str, status: int) -> None:
    """No route of it takes one."""
    assert ask(agent, "POST", "/v1/status", ("content-type", content_type))[0] == status


@pytest.mark.parametrize("path", [STOP, REPORT])
@pytest.mark.parametrize(
    "types",
    [
        [],  # a page can send bytes without a type
        ["text/plain"],
        ["text/plain;charset=application/json"],
        ["application/x-www-form-urlencoded"],
        ["multipart/form-data; boundary=x"],
        ["text/plain", "application/json"],
        [""],
    ],
)
def test_post_without_preflight_is_refused(driver: str, submitted: Submitted, path: str, types: list[str]) -> None:
    status, message = ask(driver, "POST", path, *(("content-type", written) for written in types))
    assert status == 415 and "content-type: application/json" in message
    assert not submitted.requests


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [("host", "localhost:9")],
        [("host", "LOCALHOST")],
        [("host", "[::1]:7080")],
        [("host", "10.1.2.3:80")],  # a proxy or port forward; an address is not rebound
        [("host", "proxy.example")],
        [("sec-fetch-site", "none")],
        [("sec-fetch-site", "same-origin"), ("host", "localhost:1"), ("origin", "http://localhost:1")],
        [("origin", "https://proxy.example")],  # in front of this service, which it asks by its address
    ],
)
def test_own_pages_and_programs_without_an_origin_are_served(
    driver: str, submitted: Submitted, headers: list[tuple[str, str]]
) -> None:
    assert ask(driver, "POST", STOP, ("content-type", "application/json; charset=utf-8"), *headers)[0] == 200
    assert len(submitted.requests) == 1


def test_request_needs_exactly_one_host(driver: str) -> None:
    assert ask(driver, "GET", "/v1/health", ("host", "localhost"), ("host", "localhost"))[0] == 400
    parts = urlsplit(driver)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=30)
    connection.putrequest("GET", "/v1/health", skip_host=True)
    connection.endheaders()
    assert connection.getresponse().status == 400
    connection.close()


def test_a_refusal_says_what_to_set(driver: str) -> None:
    assert "add it to security.hosts" in ask(driver, "GET", "/v1/status", ("host", "evil.example"))[1]
    assert (
        "add its host name to security.hosts" in ask(driver, "GET", "/v1/status", ("origin", "http://evil.example"))[1]
    )


def test_host_names_in_settings_are_accepted(submitted: Submitted, tmp_path: Path) -> None:
    """Other processes use these names."""
    made = settings(tmp_path)
    made = msgspec.structs.replace(
        made,
        driver=msgspec.structs.replace(made.driver, urls=("http://one.example:1", "http://two.example:1")),
        agent=msgspec.structs.replace(made.agent, url="http://agent.example:1", host="h1"),
    )
    check = CrossSite(Guard(made).hosts, proxies=(), guarded=False).check
    hosts = ("one.example:1", "two.example", "agent.example", "h1:7081")
    for host in hosts:
        assert check("GET", "/v1/health", [(b"host", host.encode())]) is None
    app = tracker_application(submitted, status=submitted, ready=lambda: None, release="test", guard=Guard(made))
    with Server(app, "http://127.1:0", guard=Guard(made)) as server:  # a name that is no address, and its own
        for host in (*hosts, "127.1"):
            assert ask(server.url, "GET", "/v1/health", ("host", host))[0] == 200
        assert ask(server.url, "GET", "/v1/health", ("host", "evil.example"))[0] == 421


def test_service_with_tokens_accepts_any_host_but_no_other_origin(submitted: Submitted, tmp_path: Path) -> None:
    """A rebound page has no token."""
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text(TOKEN + "\n")
    guarded = guard(tmp_path, token_file=str(tokens))
    app = tracker_application(submitted, status=submitted, ready=lambda: None, release="test", guard=guarded)
    bearer = ("authorization", f"Bearer {TOKEN}")
    with Server(app, "http://127.0.0.1:0", guard=guarded) as server:
        assert ask(server.url, "POST", STOP, JSON, bearer, ("host", "any.example"))[0] == 200
        for status, header in FOREIGN:
            if header[0] != "host":
                assert ask(server.url, "POST", STOP, JSON, bearer, header)[0] == status
        assert ask(server.url, "POST", STOP, ("content-type", "text/plain"), bearer)[0] == 415
        assert ask(server.url, "POST", STOP, JSON, ("host", "any.example"))[0] == 401
    assert len(submitted.requests) == 1


FOLLOWED = [("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")]


@pytest.fixture(scope="module")
def driver_with_pages(submitted_to_all: Submitted, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    open_guard = guard(tmp_path_factory.mktemp("pages"))
    app = tracker_application(
        submitted_to_all, status=submitted_to_all, ready=lambda: None, release="test", guard=open_guard
    )
    with Server(app, "http://127.0.0.1:0", guard=open_guard, pages=PAGES) as server:
        yield server.url


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/", FOLLOWED, 200),
        ("/docs", FOLLOWED, 200),
        ("/v1/status", FOLLOWED, 403),
        ("/v1/openapi.json", FOLLOWED, 403),
        ("//", FOLLOWED, 403),
        ("/", FOLLOWED[:2], 403),
        ("/", [FOLLOWED[0], FOLLOWED[2]], 403),
        ("/", [*FOLLOWED[:2], ("sec-fetch-dest", "iframe")], 403),
        ("/", [FOLLOWED[0], ("sec-fetch-mode", "no-cors"), FOLLOWED[2]], 403),
        ("/", [*FOLLOWED, ("origin", "https://evil.example")], 403),
        ("/", [*FOLLOWED, ("host", "evil.example")], 421),
    ],
)
def test_link_of_another_site_leads_only_to_pages_without_data(
    driver_with_pages: str, submitted: Submitted, path: str, headers: list[tuple[str, str]], status: int
) -> None:
    assert ask(driver_with_pages, "GET", path, *headers)[0] == status
    assert ask(driver_with_pages, "POST", path, JSON, *headers)[0] in (403, 421)
    assert not submitted.requests


def test_own_client_is_served(driver: str, submitted: Submitted) -> None:
    Client(driver).post(REPORT, m.ReportRequest(receiver_id="r", epoch=1, blocks=()), m.Done)
    Client(driver.replace("127.0.0.1", "localhost")).post(STOP, m.StopRequest(), m.Done)
    assert len(submitted.requests) == 2


def test_verdicts_on_host_headers_are_right_and_bounded_however_many_there_are() -> None:
    cross_site = CrossSite(["kafka.example"], proxies=(), guarded=False)

    def is_served(host: str) -> bool:
        return cross_site.check("GET", "/", [(b"host", host.encode())]) is None

    for round_ in range(2):
        for number in range(3 * HOSTS_KEPT):
            assert is_served(f"kafka.example:{number + 1}")
            assert not is_served(f"other-{number}.example"), round_
    assert cross_site._is_own.cache_info().currsize == HOSTS_KEPT
