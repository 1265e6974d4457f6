"""A stream with orphans in its WAL, and an adopter that asks the tracker directly."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from driver.background.adoption import Adopter, Orphan, advanced
from driver.journal import events as ev
from driver.journal.state import ADOPTER
from forebay import messages as m
from forebay.model.digest import digest
from forebay.model.errors import TurnedAwayError, UnreachableError
from forebay.model.payload import encode_block
from forebay.model.records import RangeRows
from forebay.model.values import Block, BlockMeta, BlockRange, Handle, TopicPartition, block_id
from tests.support.state.rows import filler, source_batch
from tests.support.state.tracked import STREAM, TOPIC, Tracked, offsets
from wal.blocks import encode_meta
from wal.blocks.encryption import KeyRing
from wal.segments import layout
from wal.segments.frame import FrameKind
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import MemoryStorage

_names = itertools.count()


def orphan(start: int, end: int, incarnation: int = 1, checked: bool = False, partition: int = 0) -> Orphan:
    held = offsets(start, end, 1, partition, incarnation)
    meta = BlockMeta(
        block_id("r1", 1, end + 1),
        STREAM,
        "r1",
        1,
        end + 1,
        (held,),
        held.records,
        0,
        "h",
        checked=checked or msgspec.UNSET,
    )
    return Orphan(Handle(f"p{start}-{end}", 0, 1, 0), meta, held)


@dataclass
class Stream(Tracked):
    """A tracker, a WAL in memory, orphans in it, and an adopter that asks the tracker directly."""

    topic_id: str = "id-1"
    kafka_answers: bool = True
    keys: KeyRing | None = None  # the driver's
    sealed_by: KeyRing | None = None  # the orphans' receivers'
    between: dict[str, Any] = field(default_factory=dict)  # step → what happens just before it
    turned_away: tuple[type, ...] = ()  # requests that the decision loop refuses for now
    objects: bool = False  # the WAL's store keeps whole objects

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wal = MemoryStorage(f"adoption-{next(_names)}", appendable=not self.objects)
        self.adopter = self.new_adopter("d1")

    def new_adopter(self, instance: str) -> Adopter:
        uids = itertools.count(next(_names) * 1000)
        limits = SegmentLimits(size_bytes=1 << 20, age_seconds=1e9)
        return Adopter(
            self.wal,
            stream=STREAM,
            host="h1",
            instance_id=instance,
            compression="none",
            limits=limits,
            topic_ids=self.ask_topic_ids,
            wall_ms=lambda: self.now_ms,
            new_uid=lambda: next(uids),
            keys=lambda: self.keys,
        )

    def ask_topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        if not self.kafka_answers:
            raise UnreachableError("no broker answered")
        return dict.fromkeys(topics, self.topic_id)

    def orphan(
        self,
        epoch: int,
        *ranges: tuple[int, int, int, int],
        incarnation: int = 1,
        checked: bool = False,
        receiver: str = "r1",
        frames: int = 1,
    ) -> Block:
        """Durable in a segment of its own, not reported. ``ranges``: partition, from, until, token. ``frames``: so many times,
        as after a failed sync; the first one is returned."""
        number = self.sequence[receiver] = self.sequence.get(receiver, 0) + 1
        rows = [
            RangeRows(TopicPartition(TOPIC, p), [source_batch(filler(end - start, start))])
            for p, start, end, _ in ranges
        ]
        held = tuple(
            BlockRange(TOPIC, p, incarnation, start, end, end - start, 3, digest(r.batches), token)
            for (p, start, end, token), r in zip(ranges, rows, strict=True)
        )
        meta = BlockMeta(
            block_id(receiver, epoch, number), STREAM, receiver, epoch, number, held, sum(r.records for r in held), 1, "h1",
            checked=checked or msgspec.UNSET,
        )  # fmt: skip
        log = LogWriter(
            self.wal,
            lambda _: layout.block_segment(STREAM, receiver, epoch, number),
            identity=SegmentIdentity(STREAM, receiver, epoch, 1),
            limits=SegmentLimits(size_bytes=1 << 20, age_seconds=1e9),
            now=lambda: 0.0,
            new_uid=lambda: 7_000_000 + number,
        )
        payload = encode_block(rows, headers=False, compression="none")
        if self.sealed_by is not None:
            meta, payload = self.sealed_by.seal(meta, payload)
        pending, *_ = [log.append(FrameKind.BLOCK, encode_meta(meta), payload) for _ in range(frames)]
        log.sync()
        assert pending.handle is not None
        return Block(meta, pending.handle, local=False)

    def round(self, adopter: Adopter | None = None, until_step: str = "") -> float | None:
        """One round; ``until_step``: killed there."""
        steps = (adopter or self.adopter).round()
        answer: Any = None
        while True:
            try:
                wanted = advanced(steps, answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            answer = None
            if isinstance(wanted, self.turned_away):
                answer = TurnedAwayError("down to the reserve")
            elif not isinstance(wanted, str):
                answer = self.say(wanted)
            elif wanted == until_step:
                steps.close()
                return None
            elif wanted in self.between:
                self.between.pop(wanted)()

    def faulted(self, low: int = 40, **changes: Any) -> tuple[int, int]:
        """Play a receiver of partition 0 that reported that Kafka begins at ``low``. Return its epoch and token."""
        epoch = self.register("r2", "i2")
        token = self.claim(epoch, receiver="r2").view.token
        position = self.state.partitions["t/0"].position
        values = {"kind": "out-of-range", "low": low, "high": 90, **changes}
        self.say(
            m.Fault(receiver_id="r2", epoch=epoch, topic=TOPIC, partition=0, token=token, position=position, **values)
        )
        self.beat(epoch, "r2")
        return epoch, token

    def dead_writer(self) -> tuple[int, int]:
        """A receiver that held partitions 0 and 1 and ended; a new process has its id. Returns its epoch and token."""
        epoch = self.register("r1", "i1")
        token = self.claim(epoch, 0).view.token
        self.claim(epoch, 1)
        self.register("r1", "i1-again")
        return epoch, token

    def adopted(self) -> list[BlockRange]:
        return [
            r
            for e in self.events
            if isinstance(e, ev.BlockAdded) and e.block.meta.receiver_id == ADOPTER
            for r in e.block.meta.ranges
        ]

    @property
    def partition(self) -> Any:
        return self.state.partitions["t/0"]
