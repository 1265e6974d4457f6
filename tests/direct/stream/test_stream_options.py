"""What a direct stream offers like an intake: jobs at the same time, rates by partition, empty batches, events, commits."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator

import pytest

from direct import Checkpoint, Gains, PartitionLag, find_offsets
from direct.stream.settings import StreamSettings
from direct.stream.strategies import Subscribe
from driver.batches.job.batch import Batch
from driver.listeners.events import Listener, RateChanged
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.starting import Timestamp
from forebay.kafka.consume.planning import PartitionRates
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from tests.support.kafka.polling import PATIENCE_SECONDS, Commit
from tests.support.processes.direct_runs import Runs
from tests.support.processes.up import until
from tests.support.servers.hooked import Hooked
from tests.support.state.again import produce

pytestmark = pytest.mark.kafka


@pytest.fixture
def hooked() -> Iterator[Hooked]:
    server = Hooked()
    yield server
    server.close()


def test_batches_run_at_the_same_time_and_no_commit_overtakes_an_unfinished_batch(
    runs: Runs, tps: list[TopicPartition]
) -> None:
    """A stream that begins at committed offsets must miss nothing, whichever job ends first."""
    one, group = tps[0], f"o-{tps[0].topic}"
    second_done, go_on = threading.Event(), threading.Event()
    errors: dict[str, object] = {}

    def job(batch: Batch) -> None:
        runs.job(batch)
        ranges = [span for span in batch.spans if span.tp == one]  # type: ignore[attr-defined]
        if ranges and ranges[0].from_offset == 0:
            runs.commits.add(ranges, lambda offsets, failed: errors.update(first=(offsets, failed)), batch.number)
            assert go_on.wait(PATIENCE_SECONDS)
        elif ranges and ranges[0].from_offset == 5:
            runs.commits.add(ranges, lambda offsets, failed: errors.update(second=(offsets, failed)), batch.number)
            second_done.set()

    with KafkaAdmin(runs.options) as admin:
        while admin.publish(group, {one: Commit(0)}):  # the group has a coordinator
            threading.Event().wait(0.1)
        stream = runs.start(
            Subscribe([one.topic]),
            job,
            params={"group.id": group},
            concurrent_jobs=2,
            rates=PartitionRates(100.0),
        )
        assert second_done.wait(PATIENCE_SECONDS)
        assert until(lambda: len([b for b in stream.batches if b.state == "completed"]) or None)
        runs.commits.send(admin, lambda: [(1, OffsetRange(one.topic, one.partition, 0, 5))])
        assert not errors
        assert admin.committed(group, [one])[one].offset == 0
        go_on.set()
        assert until(lambda: len(errors) == 2 or None)
        runs.stop(stream)
        assert admin.committed(group, [one])[one].offset == 10
    assert runs.once(one)[0] == 0


def test_commits_of_a_batch_that_is_not_completed_are_reported_at_the_end(
    runs: Runs, tps: list[TopicPartition]
) -> None:
    reported: list[object] = []

    def failing(batch: Batch) -> None:
        spans: tuple[OffsetRange, ...] = batch.spans  # type: ignore[attr-defined]
        runs.commits.add(spans, lambda offsets, errors: reported.append((offsets, errors)), batch.number)
        raise ValueError("no")

    stream = runs.start(Subscribe([tps[0].topic]), failing, params={"group.id": f"f-{tps[0].topic}"}, max_failures=1)
    stream._ending.wait(PATIENCE_SECONDS)
    cause = "its batch, or one before it, is not completed"
    assert reported == [({tps[0]: 30, tps[1]: 10}, {tps[0]: cause, tps[1]: cause})]


def test_rates_are_a_function_of_the_partition(runs: Runs, tps: list[TopicPartition]) -> None:
    """As Spark's PerPartitionConfig."""
    stream = runs.start(
        Subscribe([tps[0].topic]), rates=lambda tp: PartitionRates(200.0 if tp.partition == 0 else 40.0)
    )
    runs.await_records(40)
    assert {end - begin for begin, end in runs.spans(tps[0])} == {10}
    assert {end - begin for begin, end in runs.spans(tps[1])} == {2}
    runs.stop(stream)
    with pytest.raises(UsageError, match=r"rates: the function returned 5 for .*: return a PartitionRates"):
        runs.start(Subscribe([tps[0].topic]), rates=lambda tp: 5).await_termination(PATIENCE_SECONDS)


