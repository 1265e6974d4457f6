"""Requests without the needed role to every route of both services, as their OpenAPI documents name them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import msgspec
import pytest
import urllib3

from driver.http.api import tracker_application
from executor_agent.api import agent_application
from executor_agent.store import BlockStore
from forebay import messages as m
from forebay.http.address import check_service_url
from forebay.http.application import application
from forebay.http.client import Client
from forebay.http.server import Server
from forebay.model.errors import AccessError, SettingsError, UsageError
from forebay.process.clock import SystemClock
from forebay.security.access import Access, Guard
from forebay.security.roles import ROLES
from tests.support.state.guarded import settings
from tests.support.state.metered import agent_metrics, driver_routes
from tests.support.state.observed import no_stream

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

#: what each route is for, by the beginning of its path, the longest first; () for everybody
MAY = {
    "/v1/health": (),
    "/v1/openapi.json": ROLES,
    "/metrics": ("reader", "operator"),
    "/v1/metrics/targets": ("reader", "operator"),
    "/v1/threads": ("operator",),
    "/v1/status": ("reader", "operator"),
    "/v1/lag": ("reader", "operator"),
    "/v1/overview": ("reader", "operator"),
    "/v1/series": ("reader", "operator"),
    "/v1/caller": ROLES,
    "/v1/partitions": ("reader", "operator"),
    "/v1/receivers": ("reader", "operator"),
    "/v1/hosts": ("reader", "operator"),
    "/v1/cursors": ("reader", "operator"),
    "/v1/direct": ("reader", "operator"),
    "/v1/listeners": ("reader", "operator"),
    "/v1/batches": ("reader", "operator"),
    "/v1/blocks": ("reader", "operator"),
    "/v1/blocks/{block_id}/records": ("query", "operator"),
    "/v1/states": ("reader", "operator"),
    "/v1/wal": ("reader", "operator"),
    "/v1/journal": ("reader", "operator"),
    "/v1/settings": ("reader", "operator"),
    "/v1/events": ("reader", "operator"),
    "/v1/receivers/": ("receiver",),
    "/v1/partitions/": ("receiver",),
    "/v1/blocks/report": ("receiver",),
    "/v1/agents/": ("agent",),
    "/v1/cursors/": ("query", "operator"),
    "/v1/operator/": ("operator",),
    "/v1/blocks/{stream}/{block_id}": ("task", "query", "operator"),
    "/v1/blocks/{stream}": ("task", "query", "operator"),
}


BLOCK = "/v1/blocks/{stream}/{block_id}"


def token(who: str) -> str:
    return f"the-token-of-{who}"


class Submitted:
    """No refused request may arrive here."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def __call__(self, request: Any = None) -> Future[Any]:
        self.requests.append(request)
        future: Future[Any] = Future()
        future.set_result(m.ReportAnswer(results=()))
        return future


@pytest.fixture
def submitted() -> Submitted:
    return Submitted()


@pytest.fixture
def guard(tmp_path: Path) -> Guard:
    file = tmp_path / "tokens"
    file.touch(mode=0o600)
    names = (*ROLES, "receiver:r1", "agent:h1", "operator:rotated-out")
    file.write_text("".join(f"{name} {token(name)}\n" for name in names))
    guard = Guard(settings(tmp_path, token_file=str(file)))
    assert guard.guarded
    file.write_text("".join(f"{name} {token(name)}\n" for name in names[:-1]))
    return guard


@pytest.fixture(params=["driver", "agent"])
def url(request: pytest.FixtureRequest, guard: Guard, submitted: Submitted, tmp_path: Path) -> Iterator[str]:
    if request.param == "driver":
        app: Any = tracker_application(
            submitted,
            status=submitted,
            ready=lambda: "the reason why",
            release="test",
            guard=guard,
            observer=no_stream(),
            more=driver_routes(),
        )
    else:
        store = BlockStore(tmp_path / "blocks", quota_bytes=1 << 30, clock=SystemClock())
        store.open()
        app = agent_application(
            store,
            lambda: submitted() and None,  # type: ignore[arg-type, return-value]
            release="test",
            idle_seconds=30.0,
            guard=guard,
            metrics=agent_metrics(),
        )
    with Server(app, "http://127.0.0.1:0", guard=guard) as server:
        yield server.url


