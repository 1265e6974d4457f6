"""Connections of the HTTP client: used again, never twice for a request, closed when they cannot be used."""

from __future__ import annotations

import contextlib
import select
import socket
import threading
from contextlib import closing

import pytest

from forebay.http import kept
from forebay.http.client import Client
from forebay.model.errors import NoListenerError, NotTakenError, UnreachableError
from tests.support.servers.raw_service import answering, service

FINE = b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nfine"


def test_requests_use_the_kept_connection_and_a_new_one_after_the_service_closed_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[socket.socket] = []
    connect = socket.create_connection

    def recorded(address: tuple[str, int], timeout: float) -> socket.socket:
        made.append(connect(address, timeout))
        return made[-1]

    monkeypatch.setattr(socket, "create_connection", recorded)
    with service(answering(FINE, FINE), answering(FINE)) as url, closing(Client(url, 60)) as client:
        assert [client.request("GET", "/") for _ in range(2)] == [b"fine"] * 2
        assert len(made) == 1
        # a request that is sent while the service closes the connection is lost, and it is not sent again
        assert select.select(made, [], [], 10)[0] == made
        assert client.request("GET", "/") == b"fine"
        assert len(made) == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"no HTTP\r\n\r\n",
        FINE[:-2],
        b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999\r\n\r\nfine",
        b"HTTP/1.1 200 OK\r\ncontent-length: 9999999999999999999999999\r\n\r\nfine",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-5\r\nabc",
    ],
    ids=["none", "of another program", "cut", "beyond memory", "beyond 64 bits", "wrong chunk", "negative chunk"],
)
def test_request_without_a_whole_answer_is_not_sent_again(answer: bytes) -> None:
    """The service may have decided it. A second connection would find no listener that accepts."""
    with (
        service(answering(answer)) as url,
        closing(Client(url, 60)) as client,
        pytest.raises(UnreachableError) as caught,
    ):
        client.request("POST", "/v1/x", b"{}")
    assert not isinstance(caught.value, NotTakenError)
    assert f"{url} did not answer POST /v1/x: " in str(caught.value)


@pytest.mark.parametrize(
    "head",
    [
        b"content-length: %d\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n%x\r\n",
        b"transfer-encoding: chunked\r\n\r\n-1\r\n",
    ],
    ids=["length", "chunk", "negative chunk"],
)
def test_answer_above_the_maximum_is_refused_unread(head: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service stops when the client closes the connection."""
    monkeypatch.setattr(kept, "ANSWER_BYTES_MAX", 2 << 20)
    sent = 0

    def send(accepted: socket.socket) -> None:
        nonlocal sent
        accepted.recv(65_536)
        accepted.sendall(b"HTTP/1.1 200 OK\r\n" + (head % (1 << 40) if b"%" in head else head))
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            while sent < 1 << 28:
                sent += accepted.send(b"x" * (1 << 20))

    with (
        service(send) as url,
        closing(Client(url, 60)) as client,
        pytest.raises(UnreachableError, match="the answer has more than 2097152 bytes"),
    ):
        client.request("GET", "/")
    assert sent < 1 << 27


def test_answer_of_the_maximum_is_read_and_its_connection_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "ANSWER_BYTES_MAX", 4)
    chunked = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n4\r\nfine\r\n0\r\n\r\n"
    with service(answering(FINE, chunked, FINE)) as url, closing(Client(url, 60)) as client:
        assert [client.request("GET", "/") for _ in range(3)] == [b"fine"] * 3


def test_answer_to_a_body_that_was_not_read_is_still_read() -> None:
    refusal = b'{"code": "unknown", "message": "too large"}'

    def refuse(accepted: socket.socket) -> None:
        accepted.recv(1)
        accepted.sendall(b"HTTP/1.1 413 Large\r\ncontent-length: %d\r\n\r\n%s" % (len(refusal), refusal))
        accepted.shutdown(socket.SHUT_WR)
        while accepted.recv(1 << 20):  # a reset would drop the answer
            pass

    with service(refuse) as url, closing(Client(url, 60)) as client, pytest.raises(Exception, match="too large"):
        client.request("POST", "/", b"x" * (8 << 20))


@pytest.mark.parametrize(
    "url", ["ftp://127.0.0.1", "http://", "http://127.0.0.1:99999", "http://" + "x" * 70 + ".invalid"]
)
def test_url_that_is_no_service_has_no_listener(url: str) -> None:
    with closing(Client(url, 60)) as client, pytest.raises(NoListenerError):
        client.request("GET", "/")


def test_closed_port_has_no_listener_and_the_error_says_why() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with closing(Client(url, 60)) as client, pytest.raises(NoListenerError, match="GET /: Connection refused"):
        client.request("GET", "/")


def test_stream_gives_parts_as_they_arrive_and_fails_when_none_arrives_in_time() -> None:
    came = threading.Event()

    def send(accepted: socket.socket) -> None:
        accepted.recv(65_536)
        accepted.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\none\r\n")
        assert came.wait(60)
        accepted.sendall(b"3\r\ntwo\r\n")
        accepted.recv(1)  # until the client closes

    with service(send) as url, closing(Client(url, 60)) as client, client.stream("/", 2.0) as parts:
        assert next(parts) == b"one"
        came.set()
        assert next(parts) == b"two"
        with pytest.raises(UnreachableError, match=r"the answer to GET / broke off: timed out after 2 s"):
            next(parts)


def test_stream_of_known_length_that_is_cut_breaks_off() -> None:
    with service(answering(FINE[:-2])) as url, closing(Client(url, 60)) as client, client.stream("/", 60) as parts:
        assert next(parts) == b"fi"
        with pytest.raises(UnreachableError, match="broke off: the answer ended 2 bytes early"):
            next(parts)
