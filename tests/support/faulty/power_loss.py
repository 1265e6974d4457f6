"""Opens what a power loss leaves of a stream's disk, with the product, and compares it with what its processes said before.

:class:`Promises` collects from the log what left a process: reports that the driver accepted, offsets committed to Kafka, batches
that a job saw. :func:`losses` rebuilds the disk at each moment of the log, opens the journal as the next driver does, reads every
block that is still needed, and returns each promise that does not hold.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

import msgspec
import pyarrow as pa

from driver.journal import history
from driver.journal.log import opening
from driver.journal.state import State
from executor_agent.store import BlockStore
from forebay.messages import ReportAnswer, ReportRequest
from forebay.model.errors import ForebayError
from forebay.model.values import Block
from forebay.process.clock import SystemClock
from recovery.audit import audit
from tests.support.faulty.write_log import LOSSES, Disk, Loss, Record
from wal.blocks import block_of_frame, local_path, read_local
from wal.segments.scan import read_frame
from wal.storage import open_storage

#: topic, partition, incarnation, from, until
Range = tuple[str, int, int, int, int]
#: the metadata of a commit, with the timeline and the incarnation
_METADATA: Final = re.compile(rb"forebay:[0-9]+:([0-9]+)")
#: before the metadata's length in Kafka's OffsetCommit request: partition, offset, leader epoch
_COMMIT: Final = struct.Struct(">iqi")
_QUOTA_BYTES = 1 << 40


@dataclass(slots=True)
class Promises:
    """``accepted``: ids of blocks. ``committed``: (partition, incarnation) → offset. ``begun``: batches that a job began.
    ``seen``: batch → the ranges of the rows that its job stored."""

    ranges: dict[str, tuple[Range, ...]] = field(default_factory=dict)
    accepted: set[str] = field(default_factory=set)
    committed: dict[tuple[int, int], int] = field(default_factory=dict)
    begun: set[int] = field(default_factory=set)
    seen: dict[int, tuple[Range, ...]] = field(default_factory=dict)
    token: int = 0

    def learn(self, record: Record, disk: Disk) -> None:
        """Add what ``record`` tells another process or the user. ``disk``: with the record applied."""
        if record.kind == "N":
            self._learn_sent(record.data)
        folder, _, name = (record.other or record.path).rpartition("/")
        if folder == "seen" and record.kind == "C" and name.endswith(".begun"):
            self.begun.add(int(name.partition(".")[0]))
        if folder == "seen" and record.kind == "R" and name.endswith(".arrow"):
            metadata = pa.ipc.open_file(disk.now(record.other)).schema.metadata
            lives = json.loads(metadata[b"lives"])
            self.seen[int(name.partition(".")[0])] = joined(tuple(item) for item in lives)

    def _learn_sent(self, data: bytes) -> None:
        for metadata in _METADATA.finditer(data):
            # confluent-kafka counts a zero byte after the text; the request's version 8 and later has length + 1 in one byte
            compact = data[metadata.start() - 1] == len(metadata[0]) + 2
            at = metadata.start() - (1 if compact else 2) - _COMMIT.size
            partition, offset, _ = _COMMIT.unpack_from(data, at)
            where = partition, int(metadata[1])
            self.committed[where] = max(self.committed.get(where, 0), offset)
        if b'"accepted":true' in data:
            answer = msgspec.json.decode(data[data.index(b'{"results"') :], type=ReportAnswer)
            self.accepted |= {result.block_id for result in answer.results if result.accepted}
        elif b'"blocks":[{' in data and b'"receiver_id"' in data:
            report = msgspec.json.decode(data[data.index(b"{") :], type=ReportRequest)
            for block in report.blocks:
                self.ranges[block.id] = _ranges(block)
                self.token = max(self.token, *(r.token for r in block.meta.ranges))


def joined(ranges: Iterable[Range]) -> tuple[Range, ...]:
    """Return ``ranges`` in order, and those that touch as one."""
    found: list[Range] = []
    for one in sorted(ranges):
        if found and found[-1][:3] == one[:3] and found[-1][4] == one[3]:
            found[-1] = (*one[:3], found[-1][3], one[4])
        else:
            found.append(one)
    return tuple(found)


def _ranges(block: Block) -> tuple[Range, ...]:
    return tuple((r.topic, r.partition, r.incarnation, r.from_offset, r.until_offset) for r in block.meta.ranges)


@dataclass(slots=True)
class Opened:
    """What the product finds on a disk. ``fault``: why it can't go on; "" if it can."""

    fault: str = ""
    positions: dict[tuple[str, int], tuple[int, int]] = field(default_factory=dict)
    batches: dict[int, tuple[Range, ...]] = field(default_factory=dict)
    tokens: int = 0

    def broken(self, promises: Promises) -> Iterator[str]:
        """Return one sentence for each promise that does not hold."""
        if self.fault:
            yield self.fault
            return
        for block_id in promises.accepted:
            for topic, partition, incarnation, _, until in promises.ranges.get(block_id, ()):
                if self.positions.get((topic, partition), (0, 0)) < (incarnation, until):
                    yield f"block {block_id} was accepted, and {topic}/{partition} is not at {until}"
        at = {(partition, number): offset for (_, partition), (number, offset) in self.positions.items()}
        for where, offset in promises.committed.items():
            if at.get(where, 0) < offset:
                yield f"offset {offset} of partition {where[0]} was committed; the journal is at {at.get(where, 0)}"
        for batch_id in promises.begun - self.batches.keys():
            yield f"a job began batch {batch_id}, which the journal does not know"
        for batch_id, ranges in promises.seen.items():
            if self.batches.get(batch_id, ranges) != ranges:
                yield f"the rows of batch {batch_id} are others: {self.batches[batch_id]}, a job saw {ranges}"
        if self.tokens < promises.token:
            yield f"token {promises.token} was used, and the journal gave only {self.tokens}"