def routes(url: str) -> list[tuple[str, str]]:
    document = msgspec.json.decode(
        Client(url, access=Access(token=token("operator"))).request("GET", "/v1/openapi.json")
    )
    # a HEAD is answered as its GET, but without the body that these tests read
    found = [(method.upper(), path) for path, item in document["paths"].items() for method in item if method != "head"]
    return [*found, ("GET", "/v1/openapi.json")]


def may(method: str, path: str) -> tuple[str, ...]:
    if (method, path) == ("PUT", "/v1/blocks/{stream}/{block_id}"):
        return ("receiver", "task")
    return MAY[max((known for known in MAY if path.startswith(known)), key=len)]


def ask(url: str, method: str, path: str, authorization: str | None, body: bytes = b"{}") -> urllib3.BaseHTTPResponse:
    headers = {"content-type": "application/json"}
    if authorization is not None:
        headers["authorization"] = authorization
    path = path.replace("{stream}", "s").replace("{block_id}", "r1-1-1").replace("{batch_id}", "1")
    return urllib3.request(method, url + path, headers=headers, body=body if method == "POST" else None, retries=False)


def test_every_route_refuses_unknown_tokens(url: str, submitted: Submitted) -> None:
    """No token, a wrong one, a removed one, and an invalid one."""
    for method, path in routes(url):
        if not may(method, path):
            continue
        for sent in (
            None,
            "Bearer not-a-token-of-ours",
            f"Bearer {token('operator:rotated-out')}",
            "Basic b3A6b3A=",
            "\xff",
        ):
            answer = ask(url, method, path, sent)
            assert answer.status == 401, (path, sent)
            assert answer.headers["www-authenticate"] == "Bearer"
            assert msgspec.json.decode(answer.data, type=m.Refusal).code == "unauthenticated"
    assert not submitted.requests


def test_every_route_refuses_every_role_but_its_own(url: str, submitted: Submitted) -> None:
    allowed = 0
    for method, path in routes(url):
        for role in ROLES:
            answer = ask(url, method, path, f"Bearer {token(role)}")
            if not may(method, path) or role in may(method, path):
                allowed += 1
                assert answer.status not in (401, 403), (path, role)
            else:
                assert answer.status == 403, (path, role)
                assert msgspec.json.decode(answer.data, type=m.Refusal).code == "forbidden"
    assert allowed > len(ROLES)


def test_reader_token_changes_nothing_and_reads_no_record(url: str, submitted: Submitted) -> None:
    """Dashboards have this token, and many people can often read it there."""
    allowed = set()
    for method, path in routes(url):
        if may(method, path) and ask(url, method, path, f"Bearer {token('reader')}").status != 403:
            allowed.add((method, path))
    assert {method for method, _ in allowed} == {"GET"}
    assert all("records" not in path and path != BLOCK for _, path in allowed)
    assert ("GET", "/v1/status") in allowed


def test_every_refusal_of_a_role_names_the_role_needed_and_the_command(url: str) -> None:
    for method, path in routes(url):
        for role in ROLES:
            answer = ask(url, method, path, f"Bearer {token(role)}")
            if answer.status == 403:
                message = msgspec.json.decode(answer.data, type=m.Refusal).message
                (made,) = [other for other in ROLES if f"`forebay token new {other}`" in message]
                assert made in may(method, path) and f"but of role {role}:" in message


def test_equivalent_paths_are_guarded_equally(url: str, submitted: Submitted) -> None:
    for method, path in routes(url):
        if not may(method, path):
            continue
        for form in (
            path + "/",
            path.replace("/v1/", "/v1//"),
            path.replace("/v1/", "/v1/./"),
            path.replace("s", "%73"),
        ):
            assert ask(url, method, form, None).status in (401, 404, 405), form
    assert not submitted.requests


def test_metrics_answer_a_head_request_to_the_same_roles(url: str) -> None:
    for sent, status in ((None, 401), (token("receiver"), 403), (token("reader"), 200), (token("operator"), 200)):
        answer = ask(url, "HEAD", "/metrics", None if sent is None else f"Bearer {sent}")
        assert (answer.status, answer.data) == (status, b"")


def test_health_needs_no_token_but_shows_reason_only_with_one(guard: Guard, submitted: Submitted) -> None:
    app = tracker_application(submitted, status=submitted, ready=lambda: "the reason why", release="test", guard=guard)
    with Server(app, "http://127.0.0.1:0", guard=guard) as server:
        unknown = ask(server.url, "GET", "/v1/health", None)
        assert unknown.status == 503 and b"reason" not in unknown.data
        assert b"the reason why" in ask(server.url, "GET", "/v1/health", f"Bearer {token('reader')}").data


