"""Offsets of ``format("forebay")`` in Spark's own Kafka source."""

from __future__ import annotations

import json
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import UsageError
from pyspark_forebay.progress import kafka_offsets
from tests.support import queries
from tests.support.jvm_spark import SparkProcess

pytestmark = [pytest.mark.kafka, pytest.mark.spark, pytest.mark.filterwarnings("ignore::ResourceWarning")]

SIDES = ("spark", "forebay")
Answers = dict[str, "Future[dict[str, Any]]"]


@pytest.fixture
def ask(jvm: SparkProcess, spark: Any, tmp_path: Path) -> Any:
    """Asks both sources at the same time; each has a checkpoint of its own, which later questions continue."""
    threads = ThreadPoolExecutor(2)

    def both(question: dict[str, Any], **theirs_only: str) -> Answers:
        theirs, ours = ({**question, "checkpoint": str(tmp_path / side)} for side in SIDES)
        theirs["options"] = {**theirs["options"], **theirs_only}
        return {
            "spark": threads.submit(jvm.ask, theirs),
            "forebay": threads.submit(queries.answer, spark, "forebay", ours),
        }

    yield both
    threads.shutdown()


def test_kafka_offsets_are_a_start_for_sparks_own_source(
    ask: Callable[..., Answers], kafka_broker: KafkaBroker, topic: str
) -> None:
    offsets = json.dumps({topic: {"0": 7, "1": 5}, "#topic-ids": {topic: "an-id"}, "#start": {topic: {"0": 1, "1": 0}}})
    options = {"kafka.bootstrap.servers": kafka_broker.options["bootstrap.servers"], "subscribe": topic}
    refused = ask({"kind": "batch", "options": {**options, "startingOffsets": offsets}})
    assert "Expected e.g." in refused["spark"].result()["refused"]
    assert [row["offset"] for row in refused["forebay"].result()["rows"]] == [7, 8, 9]
    theirs, ours = ask({"kind": "batch", "options": {**options, "startingOffsets": kafka_offsets(offsets)}}).values()
    assert theirs.result() == ours.result() and len(ours.result()["rows"]) == 3
    with pytest.raises(UsageError):
        kafka_offsets('{"reservoirVersion": 3}')
