"""Fixtures that need a broker, the rule for a missing service (skipped with a loud reason here, a failure in CI), and how the
tests are shared out among processes."""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest
from xdist.remote import Producer

from forebay.kafka.consume import block_ranges, fetching
from forebay.kafka.embedded.broker import KafkaBroker, MockBroker
from forebay.kafka.embedded.jars import fetch_jars, find_java, jars_present
from forebay.kafka.native.library import library
from forebay.model.errors import ForebayError, UsageError
from tests.support.kafka import shared_broker
from tests.support.kafka.secured_broker import SecuredBroker
from tests.support.processes import forked
from tests.support.run import hangs, idle_servers, loggers, not_tested, profile, rewritten, run_state, shares
from tests.support.servers.apicurio import SchemaRegistry, require_apicurio
from tests.support.servers.postgresql import PostgresServer, require_postgresql
from tests.support.spark import java_classes
from tests.support.stores.hdfs import HdfsServer, require_hdfs

if TYPE_CHECKING:
    from tests.support.kafka.registered import Writers

hypothesis.settings.register_profile("forebay", deadline=None)  # how long an example takes is the machine's affair
hypothesis.settings.load_profile("forebay")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--profile-to",
        metavar="FOLDER",
        type=Path,
        help="write the time of each test there, see tests.support.run.profile",
    )


def pytest_configure(config: pytest.Config) -> None:
    # a shell's background ignores SIGINT, and commands of tests would inherit it
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    loggers.install()
    config.pluginmanager.register(hangs.Hangs())
    config.pluginmanager.register(idle_servers.IdleServers())
    if (folder := config.getoption("profile_to")) is not None:
        config.pluginmanager.register(profile.Profile(folder))
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(profile.Processes(folder))
    first_of_many = shares.workers(config) > 0 and not hasattr(config, "workerinput")
    if first_of_many:
        run_state.require_room()
        config.pluginmanager.register(run_state.Failures(config))
        config.pluginmanager.register(shared_broker.Keeper(start_broker))
    with rewritten.rewriting() if first_of_many else contextlib.nullcontext():
        java_classes.share(create=first_of_many)


@pytest.hookimpl(tryfirst=True)
def pytest_collection() -> None:
    gc.disable()  # each collection would look at all tests that were found so far


def pytest_collection_finish() -> None:
    """The thousands of tests and their modules stay until the end: no garbage collection looks at them again."""
    gc.collect()
    gc.freeze()
    gc.enable()


def pytest_unconfigure() -> None:
    forked.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: shares.rank(item.nodeid))


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    return shares.workers(config)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> shares.Scheduling:
    config.option.loadscopereorder = False  # the order of shares is the order of the tests
    return shares.Scheduling(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    not_tested.write_summary(terminalreporter)


def running_in_ci() -> bool:
    return os.environ.get("CI", "").lower() in ("1", "true")


def missing(reason: str) -> None:
    """A service that a test needs is not there. Skips on a developer's machine, fails where CI=true."""
    if running_in_ci():
        pytest.fail(f"CI must have it: {reason}", pytrace=False)
    pytest.skip(f"{not_tested.MARK}{reason}")


#: of a broker that no test kills, and where no record is deleted by age. With the intervals of other brokers, heartbeats to its
#: own controller and looks at all its partitions are about half of its work while no test uses it
RARE_CHECKS = {
    "broker.heartbeat.interval.ms": "20000", "broker.session.timeout.ms": "90000",
    "log.retention.check.interval.ms": "5000", "log.cleaner.backoff.ms": "1000",
}  # fmt: skip


def start_broker(folder: Path) -> KafkaBroker:
    return KafkaBroker(folder, properties=RARE_CHECKS, heap_mib=1024).start()


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real Apache Kafka, one for all processes of the run. Name your topics and groups by ``topic_name``; don't stop it."""
    require_kafka()
    try:
        found = shared_broker.find()
        broker = start_broker(tmp_path_factory.mktemp("kafka")) if found is None else found
    except ForebayError as error:
        missing(str(error))
    yield broker
    if found is None:
        broker.kill9()  # nothing needs its data


@pytest.fixture(scope="session")
def secured_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredBroker]:
    """A real Apache Kafka with every login, TLS and an authorizer, one for each share of tests. Make a topic of your own; don't
    stop it."""
    require_kafka()
    with SecuredBroker(tmp_path_factory.mktemp("secured")) as broker:
        yield broker


