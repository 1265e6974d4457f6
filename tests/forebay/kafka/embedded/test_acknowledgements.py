"""Records that a broker acknowledged without their offset: sent again by an idempotent producer after the leader died."""

from __future__ import annotations

from typing import Any, cast

import pytest

from forebay.kafka.embedded.loader import Loaded
from tests.support.kafka.flow import Truth


class Acknowledged:
    def __init__(self, partition: int, offset: int | None) -> None:
        self._partition, self._offset = partition, offset

    def topic(self) -> str:
        return "t"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> bytes:
        return b"k"

    def value(self) -> bytes:
        return b"v"


def test_record_acknowledged_without_offset_follows_the_one_before() -> None:
    loaded, truth = Loaded(), Truth()
    # a batch of three that was sent again, one of a single record, and others
    for partition, offset in ((0, 7), (0, None), (0, 0), (0, 1), (1, 3), (0, None), (0, 12), (1, 4)):
        loaded.acknowledge(partition, offset)
        truth.delivered(None, cast(Any, Acknowledged(partition, offset)))
    assert loaded.ends == {0: 13, 1: 5} and loaded.counts == {0: 6, 1: 2}
    table = truth.table()
    found = list(zip(table["partition"].to_pylist(), table["offset"].to_pylist(), strict=True))
    assert found == [(0, 7), (0, 8), (0, 9), (0, 10), (1, 3), (0, 11), (0, 12), (1, 4)]


def test_first_record_acknowledged_without_offset_is_refused_by_the_truth() -> None:
    with pytest.raises(AssertionError, match="the first record of t/0"):
        Truth().delivered(None, cast(Any, Acknowledged(0, None)))
