"""What a service accepts from a connection before it knows the peer (INV-6)."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import urllib3
from litestar import get, post
from litestar.params import JSONBody

from forebay import messages as m
from forebay.http.application import application, needs
from forebay.http.bounded import BODY_BYTES_PER_SECOND_MIN, HEADERS_BYTES_MAX, HEADERS_MAX, PIPELINED_MAX, URL_BYTES_MAX
from forebay.http.server import Server
from forebay.security.access import ClientLimits, Guard
from forebay.settings.schema import SecuritySettings
from tests.support.servers.certificates import Authority
from tests.support.state.guarded import settings

# a server's thread leaves its loop's sockets to the collector
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")


@get("/v1/fine")
async def fine() -> str:
    return "fine"


@post("/v1/read", status_code=200)
async def read(data: JSONBody[m.Done]) -> m.Done:
    return data


@pytest.fixture(params=["300ms"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    limited = settings(tmp_path, request_timeout=request.param, connections_max=8)  # type: ignore[arg-type]
    with Server(application("t", "1", [fine, read]), "http://127.0.0.1:0", guard=Guard(limited)) as server:
        yield server


@pytest.fixture(params=["300ms"])
def https_server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    files = Authority(tmp_path).issue("host")
    limited = settings(tmp_path, request_timeout=request.param, connections_max=8, **files)  # type: ignore[arg-type]
    with Server(application("t", "1", [fine, read]), "https://127.0.0.1:0", guard=Guard(limited)) as server:
        yield server


def connect(server: Server) -> socket.socket:
    return socket.create_connection(("127.0.0.1", urlsplit(server.url).port or 0), timeout=30)


def ended(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def answered(connection: socket.socket) -> bytes:
    """Return the head of the answer after its body has arrived, which may be later."""
    received = b""
    while (end := received.find(b"\r\n\r\n")) < 0 or len(received) < end + 4 + _length(received[:end]):
        part = connection.recv(1000)
        assert part, received
        received += part
    return received[:end]


def _length(head: bytes) -> int:
    return next(int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"GET /v1/fi",
        b"GET /v1/fine HTTP/1.1\r\nhost: 127.0.0.1\r\n",
        b"POST /v1/fine HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 9\r\n\r\nhalf",
        b"\r\n",
    ],
)
def test_incomplete_request_ends_connection(server: Server, sent: bytes) -> None:
    with connect(server) as connection:
        connection.sendall(sent)
        while not ended(connection):  # what it may say before
            pass


@pytest.mark.parametrize("server", ["2s"], indirect=True)  # the request may be sent late
def test_empty_lines_do_not_keep_connection(server: Server) -> None:
    """They begin no request, but the first byte ended the wait for the next one."""
    with connect(server) as connection:
        connection.sendall(b"GET /v1/fine HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        answer = b""
        while not answer.endswith(b"fine"):
            answer += connection.recv(1000)
        connection.sendall(b"\r\n")
        assert ended(connection)


@pytest.mark.parametrize("server", ["60s"], indirect=True)
def test_kept_connection_has_time_limit_per_request(server: Server) -> None:
    with urllib3.HTTPConnectionPool("127.0.0.1", urlsplit(server.url).port or 0, maxsize=1, retries=False) as pool:
        assert [pool.request("GET", "/v1/fine").data for _ in range(3)] == [b"fine"] * 3
        assert pool.num_connections == 1


# ---- the time of a body ----------------------------------------------------------------------------------------------

#: the head of a request that a route reads whole, with ``%d`` bytes of body
POST = b"POST /v1/read HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"


@pytest.mark.parametrize("length", [b"content-length: 9\r\n\r\n", b"transfer-encoding: chunked\r\n\r\n9\r\n"])
def test_incomplete_body_ends_connection_without_answer(tmp_path: Path, length: bytes) -> None:
    """The route waits for the rest, so nothing else ends the connection."""
    limited = settings(tmp_path, request_timeout="300ms", request_size="65536B")
    app = application("t", "1", [read])
    with Server(app, "http://127.0.0.1:0", guard=Guard(limited)) as server, connect(server) as connection:
        connection.sendall(POST + length + b"half")
        assert ended(connection)


def test_a_body_may_take_longer_than_its_head(server: Server) -> None:
    """It has one second more for each unit of its length. A later silent connection shows the passing time."""
    body = b"{}".rjust(600 * BODY_BYTES_PER_SECOND_MIN // 100)
    with connect(server) as connection:
        connection.sendall(POST + b"content-length: %d\r\n\r\n" % len(body) + body[:100])
        for _ in range(3):
            with connect(server) as silent:
                assert ended(silent)
        connection.sendall(body[100:])
        assert connection.recv(1000).startswith(b"HTTP/1.1 200 ")


def test_unread_body_has_time_limit_of_a_head(server: Server) -> None:
    """Otherwise a byte now and then would keep the connection for years."""
    with connect(server) as connection:
        connection.sendall(POST + b"content-length: %d\r\n\r\n" % (1 << 60))
        assert connection.recv(1000).startswith(b"HTTP/1.1 413 ")
        connection.settimeout(0.05)
        trickle = b"x"
        while True:
            try:
                connection.sendall(trickle)
                if ended(connection):
                    break
            except TimeoutError:
                continue
            except OSError:
                break


# ---- the size of a head ----------------------------------------------------------------------------------------------

HEAD = b"GET /v1/fine HTTP/1.1\r\nhost: 127.0.0.1\r\n"
CHUNKED = POST + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"
#: what is sent first, again and again, and what the answer begins with
ENDLESS = {
    "a URL": (b"GET /", b"a" * 1000, b"HTTP/1.1 414 "),
    "a method": (b"", b"G" * 1000, b"HTTP/1.1 400 "),
    "a header's name": (HEAD, b"a" * 1000, b"HTTP/1.1 431 "),
    "a header's value": (HEAD + b"a: ", b"a" * 1000, b"HTTP/1.1 431 "),
    "headers": (HEAD, b"a: %s\r\n" % (b"a" * 1000), b"HTTP/1.1 431 "),
    "small headers": (HEAD, b"a:\r\n", b"HTTP/1.1 431 "),
    "empty lines": (b"", b"\r\n" * 500, b"HTTP/1.1 431 "),
    "a chunk's extension": (CHUNKED + b"2;", b"a" * 1000, b""),
    "a trailer": (CHUNKED + b"0\r\n", b"a: %s\r\n" % (b"a" * 1000), b""),
    "a trailer's value": (CHUNKED + b"0\r\na: ", b"a" * 1000, b""),
}


@pytest.mark.parametrize("server", ["600s"], indirect=True)
@pytest.mark.parametrize("name", ENDLESS)
def test_endless_head_is_refused_with_its_limit(server: Server, name: str) -> None:
    first, again, answer = ENDLESS[name]
    with connect(server) as connection:
        connection.sendall(first)
        sent = 0
        try:
            while sent < 64 << 20:
                sent += connection.send(again)
        except OSError:
            pass
        assert sent < 64 << 20, "it is read on and on"
    with connect(server) as connection:  # no more than is read before the answer, so that the answer arrives
        connection.sendall(first)
        received = b""
        connection.settimeout(0.02)
        while True:
            try:
                connection.sendall(again)
                part = connection.recv(1000)
            except TimeoutError:
                continue
            except OSError:
                break
            received += part
            if not part or part.endswith(b"}"):
                break
        assert received.startswith(answer)


@pytest.mark.parametrize("server", ["60s"], indirect=True)
def test_head_is_served_up_to_each_limit_and_refused_beyond(server: Server) -> None:
    for more_url, more_headers, more_bytes, status in ((0, 0, 0, 200), (1, 0, 0, 414), (0, 1, -3, 431), (0, 0, 1, 431)):
        url = b"/v1/fine?".ljust(URL_BYTES_MAX + more_url, b"a")
        small = HEADERS_MAX - 2 + more_headers  # beside host and long
        headers = b"".join(b"h%02d: \r\n" % (number % 100) for number in range(small))
        rest = HEADERS_BYTES_MAX + more_bytes - 3 * small - len(b"host127.0.0.1long")
        with connect(server) as connection:
            head = b"GET %s HTTP/1.1\r\nhost: 127.0.0.1\r\n%slong: %s\r\n\r\n"
            connection.sendall(head % (url, headers, b"a" * rest))
            assert connection.recv(1000).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize("server", ["60s"], indirect=True)
def test_too_many_pipelined_requests_end_connection(server: Server) -> None:
    """One read can contain thousands of them, and each costs far more than its bytes."""
    request = HEAD + b"\r\n"
    for number, answered in ((PIPELINED_MAX + 1, True), (PIPELINED_MAX + 2, False)):
        with connect(server) as connection:
            connection.sendall(request * number)
            received = b""
            while received.count(b"\r\n\r\nfine") < number:
                try:
                    part = connection.recv(100_000)
                except ConnectionResetError:
                    break
                if not part:
                    break
                received += part
            assert (received.count(b"\r\n\r\nfine") == number) == answered


# ---- the number of connections ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["600s"], indirect=True)
def test_silent_connections_end_for_new_ones(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    with urllib3.HTTPConnectionPool("127.0.0.1", urlsplit(server.url).port or 0, retries=False) as pool:
        assert pool.request("GET", "/v1/fine").status == 200
        silent = [connect(server) for _ in range(30)]
        assert all(ended(connection) for connection in silent[:22])  # the oldest
        assert pool.request("GET", "/v1/fine").status == 200
        assert pool.num_connections == 1  # kept all the while
        with connect(server) as newcomer:
            newcomer.sendall(HEAD + b"\r\n")
            assert newcomer.recv(1000).startswith(b"HTTP/1.1 200 ")
        for connection in silent[23:]:
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(1)
        for connection in silent:
            connection.close()
    lines = [r.getMessage() for r in caplog.records if "unauthenticated connections" in r.getMessage()]
    assert len(lines) == 1 and "the last one from 127.0.0.1: more than 8 at the same time" in lines[0]


@pytest.mark.parametrize("server", ["600s"], indirect=True)
def test_silent_connections_of_one_peer_end_none_of_another(server: Server) -> None:
    address = ("127.0.0.1", urlsplit(server.url).port or 0)
    with connect(server) as mine:
        flood = [socket.create_connection(address, timeout=30, source_address=("127.0.0.2", 0)) for _ in range(20)]
        assert all(ended(connection) for connection in flood[:13])
        mine.sendall(HEAD + b"\r\n")
        assert mine.recv(1000).startswith(b"HTTP/1.1 200 ")
        for connection in flood:
            connection.close()


@pytest.mark.parametrize("server", ["600s"], indirect=True)
def test_ended_connections_free_their_places(server: Server) -> None:
    with connect(server) as oldest:
        for _ in range(20):
            with connect(server) as connection:
                connection.sendall(b"no request\r\n\r\n")
                while not ended(connection):
                    pass
        for _ in range(20):  # each takes a place among the authenticated, until it ends
            with connect(server) as connection:
                connection.sendall(HEAD + b"connection: close\r\n\r\n")
                answer = b""
                while part := connection.recv(1000):
                    answer += part
                assert answer.startswith(b"HTTP/1.1 200 ")
        oldest.sendall(HEAD + b"\r\n")
        assert oldest.recv(1000).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("server", ["600s"], indirect=True)
def test_authenticated_connections_beyond_limit_are_refused_and_silent_ones_do_not_count(server: Server) -> None:
    silent = [connect(server) for _ in range(8)]
    known, answers = [], []
    for _ in range(9):  # one by one: a ninth silent connection would end the oldest one
        known.append(connect(server))
        known[-1].sendall(HEAD + b"\r\n")
        answers.append(answered(known[-1])[:13])
    assert answers == [b"HTTP/1.1 200 "] * 8 + [b"HTTP/1.1 503 "]
    for connection in (*silent, *known):
        connection.close()


@pytest.fixture
def guarded_server(tmp_path: Path) -> Iterator[Server]:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("the-token-of-everybody\n")
    guard = Guard(settings(tmp_path, request_timeout="600s", connections_max=8, token_file=str(tokens)))  # type: ignore[arg-type]
    with Server(application("t", "1", [health, guarded], guard), "http://127.0.0.1:0", guard=guard) as server:
        yield server


@get("/v1/health", opt=needs())
async def health() -> str:
    return "well"


@get("/v1/guarded", opt=needs("reader"))
async def guarded() -> str:
    return "fine"


@pytest.mark.parametrize(
    ("request_line", "status"), [(b"GET /v1/health HTTP/1.1", b"200"), (b"GET /v1/guarded HTTP/1.1", b"401")]
)
def test_connection_without_valid_token_stays_unauthenticated(
    guarded_server: Server, request_line: bytes, status: bytes
) -> None:
    host = b"\r\nhost: any.example\r\n"
    with connect(guarded_server) as known:
        known.sendall(b"GET /v1/guarded HTTP/1.1" + host + b"authorization: Bearer the-token-of-everybody\r\n\r\n")
        assert answered(known).startswith(b"HTTP/1.1 200 ")
        strangers = []
        for _ in range(12):
            strangers.append(connect(guarded_server))
            strangers[-1].sendall(request_line + host + b"authorization: Bearer not-a-token-of-ours\r\n\r\n")
            assert answered(strangers[-1]).startswith(b"HTTP/1.1 " + status)
        assert all(ended(connection) for connection in strangers[:4])
        known.sendall(b"GET /v1/guarded HTTP/1.1" + host + b"authorization: Bearer the-token-of-everybody\r\n\r\n")
        assert answered(known).startswith(b"HTTP/1.1 200 ")
        for connection in strangers:
            connection.close()


#: how a client's first message begins: a handshake of 512 bytes
CLIENT_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"


@pytest.mark.parametrize("sent", [b"", CLIENT_HELLO])
def test_incomplete_handshake_ends_connection(https_server: Server, sent: bytes) -> None:
    with connect(https_server) as connection:
        connection.sendall(sent)
        assert ended(connection)


def test_bytes_other_than_handshake_end_connection(https_server: Server) -> None:
    with connect(https_server) as connection:
        connection.sendall(b"GET /v1/fine HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
        while not ended(connection):  # an alert before
            pass


@pytest.mark.parametrize("https_server", ["600s"], indirect=True)
def test_unfinished_handshakes_end_for_new_ones(https_server: Server, tmp_path: Path) -> None:
    """They count from their first byte, and exclude no client."""
    silent = [connect(https_server) for _ in range(12)]
    assert all(ended(connection) for connection in silent[:4])
    with urllib3.PoolManager(ca_certs=str(tmp_path / "authority.pem"), retries=False) as pool:
        assert pool.request("GET", f"{https_server.url}/v1/fine").data == b"fine"
    assert ended(silent[4])
    silent[-1].setblocking(False)
    with pytest.raises(BlockingIOError):
        silent[-1].recv(1)
    for connection in silent:
        connection.close()


def test_limits_without_settings_are_the_defaults_of_the_settings() -> None:
    assert ClientLimits() == ClientLimits.of(SecuritySettings())
