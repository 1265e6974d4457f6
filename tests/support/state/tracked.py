"""A tracker with made-up receivers and blocks, for tests of the driver's decisions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

from driver.decisions.allocation import BatchLimits
from driver.decisions.rate_sharing import RateSharing
from driver.journal import events as ev
from driver.journal.state import State
from driver.tracker import Decision, Tracker, TrackerOptions
from driver.tracker.requests import (
    Allocate,
    Answered,
    AnswerType,
    Archived,
    Complete,
    Copied,
    FoundPartitions,
    NothingToAdopt,
    Request,
    Search,
    Searches,
)
from forebay import messages as m
from forebay.model.identifiers import numbered
from forebay.model.values import Block, BlockMeta, BlockRange, Handle, TopicPartition, block_id
from wal.decisions.retention import RetentionLimits

STREAM = "flights"
TOPIC = "t"


def tp(partition: int = 0) -> TopicPartition:
    return TopicPartition(TOPIC, partition)


@dataclass
class Tracked:
    """A tracker with a simulated receiver. ``say`` decides a request and keeps its events."""

    partitions: int = 2
    on_gap: str = "stop"
    max_queued_batches: int = 4
    retention_ms: int = 0
    retention_bytes: int = 0
    max_batch_records: int = 0
    sharing: RateSharing | None = None
    events: list[ev.Event] = field(default_factory=list)
    now_ms: int = 1_000

    def __post_init__(self) -> None:
        self.state = State(stream=STREAM, timeline=1)
        self.tracker = Tracker(
            self.state,
            numbered(1, 1),
            tracker_options(
                on_gap=self.on_gap,
                max_queued_batches=self.max_queued_batches,
                batch_limits=BatchLimits(max_records=self.max_batch_records),
                retention=RetentionLimits(retention_ms=self.retention_ms, retention_bytes=self.retention_bytes),
            ),
            sharing=self.sharing,
        )
        self.sequence: dict[str, int] = {}
        self.claims = 0
        starts = tuple(ev.IncarnationStart(TOPIC, p, 0, "id-1") for p in range(self.partitions))
        self.say(FoundPartitions(starts, self.now_ms, "earliest"))

    def decide(self, request: Request) -> Decision:
        decision = self.tracker.decide(request, self.now_ms / 1000, self.now_ms)
        self.events += decision.events
        return decision

    def say(self, request: Request) -> Any:
        return self.decide(request).answer

    def ask(self, request: Answered[AnswerType], /) -> AnswerType:
        """Decide a request of the driver's own threads: ``say`` with the type of the answer."""
        answer: AnswerType = self.say(cast(Request, request))
        return answer

    def register(self, receiver: str = "r1", instance: str = "i1", host: str = "h1") -> int:
        request = m.RegisterRequest(
            stream=STREAM, receiver_id=receiver, host=host, instance_id=instance, release="test"
        )
        return int(self.say(request).epoch)

    def lookup(self, epoch: int, partition: int = 0, receiver: str = "r1") -> m.PartitionView:
        answer = self.say(m.LookupRequest(receiver_id=receiver, epoch=epoch, partitions=(tp(partition),)))
        return answer.partitions[0]  # type: ignore[no-any-return]

    def claim(self, epoch: int, partition: int = 0, receiver: str = "r1", known: int | None = None) -> m.ClaimGrant:
        known = self.lookup(epoch, partition, receiver).token if known is None else known
        ask = m.ClaimAsk(topic=TOPIC, partition=partition, known_token=known)
        self.claims += 1
        request = m.ClaimRequest(receiver_id=receiver, epoch=epoch, claims=(ask,), number=self.claims)
        return self.say(request).claims[0]  # type: ignore[no-any-return]

    def beat(
        self,
        epoch: int,
        receiver: str = "r1",
        claims_done: int | None = None,
        holding: tuple[int, ...] = (),
        seen: int = 0,
    ) -> tuple[m.Command, ...]:
        """Send a heartbeat.

        ``claims_done`` is by default all claims so far; tokens of partition 0 are still held; commands are acknowledged up to
        ``seen``.
        """
        request = m.HeartbeatRequest(
            receiver_id=receiver,
            epoch=epoch,
            state="active",
            detail="",
            acknowledged=seen,
            buffered_bytes=0,
            records=0,
            claims_done=self.claims if claims_done is None else claims_done,
            holding=tuple(m.Holding(topic=TOPIC, partition=0, token=token) for token in holding),
        )
        return self.say(request).commands  # type: ignore[no-any-return]

    def searches(self) -> tuple[Search, ...]:
        return self.say(Searches())  # type: ignore[no-any-return]

    def search_finding_nothing(self, epoch: int, adoptable_from: int = -1) -> bool:
        """Let the receiver settle and the search of the WAL find nothing. Return whether the fault is decided now."""
        self.beat(epoch)
        (search,) = self.searches()
        return bool(self.say(NothingToAdopt(search, adoptable_from)))

    def block(
        self, epoch: int, ranges: list[BlockRange], receiver: str = "r1", local: bool = False, path: str = ""
    ) -> Block:
        number = self.sequence[receiver] = self.sequence.get(receiver, 0) + 1
        meta = BlockMeta(
            id=block_id(receiver, epoch, number),
            stream=STREAM,
            receiver_id=receiver,
            epoch=epoch,
            sequence=number,
            ranges=tuple(ranges),
            records=sum(r.records for r in ranges),
            created_ms=self.now_ms,
            host=self.state.receivers[receiver].host if receiver in self.state.receivers else "h1",
        )
        return Block(
            meta, Handle(path or f"{STREAM}/blocks/{receiver}/{epoch:016x}/00000000.seg", number * 1000, 1000, 7), local
        )

    def report(self, epoch: int, *blocks: Block, receiver: str = "r1") -> tuple[m.BlockResult, ...]:
        answer = self.say(m.ReportRequest(receiver_id=receiver, epoch=epoch, blocks=blocks))
        return answer.results  # type: ignore[no-any-return]

    def take_in(self, epoch: int, token: int, until: int, partition: int = 0, **block: Any) -> Block:
        """Report offsets from the position to ``until`` in one block, which must be accepted."""
        start = self.state.partitions[f"{TOPIC}/{partition}"].position
        made = self.block(epoch, [offsets(start, until, token, partition)], **block)
        (result,) = self.report(epoch, made, receiver=made.meta.receiver_id)
        assert result.accepted, result
        return made

    def batch(self) -> int:
        batch_id = self.say(Allocate(self.now_ms, 2))
        assert batch_id is not None
        return int(batch_id)

    def complete(self, batch_id: int) -> None:
        self.say(Complete(batch_id, self.now_ms, 1))

    def archive(self, *batch_ids: int) -> None:
        self.say(Archived(batch_ids))

    def copy(self, times: int = 2) -> None:
        """Write snapshot copies of the current state beside the WAL."""
        for _ in range(times):
            following = self.state.events
            self.say(Copied(following, f"{STREAM}/snapshots/{numbered(1, 1):016x}/{following + 1:08}.seg"))


def offsets(
    start: int, until: int, token: int, partition: int = 0, incarnation: int = 1, records: int | None = None
) -> BlockRange:
    return BlockRange(
        topic=TOPIC,
        partition=partition,
        incarnation=incarnation,
        from_offset=start,
        until_offset=until,
        records=until - start if records is None else records,
        leader_epoch=0,
        digest="0" * 16,
        token=token,
    )


def tracker_options(**changes: Any) -> TrackerOptions:
    """Options that ask a person about each gap, queue up to four batches, and delete nothing by age or size."""
    return TrackerOptions(
        **{"on_gap": "stop", "max_queued_batches": 4, "retention": RetentionLimits(retention_ms=0), **changes}
    )


def fault(epoch: int, token: int, **changes: object) -> m.Fault:
    values: dict[str, object] = {
        "receiver_id": "r1",
        "epoch": epoch,
        "topic": TOPIC,
        "partition": 0,
        "token": token,
        "kind": "out-of-range",
        "position": 0,
        "low": 40,
        "high": 90,
    }
    return m.Fault(**{**values, **changes})  # type: ignore[arg-type]
