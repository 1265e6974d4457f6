"""An agent over a block directory of the test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from executor_agent.main import Agent
from tests.support.state.stored import Stored


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)


@pytest.fixture
def agent(stored: Stored) -> Iterator[Agent]:
    with Agent(stored.settings()) as agent:
        yield agent