def test_interval_without_records_gives_a_batch_by_choice(runs: Runs, tps: list[TopicPartition]) -> None:
    """INV-2, INV-3: empty batches have ids like others, and change no offset."""
    stream = runs.start(Subscribe([tps[0].topic]), empty_batches=True)
    runs.await_records(40)
    with runs.came:
        assert runs.came.wait_for(lambda: len(runs.works) > 3, PATIENCE_SECONDS)
    produce(runs.options, tps[0], 4)
    runs.await_records(44)
    runs.stop(stream)
    assert runs.once(tps[0]) == (0, 34)
    assert [work.spans for work in runs.works].count(()) >= 2
    ids = [work.batch_id for work in runs.works]
    assert ids == sorted(set(ids))
    again = runs.start(Subscribe([tps[0].topic]))
    runs.stop(again)
    report = Checkpoint(runs.checkpoint.as_uri(), "s").audit()
    assert report.clean, report


def test_gains_of_backpressure_are_settable(runs: Runs, tps: list[TopicPartition]) -> None:
    learned = threading.Event()
    rates: list[float] = []

    class Rates(Listener):
        def rate_changed(self, event: RateChanged) -> None:
            rates.append(event.records_per_second)
            learned.set()

    gains = Gains(proportional=1.0, integral=0.0, derivative=0.0, min_rate=10_000_000.0)
    stream = runs.make(
        Subscribe([tps[0].topic]), backpressure=True, gains=gains, initial_rate=60.0, rates=PartitionRates(100.0)
    )

    def job(batch: Batch) -> None:
        threading.Event().wait(0.002)  # a batch of no time teaches nothing
        runs.job(batch)

    stream.foreach_batch(job).add_listener(Rates()).start()
    assert learned.wait(PATIENCE_SECONDS)
    assert rates[0] == 10_000_000.0


def test_listeners_and_web_hook_get_the_events_of_a_direct_stream(
    runs: Runs, tps: list[TopicPartition], hooked: Hooked
) -> None:
    one = tps[0]
    stream = runs.make(Subscribe([one.topic]), web_hook=hooked.url, concurrent_jobs=1)
    stream.foreach_batch(runs.job, "first").foreach_batch(lambda batch: None, "second").start()
    runs.await_records(40)
    assert until(lambda: any(event["kind"] == "batch-completed" for event in hooked.events) or None)
    (listener,) = stream.listeners
    assert listener.dropped == 0 and listener.name.startswith("http://127.0.0.1:") and "s3cret" not in listener.name
    shown = stream.metrics.text().decode()
    assert re.search(r'forebay_driver_listener_events_total\{stream="s",.*outcome="dropped"\} 0', shown)
    assert "s3cret" not in f"{stream._settings!r} {shown}"
    assert stream.progress == (PartitionLag(one.topic, 0, 30, 30, 30), PartitionLag(one.topic, 1, 10, 10, 10))
    runs.stop(stream)
    kinds = [event["kind"] for event in hooked.events]
    assert kinds[0] == "stream-started"
    assert [kind for kind in kinds if kind.startswith(("batch", "output"))] == [
        "batch-submitted", "batch-started", "output-completed", "batch-started", "output-completed", "batch-completed",
    ]  # fmt: skip
    assert kinds[-1] == "stream-stopped"
    by_kind = {event["kind"]: event for event in reversed(hooked.events)}
    assert by_kind["stream-stopped"].get("detail", "") == ""
    assert by_kind["batch-submitted"]["records"] == 40
    starts = [event for event in hooked.events if event["kind"] == "batch-started"]
    assert [(event["output"], event["first"]) for event in starts] == [("first", True), ("second", False)]
    assert (by_kind["lag-measured"]["not_taken_in"], by_kind["lag-measured"]["not_processed"]) == (40, 40)
    assert hooked.bodies[0]["stream"] == "s"


