"""A snapshot for observers: shared, unchanged by later decisions, and answers with bounds in a large stream."""

from __future__ import annotations

from concurrent.futures import TimeoutError as LateError
from typing import Any

import msgspec
import pytest

from driver.background.reach import Ends
from driver.batches.entries import RunningBatch
from driver.http.health import HealthVerdict
from driver.http.observation import answers
from driver.http.observation.blocks import LOOKED_AT_MAX, BlockQuery, ReadBlock, ReadBlocks, ReadMembership, block_list
from driver.http.observation.lists import Query, page
from driver.http.observation.overview import DriverIdentity, PresentWork, overview
from driver.http.observation.snapshot import SharedSnapshot, Snapshot, SnapshotContext, take
from driver.http.observation.steps import Rates
from forebay import messages as m
from forebay.model.errors import UnreachableError, UsageError
from forebay.process.clock import ManualClock
from tests.support.state.tracked import TOPIC, Tracked, offsets, tp

IDENTITY = DriverIdentity(stream="s", release="1", job="jobs:process", batch_interval_ms=1_000, heartbeat_seconds=1.0)
PARTITIONS, RECEIVERS = 1_000, 200
HOSTILE = "<img src=x onerror=alert(1)>\x1b[31m\u202e"


def surroundings(**more: Any) -> SnapshotContext:
    given: dict[str, Any] = {
        "state": "running",
        "detail": "",
        "verdict": HealthVerdict(),
        "receiver_timeout": 30.0,
        **more,
    }
    return SnapshotContext(**given)


def snapshot(t: Tracked, now: float | None = None, **more: Any) -> Snapshot:
    return take(t.tracker, surroundings(**more), t.now_ms / 1000 if now is None else now, t.now_ms)


@pytest.fixture(scope="module")
def large() -> Tracked:
    """1,000 partitions at 200 receivers whose heartbeats have long texts."""
    t = Tracked(partitions=PARTITIONS)
    each = PARTITIONS // RECEIVERS
    for number in range(RECEIVERS):
        receiver = f"receiver-{number}"
        epoch = t.register(receiver, instance=f"i{number}", host=f"host-{number}")
        own = range(number * each, (number + 1) * each)
        asks = tuple(m.ClaimAsk(topic=TOPIC, partition=p, known_token=0) for p in own)
        t.say(m.ClaimRequest(receiver_id=receiver, epoch=epoch, claims=asks, number=1))
        t.say(
            m.HeartbeatRequest(
                receiver_id=receiver,
                epoch=epoch,
                state="active",
                detail=HOSTILE,
                acknowledged=0,
                buffered_bytes=1_000,
                records=10,
                errors=tuple(m.ErrorNote(message="x" * 300, count=1, seconds_ago=1.0) for _ in range(3)),
                partitions=tuple(
                    m.PartitionStatus(topic=TOPIC, partition=p, token=1, state="active", position=5, high_watermark=9)
                    for p in own
                ),
            )
        )
    return t


def test_overview_and_first_pages_of_a_large_stream_are_small(large: Tracked) -> None:
    long = m.Problem(kind="receiver-gone", cause="y" * 5_000, command="z" * 5_000)
    running = {n: RunningBatch(state="failing", detail="e" * 10_000) for n in range(1, 5)}
    last = m.BatchEntry(
        batch_id=1, number=1, time_ms=1, state="completed", blocks=1, records=1, detail="e" * 10_000,
        written=("w" * 10_000,) * 100,
    )  # fmt: skip
    taken = snapshot(large, verdict=HealthVerdict((long,) * 500, (long,) * 500), running=running)
    glance = overview(taken, IDENTITY, PresentWork(rates=Rates(1.0, 1.0), last_batch=last))
    assert (glance.problem_count, len(glance.problems), glance.pending_count) == (500, 10, 500)
    assert glance.partitions == {"active": PARTITIONS} and glance.receivers == {"active": RECEIVERS}
    assert glance.lag_records == 9 * PARTITIONS
    assert len(msgspec.json.encode(glance)) < 20_000
    first = Query()
    pages = (answers.partitions(taken, first), answers.receivers(taken, first), answers.hosts(taken, first))
    assert pages[0].total == PARTITIONS and pages[1].total == RECEIVERS
    assert sum(len(msgspec.json.encode(one)) for one in pages) < 300_000


