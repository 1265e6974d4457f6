"""The stores over which the tests of this folder run, each with a real server if it has one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest

from tests.support.stores.contract import BEHIND_A_PROXY, COUNTED, EMULATED, IN_PARTS, LATE, STORES, Store, parameters
from tests.support.stores.forgetful import ForgetfulStorage
from wal.storage import Storage


@pytest.fixture(scope="package")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Store]]:
    """Starts each store when it is first asked for, once for all modules."""
    started: dict[str, Store] = {}
    with contextlib.ExitStack() as open_ones:

        def get(name: str) -> Store:
            if name not in started:
                started[name] = open_ones.enter_context(STORES[name](tmp_path_factory.mktemp(name)))
            started[name].begin()
            return started[name]

        yield get


@pytest.fixture(params=parameters(STORES))
def store(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    return running(request.param)


@pytest.fixture(params=parameters(name for name in STORES if not name.startswith("memory")))
def outliving(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    """A store that does not end with the process that writes."""
    return running(request.param)


@pytest.fixture(params=parameters(name for name in STORES if name not in LATE))
def prompt(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    """A store that carries out nothing later."""
    return running(request.param)


@pytest.fixture(params=parameters(name for name in STORES if name not in (*EMULATED, *LATE)))
def quick(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    """A store for tests of the log that need very many requests, write names again, and need nothing that only an emulator
    does."""
    return running(request.param)


@pytest.fixture(params=parameters(BEHIND_A_PROXY))
def proxied(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    return running(request.param)


@pytest.fixture(params=parameters(IN_PARTS))
def in_parts(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    return running(request.param)


@pytest.fixture(params=parameters(COUNTED))
def counted(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Store:
    return running(request.param)


@pytest.fixture(params=parameters([*STORES, "forgetful"]))
def storage(request: pytest.FixtureRequest, running: Callable[[str], Store]) -> Storage:
    """Each store, and the store of the simulation."""
    return ForgetfulStorage() if request.param == "forgetful" else running(request.param).open()
