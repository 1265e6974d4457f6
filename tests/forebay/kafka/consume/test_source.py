"""The source: one contract against the mock cluster and a real Kafka, both rebalance protocols, with and without native code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from forebay.kafka.consume import fetching
from forebay.kafka.embedded.broker import KafkaBroker, MockBroker
from forebay.kafka.embedded.loader import load
from forebay.kafka.native.library import library
from forebay.model.columns import Columns, Start
from forebay.model.errors import ForebayError
from forebay.model.records import SOURCE_SCHEMA
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import Commit, Reader, partitions_of, poll_some, poll_until

Broker = KafkaBroker | MockBroker
EAGER = {"partition.assignment.strategy": "range"}
COOPERATIVE = {"partition.assignment.strategy": "cooperative-sticky"}


@pytest.fixture(params=["mock", "mock-without-native-code", pytest.param("kafka", marks=pytest.mark.kafka)])
def broker(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Broker:
    if request.param == "mock-without-native-code":
        monkeypatch.setattr(fetching, "library", lambda: None)
    else:
        assert library() is not None, "python scripts/compile_native.py"
    found: Broker = request.getfixturevalue(f"{request.param.partition('-')[0]}_broker")
    return found


@pytest.fixture(params=[EAGER, COOPERATIVE], ids=["eager", "cooperative"])
def protocol(request: pytest.FixtureRequest) -> dict[str, str]:
    return dict(request.param)


@pytest.fixture
def topic(broker: Broker, topic_name: Callable[[], str]) -> str:
    name = topic_name()
    broker.create_topic(name)
    return name


def fill(broker: Broker, topic: str, records: int, partitions: int = 4, size: int = 10) -> None:
    for partition in range(partitions):
        load(
            broker.options, topic, ((b"k%d" % n, b"v%d" % n + b"." * size) for n in range(records)), partition=partition
        )


def test_columns_keep_every_kind_of_record(broker: Broker, topic: str) -> None:
    """Null keys, tombstones, empty values, bytes that are not UTF-8, headers and timestamps are those of Kafka."""
    rows: list[tuple[bytes | None, bytes | None, int, list[tuple[str, bytes | None]] | None]] = [
        (None, b"no key", 1_700_000_000_000, None),
        (b"gone", None, 1_700_000_000_001, None),
        (b"", b"", 1_700_000_000_002, [("empty", b""), ("null", None), ("twice", b"1"), ("twice", b"2")]),
        (b"\xff\xfe", b"\x00\xff", 1_700_000_000_003, [("bytes", b"\xff")]),
    ]
    producer = Producer(broker.options)
    for key, value, timestamp, headers in rows:
        more: dict[str, Any] = {"headers": headers} if headers else {}
        producer.produce(topic, value, key, partition=0, timestamp=timestamp, **more)
    assert producer.flush(10) == 0
    tp = TopicPartition(topic, 0)
    with Reader(broker.options, topic, [topic], headers=True) as reader:
        poll_until(lambda: tp in reader.source.owned, reader)
        reader.start({tp: 0})
        poll_until(lambda: len(reader.offsets(tp)) == 4, reader)
        columns = next(item for item in reader.polled if isinstance(item, Columns))
        assert columns.batch.schema == SOURCE_SCHEMA(True)
        assert reader.rows(tp, "key") == [None, b"gone", b"", b"\xff\xfe"]
        assert reader.rows(tp, "value") == [b"no key", None, b"", b"\x00\xff"]
        assert reader.rows(tp, "timestamp") == [row[2] for row in rows]
        assert reader.rows(tp, "timestampType") == [0, 0, 0, 0]
        assert reader.offsets(tp) == [0, 1, 2, 3]
        assert [[(h["key"], h["value"]) for h in row] if row else None for row in reader.rows(tp, "headers")] == [
            row[3] for row in rows
        ]
        assert sum(item.bytes for item in reader.polled if isinstance(item, Columns)) == 6 + 4 + 2 + 2
        assert max(item.max_timestamp_ms for item in reader.polled if isinstance(item, Columns)) == 1_700_000_000_003


def test_member_reads_nothing_before_start(broker: Broker, topic: str, protocol: dict[str, str]) -> None:
    fill(broker, topic, 100)
    with Reader({**broker.options, **protocol}, topic, [topic]) as reader:
        poll_until(lambda: len(reader.source.owned) == 4, reader)
        poll_some(reader)
        assert reader.polled == []
        assert reader.rebalances == [("assigned", frozenset(partitions_of(topic)))]
        assert reader.source.commit_sync({TopicPartition(topic, 0): Commit(7)}, 10) == {}


def test_start_returns_exactly_records_from_position_on(broker: Broker, topic: str, protocol: dict[str, str]) -> None:
    """INV-2: no record before the position, none left out; and the end is reported."""
    fill(broker, topic, 500)
    at = {tp: 100 * tp.partition for tp in partitions_of(topic)}
    with Reader({**broker.options, **protocol}, topic, [topic]) as reader:
        poll_until(lambda: len(reader.source.owned) == 4, reader)
        reader.start(at)
        poll_until(lambda: all(reader.ends(tp) for tp in at), reader)
        for tp, offset in at.items():
            assert reader.offsets(tp) == list(range(offset, 500))
            assert set(reader.ends(tp)) == {500}


def test_rewind_reads_again_under_new_generation_without_touching_others(
    broker: Broker, topic: str, protocol: dict[str, str]
) -> None:
    """Rule 3: after a start, no record of the older generation is returned, and other partitions continue."""
    fill(broker, topic, 3000, size=500)
    one, *others = partitions_of(topic)
    with Reader({**broker.options, **protocol}, topic, [topic]) as reader:
        poll_until(lambda: len(reader.source.owned) == 4, reader)
        reader.start(dict.fromkeys(partitions_of(topic), 0))
        poll_until(lambda: len(reader.offsets(one)) > 100, reader)
        for generation in range(2, 12):
            reader.start({one: 10 * generation}, generation)
            reader.poll(500)
        poll_until(lambda: all(reader.ends(tp) for tp in others) and 3000 in reader.ends(one), reader)
        poll_until(lambda: reader.offsets(one, 11)[-1:] == [2999], reader)
        for generation in range(2, 12):
            got = reader.offsets(one, generation)
            assert got == list(range(10 * generation, 10 * generation + len(got)))
        assert reader.offsets(one, 11) == list(range(110, 3000))
        for tp in others:
            assert reader.offsets(tp) == list(range(3000))


def test_resume_continues_without_a_gap_after_pause(broker: Broker, topic: str, protocol: dict[str, str]) -> None:
    fill(broker, topic, 3000, size=500)
    paused, *others = partitions_of(topic)
    with Reader({**broker.options, **protocol}, topic, [topic]) as reader:
        poll_until(lambda: len(reader.source.owned) == 4, reader)
        reader.start(dict.fromkeys(partitions_of(topic), 0))
        while 3000 not in reader.ends(paused):
            had = len(reader.offsets(paused))
            poll_until(lambda had=had: len(reader.offsets(paused)) > had or 3000 in reader.ends(paused), reader)  # type: ignore[misc]
            reader.source.pause([paused])
            before = len(reader.offsets(paused))
            reader.start({others[0]: 2990}, generation=len(reader.polled) + 2)  # a start elsewhere must not wake it
            poll_some(reader, 1)
            assert len(reader.offsets(paused)) == before
            reader.source.resume([paused])
        assert reader.offsets(paused) == list(range(3000))
        assert [word for word, _ in reader.rebalances] == ["assigned"]


def test_start_resumes_paused_partition(broker: Broker, topic: str, protocol: dict[str, str]) -> None:
    fill(broker, topic, 100)
    tp = TopicPartition(topic, 1)
    with Reader({**broker.options, **protocol}, topic, [topic]) as reader:
        poll_until(lambda: len(reader.source.owned) == 4, reader)
        reader.start({tp: 0})
        reader.source.pause([tp])
        reader.start({tp: 50}, generation=2)
        poll_until(lambda: reader.ends(tp), reader)
        assert reader.offsets(tp, 2) == list(range(50, 100))


def test_partition_revoked_while_paused_is_read_after_reassignment(
    broker: Broker, topic: str, protocol: dict[str, str]
) -> None:
    """librdkafka keeps a pause until a partition's next assignment, however much later."""
    fill(broker, topic, 100)
    every = frozenset(partitions_of(topic))
    options = {**broker.options, **protocol}
    with Reader(options, topic, [topic]) as first:
        poll_until(lambda: first.source.owned == every, first)
        first.start(dict.fromkeys(every, 0))
        poll_until(lambda: all(first.ends(tp) for tp in every), first)
        first.source.pause(sorted(every))
        with Reader(options, topic, [topic]) as second:
            poll_until(lambda: len(first.source.owned) == 2 and len(second.source.owned) == 2, first, second)
        poll_until(lambda: first.source.owned == every, first)
        first.start(dict.fromkeys(every, 50), generation=2)
        poll_until(lambda: all(first.offsets(tp, 2) == list(range(50, 100)) for tp in every), first)


