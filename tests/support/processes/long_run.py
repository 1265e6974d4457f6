"""A stream's driver over a long time, as fast as possible, under a clock that the test moves.

Decision loop, journal, history, snapshot copies and clean-up work on real files. One receiver and one agent are simulated; there
is no HTTP and no job. :meth:`LongRun.sizes` counts everything that could grow with the number of batches.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from driver.background.cleaner import CleanedWal, Cleaner
from driver.background.snapshot_copies import SnapshotCopies
from driver.decision_loop.loop import DriverLoop
from driver.journal.events import IncarnationStart
from driver.journal.history import HistoryWriter
from driver.journal.log import opening as journal
from driver.journal.retention_clock import RetentionClock, newest_completion_ms
from driver.journal.state import State
from driver.tracker import Tracker
from driver.tracker.requests import Allocate, Complete, FoundPartitions
from forebay import messages as m
from forebay.model.values import Block, BlockMeta, BlockRange, TopicPartition, block_id
from forebay.process.clock import ManualClock
from tests.support.state.reads import ReadBy
from tests.support.state.shown import shown
from tests.support.state.tracked import tracker_options
from wal.blocks import encode_meta
from wal.decisions.retention import RetentionLimits
from wal.segments import layout
from wal.segments.frame import FrameKind
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import open_storage

STREAM, TOPIC, HOST = "s", "t", "h1"
PARTITIONS = 4
SEGMENT_BYTES = 10_000
#: batches between two rounds of clean-up
ROUND_BATCHES = 10
_NUMBERS = itertools.count(1)
#: what a status shows of the job, without one


@dataclass
class LongRun:
    """A batch per second of one block with ranges of all partitions; the receiver is a new process after so many."""

    directory: Path
    retention_seconds: float = 60.0
    receiver_batches: int = 500
    clock: ManualClock = field(default_factory=ManualClock)
    _failure: BaseException | None = None

    @contextmanager
    def opened(self) -> Iterator[LongRun]:
        wall_seconds = lambda: self.clock.wall_ms() / 1000.0  # noqa: E731
        uid = lambda: next(_NUMBERS)  # noqa: E731
        kept = open_storage(f"file://{self.directory}/journal")
        self._wal = open_storage(f"file://{self.directory}/wal")
        self._journal, state = journal.lead(kept, STREAM, "d", self.clock.wall_ms(), wall_seconds, uid, wal=self._wal)
        epoch = self._journal.epoch
        retention_ms = round(self.retention_seconds * 1000)
        self.tracker = Tracker(state, epoch, tracker_options(retention=RetentionLimits(retention_ms=retention_ms)))
        self.loop = DriverLoop(
            self.tracker, self._journal, self.clock, perform=lambda a: self.cleaner.perform(a), failed=self._fail
        )
        limits = RetentionLimits(retention_ms=retention_ms, retention_bytes=0)
        self.ageing = RetentionClock(self.clock, self.retention_seconds, newest_completion_ms(state))
        copies = SnapshotCopies(
            self.loop.ask,
            self._wal,
            stream=STREAM,
            epoch=epoch,
            clock=self.ageing,
            interval_seconds=30.0,
            limits=limits,
            new_uid=uid,
        )
        self.loop.snapshot_taken = copies.want
        history = HistoryWriter(kept, STREAM, epoch, segment_bytes=64_000_000, now=wall_seconds, new_uid=uid)
        wal = CleanedWal(self._wal, limits, copies)
        self.cleaner = Cleaner(
            self.loop,
            wal,
            history_writer=history,
            stream=STREAM,
            clock=self.ageing,
            pause_seconds=2.0,
            failed=self._fail,
        )
        self.loop.start()
        starts = tuple(IncarnationStart(TOPIC, number, 0, "id") for number in range(PARTITIONS))
        self.loop.ask(FoundPartitions(starts, self.clock.wall_ms(), "earliest"))
        self.batch = 0
        try:
            yield self
        finally:
            self.loop.stop()
            history.close()
            self._journal.close()
            if self._failure is not None:
                raise self._failure

    def _fail(self, error: BaseException) -> None:
        self._failure = error

    def run(self, batches: int) -> None:
        for _ in range(batches):
            if self.batch % self.receiver_batches == 0:
                self._start_receiver()
            self.batch += 1
            self.clock.advance(1.0)
            self._take_in()
            batch_id = self.loop.ask(Allocate(self.clock.wall_ms(), 4))
            assert batch_id is not None
            self.loop.ask(Complete(batch_id, self.ageing.wall_ms(), 1))
            if self.batch % ROUND_BATCHES == 0:
                self._beat()
                self.cleaner.act()
                self.cleaner.look()

    def _start_receiver(self) -> None:
        register = m.RegisterRequest(
            stream=STREAM, receiver_id="r1", host=HOST, instance_id=f"i{next(_NUMBERS)}", release="test"
        )
        self._epoch = self.loop.ask(register).epoch
        self._sequence = self._acknowledged = 0
        tps = tuple(TopicPartition(TOPIC, number) for number in range(PARTITIONS))
        views = self.loop.ask(m.LookupRequest(receiver_id="r1", epoch=self._epoch, partitions=tps)).partitions
        asks = tuple(m.ClaimAsk(topic=TOPIC, partition=view.partition, known_token=view.token) for view in views)
        claim = m.ClaimRequest(receiver_id="r1", epoch=self._epoch, claims=asks, number=1)
        grants = self.loop.ask(claim).claims
        assert all(grant.granted for grant in grants)
        self._tokens = [grant.view.token for grant in grants]
        self._position = grants[0].view.position
        epoch = self._epoch
        self._writer = LogWriter(
            self._wal,
            lambda number: layout.block_segment(STREAM, "r1", epoch, number),
            identity=SegmentIdentity(STREAM, "r1", epoch, 1),
            limits=SegmentLimits(size_bytes=SEGMENT_BYTES, age_seconds=1e9),
            now=self.clock.monotonic,
            new_uid=lambda: next(_NUMBERS),
        )

    def _take_in(self) -> None:
        begin, self._position, self._sequence = self._position, self._position + 10, self._sequence + 1
        ranges = tuple(
            BlockRange(TOPIC, number, 1, begin, self._position, 10, 0, "0" * 16, token)
            for number, token in enumerate(self._tokens)
        )
        meta = BlockMeta(
            block_id("r1", self._epoch, self._sequence), STREAM, "r1", self._epoch, self._sequence, ranges,
            10 * PARTITIONS, self.clock.wall_ms(), HOST,
        )  # fmt: skip
        pending = self._writer.append(FrameKind.BLOCK, encode_meta(meta), b"payload")
        self._writer.sync()
        assert pending.handle is not None
        report = m.ReportRequest(receiver_id="r1", epoch=self._epoch, blocks=(Block(meta, pending.handle, True),))
        assert all(result.accepted for result in self.loop.ask(report).results)

    def _beat(self) -> None:
        """The receiver has written all it held; the agent has deleted all blocks that the driver named."""
        self.loop.ask(
            m.HeartbeatRequest(
                receiver_id="r1", epoch=self._epoch, state="active", detail="", acknowledged=0, buffered_bytes=0,
                records=self._position, claims_done=1,
            )
        )  # fmt: skip
        agent = m.AgentHeartbeatRequest(
            host=HOST, url="http://h1:1", instance_id="a", acknowledged=self._acknowledged, blocks=0, used_bytes=0,
            free_bytes=0,
        )  # fmt: skip
        commands = self.loop.ask(agent).commands
        self._acknowledged = max((command.version for command in commands), default=self._acknowledged)

    # ---- what could grow ---------------------------------------------------------------------------------------------

    def sizes(self) -> dict[str, int]:
        """Lengths of all collections in the state, its index and the tracker, wherever they are nested; bytes of a snapshot
        and of a status; files and bytes of journal, WAL and snapshot copies, without claims of epochs and the history."""
        found: dict[str, int] = self.loop.ask(ReadBy(self._lengths))
        found["snapshot bytes"] = len(msgspec.msgpack.encode(self.tracker.state))
        found["status bytes"] = len(msgspec.json.encode(self._status()))
        for name, folder in (
            ("journal", f"journal/{STREAM}/epoch-*"),
            ("WAL", f"wal/{STREAM}/blocks"),
            ("copies", f"wal/{STREAM}/snapshots"),
        ):
            files = [path for top in self.directory.glob(folder) for path in top.rglob("*.seg")]
            found[f"{name} files"] = len(files)
            found[f"{name} folders"] = sum(
                path.is_dir() for top in self.directory.glob(folder) for path in top.rglob("*")
            )
            found[f"{name} bytes"] = sum(path.stat().st_size for path in files)
        return found

    def history_bytes(self) -> int:
        return sum(path.stat().st_size for path in (self.directory / f"journal/{STREAM}/history").rglob("*.seg"))

    def status_seconds(self, times: int = 50) -> float:
        """The least of ``times``: what else the machine does only adds."""
        taken = []
        for _ in range(times):
            begun = time.perf_counter()
            self._status()
            taken.append(time.perf_counter() - begun)
        return min(taken)

    def _status(self) -> m.StatusAnswer:
        return shown(self.tracker, self.clock.monotonic(), 10.0)

    def _lengths(self, state: State) -> dict[str, int]:
        found: dict[str, int] = {}
        _count("state", {name: getattr(state, name) for name in state.__struct_fields__}, found)
        _count("index", state.index, found)
        _count("tracker", vars(self.tracker), found)
        return found


def _count(name: str, value: Any, found: dict[str, int]) -> None:
    """Adds the length of every collection in ``value`` to ``found``; those in a collection's elements all under one name.
    A state that ``value`` refers to is left out: it is counted by itself."""
    if isinstance(value, State):
        return
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        found[name] = found.get(name, 0) + len(value)
        for key, element in value.items() if isinstance(value, Mapping) else enumerate(value):
            _count(f"{name}.{key}" if name in ("state", "tracker") else f"{name}[]", element, found)
        return
    fields = getattr(type(value), "__struct_fields__", None) or getattr(type(value), "__slots__", None)
    if not fields:
        fields = vars(value) if hasattr(value, "__dict__") and type(value).__module__.startswith("driver") else ()
    for attribute in fields:
        _count(f"{name}.{attribute}", getattr(value, attribute), found)
