"""What a service keeps for an idle connection after a large request (INV-6)."""

from __future__ import annotations

import gc
import http.client
import select
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from litestar import post
from litestar.params import JSONBody

from forebay import messages as m
from forebay.http.application import application
from forebay.http.client import Client
from forebay.http.server import Server
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import UsageError
from forebay.security.access import ClientLimits
from tests.support.processes.service_process import HANG_SECONDS, TOKEN, Service, configured, running

CONNECTIONS = 12
#: of memory for each connection; a body is almost 8 MB
HELD_BYTES_MAX = 2_500_000
#: measurements while connections were open; a busy machine may let one become idle for longer than the service waits
ATTEMPTS = 5

_TEXT = b"x" * (ClientLimits().request_bytes - 100)
#: service, method, path, body
REQUESTS = {
    "past-the-framework": ("driver", "POST", "/v1/blocks/report", b'{"padding": "' + _TEXT + b'"}'),
    "by-the-framework": ("driver", "POST", "/v1/operator/fence", b'{"padding": "' + _TEXT + b'"}'),
    "no-json": ("driver", "POST", "/v1/operator/fence", _TEXT),
    "unread": ("driver", "POST", "/v1/status", _TEXT),
    "agent": ("agent", "PUT", "/v1/blocks/s/x", _TEXT),
}


@pytest.fixture(params=REQUESTS)
def request_of(request: pytest.FixtureRequest) -> tuple[str, str, str, bytes]:
    return REQUESTS[request.param]


@pytest.fixture
def service(
    request_of: tuple[str, str, str, bytes], tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]
) -> Iterator[Service]:
    topic = topic_name()
    mock_broker.create_topic(topic)
    with running(configured(tmp_path, [topic], mock_broker.address), request_of[0]) as service:
        yield service


def ask(connection: http.client.HTTPConnection, method: str, path: str, body: bytes) -> None:
    headers = {"authorization": f"Bearer {TOKEN}", "content-type": "application/json"}
    connection.request(method, path, body, headers)
    connection.getresponse().read()


def is_open(connection: http.client.HTTPConnection) -> bool:
    """Whether an idle connection is open: only its end could arrive on it."""
    return connection.sock is not None and not select.select([connection.sock], [], [], 0)[0]


def held_bytes(service: Service, method: str, path: str, body: bytes) -> int | None:
    """Return the service's memory for all connections; None if a connection was closed meanwhile."""
    service.ask("GET", "/v1/status")  # answered after the service saw the end of connections that were closed before
    before = service.memory_bytes()
    with ExitStack() as opened:
        connections = []
        for _ in range(CONNECTIONS):
            parts = urlsplit(service.url)
            connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=HANG_SECONDS)
            connections.append(opened.enter_context(closing(connection)))
            ask(connection, method, path, body)
        held = service.memory_bytes() - before
        return held if all(map(is_open, connections)) else None


def test_body_is_freed_after_answer_while_connection_stays(
    service: Service, request_of: tuple[str, str, str, bytes]
) -> None:
    _, method, path, body = request_of
    held_bytes(service, method, path, body)  # what the service needs once
    for _ in range(ATTEMPTS):
        if (held := held_bytes(service, method, path, body)) is not None:
            print(f"{method} {path}: {held / 1e6:+.1f} MB held for {CONNECTIONS} connections")
            assert held < CONNECTIONS * HELD_BYTES_MAX
            return
    pytest.fail(f"none of {ATTEMPTS} times were {CONNECTIONS} connections open at the same time")


@post("/v1/operator/fence", status_code=200)
async def fence(data: JSONBody[m.FenceRequest]) -> m.OperatorAnswer:
    return m.OperatorAnswer(message="fenced")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"padding": "%s"}', "Validation failed for POST /v1/operator/fence; data: Object missing required field `topic`"),
        (b'{"topic": 7, "padding": "%s"}', "topic: Expected `str`, got `int`"),
        (b'{"topic": "t", "partition": "p", "padding": "%s"}', "partition: Expected `int`, got `str`"),
        (b'"%s"', "data: Expected `object`, got `str`"),
        (b"%s", "JSON is malformed"),
    ],
)  # fmt: skip
def test_refused_body_is_freed_without_a_collection(body: bytes, message: str) -> None:
    """An idle service may not collect cycles for minutes."""
    body %= _TEXT
    with (
        Server(application("driver", "0.1.0", [fence]), "http://127.0.0.1:0") as server,
        closing(Client(server.url)) as client,
    ):
        gc.collect()
        gc.disable()
        tracemalloc.start()
        try:
            for _ in range(3):
                with pytest.raises(UsageError) as refused:
                    client.request("POST", "/v1/operator/fence", body)
                assert message in str(refused.value)
                del refused
            client.request("POST", "/v1/operator/fence", b'{"topic": "t", "partition": 0, "receiver_id": "r"}')
            held, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
            gc.enable()
    assert held < len(body)
