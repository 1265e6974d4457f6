"""The receiver's threads with a tracker over HTTP, a Kafka of lists, and a WAL in a folder.

One module, because all tests run the same whole service (``running``) and differ in what goes wrong around it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.model.columns import Start
from forebay.model.errors import OutOfSpaceError, StoreError
from forebay.model.values import TopicPartition
from forebay.process import failpoints
from forebay.process.clock import SystemClock
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from receiver.actions import StartPartitions
from receiver.inputs import Tick
from receiver.machine.limits.throttle import GATHER_SECONDS
from receiver.main import compose
from receiver.service import CLOSE_SECONDS, ReceiverService
from receiver.sources.source import CommitPoint
from receiver.stores import store
from tests.receiver.fakes import FakeKafka, FakeTracker, marked
from wal.blocks import local_path
from wal.reading import BlockReference, ReadPlan, read_block
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import scan_segment
from wal.storage import Storage
from wal.storage.local import LocalStorage

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)


def values(count: int, prefix: bytes = b"") -> list[bytes]:
    return [prefix + b"%05d" % number for number in range(count)]


@pytest.fixture
def tracker() -> Iterator[FakeTracker]:
    with FakeTracker() as tracker:
        yield tracker


class Running:
    """A receiver in a thread of this process."""

    def __init__(self, service: ReceiverService) -> None:
        self.service = service
        self.code: int | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        self.code = self.service.run()

    def ended(self, seconds: float = 90.0) -> int | None:
        self._thread.join(seconds)
        assert not self._thread.is_alive(), "the receiver did not end"
        return self.code


def settings_of(tmp_path: Path, url: str, kafka: dict[str, Any] | None = None, **receiver: Any) -> Settings:
    own = {
        "block_interval": "50ms", "heartbeat_interval": "100ms", "reclaim_delay": "50ms", "report_timeout": "5s",
        "drain_timeout": "60s", **receiver,
    }  # fmt: skip
    return from_values(
        {
            "stream": "s",
            "kafka": {"bootstrap.servers": "unused:1", **(kafka or {"topics": ["t"]})},
            "wal": {"url": f"file://{tmp_path}/wal"},
            "receiver": own,
            "driver": {"url": url, "journal": f"file://{tmp_path}/journal"},
            "agent": {"blocks": f"{tmp_path}/blocks"},
        }
    )


@contextmanager
def running(
    tmp_path: Path, tracker: FakeTracker, kafka: FakeKafka, storage: Storage | None = None, **receiver: Any
) -> Iterator[Running]:
    settings = settings_of(tmp_path, tracker.url, **receiver)
    storage = marked(storage or LocalStorage(str(tmp_path / "wal")))
    run = Running(compose(settings, "r-1", source=kafka, storage=storage, clock=SystemClock(), host="h"))
    try:
        yield run
    finally:
        run.service.drain()
        run.ended()


def taken_in(tmp_path: Path, tracker: FakeTracker, tier: Any = "wal") -> dict[TopicPartition, list[tuple[int, bytes]]]:
    """Return (offset, value) of every record in the accepted blocks, read with all checks, in the order of the blocks."""
    plan = ReadPlan(
        wal_url=f"file://{tmp_path}/wal", blocks_directory=str(tmp_path / "blocks"), tiers=(tier,), verify_digests=True
    )
    found: dict[TopicPartition, list[tuple[int, bytes]]] = {}
    for block in tracker.blocks:
        for batch in read_block(BlockReference.of(block), plan).batches:
            for row in batch.to_pylist():
                found.setdefault(TopicPartition(row["topic"], row["partition"]), []).append(
                    (row["offset"], row["value"])
                )
    return found


def expected(kafka: FakeKafka) -> dict[TopicPartition, list[tuple[int, bytes]]]:
    return {tp: list(enumerate(own)) for tp, own in kafka.values.items() if own}


def all_taken(tracker: FakeTracker, kafka: FakeKafka) -> Any:
    return lambda: all(tracker.positions.get(tp, 0) == len(own) for tp, own in kafka.values.items())


def test_records_are_stored_reported_and_committed_and_drain_exits_with_0(tmp_path: Path, tracker: FakeTracker) -> None:
    """INV-1, INV-2."""
    kafka = FakeKafka({P0: values(1000), P1: values(700, b"x")})
    with running(tmp_path, tracker, kafka) as receiver:
        tracker.wait_for(all_taken(tracker, kafka))
        receiver.service.drain()
        assert receiver.ended() == 0
    assert taken_in(tmp_path, tracker) == expected(kafka)
    assert {tp: point.offset for tp, point in kafka.committed.items()} == {P0: 1000, P1: 700}
    assert {(r.topic, r.partition) for r in tracker.released} == {("t", 0), ("t", 1)}
    assert kafka.closed


def test_the_host_keeps_a_copy_of_each_block(tmp_path: Path, tracker: FakeTracker) -> None:
    kafka = FakeKafka({P0: values(100)})
    with running(tmp_path, tracker, kafka):
        tracker.wait_for(all_taken(tracker, kafka))
    assert all(block.local and block.meta.host == "h" for block in tracker.blocks)
    assert taken_in(tmp_path, tracker) == expected(kafka)
    assert local_path(tmp_path / "blocks", "s", tracker.blocks[0].id).exists()


def test_refused_report_is_claimed_and_cut_again_without_loss_or_repetition(
    tmp_path: Path, tracker: FakeTracker
) -> None:
    """Rule 4, INV-2."""
    kafka = FakeKafka({P0: values(600), P1: values(600, b"x")})
    tracker.refuse = 2
    with running(tmp_path, tracker, kafka):
        tracker.wait_for(all_taken(tracker, kafka))
    assert tracker.refuse == 0
    assert taken_in(tmp_path, tracker) == expected(kafka)


def test_nothing_is_lost_while_the_driver_is_out_of_reach(tmp_path: Path, tracker: FakeTracker) -> None:
    """Rule 7: polling goes on with paused partitions."""
    kafka = FakeKafka({P0: values(200)})
    with running(tmp_path, tracker, kafka) as receiver:
        tracker.wait_for(all_taken(tracker, kafka))
        tracker.down = True
        kafka.values[P0] += values(300, b"later")
        stopped = threading.Event()
        for _ in range(2000):
            if P0 in kafka.paused:
                break
            stopped.wait(0.05)
        assert P0 in kafka.paused
        assert receiver.code is None
        tracker.down = False
        tracker.wait_for(all_taken(tracker, kafka))
    assert taken_in(tmp_path, tracker) == expected(kafka)


def test_receiver_waits_at_start_for_unreachable_driver(tmp_path: Path, tracker: FakeTracker) -> None:
    kafka = FakeKafka({P0: values(10)})
    tracker.down = True
    with running(tmp_path, tracker, kafka) as receiver:
        threading.Event().wait(0.2)
        assert receiver.code is None
        tracker.down = False
        tracker.wait_for(all_taken(tracker, kafka))


def test_revocation_returns_when_taken_in_records_are_accepted(tmp_path: Path, tracker: FakeTracker) -> None:
    """Rule 6: the next owner begins after these records. The block interval alone would have kept the block open."""
    kafka = FakeKafka({P0: values(120), P1: values(120)})
    with running(tmp_path, tracker, kafka, block_interval="30s"):
        for _ in range(2000):
            if len(kafka._ended) == 2:
                break
            threading.Event().wait(0.02)
        kafka.to_revoke = [P0]
        tracker.wait_for(lambda: bool(tracker.released))
        assert tracker.positions[P0] == 120
        assert kafka.callback_returned.wait(30)
        assert kafka.revoked_after == {P0: 120}


class KafkaThatRevokesEarly(FakeKafka):
    """Revokes P0 in the poll in which the driver grants both claims. ``started``: partitions, in order."""

    service: ReceiverService

    def __init__(self, tracker: FakeTracker) -> None:
        super().__init__({P0: values(10), P1: values(10)})
        self.started: list[TopicPartition] = []
        self._tracker = tracker
        self._is_held = self._is_over = False

    def commit_sync(
        self, positions: Mapping[TopicPartition, CommitPoint], timeout_seconds: float
    ) -> dict[TopicPartition, str]:
        if not self._is_held and not self._is_over:
            self._is_held = self._tracker.lock.acquire()  # the claim, which follows, is granted in the next poll
        return super().commit_sync(positions, timeout_seconds)

    def poll(self, max_records: int, timeout_seconds: float) -> Any:
        if not self._is_held:
            return super().poll(max_records, timeout_seconds)
        self._is_held, self._is_over = False, True
        self._tracker.lock.release()
        with self.service._changed:
            actions = self.service._source_actions
            assert self.service._changed.wait_for(lambda: any(isinstance(a, StartPartitions) for a in actions), 60)
        assert self._listener is not None
        self._listener.revoked([P0])
        return []

    def start(self, starts: Sequence[Start]) -> None:
        self.started += [start.tp for start in starts]
        super().start(starts)


def test_start_of_a_partition_revoked_since_its_decision_is_left_out(tmp_path: Path, tracker: FakeTracker) -> None:
    """librdkafka refuses to seek in a partition that is not assigned, and the whole start would fail."""
    kafka = KafkaThatRevokesEarly(tracker)
    kafka.service = compose(
        settings_of(tmp_path, tracker.url),
        "r-1",
        source=kafka,
        storage=marked(LocalStorage(str(tmp_path / "wal"))),
        clock=SystemClock(),
        host="h",
    )
    run = Running(kafka.service)
    tracker.wait_for(lambda: tracker.positions.get(P1) == 10)
    run.service.drain()
    assert run.ended() == 0
    assert kafka.started == [P1]


def test_full_memory_pauses_and_nothing_is_lost(tmp_path: Path, tracker: FakeTracker) -> None:
    """INV-6, with a store that blocks until it is released."""
    gate = threading.Event()
    kafka = FakeKafka({P0: [b"v" * 1000] * 400})
    storage = Gated(str(tmp_path / "wal"), gate)
    with running(tmp_path, tracker, kafka, storage, block_size="20KB", memory="100KB"):
        for _ in range(2000):
            if P0 in kafka.paused:
                break
            threading.Event().wait(0.02)
        assert P0 in kafka.paused
        beats = len(tracker.heartbeats)
        tracker.wait_for(lambda: len(tracker.heartbeats) > beats + 1)
        assert tracker.heartbeats[-1].buffered_bytes <= 160_000
        gate.set()
        tracker.wait_for(all_taken(tracker, kafka))
    assert taken_in(tmp_path, tracker) == expected(kafka)


def test_poll_larger_than_block_is_cut(tmp_path: Path, tracker: FakeTracker) -> None:
    """INV-6."""
    kafka = FakeKafka({P0: [b"v" * 1000] * 120})
    with running(tmp_path, tracker, kafka, block_size="20KB"):
        tracker.wait_for(all_taken(tracker, kafka))
    assert all(sum(r.bytes for r in block.meta.ranges) <= 20_000 for block in tracker.blocks)
    assert taken_in(tmp_path, tracker) == expected(kafka)


def test_receiver_waits_for_space_in_wal_and_shows_it(tmp_path: Path, tracker: FakeTracker) -> None:
    """Rule 7."""
    kafka = FakeKafka({P0: values(300)})
    storage = Failing(str(tmp_path / "wal"), OutOfSpaceError("0 bytes are free"))
    with running(tmp_path, tracker, kafka, storage, store_timeout="100ms") as receiver:
        tracker.wait_for(lambda: any("no space" in beat.detail for beat in tracker.heartbeats))
        assert tracker.heartbeats[-1].state == "waiting"
        assert receiver.code is None
        storage.error = None
        tracker.wait_for(all_taken(tracker, kafka))
    assert taken_in(tmp_path, tracker) == expected(kafka)


class Scant(LocalStorage):
    """Reports a number of free bytes, and has room for every write."""

    free: int | None = 64_000_100

    def free_bytes(self) -> int | None:
        return self.free


def test_blocks_leave_the_reserve_of_the_wal_free(tmp_path: Path, tracker: FakeTracker) -> None:
    """No block is written into the reserve. The receiver waits as for a full disk, and goes on when there is room."""
    kafka = FakeKafka({P0: values(300)})
    storage = Scant(str(tmp_path / "wal"))
    with running(tmp_path, tracker, kafka, storage) as receiver:
        tracker.wait_for(lambda: any("are reserved (wal.reserve)" in beat.detail for beat in tracker.heartbeats))
        assert tracker.heartbeats[-1].state == "waiting"
        assert receiver.code is None
        assert storage.list("s/blocks") == []
        storage.free = 65_000_000
        tracker.wait_for(all_taken(tracker, kafka))
    assert taken_in(tmp_path, tracker) == expected(kafka)


def test_store_that_fails_for_store_timeout_ends_receiver_with_the_reason(
    tmp_path: Path, tracker: FakeTracker, caplog: pytest.LogCaptureFixture
) -> None:
    kafka = FakeKafka({P0: values(10)})
    storage = Failing(str(tmp_path / "wal"), StoreError("input/output error"))
    with running(tmp_path, tracker, kafka, storage, store_timeout="300ms") as receiver:
        assert receiver.ended() == 1
    assert "input/output error" in caplog.text
    assert tracker.blocks == []


def test_a_short_failure_of_the_store_is_retried(tmp_path: Path, tracker: FakeTracker) -> None:
    kafka = FakeKafka({P0: values(300)})
    storage = Failing(str(tmp_path / "wal"), StoreError("input/output error"))
    with running(tmp_path, tracker, kafka, storage, store_timeout="20s"):
        assert storage.failed.wait(30)
        storage.error = None
        tracker.wait_for(all_taken(tracker, kafka))
    assert taken_in(tmp_path, tracker) == expected(kafka)


def test_local_copy_without_room_is_omitted_and_counted(tmp_path: Path, tracker: FakeTracker) -> None:
    kafka = FakeKafka({P0: values(300)})
    (tmp_path / "blocks").write_text("a file where the directory should be")
    with running(tmp_path, tracker, kafka):
        tracker.wait_for(all_taken(tracker, kafka))
        tracker.wait_for(lambda: tracker.heartbeats[-1].counters.get("local_copies_given_up", 0) > 0)
    assert not any(block.local for block in tracker.blocks)
    assert taken_in(tmp_path, tracker) == expected(kafka)


def test_superseded_receiver_exits_with_4(tmp_path: Path, tracker: FakeTracker) -> None:
    """INV-4."""
    kafka = FakeKafka({P0: values(10)})
    tracker.fenced = True
    with running(tmp_path, tracker, kafka) as receiver:
        assert receiver.ended() == 4


def test_request_with_lost_answer_is_repeated_and_no_record_is_taken_in_twice(
    tmp_path: Path, tracker: FakeTracker
) -> None:
    """INV-2: a repeated block id gets the same answer."""
    failpoints.arm("receiver.after-report=drop,receiver.before-commit=drop")
    try:
        kafka = FakeKafka({P0: values(300)})
        with running(tmp_path, tracker, kafka):
            tracker.wait_for(all_taken(tracker, kafka))
        assert kafka.committed[P0].offset == 300
    finally:
        failpoints.arm("")
    assert taken_in(tmp_path, tracker) == expected(kafka)


class Gated(LocalStorage):
    """Creates no file until the gate opens."""

    def __init__(self, root: str, gate: threading.Event) -> None:
        super().__init__(root)
        self._gate = gate

    def create(self, path: str) -> Any:
        assert self._gate.wait(30)
        return super().create(path)


class Failing(LocalStorage):
    """Fails to create files while ``error`` is set."""

    def __init__(self, root: str, error: Exception | None) -> None:
        super().__init__(root)
        self.error = error
        self.failed = threading.Event()

    def create(self, path: str) -> Any:
        error = self.error  # the test sets it to None as soon as ``failed`` is set
        if error is not None:
            self.failed.set()
            raise error
        return super().create(path)


def test_frame_marks_that_topic_was_checked_after_last_poll(
    tmp_path: Path, tracker: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the block is never reported, it can be distinguished from one of a topic that was created again."""
    monkeypatch.setattr(store, "CHECK_SECONDS_MAX", 60.0)
    tracker.topic_id = "id"
    kafka = FakeKafka({P0: values(200)})
    kafka.topic_id = "id"
    with running(tmp_path, tracker, kafka):
        tracker.wait_for(all_taken(tracker, kafka))
    assert all(block.meta.checked is True for block in tracker.blocks)
    assert taken_in(tmp_path, tracker) == expected(kafka)


