"""Kafka with every login, TLS and an authorizer: each role works with exactly its rights, each mistake has its own error."""

from __future__ import annotations

import json
import logging
import pickle
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructType

from deploy.commands.setup import validation
from deploy.main import main
from direct.stream.strategies import Subscribe
from driver import IngestContext
from forebay import messages as m
from forebay.http.client import Client
from forebay.kafka.client.admin import Committed, KafkaAdmin
from forebay.kafka.consume.range_reader import Reading, forget_consumers, read_range
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.options.access import KafkaAccess
from forebay.kafka.options.rights import (
    Right,
    driver_rights,
    reader_rights,
    receiver_rights,
    transaction_rights,
    writer_rights,
)
from forebay.kafka.produce.sender import send_rows
from forebay.kafka.produce.transactions import TransactionalSender, transactional_group
from forebay.model.errors import MissingRightError, SettingsError, UnreachableError
from forebay.model.values import TopicPartition
from forebay.settings.reading.load import load
from pyspark_forebay.kafka.batch import BatchReader
from pyspark_forebay.kafka.stream import StreamReader
from pyspark_forebay.sink.rows import pack_rows
from pyspark_forebay.sink.writers import TaskRows, writer_of
from tests.integration.test_kafka_mistakes import configured, receiver
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.kafka.secured_broker import PASSWORD, SecuredBroker
from tests.support.processes.direct_runs import Runs
from tests.support.servers.certificates import Authority

pytestmark = pytest.mark.kafka

#: timeout of a request that must fail, and the longest time until its error: no mistake hangs
SECONDS, SECONDS_MAX = 6.0, 60.0
#: timeout of a request that may succeed: many clients log in at the same time, on a machine that may be busy
ALLOWED_SECONDS = 20.0
RECORDS = ["a", "b", "c"]
SCHEMA = StructType().add("value", StringType())
#: in no error, log or text
CANARY = "canary-of-the-password"
Options = Mapping[str, str]


