"""A payload yields the same bytes each time; a large one that is made in pieces is never in memory as a whole."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from random import Random

import google_crc32c
import pytest

from forebay.model.errors import StoreError
from tests.support.state.segments import add, durable, writer
from tests.support.stores.forgetful import ForgetfulStorage
from wal.segments import payload as payloads
from wal.segments.encoding import encode_frame
from wal.segments.frame import FrameKind, decode_frame
from wal.segments.payload import Payload, checksum


def test_the_checksum_of_two_parts_is_that_of_the_whole() -> None:
    assert checksum([b"ab", bytearray(b"c"), memoryview(b"d"), b""]) == google_crc32c.value(b"abcd")


@pytest.mark.parametrize("kept_bytes_max", [0, 7, 8])
def test_payload_of_pieces_makes_the_frame_of_the_joined_bytes(
    monkeypatch: pytest.MonkeyPatch, kept_bytes_max: int
) -> None:
    monkeypatch.setattr(payloads, "KEPT_BYTES_MAX", kept_bytes_max)
    parts = [b"abc", b"", b"defgh"]
    made = Payload.made_by(lambda: iter(parts))
    frames = [
        b"".join(encode_frame(FrameKind.SNAPSHOT, uid=1, offset=0, index=1, metadata=b"\x80", payload=payload))
        for payload in (made, made, Payload.of(parts), b"abcdefgh")
    ]
    assert len(set(frames)) == 1
    assert bytes(decode_frame(frames[0], "p", 0).payload) == b"abcdefgh"


@pytest.mark.parametrize(("kept_bytes_max", "times"), [(8, 1), (7, 3)])
def test_small_payload_is_made_once_and_a_large_one_for_each_reading(
    monkeypatch: pytest.MonkeyPatch, kept_bytes_max: int, times: int
) -> None:
    monkeypatch.setattr(payloads, "KEPT_BYTES_MAX", kept_bytes_max)
    made = itertools.count()
    payload = Payload.made_by(counted(made))
    for _ in range(2):
        assert b"".join(payload) == b"abcdefgh"
    assert next(made) == times


def counted(made: Iterator[int]) -> Callable[[], Iterator[bytes]]:
    def make() -> Iterator[bytes]:
        next(made)
        yield b"abc"
        yield b"defgh"

    return make


@pytest.mark.parametrize("later", [[b"abc", b"defg"], [b"abc", b"defgi"], [b"abc", b"defgh", b"i"], []])
def test_payload_that_becomes_another_one_is_not_written_to_its_end(
    monkeypatch: pytest.MonkeyPatch, later: list[bytes]
) -> None:
    """INV-1: its header names the first bytes. A frame with others would be durable, and unreadable."""
    monkeypatch.setattr(payloads, "KEPT_BYTES_MAX", 0)
    made = iter([[b"abc", b"defgh"], later])
    payload = Payload.made_by(lambda: next(made))
    written: list[bytes] = []
    with pytest.raises(RuntimeError, match="a payload of 8 bytes"):
        written.extend(bytes(piece) for piece in payload)
    assert b"".join(written) in (b"", b"abc", b"abcdefgh")  # never all of what was made later


def test_pieces_of_a_large_payload_are_released_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: at most the kept bytes and one piece are in memory."""
    monkeypatch.setattr(payloads, "KEPT_BYTES_MAX", 2)
    alive: set[int] = set()
    most = 0

    class Piece(bytearray):
        def __init__(self, number: int) -> None:
            nonlocal most
            super().__init__(b"x")
            self.number = number
            alive.add(number)
            most = max(most, len(alive))

        def __del__(self) -> None:
            alive.discard(self.number)

    payload = Payload.made_by(lambda: map(Piece, range(100)))
    assert sum(len(memoryview(piece)) for piece in payload) == payload.length == 100
    assert most <= 4


@pytest.mark.parametrize("operation", ["append", "sync"])
def test_payload_that_is_made_in_pieces_is_written_again_after_a_failure(
    monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    """INV-1: a write that failed between two pieces leaves nothing that a reader takes for the frame."""
    monkeypatch.setattr(payloads, "KEPT_BYTES_MAX", 0)
    pieces = [bytes([number]) * 200_000 for number in range(1, 4)]
    storage = ForgetfulStorage()
    log = writer(storage)
    add(log, "before")
    log.sync()
    storage.fail(operation, {"append": 3, "sync": 1}[operation])  # of the head and three pieces
    log.append(FrameKind.BLOCK, b"large", Payload.made_by(lambda: iter(pieces)))
    log.sync()
    storage.crash_host(Random(1))
    assert durable(storage) == [(b"before", b"before" + bytes(20)), (b"large", b"".join(pieces))]


def test_object_of_a_payload_that_is_made_in_pieces_is_sent_again_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(payloads, "KEPT_BYTES_MAX", 0)
    storage = ForgetfulStorage(appendable=False)
    log = writer(storage)
    log.append(FrameKind.BLOCK, b"large", Payload.made_by(lambda: iter([b"ab", b"cd"])))
    storage.fail("put_new", 1, lands="now")
    with pytest.raises(StoreError):
        log.sync()
    log.sync()
    assert durable(storage) == [(b"large", b"abcd")]
