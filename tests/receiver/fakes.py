"""A tracker and a Kafka within the test's process, for tests of the service's threads. They fail only on request."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, TypeVar

import pyarrow as pa
from litestar import post
from litestar.params import Body

from forebay import messages as m
from forebay.http.application import application
from forebay.http.server import Server
from forebay.model.columns import Columns, EndOfPartition, PartitionFault, RebalanceListener, Start
from forebay.model.errors import UnreachableError
from forebay.model.identifiers import numbered
from forebay.model.records import SOURCE_SCHEMA
from forebay.model.values import Block, TopicPartition
from receiver.service import ReceiverService
from receiver.sources.source import CommitPoint
from wal.segments.layout import timeline_marker
from wal.storage import Storage

DRAIN_SECONDS = 90.0


@contextmanager
def running(service: ReceiverService) -> Iterator[None]:
    """Run ``service`` in a thread, and drain it at the end, also after a failure."""
    thread = threading.Thread(target=service.run, name="receiver")
    thread.start()
    try:
        yield
    finally:
        service.drain()
        thread.join(DRAIN_SECONDS)
        assert not thread.is_alive(), "it drains"


AnyStorage = TypeVar("AnyStorage", bound=Storage)


def marked(storage: AnyStorage) -> AnyStorage:
    """Return ``storage`` as a WAL of stream ``s`` whose driver has led."""
    with contextlib.suppress(FileExistsError):
        storage.put_new(timeline_marker("s", 1), b"claim")
    return storage


class FakeTracker:
    """Decides as the driver does, in memory. ``down``: answers each request with an error. ``refuse``: reports to refuse next."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.changed = threading.Condition(self.lock)
        self.tokens: dict[TopicPartition, int] = {}
        self.positions: dict[TopicPartition, int] = {}
        self.blocks: list[Block] = []
        self.heartbeats: list[m.HeartbeatRequest] = []
        self.released: list[m.Release] = []
        self.epoch = 0
        self.count = 0
        self.down = False
        self.refuse = 0
        self.fenced = False
        self.topic_id = ""

    def __enter__(self) -> FakeTracker:
        self._server = Server(application("tracker", "0", self._routes()), "http://127.0.0.1:0")
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__(None, None, None)

    @property
    def url(self) -> str:
        return self._server.url

    def wait_for(self, what: object, seconds: float = 60.0) -> None:
        with self.changed:
            assert self.changed.wait_for(what, seconds), "the condition did not become true"  # type: ignore[arg-type]

    def _pass(self) -> None:
        if self.down:
            raise UnreachableError("not ready")

    def _routes(self) -> list[object]:
        @post("/v1/receivers/register", status_code=200, sync_to_thread=False)
        def register(data: Annotated[m.RegisterRequest, Body()]) -> m.RegisterAnswer:
            self._pass()
            with self.changed:
                self.epoch = self.epoch or numbered(1, 1)
                return m.RegisterAnswer(epoch=self.epoch, driver_epoch=numbered(1, 1), timeline=1)

        @post("/v1/partitions/look", status_code=200, sync_to_thread=False)
        def lookup(data: Annotated[m.LookupRequest, Body()]) -> m.LookupAnswer:
            self._pass()
            with self.changed:
                return m.LookupAnswer(partitions=tuple(self._view(tp) for tp in data.partitions))

        @post("/v1/partitions/claim", status_code=200, sync_to_thread=False)
        def claim(data: Annotated[m.ClaimRequest, Body()]) -> m.ClaimAnswer:
            self._pass()
            grants = []
            with self.changed:
                for ask in data.claims:
                    tp = TopicPartition(ask.topic, ask.partition)
                    granted = self.tokens.get(tp, 0) == ask.known_token
                    if granted:
                        self.count += 1
                        self.tokens[tp] = numbered(1, self.count)
                    grants.append(m.ClaimGrant(granted=granted, view=self._view(tp)))
                self.changed.notify_all()
            return m.ClaimAnswer(claims=tuple(grants))

        @post("/v1/partitions/release", status_code=200, sync_to_thread=False)
        def release(data: Annotated[m.ReleaseRequest, Body()]) -> m.Done:
            self._pass()
            with self.changed:
                self.released.extend(data.releases)
                self.changed.notify_all()
            return m.Done()

        @post("/v1/blocks/report", status_code=200, sync_to_thread=False)
        def report(data: Annotated[m.ReportRequest, Body()]) -> m.ReportAnswer:
            self._pass()
            with self.changed:
                if self.fenced:
                    from forebay.model.errors import FencedError

                    raise FencedError("registered again since")
                answer = m.ReportAnswer(results=tuple(self._take(block) for block in data.blocks))
                self.changed.notify_all()
                return answer

        @post("/v1/receivers/heartbeat", status_code=200, sync_to_thread=False)
        def heartbeat(data: Annotated[m.HeartbeatRequest, Body()]) -> m.HeartbeatAnswer:
            self._pass()
            with self.changed:
                self.heartbeats.append(data)
                self.changed.notify_all()
                return m.HeartbeatAnswer(driver_epoch=numbered(1, 1))

        return [register, lookup, claim, release, report, heartbeat]

    def _view(self, tp: TopicPartition) -> m.PartitionView:
        return m.PartitionView(
            topic=tp.topic, partition=tp.partition, known=True, token=self.tokens.get(tp, 0), incarnation=1,
            position=self.positions.get(tp, 0), topic_id=self.topic_id,
        )  # fmt: skip

    def _take(self, block: Block) -> m.BlockResult:
        if block.id in {known.id for known in self.blocks}:
            return m.BlockResult(block_id=block.id, accepted=True)
        if self.refuse:
            self.refuse -= 1
            for r in block.meta.ranges:
                self.count += 1
                self.tokens[r.tp] = numbered(1, self.count)
        stale = tuple(
            m.StaleRange(topic=r.topic, partition=r.partition, reason="token", token=0, position=0)
            for r in block.meta.ranges
            if r.token != self.tokens.get(r.tp) or r.from_offset != self.positions.get(r.tp, 0)
        )
        if not stale:
            self.blocks.append(block)
            for r in block.meta.ranges:
                self.positions[r.tp] = r.until_offset
        return m.BlockResult(block_id=block.id, accepted=not stale, stale=stale)


