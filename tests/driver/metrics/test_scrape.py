"""What a scrape of the driver reads: from a tracker with made-up receivers, and from a decision loop that hangs."""

from __future__ import annotations

import re
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from driver.background.reach import Ends
from driver.batches.entries import RunningBatch
from driver.decisions import problems
from driver.http import health
from driver.http.health import HealthVerdict
from driver.http.observation.snapshot import SharedSnapshot, Snapshot, SnapshotContext, take
from driver.metrics import definitions as d
from driver.metrics.counting import LONGEST_SECONDS, Longest
from driver.metrics.scrape import Led, Process, Scrape, ScrapeOptions, label_sets
from driver.metrics.targets import targets
from driver.tracker.heartbeats import LastAgentHeartbeat, LastHeartbeat
from forebay import messages as m
from forebay.metrics.definition import Metric
from forebay.metrics.exposition import Metrics
from forebay.model.errors import UnreachableError
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock
from tests.support.state.tracked import STREAM, TOPIC, Tracked, offsets, tp

Series = dict[tuple[str, ...], float]


class Scraped:
    """A scrape of ``tracked``. ``hangs``: the decision loop answers nothing."""

    def __init__(self, tracked: Tracked, partitions_max: int = 100) -> None:
        self.tracked = tracked
        self.clock = ManualClock(tracked.now_ms)
        self.hangs = False
        self.ends: dict[TopicPartition, int] = {}
        self.running: dict[int, RunningBatch] = {}
        self.verdict = HealthVerdict()
        self.state = "running"
        self.shared = SharedSnapshot(self.ask, self.clock)
        self.reader = Ends(lambda: self.ends, self.clock)
        loop: Any = SimpleNamespace(queued=3)
        scheduler: Any = SimpleNamespace(tiers={"wal": 4, "agent: unreachable": 2})
        self.led: Led | None = Led(
            observed=self,
            tracker=tracked.tracker,
            loop=loop,
            scheduler=scheduler,
            store_requests=lambda: {"wal_get": 9},
            longest_wait=lambda: 0.5,
        )
        process = Process(
            state=lambda: self.state,
            http_requests=lambda: 1,
            listeners=lambda: (m.TrackedListener(name="l", delivered=5, waiting=1, dropped=2),),
            led=lambda: self.led,
        )
        options = ScrapeOptions(receiver_timeout=5.0, batch_interval=1.0, partitions_max=partitions_max, has_wal=True)
        self.scrape = Scrape(process, self.clock, options)

    def ask(self, timeout_seconds: float) -> Snapshot:
        if self.hangs:
            raise UnreachableError("the loop hangs")
        around = SnapshotContext(
            state=self.state,
            detail="",
            verdict=self.verdict,
            receiver_timeout=5.0,
            running=dict(self.running),
            ends=self.reader,
        )
        return take(self.tracked.tracker, around, self.clock.monotonic(), self.clock.wall_ms())

    def journal(self) -> m.JournalAnswer:
        return m.JournalAnswer(
            url="file:///j",
            timeline=1,
            driver_epoch=1,
            segments=2,
            bytes=300,
            events=50,
            snapshot_events=20,
            free_bytes=5,
        )

    def held_for_cursors(self) -> int:
        return 70

    def read(self) -> dict[str, Series]:
        """Metric → values of its labels, without the stream → value."""
        self.clock.advance(1.0)
        metrics = Metrics((), labels={"stream": STREAM}, release="1", clock=self.clock, read=self.scrape.read)
        found: dict[str, Series] = {}
        for family in text_string_to_metric_families(metrics.render().decode()):
            for sample in family.samples:
                labels = tuple(value for name, value in sorted(sample.labels.items()) if name != "stream")
                found.setdefault(sample.name, {})[labels] = sample.value
        return found


def heartbeat(receiver: str, epoch: int, state: str = "active", *partitions: m.PartitionStatus, url: str = "") -> Any:
    return m.HeartbeatRequest(
        receiver_id=receiver, epoch=epoch, state=state, detail="", acknowledged=0, buffered_bytes=0, records=0,
        partitions=partitions, metrics_url=url,
    )  # fmt: skip


def agent(host: str, state: str = "active") -> m.AgentHeartbeatRequest:
    return m.AgentHeartbeatRequest(
        host=host, url=f"http://{host}:7081", instance_id="i", acknowledged=0, blocks=0, used_bytes=0, free_bytes=0,
        state=state,
    )  # fmt: skip


