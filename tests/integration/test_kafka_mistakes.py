"""Mistakes about Kafka's address and login: each command, service and reader names the broker and librdkafka's reason."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from deploy.commands.setup import validation
from deploy.main import main
from direct.stream.strategies import Subscribe
from driver import IngestContext
from forebay import messages as m
from forebay.http.client import Client
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.block_ranges import RangeProgress, RangeReader
from forebay.kafka.consume.consumer import KafkaSource
from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.options.access import KafkaAccess
from forebay.kafka.options.rights import reader_rights
from forebay.kafka.produce.sender import send_rows
from forebay.kafka.produce.transactions import TransactionalSender
from forebay.model.errors import UnreachableError
from forebay.model.values import BlockRange, TopicPartition
from forebay.process.clock import SystemClock
from forebay.settings.reading.load import load
from forebay.settings.schema import Settings
from pyspark_forebay.kafka.batch import BatchReader
from receiver.main import compose
from tests.receiver.test_service import Running
from tests.support.kafka.secured_broker import PASSWORD, USER, Mistake, SecuredBroker
from tests.support.processes.direct_runs import Runs
from tests.support.run.ports import free_port
from wal.storage.local import LocalStorage

pytestmark = pytest.mark.kafka

#: how long a question is asked here; librdkafka meets each mistake within milliseconds
SECONDS = 1.0
TP = TopicPartition("t", 0)
#: not the right one, and in no message either
WRONG = "canary-of-the-password"

REASONS = {
    "wrong password": r"SASL authentication error: Authentication failed: Invalid username or password",
    # the second one if the broker has closed the connection before the client reads the broker's answer to the handshake
    "tls at a plaintext port": (
        r"SSL handshake failed: .*connecting to a PLAINTEXT broker listener\?"
        r'|Disconnected: .*check "security\.protocol" and the port'
    ),
    "plaintext at a tls port": r'Disconnected: .*check "security\.protocol" and the port',
    "plaintext at a sasl port": r'Disconnected: .*check "security\.protocol" and the port',
    "unknown name": r"Failed to resolve 'no-such-host\.invalid:9092'",
    "closed port": r"Connect to ipv4#127\.0\.0\.1:1 failed: Connection refused",
}


@pytest.fixture
def broker(secured_broker: SecuredBroker) -> SecuredBroker:
    return secured_broker


@pytest.fixture(params=REASONS)
def mistake(request: pytest.FixtureRequest, broker: SecuredBroker) -> Mistake:
    options: dict[str, Mapping[str, str]] = {
        "wrong password": {**broker.sasl_options, "sasl.password": WRONG},
        "tls at a plaintext port": {**broker.tls_options, "bootstrap.servers": broker.address},
        "plaintext at a tls port": {"bootstrap.servers": broker.tls},
        "plaintext at a sasl port": {"bootstrap.servers": broker.sasl},
        "unknown name": {"bootstrap.servers": "no-such-host.invalid:9092"},
        "closed port": {"bootstrap.servers": "127.0.0.1:1"},
    }
    return Mistake(options[request.param], REASONS[request.param])


@pytest.fixture
def wrong_password(broker: SecuredBroker) -> Mistake:
    return Mistake({**broker.sasl_options, "sasl.password": WRONG}, REASONS["wrong password"])


@pytest.fixture(autouse=True)
def _short_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = KafkaAdmin.__init__.__kwdefaults__
    assert defaults is not None
    monkeypatch.setitem(defaults, "timeout_seconds", SECONDS)
    monkeypatch.setattr(validation, "BROKER_TIMEOUT_SECONDS", SECONDS)
    monkeypatch.setattr("driver.http.health.WAITING_SECONDS", 0.0)


def assert_names(message: str, mistake: Mistake) -> None:
    assert mistake.address in message
    assert re.search(mistake.reason, message), message
    assert WRONG not in message


def configured(folder: Path, options: Mapping[str, str], stream: str = "s", topic: str = "t") -> Path:
    kafka = "\n".join(f'"{key}" = "{value}"' for key, value in options.items())
    (folder / "jobs.py").write_text("def process(batch):\n    pass\n")
    config = folder / "forebay.toml"
    config.write_text(f"""