def test_last_event_names_the_error_that_ended_the_stream(
    runs: Runs, tps: list[TopicPartition], hooked: Hooked
) -> None:
    def failing(batch: Batch) -> None:
        raise ValueError("no")

    stream = runs.start(Subscribe([tps[0].topic]), failing, web_hook=hooked.url, max_failures=1)
    assert stream._ending.wait(PATIENCE_SECONDS)
    assert hooked.events[-1]["kind"] == "stream-stopped"
    assert hooked.events[-1]["detail"].startswith("JobError: the job failed 1 times on batch")


def test_stream_without_its_checkpoint_continues_at_committed_offsets(runs: Runs, tps: list[TopicPartition]) -> None:
    """The round trip: commit, lose the checkpoint, begin at what the group has committed. Nothing is missed or read again."""
    one, two = tps
    group = {"group.id": f"r-{one.topic}"}
    with KafkaAdmin(runs.options) as admin:
        while admin.publish(group["group.id"], {one: Commit(0), two: Commit(0)}):
            threading.Event().wait(0.1)

    def committing(batch: Batch) -> None:
        runs.job(batch)
        runs.commits.add(batch.spans, number=batch.number)  # type: ignore[attr-defined]

    stream = runs.start(Subscribe([one.topic]), committing, params=group)
    runs.await_records(40)
    runs.stop(stream)
    params = {**runs.options, **group}
    assert find_offsets(params, [one.topic], "committed") == {one: 30, two: 10}
    shutil.rmtree(runs.checkpoint)
    produce(runs.options, one, 6)
    produce(runs.options, two, 3)
    runs.start(Subscribe([one.topic]), committing, params=group)
    runs.await_records(49)
    assert (runs.once(one), runs.once(two)) == ((0, 36), (0, 13))


def test_find_offsets_answers_for_topics_and_partitions(
    runs: Runs, tps: list[TopicPartition], kafka_broker: KafkaBroker
) -> None:
    one, two = tps
    params = {"bootstrap.servers": kafka_broker.options["bootstrap.servers"], "group.id": f"n-{one.topic}"}
    later_ms = SystemClock().wall_ms() + 1_800_000  # brokers refuse more than an hour
    produce(runs.options, two, 1, timestamp=later_ms)
    assert find_offsets(params, [one.topic], "earliest") == {one: 0, two: 0}
    assert find_offsets(params, [one.topic], "latest") == {one: 30, two: 11}
    assert find_offsets(params, [two], Timestamp(later_ms - 1)) == {two: 10}
    assert find_offsets(params, tps, Timestamp(later_ms - 1)) == {one: 30, two: 10}
    with pytest.raises(UsageError, match=f"{one} has no record at or after timestamp"):
        find_offsets(params, tps, Timestamp(later_ms - 1), without_record="error")
    assert find_offsets(params, [one], "committed") == {}
    for of, place, message in (
        ([f"{one.topic}-none"], "latest", f"Kafka has no topic {one.topic}-none"),
        (one.topic, "latest", "allowed are names of topics and TopicPartition"),
        ([one.topic], "newest", "allowed are earliest, latest, committed and Timestamp"),
        ([TopicPartition(one.topic, 77)], "latest", f"Kafka has no partition {one.topic}/77"),
    ):
        with pytest.raises(UsageError, match=message):
            find_offsets(params, of, place)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"set group\.id in kafka_params"):
        find_offsets(dict(kafka_broker.options), [one.topic], "committed")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"concurrent_jobs": 0}, "concurrent_jobs must be at least 1"),
        ({"batch_history": 0}, "batch_history must be at least 1"),
        ({"listener_queue_bytes": 0}, "listener_queue_bytes must be at least 1"),
        ({"web_hook_timeout": 0}, "web_hook_timeout must be above 0"),
        ({"web_hook": "ftp://x"}, "web_hook: write it as"),
        ({"web_hook": "http://u:s3cret@x/"}, "web_hook: remove user and password"),
        ({"rates": 5}, "rates 5: allowed are a PartitionRates, and a function"),
        ({"gains": Gains(proportional=-1.0)}, "allowed are numbers from 0"),
    ],
)
def test_invalid_settings_are_refused_without_secrets(settings: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        StreamSettings("s", "file:///c", **settings)  # type: ignore[arg-type]
    assert "s3cret" not in str(refused.value)
