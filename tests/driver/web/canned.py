"""A made-up stream for tests of the page, behind the driver's own routes. A test chooses and changes what the driver knows.

The stream is large: 1,000 partitions, 200 receivers, and a day of batches. Its names are hostile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from driver.http.api import tracker_application
from driver.http.batches import BatchQuery, list_batches
from driver.http.observation.blocks import RANGES_ALONE_MAX, BlockQuery, BlockTable, block_entry, block_list
from driver.http.observation.events import EventHub
from driver.http.observation.lists import Query
from driver.http.observation.series import NAMES, Sample, Series
from driver.http.observation.snapshot import Snapshot
from driver.listeners.events import Happened
from forebay import messages as m
from forebay.model.errors import RefusedError
from forebay.model.values import Block, BlockMeta, BlockRange, Handle, block_id
from forebay.process.clock import SystemClock
from forebay.security.access import Guard

#: text that would run a script, leave an attribute or turn the direction of what follows, if it were taken for markup
HOSTILE = "<img src=x onerror=\"document.title='pwned'\">'\"`${7*7}\u202eevil"
PARTITIONS, RECEIVERS, BATCHES = 1_000, 200, 8_640
_STEPS = ("kafka", "blocks", "wal", "tracker", "batches", "committed")


@dataclass
class World:
    """What the made-up driver knows. A test changes it while the page is open."""

    overview: m.OverviewAnswer
    partitions: list[m.TrackedPartition] = field(default_factory=list)
    receivers: list[m.TrackedReceiver] = field(default_factory=list)
    hosts: list[m.TrackedAgent] = field(default_factory=list)
    batches: list[m.BatchEntry] = field(default_factory=list)
    blocks: list[Block] = field(default_factory=list)
    batch_of: dict[str, int] = field(default_factory=dict)  # block id → batch id; the other blocks wait
    cursors: list[m.TrackedCursor] = field(default_factory=list)
    asked: list[m.Message] = field(default_factory=list)  # requests of operators
    refusal: str = ""  # of the next request of an operator
    events: list[Happened] = field(default_factory=list)  # to send next
    lag_growth: float = 0.0  # records per second

    def now(self) -> m.OverviewAnswer:
        return msgspec.structs.replace(self.overview, time_ms=_now_ms())


def _now_ms() -> int:
    return SystemClock().wall_ms()


def batch_entry(number: int, **changed: Any) -> m.BatchEntry:
    processing = 700 + number % 7 * 40
    entry = m.BatchEntry(
        batch_id=(1 << 40) + number,
        number=number,
        time_ms=_now_ms() - (BATCHES - number) * 10_000,
        state="completed",
        blocks=12,
        records=60_000 + number % 11 * 300,
        bytes=14_000_000,
        attempts=1,
        scheduling_delay_ms=20 + number % 5,
        processing_ms=processing,
        total_delay_ms=processing + 30,
        end_to_end_ms=2_400,
        tiers={"local": 48, "agent": 2},
        completed_ms=_now_ms() - (BATCHES - number) * 10_000 + processing + 30,
    )
    return msgspec.structs.replace(entry, **changed)


def healthy() -> World:
    """A stream without problems."""
    steps = tuple(
        m.Step(
            name=name,
            records_per_second=6_012.0,
            waiting_records=1_800 if place in (0, 3) else 0,
            oldest_seconds=0.9 if place in (0, 3) else None,
            delay_seconds=(0.4, 0.2, 0.015, 5.1, 0.8, 0.1)[place],
        )
        for place, name in enumerate(_STEPS)
    )
    batches = [batch_entry(number) for number in range(BATCHES, 0, -1)]
    world = World(
        m.OverviewAnswer(
            time_ms=0, stream="flights", release="0.1.0", state="running", driver_epoch=1 << 40 | 3,
            spark_ui="http://127.0.0.1:4040", job="jobs:process", batch_interval_ms=10_000, steps=steps,
            partitions={"active": PARTITIONS}, receivers={"active": RECEIVERS}, hosts={"active": 4},
            batches={"completed": BATCHES},
            totals=m.Totals(records_taken=518_400_000, records_completed=518_398_200, batches_completed=BATCHES, bytes=8 << 30),
            waiting_blocks=4, waiting_records=1_800, last_batch=batches[0], rate=9_500.0, lag_records=1_800, lag_seconds=0.9,
        )
    )  # fmt: skip
    world.batches = batches
    world.partitions = [
        m.TrackedPartition(
            topic="flights", partition=number, incarnation=1, topic_id="QkZ1", position=518_400 + number,
            completed=518_000 + number, high_watermark=518_402 + number, low_watermark=12_000,
            receiver_id=f"receiver-{number % RECEIVERS}", token=1 << 40 | number, state="active", rate=0.0,
            end_age_seconds=0.8, lag=2, lag_seconds=0.9,
        )
        for number in range(PARTITIONS)
    ]  # fmt: skip
    world.receivers = [receiver(f"receiver-{number}") for number in range(RECEIVERS)]
    world.hosts = [
        m.TrackedAgent(
            host=f"host-{number}", url=f"http://10.0.0.{number}:7081", silent_seconds=0.4, blocks=900, used_bytes=3 << 30,
            free_bytes=400 << 30, capacity=4, load=0.42, requests=12, copies=40, release="0.1.0",
        )
        for number in range(4)
    ]  # fmt: skip
    world.blocks = [block(number) for number in range(240)]
    world.batch_of = {one.id: batches[number // 12].batch_id for number, one in enumerate(world.blocks) if number >= 4}
    world.cursors = [
        m.TrackedCursor(
            cursor=cursor, user=user, state="at work", silent_seconds=1.2, behind=40_000, opened_ms=_now_ms() - 7_200_000,
            places=(m.CursorPlace(topic="flights", partition=0, incarnation=1, offset=500_000),),
        )
        for cursor, user in (("daily-report", "spark-1"), ("direct-1a2b", "direct stream hourly on host-1 pid 7"))
    ]  # fmt: skip
    return world


def block(number: int, topic: str = "flights") -> Block:
    ranges = tuple(
        BlockRange(
            topic=topic, partition=partition, incarnation=1, from_offset=1_000_000 + number * 1_000,
            until_offset=1_001_000 + number * 1_000, records=1_000, leader_epoch=0, digest="0" * 16, token=1 << 40 | partition,
            bytes=234_000,
        )
        for partition in range(5)
    )  # fmt: skip
    receiver_id = f"receiver-{number % 7}"
    meta = BlockMeta(
        id=block_id(receiver_id, 1, number), stream="flights", receiver_id=receiver_id, epoch=1, sequence=number, ranges=ranges,
        records=5_000, created_ms=_now_ms() - number * 800, host=f"host-{number % 4}",
    )  # fmt: skip
    return Block(meta, Handle("flights/00000042.seg", 73_728, 702_000, 0), local=True)


def receiver(receiver_id: str, **changed: Any) -> m.TrackedReceiver:
    entry = m.TrackedReceiver(
        receiver_id=receiver_id, epoch=1 << 40 | 7, host="host-1", state="active", detail="", silent_seconds=0.3,
        buffered_bytes=240_000, records=2_592_000, counters={"polls": 91_000, "blocks": 5_184}, release="0.1.0",
    )  # fmt: skip
    return msgspec.structs.replace(entry, **changed)


def troubled() -> World:
    """A stream that falls behind, with hostile names, a job that fails, and a partition that waits for a person."""
    world = healthy()
    failed = batch_entry(
        BATCHES + 1, state="failing", attempts=3, processing_ms=None, total_delay_ms=None, end_to_end_ms=None, completed_ms=None,
        detail=f"ValueError: can't parse {HOSTILE}\n  in process, line 12", place=f"jobs.py:12 in process {HOSTILE}", rerun=True,
    )  # fmt: skip
    world.batches.insert(0, failed)
    world.receivers[0] = receiver(
        HOSTILE, state="lost", silent_seconds=41.0, detail=HOSTILE,
        errors=(m.ErrorNote(message=f"broker 2 refused: {HOSTILE}", count=17, seconds_ago=4.0),),
    )  # fmt: skip
    world.partitions[0] = replace_struct(
        world.partitions[0], topic=HOSTILE, state="trouble", lag=None,
        fault=f"Kafka lost {HOSTILE}[10, 20): `forebay offsets reset`",
    )  # fmt: skip
    world.blocks[0] = block(0, HOSTILE)
    steps = list(world.overview.steps)
    steps[4] = replace_struct(
        steps[4], waiting_records=900_000, oldest_seconds=312.0, delay_seconds=140.0, detail="batch 8641 fails"
    )
    advice = "correct the job and start the driver again; if its cause is elsewhere: `forebay batch retry`"
    problems = (
        m.Problem(kind="job", cause=f"the job fails, batch 8641: {HOSTILE}", command=advice, seconds=95.0),
        m.Problem(kind="receiver-gone", cause=f"receiver {HOSTILE} is silent", command=f"forebay forget '{HOSTILE}'"),
    )  # fmt: skip
    world.overview = replace_struct(
        world.overview, steps=tuple(steps), problems=problems, problem_count=2, receivers={"active": RECEIVERS - 1, "lost": 1},
        partitions={"active": PARTITIONS - 1, "trouble": 1}, batches={"failing": 1, "completed": BATCHES}, last_batch=failed,
        pending=(m.Problem(kind="agent-gone", cause="host-3 is silent", seconds=3.0),), pending_count=1, lag_records=None,
        lag_seconds=None,
    )  # fmt: skip
    world.lag_growth = 3_000.0
    return world


replace_struct = msgspec.structs.replace


class MadeUpObserver:
    """As ``driver.http.observation.observer.Observer``, of a world."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.hub = EventHub(self._overview)

    async def _overview(self) -> m.OverviewAnswer:
        happened = tuple(self._world.events)
        self._world.events.clear()
        self.hub.tell(happened)
        return self._world.now()

    def overview(self) -> m.OverviewAnswer:
        return self._world.now()

    def snapshot(self) -> Snapshot:
        world = self._world
        shown = SimpleNamespace(
            tracked_partitions=world.partitions, receivers=world.receivers, managed=(), agents=world.hosts,
            tracked_cursors=world.cursors, around=SimpleNamespace(receiver_timeout=30.0),
        )  # fmt: skip
        return cast(Snapshot, shown)

    def series(self, since_ms: int, points_max: int) -> m.SeriesAnswer:
        return self._series.answer(since_ms, points_max)

    @cached_property
    def _series(self) -> Series:
        """A day of samples."""
        found, now = Series(), _now_ms()
        for place in range(BATCHES):
            time_ms = now - (BATCHES - place) * 10_000
            wave = 1 + 0.15 * math.sin(time_ms / 900_000) + 0.03 * math.sin(time_ms / 37_000)
            lag = 1_800 * wave + max(0.0, 600 - (now - time_ms) / 1_000) * self._world.lag_growth
            scales = (6_000, 5_990, None, 1, 1_500, None, 30, 800, 830, 2_400, None)
            fixed = {"lag_records": lag, "waiting_blocks": 4.0, "receivers_active": float(RECEIVERS)}
            values = (fixed[name] if scale is None else scale * wave for name, scale in zip(NAMES, scales, strict=True))
            found.add(Sample(time_ms, tuple(values)))
        return found

    def held_for_cursors(self) -> int:
        return 2 << 30

    def batches(self, query: BatchQuery) -> m.BatchesAnswer:
        return list_batches(self._world.batches, query)

    def batch(self, batch_id: int) -> m.BatchDetail:
        found = next((row for row in self._world.batches if batch_id in (row.batch_id, row.number)), None)
        if found is None:
            raise RefusedError(f"batch {batch_id} is unknown", "not-found")
        ids = tuple(one for one, its_batch in self._world.batch_of.items() if its_batch == found.batch_id)
        ranges = block_entry(block(1), "completed", found.batch_id).ranges
        return m.BatchDetail(batch=found, ranges=ranges, tasks=(6, 6), block_ids=ids)

    def states(self, query: Query) -> m.StatesAnswer:
        return m.StatesAnswer(total=0)

    def blocks(self, query: BlockQuery) -> m.BlockListAnswer:
        if query.batch_id:
            of_batch = frozenset(self.batch(query.batch_id).block_ids)
            query = BlockQuery(limit=query.limit, after=query.after, batch_id=query.batch_id, of_batch=of_batch)
        return block_list(self._table(), query, self._batch_ids)

    def block(self, block_id: str) -> m.BlockEntry:
        found = next((one for one in self._world.blocks if one.id == block_id), None)
        if found is None:
            raise RefusedError(f"block {block_id} is unknown", "not-found")
        return block_entry(
            found, self._table().state(block_id), self._world.batch_of.get(block_id, 0), RANGES_ALONE_MAX
        )

    def _table(self) -> BlockTable:
        blocks = self._world.blocks
        return BlockTable(blocks, [one.id for one in blocks if one.id not in self._world.batch_of], ())

    def _batch_ids(self, block_ids: Sequence[str]) -> Mapping[str, int]:
        return {one: self._world.batch_of.get(one, 0) for one in block_ids}

    def records(self, block_id: str, first: int, limit: int, bytes_max: int) -> m.RecordsAnswer:
        return m.RecordsAnswer(total=5_000, tier="wal", records=tuple(map(record, range(first, first + limit))))

    def wal(self) -> m.WalAnswer:
        segment = m.WalSegment(path="flights/00000041.seg", bytes=64 << 20, blocks=96, held=0, unread=3)
        return m.WalAnswer(
            url="file:///var/lib/forebay/wal", segments=128, blocks=12_000, bytes=8 << 30, free_segments=100, free_bytes=6 << 30,
            unsynced_bytes=420_000, oldest_ms=_now_ms() - 86_400_000, retention_seconds=604_800, retention_bytes=10 << 30,
            oldest=(segment,),
        )  # fmt: skip

    def journal(self) -> m.JournalAnswer:
        return m.JournalAnswer(
            url="file:///var/lib/forebay/journal", timeline=1, driver_epoch=1 << 40 | 3, segments=4, bytes=9_000_000,
            events=912_000, snapshot_events=910_000, snapshot_ms=_now_ms() - 60_000, holder="host-0:7080", lease_seconds=10.0,
            free_bytes=100 << 30,
        )  # fmt: skip

    def settings(self) -> m.SettingsAnswer:
        return m.SettingsAnswer(
            settings=(
                m.SettingEntry(key="stream", value="flights", origin="forebay.toml"),
                m.SettingEntry(key="kafka.topics", value=["flights", HOSTILE], origin="forebay.toml"),
                m.SettingEntry(key="kafka.sasl.password", value="(hidden)", origin="FOREBAY_KAFKA__SASL_PASSWORD"),
                m.SettingEntry(key="driver.batch_interval", value="10s"),
            )
        )

    def listeners(self) -> m.ListenersAnswer:
        one = m.TrackedListener(
            name="jobs:Alerts", delivered=8_000, waiting=0, dropped=2, failures=1, last_error=HOSTILE
        )
        return m.ListenersAnswer(listeners=(one,))


