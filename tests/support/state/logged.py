"""A stream on disk as driver and receivers write it: journal, WAL with several receivers, epochs and segments, local copies.

Blocks are real ones (Arrow payloads with digests), decided by the real tracker. :class:`MadeUpKafka` holds what was taken in.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from driver.journal import history
from driver.journal.log import opening
from driver.journal.log import reading as journal
from driver.journal.state import State
from driver.journal.transitions import apply
from driver.tracker.requests import Archived
from forebay import messages as m
from forebay.kafka.consume.block_ranges import Wanted
from forebay.model.digest import digest
from forebay.model.errors import ForebayError
from forebay.model.identifiers import numbered
from forebay.model.payload import encode_block
from forebay.model.records import RangeRows
from forebay.model.values import Block, BlockMeta, BlockRange, TopicPartition, block_id
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from tests.support.state.rows import Row, source_batch
from tests.support.state.tracked import STREAM, TOPIC, Tracked
from wal.blocks import encode_meta
from wal.blocks.digests import completed
from wal.blocks.encryption import KeyRing
from wal.blocks.local_writing import write_local
from wal.segments.frame import FrameKind
from wal.segments.layout import block_segment
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import open_storage

_numbers = itertools.count(1)


@dataclass
class MadeUpKafka:
    """Holds every record that was written, except the offsets in ``gone``."""

    gone: set[tuple[int, int]] = field(default_factory=set)  # (partition, offset)
    other_values: bool = False  # the offsets are there, the records are not those that were taken in

    def rows(self, partition: int, start: int, until: int) -> list[Row]:
        return [
            Row(b"k%d" % n, b"value %d of %d," % (n, partition) * 3, n, 1_700_000_000_000 + n)
            for n in range(start, until)
        ]

    def holds(self, r: BlockRange) -> bool:
        return not any((r.partition, n) in self.gone for n in range(r.from_offset, r.until_offset))

    def read_ranges(self, wanted: Sequence[Wanted], headers: bool) -> list[RangeRows]:
        made = []
        for asked in wanted:
            r = asked.range
            assert asked.topic_id == "id-1"
            if not self.holds(r):
                raise ForebayError(f"Kafka no longer holds {r.label}")
            rows = self.rows(r.partition, r.from_offset, r.until_offset)
            if self.other_values:
                rows = [row._replace(value=b"another") for row in rows]
            made.append(RangeRows(r.tp, [source_batch(rows, headers)]))
        return made


class Logged:
    """A stream on disk.

    ``objects``: the WAL is a store of whole objects. ``keep`` writes the journal with all decisions so far.
    """

    def __init__(self, root: Path, *, objects: bool = False, partitions: int = 3) -> None:
        self.root = root
        self.kafka = MadeUpKafka()
        self.tracked = Tracked(partitions=partitions)
        wal_url = f"memory://logged-{next(_numbers)}?objects" if objects else f"file://{root}/wal"
        self.settings: Settings = from_values(
            {
                "stream": STREAM,
                "kafka": {"topics": [TOPIC], "bootstrap.servers": "127.0.0.1:1"},
                "wal": {"url": wal_url},
                "driver": {"journal": f"file://{root}/journal", "url": "http://127.0.0.1:1"},
                "agent": {"blocks": f"{root}/blocks", "url": "http://127.0.0.1:2", "host": "h1"},
            }
        )
        self.wal = open_storage(wal_url)
        self.journal = open_storage(f"file://{root}/journal")
        self.accepted: dict[str, Block] = {}
        self.orphans: dict[str, Block] = {}
        self.payloads: dict[str, bytes] = {}
        self.keys: KeyRing | None = None  # set: what is stored from then on is encrypted
        self._uids = itertools.count(5)
        self._writers: dict[str, tuple[int, LogWriter]] = {}
        self._kept = 0

    # ---- writing -----------------------------------------------------------------------------------------------------

    def receiver(self, name: str) -> int:
        """Register ``name`` without partitions. A second registration gets a new epoch and fences the first."""
        self.close(name)
        epoch = self.tracked.register(name, instance=f"i{next(_numbers)}")
        self._open(name, epoch, 1)
        return epoch

    def _open(self, name: str, epoch: int, first: int) -> None:
        writer = LogWriter(
            self.wal,
            lambda sequence: block_segment(STREAM, name, epoch, sequence),
            identity=SegmentIdentity(STREAM, name, epoch, 1),
            limits=SegmentLimits(size_bytes=1_000_000, age_seconds=1000.0),
            now=lambda: 1.0,
            new_uid=lambda: next(self._uids),
            first_sequence=first,
        )
        self._writers[name] = (epoch, writer)

    def roll(self, name: str) -> None:
        """Let the receiver's next block begin a segment."""
        epoch, writer = self._writers[name]
        writer.close()
        self._open(name, epoch, writer.next_sequence)

    def close(self, name: str) -> None:
        if name in self._writers:
            self._writers.pop(name)[1].close()

    def store(self, name: str, counts: dict[int, int], *, local: bool = False) -> Block:
        """Store a durable, unreported block with this number of records of each partition, from its position on."""
        epoch, writer = self._writers[name]
        ranges, rows = [], []
        for partition, count in counts.items():
            known = self.tracked.state.partitions[f"{TOPIC}/{partition}"]
            if known.owner != name:
                self.tracked.claim(epoch, partition, name)
            batch = source_batch(self.kafka.rows(partition, known.position, known.position + count))
            rows.append(RangeRows(TopicPartition(TOPIC, partition), [batch]))
            ranges.append(
                BlockRange(
                    TOPIC, partition, 1, known.position, known.position + count, count, 0, digest([batch]), known.token,
                    max_timestamp_ms=1_700_000_000_000 + known.position + count - 1,
                )
            )  # fmt: skip
        number = self.tracked.sequence[name] = self.tracked.sequence.get(name, 0) + 1
        meta = BlockMeta(
            block_id(name, epoch, number), STREAM, name, epoch, number, tuple(ranges), sum(counts.values()), 1, "h1"
        )
        meta, payload = completed(meta, encode_block(rows, False), self.keys)
        pending = writer.append(FrameKind.BLOCK, encode_meta(meta), payload)
        writer.sync()
        assert pending.handle is not None
        if local:
            write_local(self.settings.agent.blocks, meta, payload)
        self.payloads[meta.id] = payload.to_pybytes()
        return Block(meta, pending.handle, local)

    def take_in(self, name: str, counts: dict[int, int], *, local: bool = False) -> Block:
        block = self.store(name, counts, local=local)
        request = m.ReportRequest(receiver_id=name, epoch=block.meta.epoch, blocks=(block,))
        (result,) = self.tracked.say(request).results
        assert result.accepted, result
        self.accepted[block.id] = block
        return block

    def orphan(self, name: str, counts: dict[int, int], *, local: bool = False) -> Block:
        block = self.store(name, counts, local=local)
        self.orphans[block.id] = block
        return block

    def finish_batch(self) -> int:
        """Complete a batch of all waiting blocks, and move it to the history."""
        batch = self.tracked.batch()
        self.tracked.complete(batch)
        writer = history.HistoryWriter(
            self.journal,
            STREAM,
            numbered(1, next(_numbers)),
            segment_bytes=1_000_000,
            now=lambda: 1.0,
            new_uid=lambda: next(self._uids),
        )
        writer.append(history.finished(self.tracked.state))
        writer.close()
        self.tracked.say(Archived((batch,)))
        return batch

    def keep(self) -> None:
        led, state = opening.lead(self.journal, STREAM, "test", 1, lambda: 1.0, lambda: next(self._uids), wal=self.wal)
        events = self.tracked.events[self._kept :]
        self._kept += len(events)
        for event in events:
            apply(state, event)
        led.append(events)
        led.sync()
        led.close()

    # ---- looking -----------------------------------------------------------------------------------------------------

    def state(self) -> State:
        state = journal.read(self.journal, STREAM).state
        assert state is not None
        return state

    def segments(self) -> dict[str, bytes]:
        return {path: self.wal.read(path) for path in self.wal.list(f"{STREAM}/blocks")}

    def local_file(self, block: Block) -> Path:
        return Path(self.settings.agent.blocks, STREAM, f"{block.id}.block")

    def flip(self, path: str, at: int, mask: int = 1) -> None:
        data = bytearray(self.wal.read(path))
        data[at] ^= mask
        self.overwrite(path, bytes(data))

    def overwrite(self, path: str, data: bytes) -> None:
        """Change a file as a fault would: a process that has it open keeps this file."""
        if self.wal.appendable:
            Path(self.root, "wal", path).write_bytes(data)
        else:
            self.wal.replace(path, data)

    def damage(self, block: Block) -> None:
        """Flip one bit of the payload at the place that the journal names."""
        self.flip(block.handle.path, block.handle.offset + block.handle.length - 3)
