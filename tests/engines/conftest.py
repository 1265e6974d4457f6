"""A stream's blocks on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.state.stored import Stored


@pytest.fixture
def stored(tmp_path: Path) -> Stored:
    return Stored(tmp_path)
