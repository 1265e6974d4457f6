"""Which offsets a batch reads, and what was lost: by Spark's rules, except that ids identify topics."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from forebay.kafka.client.log_cuts import LogPoint
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from pyspark_forebay.kafka.planning import KafkaBatchPlan, lower_ends, plan_kafka_batch, points_to_compare
from pyspark_forebay.offsets import Offsets
from pyspark_forebay.options.limits import check_all_named

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)
OLD, NEW = {"t": "old"}, {"t": "new"}


@dataclass(frozen=True)
class Case:
    name: str
    start: Offsets
    end: Offsets
    ranges: dict[TopicPartition, tuple[int, int]]
    beginnings: dict[TopicPartition, int] = field(default_factory=dict)
    now: dict[str, str] = field(default_factory=dict)
    loss: str = ""
    cuts: dict[TopicPartition, int] = field(default_factory=dict)


CASES = [
    Case("goes on", Offsets({T0: 3}, OLD), Offsets({T0: 8}, OLD), {T0: (3, 8)}, now=OLD),
    Case("nothing new", Offsets({T0: 3}), Offsets({T0: 3}), {T0: (3, 3)}),
    Case("new partition", Offsets({T0: 3}), Offsets({T0: 4, T1: 6}), {T0: (3, 4), T1: (0, 6)}, {T1: 0}),
    Case("new, aged", Offsets({}), Offsets({T1: 6}), {T1: (2, 6)}, {T1: 2}, loss="Added partition t/1 starts from 2"),
    Case("new, gone", Offsets({}), Offsets({T1: 6}), {}, loss="Cannot find earliest offsets of t/1"),
    Case("gone", Offsets({T0: 3, T1: 1}), Offsets({T0: 4}), {T0: (3, 4)}, loss="t/1 are gone"),
    Case("cut back", Offsets({T0: 9}), Offsets({T0: 4}), {}, loss="t/0's offset was changed from 9 to 4"),
    Case("cut, grown", Offsets({T0: 9}), Offsets({T0: 12}), {T0: (4, 12)}, loss="t/0 was cut back to 4", cuts={T0: 4}),
    Case("cut, lower", Offsets({T0: 9}), Offsets({T0: 7}), {T0: (4, 7)}, loss="t/0 was cut back to 4", cuts={T0: 4}),
    Case("created again", Offsets({T0: 3}, OLD), Offsets({T0: 8}, NEW), {T0: (0, 8)}, {T0: 0}, NEW, "created again: it"),
    Case("again, since", Offsets({T0: 3}, OLD), Offsets({T0: 8}, OLD), {}, {}, NEW, "since the batch was planned"),
    Case("id unknown before", Offsets({T0: 3}), Offsets({T0: 8}, NEW), {T0: (3, 8)}, now=NEW),
    Case("id unknown now", Offsets({T0: 3}, OLD), Offsets({T0: 8}, OLD), {T0: (3, 8)}),
]  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_batch_reads_between_its_offsets_and_reports_losses(case: Case) -> None:
    made: KafkaBatchPlan = plan_kafka_batch(case.start, case.end, case.beginnings, case.now, case.cuts)
    assert {span.tp: (span.from_offset, span.until_offset) for span in made.spans} == case.ranges
    if case.loss:
        assert len(made.losses) == 1 and case.loss in made.losses[0]
    else:
        assert made.losses == []


def test_offset_is_compared_if_another_leader_reported_it() -> None:
    known = Offsets({T0: 9, T1: 3}, OLD, leader_epochs={T0: 4})
    for end, asked in (
        (Offsets({T0: 12, T1: 5}, OLD, leader_epochs={T0: 5, T1: 5}), {T0: LogPoint(9, 4)}),
        (Offsets({T0: 12, T1: 5}, OLD), {T0: LogPoint(9, 4)}),
        (Offsets({T0: 12}, OLD, leader_epochs={T0: 4}), {}),
        (Offsets({T0: 12}, NEW, leader_epochs={T0: 5}), {}),
        (Offsets({T1: 5}, OLD, leader_epochs={T1: 5}), {}),
    ):
        assert points_to_compare(known, end, end.topic_ids) == asked
    moved = Offsets({T0: 12}, OLD, leader_epochs={T0: 5})
    assert points_to_compare(known, moved, NEW) == {}
    assert points_to_compare(known, moved, {}) == {T0: LogPoint(9, 4)}  # its id is not known at the moment
    assert points_to_compare(Offsets({T0: 9}, leader_epochs={T0: 4}), Offsets({T0: 12}), {}) == {T0: LogPoint(9, 4)}
    (span,) = plan_kafka_batch(known, Offsets({T0: 12}, OLD, leader_epochs={T0: 5}), {}, OLD).spans
    assert span.leader_epoch == 5


def test_end_below_the_known_offset_is_suspect_unless_the_topic_was_created_again() -> None:
    assert lower_ends(Offsets({T0: 9, T1: 3}, OLD), Offsets({T0: 8, T1: 3}, OLD)) == {T0}
    assert lower_ends(Offsets({T0: 9}, OLD), Offsets({T0: 8, T1: 1}, NEW)) == set()


def test_offsets_must_name_exactly_the_existing_partitions() -> None:
    check_all_named({T0, T1}, {T0, T1}, "startingOffsets")
    with pytest.raises(UsageError, match="missing: t/1; not read by this query: u/0"):
        check_all_named({T0, T1}, {T0, TopicPartition("u", 0)}, "startingOffsets")
