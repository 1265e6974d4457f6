"""Which blocks and offsets a query over an intake reads: decisions on values."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import msgspec
import numpy as np
import pytest

from forebay.kafka.consume.spans import OffsetRange
from forebay.messages import IncarnationSpan, IncarnationView, IntakePartition, RecordedGap
from forebay.model.errors import UsageError
from forebay.model.values import Block, BlockMeta, BlockRange, Handle, TopicPartition, block_id
from pyspark_forebay.intake.client import FoundBlocks
from pyspark_forebay.intake.planning import (
    first_at,
    next_end,
    offsets_of,
    pack_tasks,
    places,
    plan_intake_batch,
    spans_between,
    start_places,
)
from pyspark_forebay.offsets import Offsets
from pyspark_forebay.options.source import read_options

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def partition(tp: TopicPartition = A, position: int = 100, *incarnations: IncarnationView) -> IntakePartition:
    own = incarnations or (IncarnationView(number=1, start=0, topic_id="id-1"),)
    return IntakePartition(topic=tp.topic, partition=tp.partition, position=position, incarnations=own)


#: [0, 50) of the first incarnation, which ended; [20, 100) of the second so far
TWO = partition(
    A,
    100,
    IncarnationView(number=1, start=0, end=50, topic_id="id-1"),
    IncarnationView(number=2, start=20, topic_id="id-2"),
)


def span(begin: int, until: int, incarnation: int = 1, tp: TopicPartition = A) -> IncarnationSpan:
    return IncarnationSpan(
        topic=tp.topic, partition=tp.partition, incarnation=incarnation, from_offset=begin, until_offset=until
    )


def block(number: int, *ranges: tuple[TopicPartition, int, int], incarnation: int = 1, length: int = 100) -> Block:
    held = tuple(
        BlockRange(
            topic=tp.topic, partition=tp.partition, incarnation=incarnation, from_offset=begin, until_offset=until,
            records=until - begin, leader_epoch=0, digest="0" * 16, token=1,
        )
        for tp, begin, until in ranges
    )  # fmt: skip
    records = sum(r.records for r in held)
    meta = BlockMeta(block_id("r1", 1, number), "s", "r1", 1, number, held, records, number, "h1")
    return Block(meta, Handle(f"s/blocks/{number}", 0, length, 7), False)


def found(
    *blocks: Block, gaps: tuple[RecordedGap, ...] = (), lost: Mapping[str, str] = MappingProxyType({})
) -> FoundBlocks:
    return FoundBlocks(blocks, gaps, {blocks[0].id: ("h2",)} if blocks else {}, lost)


def test_offsets_contain_the_cursor_and_later_incarnations() -> None:
    at, start = {A: (2, 30), B: (1, 5)}, {A: (1, 10), B: (1, 5)}
    made = offsets_of(at, "q-1", start)
    assert made.json() == {
        "t": {"0": 30, "1": 5}, "#start": {"t": {"0": 10, "1": 5}}, "#cursor": "q-1", "#lives": {"t": {"0": 2}},
    }  # fmt: skip
    again = Offsets.of(made.json())
    assert (places(again), start_places(again), again.cursor) == (at, start, "q-1")
    with pytest.raises(UsageError, match="#cursor"):
        Offsets.of({"t": {"0": 1}, "#cursor": 5})


@pytest.mark.parametrize(
    ("begin", "until", "time_ms", "found"),
    [(0, 50, 5, 10), (11, 50, 5, 13), (0, 50, 9, 13), (0, 13, 9, None), (12, 13, 1, 12), (14, 50, 5, None)],
)
def test_first_record_at_a_time_is_within_the_wanted_range(
    begin: int, until: int, time_ms: int, found: int | None
) -> None:
    """Times need not increase, and offsets may be missing."""
    offsets, times = np.array([10, 12, 13, 14]), np.array([5, 1, 9, 2])
    assert first_at(offsets, times, span(begin, until), time_ms) == found


def test_trigger_reads_an_ended_incarnation_to_its_end_and_the_next_one_later() -> None:
    assert next_end((1, 10), TWO) == (2, 20)
    assert next_end((2, 20), TWO) == (2, 100)
    assert spans_between({A: (1, 10)}, {A: (2, 20)}, {A: TWO}) == [span(10, 50)]
    assert spans_between({A: (1, 10)}, {A: (2, 60)}, {A: TWO}) == [span(10, 50), span(20, 60, incarnation=2)]
    assert spans_between({A: (2, 60)}, {A: (2, 60)}, {A: TWO}) == []


@pytest.mark.parametrize(
    ("begin", "end", "message"),
    [((1, 10), (1, 5), "offset 5 is before 10"), ((1, 10), (3, 5), "the intake does not know incarnation 3 of t/0")],
)
def test_offsets_that_do_not_fit_the_intake_are_refused(
    begin: tuple[int, int], end: tuple[int, int], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        spans_between({A: begin}, {A: end}, {A: TWO})


def test_only_wanted_ranges_of_blocks_are_read() -> None:
    whole, cut, other = block(1, (A, 0, 10), (B, 0, 4)), block(2, (A, 10, 20), (B, 4, 8)), block(3, (B, 8, 9))
    got = plan_intake_batch(
        [span(0, 15), span(0, 4, tp=B)], found(whole, cut, other), {A: partition(), B: partition(B)}, True
    )
    assert [part.reference.id for part in got.parts] == [whole.id, cut.id]
    assert (got.parts[0].cuts, got.parts[0].unwanted, got.parts[0].records) == ({}, frozenset(), 14)
    assert got.parts[0].reference.other_hosts == ("h2",)
    assert (got.parts[1].cuts, got.parts[1].records) == ({"t/0": (10, 15)}, 5)
    assert got.parts[1].unwanted == frozenset({"t/1[4, 8)"})
    assert got.spans == got.losses == got.gaps == ()


def test_range_without_a_block_is_read_from_kafka_only_in_the_newest_incarnation() -> None:
    """INV-5: otherwise it is a loss."""
    got = plan_intake_batch([span(10, 50), span(20, 60, incarnation=2)], found(block(1, (A, 15, 40))), {A: TWO}, True)
    assert got.spans == (OffsetRange("t", 0, 20, 60, "id-2"),)
    led = msgspec.structs.replace(TWO, leader_epoch=7)
    (of_kafka,) = plan_intake_batch([span(20, 60, incarnation=2)], found(), {A: led}, True).spans
    assert of_kafka.leader_epoch == 7  # a record of a newer leader proves that the log was cut back since
    assert [message.partition(":")[0] for message in got.losses] == ["t/0[10, 15)", "t/0[40, 50)"]
    without = plan_intake_batch([span(20, 60, incarnation=2)], found(), {A: TWO}, False)
    assert without.spans == () and without.losses[0].startswith(
        "t/0[20, 60) of incarnation 2: the WAL no longer has it"
    )


def test_gap_of_the_stream_is_reported_and_is_no_loss() -> None:
    gap = RecordedGap(
        topic="t", partition=0, incarnation=1, from_offset=10, until_offset=30, cause="aged out, accepted by ann"
    )
    got = plan_intake_batch(
        [span(0, 40)], found(block(1, (A, 0, 10)), block(2, (A, 30, 40)), gaps=(gap,)), {A: partition()}, True
    )
    assert got.spans == got.losses == ()
    assert got.gaps == ("t/0[10, 30) was lost in Kafka: aged out, accepted by ann",)


def test_accepted_loss_is_skipped_and_reported() -> None:
    """INV-5: it is neither read, nor asked of Kafka, nor a loss."""
    both, alone = block(1, (A, 0, 10), (B, 0, 4)), block(2, (A, 10, 20))
    lost = {"t/0[0, 10)": "ann: disk gone", "t/0[10, 20)": "bob"}
    got = plan_intake_batch(
        [span(0, 20), span(0, 4, tp=B)], found(both, alone, lost=lost), {A: partition(), B: partition(B)}, True
    )
    assert [(part.reference.id, part.unwanted, part.records) for part in got.parts] == [(both.id, {"t/0[0, 10)"}, 4)]
    assert got.spans == got.losses == ()
    assert got.gaps == (
        "t/0[0, 10) was lost after it was taken in: ann: disk gone",
        "t/0[10, 20) was lost after it was taken in: bob",
    )
    kept, gone = ((A, 0, 10), (A, 15, 20)), ((A, 20, 30), (A, 40, 50))
    between = found(
        *(block(n, own) for n, own in enumerate((*kept, *gone), 3)), lost={"t/0[20, 30)": "", "t/0[40, 50)": ""}
    )
    got = plan_intake_batch([span(5, 50)], between, {A: partition()}, True)
    assert got.spans == (OffsetRange("t", 0, 10, 15, "id-1"), OffsetRange("t", 0, 30, 40, "id-1"))


def test_range_covered_twice_is_not_missing() -> None:
    """The further end counts, in any order."""
    gap = RecordedGap(topic="t", partition=0, incarnation=1, from_offset=0, until_offset=30, cause="aged out")
    got = plan_intake_batch([span(0, 40)], found(block(1, (A, 10, 20)), gaps=(gap,)), {A: partition()}, True)
    assert got.spans == (OffsetRange("t", 0, 30, 40, "id-1"),)


def parts(count: int, length: int) -> list[object]:
    blocks = [block(n + 1, (A, n * 10, n * 10 + 10), length=length) for n in range(count)]
    return list(plan_intake_batch([span(0, count * 10)], found(*blocks), {A: partition()}, True).parts)


@pytest.mark.parametrize(
    ("count", "length", "partitions", "least", "most", "sizes"),
    [
        (8, 100, 4, None, None, [8]),  # little: one task
        (8, 1_000_000, 4, None, None, [2, 2, 2, 2]),  # as many as partitions
        (8, 32_000_000, 2, None, None, [2, 2, 2, 2]),  # about 64 MB each
        (8, 100, 4, 3, None, [3, 3, 2]),
        (2, 100, 4, 5, None, [1, 1]),  # a block is never split
        (8, 100, 4, None, 25, [2, 2, 2, 2]),
        (0, 100, 4, None, None, []),
    ],
)
def test_blocks_are_packed_into_enough_tasks(
    count: int, length: int, partitions: int, least: int | None, most: int | None, sizes: list[int]
) -> None:
    given = parts(count, length)
    made = pack_tasks(given, partitions, least, most)  # type: ignore[arg-type]
    assert [len(task) for task in made] == sizes
    assert [part for task in made for part in task] == given


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"tracker": ""}, "write where the stream's driver is"),
        ({"tracker": "driver:7080"}, "write where the stream's driver is"),
        ({"tracker": "http://user:secret-word@d:1"}, "write where the stream's driver is"),
        ({"tracker": "http://d:1", "cursor": "a b"}, "option cursor: 'a b'"),
        ({"tracker": "http://d:1", "cursor": "a" * 49}, "more than 48 characters"),
        ({"tracker": "http://d:1", "startingTimestamp": "noon"}, "option startingTimestamp: 'noon'"),
        ({"tracker": "http://d:1", "subscribe": "a", "assign": "{}"}, "only one of the options"),
    ],
)
def test_invalid_options_over_an_intake_are_refused(given: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        read_options({name.lower(): value for name, value in given.items()}, streaming=True)
    assert "secret-word" not in str(refused.value)


def test_tracker_is_the_only_required_option_over_an_intake() -> None:
    options = read_options({"tracker": "http://d1:1, http://d2:2"}, streaming=True)
    assert options.intake is not None
    assert (options.intake.urls, options.intake.cursor) == (("http://d1:1", "http://d2:2"), "query")
    assert options.kafka == {}
    without = {"subscribe": "t", "kafka.bootstrap.servers": "b:1", "cursor": "q"}
    assert "option cursor is ignored without tracker" in read_options(without, streaming=True).warnings