def open_disk(folder: Path, stream: str, has_wal: bool) -> Opened:
    """Open the stream's files below ``folder`` as the next driver and agent do, and read what they need."""
    try:
        return _opened(folder, stream, has_wal)
    except (ForebayError, FileNotFoundError) as error:
        return Opened(fault=f"{type(error).__name__}: {error}")


def _opened(folder: Path, stream: str, has_wal: bool) -> Opened:
    storage, wal = open_storage(f"file://{folder}/journal"), open_storage(f"file://{folder}/wal")
    led, state = opening.lead(storage, stream, "test", 1_000, lambda: 1.0, lambda: 99, wal=wal if has_wal else None)
    led.close()
    report = audit(storage, stream)
    if not report.clean:
        return Opened(fault=f"the audit found {report.findings}")
    BlockStore(folder / "blocks", quota_bytes=_QUOTA_BYTES, clock=SystemClock()).open()
    for block in _needed(state):
        if block.in_wal:
            found = block_of_frame(read_frame(wal, block.handle), block.handle.path).meta
        else:
            found = read_local(local_path(folder / "blocks", stream, block.id)).meta
        if found != block.meta:
            return Opened(fault=f"block {block.id} is another one where the journal names it")
    batches = {
        batch.batch_id: joined(one for block_id in batch.block_ids for one in _ranges(state.blocks[block_id]))
        for batch in state.unfinished()
    }
    for finished in (*history.finished(state, windows=False), *history.read(storage, stream)):
        batches[finished.batch_id] = joined(
            (r.topic, r.partition, r.incarnation, r.from_offset, r.until_offset) for r in finished.ranges
        )
    return Opened(
        positions={(p.topic, p.partition): (p.incarnation.number, p.position) for p in state.partitions.values()},
        batches=batches,
        tokens=max((p.token for p in state.partitions.values()), default=0),
    )


def _needed(state: State) -> Iterator[Block]:
    for block_id in state.waiting:
        yield state.blocks[block_id]
    for batch in state.unfinished():
        for block_id in batch.block_ids:
            yield state.blocks[block_id]


@dataclass(frozen=True, slots=True)
class Finding:
    """``after``: number of records of the log before the power failed."""

    after: int
    loss: str
    sentence: str


@dataclass(slots=True)
class Replay:
    """The replay of one log. ``moments``, ``disks``: how many moments were replayed, and how many different disks were opened."""

    stream: str
    folder: Path
    wal: bool = True
    seed: int = 0
    ignored: tuple[str, ...] = ()
    moments: int = 0
    disks: int = 0
    findings: list[Finding] = field(default_factory=list)
    promises: Promises = field(default_factory=Promises)
    _known: dict[bytes, Opened] = field(default_factory=dict)

    def run(self, records: Sequence[Record], *, losses: Sequence[Loss] = LOSSES, sample: int = 0) -> Replay:
        """Let the power fail after every record, or after ``sample`` of them (the last one included), and collect findings."""
        random = Random(self.seed)
        places = list(range(1, len(records) + 1))
        if sample and sample < len(places):
            places = sorted({*random.sample(places, sample - 1), places[-1]})
        chosen = frozenset(places)
        disk = Disk(self.ignored)
        for number, record in enumerate(records, 1):
            disk.apply(record)
            self.promises.learn(record, disk)
            if number in chosen:
                self.moments += 1
                for loss in losses:
                    sentences = self._open(disk, loss, random).broken(self.promises)
                    self.findings += (Finding(number, loss.name, sentence) for sentence in sentences)
        return self

    def _open(self, disk: Disk, loss: Loss, random: Random) -> Opened:
        files = {
            path: data
            for path, data in disk.after_power_loss(loss, random)
            if path.partition("/")[0] in ("journal", "wal", "blocks")
        }
        digest = hashlib.blake2b(digest_size=16)
        for path in sorted(files):
            digest.update(b"%s\0%d\0" % (path.encode(), len(files[path])) + files[path])
        key = digest.digest()
        if key not in self._known:
            self.disks += 1
            shutil.rmtree(self.folder, ignore_errors=True)
            for name in ("journal", "wal", "blocks"):
                (self.folder / name).mkdir(parents=True)
            for path, data in files.items():
                place = self.folder / path
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_bytes(data)
            self._known[key] = open_disk(self.folder, self.stream, self.wal)
        return self._known[key]
