"""`forebay produce` sends lines and flights to a topic, and names what is wrong about the topic."""

from __future__ import annotations

import io
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Consumer
from confluent_kafka import TopicPartition as WirePartition

from deploy.commands.trial.produce import bounded
from deploy.main import main
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import MockBroker
from forebay.model.values import TopicPartition
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.run.wheel import ROOT


@pytest.fixture
def broker(project: Any) -> Any:
    with MockBroker() as running:
        running.create_topic("t")
        project.replace('127.0.0.1:1"\n[wal]', f'{running.address}"\n[wal]')
        yield running


def read(broker: MockBroker, count: int) -> list[tuple[Any, Any]]:
    """Return key and value of the first ``count`` records of topic t."""
    consumer = Consumer({"bootstrap.servers": broker.address, "group.id": "reader", "auto.offset.reset": "earliest"})
    try:
        consumer.assign([WirePartition("t", number, 0) for number in range(4)])
        found: list[tuple[Any, Any]] = []
        deadline = time.monotonic() + PATIENCE_SECONDS
        while len(found) < count:
            assert time.monotonic() < deadline
            message = consumer.poll(1.0)
            if message is not None and message.error() is None:
                found.append((message.key(), message.value()))
        return found
    finally:
        consumer.close()


def test_lines_flights_and_what_is_typed_reach_the_topic(
    project: Any,
    broker: MockBroker,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    command = ["--config", str(project.config), "produce"]
    file = tmp_path / "lines"
    file.write_bytes(b"k1:a:b\r\nk2:\n:c\n")
    assert main([*command, "--file", str(file), "--key-separator", ":"]) == 0  # kafka.topics has the topic
    out, err = capsys.readouterr()
    assert (out, err) == ("", "sent 3 records to t, all acknowledged\n")
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"plain\nlast line without end")))
    assert main([*command, "t", "--json"]) == 0
    assert '"records": 2' in capsys.readouterr().out
    assert main([*command, "t", "--flights", "--limit", "5"]) == 0
    records = read(broker, 10)
    assert {(key, value) for key, value in records if not (value or b"").startswith(b'{"year"')} == {
        (b"k1", b"a:b"), (b"k2", b""), (b"", b"c"), (None, b"plain"), (None, b"last line without end"),
    }  # fmt: skip
    assert sum((value or b"").startswith(b'{"year":2013') for _, value in records) == 5


def test_typed_line_is_sent_before_the_end_of_the_input(project: Any, broker: MockBroker) -> None:
    command = [sys.executable, "-m", "forebay_start", "--config", str(project.config), "produce", "t"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdin is not None and process.stderr is not None
        process.stdin.write(b"typed\n")
        process.stdin.flush()
        assert read(broker, 1) == [(None, b"typed")]
        process.send_signal(2)
        assert process.wait(60) == 0
        assert process.stderr.read() == b"sent 1 records to t, all acknowledged\n"


def test_rate_bounds_records_per_second() -> None:
    began = time.monotonic()
    assert len(list(bounded(iter([(None, b"")] * 300), 1000, None))) == 300
    assert time.monotonic() - began >= 0.15


def test_limit_reads_no_further_record() -> None:
    records = iter([(None, b"1"), (None, b"2"), (None, b"3")])
    assert [value for _, value in bounded(records, None, 2)] == [b"1", b"2"]
    assert next(records) == (None, b"3")
    assert list(bounded(iter([(None, b"1")]), None, 0)) == []


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["tt", "--flights"], 2, "has no topic 'tt'; did you mean t? create it"),
        (["--key-separator", ":", "--file", "LINES"], 2, "the line 'no separator' has no ':'"),
        (["--flights", "--file", "LINES"], 2, "--flights excludes --file"),
        (["--key-separator", ""], 2, "--key-separator must not be empty"),
        (["--file", "missing"], 2, "'missing' does not exist"),
    ],
)
def test_mistake_is_one_sentence(
    project: Any, broker: MockBroker, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, message: str
) -> None:
    lines = project.folder / "lines"
    lines.write_text("no separator\n")
    arguments = [str(lines) if part == "LINES" else part for part in arguments]
    assert main(["--config", str(project.config), "produce", *arguments]) == code
    err = capsys.readouterr().err
    assert message in err and err.count("\n") == 1
    with KafkaAdmin(broker.options) as admin:
        assert set(admin.ends([TopicPartition("t", number) for number in range(4)]).values()) == {0}


def test_broker_that_does_not_answer_is_named(
    project: Any, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.setattr("deploy.commands.trial.produce._BROKER_SECONDS", 0.5)
    assert main(["--config", str(project.config), "produce", "t", "--flights"]) == 3
    err = capsys.readouterr().err
    assert "Kafka at 127.0.0.1:1 did not answer" in err and err.count("\n") == 1