def test_partitions_show_positions_and_lag_in_records_and_seconds() -> None:
    tracked = Tracked(partitions=3, now_ms=100_000)
    epoch = tracked.register()
    token = tracked.claim(epoch).view.token
    timed = msgspec.structs.replace(offsets(0, 10, token), max_timestamp_ms=tracked.now_ms - 4_000)
    tracked.report(epoch, tracked.block(epoch, [timed]))
    scraped = Scraped(tracked)
    scraped.ends = {tp(0): 30, tp(1): 0}
    scraped.reader.read()
    found = scraped.read()
    assert found["forebay_partition_position"] == {("0", TOPIC): 10, ("1", TOPIC): 0, ("2", TOPIC): 0}
    assert found["forebay_partition_completed"][("0", TOPIC)] == 0
    assert found["forebay_partition_end"] == {("0", TOPIC): 30, ("1", TOPIC): 0}
    assert found["forebay_partition_lag_records"] == {("0", TOPIC): 20, ("1", TOPIC): 0}
    assert found["forebay_partition_lag_seconds"] == {("0", TOPIC): 5.0, ("1", TOPIC): 0}
    assert found["forebay_partitions"] == {
        ("claimed",): 1, ("unclaimed",): 2, ("active",): 0, ("paused",): 0, ("claiming",): 0, ("fault",): 0
    }  # fmt: skip
    assert found["forebay_waiting_records"] == {(): 10}
    assert found["forebay_oldest_block_seconds"] == {(): 1.0}
    # Kafka does not answer: the lag is unknown, not old
    scraped.clock.advance(60)
    found = scraped.read()
    assert "forebay_partition_lag_records" not in found and "forebay_partition_lag_seconds" not in found


def test_batches_and_their_problems_are_counted() -> None:
    tracked = Tracked()
    epoch = tracked.register()
    token = tracked.claim(epoch).view.token
    batches = []
    for until in (10, 20, 30):
        tracked.take_in(epoch, token, until)
        batches.append(tracked.batch())
    tracked.complete(batches[0])
    scraped = Scraped(tracked)
    scraped.running[batches[1]] = RunningBatch(state="failing", attempts=2, detail="ValueError: no")
    found = scraped.read()
    assert found["forebay_batches"] == {
        ("queued",): 1, ("failing",): 1, ("running",): 0, ("failed",): 0, ("unreadable",): 0
    }  # fmt: skip
    assert found["forebay_problems"][("job",)] == 1
    assert found["forebay_problems"][("batch-unreadable",)] == 0
    assert found["forebay_completed_records_total"] == {(): 10}
    assert found["forebay_completed_batches_total"] == {(): 1}
    assert found["forebay_queued_records"] == {(): 20}
    assert found["forebay_tier_reads_total"] == {("read", "wal"): 4, ("unreachable", "agent"): 2}
    scraped.verdict = HealthVerdict((m.Problem(kind="kafka", cause="away"),), (m.Problem(kind="wal", cause="slow"),))
    found = scraped.read()
    assert (found["forebay_problems"][("kafka",)], found["forebay_pending_problems"][("wal",)]) == (1, 1)


def test_processes_are_counted_by_state_and_one_that_drained_and_ended_is_not_lost() -> None:
    tracked = Tracked()
    for name in ("active", "drained", "killed", "silent"):
        tracked.register(name, host=name)
    scraped = Scraped(tracked)
    beats, agents = tracked.tracker.receivers.latest, tracked.tracker.agents.latest
    for name, at, state in (("active", 0.0, "active"), ("drained", -9.0, "draining"), ("killed", -9.0, "active")):
        beats[name] = LastHeartbeat(heartbeat(name, 1, state), at)
        agents[name] = LastAgentHeartbeat(agent(name, state), at)
    found = scraped.read()
    assert {state: count for (state,), count in found["forebay_receivers"].items() if count} == {
        "active": 1, "lost": 1, "registered": 1
    }  # fmt: skip
    assert {state: count for (state,), count in found["forebay_agents"].items() if count} == {"active": 1, "lost": 1}


def test_scrape_of_a_loop_that_hangs_shows_the_last_values_with_their_age() -> None:
    scraped = Scraped(Tracked())
    found = scraped.read()
    assert found["forebay_driver_snapshot_age_seconds"] == {(): 0.0}
    assert found["forebay_journal_bytes"] == {(): 300}
    assert found["forebay_journal_events_since_snapshot"] == {(): 30}
    assert found["forebay_wal_held_by_cursors_bytes"] == {(): 70}
    scraped.hangs = True
    for age in (1.0, 2.0, 3.0):
        found = scraped.read()
        assert found["forebay_driver_snapshot_age_seconds"] == {(): age}
        assert found["forebay_partition_position"]
        assert found["forebay_driver_queued_requests"] == {(): 3}
        assert "forebay_journal_bytes" not in found  # it would wait for the loop once more


def test_standby_shows_its_state_and_nothing_of_the_stream() -> None:
    scraped = Scraped(Tracked())
    scraped.led, scraped.state = None, "standby"
    found = scraped.read()
    assert found["forebay_driver_leads"] == {(): 0}
    assert found["forebay_driver_state"][("standby",)] == 1
    assert found["forebay_driver_listener_events_total"] == {("l", "delivered"): 5, ("l", "dropped"): 2}
    assert not {name for name in found if name.startswith(("forebay_partition", "forebay_wal", "forebay_journal"))}


