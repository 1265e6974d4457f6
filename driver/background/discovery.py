"""Which partitions the stream has, where they begin, and whether Kafka's committed offsets prove that a journal was lost."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from driver.background.upstream import Upstream
from driver.journal.events import IncarnationStart
from driver.tracker.requests import FoundPartitions
from forebay.kafka.client.admin import Committed
from forebay.model.errors import ForebayError, UnreachableError
from forebay.model.topic_pattern import matches
from forebay.model.values import TopicPartition
from forebay.settings.schema import KafkaSettings, Settings

#: the metadata of a commit of ours: lineage, life
_OWN = re.compile(r"forebay:([0-9]{1,9}):([0-9]{1,9})")


class LostJournal(ForebayError):
    """Kafka holds a commit of our own beyond the journal's position: what the journal knew is gone."""


def subscription(kafka: KafkaSettings, topics: Iterable[str]) -> tuple[str, ...] | None:
    """The names of ``topics`` that receivers subscribe to by ``kafka.pattern``; None without a pattern."""
    if kafka.pattern is None:
        return None
    return tuple(sorted(topic for topic in topics if matches(kafka.pattern, topic)))


def discover(
    admin: Upstream,
    settings: Settings,
    there: Collection[TopicPartition],
    known: set[str],
    known_topics: set[str],
    created: bool,
    now_ms: int,
) -> FoundPartitions | None:
    """Resolves where those partitions of ``there`` begin that are not ``known`` (as "topic/partition"); None if there is
    none.

    The starting policy holds for all partitions there are when the stream is created, and for those of a topic that is
    named in the configuration and new to the stream. A partition that appears later begins at its beginning, and so does
    one of a topic that a pattern, or a source of the user's own, finds later: nothing that was written before it was
    noticed is skipped. Raises UnreachableError and UnknownTopicError: ask again; UsageError for a policy that can't be
    followed.
    """
    kafka = settings.kafka
    new = {tp for tp in there if str(tp) not in known}
    if not new:
        return None
    topics = {tp.topic for tp in new}
    ids = admin.topic_ids(topics)
    named = kafka.pattern is None and not settings.custom_source
    by_policy = {tp for tp in new if not created or (tp.topic not in known_topics and named)}
    offsets: dict[TopicPartition, int] = {}
    if by_policy:
        offsets.update(admin.starting_offsets(kafka.starting_offsets, by_policy, settings.group))
    if new - by_policy:
        offsets.update(admin.starting_offsets("earliest", new - by_policy, settings.group))
    again = admin.topic_ids(topics)
    if again != ids or (any(ids.values()) and not all(ids.values())):
        raise UnreachableError(f"topics change while they are looked at: {', '.join(sorted(topics))}; asking again")
    starts = tuple(
        IncarnationStart(topic=tp.topic, partition=tp.partition, start=offsets[tp], topic_id=ids.get(tp.topic, ""))
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
    """Rule 5: a committed offset beyond the position, with metadata of our own (``forebay:<lineage>:<life>``), proves that
    the journal lost events; so does a commit of a later life or lineage, wherever it stands. ``positions``: partition →
    (life, position), read after ``committed``. Raises LostJournal. For any other value, :func:`foreign_commits`."""
    for tp, commit in committed.items():
        incarnation, position = positions[tp]
        own = _OWN.fullmatch(commit.metadata)
        if own is not None and (int(own[1]), int(own[2]), commit.offset) > (timeline, incarnation, position):
            raise LostJournal(
                f"group {group} holds a commit of ours of {tp} at {commit.offset} (lineage {own[1]}, life {own[2]}), but "
                f"the journal's position is {position} (lineage {timeline}, life {incarnation}): the journal has lost events. "
                "Nothing was changed. Bring back the journal, or look with `forebay recover`"
            )


def foreign_commits(
    committed: Mapping[TopicPartition, Committed], group: str, positions: Mapping[TopicPartition, int]
) -> dict[TopicPartition, str]:
    """A sentence for each partition whose committed offset somebody else has set elsewhere: it is ignored (rule 5), and
    replaced when a receiver commits again."""
    return {
        tp: f"{tp}: group {group} was set to offset {commit.offset} by somebody else; this changes nothing: intake goes on at "
        f"{positions[tp]}. If it is to go on there, `forebay offsets reset {tp} --to {commit.offset}`"
        for tp, commit in sorted(committed.items())
        if _OWN.fullmatch(commit.metadata) is None and commit.offset != positions[tp]
    }