@pytest.fixture
def own_kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real Apache Kafka of the test's own, to be stopped, killed and restarted as it likes."""
    yield from _unshared_broker(tmp_path_factory)


@pytest.fixture(scope="module")
def killed_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """A real Kafka that tests of this module kill and start again. Each leaves it running."""
    yield from _unshared_broker(tmp_path_factory)


def _unshared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    require_kafka()
    broker = KafkaBroker(tmp_path_factory.mktemp("own-kafka"))
    try:
        yield broker.start()
    finally:
        broker.kill9()


def require_kafka() -> None:
    """Skips or fails if Java or Kafka's jars are missing; in CI the jars are fetched if need be."""
    try:
        find_java()
        if not jars_present():
            if not running_in_ci():
                missing("Apache Kafka's jars are not here: run `make test`, or python -m forebay.kafka.embedded.jars")
            fetch_jars()
    except UsageError as error:
        missing(str(error))


@contextlib.contextmanager
def _running(server: HdfsServer | SchemaRegistry, stop: Callable[[], None]) -> Iterator[None]:
    """``server`` from its start to ``stop``; what prevents the start is what is missing."""
    try:
        server.start()
    except ForebayError as error:
        stop()
        missing(str(error))
    try:
        yield
    finally:
        stop()


@pytest.fixture(scope="session")
def hdfs_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HdfsServer]:
    """A real HDFS, one for each share of tests. Work in a folder of your own; who stops a node starts it again."""
    require_hdfs(missing)
    server = HdfsServer(tmp_path_factory.mktemp("hdfs"))
    with _running(server, server.kill9):
        yield server


@pytest.fixture(scope="session")
def postgresql() -> Iterator[PostgresServer]:
    """A real PostgreSQL, one for each share of tests. Work in a database, or tables, of your own."""
    require_postgresql(missing)
    server = PostgresServer()
    try:
        server.__enter__()
    except ForebayError as error:
        missing(str(error))
    try:
        yield server
    finally:
        server.__exit__(None, None, None)


@pytest.fixture(scope="session")
def mock_broker() -> Iterator[MockBroker]:
    """librdkafka's mock cluster, one for the whole run; every topic has four partitions."""
    with MockBroker() as broker:
        yield broker


@pytest.fixture(scope="session")
def spark() -> Iterator[object]:
    """One Spark session for all tests of a process."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    session = (
        SparkSession.builder.master("local[2]")
        .appName("forebay-tests")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config(
            "spark.connect.grpc.binding.port", "0"
        )  # of the server that tests/pyspark_forebay/test_connect.py starts
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    yield session
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # py4j leaves its sockets to the collector
        session.stop()


@pytest.fixture
def no_reader_kept() -> Iterator[None]:
    """Closes the readers of ranges that the test left open for the next one."""
    yield
    block_ranges.kept_readers.clear()


@pytest.fixture(params=["native", "without-native-code"])
def each_way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a test twice: with records gathered in native code, and in Python."""
    if request.param == "without-native-code":
        monkeypatch.setattr(fetching, "library", lambda: None)
    else:
        assert library() is not None, "python scripts/compile_native.py"


_numbers = itertools.count(1)


@pytest.fixture
def topic_name(request: pytest.FixtureRequest) -> Callable[[], str]:
    """Gives names for topics and groups that no other test uses."""
    return lambda: f"{request.node.originalname[:40]}-{os.getpid()}-{next(_numbers)}".replace("_", "-")


@pytest.fixture(scope="session")
def schema_registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SchemaRegistry]:
    """A real schema registry, one for each share of tests. Register under subjects of your own; don't stop it."""
    require_apicurio(missing)
    server = SchemaRegistry(tmp_path_factory.mktemp("apicurio"))
    with _running(server, server.stop):
        yield server


@pytest.fixture(scope="session")
def writers(schema_registry: SchemaRegistry) -> Iterator[Writers]:
    from tests.support.kafka.registered import Writers  # only who writes by them pays for the serialisers

    made = Writers(schema_registry.url)
    yield made
    made.close()
