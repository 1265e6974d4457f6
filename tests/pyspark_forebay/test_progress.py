"""The progress of a query, as tools for Spark's Kafka source read it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from pyspark_forebay.offsets import Offsets, parse_offsets
from pyspark_forebay.progress import behind, kafka_offsets, kafka_progress, offsets_behind_latest

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
FIRST = Offsets({T0: 3, T1: 5}, {"t": "an-id"}, {T0: 1, T1: 5}, "copy-1", {T0: 2}, {T0: 1}).json()
LATEST = {"t": {"0": 10, "1": 5}}
METRICS = {"minOffsetsBehindLatest": "0", "maxOffsetsBehindLatest": "7", "avgOffsetsBehindLatest": "3.5"}


@dataclass
class Progress:
    """A ``StreamingQueryProgress`` with these sources."""

    sources: list[dict[str, Any]]

    @property
    def json(self) -> str:
        return json.dumps({"batchId": 4, "sources": self.sources})


def test_progress_has_sparks_names_for_the_lag() -> None:
    assert behind({T0: 3, T1: 5}, {T0: 10, T1: 5}) == METRICS
    assert behind({}, {T0: 3}) == {}


def test_kafka_offsets_have_topics_alone_and_are_a_start() -> None:
    made = kafka_offsets(json.dumps(FIRST))
    assert made == '{"t":{"0":3,"1":5}}'
    assert parse_offsets(made, "startingOffsets") == Offsets({T0: 3, T1: 5})
    assert kafka_offsets(made) == made
    for wrong in ("", "v1", "[]", '{"start": 3}'):
        with pytest.raises(UsageError, match="offsets"):
            kafka_offsets(wrong)


@pytest.mark.parametrize("encode", [lambda offsets: offsets, json.dumps], ids=["classic", "Spark Connect"])
def test_kafka_progress_is_that_of_sparks_kafka_source(encode: Any) -> None:
    """A session of Spark Connect has offsets as text in the progress."""
    ours = {
        "startOffset": None,
        "endOffset": encode(FIRST),
        "latestOffset": encode(LATEST),
        "numInputRows": 7,
    }
    rate = {"startOffset": encode(1), "endOffset": encode(2), "latestOffset": encode(2), "metrics": {}}
    delta = {"startOffset": None, "endOffset": encode({"reservoirVersion": 3}), "latestOffset": None}
    made = kafka_progress(Progress([ours, rate, delta]))
    own = {"startOffset": None, "endOffset": {"t": {"0": 3, "1": 5}}, "latestOffset": LATEST}
    assert made == {"batchId": 4, "sources": [{**ours, **own, "metrics": METRICS}, rate, delta]}


def test_kafka_progress_before_the_first_batch_has_no_metrics() -> None:
    source = {"startOffset": None, "endOffset": None, "latestOffset": LATEST, "metrics": {}}
    assert kafka_progress(Progress([source]))["sources"] == [source]


def test_metrics_that_spark_reports_stay() -> None:
    source = {
        "startOffset": None,
        "endOffset": LATEST,
        "latestOffset": LATEST,
        "metrics": {"minOffsetsBehindLatest": "9"},
    }
    (made,) = kafka_progress(Progress([source]))["sources"]
    assert made["metrics"]["minOffsetsBehindLatest"] == "9"


def test_lag_of_one_source_is_read_from_its_progress() -> None:
    @dataclass
    class Source:
        endOffset: str | None  # noqa: N815 - Spark's name
        latestOffset: str | None  # noqa: N815

    assert offsets_behind_latest(Source(json.dumps(FIRST), json.dumps(LATEST))) == METRICS
    assert offsets_behind_latest(Source(None, "null")) == {}
