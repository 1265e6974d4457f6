"""An intake in this process."""

from __future__ import annotations

import pytest

from tests.support.state.asked_intake import Taken, asked_in_process


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    return asked_in_process(monkeypatch)
