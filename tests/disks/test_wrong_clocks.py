"""Real processes whose wall clocks differ by hours and jump while they run.

Nothing is lost or repeated (INV-2, INV-3), no lease is taken from a running driver, and clean-up deletes nothing early (INV-8).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from forebay.kafka.embedded.broker import KafkaBroker
from tests.conftest import missing
from tests.integration.test_adoption import drop, leave_an_orphan
from tests.jepsen.clock import HostClock, build
from tests.support.kafka.flow import Flow
from tests.support.processes.cluster import AHEAD, Cluster
from tests.support.servers.certificates import Authority
from tests.support.stores import s3
from tests.support.stores.contract import STORES, Store, require_s3
from tests.support.stores.s3 import S3Server
from wal.segments.barrier import barrier_made_ms
from wal.segments.frame import Frame
from wal.segments.layout import block_folder
from wal.segments.scan import scan_segment

pytestmark = pytest.mark.kafka

HOUR = 3600
#: above what a test takes, and below one jump
RETENTION = "30m"


@pytest.fixture
def clock(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], HostClock]:
    """Returns a clock that is so many seconds ahead, for processes that are started with its environment."""
    folder = tmp_path_factory.mktemp("clocks")
    library = build(folder)
    if library is None:
        missing("a C compiler on Linux with glibc on x86-64, for the library that moves clocks")
    assert library is not None
    numbers = itertools.count()

    def ahead(seconds: int) -> HostClock:
        made = HostClock(library, folder / f"{next(numbers)}")
        made.move(seconds)
        return made

    return ahead


def go_on(cluster: Cluster) -> None:
    """Wait until records that were taken in from now on are completed, and clean-up has looked at their batches.

    Each round of clean-up deletes local copies of completed batches, whatever the retention of the WAL.
    """
    status = cluster.wait(cluster.status, "status")
    cluster.await_records(status.records_completed + 150)
    copies = set(cluster.folder.glob("blocks/*/*.block"))
    cluster.wait(lambda: not any(copy.exists() for copy in copies), "a round of clean-up")


def deletes_nothing(cluster: Cluster, driver: str) -> bool:
    """Whether each segment that a receiver has written still exists. Their names are dense."""
    for folder in cluster.folder.glob("wal/*/blocks/*/*"):
        names = sorted(path.name for path in folder.glob("*.seg"))
        if names != [f"{number:08}.seg" for number in range(1, len(names) + 1)]:
            return False
    return "deleted WAL segment" not in cluster.log(driver)


def test_clocks_that_are_hours_apart_and_jump_lose_no_record_no_lease_and_no_segment(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str], clock: Callable[[int], HostClock]
) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic)
    clocks = {"driver": clock(HOUR), "standby": clock(-HOUR), "r1": clock(-HOUR), "agent": clock(HOUR)}
    with (
        Flow(kafka_broker.options, topic, rate=300) as flow,
        Cluster(
            tmp_path, kafka_broker.options, [topic], receivers=1, start=False, wal={"retention": RETENTION}
        ) as cluster,
    ):
        urls = [cluster.driver_url, cluster.another_url()]
        cluster.write_settings(driver={"urls": urls})
        for name in cluster.names:
            cluster.start(name, environment=clocks[name].environment)
        cluster.await_records(100)
        cluster.start_rival("standby", "driver", "--standby", url=urls[1], environment=clocks["standby"].environment)
        cluster.wait(lambda: f"{urls[0]} (host" in cluster.health(), "the standby to say who leads")
        cluster.listen_to(urls[0])
        for seconds in (-HOUR, HOUR):
            go_on(cluster)
            for name, moved in clocks.items():
                moved.move(seconds if name in ("driver", "agent") else -seconds)
        go_on(cluster)
        assert "taking over" not in cluster.log("standby"), cluster.describe()
        assert deletes_nothing(cluster, "driver"), cluster.describe()
        assert all(cluster.starts(name) == 1 for name in cluster.names), cluster.describe()

        cluster.kill9("driver")
        cluster.listen_to(urls[1])
        clocks["standby"].move(2 * HOUR)  # from its point of view, no batch was completed for hours
        go_on(cluster)
        assert "taking over" in cluster.log("standby")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        assert deletes_nothing(cluster, "standby"), cluster.describe()
        cluster.check(flow.truth)


@pytest.mark.parametrize(("seconds", "reason"), [(HOUR, "has expired"), (-HOUR, "is not yet valid")])
def test_process_with_a_wrong_clock_names_the_certificate_and_continues_when_the_clock_is_right(
    tmp_path: Path,
    kafka_broker: KafkaBroker,
    topic_name: Callable[[], str],
    clock: Callable[[int], HostClock],
    seconds: int,
    reason: str,
) -> None:
    """The certificates are valid for half an hour before and after the present time."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    authority = Authority(tmp_path)
    security = authority.issue("host", valid_minutes=30) | {"ca_file": str(authority.ca_file)}
    wrong = clock(seconds)
    with (
        Flow(kafka_broker.options, topic, rate=300) as flow,
        Cluster(tmp_path, kafka_broker.options, [topic], receivers=1, start=False, security=security) as cluster,
    ):
        cluster.start("driver")
        cluster.start("agent")
        cluster.start("r1", environment=wrong.environment)
        cluster.wait(lambda: reason in cluster.log("r1"), "r1 to name the reason")
        assert "this host's clock says" in cluster.log("r1")
        wrong.move(0)
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        assert cluster.starts("r1") == 1
        cluster.check(flow.truth)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_receiver_with_a_wrong_clock_waits_for_s3_with_the_reason_and_loses_nothing(
    tmp_path: Path,
    kafka_broker: KafkaBroker,
    topic_name: Callable[[], str],
    clock: Callable[[int], HostClock],
    s3_server: S3Server,
    seconds: int,
) -> None:
    """S3 refuses requests whose time is more than 15 minutes off."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    moved = clock(0)
    with (
        Flow(kafka_broker.options, topic, rate=300) as flow,
        Cluster(
            tmp_path / "stream",
            kafka_broker.options,
            [topic],
            receivers=1,
            start=False,
            wal={"url": f"s3://{s3.BUCKET}/wal"},
            storage=s3.options(s3_server.url, request_timeout="2s"),
        ) as cluster,
    ):
        cluster.start("driver")
        cluster.start("agent")
        cluster.start("r1", environment=moved.environment)
        cluster.await_records(100)
        moved.move(seconds)
        cluster.wait(lambda: "RequestTimeTooSkewed" in cluster.log("r1"), "r1 to name the reason")
        moved.move(0)
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        assert cluster.starts("r1") == 1
        cluster.check(flow.truth)


@pytest.mark.parametrize("seconds", [HOUR, -HOUR])
def test_driver_with_a_wrong_clock_ends_with_the_reason_if_its_journal_is_on_s3_and_nothing_is_lost(
    tmp_path: Path,
    kafka_broker: KafkaBroker,
    topic_name: Callable[[], str],
    clock: Callable[[int], HostClock],
    s3_server: S3Server,
    seconds: int,
) -> None:
    topic = topic_name()
    kafka_broker.create_topic(topic)
    moved = clock(0)
    with (
        Flow(kafka_broker.options, topic, rate=300) as flow,
        Cluster(
            tmp_path / "stream",
            kafka_broker.options,
            [topic],
            receivers=1,
            start=False,
            driver={"journal": f"s3://{s3.BUCKET}/journal"},
            storage=s3.options(
                s3_server.url, request_timeout="20s"
            ),  # the audit reads the journal too, without a second try
        ) as cluster,
    ):
        cluster.start("driver", environment=moved.environment)
        cluster.start("agent")
        cluster.start("r1")
        cluster.await_records(100)
        moved.move(seconds)
        assert cluster.await_end("driver") == 1
        assert "RequestTimeTooSkewed" in cluster.log("driver").splitlines()[-1], cluster.log("driver")
        moved.move(0)
        cluster.restart("driver")
        flow.stop()
        cluster.await_completed(flow.truth.ends())
        cluster.check(flow.truth)


@pytest.fixture
def google_store(tmp_path: Path) -> Iterator[Store]:
    with STORES["gs"](tmp_path / "store") as store:
        store.begin()
        yield store


def test_driver_that_starts_a_day_ahead_keeps_the_barriers(
    tmp_path: Path,
    kafka_broker: KafkaBroker,
    topic_name: Callable[[], str],
    clock: Callable[[int], HostClock],
    google_store: Store,
) -> None:
    """INV-8. Barriers stay for 24 hours; with this retention nothing else does. The emulator accepts any time in a request."""
    topic = topic_name()
    kafka_broker.create_topic(topic)
    with Cluster(
        tmp_path / "stream", kafka_broker.options, [topic], receivers=1, start=False, storage=google_store.options,
        kafka={"session.timeout.ms": "1500"}, wal={"url": f"{google_store.url}/wal", "segment_size": "1B", "retention": "0s"},
        driver=AHEAD,
    ) as cluster:  # fmt: skip
        truth = leave_an_orphan(cluster, topic, kafka_broker, action="kill")
        cluster.await_end("r1")
        cluster.kill9("driver")
        drop(kafka_broker, topic, truth.ends())
        epoch = cluster.state().receivers["r1"].epoch
        cluster.restart("driver")
        cluster.start("r1")
        cluster.await_completed(truth.ends())
        cluster.kill9("driver")
        *_, barrier = cluster.wal_storage.list(block_folder("stream", "r1", epoch))
        first = next(scan_segment(cluster.wal_storage, barrier))
        assert isinstance(first, Frame) and barrier_made_ms(first, barrier) is not None

        folder = block_folder("stream", "r1", epoch)
        assert len(cluster.wal_storage.list(folder)) > 1
        cluster.start("driver", environment=clock(25 * HOUR).environment)
        cluster.wait(
            lambda: len(cluster.wal_storage.list(folder)) <= 1 and not cluster.state().cleanups,
            "the end of a round of clean-up of the WAL",
        )
        assert cluster.wal_storage.list(folder) == [barrier]
        cluster.check(truth)


@pytest.fixture
def s3_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[S3Server]:
    require_s3()
    for name, value in s3.ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "s3").mkdir()
    with s3.s3_server(tmp_path / "s3") as server:
        yield server
