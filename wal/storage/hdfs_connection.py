"""Connections to HDFS: one client for each process, driven by the event loop of a thread of its own, and safe across forks."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, TypeVar

from hdfs_native import AsyncClient

from forebay.model.errors import UsageError

Answer = TypeVar("Answer")

_KERBEROS = ("kerberos_principal", "kerberos_keytab", "kerberos_cache")


class Connection:
    """A client and the thread whose event loop drives it. The asynchronous client is used because it has time-outs."""

    def __init__(self, authority: str, options: Mapping[str, str]) -> None:
        settings = {key: value for key, value in options.items() if key not in _KERBEROS}
        kerberos = {key: value for key, value in options.items() if key in _KERBEROS}
        try:
            self._client = AsyncClient(authority, settings, **kerberos)
        except (ValueError, RuntimeError, OSError) as error:
            raise UsageError(f"cannot open a client for {authority}: {first_line(str(error))}") from error
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="hdfs", daemon=True).start()

    def run(self, request: Callable[[AsyncClient], Coroutine[Any, Any, Answer]], seconds: float) -> Answer:
        async def bounded() -> Answer:
            return await asyncio.wait_for(request(self._client), seconds)

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()


#: by process: a client's threads don't survive a fork, and an inherited client hangs. A child keeps the parent's entries:
#: closing them would wait for threads that it does not have
_connections: dict[tuple[object, ...], Connection] = {}
_connecting = threading.Lock()
#: clients of one process share idle connections to DataNodes for this time. A child inherits them, but the parent
#: uses them, so the child waits until they are too old
_SHARED_SECONDS = 5.0
_quiet_until = 0.0


def connection(authority: str, options: Mapping[str, str]) -> Connection:
    key = (os.getpid(), authority, *sorted(options.items()))
    with _connecting:
        if key not in _connections:
            threading.Event().wait(max(0.0, _quiet_until - time.monotonic()))
            _connections[key] = Connection(authority, options)
        return _connections[key]


def _after_fork() -> None:
    global _connecting, _quiet_until
    _connecting = threading.Lock()  # another thread of the parent may have held it
    if _connections:
        _quiet_until = time.monotonic() + _SHARED_SECONDS


os.register_at_fork(after_in_child=_after_fork)


def first_line(words: str) -> str:
    """Return the first line, without the Java stack trace after it. Line ends may be escaped."""
    return re.split(r"\n|\\n", words, maxsplit=1)[0].removesuffix('")')[:500]
