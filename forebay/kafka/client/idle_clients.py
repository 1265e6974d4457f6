"""A pool of idle clients for the next caller, bounded in number and time; no client is used after a fork."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from forebay.process.clock import Clock, SystemClock


class Closable(Protocol):
    def close(self) -> None: ...


C = TypeVar("C", bound=Closable)


@dataclass(slots=True, eq=False)
class _Entry(Generic[C]):
    key: object
    client: C
    since: float


class IdleClients(Generic[C]):
    """Keeps at most ``most`` idle clients of this process, each for at most ``idle_seconds``. Thread-safe.

    The caller that takes a client is its only user. A forked child begins with no client, and never touches those of its parent:
    librdkafka's clients can't be used or closed there. Fork only while no client works, as Spark's daemon does: a client of
    another thread may hold locks of the C library and of OpenSSL, and no client of the child could connect.
    """

    def __init__(self, most: int, idle_seconds: float, clock: Clock | None = None) -> None:
        self.most = most
        self._idle_seconds = idle_seconds
        self._clock = clock or SystemClock()
        self._begin()
        _pools.add(self)

    def _begin(self) -> None:
        self._entries: list[_Entry[C]] = []
        self._lock = threading.Lock()
        self._sweeper: threading.Timer | None = None

    def _begin_in_child(self) -> None:
        _clients_of_parent.append(self._entries)
        self._begin()

    def __len__(self) -> int:
        """Return the number of idle clients."""
        return len(self._entries)

    def take(self, key: object, fits: Callable[[C], bool] = lambda _: True) -> C | None:
        """Remove and return the newest client under ``key`` that ``fits``; None if there is none."""
        self.sweep()
        with self._lock:
            for place in reversed(range(len(self._entries))):
                entry = self._entries[place]
                if entry.key == key and fits(entry.client):
                    del self._entries[place]
                    return entry.client
        return None

    def keep(self, key: object, client: C) -> None:
        """Keep ``client``, which its caller no longer uses. Close the oldest client if there are too many."""
        with self._lock:
            self._entries.append(_Entry(key, client, self._clock.monotonic()))
            count = max(0, len(self._entries) - self.most)
            surplus, self._entries = self._entries[:count], self._entries[count:]
            self._wake_later()
        _close(surplus)

    def sweep(self) -> None:
        """Close clients that were idle for too long."""
        with self._lock:
            limit = self._clock.monotonic() - self._idle_seconds
            old = [entry for entry in self._entries if entry.since <= limit]
            self._entries = [entry for entry in self._entries if entry not in old]
        _close(old)

    def clear(self) -> None:
        """Close all clients."""
        with self._lock:
            entries, self._entries = self._entries, []
            if self._sweeper is not None:
                self._sweeper.cancel()
                self._sweeper = None
        _close(entries)

    def _wake_later(self) -> None:
        if self._sweeper is None:
            self._sweeper = threading.Timer(self._idle_seconds, self._woken)
            self._sweeper.daemon = True
            self._sweeper.start()

    def _woken(self) -> None:
        self.sweep()
        with self._lock:
            self._sweeper = None
            if self._entries:
                self._wake_later()


def _close(entries: list[_Entry[C]]) -> None:
    for entry in entries:
        entry.client.close()


#: the pools of this process
_pools: weakref.WeakSet[IdleClients[Any]] = weakref.WeakSet()
#: in a forked child: what must never be closed, so it is never garbage
_clients_of_parent: list[list[_Entry[Any]]] = []


def _begin_in_child() -> None:
    for pool in _pools:
        pool._begin_in_child()


os.register_at_fork(after_in_child=_begin_in_child)
