"""Connections to HDFS: clients of one process, driven by the event loop of a thread of their own, and safe across forks.

A client turns to the next NameNode only if one refuses a request, or can't be reached. It waits for a NameNode that does not
answer, such as one whose host lost its power. So there is a client for each NameNode, which asks that one first. After a time-out
the next client is used.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit
from xml.etree import ElementTree

from hdfs_native import AsyncClient

from forebay.model.errors import UsageError

Answer = TypeVar("Answer")

_KERBEROS = ("kerberos_principal", "kerberos_keytab", "kerberos_cache")


_NAME_NODES = "dfs.ha.namenodes."
_ATTEMPTS = "dfs.client.failover.max.attempts"


class Connection:
    """Clients and the thread whose event loop drives them. The asynchronous client is used because it has time-outs."""

    def __init__(self, authority: str, options: Mapping[str, str]) -> None:
        self._authority = authority
        self._kerberos = {key: value for key, value in options.items() if key in _KERBEROS}
        self._settings = _by_first_name_node(
            authority, {key: value for key, value in options.items() if key not in _KERBEROS}
        )
        #: by position in ``_settings``; kept, because closing a client may wait for threads that wait for the interpreter
        self._clients: dict[int, AsyncClient] = {}
        self._used = 0
        self._choosing = threading.Lock()
        self._client(0)  # raises what is wrong with the settings
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="hdfs", daemon=True).start()

    def run(self, request: Callable[[AsyncClient], Coroutine[Any, Any, Answer]], seconds: float) -> Answer:
        """Return the answer to ``request``. Raises asyncio.TimeoutError after ``seconds``; the next request then begins with
        another NameNode."""
        used = self._used
        client = self._client(used)

        async def bounded() -> Answer:
            return await asyncio.wait_for(request(client), seconds)

        try:
            return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()
        except asyncio.TimeoutError:
            with self._choosing:
                if self._used == used:  # otherwise another thread has done so
                    self._used = (used + 1) % len(self._settings)
            raise

    def _client(self, position: int) -> AsyncClient:
        with self._choosing:
            if position not in self._clients:
                self._clients[position] = self._open(self._settings[position])
            return self._clients[position]

    def _open(self, settings: Mapping[str, str]) -> AsyncClient:
        try:
            return AsyncClient(self._authority, dict(settings), **self._kerberos)
        except (ValueError, RuntimeError, OSError) as error:
            raise UsageError(f"cannot open a client for {self._authority}: {first_line(str(error))}") from error


def _by_first_name_node(authority: str, settings: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
    """Return ``settings`` for each NameNode of a name service, such that a request begins with that one and goes to each once;
    for a single NameNode, ``settings`` alone.

    The client's own retries are not used, because their pauses panic in the asynchronous client.
    """
    service = authority.removeprefix("hdfs://")
    if urlsplit(authority).port is not None:
        return [{_ATTEMPTS: "0", **settings}]
    key = f"{_NAME_NODES}{service}"
    names = [name.strip() for name in _setting(key, settings).split(",") if name.strip()]
    if not names:
        return [{_ATTEMPTS: "1", **settings}]
    attempts = {_ATTEMPTS: str(len(names) - 1)}
    orders = [names[first:] + names[:first] for first in range(len(names))]
    return [{**attempts, **settings, key: ",".join(order)} for order in orders]


def _setting(key: str, settings: Mapping[str, str]) -> str:
    """Return a setting as the client finds it: the given one, else that of Hadoop's files; "" if there is none."""
    if key in settings:
        return settings[key]
    home = os.environ.get("HADOOP_HOME")
    folder = os.environ.get("HADOOP_CONF_DIR") or (f"{home}/etc/hadoop" if home else None)
    found = ""
    for name in ("core-site.xml", "hdfs-site.xml") if folder else ():
        # a file that the client can't read either makes it fail; one with entities, which it reads, has no order by NameNode
        with suppress(OSError, ElementTree.ParseError):
            for entry in ElementTree.parse(Path(str(folder), name)).iter("property"):  # noqa: S314 - the administrator's file
                if (entry.findtext("name") or "").strip() == key:
                    found = entry.findtext("value") or ""
    return found


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
