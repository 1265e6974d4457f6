"""A process that forks what is to be killed: one for all tests of the outputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.processes.output_process import OutputProcess


@pytest.fixture(scope="session")
def output_process() -> Iterator[OutputProcess]:
    with OutputProcess() as process:
        yield process


@pytest.fixture(scope="session")
def sleeper() -> Iterator[OutputProcess]:
    """A second one, for a child that sleeps meanwhile."""
    with OutputProcess() as process:
        yield process
