"""Which consumers a reader of ranges creates."""

from __future__ import annotations

from typing import Any

import pytest

from forebay.kafka.consume.range_reader import PartitionReader
from forebay.kafka.options.access import KafkaAccess
from forebay.model.values import TopicPartition


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The positions at which consumers were created."""
    positions: list[int] = []
    real = PartitionReader.__init__

    def noted(self: PartitionReader, access: KafkaAccess, tp: TopicPartition, *, position: int, **more: Any) -> None:
        positions.append(position)
        real(self, access, tp, position=position, **more)

    monkeypatch.setattr(PartitionReader, "__init__", noted)
    return positions
