"""Answers of ``http.client`` whose arrival has a limit.

A time-out of a socket counts from the last byte. So a service that sends one byte before each time-out, or a network that passes
a few bytes a second, would hold a request for hours. Here the waits of one answer are added up.
"""

from __future__ import annotations

import io
import socket
from http.client import HTTPException, HTTPResponse
from typing import Any

from forebay.process.clock import SystemClock

#: bytes for each second of waiting after the first time-out. Any network that could carry a stream is faster
BYTES_PER_SECOND_MIN = 1 << 16
#: maximum bytes before the body: http.client itself limits each line, but skips any number of heads with the status 100
HEAD_BYTES_MAX = 1 << 20

_clock = SystemClock()


class SlowAnswerError(TimeoutError):
    """An answer arrived more slowly than it may. Its text says how slowly."""


class BoundedAnswer(HTTPResponse):
    """An answer with two limits. Its head has at most HEAD_BYTES_MAX, otherwise HTTPException is raised. All waits for it
    together last at most the socket's time-out, and the time of its bytes at BYTES_PER_SECOND_MIN, otherwise SlowAnswerError."""

    def __init__(self, sock: socket.socket, *rest: Any, **named: Any) -> None:
        super().__init__(sock, *rest, **named)
        self._arriving = _Arriving(sock)
        with self.fp:  # the socket stays open: two files use it
            self.fp = io.BufferedReader(self._arriving)

    def begin(self) -> None:
        self._arriving.bytes_max = HEAD_BYTES_MAX
        super().begin()
        self._arriving.bytes_max = None

    def restart(self) -> None:
        """Count waits and bytes from here, as for a part of an answer that goes on for as long as its connection."""
        self._arriving.restart()


class _Arriving(io.RawIOBase):
    """The bytes that arrive at a socket. ``bytes_max``: maximum number of bytes until now; None: any."""

    def __init__(self, sock: socket.socket) -> None:
        self.bytes_max: int | None = None
        self._sock = sock
        self._file = sock.makefile("rb", buffering=0)
        self._idle_seconds = sock.gettimeout()
        self.restart()

    def restart(self) -> None:
        self._waited_seconds = 0.0
        self._received = 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int | None:
        if self.bytes_max is not None and self._received > self.bytes_max:
            raise HTTPException(f"the head of the answer has more than {self.bytes_max} bytes")
        if self._idle_seconds is None:
            return self._read(target)
        left = self._idle_seconds + self._received / BYTES_PER_SECOND_MIN - self._waited_seconds
        if left <= 0:
            raise self._too_slow()
        self._sock.settimeout(min(left, self._idle_seconds))
        try:
            return self._timed_read(target)
        except TimeoutError:
            if not self._received:
                raise
            raise self._too_slow() from None

    def _timed_read(self, target: Any) -> int | None:
        began = _clock.monotonic()
        try:
            return self._read(target)
        finally:
            self._waited_seconds += _clock.monotonic() - began

    def _read(self, target: Any) -> int | None:
        count = self._file.readinto(target)
        self._received += count or 0
        return count

    def _too_slow(self) -> SlowAnswerError:
        return SlowAnswerError(f"only {self._received} bytes arrived in {self._waited_seconds:.1f} s")

    def close(self) -> None:
        self._file.close()
        super().close()
