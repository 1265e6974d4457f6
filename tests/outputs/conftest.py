"""A PostgreSQL, and a process that forks what is to be killed: one of each for all tests of the outputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from forebay.errors import ForebayError
from tests.conftest import missing
from tests.support.output_process import OutputProcess
from tests.support.postgresql import PostgresServer, require_postgresql


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresServer]:
    require_postgresql(missing)
    server = PostgresServer()
    try:
        server.__enter__()
    except ForebayError as error:
        missing(str(error))
    try:
        yield server
    finally:
        server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def output_process() -> Iterator[OutputProcess]:
    with OutputProcess() as process:
        yield process


@pytest.fixture(scope="session")
def sleeper() -> Iterator[OutputProcess]:
    """A second one, for a child that sleeps meanwhile."""
    with OutputProcess() as process:
        yield process