def test_block_is_written_unchecked_while_no_broker_answers_and_reported_when_one_does(
    tmp_path: Path, tracker: FakeTracker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "CHECK_SECONDS_MAX", 0.01)
    tracker.topic_id = "id"
    kafka = FakeKafka({P0: values(20)})
    kafka.topic_id = "id"
    kafka.tells_ids.clear()
    wal = marked(LocalStorage(str(tmp_path / "wal")))
    with running(tmp_path, tracker, kafka, wal):
        tracker.wait_for(lambda: any(isinstance(s, Frame) and s.header.kind == FrameKind.BLOCK
                                     for path in wal.list("s/blocks") for s in scan_segment(wal, path)))  # fmt: skip
        assert not tracker.blocks
        kafka.tells_ids.set()
        tracker.wait_for(all_taken(tracker, kafka))
    assert tracker.blocks[0].meta.checked is msgspec.UNSET


def test_receiver_with_rate_limit_polls_many_records_or_none(tmp_path: Path, tracker: FakeTracker) -> None:
    """INV-2. A poll of a tenth of a second may exceed the burst of the limit."""
    kafka = FakeKafka({P0: values(220)})
    asked: list[int] = []
    poll = kafka.poll

    def noted(max_records: int, timeout_seconds: float) -> Any:
        asked.append(max_records)
        return poll(max_records, timeout_seconds)

    kafka.poll = noted  # type: ignore[method-assign]
    with running(tmp_path, tracker, kafka, max_rate=200):
        tracker.wait_for(all_taken(tracker, kafka))
        of_each = tuple(asked)  # without the polls of the drain, which ignores rates
    assert taken_in(tmp_path, tracker) == expected(kafka)
    assert min(of_each) >= 200 * GATHER_SECONDS
    assert max(of_each) <= 200


