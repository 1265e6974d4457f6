"""A model of Kafka: logs with gaps, markers, retention and recreation; one consumer group with generations.

It keeps every record that was ever in a log, so that the invariants can compare a range with it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from forebay.model.values import TopicPartition
from receiver.sources.source import CommitPoint

RECORD, MARKER = "record", "marker"


@dataclass(slots=True)
class Entry:
    """What is, or was, at an offset. ``compacted``: removed since, which is no loss."""

    kind: str
    value: bytes
    compacted: bool = False


@dataclass(slots=True)
class Log:
    """One partition of one incarnation of a topic. Only retention moves ``low``."""

    topic_id: str
    entries: list[Entry] = field(default_factory=list)
    low: int = 0

    @property
    def high(self) -> int:
        return len(self.entries)

    def readable(self, offset: int, limit: int) -> list[int]:
        """Return the offsets of up to ``limit`` records at or after ``offset``."""
        found = []
        for at in range(max(offset, self.low), self.high):
            entry = self.entries[at]
            if entry.kind == RECORD and not entry.compacted:
                found.append(at)
                if len(found) == limit:
                    break
        return found


class Topic:
    """``logs``: topic id → one log per partition; ``topic_id`` is the newest incarnation's."""

    def __init__(self, name: str, partitions: int) -> None:
        self.name = name
        self.partitions = partitions
        self.incarnation = 0
        self.logs: dict[str, list[Log]] = {}
        self.recreate()

    @property
    def topic_id(self) -> str:
        return f"{self.name}-id-{self.incarnation}"

    def recreate(self) -> None:
        """Delete and create the topic again: the same offsets then mean other records."""
        self.incarnation += 1
        self.logs[self.topic_id] = [Log(self.topic_id) for _ in range(self.partitions)]

    def log(self, partition: int) -> Log:
        return self.logs[self.topic_id][partition]

    def produce(self, partition: int, records: int) -> None:
        log = self.log(partition)
        for _ in range(records):
            log.entries.append(Entry(RECORD, f"{self.topic_id}/{partition}/{log.high}".encode()))

    def end_transaction(self, partition: int) -> None:
        """Append a marker, which takes an offset and is no record."""
        self.log(partition).entries.append(Entry(MARKER, b""))

    def compact(self, partition: int, offsets: Iterable[int]) -> None:
        """Remove records; the last one always stays."""
        log = self.log(partition)
        for at in offsets:
            if log.low <= at < log.high - 1 and log.entries[at].kind == RECORD:
                log.entries[at].compacted = True

    def retain(self, partition: int, low: int) -> None:
        log = self.log(partition)
        log.low = max(log.low, min(low, log.high))


@dataclass(frozen=True, slots=True)
class Committed:
    offset: int
    metadata: str


class Group:
    """The coordinator of the group.

    A member that sends nothing stays until it expires. A rebalance ends when every member has joined. As in a broker,
    commits are checked only by member and generation.
    """

    def __init__(self, partitions: Iterable[TopicPartition], cooperative: bool) -> None:
        self.cooperative = cooperative
        self.partitions = sorted(partitions)
        self.generation = 0
        self.turn = 0  # each change of members moves partitions, more often than a real assignor would
        self.rebalancing = False
        self.members: dict[
            str, frozenset[TopicPartition]
        ] = {}  # the partitions that each member said it owns when it joined
        self.joined: set[str] = set()
        self.assignment: dict[str, frozenset[TopicPartition]] = {}
        self.committed: dict[TopicPartition, Committed] = {}
        self.commits = 0

    def join(self, member: str, owned: Iterable[TopicPartition]) -> None:
        """A new member joins, or a known one answers or requests a rebalance."""
        if not self.rebalancing:
            self._begin()
        if member not in self.members:
            self.turn += 1
        self.members[member] = frozenset(owned)
        self.joined.add(member)
        self._complete()

    def rebalance(self) -> None:
        """Begin a rebalance without a reason that the members know."""
        self.turn += 1
        self._begin()

    def _begin(self) -> None:
        self.rebalancing = True
        self.joined = set()

    def leave(self, member: str) -> None:
        """Remove a member that left or expired: its partitions are free immediately."""
        if self.members.pop(member, None) is None:
            return
        self.joined.discard(member)
        self.assignment.pop(member, None)
        self.turn += 1
        if not self.rebalancing:
            self._begin()
        self._complete()

    def _complete(self) -> None:
        if not self.joined >= self.members.keys():
            return
        self.generation += 1
        self.rebalancing = False
        self.joined = set()
        self.assignment = {}
        names = sorted(self.members)
        for at, tp in enumerate(self.partitions):
            if names:
                wanted = names[(at + self.turn) % len(names)]
                self.assignment[wanted] = self.assignment.get(wanted, frozenset()) | {tp}
        if (
            self.cooperative
        ):  # partitions that another member still owns are assigned by the rebalance after its revocation
            for name in names:
                others = frozenset().union(*(owned for other, owned in self.members.items() if other != name))
                self.assignment[name] = self.assignment.get(name, frozenset()) - others

    def commit(
        self, member: str | None, generation: int, positions: Mapping[TopicPartition, CommitPoint]
    ) -> dict[TopicPartition, str]:
        """Return partition → error; {} if all were committed."""
        if member is None or member not in self.members:
            return dict.fromkeys(positions, "UNKNOWN_MEMBER_ID")
        if generation != self.generation:
            return dict.fromkeys(positions, "ILLEGAL_GENERATION")
        for tp, point in positions.items():
            self.committed[tp] = Committed(point.offset, point.metadata)
        self.commits += 1
        return {}


class Kafka:
    """The cluster: topics, and one group over all their partitions."""

    def __init__(self, topics: Mapping[str, int], cooperative: bool) -> None:
        self.topics = {name: Topic(name, partitions) for name, partitions in topics.items()}
        self.group = Group(self.partitions(), cooperative)
        self.version = 0

    def partitions(self) -> list[TopicPartition]:
        return [TopicPartition(t.name, p) for t in self.topics.values() for p in range(t.partitions)]

    def log(self, tp: TopicPartition) -> Log:
        return self.topics[tp.topic].log(tp.partition)

    def topic_id(self, topic: str) -> str:
        return self.topics[topic].topic_id

    def log_of(self, tp: TopicPartition, topic_id: str) -> Log:
        """Return the log of an incarnation, which may be deleted by now."""
        return self.topics[tp.topic].logs[topic_id][tp.partition]
