"""``forebay dead-letters``: what a job could not decode is counted, shown and sent back, each record once."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deploy.commands.dead_letters.reporting import record_name, text_of
from deploy.commands.dead_letters.stored import is_pending
from deploy.main import main
from driver import IngestContext
from driver.batches.job.batch import Batch
from driver.batches.job.dead_letters import dead_letter_plan
from driver.batches.job.work import BatchWork
from driver.batches.tasks.decoding import Decoder, decode_task
from driver.batches.tasks.reading import KafkaRecord
from driver.decisions.replay import RewindTo
from driver.listeners.events import BatchCompleted, BatchFailed, BatchStarted, BatchSubmitted, Listener
from driver.tracker.requests import BeginReplay
from forebay import messages as m
from forebay.http.client import Client
from forebay.kafka.consume.whole_topic import read_topic
from forebay.kafka.embedded.broker import KafkaBroker, MockBroker
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from forebay.settings.reading.load import load
from forebay.settings.schema import Settings
from tests.support.processes.played import PlayedReceiver
from tests.support.state.rows import Row, block
from tests.support.state.stored import Stored
from tests.support.state.tracked import Tracked
from wal.dead_letters import Run

OFFSETS = pa.schema([("offset", pa.int64())])
PATIENCE_SECONDS = 30.0


class Stream:
    """A stream with a driver in this process, and the commands over its configuration."""

    def __init__(
        self, folder: Path, topic: str, kafka: Mapping[str, str], capsys: pytest.CaptureFixture[str], letters: str = ""
    ) -> None:
        self.folder = folder
        self.topic = topic
        self.capsys = capsys
        letters = letters or f'url = "file://{folder}/letters"'
        options = "\n".join(f'"{key}" = "{value}"' for key, value in kafka.items())
        (folder / "forebay.toml").write_text(f"""