def test_snapshot_does_not_change_with_the_stream() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    before = snapshot(t)
    t.take_in(epoch, token, 5)
    after = snapshot(t)
    assert [p.position for p in before.tracked_partitions] == [0, 0]
    assert [p.position for p in after.tracked_partitions] == [5, 0]
    assert (before.totals.waiting_records, after.totals.waiting_records) == (0, 5)
    steps = {step.name: step for step in overview(after, IDENTITY, PresentWork(rates=Rates(2.5, None))).steps}
    assert steps["tracker"].waiting_records == 5 and steps["tracker"].delay_seconds == 2.0
    assert steps["batches"].waiting_records == 0 and steps["batches"].oldest_seconds == 0.0


def test_steps_before_the_driver_are_as_in_the_heartbeats_of_receivers_that_are_not_lost() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5)
    own = m.PartitionStatus(topic=TOPIC, partition=0, token=token, state="active", position=30, high_watermark=99)
    t.say(
        m.HeartbeatRequest(
            receiver_id="r1", epoch=epoch, state="active", detail="", acknowledged=0, buffered_bytes=1, records=5,
            partitions=(own,), open_seconds=0.2, storing_seconds=1.5, storing_records=10, store_seconds=0.04,
            open_records=15,
        )
    )  # fmt: skip

    def shown(now: float) -> dict[str, tuple[int | None, float | None, float | None]]:
        found = overview(snapshot(t, now), IDENTITY, PresentWork(rates=Rates(10.0, None))).steps
        return {step.name: (step.waiting_records, step.oldest_seconds, step.delay_seconds) for step in found}

    now = t.now_ms / 1000
    t.take_in(epoch, token, 30)  # after the heartbeat
    assert (shown(now)["blocks"], shown(now)["wal"]) == ((15, 0.2, 1.5), (10, 1.5, 0.04))
    assert shown(now + 31)["wal"] == shown(now + 31)["blocks"] == (None, None, None)
    assert shown(now)["kafka"][0] is None, "the ends of partitions are unknown"


def test_batches_take_as_long_as_the_last_one_while_none_runs() -> None:
    taken = snapshot(Tracked())

    def delay(total_delay_ms: int | None) -> float | None:
        entry = m.BatchEntry(
            batch_id=1, number=1, time_ms=1, state="completed", blocks=1, records=1, attempts=1, total_delay_ms=total_delay_ms
        )  # fmt: skip
        found = overview(taken, IDENTITY, PresentWork(rates=Rates(10.0, 10.0), last_batch=entry)).steps
        return {step.name: step.delay_seconds for step in found}["batches"]

    assert delay(1_250) == 1.25
    assert delay(None) is None


def test_lag_in_seconds_is_that_of_the_oldest_record_that_is_not_completed() -> None:
    t = Tracked(partitions=1, now_ms=100_000)
    clock = ManualClock()
    end = 0
    ends = Ends(lambda: {tp(): end}, clock, ask_lows=lambda: {tp(): 3})

    def shown() -> m.TrackedPartition:
        return snapshot(t, now=clock.monotonic(), ends=ends).tracked_partitions[0]

    assert (shown().lag_seconds, shown().low_watermark) == (None, -1)
    ends.read()
    assert (shown().lag_seconds, shown().lag, shown().low_watermark) == (0.0, 0, 3)
    clock.advance(5)
    end = 10
    ends.read()
    clock.advance(5)
    assert shown().lag_seconds == 10.0  # written after the first read, and at the earliest then
    epoch = t.register()
    held = msgspec.structs.replace(offsets(0, 10, t.claim(epoch).view.token), max_timestamp_ms=t.now_ms - 7_000)
    t.report(epoch, t.block(epoch, [held]))
    assert (shown().lag, shown().lag_seconds) == (0, 7.0)  # by the block, whose records have times
    clock.advance(20)
    assert shown().lag_seconds is None  # the end is too old


def test_observers_share_a_snapshot_and_get_the_last_one_while_there_is_none() -> None:
    t = Tracked()
    clock = ManualClock()
    asked: list[float] = []
    error: Exception | None = None

    def ask(seconds: float) -> Snapshot:
        asked.append(seconds)
        if error is not None:
            raise error
        return snapshot(t)

    shared = SharedSnapshot(ask, clock)
    first = shared.get()
    assert shared.get() is first and len(asked) == 1
    clock.advance(0.5)
    second = shared.get()
    assert second is not first and len(asked) == 2 and not shared.is_late
    clock.advance(0.5)
    error = LateError()
    assert shared.get() is second and shared.is_late
    assert shared.get() is second and len(asked) == 3  # a loop that does not answer is not asked each time
    clock.advance(0.5)
    error = None
    assert shared.get() is not second and not shared.is_late

    def refuse(_: float) -> Snapshot:
        raise UnreachableError("the driver is stopping")

    with pytest.raises(UnreachableError, match="stopping"):
        SharedSnapshot(refuse, clock).get()


