"""Starting offsets, found by requests to a real Kafka."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.starting import Known, StartPosition, Timestamp, begin, find_offsets
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import Commit, partitions_of
from tests.support.state.again import produce

pytestmark = pytest.mark.kafka
FIRST_MS = 1_700_000_000_000


@pytest.fixture
def admin(kafka_broker: KafkaBroker) -> Iterator[KafkaAdmin]:
    with KafkaAdmin(kafka_broker.options) as admin:
        yield admin


@pytest.fixture
def tps(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> list[TopicPartition]:
    """Four partitions; the first has offsets 3 to 10, the second 0 to 5, the others none."""
    topic = topic_name()
    kafka_broker.create_topic(topic, 4)
    one, two, *_ = tps = partitions_of(topic)
    produce(kafka_broker.options, one, 10)
    produce(kafka_broker.options, two, 5)
    with KafkaAdmin(kafka_broker.options) as admin:
        admin.delete_records({one: 3})
    return tps


def test_all_kinds_of_places_are_found_in_one_request(admin: KafkaAdmin, tps: list[TopicPartition]) -> None:
    one, two, three, four = tps
    asked = {one: Timestamp(FIRST_MS + 7), two: "latest", three: 7, four: "earliest"}
    assert find_offsets(admin, asked) == {one: 7, two: 5, three: 7, four: 0}  # type: ignore[arg-type]
    assert find_offsets(admin, {one: -2, two: -1}) == {one: 3, two: 5}
    assert find_offsets(admin, {one: Timestamp(0)}) == {one: 3}
    assert find_offsets(admin, {}) == {}


def test_time_after_last_record_is_an_error_or_the_end(admin: KafkaAdmin, tps: list[TopicPartition]) -> None:
    late = {tp: Timestamp(FIRST_MS + 5) for tp in tps}
    with pytest.raises(UsageError, match=rf"{tps[1]} has no record at or after timestamp {FIRST_MS + 5}, and 2 other"):
        find_offsets(admin, late)
    assert list(find_offsets(admin, late, without_record="latest").values()) == [5, 5, 0, 0]


def test_precedence_is_checkpoint_given_committed_policy(admin: KafkaAdmin, tps: list[TopicPartition]) -> None:
    one, two, three, four = tps
    known = Known(None, {one: 4, two: -1}, {one: 9, three: 6}, "g")
    assert begin(admin, tps, known, "earliest") == {
        one: StartPosition(4, "given"),
        two: StartPosition(5, "given"),
        three: StartPosition(6, "committed by group g"),
        four: StartPosition(0, "earliest, by the reset policy"),
    }
    with pytest.raises(UsageError, match=f"no starting offset of {four} is known"):
        begin(admin, tps, known, "error")
    assert begin(admin, [one], Known(None, {}, {}), "latest") == {one: StartPosition(10, "latest, by the reset policy")}


def test_partition_missing_in_checkpoint_begins_at_its_beginning(admin: KafkaAdmin, tps: list[TopicPartition]) -> None:
    one, two, *_ = tps
    known = Known({two: 2}, {one: 9}, {one: 9}, "g")
    assert begin(admin, [one, two], known, "latest") == {
        one: StartPosition(3, "its beginning, since it is new"),
        two: StartPosition(2, "of the checkpoint"),
    }


@pytest.mark.parametrize("offset", [-3, "soon"])
def test_impossible_offset_is_refused(admin: KafkaAdmin, tps: list[TopicPartition], offset: object) -> None:
    with pytest.raises(UsageError, match=r"allowed are offsets from 0, -2 .earliest. and -1"):
        find_offsets(admin, {tps[0]: offset})  # type: ignore[dict-item]


def test_commits_of_group_are_read_without_joining_it(
    kafka_broker: KafkaBroker, admin: KafkaAdmin, tps: list[TopicPartition]
) -> None:
    group = tps[0].topic
    assert admin.publish(group, {tps[0]: Commit(8)}) == {}
    found = {tp: committed.offset for tp, committed in admin.committed(group, tps).items()}
    assert begin(admin, tps[:1], Known(None, {}, found, group), "error")[tps[0]].offset == 8
