"""Every store of the log, as the contract tests need it: opened again, crashed, or with faults.

A new store is one more entry of ``STORES``.
"""

from __future__ import annotations

import itertools
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from forebay.model.errors import UsageError
from tests.conftest import missing, running_in_ci
from tests.support.servers import nginx
from tests.support.stores import emulators, proxies, s3, s3_variety
from tests.support.stores.fault_proxy import FaultProxy
from tests.support.stores.hdfs import HdfsServer, require_hdfs
from tests.support.stores.versitygw import VERSITYGW
from wal.storage import Storage, open_storage

_names = itertools.count()


@dataclass
class Store:
    """``root``: a url below which each test has a place of its own. ``crash``: the server, if there is one, is killed and
    comes back with what it had made durable. ``proxy``: between clients and server, if clients speak HTTP with it.
    ``environment``: what a client's process needs."""

    root: str
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    crash: Callable[[], None] = lambda: None
    proxy: FaultProxy | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    url: str = ""

    def begin(self) -> None:
        """A new place, empty."""
        scheme, _, rest = self.root.partition("://")
        place, question, query = rest.partition("?")
        self.url = f"{scheme}://{place}/t{next(_names)}-{os.getpid()}{question}{query}"
        if self.proxy is not None:
            self.proxy.calm()
            self.proxy.counts.clear()
            self.proxy.heads.clear()

    def open(self, **more: Any) -> Storage:
        """As another process would. ``more``: options of the scheme."""
        scheme = self.url.partition("://")[0]
        return open_storage(self.url, {**self.options, scheme: {**self.options.get(scheme, {}), **more}})


@contextmanager
def _file(folder: Path) -> Iterator[Store]:
    yield Store(f"file://{folder}")


@contextmanager
def _memory(folder: Path) -> Iterator[Store]:
    yield Store("memory://contract")


@contextmanager
def _memory_objects(folder: Path) -> Iterator[Store]:
    yield Store("memory://contract?objects")


@contextmanager
def _s3(folder: Path) -> Iterator[Store]:
    require_s3()
    with _s3_store(folder, s3.S3Server, durable=True) as store:
        yield store


@contextmanager
def _s3_store(
    folder: Path,
    kind: type[s3.S3Server],
    durable: bool,
    before: proxies.Before = proxies.nothing,
    settings: Mapping[str, str] | None = None,
) -> Iterator[Store]:
    """Yield the store over one S3 server. ``durable``: whether ``crash`` kills and restarts it; if not, it does nothing.
    ``before``: what is between the server and the proxy of the tests."""
    with (
        pytest.MonkeyPatch.context() as patched,
        s3.s3_server(folder, kind=kind) as server,
        before(folder, server.port) as port,
        FaultProxy(port) as proxy,
    ):
        for name, value in server.environment.items():
            patched.setenv(name, value)

        def crash() -> None:
            if durable:
                server.kill()
                server.start()

        options = s3.options(proxy.url, **{"request_timeout": "2s", "retry_timeout": "10s", **(settings or {})})
        yield Store(f"s3://{s3.BUCKET}", options, crash, proxy, server.environment)


def _varied(name: str) -> Callable[[Path], AbstractContextManager[Store]]:
    """Return the store over an S3 server that only ``make test-variety`` uses."""
    kind = s3_variety.KINDS[name]

    @contextmanager
    def opened(folder: Path) -> Iterator[Store]:
        require_server(kind.program(), "s3_variety", kind.bring)
        with _s3_store(folder, kind.server, kind.durable, settings=kind.settings) as store:
            yield store

    return opened


def _behind(name: str) -> Callable[[Path], AbstractContextManager[Store]]:
    """Return the store over an S3 server behind one of :data:`~tests.support.stores.proxies.PROXIES`."""

    @contextmanager
    def opened(folder: Path) -> Iterator[Store]:
        require_s3()
        if name == "nginx":
            try:
                nginx.fetch()
            except UsageError as error:
                missing(str(error))
        with _s3_store(folder, s3.S3Server, durable=True, before=proxies.PROXIES[name]) as store:
            yield store

    return opened


