"""Which partitions there are, and what Kafka's commits prove of the journal."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec
import pytest

from driver.background.discovery import (
    Known,
    LostJournal,
    ReadKnown,
    check_commits,
    discover,
    foreign_commits,
    subscription,
)
from driver.journal.events import IncarnationStart, PartitionsAdded
from driver.journal.state import State
from driver.journal.transitions import apply
from forebay.kafka.client.admin import Committed, KafkaAdmin
from forebay.model.errors import UnreachableError
from forebay.model.values import TopicPartition
from forebay.settings.reading.load import from_values
from forebay.settings.schema import KafkaSettings, Settings

TP = TopicPartition("t", 0)
SETTINGS: Settings = from_values(
    {
        "stream": "s",
        "kafka": {"topics": ["t", "u"], "bootstrap.servers": "127.0.0.1:1"},
        "wal": {"url": "memory://w"},
        "driver": {"journal": "memory://j"},
        "agent": {"blocks": "/b"},
    }
)


@pytest.mark.parametrize(
    ("metadata", "offset"),
    [("forebay:1:2", 51), ("forebay:1:3", 10), ("forebay:2:1", 0)],
    ids=["beyond the position", "of a later incarnation", "of a later timeline"],
)
def test_a_commit_of_ours_that_is_ahead_of_the_journal_proves_that_it_lost_events(metadata: str, offset: int) -> None:
    """INV-5: an incarnation that the journal does not know was begun by a journal that is lost."""
    with pytest.raises(LostJournal, match="lost events"):
        check_commits({TP: Committed(offset, -1, metadata)}, "g", 1, {TP: (2, 50)})


@pytest.mark.parametrize(
    ("metadata", "offset"),
    [("forebay:1:2", 50), ("forebay:1:1", 900), ("somebody", 900), ("", 900), ("forebay:x:1", 900)],
)
def test_commit_of_another_program_or_an_ended_incarnation_proves_nothing(metadata: str, offset: int) -> None:
    check_commits({TP: Committed(offset, -1, metadata)}, "g", 1, {TP: (2, 50)})


@pytest.mark.parametrize(
    ("metadata", "offset", "pointed_out"),
    [("", 120, True), ("somebody", 7, True), ("", 50, False), ("forebay:1:2", 40, False), ("forebay:1:1", 900, False)],
)
def test_offset_that_another_program_committed_is_shown_with_the_command_to_continue_there(
    metadata: str, offset: int, pointed_out: bool
) -> None:
    """Rule 5: it is ignored, and not in silence; our own, older ones are none of them."""
    found = foreign_commits({TP: Committed(offset, -1, metadata)}, "g", {TP: 50})
    assert bool(found) is pointed_out
    if pointed_out:
        assert f"`forebay offsets reset t/0 --to {offset}`" in found[TP] and "continues at 50" in found[TP]


@pytest.mark.parametrize(
    ("pattern", "topic", "taken"),
    [
        (r"^ab\d+", "ab12", True),
        (r"^ab\d+", "ab", False),
        (r"^ab[0-9]", "ab12", False),  # a whole name, not a part of it
        (r"^ab[0-9]", "ab1", True),
        (r"^(?:ab1|ab12)", "ab12", True),
        (r"^a|^b.*", "bcd", True),
        (r"^.*", "__consumer_offsets", False),
        (r"^__x", "__x", False),
        (r"^_x", "_x", True),
    ],
)
def test_a_pattern_is_a_python_expression_over_whole_names(pattern: str, topic: str, taken: bool) -> None:
    kafka = KafkaSettings(pattern=pattern)
    assert subscription(kafka, [topic]) == ((topic,) if taken else ())


def test_receivers_of_named_topics_follow_their_own_settings() -> None:
    assert subscription(KafkaSettings(topics=("t",)), ["t", "u"]) is None


class Asked:
    """An admin client whose topics have one id after the other."""

    def __init__(self, *ids: dict[str, str]) -> None:
        self._ids = itertools.chain(ids, itertools.repeat(ids[-1]))

    def partitions(self, topics: Iterable[str], pattern: str | None) -> set[TopicPartition]:
        return {TopicPartition(topic, 0) for topic in topics}

    def listed_topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        return next(self._ids)

    def committed(self, group: str, tps: Iterable[TopicPartition]) -> dict[TopicPartition, Committed]:
        return {TopicPartition("t", 0): Committed(7, 3, ""), TopicPartition("u", 0): Committed(6, 3, "")}

    def starting_offsets(
        self, policy: object, tps: Iterable[TopicPartition], group: str
    ) -> Mapping[TopicPartition, int]:
        return dict.fromkeys(tps, 7)


NOTHING_KNOWN = Known(frozenset(), frozenset(), created=False)


def look(admin: Asked, settings: Settings = SETTINGS, known: Known = NOTHING_KNOWN) -> Any:
    return discover(cast(KafkaAdmin, admin), settings, admin.partitions(settings.kafka.topics, None), known, 1)


def test_a_topic_created_again_while_its_start_is_asked_for_is_asked_for_again() -> None:
    """INV-5: the start of the old topic under the id of the new one would skip what the new one holds."""
    with pytest.raises(UnreachableError, match="topics changed during discovery"):
        look(Asked({"t": "1", "u": "2"}, {"t": "3", "u": "2"}))


def test_topic_without_an_id_does_not_begin_beside_topics_that_have_one() -> None:
    """INV-5: the stream would not notice that it is created again."""
    known = Known(frozenset(("s/0",)), frozenset("s"), created=True, has_ids=True)
    with pytest.raises(UnreachableError, match="topics changed during discovery"):
        look(Asked({"t": "", "u": ""}), known=known)


@pytest.mark.parametrize("topic_id", ["", "1"])
def test_stream_has_ids_if_one_of_its_topics_has_one(topic_id: str) -> None:
    state = State(stream="s", timeline=1)
    starts = (IncarnationStart("t", 0, 0, topic_id), IncarnationStart("u", 0, 0))
    apply(state, PartitionsAdded(starts, 1, "given"))
    assert ReadKnown().read(state).has_ids == bool(topic_id)


def test_incarnations_begin_without_an_id_if_the_broker_has_none() -> None:
    assert [start.topic_id for start in look(Asked({"t": "", "u": ""})).starts] == ["", ""]


def test_start_at_a_committed_offset_has_the_leader_epoch_of_the_commit() -> None:
    """INV-5: so a receiver notices that the log was cut back since. ``u`` was committed again meanwhile."""
    kafka = msgspec.structs.replace(SETTINGS.kafka, starting_offsets="committed")
    found = look(Asked({"t": "1", "u": "2"}), msgspec.structs.replace(SETTINGS, kafka=kafka))
    assert [(start.topic, start.start, start.leader_epoch) for start in found.starts] == [("t", 7, 3), ("u", 7, -1)]
    assert {start.leader_epoch for start in look(Asked({"t": "1", "u": "2"})).starts} == {-1}