def test_rebalance_notifies_both_members_and_moves_partitions(
    broker: Broker, topic: str, protocol: dict[str, str]
) -> None:
    """Eager revokes everything first, cooperative only what moves; partitions started later are read completely."""
    fill(broker, topic, 200)
    every = frozenset(partitions_of(topic))
    options = {**broker.options, **protocol}
    with Reader(options, topic, [topic]) as first:
        first.on_revoked = lambda tps: first.source.commit({tp: Commit(200) for tp in tps})  # rule 6
        poll_until(lambda: first.source.owned == every, first)
        first.start(dict.fromkeys(every, 0))
        poll_until(lambda: all(first.ends(tp) for tp in every), first)
        with Reader(options, topic, [topic]) as second:
            poll_until(lambda: len(first.source.owned) == 2 and len(second.source.owned) == 2, first, second)
            assert first.source.owned | second.source.owned == every
            revoked = next(partitions for word, partitions in first.rebalances if word == "revoked")
            assert revoked == (every if protocol == EAGER else second.source.owned)
            if isinstance(broker, KafkaBroker):  # the mock refuses commits while it rebalances
                assert first.source.poll_commit_errors() == {}
            second.start(dict.fromkeys(second.source.owned, 50), generation=5)
            poll_until(lambda: all(second.ends(tp) for tp in second.source.owned), first, second)
            for tp in second.source.owned:
                assert second.offsets(tp, 5) == list(range(50, 200))
            gone = next(iter(second.source.owned))
            first.start({gone: 0}, generation=9)  # not ours any more: left out
            poll_some(first, 3)
            assert first.offsets(gone, 9) == []
        poll_until(lambda: first.source.owned == every, first)
        assert all(word != "lost" for word, _ in first.rebalances)
        first.start(dict.fromkeys(every, 190), generation=10)
        poll_until(lambda: all(first.offsets(tp, 10) == list(range(190, 200)) for tp in every), first)


