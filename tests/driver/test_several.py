"""Several streams in one process: which may share it, and what their contexts and their status tell."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from deploy.commands.setup.validation import refuse_equal_modules
from driver.batches.joint.jobs import JointMember
from driver.context import IngestStreams
from driver.joint_jobs import joint_members
from driver.service import DriverOptions
from driver.several import StreamRun, exit_code, sharing_spark, status_of
from forebay.http.client import Client
from forebay.kafka.embedded.broker import MockBroker
from forebay.messages import StatusAnswer
from forebay.model.errors import AlreadyRunningError, EngineLostError, FencedError, JobError, SettingsError, StoreError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from forebay.process.notify import Notifier, Pulse
from forebay.settings.reading.load import from_values
from forebay.settings.schema import Settings
from tests.support.processes.played import PlayedReceiver

Configure = Callable[..., Settings]


@pytest.fixture
def configure(tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str]) -> Configure:
    topic = topic_name()
    mock_broker.create_topic(topic)

    def settings(stream: str, **driver: Any) -> Settings:
        return from_values(
            {
                "stream": stream,
                "data": str(tmp_path),
                "kafka": {"topics": [topic], "group": f"{topic}-{stream}", **mock_broker.options},
                "driver": {
                    "url": "http://127.0.0.1:0", "engine": "local", "batch_interval": "20ms", "job_retry_delay": "1ms",
                    "job_max_failures": 1, "receiver_timeout": "1s", **driver,
                },
            }
        )  # fmt: skip

    return settings


@pytest.mark.parametrize(
    ("driver", "spark", "message"),
    [
        ({"stream": "a"}, {}, "stream = 'a' applies to two configurations"),
        ({"url": "http://127.0.0.1:7070"}, {}, r"'http://127.0.0.1:7070' applies to two configurations \(streams a and b\)"),
        ({"engine": "spark"}, {"spark.executor.memory": "2g"}, "spark: spark.executor.memory differs between stream 'a' and"),
    ],
)  # fmt: skip
def test_streams_that_can_not_share_a_process_are_refused(
    configure: Configure, driver: dict[str, str], spark: dict[str, str], message: str
) -> None:
    name = driver.pop("stream", "b")
    first = configure("a", **driver)
    second = configure(name, **driver)
    second = msgspec.structs.replace(second, spark=msgspec.structs.replace(second.spark, options=spark))
    with pytest.raises(SettingsError, match=message):
        sharing_spark([first, second])


def test_an_option_of_the_user_wins_over_the_fair_mode(configure: Configure) -> None:
    settings = configure("a")
    assert sharing_spark([settings])[0].spark.options["spark.scheduler.mode"] == "FAIR"
    chosen = msgspec.structs.replace(settings.spark, options={"spark.scheduler.mode": "FIFO"})
    assert (
        sharing_spark([msgspec.structs.replace(settings, spark=chosen)])[0].spark.options["spark.scheduler.mode"]
        == "FIFO"
    )


def test_streams_with_folders_of_their_own_share_the_archive_of_classes_of_the_first(configure: Configure) -> None:
    """A process has one JVM."""
    first, second = configure("a", engine="spark"), configure("b", engine="spark")
    second = msgspec.structs.replace(second, spark=msgspec.structs.replace(second.spark, class_archive="/elsewhere"))
    archive = first.spark.class_archive
    assert archive is not None
    assert [settings.spark.class_archive for settings in sharing_spark([first, second])] == [archive, archive]


def test_a_stream_that_fails_ends_alone_and_any_termination_raises_it(configure: Configure) -> None:
    seen: list[int] = []
    more = threading.Event()

    def fail(batch: Any) -> None:
        raise ValueError("no such carrier")

    def count(batch: Any) -> None:
        seen.append(batch.records)
        if len(seen) > 1:
            more.set()

    with IngestStreams(None, *(configure(name) for name in ("orders", "clicks"))) as streams:
        assert [*streams] == ["orders", "clicks"] and not streams.await_any_termination(0.01)
        for name, job in (("orders", count), ("clicks", fail)):
            streams[name].foreach_batch(job)
        receivers = {name: _receiver(streams, configure(name)) for name in streams}
        receivers["orders"](3)
        receivers["clicks"](2)
        with pytest.raises(JobError, match="no such carrier"):
            streams.await_any_termination(60)
        assert [name for name in streams if streams[name].is_running] == ["orders"]
        receivers["orders"](4)
        assert more.wait(60)
        assert not streams.await_termination(0.01), "one stream still runs"
        streams.stop(drain=True)
        assert streams.await_termination(60)
    assert seen == [3, 4]


def _receiver(streams: IngestStreams, settings: Settings) -> Callable[[int], Any]:
    context = streams[settings.stream]
    client = Client(context.url)
    while client.get("/v1/status", StatusAnswer).state != "running":
        threading.Event().wait(0.02)
    client.close()
    receiver = PlayedReceiver(settings, context.url)
    return lambda records: receiver.take_in(TopicPartition(settings.kafka.topics[0], 0), records)


def test_a_loop_that_has_ended_holds_up_no_ping() -> None:
    pulse = Pulse(1.0)
    for loop in ("http of a", "http of b"):
        pulse.watch(loop)
    assert not pulse.came_round("http of a", 5.0)
    pulse.forget("http of b")
    assert pulse.came_round("http of a", 6.0)


class _Failing(StreamRun):
    """A stream whose driver ends with the given errors, one after the other, and then by itself."""

    def __init__(
        self,
        settings: Settings,
        errors: list[BaseException],
        ended: Callable[[], None],
        joint: JointMember | None = None,
    ) -> None:
        self.errors, self.took_over = errors, list[bool]()
        notifier = Notifier("", watchdog_seconds=0.0, clock=SystemClock(), service_status=lambda: status_of([self]))
        super().__init__(
            settings, (), options=DriverOptions(release="test", take_over=True, joint=joint), clock=SystemClock(),
            notifier=notifier, stopping=threading.Event(), lost=lambda: None, ended=ended,
        )  # fmt: skip

    def _drive(self) -> None:
        if self.errors:
            raise self.errors.pop(0)


def test_whatever_ends_a_driver_the_stream_starts_again_or_counts_as_ended(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("driver.several.RETRY_SECONDS_MIN", 0.01)
    ended = threading.Semaphore(0)
    run = _Failing(configure("a"), [asyncio.CancelledError(), ValueError("odd"), StoreError("away")], ended.release)
    run.thread.start()
    assert ended.acquire(timeout=30)
    assert run.errors == [] and run.failure is None
    fenced = _Failing(configure("b"), [FencedError("another driver leads")], ended.release)
    fenced.thread.start()
    assert ended.acquire(timeout=30)
    assert isinstance(fenced.failure, FencedError)
    assert status_of([run, fenced]).ready and "ended: another driver leads" in status_of([run, fenced]).text


def test_a_process_beside_the_one_that_leads_a_joint_job_ends(
    configure: Configure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If both waited, each could get the lease of one stream, and no job would run. A follower alone waits for its lease."""
    monkeypatch.setattr("driver.several.RETRY_SECONDS_MIN", 0.01)
    orders, clicks = configure("orders", joins=["clicks"], job="jobs:process"), configure("clicks")
    members = joint_members([orders, clicks])
    ended = threading.Semaphore(0)
    held = AlreadyRunningError("another driver leads")
    follower = _Failing(clicks, [held, held], ended.release, members["clicks"])
    follower.thread.start()
    assert ended.acquire(timeout=30)
    assert follower.errors == [] and follower.failure is None and not members["clicks"].is_over
    leader = _Failing(orders, [held, held], ended.release, members["orders"])
    leader.thread.start()
    assert ended.acquire(timeout=30)
    assert leader.failure is held and exit_code([held]) == 5
    assert members["clicks"].is_over, "the follower ends too, and leaves its lease"