@pytest.fixture(autouse=True)
def _short_questions(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(validation, "BROKER_TIMEOUT_SECONDS", SECONDS)
    monkeypatch.setattr("deploy.commands.setup.doctor.brokers.BROKER_TIMEOUT_SECONDS", SECONDS)
    monkeypatch.setattr("driver.http.health.WAITING_SECONDS", 0.0)
    yield
    forget_consumers()


@pytest.fixture
def topic(secured_broker: SecuredBroker, topic_name: Callable[[], str]) -> str:
    """A topic of one partition with RECORDS."""
    name = topic_name()
    secured_broker.create_topic(name, 1)
    assert send_rows(secured_broker.options, name, [values(*RECORDS)]) == len(RECORDS)
    return name


def values(*texts: str) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": list(texts)})


def read(options: Options, topic: str, seconds: float = SECONDS) -> int:
    """Read the topic as a task does."""
    access = KafkaAccess(dict(options), "g", seconds)
    return sum(rows.num_rows for rows in read_range(access, OffsetRange(topic, 0, 0, 3), Reading(keep=False)))


def error_of(use: Callable[[], object]) -> str:
    """Return the error of ``use``, which must not take long and not show the password."""
    began = time.monotonic()
    with pytest.raises((UnreachableError, SettingsError)) as caught:
        use()
    assert time.monotonic() - began < SECONDS_MAX
    message = str(caught.value)
    assert PASSWORD not in message and CANARY not in message and "the-secret-of-forebay" not in message
    return message


# ---- logins ----------------------------------------------------------------------------------------------------------


def test_every_login_reads(secured_broker: SecuredBroker, topic: str) -> None:
    broker = secured_broker
    broker.add_scram("scrammed")
    certificate = broker.authority.issue("certified")
    for user in ("scrammed", "certified", "forebay", "reader"):
        broker.allow(user, reader_rights([topic]))
    over_tls = {**broker.tls_options, "bootstrap.servers": broker.sasl_tls, "security.protocol": "sasl_ssl"}
    logins: dict[str, Options] = {
        "PLAIN": broker.sasl_options,
        "SCRAM-SHA-256": broker.login("scrammed", "SCRAM-SHA-256"),
        "SCRAM-SHA-512": broker.login("scrammed", "SCRAM-SHA-512"),
        "OAUTHBEARER": broker.token_options,
        "TLS": broker.tls_options,
        "mutual TLS": broker.certificate_options(certificate),
        "PLAIN over TLS": {**broker.sasl_options, **over_tls},
        "SCRAM over TLS": {**broker.login("scrammed", "SCRAM-SHA-512"), **over_tls},
        "OAUTHBEARER over TLS": {**broker.token_options, **over_tls},
    }
    with ThreadPoolExecutor(len(logins)) as pool:
        found = dict(
            zip(logins, pool.map(lambda options: read(options, topic, ALLOWED_SECONDS), logins.values()), strict=True)
        )
    assert found == dict.fromkeys(logins, len(RECORDS))


def test_every_wrong_login_has_an_error_that_names_what_to_do(secured_broker: SecuredBroker, tmp_path: Path) -> None:
    broker, other = secured_broker, Authority(tmp_path, "other")
    broker.add_scram("mistaken")
    tls = broker.tls_options
    mistakes: dict[str, tuple[Options, str]] = {
        "wrong password": (
            {**broker.sasl_options, "sasl.password": CANARY},
            r'Invalid username or password; check "sasl\.mechanism", "sasl\.username" and "sasl\.password"',
        ),
        "wrong password of SCRAM": (
            {**broker.login("mistaken", "SCRAM-SHA-512"), "sasl.password": CANARY},
            r'invalid credentials with SASL mechanism SCRAM-SHA-512; check "sasl\.mechanism"',
        ),
        "wrong secret of OAuth": (
            {**broker.token_options, "sasl.oauthbearer.client.secret": CANARY},
            r'invalid_client.*check "sasl\.oauthbearer\.token\.endpoint\.url"',
        ),
        "no token endpoint": (
            {**broker.token_options, "sasl.oauthbearer.token.endpoint.url": "http://127.0.0.1:1/token"},
            r'Failed to connect to 127\.0\.0\.1:1 .*check "sasl\.oauthbearer\.token\.endpoint\.url"',
        ),
        "no password": ({**broker.sasl_options, "sasl.password": ""}, r"kafka\.'sasl\.password' is missing: PLAIN"),
        "unknown authority": (
            {**tls, "ssl.ca.location": str(other.ca_file)},
            r'certificate of 127\.0\.0\.1:\d+ is refused: unable to get local issuer certificate; set "ssl\.ca\.location"',
        ),
        "system's authorities": (
            {key: value for key, value in tls.items() if key != "ssl.ca.location"},
            r'unable to get local issuer certificate; set "ssl\.ca\.location"',
        ),
        "expired certificate of the broker": (
            {**tls, "bootstrap.servers": broker.expired},
            r"certificate of 127\.0\.0\.1:\d+ is refused: certificate has expired; renew the broker's certificate",
        ),
        "other name of the broker": (
            {**tls, "bootstrap.servers": broker.tls.replace("127.0.0.1", "localhost")},
            r"Hostname mismatch.*name the broker in \"bootstrap\.servers\" and in advertised\.listeners",
        ),
        "expired certificate of the client": (
            broker.certificate_options(broker.authority.issue("late", valid_days=-1)),
            r'client\'s certificate "ssl\.certificate\.location" \(.*late\.pem\) expired on 20\d\d-\d\d-\d\d .* renew it',
        ),
        "client's certificate of another authority": (
            broker.certificate_options(other.issue("stranger")),
            r"the broker refused this client's certificate, or requires one: check \"ssl\.certificate\.location\"",
        ),
        "no certificate of the client": (
            {**tls, "bootstrap.servers": broker.mutual},
            r"the broker refused this client's certificate, or requires one",
        ),
        "TLS at a port without": ({**tls, "bootstrap.servers": broker.address}, r"SSL handshake failed: .*PLAINTEXT"),
    }  # fmt: skip

    def topics(options: Options) -> object:
        with KafkaAdmin(options, timeout_seconds=SECONDS) as admin:
            return admin.topics()

    with ThreadPoolExecutor(len(mistakes)) as pool:
        errors = pool.map(lambda case: error_of(lambda: topics(case[0])), mistakes.values())
        wrong = {name: message for (name, case), message in zip(mistakes.items(), errors, strict=True)
                 if not re.search(case[1], message)}  # fmt: skip
    assert wrong == {}
    tokens: tuple[tuple[dict[str, object], bool, str], ...] = (
        ({"exp": int(time.time()) - 60}, False, "Must supply an unexpired token"),
        ({}, True, "SASL authentication error"),
        ({"aud": "another service"}, False, "SASL authentication error"),
    )
    for claims, forges, reason in tokens:
        broker.tokens.claims, broker.tokens.forges = claims, forges
        try:
            assert reason in error_of(lambda: topics(broker.token_options))
        finally:
            broker.tokens.claims, broker.tokens.forges = {}, False


# ---- rights ----------------------------------------------------------------------------------------------------------


class Role(NamedTuple):
    """``use`` needs ``rights``. ``group``: that of the role, in which the roles of a test differ."""

    rights: list[Right]
    use: Callable[[Options], object]


def batch_query(topic: str) -> Callable[[Options], object]:
    def use(options: Options) -> int:
        reader = BatchReader({**of_spark(options), "subscribe": topic, "fetchOffset.numRetries": "0"})
        return sum(rows.num_rows for part in reader.partitions() for rows in reader.read(part))

    return use


def streaming_query(topic: str) -> Callable[[Options], object]:
    def use(options: Options) -> int:
        more = {"subscribe": topic, "startingOffsets": "earliest", "fetchOffset.numRetries": "0"}
        reader = StreamReader({**of_spark(options), **more})
        begin = reader.initialOffset()
        end = reader.latestOffset(begin, ReadAllAvailable())
        parts = pickle.loads(pickle.dumps(reader)).partitions(begin, end)
        return sum(rows.num_rows for part in parts for rows in reader.read(part))

    return use


def direct_stream(topic: str, folder: Path) -> Callable[[Options], object]:
    """A direct stream that commits to a group."""

    def use(options: Options) -> int:
        runs = Runs(options, folder / f"checkpoint-{options.get('sasl.username')}")
        stream = runs.start(Subscribe([topic]), params={"group.id": f"direct-{topic}"}, timeout_seconds=ALLOWED_SECONDS)
        runs.await_records(len(RECORDS))
        runs.stop(stream)
        return runs.records

    return use


def commit(topic: str) -> Callable[[Options], object]:
    def use(options: Options) -> int:
        with KafkaAdmin(options, timeout_seconds=SECONDS) as admin:
            at = {TopicPartition(topic, 0): Committed(3, -1, "")}
            refused = admin.publish(f"commits-{topic}", at)
            if refused:
                raise MissingRightError(refused[TopicPartition(topic, 0)])
            return admin.committed(f"commits-{topic}", at)[TopicPartition(topic, 0)].offset

    return use


def sink(topic: str) -> Callable[[Options], object]:
    def use(options: Options) -> int:
        writer: Any = writer_of(
            {**of_spark(options), "topic": topic, "kafka.message.timeout.ms": "3000"}, SCHEMA, streaming=False
        )
        assert PASSWORD not in repr(vars(writer))
        writer.write(iter([values("d", "e", "f")]))
        return 3

    return use


def transactional_sink(topic: str) -> Callable[[Options], object]:
    def use(options: Options) -> int:
        more = {"topic": topic, "transactional": "true", "groupIdPrefix": f"sink-{topic}"}
        writer: Any = writer_of({**of_spark(options), **more}, SCHEMA, streaming=False)
        rows = TaskRows("q", None, pack_rows(iter([values("d", "e", "f")]), topic))
        assert PASSWORD not in repr(rows)
        writer.commit([rows])
        return 3

    return use


def of_spark(options: Options) -> dict[str, str]:
    return {f"kafka.{key}": value for key, value in options.items()}


def test_every_reader_and_writer_works_with_exactly_its_rights_and_names_each_one_that_is_missing(
    secured_broker: SecuredBroker,
    topic: str,
    topic_name: Callable[[], str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    written = topic_name()
    secured_broker.create_topic(written, 1)
    direct, commits = (Right("group", f"{use}-{topic}", ("Read",)) for use in ("direct", "commits"))
    roles = {
        "task": Role(reader_rights([topic]), lambda options: read(options, topic, ALLOWED_SECONDS)),
        "batch query": Role(reader_rights([topic]), batch_query(topic)),
        "streaming query": Role(reader_rights([topic]), streaming_query(topic)),
        "direct stream": Role([*reader_rights([topic]), direct], direct_stream(topic, tmp_path)),
        "commits": Role([*reader_rights([topic]), commits], commit(topic)),
        "sink": Role(writer_rights(written), sink(written)),
        "transactional sink": Role(transaction_rights(written, f"sink-{written}"), transactional_sink(written)),
    }
    fine = {name: (secured_broker.principal(role.rights), role) for name, role in roles.items()}
    lacking = {
        (name, right): secured_broker.principal([other for other in role.rights if other != right])
        for name, role in roles.items()
        for right in role.rights
    }
    with ThreadPoolExecutor(6) as pool:
        used = dict(zip(fine, pool.map(lambda one: one[1].use(one[0]), fine.values()), strict=True))
        errors = dict(
            zip(
                lacking, pool.map(lambda at: error_of(lambda: roles[at[0][0]].use(at[1])), lacking.items()), strict=True
            )
        )
    assert used == dict.fromkeys(roles, len(RECORDS))
    for (name, right), message in errors.items():
        kind = "--cluster" if right.kind == "cluster" else f"--{right.kind} {right.name}"
        assert re.search(rf"allow it: .*kafka-acls\.sh --add .*{re.escape(kind)}", message), (name, right, message)
        assert secured_broker.sasl in message or name == "commits", (name, right, message)
    assert PASSWORD not in caplog.text


def test_a_producer_that_may_only_see_the_topic_names_the_right_to_write(
    secured_broker: SecuredBroker, topic: str
) -> None:
    """Kafka denies such a producer its id, which ends the client within the poll that also reports the records."""
    seeing = secured_broker.principal([Right("topic", topic, ("Describe",))])
    message = error_of(lambda: sink(topic)(seeing))
    assert message.endswith(f"--operation Write --topic {topic}")
    message = error_of(lambda: read(seeing, topic))
    assert message.endswith(f"--operation Read --topic {topic}")
    name = f"id-{topic}"
    reading = secured_broker.principal([*transaction_rights(topic, name)[1:], Right("topic", topic, ("Read",))])
    sender = TransactionalSender(
        reading, topic, transactional_id=name, group=transactional_group(name), timeout_seconds=10.0
    )

    def transaction() -> None:
        sender.open()
        sender.begin()
        sender.put([(topic, None, b"v", None, None)])
        sender.commit("marker", 1)

    assert f"--operation Write --topic {topic}" in error_of(transaction)
    sender.close()


# ---- an intake and the commands --------------------------------------------------------------------------------------


def until(condition: Callable[[], bool]) -> bool:
    """Return whether ``condition`` becomes true in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (true := condition()) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    return true


def is_committed(admin: KafkaAdmin, group: str, tp: TopicPartition) -> bool:
    return [at.offset for at in admin.committed(group, [tp]).values()] == [len(RECORDS)]


def as_principal(config: Path, options: Options, name: str) -> Path:
    """Return a copy of ``config`` beside it, with another user."""
    copy = config.with_name(f"{name}.toml")
    copy.write_text(
        re.sub(r'"sasl.username" = ".*"', f'"sasl.username" = "{options["sasl.username"]}"', config.read_text())
    )
    return copy


def test_an_intake_and_the_commands_work_with_exactly_their_rights(
    secured_broker: SecuredBroker,
    topic: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    group = f"forebay.{topic}"
    driving = secured_broker.principal(driver_rights([topic], [group, f"{group}.completed"]))
    config = configured(tmp_path, driving, topic, topic)
    receiving = as_principal(config, secured_broker.principal(receiver_rights([topic], group)), "receiver")
    got = threading.Semaphore(0)

    def job(batch: Any) -> None:
        for _ in range(batch.records):
            got.release()

    with IngestContext(None, load(config)).foreach_batch(job) as intake:
        running = receiver(load(receiving))
        for _ in RECORDS:
            assert got.acquire(timeout=PATIENCE_SECONDS), Client(intake.url).get("/v1/status", m.StatusAnswer)
        with KafkaAdmin(secured_broker.options) as admin:
            tp = TopicPartition(topic, 0)
            for name in (group, f"{group}.completed"):
                assert until(partial(is_committed, admin, name, tp)), name
        assert main(["--config", str(config), "validate"]) == 0, capsys.readouterr().out
        capsys.readouterr()
        main(["--config", str(config), "doctor", "--json"])
        found = json.loads(capsys.readouterr().out)
        rights = [one for one in found if one["name"].startswith("rights on")]
        assert len(rights) == 2 and {one["outcome"] for one in rights} == {"fine"}, rights
        assert main(["--config", str(config), "lag"]) == 0
        assert main(["--config", str(config), "status", "--json"]) in (0, 1)
        running.service.drain()
        assert running.ended() == 0
    (tmp_path / "lines").write_text("d\ne\n")
    writing = as_principal(config, secured_broker.principal(writer_rights(topic)), "writer")
    assert main(["--config", str(writing), "produce", topic, "--file", str(tmp_path / "lines")]) == 0
    assert main(["--config", str(receiving), "produce", topic, "--file", str(tmp_path / "lines")]) == 2
    refused = capsys.readouterr()
    assert f"--operation Write --topic {topic}" in refused.err
    assert main(["--config", str(config), "audit"]) == 0
    output = capsys.readouterr()
    for text in (output.out, output.err, refused.out, refused.err, caplog.text):
        assert PASSWORD not in text


def test_driver_and_receivers_show_each_missing_right(
    secured_broker: SecuredBroker, topic: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    group = f"forebay.{topic}"
    config = configured(tmp_path, secured_broker.sasl_options, topic, topic)

    def lacking(rights: list[Right], kind: str) -> Path:
        options = secured_broker.principal([right for right in rights if right.kind != kind])
        return as_principal(config, options, options["sasl.username"])

    def await_problem(url: str, kind: str, message: str) -> str:
        client = Client(url)
        found: list[str] = []

        def is_shown() -> bool:
            problems = client.get("/v1/status", m.StatusAnswer).problems
            found[:] = [one.cause for one in problems if one.kind == kind and message in one.cause]
            return bool(found)

        assert until(is_shown), client.get("/v1/status", m.StatusAnswer)
        return found[0]

    needs = driver_rights([topic], [group, f"{group}.completed"])
    for kind, command in (
        ("topic", f"--operation Describe --topic {topic}"),
        ("group", f"--operation Describe --group {group}"),
    ):
        file = lacking(needs, kind)
        assert main(["--config", str(file), "validate"]) == (2 if kind == "topic" else 0)
        assert (command in capsys.readouterr().out) == (kind == "topic")
        with IngestContext(None, load(file)).foreach_batch(lambda batch: None) as intake:
            assert secured_broker.sasl in await_problem(intake.url, "kafka", command)
    fine = load(as_principal(config, secured_broker.principal(needs), "driver"))
    with IngestContext(None, fine).foreach_batch(lambda batch: None) as intake:
        each = {
            kind: receiver(load(lacking(receiver_rights([topic], group), kind)), f"without-{kind}")
            for kind in ("topic", "group")
        }
        for kind, name in (("topic", topic), ("group", group)):
            message = await_problem(intake.url, "receiver-waiting", f"--operation Read --{kind} {name}")
            assert f"without-{kind}" in message
        for running in each.values():
            running.service.drain()
            assert running.ended() == 0
