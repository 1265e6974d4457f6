"""A stream whose journal is lost: the WAL with its snapshot copies, what Kafka holds, and the rebuild."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec

from driver.background.snapshot_copies import SnapshotCopies
from driver.journal.claims import Claim
from driver.journal.files import claim_path
from driver.journal.log import opening
from driver.journal.log.encoding import EncodedState
from driver.journal.state import State
from driver.journal.transitions import apply
from driver.tracker.requests import Copied
from forebay.model.errors import UnreachableError
from forebay.model.identifiers import numbered, timeline_of
from forebay.model.values import Block, BlockRange, Handle
from forebay.process.clock import ManualClock
from recovery import rebuild
from recovery.rebuild import RebuildPlan
from tests.support.state.tracked import STREAM, Tracked
from wal.blocks import encode_meta
from wal.decisions.retention import RetentionLimits
from wal.segments import layout
from wal.segments.frame import FrameKind
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import MemoryStorage, Storage

numbers = itertools.count(1)

FOREVER = RetentionLimits(retention_ms=1 << 40)


@dataclass
class Lost:
    """A stream with its WAL. Its journal is what ``t`` decided; it is written only by :meth:`keep`."""

    journal: Any = None
    wal: Any = None
    t: Tracked = field(default_factory=lambda: Tracked(on_gap="record"))
    writers: dict[int, LogWriter] = field(default_factory=dict)
    in_kafka: str | None = "id-1"  # the id of its topics; None: Kafka does not answer

    def __post_init__(self) -> None:
        name = f"rebuild-{next(numbers)}"
        self.journal = self.journal or MemoryStorage(f"{name}-journal")
        self.wal = self.wal or MemoryStorage(f"{name}-wal")
        self.wal.put_new(layout.timeline_marker(STREAM, 1), self.claim)
        self.copies = SnapshotCopies(
            self.t.ask,
            self.wal,
            stream=STREAM,
            epoch=numbered(1, 1),
            clock=ManualClock(1_000),
            interval_seconds=0.0,
            limits=FOREVER,
            new_uid=lambda: next(numbers),
        )

    @property
    def claim(self) -> bytes:
        return Claim(numbered(1, 1), "test", 1).encode()

    def copy(self) -> str:
        state = EncodedState.of(self.t.state)
        path = self.copies.write(state)
        self.t.say(Copied(state.next, path))
        return path

    def keep(self) -> None:
        """Writes the journal."""
        led, state = opening.lead(self.journal, STREAM, "test", 1, lambda: 1.0, lambda: next(numbers))
        self.wal.delete(layout.timeline_marker(STREAM, 1))
        self.wal.put_new(layout.timeline_marker(STREAM, 1), self.journal.read(claim_path(STREAM, numbered(1, 1))))
        for event in self.t.events:
            apply(state, event)
        led.append(self.t.events)
        led.sync()
        led.close()

    def topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        if self.in_kafka is None:
            raise UnreachableError("no broker answered")
        return dict.fromkeys(topics, self.in_kafka)

    def write(self, epoch: int, *ranges: BlockRange, receiver: str = "r1", checked: bool = False) -> Block:
        """Write a block to the WAL without a report."""
        made = self.t.block(epoch, list(ranges), receiver=receiver)
        if checked:
            made = msgspec.structs.replace(made, meta=msgspec.structs.replace(made.meta, checked=True))
        if epoch not in self.writers:
            self.writers[epoch] = LogWriter(
                self.wal,
                lambda sequence: layout.block_segment(STREAM, receiver, epoch, sequence),
                identity=SegmentIdentity(STREAM, receiver, epoch, timeline_of(epoch)),
                limits=SegmentLimits(size_bytes=1, age_seconds=1e9),
                now=lambda: 1.0,
                new_uid=lambda: next(numbers),
            )
        pending = self.writers[epoch].append(FrameKind.BLOCK, encode_meta(made.meta), b"payload " * 20)
        self.writers[epoch].sync()
        assert pending.handle is not None
        return msgspec.structs.replace(made, handle=pending.handle)

    def take_in(self, epoch: int, *ranges: BlockRange, receiver: str = "r1") -> Block:
        block = self.write(epoch, *ranges, receiver=receiver)
        (result,) = self.t.report(epoch, block, receiver=receiver)
        assert result.accepted, result
        return block

    def rebuild(self) -> RebuildPlan:
        return rebuild.rebuild(
            self.journal,
            self.wal,
            stream=STREAM,
            topic_ids=self.topic_ids,
            owner="test",
            wall_ms=9,
            now=lambda: 1.0,
            new_uid=lambda: next(numbers),
        )

    def lead(self) -> State:
        return opening.lead(self.journal, STREAM, "test", 1, lambda: 1.0, lambda: next(numbers), wal=self.wal)[1]


def damage(storage: Storage, handle: Handle) -> None:
    whole = bytearray(storage.read(handle.path))
    whole[handle.offset + handle.length - 1] ^= 1
    storage.replace(handle.path, bytes(whole))