class FakeKafka:
    """Implements ``receiver.sources.source.Source`` over lists of values; partitions are assigned within the first poll."""

    def __init__(self, values: Mapping[TopicPartition, Sequence[bytes]], poll_records: int = 50) -> None:
        self.values = {tp: list(own) for tp, own in values.items()}
        self.last_error = ""
        self.topic_id = ""
        self.tells_ids = threading.Event()
        self.tells_ids.set()
        self.committed: dict[TopicPartition, CommitPoint] = {}
        self.paused: set[TopicPartition] = set()
        self.pauses = 0
        self.to_revoke: list[TopicPartition] = []
        self.revoked_after: dict[TopicPartition, int] = {}  # committed offset when the callback returned
        self.callback_returned = threading.Event()
        self.closed = False
        self._poll_records = poll_records
        self._starts: dict[TopicPartition, Start] = {}
        self._ended: set[TopicPartition] = set()
        self._listener: RebalanceListener | None = None
        self._assigned = False
        self._idle = threading.Event()

    def subscribe(self, listener: RebalanceListener) -> None:
        self._listener = listener

    def follow(self, topics: Sequence[str]) -> None:
        raise AssertionError("the driver names no topics in these tests")

    def poll(self, max_records: int, timeout_seconds: float) -> list[Columns | EndOfPartition | PartitionFault]:
        assert self._listener is not None
        assert max_records > 0, "polled while memory is full"
        if not self._assigned:
            self._assigned = True
            self._listener.assigned(list(self.values))
        if self.to_revoke:
            gone, self.to_revoke = self.to_revoke, []
            self._listener.revoked(gone)
            for tp in gone:
                self._starts.pop(tp, None)
                self.revoked_after[tp] = self.committed[tp].offset if tp in self.committed else -1
            self.callback_returned.set()
        polled: list[Columns | EndOfPartition | PartitionFault] = []
        for tp, start in list(self._starts.items()):
            if tp in self.paused:
                continue
            count = min(self._poll_records, max_records)
            own = self.values[tp][start.offset : start.offset + count]
            if own:
                polled.append(self._columns(start, own))
                self._starts[tp] = Start(tp, start.offset + len(own), -1, start.generation)
                self._ended.discard(tp)
            elif tp not in self._ended:
                self._ended.add(tp)
                polled.append(EndOfPartition(tp, start.generation, start.offset))
        if not polled:
            self._idle.wait(timeout_seconds)
        return polled

    def _columns(self, start: Start, own: Sequence[bytes]) -> Columns:
        count = len(own)
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array([None] * count, pa.binary()),
                pa.array(own, pa.binary()),
                pa.array(range(start.offset, start.offset + count), pa.int64()),
                pa.array([1000] * count, pa.int64()),
                pa.array([0] * count, pa.int32()),
            ],
            schema=SOURCE_SCHEMA(False),
        )
        return Columns(
            start.tp,
            start.generation,
            start.offset,
            start.offset + count - 1,
            count,
            sum(map(len, own)),
            1000,
            0,
            batch,
        )

    def start(self, starts: Sequence[Start]) -> None:
        for start in starts:
            self._starts[start.tp] = start
            self.paused.discard(start.tp)
            self._ended.discard(start.tp)

    def pause(self, partitions: Sequence[TopicPartition]) -> None:
        self.pauses += 1
        self.paused.update(partitions)

    def resume(self, partitions: Sequence[TopicPartition]) -> None:
        self.paused.difference_update(partitions)

    def commit(self, positions: Mapping[TopicPartition, CommitPoint]) -> None:
        self.committed.update(positions)

    def poll_commit_errors(self) -> dict[TopicPartition, str]:
        return {}

    def commit_sync(
        self, positions: Mapping[TopicPartition, CommitPoint], timeout_seconds: float
    ) -> dict[TopicPartition, str]:
        self.committed.update(positions)
        return {}

    def watermarks(self, tp: TopicPartition, timeout_seconds: float) -> tuple[int, int]:
        return 0, len(self.values[tp])

    def high_watermark(self, tp: TopicPartition) -> int:
        return len(self.values[tp])

    def topic_ids(self, topics: Sequence[str]) -> dict[str, str]:
        if not self.tells_ids.is_set():
            raise UnreachableError("no broker answers")
        return dict.fromkeys(topics, self.topic_id)

    def close(self) -> None:
        self.closed = True