@contextmanager
def _hdfs(folder: Path) -> Iterator[Store]:
    require_hdfs(missing)
    with HdfsServer(folder) as server:
        yield Store(f"{server.url}/contract", crash=server.restart)


@contextmanager
def gs_server(folder: Path) -> Iterator[emulators.GcsServer]:
    require_server(emulators.FAKE_GCS.binary, "emulators", emulators.FAKE_GCS.build)
    server = emulators.GcsServer(folder)
    server.start()
    try:
        yield server
    finally:
        server.end()


@contextmanager
def azure_server(folder: Path) -> Iterator[emulators.AzureServer]:
    require_server(emulators.azurite(), "emulators", emulators.fetch_azurite)
    server = emulators.AzureServer(folder)
    server.start()
    try:
        with pytest.MonkeyPatch.context() as patched:
            for name, value in server.environment.items():
                patched.setenv(name, value)
            yield server
    finally:
        server.end()


@contextmanager
def _gs(folder: Path) -> Iterator[Store]:
    with gs_server(folder) as server:

        def crash() -> None:
            server.end(signal.SIGKILL)
            server.start()

        yield Store(f"gs://{emulators.PLACE}", server.options, crash)


@contextmanager
def _abfs(folder: Path) -> Iterator[Store]:
    with azure_server(folder) as server:
        # killed, it would forget what it has answered: the emulator stores its index from time to time
        yield Store(
            f"abfs://{emulators.PLACE}@{emulators.ACCOUNT}",
            server.options,
            server.restart,
            environment=server.environment,
        )


def require_s3() -> None:
    """Skips or fails if the S3 server is missing; in CI it is built if need be."""
    require_server(VERSITYGW.binary, "versitygw", VERSITYGW.build)


def require_server(program: Path, module: str, bring: Callable[[], object]) -> None:
    """Skips or fails if ``program`` is missing; in CI it is built or fetched if need be. ``module``: of ``tests.support``."""
    if not program.exists():
        if not running_in_ci():
            missing(f"there is no {program.name} here: run python -m tests.support.{module}")
        try:
            bring()
        except UsageError as error:
            missing(str(error))


#: name → a store that is there as long as the context, given a folder of its own
STORES: dict[str, Callable[[Path], AbstractContextManager[Store]]] = {
    "file": _file,
    "memory": _memory,
    "memory-objects": _memory_objects,
    "s3": _s3,
    "gs": _gs,
    "abfs": _abfs,
    "hdfs": _hdfs,
}

#: S3 servers and proxies before one that only `make test-variety` uses
_VARIED = {f"s3-{name}": _varied(name) for name, kind in s3_variety.KINDS.items() if kind.usable}
_VARIED |= {f"s3-behind-{name}": _behind(name) for name in proxies.PROXIES}
STORES |= _VARIED
#: their names
VARIED = tuple(_VARIED)
#: of these, those where a write of before may arrive after a deletion, and a deletion of before after a write
LATE = ("s3-behind-late",)
#: of these, emulators, which need much longer for a request than a real store
EMULATED = ("gs", "abfs")
#: of these, those whose clients speak HTTP through a proxy
BEHIND_A_PROXY = ("s3", *VARIED)
#: of these, those to which large objects are sent in parts
IN_PARTS = tuple(
    name
    for name in BEHIND_A_PROXY
    if not (kind := s3_variety.KINDS.get(name.removeprefix("s3-"))) or "part_size" not in kind.settings
)
#: of these, those whose proxy is the only one: each request is one
COUNTED = tuple(name for name in BEHIND_A_PROXY if not name.startswith("s3-behind-"))


def parameters(names: Iterable[str]) -> list[ParameterSet]:
    """Return the parameters of a test over stores; the tests over servers of :data:`VARIED` run only in `make test-variety`."""
    marks = (pytest.mark.long, pytest.mark.variety)
    return [pytest.param(name, marks=marks if name in VARIED else ()) for name in names]