@pytest.mark.parametrize(
    ("series_max", "labels"),
    [
        (4, {("a", "0"), ("a", "1"), ("b", "0"), ("c", "0")}),
        (3, {("a", ""), ("b", ""), ("c", "")}),
        (2, {("", "")}),
    ],
)
def test_series_of_partitions_have_a_bound(series_max: int, labels: set[tuple[str, str]]) -> None:
    """INV-6: Prometheus keeps every series that it has seen."""
    partitions = [TopicPartition(*one) for one in (("a", 0), ("a", 1), ("b", 0), ("c", 0))]
    assert set(label_sets(partitions, series_max)) == labels


def test_series_of_a_topic_have_sums_of_records_and_the_longest_age() -> None:
    tracked = Tracked(partitions=3, now_ms=100_000)
    epoch = tracked.register()
    for partition, until, age_ms in ((0, 10, 4_000), (1, 5, 9_000)):
        token = tracked.claim(epoch, partition).view.token
        timed = offsets(0, until, token, partition)
        tracked.report(
            epoch,
            tracked.block(epoch, [msgspec.structs.replace(timed, max_timestamp_ms=tracked.now_ms - age_ms)]),
        )
    scraped = Scraped(tracked, partitions_max=2)
    scraped.ends = {tp(0): 10, tp(1): 5, tp(2): 0}
    scraped.reader.read()
    found = scraped.read()
    assert found["forebay_partition_position"] == {("", TOPIC): 15}
    assert found["forebay_partition_lag_seconds"] == {("", TOPIC): 10.0}


def test_scrape_of_a_thousand_partitions_takes_the_decision_loop_little_time() -> None:
    """The loop only copies; reading, counting and formatting are done in the thread of the scrape."""
    tracked = Tracked(partitions=1_000)
    scraped = Scraped(tracked, partitions_max=1_000)
    in_loop: list[float] = []
    ask = scraped.ask

    def timed(timeout_seconds: float) -> Snapshot:
        begun = time.thread_time()
        try:
            return ask(timeout_seconds)
        finally:
            in_loop.append(time.thread_time() - begun)

    scraped.shared = SharedSnapshot(timed, scraped.clock)
    for _ in range(5):
        assert len(scraped.read()["forebay_partition_position"]) == 1_000
    assert len(in_loop) == 5
    assert min(in_loop) < 0.02


def test_scrape_of_a_thousand_partitions_takes_little_time_of_a_processor() -> None:
    """The interpreter runs one thread at a time, so a scrape delays the decision loop and the requests of all receivers."""
    scraped = Scraped(Tracked(partitions=1_000), partitions_max=1_000)
    scraped.ends = {tp(number): 5 for number in range(1_000)}
    scraped.reader.read()
    metrics = Metrics(d.COUNTED, labels={"stream": STREAM}, release="1", clock=scraped.clock, read=scraped.scrape.read)
    taken: list[float] = []
    for _ in range(10):
        scraped.clock.advance(1.0)
        begun = time.thread_time()
        assert metrics.render().count(b"\nforebay_partition_position{") == 1_000
        taken.append(time.thread_time() - begun)
    assert min(taken) < 0.025  # 0.045 with an object for each sample; about 0.01 without


def test_targets_are_all_processes_that_serve_metrics_but_not_those_that_drained() -> None:
    beats = {
        name: LastHeartbeat(heartbeat(name, 1, state, url=url), 0.0)
        for name, state, url in (
            ("r1", "active", "https://h1:7082"), ("r2", "active", ""), ("r3", "draining", "http://h1:7083"),
        )
    }  # fmt: skip
    agents = {
        host: LastAgentHeartbeat(agent(host, state), 0.0) for host, state in (("h1", "active"), ("h2", "draining"))
    }
    found = targets("s", ("http://d1:7080", "http://d2:7080"), agents, beats)
    assert [(group.targets, group.labels["service"], group.labels["__scheme__"]) for group in found] == [
        (("d1:7080",), "driver", "http"),
        (("d2:7080",), "driver", "http"),
        (("h1:7081",), "agent", "http"),
        (("h1:7082",), "receiver", "https"),
    ]


def test_longest_wait_is_forgotten_after_its_time() -> None:
    clock = ManualClock()
    longest = Longest(clock)
    assert longest.seconds() == 0
    longest.add(3.0)
    clock.advance(LONGEST_SECONDS / 2)
    longest.add(1.0)
    assert longest.seconds() == 3.0
    clock.advance(LONGEST_SECONDS / 2)
    assert longest.seconds() == 1.0
    clock.advance(LONGEST_SECONDS)
    assert longest.seconds() == 0


def test_each_kind_of_problem_has_its_series() -> None:
    named = re.compile(r'(?:kind=|findings\.add\()"([a-z-]+)"')
    texts = [Path(str(module.__file__)).read_text() for module in (health, problems)]
    kinds = {kind for text in texts for kind in named.findall(text)} | set(health.COMMANDS)
    assert kinds and kinds <= set(d.PROBLEMS), kinds - set(d.PROBLEMS)


def test_each_metric_of_the_module_is_counted_or_read() -> None:
    defined = {value for value in vars(d).values() if isinstance(value, Metric)}
    assert defined == {*d.COUNTED, *d.READ}
    assert len(defined) == len(d.COUNTED) + len(d.READ)