def test_pages_continue_after_an_entry_that_no_longer_exists() -> None:
    names = [f"n{number}" for number in range(10)]

    def get(items: list[str], query: Query) -> tuple[tuple[str, ...], str]:
        found = page(items, query, str, lambda _: "active")
        return found.items, found.next

    assert get(names, Query(limit=3)) == (("n0", "n1", "n2"), "n2")
    assert get([name for name in names if name != "n2"], Query(limit=3, after="n2")) == (("n3", "n4", "n5"), "n5")
    assert get(names, Query(limit=3, after="n6")) == (("n7", "n8", "n9"), "")
    assert get(names, Query(limit=3, after="z")) == ((), "")
    assert get(names, Query(text="N1")) == (("n1",), "")
    assert get(names, Query(state="lost")) == ((), "")
    for limit in (0, 1_001):
        with pytest.raises(UsageError):
            get(names, Query(limit=limit))


def test_block_list_looks_at_a_bounded_number_of_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: a filter that matches nothing reads the blocks in several requests."""
    t = Tracked(partitions=1)
    epoch = t.register()
    token = t.claim(epoch).view.token
    blocks = [t.take_in(epoch, token, number) for number in range(1, 13)]
    monkeypatch.setattr("driver.http.observation.blocks.LOOKED_AT_MAX", 5)
    monkeypatch.setattr("driver.http.observation.blocks.TOGETHER", 2)
    table = t.ask(ReadBlocks())
    completed: list[m.BatchEntry] = []

    def get(query: BlockQuery) -> m.BlockListAnswer:
        return block_list(table, query, lambda block_ids: t.ask(ReadMembership(tuple(block_ids))).named(completed))

    newest = [block.id for block in reversed(blocks)]
    nothing = get(BlockQuery(text="nothing"))
    assert nothing.blocks == () and nothing.next == newest[4]
    assert get(BlockQuery(text="nothing", after=newest[9])).next == ""
    listed: list[str] = []
    after = ""
    while True:
        found = get(BlockQuery(limit=3, after=after))
        assert found.total == 12
        listed += [block.block_id for block in found.blocks]
        after = found.next
        if not after:
            break
    assert listed == newest
    assert get(BlockQuery(limit=5, after=newest[6])).next == "" and LOOKED_AT_MAX >= 10_000
    assert {block.state for block in get(BlockQuery(state="waiting")).blocks} == {"waiting"}
    batch_id = t.batch()
    table = t.ask(ReadBlocks())
    two = get(BlockQuery(batch_id=batch_id, of_batch={newest[1], newest[3]}))
    assert [(b.block_id, b.batch_id) for b in two.blocks] == [(newest[1], batch_id), (newest[3], batch_id)]
    assert two.total is None
    assert {block.state for block in get(BlockQuery(limit=2)).blocks} == {"queued"}
    one = t.ask(ReadBlock(newest[0]))
    assert one is not None and (one.state, one.batch_id) == ("queued", batch_id)
    assert one.topic_ids == {f"{TOPIC}/0/1": "id-1"}
    assert t.ask(ReadBlock("r1-1-99")) is None
    t.complete(batch_id)
    t.archive(batch_id)
    assert {block.batch_id for block in get(BlockQuery(limit=2)).blocks} == {0}
    entry = m.BatchEntry(
        batch_id=batch_id, number=1, time_ms=0, state="completed", blocks=12, records=12, completed_ms=t.now_ms
    )
    completed += [entry, msgspec.structs.replace(entry, completed_ms=7, batch_id=9)]
    assert {block.batch_id for block in get(BlockQuery(limit=2)).blocks} == {batch_id}
    completed.append(msgspec.structs.replace(entry, batch_id=10))  # completed in the same millisecond
    assert {block.batch_id for block in get(BlockQuery(limit=2)).blocks} == {0}


@pytest.mark.parametrize("count", [0, 3])
def test_direct_streams_are_those_with_a_cursor_of_theirs(count: int) -> None:
    t = Tracked(partitions=1)
    place = m.CursorPlace(topic=TOPIC, partition=0, incarnation=1, offset=0)
    for number in range(count):
        user = f"direct stream orders-{number} on h pid 1 ab"
        t.say(m.OpenCursorRequest(cursor=f"direct-orders-{number}-1", user=user, places=(place,), key="k"))
    t.say(m.OpenCursorRequest(cursor="direct-not", user="a query", places=(place,), key="k"))
    found = answers.direct(snapshot(t)).streams
    assert [stream.name for stream in found] == [f"orders-{number}" for number in range(count)]
