"""Every store of the log, as the contract tests need it: opened again, crashed, or with faults.

A new store is one more entry of ``STORES``.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from forebay.model.errors import UsageError
from tests.conftest import missing, running_in_ci
from tests.support import s3
from tests.support.fault_proxy import FaultProxy
from tests.support.hdfs import HdfsServer, require_hdfs
from tests.support.versitygw import binary as versitygw_binary
from tests.support.versitygw import build
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
    with (
        pytest.MonkeyPatch.context() as patched,
        s3.s3_server(folder) as server,
        FaultProxy(server.port) as proxy,
    ):
        for name, value in s3.ENVIRONMENT.items():
            patched.setenv(name, value)

        def crash() -> None:
            server.kill()
            server.start()

        options = s3.options(proxy.url, request_timeout="2s", retry_timeout="10s")
        yield Store(f"s3://{s3.BUCKET}", options, crash, proxy, s3.ENVIRONMENT)


@contextmanager
def _hdfs(folder: Path) -> Iterator[Store]:
    require_hdfs(missing)
    with HdfsServer(folder) as server:
        yield Store(f"{server.url}/contract", crash=server.restart)


def require_s3() -> None:
    """Skips or fails if the S3 server is missing; in CI it is built if need be."""
    if not versitygw_binary().exists():
        if not running_in_ci():
            missing("there is no S3 server here: run python -m tests.support.versitygw")
        try:
            build()
        except UsageError as error:
            missing(str(error))


#: name → a store that is there as long as the context, given a folder of its own
STORES: dict[str, Callable[[Path], AbstractContextManager[Store]]] = {
    "file": _file,
    "memory": _memory,
    "memory-objects": _memory_objects,
    "s3": _s3,
    "hdfs": _hdfs,
}

#: of these, those whose clients speak HTTP through a proxy
BEHIND_A_PROXY = ("s3",)
