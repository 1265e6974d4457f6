"""Losses in a real Kafka: the stream continues only after a decision, and with exact ranges (INV-5)."""

from __future__ import annotations

import json
import threading
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from deploy.main import main
from direct.checkpoint.checkpoint import Checkpoint
from direct.rdd.locations import PreferConsistent
from direct.rdd.tasks import TaskReading
from direct.stream.batch import DirectRows
from direct.stream.strategies import Assign, Subscribe
from direct.stream.stream import DirectStream
from driver.batches.job.batch import Batch
from driver.batches.job.dead_letters import letters_of
from driver.batches.job.work import BatchWork
from driver.batches.tasks.decoding import Decoder
from driver.journal.leadership.lease import LeaseHeld
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import OutOfRangeError, RangeNotHeldError
from forebay.model.values import TopicPartition
from forebay.settings.schema import DeadLetterSettings
from tests.support.kafka.polling import PATIENCE_SECONDS
from tests.support.processes.direct_runs import Runs
from tests.support.state.again import produce
from tests.support.state.columns import column_values
from wal import dead_letters
from wal.storage import open_storage

_CONFIG = """
stream = "flights"
[kafka]
topics = ["t"]
"bootstrap.servers" = "{broker}"
[wal]
url = "file://{folder}/wal"
[driver]
url = "http://127.0.0.1:1"
journal = "file://{folder}/journal"
job = "jobs:process"
[agent]
url = "http://127.0.0.1:2"
blocks = "{folder}/blocks"
"""


def drop(options: dict[str, str], tp: TopicPartition, before: int) -> None:
    with KafkaAdmin(options) as admin:
        admin.delete_records({tp: before})


@pytest.mark.kafka
@pytest.mark.parametrize("on_vanished", ["stop", "record"])
def test_offsets_deleted_before_a_batch_had_them_end_the_stream_or_become_a_gap(
    runs: Runs, tps: list[TopicPartition], on_vanished: str
) -> None:
    one = tps[0]
    drop(dict(runs.options), one, 12)
    strategy = Assign([one], {one: 5})
    if on_vanished == "stop":
        stream = runs.start(strategy)
        with pytest.raises(OutOfRangeError, match=rf"{one}\[5, 12\).*forebay direct accept-loss"):
            stream.await_termination(PATIENCE_SECONDS)
        return
    runs.stop(runs.start(strategy, on_vanished="record", job=None))
    runs.start(strategy, on_vanished="record")
    runs.await_records(18)
    assert runs.once(one) == (12, 30)
    incarnation = Checkpoint(runs.checkpoint.as_uri(), "s").audit().incarnations[0]
    assert [(g.from_offset, g.until_offset, g.cause) for g in incarnation.gaps] == [
        (5, 12, 'out-of-range, by on_vanished = "record"')
    ]


class Reader:
    """A job that reads what it is given from Kafka, after ``before`` for the first batch."""

    def __init__(self, runs: Runs, before: object) -> None:
        self.access = KafkaAccess(dict(runs.options), "g", PATIENCE_SECONDS)
        self.runs = runs
        self.before = before
        self.read: list[tuple[int, list[int]]] = []

    def __call__(self, work: Batch) -> None:
        before, self.before = self.before, None
        if before is not None:
            before()  # type: ignore[operator]
        rows = [
            offset
            for span in work.spans  # type: ignore[attr-defined]
            for rows in read_range(self.access, span, Reading(keep=False))
            for offset in column_values(rows, "offset")
        ]
        self.read.append((work.batch_id, rows))  # type: ignore[attr-defined]
        self.runs.job(work)