# ---- whose a token is ------------------------------------------------------------------------------------------------

NAMED: list[tuple[str, msgspec.Struct]] = [
    (
        "/v1/receivers/register",
        m.RegisterRequest(stream="s", receiver_id="r1", host="h", instance_id="i", release="1"),
    ),
    (
        "/v1/receivers/heartbeat",
        m.HeartbeatRequest(
            receiver_id="r1", epoch=1, state="active", detail="", acknowledged=0, buffered_bytes=0, records=0
        ),
    ),
    ("/v1/partitions/look", m.LookupRequest(receiver_id="r1", epoch=1, partitions=())),
    ("/v1/partitions/claim", m.ClaimRequest(receiver_id="r1", epoch=1, claims=())),
    ("/v1/partitions/release", m.ReleaseRequest(receiver_id="r1", epoch=1, releases=())),
    (
        "/v1/partitions/trouble",
        m.Fault(
            receiver_id="r1", epoch=1, topic="t", partition=0, token=1, kind="out-of-range", position=0, low=1, high=2
        ),
    ),
    ("/v1/blocks/report", m.ReportRequest(receiver_id="r1", epoch=1, blocks=())),
    (
        "/v1/agents/heartbeat",
        m.AgentHeartbeatRequest(
            host="h1", url="", instance_id="i", acknowledged=0, blocks=0, used_bytes=0, free_bytes=0
        ),
    ),
]


@pytest.mark.parametrize(("path", "message"), NAMED, ids=[path for path, _ in NAMED])
@pytest.mark.parametrize("chunked", [False, True])
def test_token_of_one_receiver_or_host_does_not_act_for_another(
    path: str, message: Any, chunked: bool, guard: Guard, submitted: Submitted
) -> None:
    """On both paths: a body of unknown length goes through the framework."""
    name, field = ("agent:h1", "host") if "agents" in path else ("receiver:r1", "receiver_id")
    app = tracker_application(submitted, status=submitted, ready=lambda: None, release="test", guard=guard)
    with Server(app, "http://127.0.0.1:0", guard=guard) as server:
        for value, status in (("other", 403), (name.partition(":")[2], 200)):
            body: Any = msgspec.json.encode(msgspec.structs.replace(message, **{field: value}))
            answer = urllib3.request(
                "POST",
                server.url + path,
                headers={"authorization": f"Bearer {token(name)}", "content-type": "application/json"},
                body=iter([body]) if chunked else body,
                retries=False,
            )
            assert answer.status == status, answer.data
            assert len(submitted.requests) == (status == 200)


@pytest.mark.parametrize(("path", "message"), NAMED, ids=[path for path, _ in NAMED])
def test_valid_message_without_right_is_not_decided(
    path: str, message: Any, guard: Guard, submitted: Submitted
) -> None:
    """Also on the short path, which accepts only complete messages."""
    app = tracker_application(submitted, status=submitted, ready=lambda: None, release="test", guard=guard)
    with Server(app, "http://127.0.0.1:0", guard=guard) as server:
        body = msgspec.json.encode(message)
        assert ask(server.url, "POST", path, None, body).status == 401
        assert ask(server.url, "POST", path, "Bearer not-a-token-of-ours", body).status == 401
        assert ask(server.url, "POST", path, f"Bearer {token('operator')}", body).status == 403
    assert not submitted.requests


def test_receivers_token_stores_only_copies_of_its_own_blocks(guard: Guard, tmp_path: Path) -> None:
    store = BlockStore(tmp_path / "blocks", quota_bytes=1 << 30, clock=SystemClock())
    store.open()
    app = agent_application(store, lambda: None, release="test", idle_seconds=30.0, guard=guard)  # type: ignore[arg-type, return-value]
    with Server(app, "http://127.0.0.1:0", guard=guard) as server:
        for block_id, status in (("r1-1-1", 400), ("r2-1-1", 403), ("r1-x-1-1", 403)):
            answer = urllib3.request(
                "PUT",
                f"{server.url}/v1/blocks/s/{block_id}",
                headers={"authorization": f"Bearer {token('receiver:r1')}"},
                body=b"no block",
                retries=False,
            )
            assert answer.status == status, answer.data