stream = "{stream}"
[kafka]
topics = ["{topic}"]
{kafka}
[wal]
url = "file://{folder}/wal"
[receiver]
heartbeat_interval = "100ms"
[driver]
url = "http://127.0.0.1:{free_port()}"
journal = "file://{folder}/journal"
job = "jobs:process"
engine = "local"
[agent]
url = "http://127.0.0.1:{free_port()}"
blocks = "{folder}/blocks"
""")
    return config


def receiver(settings: Settings, name: str = "r-1") -> Running:
    source = KafkaSource.of(settings, client_id=name)
    storage = LocalStorage(settings.wal.url.removeprefix("file://"))
    return Running(compose(settings, name, source=source, storage=storage, clock=SystemClock(), host="h"))


def test_broker_with_the_right_options_answers(broker: SecuredBroker, topic_name: Callable[[], str]) -> None:
    topic = topic_name()
    broker.create_topic(topic, 3)
    broker.allow(USER, reader_rights([topic]))
    for options in (broker.options, broker.sasl_options, broker.tls_options):
        with KafkaAdmin(options, timeout_seconds=60.0) as admin:
            assert admin.topics()[topic] == 3


def test_validate_driver_and_receiver_name_broker_and_reason_once(
    mistake: Mistake, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    config = configured(tmp_path, mistake.options)
    assert main(["--config", str(config), "validate"]) == 3
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("unreachable")]
    assert_names(line, mistake)
    caplog.clear()
    settings = load(config)
    with IngestContext(None, settings).foreach_batch(lambda batch: None) as intake:
        running = receiver(settings)
        client = Client(intake.url)

        def problems() -> dict[str, m.Problem]:
            return {problem.kind: problem for problem in client.get("/v1/status", m.StatusAnswer).problems}

        for _ in range(1000):
            if {"kafka", "receiver-waiting"} <= problems().keys():
                break
            threading.Event().wait(0.02)
        found = problems()
        assert_names(found["kafka"].cause, mistake)
        assert_names(found["receiver-waiting"].cause, mistake)
        (shown,) = client.get("/v1/status", m.StatusAnswer).receivers
        assert_names(" ".join(note.message for note in shown.errors), mistake)
        running.service.drain()
        assert running.ended() == 0
    logged = [record.getMessage() for record in caplog.records]
    for prefix in ("waiting: Kafka: ", "Kafka: "):
        own = [line for line in logged if line.startswith(prefix)]
        assert 1 <= len(own) <= 2, "again only if librdkafka reports one more reason"
        assert_names(own[-1], mistake)
    assert not [line for line in logged if line.startswith("FAIL")]


def test_every_reader_and_writer_names_broker_and_reason(
    wrong_password: Mistake, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Direct streams and queries ask by the same client as the driver; tasks read by consumers, outputs write by producers."""
    options = wrong_password.options
    access = KafkaAccess(dict(options), "g", SECONDS)

    def direct_stream() -> None:
        Runs(options, tmp_path / "checkpoint").start(Subscribe(["t"]), timeout_seconds=SECONDS)

    def batch_query() -> None:
        given = {f"kafka.{key}": value for key, value in options.items()}
        BatchReader({**given, "subscribe": "t", "fetchOffset.numRetries": "0"}).partitions()

    def task() -> None:
        list(read_range(access, OffsetRange("t", 0, 0, 3), Reading(keep=False)))

    def task_of_an_intake() -> None:
        wanted = BlockRange("t", 0, 1, 0, 3, 3, 0, "", 1)
        RangeReader(access, False)._fetch({TP: RangeProgress.begin(wanted, 0, 3)})

    def committed_offsets() -> None:
        with KafkaAdmin(options, timeout_seconds=SECONDS) as admin:
            admin.committed("g", [TP])

    def transaction() -> None:
        TransactionalSender(options, "t", transactional_id="id", group="g", timeout_seconds=SECONDS).open()

    def output() -> None:
        send_rows({**options, "message.timeout.ms": "1000"}, "t", [pa.RecordBatch.from_pydict({"value": ["v"]})])

    def error_of(use: Callable[[], None]) -> str:
        with pytest.raises(UnreachableError) as caught:
            use()
        return str(caught.value)

    uses = (direct_stream, batch_query, task, task_of_an_intake, committed_offsets, transaction, output)
    with ThreadPoolExecutor(len(uses)) as pool:
        for message in pool.map(error_of, uses):
            assert_names(message, wrong_password)
    assert "FAIL" not in caplog.text
    assert PASSWORD not in caplog.text
