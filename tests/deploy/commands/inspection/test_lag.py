"""``forebay lag``: how far behind the stream is."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deploy.commands.inspection.lag import Lag, compare_with_kafka, report, too_much
from deploy.main import main
from forebay.kafka.client.admin import KafkaAdmin
from forebay.messages import LagAnswer, PartitionProgress
from forebay.model.values import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)
NOW = 1_700_000_100_000


def progress(
    number: int = 0, position: int = 10, completed: int = 4, size: float = 100.0, since: int = -1
) -> PartitionProgress:
    return PartitionProgress(
        topic="t", partition=number, incarnation=1, position=position, completed=completed, record_bytes=size,
        waiting_since_ms=since,
    )  # fmt: skip


def test_lag_has_offsets_estimated_bytes_and_age_of_the_oldest_record() -> None:
    found = report((progress(),), {A: 30}, {(A, 10): NOW - 5_000, (A, 4): NOW - 60_000}, NOW)
    assert found.received == Lag(20, 2000, 5.0)
    assert found.processed == Lag(26, 2600, 60.0)


def test_totals_add_up_and_take_the_oldest() -> None:
    since = {(A, 10): NOW - 5_000, (A, 4): NOW - 6_000, (B, 10): NOW - 7_000, (B, 4): NOW - 9_000}
    found = report((progress(), progress(1, size=10.0)), {A: 30, B: 20}, since, NOW)
    assert (found.received, found.processed) == (Lag(30, 2100, 7.0), Lag(42, 2760, 9.0))


def test_dropped_record_has_the_age_of_its_block() -> None:
    """The WAL holds it, and Kafka tells no timestamp any more."""
    found = report((progress(position=30, since=NOW - 90_000),), {A: 30}, {}, NOW)
    assert found.received == Lag(0, 0, 0.0)
    assert found.processed == Lag(26, 2600, 90.0)


def test_unknown_values_are_null_and_not_zero() -> None:
    """INV-5: an unknown age exceeds every limit."""
    found = report((progress(size=0.0), progress(1, 5, 5)), {A: 30, B: 5}, {}, NOW)
    assert found.processed == Lag(26, None, None)
    assert too_much(found.processed, None, 3600.0) and not too_much(found.processed, 26, None)


def test_a_log_that_ends_before_the_position_is_no_lag() -> None:
    assert report((progress(),), {A: 3}, {}, NOW).processed == Lag(0, 0, 0.0)


@pytest.mark.parametrize(
    ("records", "seconds", "code"), [(26, 60.0, 0), (25, 60.0, 1), (26, 59.0, 1), (0, 0.0, 2), (None, None, 0)]
)
def test_limit_is_exceeded_only_beyond_its_value(records: int | None, seconds: float | None, code: int) -> None:
    assert len(too_much(Lag(26, 2600, 60.0), records, seconds)) == code


def test_no_timestamp_is_requested_for_a_partition_without_lag() -> None:
    asked: list[dict[TopicPartition, int]] = []

    def timestamps(positions: Any) -> dict[TopicPartition, int]:
        asked.append(dict(positions))
        return {}

    compare_with_kafka((progress(position=10, completed=10), progress(1, 20, 7)), lambda _: {A: 10, B: 20}, timestamps)
    assert asked == [{}, {B: 7}]


def test_lag_asks_driver_and_kafka_and_exits_with_1_beyond_a_limit(
    project: Any, made_up_driver: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made_up_driver.lag = LagAnswer(partitions=(progress(),))
    monkeypatch.setattr(KafkaAdmin, "ends", lambda _, tps: dict.fromkeys(tps, 30))
    monkeypatch.setattr(KafkaAdmin, "first_timestamps", lambda _, positions: dict.fromkeys(positions, 1_000))
    arguments = ["--config", str(project.config), "lag", "--json"]
    assert main(arguments) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["processed"]["records"] == 26 and shown["partitions"][0]["received"]["bytes"] == 2000
    assert main([*arguments, "--max-records", "26"]) == 0
    assert main([*arguments, "--max-records", "25"]) == 1
    assert main([*arguments, "--max-seconds", "60s"]) == 1
    assert "the limit is" in capsys.readouterr().err
    assert main(["--config", str(project.config), "lag"]) == 0
    assert "t/0" in capsys.readouterr().out
