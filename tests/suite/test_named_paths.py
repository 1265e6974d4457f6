"""Tables that name tests by path name only tests that exist: a moved file would silently lose its share or its group."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest

from tests.crash.test_failpoints import ELSEWHERE
from tests.support.run import matrix, shares

ROOT = Path(__file__).resolve().parents[2]
TABLES: dict[str, Iterable[str]] = {
    "shares": (*shares.TOGETHER, *shares.SLOW),
    "matrix": (part.removeprefix("--ignore=") for group in matrix.GROUPS.values() for part in group),
    "journal events": tuple(place.partition(":")[0] for place in ELSEWHERE.values()),
}


@pytest.mark.parametrize("table", TABLES)
def test_named_tests_exist(table: str) -> None:
    paths = {name for name in TABLES[table] if name.startswith("tests/")}
    assert paths
    assert [path for path in sorted(paths) if not (ROOT / path).exists()] == []
