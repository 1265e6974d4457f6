"""A request ends although bytes go on arriving, and a slow answer that is within its limit is read.

Each dripping answer has a byte every 50 ms, and is complete after several times the time-out.
"""

from __future__ import annotations

import socket
import threading
from contextlib import closing, suppress
from pathlib import Path

import pytest
import urllib3

from driver.listeners import RateChanged
from driver.listeners.web_hook import ATTEMPTS_MAX, WebHook
from forebay.http import arriving, kept
from forebay.http.client import Client
from forebay.http.connections import connections
from forebay.model.errors import UnreachableError
from forebay.process.clock import ManualClock
from forebay.security.access import NO_ACCESS, Access
from tests.support.servers.certificates import Authority
from tests.support.servers.raw_service import dripping, service
from tests.support.state.rows import block, filler
from wal.blocks.sending import give_copy

SECONDS = 1.0
HEAD = b"HTTP/1.1 200 OK\r\n"
BODY = b"x" * 60
LONG = b"y" * 500_000
DRIPPING = {
    "head": (HEAD, b"a: " + BODY + b"\r\ncontent-length: 0\r\n\r\n"),
    "body": (HEAD + b"content-length: 60\r\n\r\n", BODY),
    "size of a chunk": (HEAD + b"transfer-encoding: chunked\r\n\r\n", b"0" * 60 + b"\r\n\r\n"),
    "body up to the end": (HEAD + b"\r\n", BODY),
    "after most of it": (HEAD + b"content-length: 500060\r\n\r\n" + LONG, BODY),
}


@pytest.mark.parametrize("answer", DRIPPING.values(), ids=DRIPPING)
def test_request_ends_although_its_answer_goes_on(answer: tuple[bytes, bytes]) -> None:
    with (
        service(dripping(*answer)) as url,
        closing(Client(url, SECONDS)) as client,
        pytest.raises(
            UnreachableError, match=r"after \d+ bytes the answer arrives at less than 65536 bytes per second"
        ),
    ):
        client.request("GET", "/")


@pytest.mark.parametrize("answer", DRIPPING.values(), ids=DRIPPING)
def test_request_by_a_pool_ends_although_its_answer_goes_on(answer: tuple[bytes, bytes]) -> None:
    with (
        service(dripping(*answer)) as url,
        connections(url, NO_ACCESS, urllib3.Timeout(SECONDS)) as pool,
        pytest.raises(urllib3.exceptions.ReadTimeoutError),
    ):
        pool.request("GET", url)


def test_the_same_holds_with_certificates(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    access = Access(ca_file=str(authority.ca_file))
    files = authority.issue("service")
    with (
        service(dripping(*DRIPPING["body"]), files=files) as url,
        closing(Client(url, SECONDS, access)) as client,
        pytest.raises(UnreachableError, match=r"after \d+ bytes the answer arrives at less than"),
    ):
        client.request("GET", "/")
    with (
        service(dripping(*DRIPPING["body"]), files=files) as url,
        connections(url, access, urllib3.Timeout(SECONDS)) as pool,
        pytest.raises(urllib3.exceptions.ReadTimeoutError),
    ):
        pool.request("GET", url)


def test_host_that_answers_slowly_does_not_hold_a_copy_that_is_sent_to_it() -> None:
    with (
        service(dripping(*DRIPPING["body"])) as url,
        connections(url, NO_ACCESS) as pool,
        pytest.raises(UnreachableError, match="Read timed out"),
    ):
        give_copy(pool, url, *block({("a", 0): filler(5)}), timeout_seconds=SECONDS)


def test_slow_web_hook_does_not_hold_the_events() -> None:
    with service(*[dripping(*DRIPPING["head"])] * ATTEMPTS_MAX) as url:
        hook = WebHook(url, stream="flights", timeout_seconds=SECONDS / 2, first_wait_seconds=0.001)
        assert hook.take([RateChanged(time_ms=0, records_per_second=1.0)], 0) == 1
    assert hook.last_error == "no answer (ReadTimeoutError)"


def test_head_without_an_end_is_refused() -> None:
    """http.client skips each head with the status 100."""

    def send(accepted: socket.socket) -> None:
        assert accepted.recv(65_536)
        with suppress(OSError):  # the client closes the connection
            while True:
                accepted.sendall(b"HTTP/1.1 100 Continue\r\n\r\n" * 1000)

    with (
        service(send) as url,
        closing(Client(url, 60.0)) as client,
        pytest.raises(UnreachableError, match="the head of the answer has more than 1048576 bytes"),
    ):
        client.request("GET", "/")


@pytest.mark.parametrize(
    "more", [b"a: b\r\n" * 1000, b"1;" + b"x" * 1000 + b"\r\ny\r\n"], ids=["trailer", "extensions of chunks"]
)
def test_body_whose_chunks_have_no_end_is_refused(more: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "ANSWER_BYTES_MAX", 1 << 20)

    def send(accepted: socket.socket) -> None:
        assert accepted.recv(65_536)
        accepted.sendall(HEAD + b"transfer-encoding: chunked\r\n\r\n" + (b"0\r\n" if b":" in more else b""))
        with suppress(OSError):  # the client closes the connection
            while True:
                accepted.sendall(more)

    with (
        service(send) as url,
        closing(Client(url, 60.0)) as client,
        pytest.raises(UnreachableError, match="the answer has more than 2097152 bytes"),
    ):
        client.request("GET", "/")


def test_silence_in_an_answer_is_a_time_out() -> None:
    came = threading.Event()

    def send(accepted: socket.socket) -> None:
        assert accepted.recv(65_536)
        accepted.sendall(HEAD + b"content-length: 500060\r\n\r\n" + LONG)
        assert came.wait(60)

    with service(send) as url, closing(Client(url, 0.2)) as client:
        with pytest.raises(UnreachableError, match=r"timed out after 0\.2 s"):
            client.request("GET", "/")
        came.set()


def test_each_byte_gives_an_answer_more_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A long answer over a slow network is read: it takes three times the time-out here."""
    monkeypatch.setattr(arriving, "BYTES_PER_SECOND_MIN", 10)
    with service(dripping(*DRIPPING["body"])) as url, closing(Client(url, SECONDS)) as client:
        assert client.request("GET", "/") == BODY


class Jumping(ManualClock):
    """A clock on which each look is later than the time-out of a request."""

    def monotonic(self) -> float:
        self.advance(100 * SECONDS)
        return super().monotonic()


def test_time_in_which_the_process_was_suspended_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has arrived meanwhile is read: the network was not slow."""
    monkeypatch.setattr(arriving, "_clock", Jumping())
    mine, other = socket.socketpair()
    with mine, other:
        mine.settimeout(SECONDS)
        other.sendall(HEAD + b"content-length: 60\r\n\r\n" + BODY[:30])
        answer = arriving.BoundedAnswer(mine, method="GET")
        answer.begin()
        assert answer.read(30) == BODY[:30]
        other.sendall(BODY[30:])
        assert answer.read(30) == BODY[30:]


def test_stream_goes_on_for_longer_than_its_time_out() -> None:
    with (
        service(dripping(*DRIPPING["body"])) as url,
        closing(Client(url, SECONDS)) as client,
        client.stream("/", SECONDS) as parts,
    ):
        assert b"".join(parts) == BODY