def test_watchdog_depends_on_polling_thread_alone(tmp_path: Path, tracker: FakeTracker) -> None:
    """A poll that hangs stops the pings to the watchdog, although reports and heartbeats have their own threads."""
    kafka = FakeKafka({P0: values(10)})
    rounds: list[int] = []
    within: list[int] = []
    hung, release = threading.Event(), threading.Event()
    poll = kafka.poll

    def hang(max_records: int, timeout_seconds: float) -> Any:
        if not hung.is_set():
            before = len(rounds)
            hung.set()
            assert release.wait(30)
            within.append(len(rounds) - before)
        return poll(max_records, timeout_seconds)

    service = compose(
        settings_of(tmp_path, tracker.url),
        "r-1",
        source=kafka,
        storage=marked(LocalStorage(str(tmp_path / "wal"))),
        clock=SystemClock(),
        host="h",
    )
    assert not service.service_status().ready
    service.came_round = lambda: rounds.append(threading.get_ident())
    kafka.poll = hang  # type: ignore[method-assign]
    receiver = Running(service)
    assert hung.wait(30)
    assert service.service_status().ready
    service.tell(Tick())  # as every other thread does
    release.set()
    tracker.wait_for(all_taken(tracker, kafka))
    service.drain()
    assert receiver.ended() == 0
    assert within == [0]
    assert len(set(rounds)) == 1
    service_status = service.service_status()
    assert service_status.text.startswith("draining") and service_status.stop_seconds == 60.0 + CLOSE_SECONDS


def test_receiver_by_pattern_reports_driver_that_names_no_topics(
    tmp_path: Path, tracker: FakeTracker, caplog: pytest.LogCaptureFixture
) -> None:
    """A driver of an older release names none. Without the warning the receiver would silently subscribe to nothing."""
    settings = settings_of(tmp_path, tracker.url, {"pattern": "^t.*"})
    service = compose(
        settings,
        "r-1",
        source=FakeKafka({}),
        storage=marked(LocalStorage(str(tmp_path / "wal"))),
        clock=SystemClock(),
        host="h",
    )
    receiver = Running(service)
    tracker.wait_for(lambda: len(tracker.heartbeats) > 2)
    service.drain()
    assert receiver.ended() == 0
    beat = tracker.heartbeats[0]
    assert beat.state == "waiting" and "does not name the topics of kafka.pattern" in beat.detail
    assert caplog.text.count("until then no topic is subscribed to") == 1