@pytest.mark.kafka
def test_batch_continues_without_a_deleted_topic_with_on_vanished_record(
    runs: Runs, tps: list[TopicPartition], kafka_broker: KafkaBroker
) -> None:
    """INV-5: the journal has the loss and the end of the partitions. INV-3: the batch keeps its id."""
    other = TopicPartition(f"{tps[0].topic}-other", 0)
    kafka_broker.create_topic(other.topic, 1)
    produce(runs.options, other, 4)
    waited = threading.Event()

    def delete() -> None:
        with KafkaAdmin(runs.options) as admin:
            admin.delete_topic(tps[0].topic)
            while tps[0].topic in admin.topics():
                waited.wait(0.05)

    reader = Reader(runs, delete)
    stream = runs.start(Subscribe([tps[0].topic, other.topic]), reader, on_vanished="record", max_failures=1)
    runs.await_records(4)
    produce(runs.options, other, 2)
    runs.await_records(6)
    assert [rows for _, rows in reader.read] == [[0, 1, 2, 3], [4, 5]]
    while stream.offsets != {other: 6}:
        waited.wait(0.05)
    runs.stop(stream)
    found = Checkpoint(runs.checkpoint.as_uri(), "s").audit()
    assert found.clean
    assert {loss.label for loss in found.losses} == {f"{tps[0]}[0, 30)", f"{tps[1]}[0, 10)"}
    assert {loss.batch_id for loss in found.losses} == {reader.read[0][0]}


