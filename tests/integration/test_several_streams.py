"""One driver process runs several streams under one Spark session, and what happens to one of them does not reach the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.support.kafka.flow import Truth, numbered, produce
from tests.support.processes.cluster import Cluster

pytestmark = pytest.mark.kafka


class Stream(Cluster):
    """One of the streams, and what was produced to its topic."""

    def __init__(self, folder: Path, broker: KafkaBroker, name: str, topic: str) -> None:
        super().__init__(
            folder / name, broker.options, [topic], receivers=1, engine="spark", job=f"jobs_{name}:by_dataframe",
            stream=name, start=False, kafka={"group": topic},
        )  # fmt: skip
        self.truth = Truth()
        self._produced = 0
        self.second_url = ""  # of a driver that takes over

    def __enter__(self) -> Stream:
        super().__enter__()
        (self.folder / "jobs.py").rename(self.folder / f"jobs_{self.stream}.py")  # one module of each name in a process
        self.second_url = self.another_url()
        self.write_settings(driver={"urls": [self.driver_url, self.second_url]})
        for name in ("agent", "r1"):
            self.start(name)
        return self

    def produce(self, records: int = 100) -> None:
        produce(self.options, self.topics[0], numbered(records, start=self._produced), self.truth)
        self._produced += records

    def complete(self) -> None:
        """Produce, and wait for the batches."""
        self.produce()
        self.await_completed(self.truth.ends())


@pytest.fixture
def streams(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> Iterator[tuple[Stream, Stream]]:
    topics = topic_name(), topic_name()
    for topic in topics:
        kafka_broker.create_topic(topic)
    with (
        Stream(tmp_path, kafka_broker, "orders", topics[0]) as orders,
        Stream(tmp_path, kafka_broker, "clicks", topics[1]) as clicks,
    ):
        yield orders, clicks


def test_streams_of_one_process_fail_wait_and_end_apart(streams: tuple[Stream, Stream]) -> None:
    """INV-1 to INV-4 for each stream: beside one that can't lead yet, one whose job fails or hangs, over a kill of the process,
    and after one was fenced, which leaves Spark to the other."""
    orders, clicks = streams
    own = clicks.driver_url
    without_spark = {"FOREBAY__DRIVER__ENGINE": "local", "FOREBAY__DRIVER__JOB": "jobs_clicks:local"}
    clicks.start_rival("alone", "driver", url=clicks.another_url(), environment=without_spark)
    clicks.wait(lambda: not clicks.health(), "the driver of its own to lead")
    orders.start("driver", "--with", str(clicks.config), keep=False)
    orders.complete()
    orders.wait(lambda: "stream clicks starts again in" in orders.log("driver"), "the stream that can't lead yet")
    clicks.kill9("alone")
    clicks.listen_to(own)
    clicks.complete()
    assert clicks.log("r1").count("registered") >= 1

    fail = clicks.folder / "fail"
    fail.touch()
    clicks.produce()
    clicks.wait(lambda: [b for b in clicks.batches() if b.state == "failing"], "the failing batch")
    orders.complete()
    (clicks.folder / "hold").touch()
    fail.unlink()
    clicks.wait(lambda: next(clicks.seen.glob("*.held"), None), "the job that hangs")
    orders.complete()

    orders.kill9("driver")
    (clicks.folder / "hold").unlink()
    orders.produce()
    clicks.produce()
    orders.start("driver", "--with", str(clicks.config), keep=False)
    for stream in streams:
        stream.await_completed(stream.truth.ends())

    clicks.start_rival("thief", "driver", "--take-over", url=clicks.second_url, environment=without_spark)
    clicks.wait(lambda: not clicks.health(), "the thief to lead")
    clicks.complete()
    orders.wait(lambda: "stream clicks ends: " in orders.log("driver"), "the fenced stream to end")
    orders.complete()
    starts = {name: orders.log("driver").count(f"leads stream {name} at") for name in ("orders", "clicks")}
    assert starts == {"orders": 2, "clicks": 2}, "no stream ended because of the other"
    assert orders.terminate("driver") == 4, "the exit code of the fenced stream"
    for stream in streams:
        stream.check(stream.truth)
