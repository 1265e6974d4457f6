"""Which partitions the stream has, where they begin, and whether Kafka's committed offsets prove that a journal was lost."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from driver.journal.events import IncarnationStart
from driver.journal.state import State
from driver.tracker.requests import FoundPartitions, Read
from forebay.kafka.client.admin import Committed
from forebay.model.errors import ForebayError, UnreachableError
from forebay.model.topic_pattern import matches
from forebay.model.values import TopicPartition
from forebay.settings.schema import KafkaSettings, Settings
from forebay.sources.kind import Upstream, source_kind

#: the metadata of a commit of this stream: timeline, incarnation
_OWN = re.compile(r"forebay:([0-9]{1,9}):([0-9]{1,9})")


class LostJournal(ForebayError):
    """Kafka holds a commit of this stream beyond the journal's position: the journal has lost events."""


@dataclass(frozen=True, slots=True)
class Known:
    """The partitions ("topic/partition") and topics of the stream that the journal knows.

    ``created``: whether it knows any. ``has_ids``: whether some topic has an id, so that each new one has one too.
    """

    partitions: frozenset[str]
    topics: frozenset[str]
    created: bool
    has_ids: bool = False


@dataclass(frozen=True, slots=True)
class ReadKnown(Read[Known]):
    """Reads the partitions and topics that the journal knows."""

    def read(self, state: State) -> Known:
        has_ids = any(partition.incarnation.topic_id for partition in state.partitions.values())
        return Known(frozenset(state.partitions), frozenset(state.topics), state.created, has_ids)


def subscription(kafka: KafkaSettings, topics: Iterable[str]) -> tuple[str, ...] | None:
    """Return the topics in ``topics`` that receivers subscribe to because of ``kafka.pattern``; None if no pattern is set."""
    if kafka.pattern is None:
        return None
    return tuple(sorted(topic for topic in topics if matches(kafka.pattern, topic)))


def discover(
    admin: Upstream,
    settings: Settings,
    there: Collection[TopicPartition],
    known: Known,
    now_ms: int,
) -> FoundPartitions | None:
    """For the partitions in ``there`` that the journal does not know, find the offsets at which they begin. Return None if it
    knows all.

    ``kafka.starting_offsets`` applies to all partitions that exist when the stream is created, and to those of a topic that is
    named in the settings and new to the stream. A partition that appears later begins at its first offset, and so does one of a
    topic that a pattern or a custom source finds later: no record that was written before discovery is skipped.

    Raises UnreachableError and UnknownTopicError: try again; UsageError if the policy can't be applied.
    """
    kafka = settings.kafka
    new = {tp for tp in there if str(tp) not in known.partitions}
    if not new:
        return None
    topics = {tp.topic for tp in new}
    ids = admin.listed_topic_ids(topics)
    named = source_kind(settings).names_topics()
    by_policy = {tp for tp in new if not known.created or (tp.topic not in known.topics and named)}
    offsets: dict[TopicPartition, int] = {}
    if by_policy:
        offsets.update(admin.starting_offsets(kafka.starting_offsets, by_policy, settings.group))
    if new - by_policy:
        offsets.update(admin.starting_offsets("earliest", new - by_policy, settings.group))
    # with the epoch of a commit, a receiver notices that the log was cut back since
    committed = admin.committed(settings.group, by_policy) if kafka.starting_offsets == "committed" else {}
    epochs = {tp: commit.leader_epoch for tp, commit in committed.items() if commit.offset == offsets[tp]}
    again = admin.listed_topic_ids(topics)
    # a broker that knows no controller returns no ids for a while
    if again != ids or (known.has_ids and not all(ids.values())):
        names = ", ".join(sorted(topics))
        raise UnreachableError(
            f"topics changed during discovery, or a broker does not return their ids yet: {names}; the driver tries again"
        )
    starts = tuple(
        IncarnationStart(tp.topic, tp.partition, offsets[tp], ids.get(tp.topic, ""), leader_epoch=epochs.get(tp, -1))
        for tp in sorted(new)
    )
    cause = f"starting_offsets = {kafka.starting_offsets!r}" if by_policy else "appeared later: from its beginning"
    return FoundPartitions(starts, now_ms, cause)


def check_commits(
    committed: Mapping[TopicPartition, Committed],
    group: str,
    timeline: int,
    positions: Mapping[TopicPartition, tuple[int, int]],
) -> None:
    """Raise LostJournal if a commit of this stream proves that the journal has lost events (rule 5).

    A commit of this stream has the metadata ``forebay:<timeline>:<incarnation>``. It proves a loss if its offset is beyond the
    journal's position, or if its incarnation or timeline is later than the journal's. ``positions``: partition → (incarnation,
    position), read after ``committed``. For any other commit see :func:`foreign_commits`.
    """
    for tp, commit in committed.items():
        incarnation, position = positions[tp]
        own = _OWN.fullmatch(commit.metadata)
        if own is not None and (int(own[1]), int(own[2]), commit.offset) > (timeline, incarnation, position):
            raise LostJournal(
                f"group {group} has a commit of this stream for {tp} at {commit.offset} (timeline {own[1]}, incarnation "
                f"{own[2]}), but the journal's position is {position} (timeline {timeline}, incarnation {incarnation}): the "
                "journal has lost events. Nothing was changed. Restore the journal, or examine it with `forebay recover`"
            )


def foreign_commits(
    committed: Mapping[TopicPartition, Committed], group: str, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, str]:
    """Return a sentence for each partition whose committed offset another program has set.

    Such a commit is ignored (rule 5), and replaced when a receiver commits again.
    """
    return {
        tp: f"{tp}: another program set group {group} to offset {commit.offset}; this changes nothing: intake continues at "
        f"{positions[tp]}. To continue at that offset, run `forebay offsets reset {tp} --to {commit.offset}`"
        for tp, commit in sorted(committed.items())
        if _OWN.fullmatch(commit.metadata) is None and commit.offset != positions[tp]
    }
