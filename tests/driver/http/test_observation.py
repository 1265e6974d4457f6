"""Observers of a running driver: each route over HTTP, with a mock broker, a real journal and WAL, and a job without Spark."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from driver import IngestContext
from driver.batches.job.batch import Batch
from forebay import messages as m
from forebay.client import Client as StreamClient
from forebay.client import Event
from forebay.http.client import Client
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.errors import RefusedError, UsageError
from forebay.model.values import Block, TopicPartition
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from tests.support.processes.played import PlayedReceiver

SECRET = "a-password-that-nobody-may-see"


class Running:
    """A driver with one partition, a receiver that the test plays, and a job that waits while ``hold`` is cleared."""

    def __init__(self, intake: IngestContext, settings: Settings) -> None:
        self.intake = intake
        self.settings = settings
        self.tp = TopicPartition(settings.kafka.topics[0], 0)
        self.hold = threading.Event()
        self.hold.set()
        self.receiver: PlayedReceiver | None = None
        self.client: Client

    def job(self, batch: Batch) -> None:
        self.hold.wait(60)

    def until(self, answer: type[Any], path: str, holds: Callable[[Any], bool]) -> Any:
        for _ in range(1500):
            if holds(found := self.client.get(path, answer)):
                return found
            self.intake.await_termination(0.02)
        raise AssertionError(f"{path} never came to hold: {found}")

    def take_in(self, count: int) -> Block:
        if self.receiver is None:
            self.receiver = PlayedReceiver(self.settings, self.intake.url)
        return self.receiver.take_in(self.tp, count)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder: Path = tmp_path_factory.mktemp("observed")
    with MockBroker() as broker:
        broker.create_topic("t")
        settings = from_values(
            {
                "stream": "s",
                "kafka": {"topics": ["t"], "group": "g", "sasl.password": SECRET, **broker.options},
                "wal": {"url": f"file://{folder}/wal"},
                "driver": {
                    "journal": f"file://{folder}/journal",
                    "url": "http://127.0.0.1:0",
                    "engine": "local",
                    "batch_interval": "20ms",
                    "lease_duration": "300ms",
                },
                "agent": {"blocks": f"{folder}/blocks"},
            }
        )
        with IngestContext(None, settings) as intake:
            one = Running(intake, settings)
            intake.foreach_batch(one.job)
            one.client = Client(intake.url)
            one.until(m.OverviewAnswer, "/v1/overview", lambda answer: answer.state == "running")
            yield one
            one.hold.set()


def test_overview_counts_the_records_on_their_way(running: Running) -> None:
    before = running.client.get("/v1/overview", m.OverviewAnswer)
    running.hold.clear()
    running.take_in(10)
    held = running.until(m.OverviewAnswer, "/v1/overview", lambda answer: answer.batches.get("running") == 1)
    assert held.totals.records_taken == before.totals.records_taken + 10
    assert held.totals.records_completed == before.totals.records_completed
    assert [step.name for step in held.steps] == ["kafka", "blocks", "wal", "tracker", "batches", "committed"]
    assert held.steps[4].waiting_records == 10
    running.hold.set()
    done = running.until(m.OverviewAnswer, "/v1/overview", lambda answer: not answer.batches.get("running"))
    assert done.totals.records_completed == done.totals.records_taken == before.totals.records_taken + 10
    assert done.steps[4].waiting_records == 0 and done.steps[4].oldest_seconds == 0.0
    assert (done.stream, done.leader, done.paused) == ("s", "", False)


def test_lists_have_filters_and_pages(running: Running) -> None:
    running.take_in(3)
    client = running.client
    partitions = client.get("/v1/partitions", m.PartitionsAnswer)
    assert [(p.topic, p.partition) for p in partitions.partitions] == [("t", n) for n in range(partitions.total)]
    first = client.get("/v1/partitions?limit=2", m.PartitionsAnswer)
    second = client.get(f"/v1/partitions?limit=1000&after={first.next}", m.PartitionsAnswer)
    assert first.partitions + second.partitions == partitions.partitions and first.next == "t/1" and not second.next
    assert first.total == second.total == partitions.total > 2
    none = client.get("/v1/partitions?state=active&text=T/0", m.PartitionsAnswer)
    assert none.total == 0 and not none.partitions
    (mine,) = running.until(  # the driver asks Kafka for its watermarks in a thread of its own
        m.PartitionsAnswer, "/v1/partitions?text=T/0", lambda answer: answer.partitions[0].low_watermark == 0
    ).partitions
    assert mine.state == "claimed" and mine.receiver_id == "r1"
    (receiver,) = client.get("/v1/receivers", m.ReceiversAnswer).receivers
    assert (receiver.receiver_id, receiver.state) == ("r1", "registered")
    assert client.get("/v1/receivers?state=lost", m.ReceiversAnswer).total == 0
    assert client.get("/v1/hosts", m.HostsAnswer).hosts == ()
    assert client.get("/v1/cursors", m.CursorsAnswer).held_bytes == 0
    assert client.get("/v1/direct", m.DirectAnswer).streams == ()
    for wrong in ("limit=0", "limit=1001", "limit=x", f"text={'x' * 300}"):
        with pytest.raises(UsageError):
            client.get(f"/v1/partitions?{wrong}", m.PartitionsAnswer)


def test_direct_stream_is_known_by_its_cursor(running: Running) -> None:
    place = m.CursorPlace(topic="t", partition=0, incarnation=1, offset=0)
    for cursor, user in (("direct-orders-1", "direct stream orders on h pid 1 ab"), ("query-1", "h pid 2 cd")):
        opened = m.OpenCursorRequest(cursor=cursor, user=user, places=(place,), key="k")
        running.client.post("/v1/cursors/open", opened, m.OpenCursorAnswer)
    found = running.until(m.CursorsAnswer, "/v1/cursors", lambda answer: answer.total == 2)
    assert [(c.cursor, c.state) for c in found.cursors] == [("direct-orders-1", "at work"), ("query-1", "at work")]
    (stream,) = running.client.get("/v1/direct", m.DirectAnswer).streams
    assert (stream.name, stream.cursor.cursor) == ("orders", "direct-orders-1")


def test_blocks_are_listed_newest_first_and_show_their_records(running: Running) -> None:
    running.hold.clear()
    blocks = [running.take_in(count) for count in (4, 5, 6)]
    newest = [block.id for block in reversed(blocks)]
    found = running.until(
        m.BlockListAnswer, "/v1/blocks?limit=3", lambda answer: [b.block_id for b in answer.blocks] == newest
    )
    assert found.next == newest[-1] and found.total > 3
    following = running.client.get(f"/v1/blocks?after={newest[0]}&limit=2", m.BlockListAnswer)
    assert [b.block_id for b in following.blocks] == newest[1:]
    running.hold.set()
    block = running.until(m.BlockEntry, f"/v1/blocks/{newest[1]}", lambda answer: answer.state == "completed")
    assert (block.records, block.host, block.tiers, block.range_count) == (5, "h1", ("wal",), 1)
    (held,) = block.ranges
    offset = held.from_offset
    at = running.client.get(f"/v1/blocks?topic=t&partition=0&offset={offset}", m.BlockListAnswer)
    assert [b.block_id for b in at.blocks] == [newest[1]] and at.total is None
    of_batch = running.client.get(f"/v1/blocks?batch={block.batch_id}", m.BlockListAnswer)
    assert newest[1] in {b.block_id for b in of_batch.blocks}
    assert {b.batch_id for b in of_batch.blocks} == {block.batch_id}
    assert running.client.get("/v1/blocks?text=nothing", m.BlockListAnswer).blocks == ()

    path = f"/v1/blocks/{newest[1]}/records"
    records = running.client.get(f"{path}?from=1&limit=3&bytes_max=2", m.RecordsAnswer)
    assert records.total == 5 and records.tier == "wal"
    assert [(r.topic, r.partition, r.offset) for r in records.records] == [("t", 0, offset + n) for n in (1, 2, 3)]
    whole = running.client.get(path, m.RecordsAnswer).records
    for cut, full in zip(records.records, whole[1:4], strict=True):
        assert cut.truncated and full.value is not None and cut.value == full.value[:2]
        assert cut.value_bytes == full.value_bytes == len(full.value) and not full.truncated
    assert running.client.get(f"{path}?from=5", m.RecordsAnswer).records == ()
    for wrong in ("limit=101", "bytes_max=65537", "from=-1"):
        with pytest.raises(UsageError):
            running.client.get(f"{path}?{wrong}", m.RecordsAnswer)
    for missing in ("/v1/blocks/r9-1-1", "/v1/blocks/r9-1-1/records"):
        with pytest.raises(RefusedError, match="names no block") as raised:
            running.client.get(missing, m.BlockEntry)
        assert raised.value.code == "not-found"


def test_wal_and_journal_show_their_files(running: Running) -> None:
    running.take_in(2)
    wal = running.client.get("/v1/wal", m.WalAnswer)
    assert wal.url == running.settings.wal.url and wal.segments >= 1 and wal.bytes > 0 and wal.blocks >= 1
    assert wal.retention_seconds == 7 * 86_400 and wal.oldest_ms is not None
    journal = running.client.get("/v1/journal", m.JournalAnswer)
    assert journal.segments == 1 and journal.bytes is not None and journal.bytes > 0
    assert journal.events > journal.snapshot_events and journal.snapshot_ms is not None
    assert running.intake.url in journal.holder and journal.lease_seconds == 0.3


def test_settings_in_force_show_their_origin_and_no_secret(running: Running) -> None:
    answer = running.client.get("/v1/settings", m.SettingsAnswer)
    shown = {one.key: one for one in answer.settings}
    assert shown["driver.engine"].value == "local" and shown["driver.engine"].origin == "settings"
    assert shown["driver.concurrent_jobs"].origin == "default" and shown["driver.concurrent_jobs"].description
    assert shown["kafka.sasl.password"].value == "(hidden)"
    assert SECRET.encode() not in running.client.request("GET", "/v1/settings")


def test_series_has_every_name_and_as_many_values_as_times(running: Running) -> None:
    series = running.client.get("/v1/series?points_max=3", m.SeriesAnswer)
    assert len(series.values) == 11 and len(series.times_ms) <= 3
    assert {len(values) for values in series.values.values()} == {len(series.times_ms)}


def test_caller_of_a_service_without_tokens_has_every_role(running: Running) -> None:
    answer = running.client.get("/v1/caller", m.CallerAnswer)
    assert "operator" in answer.roles and not answer.guarded


# ---- the Python client -----------------------------------------------------------------------------------------------


def test_client_reads_every_route_and_all_pages(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for count in (2, 3):
        running.take_in(count)
    monkeypatch.setattr("forebay.client.reads.EACH_LIMIT", 2)
    with StreamClient([running.intake.url], token="of-nobody-since-there-are-no-tokens") as client:
        assert client.overview().state == "running" and client.status().stream == "s"
        assert [p.partition for p in client.each_partition()] == list(range(client.partitions().total))
        assert [r.receiver_id for r in client.each_receiver()] == ["r1"]
        assert list(client.each_host(state="lost")) == [] and client.direct().streams == client.direct().streams
        assert len(list(client.each_cursor())) == client.cursors().total
        blocks = list(client.each_block(topic="t"))
        assert len(blocks) > 2 and len({block.block_id for block in blocks}) == len(blocks)
        assert client.block(blocks[0].block_id).ranges == blocks[0].ranges
        assert len(client.records(blocks[0].block_id, limit=2).records) == 2
        batches = list(client.each_batch(state="completed"))
        assert [batch.number for batch in batches] == sorted((batch.number for batch in batches), reverse=True)
        detail = client.batch(batches[0].batch_id)
        assert detail.batch.batch_id == batches[0].batch_id and detail.ranges[0].topic == "t"
        assert client.series(points_max=1).step_ms and client.caller().roles and client.lag().partitions
        assert client.wal().segments and client.journal().segments and client.settings().settings
        assert client.listeners().listeners == ()
        assert "no batch is failed" in client.retry()
        with pytest.raises(RefusedError, match="named 'x'"):
            client.forget("x")


def test_client_acts_as_an_operator(running: Running) -> None:
    with StreamClient(running.intake.url) as client:
        client.pause(cause="the table is locked")
        paused = running.until(m.OverviewAnswer, "/v1/overview", lambda answer: answer.paused)
        assert "the table is locked" in paused.pause_cause
        running.take_in(2)
        client.resume()
        running.until(m.OverviewAnswer, "/v1/overview", lambda answer: not answer.paused)
        refusals: tuple[Callable[[], object], ...] = (
            lambda: client.skip(1, "a cause"),
            lambda: client.restart_receiver("r9"),
            lambda: client.replay(batch=999_999),
            lambda: client.drop_cursor("x"),
            lambda: client.accept_gap("t", 0, 0, 1),
            lambda: client.accept_loss(999_999),
            lambda: client.fence("t", 0, "r9"),
        )
        for refused in refusals:
            with pytest.raises((RefusedError, UsageError)):
                refused()
        plan = client.reset(m.ResetRequest(topic="t", partition=0, to="earliest"))
        assert not plan.done and plan.partitions[0].start == 0


def test_batch_shows_its_statistics(running: Running) -> None:
    block = running.take_in(7)
    entry = running.until(m.BlockEntry, f"/v1/blocks/{block.id}", lambda answer: answer.state == "completed")
    batch = running.client.get(f"/v1/batches/{entry.batch_id}", m.BatchDetail).batch
    assert batch.state == "completed" and batch.records >= 7 and batch.processing_ms is not None
    assert running.client.get("/v1/batches?failed=true", m.BatchesAnswer).batches == ()
    overview = running.client.get("/v1/overview", m.OverviewAnswer)
    assert overview.last_batch is not None and overview.last_batch.batch_id >= batch.batch_id
    with pytest.raises(RefusedError, match="batch 999999"):
        running.client.get("/v1/batches/999999", m.BatchDetail)


def test_events_arrive_as_they_happen(running: Running) -> None:
    with StreamClient(running.intake.url) as client:
        events = client.events()
        first = next(events)
        assert first.kind == "overview" and first.data.stream == "s"
        block = running.take_in(4)
        seen: list[Event] = []
        for event in events:
            seen.append(event)
            if event.kind == "batch-completed":
                break
        added = next(event for event in seen if event.kind == "block-added")
        assert added.data["block_id"] == block.id and added.data["records"] == 4
        numbers = [event.number for event in seen if event.kind != "overview"]
        assert numbers == sorted(set(numbers)) and numbers[0] > 0
        events.close()
