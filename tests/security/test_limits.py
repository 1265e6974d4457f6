"""What a service takes from a connection, whoever it is (INV-6)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3
from litestar import get

from forebay.access import Guard
from forebay.http import Server, application
from tests.support.certificates import Authority
from tests.support.guarded import settings

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@get("/v1/fine")
async def fine() -> str:
    return "fine"


@pytest.fixture(params=["300ms"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    limited = settings(tmp_path, request_timeout=request.param, connections_max=8)  # type: ignore[arg-type]
    with Server(application("t", "1", [fine]), "http://127.0.0.1:0", guard=Guard(limited)) as server:
        yield server


@pytest.fixture(params=["300ms"])
def https_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    files = Authority(tmp_path).issue("host")
    limited = settings(tmp_path, request_timeout=request.param, connections_max=8, **files)  # type: ignore[arg-type]
    with Server(application("t", "1", [fine]), "https://127.0.0.1:0", guard=Guard(limited)) as server:
        yield server


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0), timeout=30)


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /v1/fi",
        b"GET /v1/fine HTTP/1.1\r\nhost: x\r\n",
        b"POST /v1/fine HTTP/1.1\r\nhost: x\r\ncontent-length: 9\r\n\r\nhalf",
        b"\r\n",
    ],
)
def test_a_request_that_does_not_arrive_ends_its_connection(server: Server, sent: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(sent)
        while not ended(connection):  # what it may say before
            pass


@pytest.mark.parametrize("server", ["2s"], indirect=True)  # the request may be sent late
def test_empty_lines_after_an_answer_do_not_keep_a_connection(server: Server) -> None:
    """They begin no request, and the wait for the next one had ended with the first byte."""
    with connect(server) as connection:
        connection.sendall(b"GET /v1/fine HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = b""
        while not answer.endswith(b"fine"):
            answer += connection.recv(1000)
        connection.sendall(b"\r\n")
        assert ended(connection)


@pytest.mark.parametrize("server", ["60s"], indirect=True)
def test_a_connection_that_is_kept_is_given_the_time_for_each_request(server: Server) -> None:
    with urllib3.HTTPConnectionPool("127.0.0.1", urlsplit(server.url).port or 0, maxsize=1, retries=False) as pool:
        assert [pool.request("GET", "/v1/fine").data for _ in range(3)] == [b"fine"] * 3
        assert pool.num_connections == 1


@pytest.mark.parametrize("server", ["600s"], indirect=True)
def test_connections_beyond_the_limit_are_ended_at_once_and_those_below_twice_it_are_told(server: Server) -> None:
    with urllib3.HTTPConnectionPool("127.0.0.1", urlsplit(server.url).port or 0, retries=False) as pool:
        assert pool.request("GET", "/v1/fine").status == 200
        kept = [connect(server) for _ in range(30)]
        refused = [connection for connection in kept[16:] if ended(connection)]
        assert len(refused) == 14
        assert pool.request("GET", "/v1/fine").status == 503  # known too many, and told so
        for connection in kept:
            connection.close()


#: how a client's first message begins: a handshake of 512 bytes
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest.mark.parametrize("sent", [b"", CLIENT_HELLO])
def test_a_handshake_that_does_not_arrive_ends_its_connection(https_server: Server, sent: bytes) -> None:
    with connect(https_server) as connection:
        connection.sendall(sent)
        assert ended(connection)


def test_what_begins_no_handshake_ends_its_connection(https_server: Server) -> None:
    with connect(https_server) as connection:
        connection.sendall(b"GET /v1/fine HTTP/1.1\r\nhost: x\r\n\r\n")
        while not ended(connection):  # an alert before
            pass


@pytest.mark.parametrize("https_server", ["600s"], indirect=True)
def test_handshakes_without_an_end_count_among_the_connections(https_server: Server, tmp_path: Path) -> None:
    """And what ends makes room again."""
    silent = [connect(https_server) for _ in range(16)]
    with connect(https_server) as refused:
        assert ended(refused)
    for connection in silent:
        connection.close()
    with urllib3.PoolManager(ca_certs=str(tmp_path / "authority.pem")) as pool:
        retries = urllib3.Retry(20, backoff_factor=0.05)  # the server sees by and by that they are closed
        assert pool.request("GET", f"{https_server.url}/v1/fine", retries=retries).data == b"fine"