@pytest.mark.kafka
def test_source_follows_other_topics(
    kafka_broker: KafkaBroker, protocol: dict[str, str], topic_name: Callable[[], str]
) -> None:
    """Without topics there is no subscription; a topic that is no longer named is revoked."""
    broker, topic, other = kafka_broker, topic_name(), topic_name()
    broker.create_topic(topic)
    broker.create_topic(other)
    fill(broker, topic, 10)
    fill(broker, other, 10)
    one, two = set(partitions_of(topic)), set(partitions_of(other))
    with Reader({**broker.options, **protocol}, topic, []) as reader:
        poll_some(reader)
        assert reader.rebalances == []
        for wanted, names in ((one, [topic]), (one | two, [topic, other]), (two, [other]), (set(), []), (one, [topic])):
            reader.source.follow(names)
            poll_until(lambda wanted=wanted: reader.source.owned == wanted, reader)  # type: ignore[misc]
        reader.start(dict.fromkeys(one, 0))
        poll_until(lambda: all(len(reader.offsets(tp)) == 10 for tp in one), reader)
        assert not any(reader.offsets(tp) for tp in two)


def test_a_start_within_a_callback_takes_effect_when_the_poll_returns(broker: Broker, topic: str) -> None:
    fill(broker, topic, 20)
    tp = TopicPartition(topic, 2)
    with Reader(broker.options, topic, [topic]) as reader:
        listener_assigned = reader.assigned
        reader.assigned = lambda tps: (listener_assigned(tps), reader.source.start([Start(tp, 5, -1, 3)]))  # type: ignore[method-assign,assignment]
        poll_until(lambda: reader.ends(tp), reader)
        assert reader.offsets(tp, 3) == list(range(5, 20))


def test_poll_raises_listeners_exception(broker: Broker, topic: str) -> None:
    with Reader(broker.options, topic, [topic]) as reader:

        def fail(_: object) -> None:
            raise ForebayError("from the callback")

        reader.assigned = fail  # type: ignore[method-assign, assignment]
        with pytest.raises(ForebayError, match="from the callback"):
            poll_until(lambda: False, reader)


def test_commits_are_answered_per_partition(broker: Broker, topic: str) -> None:
    """A refused synchronous commit fails only for its partition; an unassigned partition is refused without the broker."""
    good, bad, foreign = TopicPartition(topic, 0), TopicPartition(topic, 1), TopicPartition(topic, 99)
    with Reader(broker.options, topic, [topic]) as reader:
        poll_until(lambda: len(reader.source.owned) == 4, reader)
        errors = reader.source.commit_sync({good: Commit(3, 0, "forebay:1:1"), foreign: Commit(1)}, 10)
        assert errors == {foreign: "not assigned to this member"}
        reader.source.commit({good: Commit(4, 0, "forebay:1:1")})
        poll_some(reader)
        assert reader.source.poll_commit_errors() == {}
        if isinstance(broker, KafkaBroker):  # the mock takes any number
            too_long = "x" * 10_000
            reader.source.commit({good: Commit(5), bad: Commit(1, -1, too_long)})
            errors = {}
            poll_until(lambda: errors.update(reader.source.poll_commit_errors()) or errors, reader)
            assert bad in errors  # librdkafka gives one partition's error to all of a commit
            assert reader.source.poll_commit_errors() == {}
            assert set(reader.source.commit_sync({good: Commit(6), bad: Commit(1, -1, too_long)}, 10)) == {bad}


def test_commit_without_membership_is_refused(broker: Broker, topic: str) -> None:
    """A broker accepts it if the group has no members, so a claim must not depend on such a commit."""
    with Reader(broker.options, topic, [topic]) as reader:
        tp = TopicPartition(topic, 0)
        assert reader.source.commit_sync({tp: Commit(3)}, 5) == {tp: "not a member of the group"}


def test_watermarks_and_the_last_seen_end(broker: Broker, topic: str) -> None:
    fill(broker, topic, 12)
    tp = TopicPartition(topic, 0)
    with Reader(broker.options, topic, [topic]) as reader:
        poll_until(lambda: tp in reader.source.owned, reader)
        assert reader.source.watermarks(tp, 10) == (0, 12)
        reader.start({tp: 0})
        poll_until(lambda: reader.ends(tp), reader)
        assert reader.source.high_watermark(tp) == 12
