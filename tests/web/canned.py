"""A made-up driver for tests of the page: the routes that the page asks, with answers that a test chooses.

Its stream is large: 1,000 partitions, 200 receivers, and a day of batches. Its names are hostile.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar

import msgspec
from litestar import Response, get, post
from litestar.params import FromPath, FromQuery, JSONBody, QueryParameter
from litestar.response import Stream

from driver.web.pages import page_routes
from forebay import messages as m
from forebay.http.application import application, caller, needs
from forebay.model.errors import RefusedError
from forebay.process.clock import SystemClock
from forebay.security.access import Guard

WATCHER, QUERY, OPERATOR = needs("reader", "operator"), needs("query", "operator"), needs("operator")
#: text that would run a script, leave an attribute or turn the direction of what follows, if it were taken for markup
HOSTILE = "<img src=x onerror=\"document.title='pwned'\">'\"`${7*7}\u202eevil"
PARTITIONS, RECEIVERS, BATCHES = 1_000, 200, 8_640
Entry = TypeVar("Entry")
#: the framework keeps the name `state` for itself
InState = Annotated[str, QueryParameter(name="state")]
_STEPS = ("kafka", "blocks", "wal", "tracker", "batches", "committed")


@dataclass
class World:
    """What the made-up driver answers. A test changes it while the page is open."""

    overview: m.OverviewAnswer
    partitions: list[m.TrackedPartition] = field(default_factory=list)
    receivers: list[m.TrackedReceiver] = field(default_factory=list)
    hosts: list[m.TrackedAgent] = field(default_factory=list)
    batches: list[m.BatchEntry] = field(default_factory=list)
    blocks: list[m.BlockEntry] = field(default_factory=list)
    cursors: list[m.TrackedCursor] = field(default_factory=list)
    asked: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # requests of operators
    refusal: str = ""  # of the next request of an operator
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)  # to send next
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


def block_range(partition: int, topic: str = "flights") -> m.BatchRange:
    start = 1_000_000 + partition * 500
    return m.BatchRange(
        topic=topic, partition=partition, incarnation=1, from_offset=start, until_offset=start + 500, records=500, bytes=117_000
    )  # fmt: skip


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
    world.blocks = [
        m.BlockEntry(
            block_id=f"receiver-{number % 7}-{number}-1", receiver_id=f"receiver-{number % 7}", host=f"host-{number % 4}",
            state="waiting" if number < 4 else "completed", batch_id=0 if number < 4 else batches[number // 12].batch_id,
            records=5_000, bytes=1_170_000, created_ms=_now_ms() - number * 800,
            ranges=tuple(block_range(partition) for partition in range(5)), range_count=5,
            handle="segment 00000042, byte 73728, 702 kB", tiers=(f"local host-{number % 4}", "wal"),
        )
        for number in range(240)
    ]  # fmt: skip
    world.cursors = [
        m.TrackedCursor(
            cursor="daily-report", user="spark-1", state="at work", silent_seconds=1.2, behind=40_000,
            opened_ms=_now_ms() - 7_200_000, places=(m.CursorPlace(topic="flights", partition=0, incarnation=1, offset=500_000),),
        )
    ]  # fmt: skip
    return world


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
        errors=(m.ErrorNote(words=f"broker 2 refused: {HOSTILE}", count=17, seconds_ago=4.0),),
    )  # fmt: skip
    world.partitions[0] = replace_struct(
        world.partitions[0], topic=HOSTILE, state="trouble", lag=None,
        fault=f"Kafka lost {HOSTILE}[10, 20): `forebay offsets reset`",
    )  # fmt: skip
    world.blocks[0] = replace_struct(world.blocks[0], block_id=HOSTILE, ranges=(block_range(0, HOSTILE),))
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


def _page(
    rows: Sequence[Entry], limit: int, after: str, fits: Callable[[Entry], bool]
) -> tuple[int, str, tuple[Entry, ...]]:
    found = [row for row in rows if fits(row)]
    start = int(after or 0)
    shown = tuple(found[start : start + limit])
    following = start + len(shown)
    return len(found), str(following) if following < len(found) else "", shown


def driver_application(world: World, guard: Guard) -> Any:
    """Return the routes of the made-up driver and of the page."""

    @get("/v1/caller", opt=needs("reader", "operator", "query", "receiver", "agent", "task"))
    async def get_caller() -> m.CallerAnswer:
        roles = frozenset().union(*(granted for granted, _ in caller.get().grants))
        return m.CallerAnswer(roles=tuple(sorted(roles)), guarded=guard.guarded)

    @get("/v1/overview", opt=WATCHER)
    async def overview() -> m.OverviewAnswer:
        return world.now()

    @get("/v1/events", opt=WATCHER)
    async def events() -> Stream:
        return Stream(_events(world), media_type="text/event-stream")

    @get("/v1/series", opt=WATCHER)
    async def series(since_ms: FromQuery[int] = 0, points_max: FromQuery[int] = 300) -> m.SeriesAnswer:
        return _series(world, since_ms, points_max)

    @get("/v1/partitions", opt=WATCHER)
    async def partitions(
        limit: FromQuery[int] = 100, after: FromQuery[str] = "", in_state: InState = "", text: FromQuery[str] = ""
    ) -> m.PartitionsAnswer:
        total, following, rows = _page(
            world.partitions, limit, after, lambda row: in_state in ("", row.state) and text in row.topic
        )
        return m.PartitionsAnswer(total=total, next=following, partitions=rows)

    @get("/v1/receivers", opt=WATCHER)
    async def receivers(
        limit: FromQuery[int] = 100, after: FromQuery[str] = "", in_state: InState = "", text: FromQuery[str] = ""
    ) -> m.ReceiversAnswer:
        total, following, rows = _page(
            world.receivers, limit, after, lambda row: in_state in ("", row.state) and text in row.receiver_id
        )
        return m.ReceiversAnswer(total=total, next=following, receivers=rows)

    @get("/v1/hosts", opt=WATCHER)
    async def hosts(
        limit: FromQuery[int] = 100, after: FromQuery[str] = "", in_state: InState = "", text: FromQuery[str] = ""
    ) -> m.HostsAnswer:
        total, following, rows = _page(world.hosts, limit, after, lambda row: text in row.host)
        return m.HostsAnswer(total=total, next=following, hosts=rows)

    @get("/v1/cursors", opt=WATCHER)
    async def cursors(
        limit: FromQuery[int] = 100, after: FromQuery[str] = "", in_state: InState = "", text: FromQuery[str] = ""
    ) -> m.CursorsAnswer:
        total, following, rows = _page(
            world.cursors, limit, after, lambda row: in_state in ("", row.state) and text in row.cursor
        )
        return m.CursorsAnswer(total=total, next=following, cursors=rows, held_bytes=2 << 30)

    @get("/v1/batches", opt=WATCHER)
    async def batches(
        limit: FromQuery[int] = 100, after: FromQuery[str] = "", in_state: InState = "", failed: FromQuery[bool] = False
    ) -> m.BatchesAnswer:
        total, following, rows = _page(
            world.batches, limit, after,
            lambda row: in_state in ("", row.state) and (not failed or row.state in ("failing", "failed", "unreadable")),
        )  # fmt: skip
        return m.BatchesAnswer(total=total, next=following, batches=rows)

    @get("/v1/batches/{batch_id:int}", opt=WATCHER)
    async def batch(batch_id: FromPath[int]) -> m.BatchDetail:
        found = next((row for row in world.batches if row.batch_id == batch_id), None)
        if found is None:
            raise RefusedError(f"batch {batch_id} is unknown", "not-found")
        ids = tuple(block.block_id for block in world.blocks if block.batch_id == batch_id)
        return m.BatchDetail(batch=found, ranges=tuple(map(block_range, range(6))), tasks=(6, 6), block_ids=ids)

    @get("/v1/blocks", opt=WATCHER)
    async def blocks(
        limit: FromQuery[int] = 100,
        after: FromQuery[str] = "",
        in_state: InState = "",
        text: FromQuery[str] = "",
        topic: FromQuery[str] = "",
        partition: FromQuery[int] = -1,
    ) -> m.BlockListAnswer:
        total, following, rows = _page(
            world.blocks, limit, after,
            lambda row: in_state in ("", row.state) and text in row.block_id and (not topic or topic == row.ranges[0].topic),
        )  # fmt: skip
        return m.BlockListAnswer(total=total, next=following, blocks=rows)

    @get("/v1/blocks/{block_id:str}", opt=WATCHER)
    async def block(block_id: FromPath[str]) -> m.BlockEntry:
        found = next((row for row in world.blocks if row.block_id == block_id), None)
        if found is None:
            raise RefusedError(f"block {block_id} is unknown", "not-found")
        return found

    @get("/v1/blocks/{block_id:str}/records", opt=QUERY)
    async def records(block_id: FromPath[str], limit: FromQuery[int] = 20) -> Response[bytes]:
        # encoded here, because the framework has its own form of bytes
        answer = m.RecordsAnswer(total=5_000, tier="wal", records=tuple(map(record, range(limit))))
        return Response(msgspec.json.encode(answer), media_type="application/json")

    @get("/v1/wal", opt=WATCHER)
    async def wal() -> m.WalAnswer:
        segment = m.WalSegment(path="flights/00000041.seg", bytes=64 << 20, blocks=96, held=0, unread=3)
        return m.WalAnswer(
            url="file:///var/lib/forebay/wal", segments=128, blocks=12_000, bytes=8 << 30, free_segments=100, free_bytes=6 << 30,
            unsynced_bytes=420_000, oldest_ms=_now_ms() - 86_400_000, retention_seconds=604_800, retention_bytes=10 << 30,
            oldest=(segment,),
        )  # fmt: skip

    @get("/v1/journal", opt=WATCHER)
    async def journal() -> m.JournalAnswer:
        return m.JournalAnswer(
            url="file:///var/lib/forebay/journal", timeline=1, driver_epoch=1 << 40 | 3, segments=4, bytes=9_000_000,
            events=912_000, snapshot_events=910_000, snapshot_ms=_now_ms() - 60_000, holder="host-0:7080", lease_seconds=10.0,
            free_bytes=100 << 30,
        )  # fmt: skip

    @get("/v1/settings", opt=WATCHER)
    async def settings() -> m.SettingsAnswer:
        return m.SettingsAnswer(
            settings=(
                m.SettingEntry(key="stream", value="flights", origin="forebay.toml"),
                m.SettingEntry(key="kafka.topics", value=["flights", HOSTILE], origin="forebay.toml"),
                m.SettingEntry(key="kafka.sasl.password", value="(hidden)", origin="FOREBAY_KAFKA__SASL_PASSWORD"),
                m.SettingEntry(key="driver.batch_interval", value="10s"),
            )
        )

    @get("/v1/listeners", opt=WATCHER)
    async def listeners() -> m.ListenersAnswer:
        one = m.TrackedListener(
            name="jobs:Alerts", delivered=8_000, waiting=0, dropped=2, failures=1, last_error=HOSTILE
        )
        return m.ListenersAnswer(listeners=(one,))

    @get("/v1/direct", opt=WATCHER)
    async def direct() -> m.DirectAnswer:
        return m.DirectAnswer(streams=tuple(m.DirectStream(name=row.cursor, cursor=row) for row in world.cursors))

    @post("/v1/operator/{name:str}", opt=OPERATOR, status_code=200)
    async def act(name: FromPath[str], data: JSONBody[dict[str, Any]]) -> Response[Any]:
        if world.refusal:
            raise RefusedError(world.refusal, "conflict")
        world.asked.append((name, data))
        if name == "reset":
            planned = m.PlannedReset(topic=data["topic"], partition=0, incarnation=2, position=518_400, start=12_000)
            return Response(m.ResetAnswer(done=data["apply"], partitions=(planned,)))
        if name == "pause":
            world.overview = replace_struct(world.overview, paused=data["paused"], pause_cause=data["cause"])
        return Response(m.OperatorAnswer(message=f"done: {name}"))

    routes = [
        get_caller, overview, events, series, partitions, receivers, hosts, cursors, batches, batch, blocks, block, records, wal,
        journal, settings, listeners, direct, act,
    ]  # fmt: skip
    return application("Made-up driver", "0.1.0", [*routes, *page_routes()], guard)


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


def _series(world: World, since_ms: int, points_max: int) -> m.SeriesAnswer:
    now = _now_ms()
    step = max(10_000, math.ceil((now - since_ms) / points_max / 10_000) * 10_000)
    times = tuple(range(now - (now - since_ms) // step * step, now, step))
    waves = [1 + 0.15 * math.sin(time / 900_000) + 0.03 * math.sin(time / 37_000) for time in times]
    lag = [
        1_800 * wave + max(0.0, 600 - (now - time) / 1_000) * world.lag_growth
        for wave, time in zip(waves, times, strict=True)
    ]
    return m.SeriesAnswer(
        step_ms=step,
        times_ms=times,
        values={
            "records_in_per_second": tuple(6_000 * wave for wave in waves),
            "records_completed_per_second": tuple(5_990 * wave for wave in waves),
            "lag_records": tuple(lag),
            "lag_seconds": tuple(wave for wave in waves),
            "waiting_records": tuple(1_500 * wave for wave in waves),
            "waiting_blocks": tuple(4.0 for _ in waves),
            "scheduling_delay_ms": tuple(30 * wave for wave in waves),
            "processing_ms": tuple(800 * wave for wave in waves),
            "total_delay_ms": tuple(830 * wave for wave in waves),
            "end_to_end_ms": tuple(2_400 * wave for wave in waves),
            "receivers_active": tuple(float(RECEIVERS) for _ in waves),
        },
    )


async def _events(world: World) -> AsyncIterator[bytes]:
    sent = 0
    while True:
        yield b"event: overview\ndata: " + msgspec.json.encode(world.now()) + b"\n\n"
        while world.events:
            kind, fields = world.events.pop(0)
            sent += 1
            yield b"id: %d\nevent: %s\ndata: %s\n\n" % (
                sent,
                kind.encode(),
                msgspec.json.encode({"kind": kind, **fields}),
            )
        await asyncio.sleep(0.25)