@pytest.mark.kafka
def test_batch_continues_with_the_rest_after_an_accepted_loss(
    runs: Runs, tps: list[TopicPartition], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """INV-5: nothing continues before that, and exactly the lost ranges are accepted. INV-3: the rerun has the same id."""
    one = tps[0]
    url, kafka = runs.checkpoint.as_uri(), ("--broker", runs.options["bootstrap.servers"])

    def forebay(*arguments: str) -> int:
        return main(["direct", *arguments])

    first = Reader(runs, lambda: drop(dict(runs.options), one, 20))
    stream = runs.start(Subscribe([one.topic]), first)
    with pytest.raises(RangeNotHeldError, match=rf"{one}\[0, 20\) of batch.*holds offsets 20 to 30"):
        stream.await_termination(PATIENCE_SECONDS)
    capsys.readouterr()

    assert forebay("accept-loss", url, "s", *kafka, "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert [(loss["kind"], loss["label"]) for loss in shown] == [("batch", f"{one}[0, 20)")]
    for wrong in (f"{one}[0, 21)", f"{one}[0, 19)", f"{tps[1]}[0, 10)"):
        assert forebay("accept-loss", url, "s", wrong, *kafka, "--yes") == 2
    assert forebay("accept-loss", url, "s", *kafka, "--yes") == 2  # a loss must be named to be accepted
    assert forebay("accept-loss", url, "s", f"{one}[0,20)", *kafka) == 1
    assert Checkpoint(url, "s").state().unfinished()[0].lost == ()
    assert forebay("accept-loss", url, "s", f"{one}[0,20)", *kafka, "--because", "retention", "--yes") == 0
    assert "continues without" in capsys.readouterr().err
    assert forebay("accept-loss", url, "s", *kafka) == 0

    second = Reader(runs, None)
    stream = runs.start(Subscribe([one.topic]), second)
    runs.await_records(20)
    with pytest.raises(LeaseHeld):
        Checkpoint(url, "s", runs.options).accept_losses([f"{one}[0, 20)"], "")
    assert second.read == [(shown[0]["batch_id"], [*range(20, 30), *range(10)])]
    runs.stop(stream)

    capsys.readouterr()
    assert forebay("audit", url, "s", "--json") == 0
    audited = json.loads(capsys.readouterr().out)
    assert audited["findings"] == [] and [loss["label"] for loss in audited["losses"]] == [f"{one}[0, 20)"]
    assert audited["losses"][0]["cause"].endswith("retention")
    assert forebay("status", url, "s", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["standing"] == "stopped"
    assert [(p["position"], p["completed"], p["read"]) for p in status["partitions"]] == [
        (30, 30, True),
        (10, 10, True),
    ]
    assert forebay("batches", url, "s", "--json") == 0
    assert [(b["state"], b["lost"]) for b in json.loads(capsys.readouterr().out)] == [("completed", [f"{one}[0, 20)"])]
    produce(runs.options, one, 3)
    config = tmp_path / "forebay.toml"
    config.write_text(_CONFIG.format(folder=tmp_path, broker=runs.options["bootstrap.servers"]))
    assert forebay("lag", url, "s", "--config", str(config), "--max-records", "2", "--json") == 1
    assert json.loads(capsys.readouterr().out)["processed"]["records"] == 3
    assert forebay("replay", url, "s", *kafka, "--to-batch", "1", "--yes") == 0
    third = Reader(runs, None)
    runs.start(Subscribe([one.topic]), third)
    runs.await_records(43)
    assert third.read == [
        second.read[0],
        (third.read[1][0], [30, 31, 32]),
    ]  # what the first run had, and then what came


@pytest.mark.kafka
def test_accepted_recreation_of_a_topic_begins_a_new_incarnation(
    runs: Runs, tps: list[TopicPartition], kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    """INV-2: its offsets mean other records. The audit, dead letters and replays keep incarnations apart."""
    runs.stop(_until(runs, Subscribe([tps[0].topic]), 40))
    waited = threading.Event()
    with KafkaAdmin(runs.options) as admin:
        admin.delete_topic(tps[0].topic)
        while tps[0].topic in admin.topics():
            waited.wait(0.05)
        admin.create_topic(tps[0].topic, 1)
    produce(runs.options, tps[0], 7)
    checkpoint = Checkpoint(runs.checkpoint.as_uri(), "s", runs.options)
    assert [(loss.kind, loss.label) for loss in checkpoint.losses()] == [
        ("created-again", str(tps[0])),
        ("gone", str(tps[1])),
    ]
    checkpoint.accept_losses(map(str, tps), "ann")
    runs.works.clear()
    runs.stop(_until(runs, Subscribe([tps[0].topic]), 7))
    assert runs.once(tps[0]) == (0, 7)
    found = checkpoint.audit()
    assert found.clean
    assert [
        (incarnation.topic, incarnation.partition, incarnation.number, incarnation.start, incarnation.until)
        for incarnation in found.incarnations
    ] == [
        (tps[0].topic, 0, 1, 0, 30),
        (tps[0].topic, 0, 2, 0, 7),
        (tps[0].topic, 1, 1, 0, 10),
    ]
    checkpoint.replay(runs.works[0].batch_id, 0, "ann")
    runs.stop(_until(runs, Subscribe([tps[0].topic]), 14))
    assert [(work.replay > 0, _incarnations_of_dead_letters(runs, work, tmp_path)) for work in runs.works] == [
        (False, [2] * 7),
        (True, [2] * 7),
    ]


def _incarnations_of_dead_letters(runs: Runs, work: BatchWork, folder: Path) -> list[int]:
    def fail(record: object) -> None:
        raise ValueError("no record is taken")

    url = (folder / f"letters-{work.key}").as_uri()
    letters = partial(
        letters_of, letters=DeadLetterSettings(url=url, max_fraction=1.0), storage={}, options=runs.options
    )
    how = TaskReading(KafkaAccess(dict(runs.options), "g", PATIENCE_SECONDS), Reading(keep=False))
    rows = DirectRows(None, work, how=how, strategy=PreferConsistent(), letters_of=letters)  # type: ignore[arg-type]
    assert list(rows.read_decoded(Decoder(fail, pa.schema([("a", pa.int64())])))) == []
    (path,) = (path for path in open_storage(url).list("s") if path.endswith(".parquet"))
    return column_values(dead_letters.read(open_storage(url), path), "life")


def _until(runs: Runs, strategy: Subscribe, records: int) -> DirectStream:
    stream = runs.start(strategy)
    runs.await_records(records)
    return stream