stream = "s"
[kafka]
topics = ["{topic}"]
group = "{topic}"
{options}
[wal]
url = "file://{folder}/wal"
[driver]
journal = "file://{folder}/journal"
url = "http://127.0.0.1:0"
engine = "local"
batch_interval = "20ms"
job_retry_delay = "1ms"
lease_duration = "300ms"
snapshot_copy_interval = "0s"
[agent]
blocks = "{folder}/blocks"
[dead_letters]
{letters}
""")
        self.settings: Settings = load(folder / "forebay.toml", {})

    def __call__(self, *arguments: str) -> tuple[int, Any, str]:
        self.capsys.readouterr()
        code = main(["--config", str(self.folder / "forebay.toml"), "--json", "dead-letters", *arguments])
        out, err = self.capsys.readouterr()
        return code, json.loads(out) if out else None, err

    def ready(self, intake: IngestContext) -> TopicPartition:
        client = Client(intake.url)
        for _ in range(1000):
            if client.get("/v1/status", m.StatusAnswer).state == "running":
                return TopicPartition(self.topic, 0)
            threading.Event().wait(0.02)
        raise AssertionError("the driver did not get ready")

    def run(self, records: int, bad: int, *listeners: Listener) -> m.StatusAnswer:
        """Takes in ``records``; those whose offset is a multiple of ``bad`` can't be decoded. The first attempt fails at its end,
        with more dead letters than the second."""
        done = threading.Event()
        attempts: list[int] = []

        def job(batch: Batch) -> None:
            attempts.append(batch.id)

            def function(record: KafkaRecord) -> Any:
                if record.offset % bad == 0 or len(attempts) == 1:
                    raise KeyError("carrier")
                return {"offset": record.offset}

            list(batch.read_decoded(function, OFFSETS))
            if len(attempts) == 1:
                raise RuntimeError("the first attempt fails at its end")

        with IngestContext(None, self.settings) as intake:
            for listener in (*listeners, Until(done)):
                intake.add_listener(listener)
            intake.foreach_batch(job)
            tp = self.ready(intake)
            PlayedReceiver(self.settings, intake.url).take_in(tp, records)
            assert done.wait(PATIENCE_SECONDS)
            return Client(intake.url).get("/v1/status", m.StatusAnswer)


class Until(Listener):
    def __init__(self, done: threading.Event) -> None:
        self._done = done

    def batch_completed(self, event: BatchCompleted) -> None:
        self._done.set()


class Kept(Listener):
    def __init__(self) -> None:
        self.events: list[Any] = []

    def __getattribute__(self, name: str) -> Any:
        return (
            object.__getattribute__(self, "events").append
            if name.startswith("batch_")
            else super().__getattribute__(name)
        )


@pytest.fixture
def stream(
    tmp_path: Path, mock_broker: MockBroker, topic_name: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> Stream:
    topic = topic_name()
    mock_broker.create_topic(topic)
    return Stream(tmp_path, topic, mock_broker.options, capsys)


def test_dead_letters_of_a_real_driver_are_listed_and_its_listeners_got_all_events(stream: Stream) -> None:
    kept = Kept()
    status = stream.run(10, 5, kept)
    assert [type(event) for event in kept.events] == [
        BatchSubmitted, BatchStarted, BatchFailed, BatchStarted, BatchCompleted,
    ]  # fmt: skip
    assert (kept.events[2].detail, kept.events[2].final) == ("RuntimeError: the first attempt fails at its end", False)
    assert [listener.dropped for listener in status.listeners] == [0, 0]
    code, counted, _ = stream("list")
    assert code == 1  # they wait to be looked at
    assert [(c["topic"], c["cause"], c["records"], c["sent"], c["state"]) for c in counted] == [
        (stream.topic, "KeyError", 2, 0, "completed")
    ]
    (named,) = [c["first"] for c in counted]
    assert len(named) == 2 and f"{stream.topic}/0@5" in named
    assert all(stream("show", name)[0] == 0 for name in named)
    for arguments, records in (
        (("--cause", "carrier"), 2), (("--cause", "Timeout"), 0), (("--topic", "other"), 0), (("--batch", "1"), 2),
        (("--batch", "2"), 0), (("--since", "2020-01-01T00:00:00Z"), 2), (("--before", "2020-01-01T00:00:00Z"), 0),
    ):  # fmt: skip
        assert sum(c["records"] for c in stream("list", *arguments)[1]) == records, arguments
    code, letters, _ = stream("show", f"{stream.topic}/0@5")
    assert code == 0
    (letter,) = letters
    assert (letter["key"], letter["value"], letter["attempt"]) == ("k5", "5," * 5, 2)
    assert letter["cause"] == "KeyError: 'carrier'"
    assert stream("show", f"{stream.topic}/0@6")[0] == 1
    assert stream("show", "nonsense")[0] == 2


def test_only_dead_letters_of_the_final_run_count_as_completed() -> None:
    t = Tracked()
    epoch = t.register()
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5)
    batch = t.batch()

    def pending(key: str) -> bool:
        return is_pending(t.state, Run("s", key, "o", 1, 1))

    assert pending(f"1-0-{batch}")
    t.complete(batch)
    assert not pending(f"1-0-{batch}")
    t.say(BeginReplay(RewindTo(batch), (), 0, "ann"))
    assert pending(f"1-1-{batch}")
    assert not pending(f"1-0-{batch}") and not pending(f"2-1-{batch}")


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (None, None),
        (b"", ""),
        ("é\n".encode(), "é\n"),
        (b"\x00", "hex 00"),
        (b"\xff\xfe", "hex fffe"),
        (b"\x1b[2J", "hex 1b5b324a"),
    ],
)
def test_bytes_are_shown_as_text_only_if_a_person_can_read_them(data: bytes | None, text: str | None) -> None:
    """What a record holds never reaches the terminal as a command to it."""
    assert text_of(data) == text


def test_a_record_is_named_by_topic_partition_and_offset() -> None:
    assert record_name("a.b-c/12@34") == ("a.b-c", 12, 34)
    for wrong in ("a/b@1", "a@1", "a/1", "a/1@x", "/1@2"):
        with pytest.raises(UsageError, match="TOPIC/PARTITION@OFFSET"):
            record_name(wrong)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "give either --to-topic TOPIC or --to-source"),
        (
            ("--to-topic", "{topic}"),
            "takes this topic in, so the job would get each record again; if that is intended, use --to-source",
        ),
        (("--to-topic", "nowhere"), "the topic does not exist; create it first"),
    ],
)
def test_an_impossible_target_of_dead_letters_is_named(
    stream: Stream, arguments: tuple[str, ...], message: str
) -> None:
    code, _, err = stream("replay", *(argument.format(topic=stream.topic) for argument in arguments))
    assert code == 2
    assert message in err


def test_a_stream_without_dead_letters_is_reported(stream: Stream) -> None:
    config = stream.folder / "forebay.toml"
    config.write_text(config.read_text().partition("[dead_letters]")[0])
    code, _, err = stream("list")
    assert (code, "set dead_letters.url or dead_letters.topic" in err) == (2, True)


# ---- with a real Kafka -----------------------------------------------------------------------------------------------


def records_in(kafka: KafkaBroker, topic: str) -> list[dict[str, Any]]:
    return [
        row
        for _, batch in read_topic(kafka.options, topic, "looking", {}, PATIENCE_SECONDS)
        for row in batch.to_pylist()
    ]


@pytest.mark.kafka
def test_dead_letters_in_files_are_sent_back_once_with_where_they_came_from(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    topic, target = topic_name(), topic_name() + "-mended"
    for name in (topic, target):
        kafka_broker.create_topic(name, 1)
    stream = Stream(tmp_path, topic, kafka_broker.options, capsys)
    stream.run(10, 5)
    code, done, err = stream("replay", "--to-topic", target)
    assert (code, done["sent"], done["done"]) == (0, {target: 2}, False)
    assert "nothing was sent" in err
    assert records_in(kafka_broker, target) == []
    assert stream("replay", "--to-topic", target, "--yes", "--because", "mended")[1]["sent"] == {target: 2}
    again = stream("replay", "--to-topic", target, "--yes")[1]
    assert (again["sent"], again["skipped"]) == ({}, 2)
    code, counted, _ = stream("list")
    assert (code, counted[0]["sent"]) == (0, 2)
    sent = records_in(kafka_broker, target)
    assert [(row["key"], row["value"]) for row in sent] == [(b"k0", b"0," * 5), (b"k5", b"5," * 5)]
    headers = {header["key"]: header["value"] for header in sent[1]["headers"]}
    assert (headers["forebay.topic"], headers["forebay.partition"]) == (topic.encode(), b"0")
    assert (headers["forebay.offset"], headers["forebay.cause"]) == (b"5", b"KeyError: 'carrier'")
    assert stream("show", f"{topic}/0@5")[1][0]["sent"]


@pytest.mark.kafka
def test_dead_letters_in_a_topic_are_listed_shown_and_sent_back_to_where_they_came_from(
    tmp_path: Path, kafka_broker: KafkaBroker, topic_name: Callable[[], str], capsys: pytest.CaptureFixture[str]
) -> None:
    topic, dead = topic_name(), topic_name() + "-dead"
    for name in (topic, dead):
        kafka_broker.create_topic(name, 2)
    stream = Stream(tmp_path, topic, kafka_broker.options, capsys, f'topic = "{dead}"')
    stored = Stored(tmp_path)
    rows = [Row(b"k%d" % n, b"\xff%d" % n, n, 1_700_000_000_000 + n, 0, [("own", b"%d" % n)]) for n in range(6)]
    rows[1] = rows[1]._replace(timestamp=-1, headers=None)
    reference = stored.add(*block({(topic, 0): rows}, headers=True))

    def undecodable(record: KafkaRecord) -> Any:
        if record.offset in (1, 4):
            raise ValueError("no flight")

    work = BatchWork(
        1 << 40 | 3, 3, 1_700_000_000_000, False, ((reference,),), headers=True, stream="s", epoch=1, output="o"
    )
    place = dead_letter_plan(stream.settings, work)
    plan = stored.plan("local", headers=True)
    assert list(decode_task((reference,), 0, plan, lambda _: None, Decoder(undecodable, OFFSETS), place)) == []
    _, counted, _ = stream("list")
    assert [(c["batch_id"], c["topic"], c["cause"], c["records"]) for c in counted] == [
        (1 << 40 | 3, topic, "ValueError", 2)
    ]
    (letter,) = stream("show", f"{topic}/0@4")[1]
    assert (letter["value"], letter["headers"], letter["timestamp_ms"]) == (
        "hex ff34",
        [["own", "4"]],
        1_700_000_000_004,
    )
    assert stream("replay", "--to-source", "--cause", "flight", "--yes")[0] == 2  # marked by position: all or none
    assert stream("replay", "--to-source", "--yes")[1]["sent"] == {topic: 2}
    again = stream("replay", "--to-source", "--yes")[1]
    assert (again["sent"], again["skipped"]) == ({}, 2)
    assert sorted(row["value"] for row in records_in(kafka_broker, topic)) == [b"\xff1", b"\xff4"]
