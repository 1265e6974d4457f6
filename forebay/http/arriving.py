"""Answers of ``http.client`` whose arrival has a limit.

A time-out of a socket counts from the last byte. So a service that sends one byte before each time-out, or a network that passes
a few bytes a second, would hold a request for hours. Here the waits for one answer are added up, and each byte that arrives gives
some of the time back: a leaky bucket.
"""

from __future__ import annotations

import io
import socket
from http.client import HTTPException, HTTPResponse
from typing import Any

from forebay.process.clock import SystemClock

#: bytes that give an answer one more second
BYTES_PER_SECOND_MIN = 1 << 16
#: maximum bytes before the body: http.client itself limits each line, but skips any number of heads with the status 100
HEAD_BYTES_MAX = 1 << 20
#: a wait is at least this long, so that bytes which are here already are always read
_WAIT_SECONDS_MIN = 0.001

_clock = SystemClock()


class SlowAnswerError(TimeoutError):
    """An answer arrived more slowly than it may. Its text says how slowly."""


class BoundedAnswer(HTTPResponse):
    """An answer with two limits.

    Its head has at most HEAD_BYTES_MAX, otherwise HTTPException is raised. It may be waited for as long as the socket's time-out,
    and each byte gives back 1 / BYTES_PER_SECOND_MIN of a second; otherwise SlowAnswerError is raised.
    """

    def __init__(self, sock: socket.socket, *rest: Any, **named: Any) -> None:
        super().__init__(sock, *rest, **named)
        self._arriving = _Arriving(sock)
        with self.fp:  # the socket stays open: two files use it
            self.fp = io.BufferedReader(self._arriving)

    def begin(self) -> None:
        self._arriving.limit(HEAD_BYTES_MAX, "the head of the answer")
        super().begin()
        self._arriving.limit(None, "the answer")

    def limit(self, bytes_max: int) -> None:
        """Raise HTTPException if more than ``bytes_max`` arrive, with the head and with what is around the chunks of a body."""
        self._arriving.limit(bytes_max, "the answer")

    def restart(self) -> None:
        """Forget the waits, as for the next part of an answer that goes on for as long as its connection."""
        self._arriving.restart()


class _Arriving(io.RawIOBase):
    """The bytes that arrive at a socket."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)
        self._idle_seconds = sock.gettimeout()
        self._received = 0
        self.limit(None, "")
        self.restart()

    def limit(self, bytes_max: int | None, name: str) -> None:
        self._bytes_max, self._name = bytes_max, name

    def restart(self) -> None:
        self._left_seconds = self._idle_seconds or 0.0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int | None:
        if self._bytes_max is not None and self._received > self._bytes_max:
            raise HTTPException(f"{self._name} has more than {self._bytes_max} bytes")
        count = self._file.readinto(target) if self._idle_seconds is None else self._read_in_time(target)
        self._received += count or 0
        return count

    def _read_in_time(self, target: Any) -> int | None:
        assert self._idle_seconds is not None
        wait_seconds = max(self._left_seconds, _WAIT_SECONDS_MIN)
        self._sock.settimeout(wait_seconds)
        began = _clock.monotonic()
        try:
            count = self._file.readinto(target)
        except TimeoutError as error:
            if error.errno is not None or wait_seconds >= self._idle_seconds:
                raise
            raise SlowAnswerError(
                f"after {self._received} bytes the answer arrives at less than {BYTES_PER_SECOND_MIN} bytes per second"
            ) from None
        # what lasted longer than the wait was not the network: this process was suspended, or worked on something else
        waited_seconds = min(_clock.monotonic() - began, wait_seconds)
        given_seconds = (count or 0) / BYTES_PER_SECOND_MIN
        self._left_seconds = min(self._idle_seconds, self._left_seconds - waited_seconds + given_seconds)
        return count

    def close(self) -> None:
        self._file.close()
        super().close()
