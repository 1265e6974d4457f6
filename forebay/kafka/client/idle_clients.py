"""A pool of idle clients for the next caller, bounded in number and time; no client is used after a fork."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from forebay.process.clock import Clock, SystemClock


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


@dataclass(slots=True, eq=False)
class _Entry(Generic[C]):
    process: int
    key: object
    client: C
    since: float


class IdleClients(Generic[C]):
    """Keeps at most ``most`` idle clients of this process, each for at most ``idle_seconds``. Thread-safe.

    After a fork, the child does not touch its parent's clients: librdkafka's clients can't be used or closed in a child. The
    caller that takes a client is its only user.
    """

    def __init__(self, most: int, idle_seconds: float, clock: Clock | None = None) -> None:
        self.most = most
        self._idle_seconds = idle_seconds
        self._clock = clock or SystemClock()
        self._entries: list[_Entry[C]] = []
        self._lock = threading.Lock()
        self._sweeper: tuple[int, threading.Timer] | None = None  # process id, and its timer

    def __len__(self) -> int:
        """Return the number of idle clients of this process."""
        return sum(entry.process == os.getpid() for entry in self._entries)

    def take(self, key: object, fits: Callable[[C], bool] = lambda _: True) -> C | None:
        """Remove and return the newest client under ``key`` that ``fits``; None if there is none."""
        self.sweep()
        with self._lock:
            for place in reversed(range(len(self._entries))):
                entry = self._entries[place]
                if entry.process == os.getpid() and entry.key == key and fits(entry.client):
                    del self._entries[place]
                    return entry.client
        return None

    def keep(self, key: object, client: C) -> None:
        """Keep ``client``, which its caller no longer uses. Close the oldest client if there are too many."""
        with self._lock:
            self._entries.append(_Entry(os.getpid(), key, client, self._clock.monotonic()))
            own = [entry for entry in self._entries if entry.process == os.getpid()]
            surplus = own[: max(0, len(own) - self.most)]
            self._entries = [entry for entry in self._entries if entry not in surplus]
            self._wake_later()
        _close(surplus)

    def sweep(self) -> None:
        """Close clients that were idle for too long."""
        with self._lock:
            limit = self._clock.monotonic() - self._idle_seconds
            old = [entry for entry in self._entries if entry.process == os.getpid() and entry.since <= limit]
            self._entries = [entry for entry in self._entries if entry not in old]
        _close(old)

    def clear(self) -> None:
        """Close all clients of this process."""
        with self._lock:
            own = [entry for entry in self._entries if entry.process == os.getpid()]
            self._entries = [entry for entry in self._entries if entry not in own]
            if self._sweeper is not None:
                self._sweeper[1].cancel()
                self._sweeper = None
        _close(own)

    def _wake_later(self) -> None:
        if self._sweeper is None or self._sweeper[0] != os.getpid():
            timer = threading.Timer(self._idle_seconds, self._woken)
            timer.daemon = True
            self._sweeper = (os.getpid(), timer)
            timer.start()

    def _woken(self) -> None:
        self.sweep()
        with self._lock:
            self._sweeper = None
            if any(entry.process == os.getpid() for entry in self._entries):
                self._wake_later()


def _close(entries: list[_Entry[C]]) -> None:
    for entry in entries:
        entry.client.close()
