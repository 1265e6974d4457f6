"""Connections to HDFS: clients of one process, driven by the event loop of a thread of their own, and safe across forks.

hdfs-native would turn to the next NameNode only if one refuses a request or a connection, and wait for one that does not answer,
such as one whose host lost its power. So there is a client for each NameNode of a name service, and this module chooses among
them.
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
#: keys of the client
_NAME_NODES, _PROVIDER = "dfs.ha.namenodes.", "dfs.client.failover.proxy.provider."
_ATTEMPTS, _AUTHENTICATION = "dfs.client.failover.max.attempts", "hadoop.security.authentication"
_ACTIVE_ONLY = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"
#: how a NameNode that is not active answers; it has done nothing
_NOT_ACTIVE = re.compile(r"org\.apache\.hadoop\.ipc\.(?:Standby|ObserverRetryOnActive)Exception")
#: errors of an active NameNode
_OF_PATHS = (FileExistsError, FileNotFoundError, IsADirectoryError, NotADirectoryError)
#: errors before a request was sent
_NOT_SENT = re.compile(r"Connection refused|No route to host|Network is unreachable", re.IGNORECASE)


class HdfsConnection:
    """Clients and the thread whose event loop drives them. The asynchronous client is used because it has time-outs."""

    def __init__(self, authority: str, options: Mapping[str, str]) -> None:
        self._authority = authority
        self._kerberos = {key: value for key, value in options.items() if key in _KERBEROS}
        settings = {key: value for key, value in options.items() if key not in _KERBEROS}
        self._settings = _by_name_node(authority, settings)
        #: whether the client logs in by Kerberos
        self.logs_in = _setting(_AUTHENTICATION, settings) not in ("", "simple")
        #: by position in ``_settings``; kept, because closing a client may wait for threads that wait for the interpreter
        self._clients: dict[int, AsyncClient] = {}
        self._used = 0
        self._choosing = threading.Lock()
        self._client(0)  # raises what is wrong with the settings
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="hdfs", daemon=True).start()

    def run(self, request: Callable[[AsyncClient], Coroutine[Any, Any, Answer]], seconds: float) -> Answer:
        """Return the answer to ``request``, which is sent to the next NameNode if one did not take it.

        Raises asyncio.TimeoutError if a NameNode does not answer within ``seconds``; the next request begins with another one.
        """
        refused: OSError | None = None
        for untried in reversed(range(len(self._settings))):
            used = self._used
            try:
                return self._run_on(self._client(used), request, seconds)
            except _OF_PATHS:
                raise
            except asyncio.TimeoutError:
                self._turn_from(used)
                raise
            except OSError as error:
                self._turn_from(used)
                if not untried or not _NOT_SENT.search(str(error)):
                    raise
                refused = error
            except Exception as error:
                if not _NOT_ACTIVE.search(str(error)):
                    raise
                self._turn_from(used)
                if not untried:
                    raise refused or error from error  # that a standby is one says less than what failed
        raise AssertionError("a connection has a client")

    def _run_on(
        self, client: AsyncClient, request: Callable[[AsyncClient], Coroutine[Any, Any, Answer]], seconds: float
    ) -> Answer:
        async def bounded() -> Answer:
            return await asyncio.wait_for(request(client), seconds)

        return asyncio.run_coroutine_threadsafe(bounded(), self._loop).result()

    def _turn_from(self, used: int) -> None:
        with self._choosing:
            if self._used == used:  # otherwise another thread has done so
                self._used = (used + 1) % len(self._settings)

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


def _by_name_node(authority: str, settings: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
    """Return the settings of a client for each NameNode of a name service; for a single NameNode, of one client.

    The client's own retries are not used, because their pauses panic in the asynchronous client. Observers are not used
    either, because their answers may be old.
    """
    alone = {**settings, _ATTEMPTS: "0"}
    if urlsplit(authority).port is not None:
        return [alone]
    service = authority.removeprefix("hdfs://")
    names = _setting(f"{_NAME_NODES}{service}", settings).split(",")
    found = [
        {**alone, f"{_NAME_NODES}{service}": name.strip(), f"{_PROVIDER}{service}": _ACTIVE_ONLY}
        for name in names
        if name.strip()
    ]
    return found or [{**settings, _ATTEMPTS: "1"}]


def _setting(key: str, settings: Mapping[str, str]) -> str:
    """Return a setting as the client finds it: the given one, else that of Hadoop's files; "" if there is none."""
    if key in settings:
        return settings[key]
    home = os.environ.get("HADOOP_HOME")
    folder = os.environ.get("HADOOP_CONF_DIR") or (f"{home}/etc/hadoop" if home else None)
    found = ""
    for name in ("core-site.xml", "hdfs-site.xml") if folder else ():
        # a file that the client can't read either makes it fail; one with entities, which it reads, leaves the choice to it
        with suppress(OSError, ElementTree.ParseError):
            for entry in ElementTree.parse(Path(str(folder), name)).iter("property"):  # noqa: S314 - the administrator's file
                if (entry.findtext("name") or "").strip() == key:
                    found = entry.findtext("value") or ""
    return found


#: by process: a client's threads don't survive a fork, and an inherited client hangs. A child keeps the parent's entries:
#: closing them would wait for threads that it does not have
_connections: dict[tuple[object, ...], HdfsConnection] = {}
_connecting = threading.Lock()
#: clients of one process share idle connections to DataNodes for this time. A child inherits them, but the parent
#: uses them, so the child waits until they are too old
_SHARED_SECONDS = 5.0
_quiet_until = 0.0


def connection(authority: str, options: Mapping[str, str]) -> HdfsConnection:
    key = (os.getpid(), authority, *sorted(options.items()))
    with _connecting:
        if key not in _connections:
            threading.Event().wait(max(0.0, _quiet_until - time.monotonic()))
            _connections[key] = HdfsConnection(authority, options)
        return _connections[key]


def _after_fork() -> None:
    global _connecting, _quiet_until
    _connecting = threading.Lock()  # another thread of the parent may have held it
    if _connections:
        _quiet_until = time.monotonic() + _SHARED_SECONDS


os.register_at_fork(after_in_child=_after_fork)


def first_line(text: str) -> str:
    """Return the first line, without the Java stack trace after it. Line ends may be escaped."""
    return re.split(r"\n|\\n", text, maxsplit=1)[0].removesuffix('")')[:500]