def driver_application(world: World, guard: Guard) -> Any:
    """Return the driver's application over the world."""

    def submit(request: Any) -> Future[Any]:
        answer: Future[Any] = Future()
        if world.refusal:
            answer.set_exception(RefusedError(world.refusal, "conflict"))
            return answer
        world.asked.append(request)
        answer.set_result(m.OperatorAnswer(message=f"done: {type(request).__name__}"))
        if isinstance(request, m.PauseRequest):
            world.overview = replace_struct(world.overview, paused=request.paused, pause_cause=request.cause)
        elif isinstance(request, m.ResetRequest):
            planned = m.PlannedReset(topic=request.topic, partition=0, incarnation=2, position=518_400, start=12_000)
            answer = Future()
            answer.set_result(m.ResetAnswer(done=request.apply, partitions=(planned,)))
        return answer

    return tracker_application(
        submit, status=Future, ready=lambda: None, release="0.1.0", guard=guard, observer=MadeUpObserver(world)
    )


def record(place: int) -> m.RecordEntry:
    values = (
        b'{"carrier": "UA", "delay": %d, "id": 1234567890123456789, "note": "<script>alert(1)</script>"}' % place,
        HOSTILE.encode(),
        b"\x00\x01\xff\xfe binary",
        None,
    )
    value = values[place % len(values)]
    return m.RecordEntry(
        topic="flights", partition=0, offset=1_000_000 + place, timestamp_ms=_now_ms() - 5_000, key=b"EWR", value=value,
        key_bytes=3, value_bytes=len(value or b""), headers=(m.HeaderEntry(name=HOSTILE, value=b"v"),) if place == 1 else (),
    )  # fmt: skip
