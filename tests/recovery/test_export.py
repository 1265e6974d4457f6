"""``wal export``: exactly the requested records that the WAL still has, as Parquet files or back in a topic."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow.parquet as parquet
import pytest
from confluent_kafka import Consumer, TopicPartition

from deploy.commands.wal.export import absent_spans, span
from deploy.main import main
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.produce.sender import send
from forebay.model.errors import ForebayError, UsageError
from forebay.model.payload import decode_block, encode_block
from forebay.model.records import RangeRows, to_dataframe
from forebay.model.values import Block, Handle
from forebay.model.values import TopicPartition as Tp
from tests.recovery.test_killed import CONFIGURATION
from tests.support.state.columns import column_values
from tests.support.state.logged import Logged
from tests.support.state.rows import ODD_ROWS, filler, source_batch
from tests.support.state.rows import block as make_block
from tests.support.state.tracked import STREAM
from wal.blocks.encryption import load_keys


class Exporting:
    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], kafka: str = "") -> None:
        self.logged = Logged(folder)
        self.folder = folder
        self._capsys = capsys
        text = CONFIGURATION.format(stream=STREAM, folder=folder)
        (folder / "forebay.toml").write_text(
            text.replace('"127.0.0.1:1"', f'"{kafka}"')
            if kafka
            else text.replace("[kafka]", "[kafka]\nread_blocks = false")
        )

    def __call__(self, *arguments: str) -> tuple[int, dict[str, Any], str]:
        code = main(["--config", str(self.folder / "forebay.toml"), "--json", "wal", "export", *arguments])
        out, err = self._capsys.readouterr()
        return code, json.loads(out) if out else {}, err


@pytest.fixture
def exporting(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Exporting:
    monkeypatch.setattr("deploy.commands.recovery.surroundings.ANSWER_SECONDS", 0.1)
    return Exporting(tmp_path, capsys)


def offsets(path: str) -> list[int]:
    return column_values(parquet.read_table(path), "offset")


def test_a_range_is_cut_exactly_and_has_the_columns_of_the_kafka_source(exporting: Exporting, tmp_path: Path) -> None:
    logged = exporting.logged
    logged.receiver("r1")
    logged.take_in("r1", {0: 5, 1: 5})
    logged.take_in("r1", {0: 5})
    logged.keep()
    code, done, err = exporting("--range", "t/0[3, 8)", "--output", str(tmp_path / "out"))
    assert (code, err) == (0, "")
    (path,) = done["files"]
    assert path == str(tmp_path / "out" / "t-0.parquet") and done["records"] == 5
    table = parquet.read_table(path)
    assert table.column_names == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType"]
    expected = to_dataframe_rows(logged, 0, 3, 8)
    assert table.to_pylist() == expected
    assert list((tmp_path / "out").iterdir()) == [Path(path)]  # nothing half written is left


def to_dataframe_rows(logged: Logged, partition: int, start: int, until: int) -> list[dict[str, Any]]:
    rows = source_batch(logged.kafka.rows(partition, start, until)).to_pylist()
    return [
        {**row, "topic": "t", "partition": partition, "timestamp": row["timestamp"]}
        | {"timestamp": _moment(row["timestamp"])}
        for row in rows
    ]


def _moment(milliseconds: int) -> Any:
    return datetime.fromtimestamp(milliseconds / 1000, timezone.utc)


def test_a_batch_is_exported_also_when_only_the_history_knows_it(exporting: Exporting, tmp_path: Path) -> None:
    logged = exporting.logged
    logged.receiver("r1")
    logged.take_in("r1", {0: 5})
    logged.finish_batch()
    logged.take_in("r1", {0: 5})
    later = logged.tracked.batch()
    logged.keep()
    code, done, _ = exporting("--batch", "1", "--output", str(tmp_path / "first"))
    assert code == 0 and offsets(done["files"][0]) == [0, 1, 2, 3, 4]
    code, done, _ = exporting("--batch", str(later), "--output", str(tmp_path / "second"))
    assert code == 0 and offsets(done["files"][0]) == [5, 6, 7, 8, 9]
    code, _, err = exporting("--batch", "77", "--output", str(tmp_path / "third"))
    assert code == 2 and "--batch 77: the stream has no batch with this id or number" in err


def test_encrypted_blocks_are_exported_with_their_keys_alone(exporting: Exporting, tmp_path: Path) -> None:
    logged = exporting.logged
    keys = tmp_path / "keys"
    keys.write_text(f"k {base64.b64encode(b'k' * 32).decode()}\n")
    keys.chmod(0o600)
    logged.receiver("r1")
    logged.keys = load_keys(str(keys))
    logged.take_in("r1", {0: 5})
    logged.keep()
    code, done, err = exporting("--range", "t/0[0, 5)", "--output", str(tmp_path / "without"))
    assert code == 1 and not done["files"] and "encrypted with key 'k'" in err
    configuration = tmp_path / "forebay.toml"
    configuration.write_text(configuration.read_text().replace("[wal]", f'[wal]\nkey_file = "{keys}"'))
    code, done, err = exporting("--range", "t/0[0, 5)", "--output", str(tmp_path / "with"))
    assert (code, err) == (0, "") and offsets(done["files"][0]) == [0, 1, 2, 3, 4]


def test_times_choose_by_the_records_timestamps(exporting: Exporting, tmp_path: Path) -> None:
    logged = exporting.logged
    logged.receiver("r1")
    for _ in range(3):
        logged.take_in("r1", {0: 5})
    logged.keep()
    code, done, _ = exporting(
        "--since", "2023-11-14T22:13:20.004Z", "--before", "2023-11-14T22:13:20.011Z", "--output", str(tmp_path / "out")
    )
    assert code == 0 and offsets(done["files"][0]) == list(range(4, 11))


def test_missing_or_unreadable_ranges_are_reported_and_the_rest_exported(exporting: Exporting, tmp_path: Path) -> None:
    """INV-5: a file with less than was requested is always reported."""
    logged = exporting.logged
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    logged.take_in("r1", {0: 5})
    logged.keep()
    logged.damage(block)
    code, done, err = exporting("--range", "t/0[0, 12)", "--output", str(tmp_path / "out"))
    assert code == 1 and offsets(done["files"][0]) == [5, 6, 7, 8, 9]
    assert done["absent"] == ["t/0[10, 12)"]
    assert "not in the WAL: t/0[10, 12)" in err and f"no tier can read block {block.id} with t/0[0, 5)" in err


def test_existing_file_is_never_overwritten(exporting: Exporting, tmp_path: Path) -> None:
    logged = exporting.logged
    logged.receiver("r1")
    logged.take_in("r1", {0: 5})
    logged.keep()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "t-0.parquet").write_text("mine")
    code, _, err = exporting("--range", "t/0[0, 5)", "--output", str(tmp_path / "out"))
    assert code == 2 and "already exists" in err
    assert (tmp_path / "out" / "t-0.parquet").read_text() == "mine"
    assert [p.name for p in (tmp_path / "out").iterdir()] == ["t-0.parquet"]


def test_export_names_a_range_as_the_audit_does() -> None:
    assert span("t.x-1/12[3,8) life 2")[:] == ("t.x-1", 12, 2, 3, 8)
    for wrong in ("t/0", "t/0[8, 3)", "t[0, 1)", "t/0[0, 1) life 0", "../t/0[0,1)x"):
        with pytest.raises(UsageError, match="TOPIC/PARTITION"):
            span(wrong)


def test_missing_offsets_of_the_requested_range_are_named_exactly() -> None:
    meta, _ = make_block({("t", 0): source_rows(5, 10)})
    held = [Block(meta, Handle("p", 0, 64, 0), False)]
    assert absent_spans([span("t/0[0, 20)")], held) == ["t/0[0, 5)", "t/0[10, 20)"]
    assert absent_spans([span("t/0[6, 9)")], held) == []
    assert absent_spans([span("t/0[6, 9) life 2")], held) == ["t/0[6, 9) life 2"]


def source_rows(start: int, until: int) -> Any:
    return filler(until - start, start)


# ---- back into a topic -----------------------------------------------------------------------------------------------


@pytest.mark.kafka
def test_records_go_back_into_a_topic_as_they_were(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    kafka_broker: KafkaBroker,
    topic_name: Callable[[], str],
) -> None:
    monkeypatch.setattr("deploy.commands.recovery.surroundings.ANSWER_SECONDS", 0.1)
    exporting = Exporting(tmp_path, capsys, kafka_broker.options["bootstrap.servers"])
    logged = exporting.logged
    logged.receiver("r1")
    logged.take_in("r1", {0: 5, 1: 4})
    logged.keep()
    topic = topic_name()
    kafka_broker.create_topic(topic, 2)
    code, _, err = exporting("--range", "t/0[1, 4)", "--to-topic", topic)
    assert code == 0 and f"would send 3 records to {topic}; nothing was sent" in err
    code, done, _ = exporting("--range", "t/0[1, 4)", "--range", "t/1[0, 4)", "--to-topic", topic, "--yes")
    assert (code, done["records"]) == (0, 7)
    for partition, start, until in ((0, 1, 4), (1, 0, 4)):
        expected = [(r.key, r.value, r.timestamp) for r in logged.kafka.rows(partition, start, until)]
        assert [(k, v, t) for k, v, t, _ in consumed(kafka_broker, topic, partition, until - start)] == expected
    code, _, err = exporting("--range", "t/0[1, 4)", "--to-topic", "t", "--yes")
    assert code == 2 and "takes this topic in" in err
    code, _, err = exporting("--range", "t/0[1, 4)", "--to-topic", f"{topic}-none", "--yes")
    assert code == 2 and "the topic does not exist" in err
    narrow = topic_name()
    kafka_broker.create_topic(narrow, 1)
    code, _, err = exporting("--range", "t/1[0, 4)", "--to-topic", narrow, "--yes")
    assert code == 2 and "2 are needed" in err
    code, done, _ = exporting("--range", "t/1[0, 4)", "--to-topic", narrow, "--by-key", "--yes")
    assert (code, done["records"]) == (0, 4)


@pytest.mark.kafka
def test_nulls_headers_and_odd_values_arrive_as_they_are(
    kafka_broker: KafkaBroker, topic_name: Callable[[], str]
) -> None:
    topic = topic_name()
    with KafkaAdmin(kafka_broker.options) as admin:
        admin.create_topic(topic, 1, {"message.timestamp.after.max.ms": str(2**63 - 1)})
    batch = source_batch(ODD_ROWS, headers=True)
    meta, _ = make_block({("t", 0): ODD_ROWS}, headers=True)
    payload = encode_block([RangeRows(Tp("t", 0), [batch])], True)
    ((_, stored),) = decode_block(payload, meta)
    acknowledged: list[int] = []
    bounded = topic_name()
    kafka_broker.create_topic(bounded, 1)
    with pytest.raises(ForebayError, match=rf"one of {bounded}/0 was not accepted: .*message.timestamp.after.max.ms"):
        send(kafka_broker.options, bounded, [to_dataframe(b, "t") for b in stored])
    sent = send(kafka_broker.options, topic, [to_dataframe(b, "t") for b in stored], progress=acknowledged.append)
    assert sent == sum(acknowledged) == len(ODD_ROWS)
    found = consumed(kafka_broker, topic, 0, len(ODD_ROWS))
    assert [(k, v, h) for k, v, _, h in found] == [
        (row.key, row.value, [(k, v) for k, v in row.headers or []]) for row in ODD_ROWS
    ]
    # the first has none, and librdkafka takes the second's 0 for none
    assert [t for _, _, t, _ in found[2:]] == [row.timestamp for row in ODD_ROWS[2:]]


def consumed(broker: KafkaBroker, topic: str, partition: int, count: int) -> list[tuple[Any, Any, int, list[Any]]]:
    consumer = Consumer(
        {**broker.options, "group.id": "reader", "enable.auto.commit": "false", "auto.offset.reset": "error"}
    )
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        found: list[tuple[Any, Any, int, list[Any]]] = []
        while len(found) < count:
            message = consumer.poll(30)
            assert message is not None and message.error() is None, message
            found.append((message.key(), message.value(), message.timestamp()[1], list(message.headers() or [])))
        return found
    finally:
        consumer.close()