def test_without_wal_only_receiver_replaces_copy(guard: Guard, tmp_path: Path) -> None:
    """INV-5: it may be the last copy, so readers of blocks must not replace it."""
    for gives_up, allowed in ((True, {"receiver", "task"}), (False, {"receiver"})):
        store = BlockStore(tmp_path / "blocks", quota_bytes=1 << 30, clock=SystemClock(), may_delete_copies=gives_up)
        store.open()
        app = agent_application(store, lambda: None, release="test", idle_seconds=30.0, guard=guard)  # type: ignore[arg-type, return-value]
        with Server(app, "http://127.0.0.1:0", guard=guard) as server:
            answers = {role: ask(server.url, "PUT", BLOCK, f"Bearer {token(role)}").status for role in ROLES}
        assert {role for role, status in answers.items() if status != 403} == allowed, answers


#: none of them is the address of a service
NO_SERVICES = (
    "file:///etc/passwd", "ftp://h1:7081", "unix:/run/x.sock", "gopher://h1:7081", "javascript:alert(1)", "h1:7081", "//h1:7081",
    "http://", "http://:7081", "https:///etc/passwd", "http://user:secret@h1:7081", "http://h1:0", "http://h1:-1", "http://h1:x",
    "http://h1:7081/path", "http://h1:7081?a", "http://h1:7081?", "http://h1:7081#a", "http://h1:7081#", "http://h1:7081//",
    "http://h1:7081\n", "http://h1\n:7081", "http://h1:7081\r\nX-A: b", "\nhttp://h1:7081", "http://h1\t:7081", " http://h1:7081",
    "http://h1 :7081", "http://h1\0:7081", "http://h1\x1b[2J:7081", "http://h1\u2028:7081", "http://h1\\@h2:7081", "http://h1\\.h2:7081",
)  # fmt: skip


@pytest.mark.parametrize(
    ("url", "https", "fine"),
    [
        ("", True, True),
        ("http://h1:7081", False, True),
        ("https://h1:7081/", True, True),
        ("http://h1:7081", True, False),
        ("http://h1:7081/elsewhere?a=", False, False),
        ("http://user@h1:7081", False, False),
        ("file:///etc/passwd", False, False),
        ("http://h1:70810", False, False),
        ("http://[::1", False, False),
        *((url, https, False) for url in NO_SERVICES for https in (False, True)),
    ],
)
def test_tasks_only_receive_urls_of_agents(url: str, https: bool, fine: bool) -> None:
    """A task's token goes there."""
    with contextlib.nullcontext() if fine else pytest.raises(UsageError, match="an agent's url must be http"):
        check_service_url("an agent's url", url, https)


@pytest.mark.parametrize("url", NO_SERVICES)
def test_agent_with_invalid_url_is_refused(url: str, guard: Guard, submitted: Submitted) -> None:
    app = tracker_application(submitted, status=submitted, ready=lambda: None, release="test", guard=guard)
    path, heartbeat = NAMED[-1]
    with Server(app, "http://127.0.0.1:0", guard=guard) as server:
        body = msgspec.json.encode(msgspec.structs.replace(heartbeat, url=url))
        assert ask(server.url, "POST", path, f"Bearer {token('agent:h1')}", body).status == 400
    assert not submitted.requests


# ---- clients, and where a service may listen -------------------------------------------------------------------------


def test_a_refused_client_says_what_it_needs(guard: Guard, submitted: Submitted) -> None:
    app = tracker_application(submitted, status=submitted, ready=lambda: None, release="test", guard=guard)
    with Server(app, "http://127.0.0.1:0", guard=guard) as server:
        with pytest.raises(AccessError, match="no token was sent: name a file with a valid token in security"):
            Client(server.url).get("/v1/status", m.StatusAnswer)
        with pytest.raises(AccessError, match=r"not of role operator but of role reader.*`forebay token new operator`"):
            Client(server.url, access=Access(token=token("reader"))).post(
                "/v1/operator/stop", m.StopRequest(), m.OperatorAnswer
            )


def test_a_service_without_tokens_does_not_listen_to_the_network(tmp_path: Path) -> None:
    with (
        pytest.raises(SettingsError, match="only listens on this machine"),
        Server(application("t", "1", []), "http://0.0.0.0:0", guard=Guard(settings(tmp_path))),
    ):
        pass


def test_route_without_roles_is_refused(guard: Guard) -> None:
    from litestar import get

    @get("/v1/secret")
    async def secret() -> None: ...

    with pytest.raises(ValueError, match="do not name the roles"):
        application("t", "1", [secret], guard)