def test_end_of_spark_decides_the_exit_code() -> None:
    """A supervisor starts no process again that ended as fenced."""
    assert exit_code([FencedError("a"), EngineLostError("b")]) == EngineLostError.exit_code == 1
    assert exit_code([FencedError("a"), SettingsError("b")]) == FencedError.exit_code
    assert exit_code([]) == 0


def test_await_starts_the_streams_with_named_outputs(configure: Configure) -> None:
    with IngestStreams(None, configure("orders"), configure("clicks")) as streams:
        streams["clicks"].foreach_batch(lambda batch: None, name="out")
        assert not streams.await_any_termination(0.01)
        assert [name for name in streams if streams[name].is_running] == ["clicks"]
        assert not streams.await_termination(0.01)


def test_leaving_the_context_starts_no_stream(configure: Configure) -> None:
    streams = IngestStreams(None, configure("orders"))
    with streams:
        streams["orders"].foreach_batch(lambda batch: None, name="out")
    with streams["orders"] as alone:
        pass
    assert not alone.is_running and alone.url == "", "no driver was ever made"


def test_modules_of_one_name_beside_two_configurations_are_refused(tmp_path: Path) -> None:
    """Also packages without __init__.py, and modules that no configuration names."""
    for folder in ("a", "b", "c"):
        (tmp_path / folder / "etl").mkdir(parents=True)
    (tmp_path / "a" / "etl" / "process.py").touch()
    (tmp_path / "c" / "etl.py").touch()
    a, b, c = (tmp_path / folder / "forebay.toml" for folder in ("a", "b", "c"))
    refuse_equal_modules([a, b, a])
    with pytest.raises(SettingsError, match=r"a/etl and .*c/etl.py have the same module name"):
        refuse_equal_modules([a, b, c])
