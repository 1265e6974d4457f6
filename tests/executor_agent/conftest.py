"""An agent over a block directory of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from executor_agent.main import Agent
from forebay.settings.schema import Settings
from tests.executor_agent.fake_driver import FakeDriver
from tests.support.state.rows import block, filler
from tests.support.state.stored import Stored
from wal.reading import BlockReference


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@pytest.fixture
def agent(stored: Stored) -> Iterator[Agent]:
    with Agent(stored.settings()) as agent:
        yield agent


@pytest.fixture
def driver() -> Iterator[FakeDriver]:
    driver = FakeDriver()
    with driver.server:
        yield driver


@pytest.fixture
def settings(stored: Stored, driver: FakeDriver) -> Settings:
    return stored.settings(driver.server.url)


@pytest.fixture
def three(stored: Stored) -> list[BlockReference]:
    return [stored.add(*block({("a", 0): filler(5)}, sequence=n)) for n in (1, 2, 3)]
