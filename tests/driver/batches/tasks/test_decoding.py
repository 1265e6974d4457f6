"""What a decode function makes of records, and what becomes of those that it can't take."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

import driver.batches.tasks.decoding as decoding_module
from driver.batches.job.batch import Batch
from driver.batches.job.dead_letters import confirm_dead_letters
from driver.batches.job.work import BatchWork
from driver.batches.local_engine import LocalEngine
from driver.batches.tasks.decoding import DeadLetterPlan, Decoder, Part, as_records, decode_parts, of_records
from driver.batches.tasks.reading import KafkaRecord, read_task
from forebay.kafka.produce import sender
from forebay.model.errors import CorruptionError, JobError, OutOfSpaceError, UsageError
from forebay.model.identifiers import numbered
from forebay.model.records import DATAFRAME_SCHEMA
from forebay.settings.reading.load import from_values
from tests.support.state.rows import ODD_ROWS, Row, block
from tests.support.state.stored import Stored
from wal import dead_letters
from wal.dead_letters import CountedRun, RecordIdentity, Run
from wal.storage import MemoryStorage, open_storage

NUMBERS = pa.schema([pa.field("offset", pa.int64()), pa.field("number", pa.int64(), nullable=False)])
BATCH = numbered(1, 7)
KEY = f"1-0-{BATCH}"


def number(record: KafkaRecord) -> dict[str, Any]:
    assert record.value is not None
    return {"offset": record.offset, "number": int(record.value)}


def numbers(count: int, bad: tuple[int, ...] = (), start: int = 0) -> list[Row]:
    return [Row(b"k", b"bad" if n in bad else b"%d" % n, n) for n in range(start, start + count)]


class Decoding:
    """A stream whose dead letters go to a folder, and the engine without Spark."""

    def __init__(self, root: Path, **letters: Any) -> None:
        self.stored = Stored(root)
        self.url = f"file://{root}/letters"
        given = letters or {"url": self.url}
        plain = {
            "stream": "s",
            "kafka": {"topics": ["t"], "bootstrap.servers": "127.0.0.1:1"},
            "wal": {"url": self.stored.wal_url},
            "driver": {"journal": f"file://{root}/journal"},
            "agent": {"blocks": str(self.stored.blocks_directory)},
            "dead_letters": {"url": self.url, **given} if "topic" not in given and "off" not in given else {},
        }
        self.engine = LocalEngine(from_values(plain), dict)
        self.storage = open_storage(self.url)

    def work(self, *tasks: dict[tuple[str, int], Any], **fields: Any) -> BatchWork:
        references = tuple(
            (self.stored.add(*block(ranges, sequence=sequence, headers=fields.get("headers", False))),)
            for sequence, ranges in enumerate(tasks, 1)
        )
        return BatchWork(
            BATCH, 7, 1_700_000_000_000, False, references, stream="s", epoch=5, output="jobs:process", **fields
        )

    def run(self, work: BatchWork, job: Callable[[Batch], Any], attempt: int = 1, settled: bool = True) -> None:
        run = replace(work, attempt=attempt, decodes=[])
        self.engine.run(run, job)
        if settled:
            confirm_dead_letters(run)

    def found(self) -> list[CountedRun]:
        return dead_letters.counting(self.storage.list(dead_letters.stream_folder("s")))

    def rows(self) -> list[dict[str, Any]]:
        return [
            row
            for found in self.found()
            for _, table in dead_letters.tables(self.storage, found)
            for row in table.drop_columns(["timestamp"]).to_pylist()
        ]


def decode(rows: list[Any], function: Any = number, **options: Any) -> Callable[[Batch], None]:
    def job(batch: Batch) -> None:
        for part in batch.read_decoded(function, NUMBERS, **options):
            rows.extend(part.to_pylist())

    return job


def test_undecodable_records_are_stored_with_their_context_and_the_rest_continues(tmp_path: Path) -> None:
    decoding = Decoding(tmp_path)
    rows: list[Any] = []
    work = decoding.work(
        {("a", 0): numbers(5, bad=(1, 3))}, {("a", 0): numbers(2, bad=(6,), start=5), ("b", 1): numbers(1)}
    )
    decoding.run(work, decode(rows))
    assert [row["offset"] for row in rows] == [0, 2, 4, 5, 0]
    letters = decoding.rows()
    assert [(row["topic"], row["partition"], row["life"], row["offset"]) for row in letters] == [
        ("a", 0, 1, 1), ("a", 0, 1, 3), ("a", 0, 1, 6),
    ]  # fmt: skip
    first = letters[0]
    assert first["cause"] == "ValueError: invalid literal for int() with base 10: b'bad'"
    assert (first["key"], first["value"], first["attempt"], first["output"]) == (b"k", b"bad", 1, "jobs:process")
    assert (first["batch_id"], first["batch_key"]) == (BATCH, KEY)
    assert first["function"].endswith("test_decoding:number")
    assert decoding.found()[0].done


def test_an_omitted_record_is_no_dead_letter(tmp_path: Path) -> None:
    decoding = Decoding(tmp_path)
    rows: list[Any] = []
    decoding.run(
        decoding.work({("a", 0): numbers(4)}),
        decode(rows, lambda record: None if record.offset % 2 else (record.offset, 1)),
    )
    assert [row["offset"] for row in rows] == [0, 2]
    assert decoding.storage.list("") == []  # not one file: nothing was to be said


def test_a_row_that_does_not_fit_the_schema_is_a_dead_letter_by_itself(tmp_path: Path) -> None:
    decoding = Decoding(tmp_path)
    rows: list[Any] = []
    given = {1: {"offset": 1, "number": "many"}, 2: {"offset": 2}, 3: {"offset": 3, "number": 1 << 70}}
    decoding.run(
        decoding.work({("a", 0): numbers(5)}),
        decode(rows, lambda record: given.get(record.offset, {"offset": record.offset, "number": 0})),
    )
    assert [row["offset"] for row in rows] == [0, 4]
    assert {row["offset"]: row["cause"].partition(":")[0] for row in decoding.rows()} == {
        1: "ArrowInvalid", 2: "ValueError", 3: "OverflowError",
    }  # fmt: skip


@pytest.mark.parametrize("row", [{"offset": 1, "other": 2}, (1, 2, 3), "text", 5])
def test_a_function_that_returns_no_rows_fails_the_batch_and_no_record(tmp_path: Path, row: Any) -> None:
    decoding = Decoding(tmp_path)
    with pytest.raises(UsageError, match=r"returned .*(the schema has offset, number|a row is a dict)"):
        decoding.run(decoding.work({("a", 0): numbers(2)}), decode([], lambda _: row))
    assert decoding.storage.list("") == []


@pytest.mark.parametrize("kind", [MemoryError, pa.ArrowMemoryError])
def test_a_lack_of_memory_makes_no_dead_letters(kind: type[MemoryError], monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-5: neither in the job's function, nor where its rows become columns."""

    made = Decoder._made
    errors: list[Exception] = []

    def short(*given: Any) -> Any:
        if errors:
            raise errors.pop(0)
        return made(*given)

    batch = pa.RecordBatch.from_pylist([{"value": b"1", "offset": 0}], schema=DATAFRAME_SCHEMA(False))
    for arrow in (False, True):
        errors[:] = [kind("no memory")] * 2
        with pytest.raises(MemoryError):
            Decoder(short, NUMBERS, arrow).decode(batch)
    monkeypatch.setattr(Decoder, "_made", short)
    errors[:] = [ValueError("some row does not fit: which?"), kind("no memory")]
    with pytest.raises(MemoryError):
        Decoder(number, NUMBERS).decode(batch)


# ---- bounds ----------------------------------------------------------------------------------------------------------


def test_a_job_that_fails_on_too_many_records_fails_its_batch(tmp_path: Path) -> None:
    """All records failing means a broken job: the batch stays, the dead letters of the attempt don't count."""
    decoding = Decoding(tmp_path, max_fraction=0.5, records_allowed=3)
    work = decoding.work({("a", 0): numbers(10, bad=tuple(range(6)))})
    with pytest.raises(
        JobError, match=r"6 records of batch .* can't be decoded, more than dead_letters.max_fraction = 0.5"
    ):
        decoding.run(work, decode([]), settled=False)  # the task itself gives up, and leaves nothing
    assert decoding.storage.list("") == []
    decoding.run(decoding.work({("a", 0): numbers(10, bad=tuple(range(5)))}), decode([]), attempt=2)
    assert len(decoding.rows()) == 5


def test_too_many_are_noticed_though_no_task_alone_has_them(tmp_path: Path) -> None:
    decoding = Decoding(tmp_path, max_fraction=0.5, records_allowed=3)
    tasks = [{("a", number): numbers(4, bad=(0, 1, 2))} for number in range(3)]
    with pytest.raises(JobError, match="9 records of batch"):
        decoding.run(decoding.work(*tasks), decode([]))
    assert not decoding.found()[0].done


def test_a_task_that_spark_ran_twice_counts_each_record_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second attempt read other copies, whose record batches have other sizes, so its pieces are cut elsewhere."""
    decoding = Decoding(tmp_path, max_fraction=0.0, records_allowed=4)
    monkeypatch.setattr(decoding_module, "_PIECE_BYTES", 1)  # a piece for each record batch
    work = decoding.work({("a", 0): numbers(4, bad=(0, 1, 2, 3))})

    def read_by(rows: int) -> Any:
        return lambda *given: (
            part.slice(at, rows) for part in read_task(*given) for at in range(0, part.num_rows, rows)
        )

    for rows, settled in ((3, False), (2, True)):
        monkeypatch.setattr(decoding_module, "read_task", read_by(rows))
        decoding.run(work, decode([]), settled=settled)
    assert [letters.records for letters in decoding.found()[0].letters] == [2, 3, 1, 2]
    assert [row["offset"] for row in decoding.rows()] == [0, 1, 2, 3]


def test_a_few_bad_records_of_a_small_batch_are_always_allowed(tmp_path: Path) -> None:
    decoding = Decoding(tmp_path)
    decoding.run(decoding.work({("a", 0): numbers(3, bad=(0, 1, 2))}), decode([]))
    assert len(decoding.rows()) == 3


def test_without_a_place_for_dead_letters_the_first_one_fails_the_batch(tmp_path: Path) -> None:
    decoding = Decoding(tmp_path, off=True)
    with pytest.raises(JobError, match=r"record a/0@2 can't be decoded: ValueError.*set dead_letters.url"):
        decoding.run(decoding.work({("a", 0): numbers(3, bad=(2,))}), decode([]))


def test_with_a_topic_each_task_has_a_share_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a topic: half of its four records, not the nine that the batch may have."""
    sent: list[int] = []
    monkeypatch.setattr(sender, "send", lambda *given, **_: sent.append(sum(batch.num_rows for batch in given[2])))
    own: dict[str, Any] = {
        "run": Run("s", KEY, "o", 1, 1),
        "time_ms": 0,
        "output": "o",
        "call": 1,
        "limit": 9,
        "topic": "letters",
    }

    def decoded(place: DeadLetterPlan, *values: bytes) -> list[pa.RecordBatch]:
        rows = [
            {"value": value, "topic": "a", "partition": 0, "offset": offset, "timestamp": 0, "timestampType": 0}
            for offset, value in enumerate(values)
        ]
        batch = pa.RecordBatch.from_pylist(rows, schema=DATAFRAME_SCHEMA(False))
        return list(decode_parts([Part([batch], {("a", 0): 1})], 0, 4, Decoder(number, NUMBERS), place))

    for allowed, fraction in ((1, 0.5), (2, 0.0)):
        place = DeadLetterPlan(**own, allowed=allowed, fraction=fraction)
        assert [part.num_rows for part in decoded(place, b"bad", b"1", b"bad", b"2")] == [2] and sent.pop() == 2
        with pytest.raises(JobError, match="3 records of batch"):
            decoded(place, b"bad", b"1", b"bad", b"bad")
        assert sent == []


# ---- runs ------------------------------------------------------------------------------------------------------------


def test_a_task_that_runs_twice_and_an_action_that_is_repeated_write_nothing_twice(tmp_path: Path) -> None:
    decoding = Decoding(tmp_path)
    work = decoding.work({("a", 0): numbers(5, bad=(1, 3))})

    def job(batch: Batch) -> None:
        decoded = [list(batch.read_decoded(number, NUMBERS)) for _ in range(2)]
        assert len(decoded) == 2

    decoding.run(work, decode([]))
    names = decoding.storage.list("")
    decoding.run(work, decode([]))
    assert decoding.storage.list("") == names


def test_of_several_attempts_only_the_one_that_returned_counts(tmp_path: Path) -> None:
    """A record that an earlier attempt could not decode, and the last one could, is no dead letter."""
    decoding = Decoding(tmp_path)
    work = decoding.work({("a", 0): numbers(5)})

    def flaky(bad: set[int]) -> Callable[[KafkaRecord], Any]:
        def function(record: KafkaRecord) -> Any:
            if record.offset in bad:
                raise TimeoutError("the service did not answer")
            return number(record)

        return function

    decoding.run(work, decode([], flaky({1, 2})), attempt=1, settled=False)
    assert [(found.done, len(found.letters)) for found in decoding.found()] == [(False, 1)]
    decoding.run(work, decode([], flaky({2})), attempt=2)
    assert [(row["offset"], row["attempt"]) for row in decoding.rows()] == [(2, 2)]
    decoding.run(replace(work, epoch=6), decode([], flaky(set())), attempt=1)
    assert decoding.rows() == []  # the newest driver's run had none
    # INV-4: what an outdated driver ends afterwards changes nothing
    decoding.run(work, decode([], flaky({4})), attempt=3)
    assert decoding.rows() == []


def test_dead_letters_of_a_killed_run_do_not_count_after_another_run() -> None:
    def path(epoch: int, attempt: int, name: str, key: str = KEY) -> str:
        return f"{Run('s', key, 'o', epoch, attempt).folder}/{name}"

    letters = "1-0-0-2-0123456789abcdef.parquet"
    killed = [path(5, 1, letters)]
    (found,) = dead_letters.counting(killed)
    assert (found.run.attempt, found.done) == (1, False)
    (found,) = dead_letters.counting([*killed, path(5, 2, "done")])
    assert (found.run.attempt, found.done, found.letters) == (2, True, ())
    (found,) = dead_letters.counting([*killed, path(5, 1, "done"), path(6, 1, letters), "s/other", "s/dead-letters/x"])
    assert (found.run.epoch, found.done, found.letters[0].records) == (5, True, 2)
    other = [path(5, 1, letters, f"1-2-{BATCH}"), path(5, 1, letters, f"1-0-{BATCH - 1}")]
    assert [item.run.batch_id for item in dead_letters.counting([*killed, *other])] == [BATCH - 1, BATCH, BATCH]


def test_dead_letters_of_a_task_are_written_in_pieces_of_bounded_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-6."""
    monkeypatch.setattr("driver.batches.tasks.decoding._PIECE_BYTES", 500)
    monkeypatch.setattr("wal.reading.together.RUN_BYTES", 1)  # so that each block is decoded alone
    decoding = Decoding(tmp_path)
    blocks = [block({("a", n): numbers(10, bad=tuple(range(10)))}, sequence=n + 1) for n in range(4)]
    references = tuple(decoding.stored.add(*made) for made in blocks)
    work = BatchWork(BATCH, 7, 0, False, (references,), stream="s", epoch=5, output="o")
    decoding.run(work, decode([]))
    (found,) = decoding.found()
    assert [letters.records for letters in found.letters] == [10] * 4
    assert len(decoding.rows()) == 40


def test_letters_of_one_task_name_the_incarnation_of_their_own_block(tmp_path: Path) -> None:
    """Blocks that are read together may have equal offsets of a topic that was created again between them."""
    decoding = Decoding(tmp_path)
    references = []
    for sequence, incarnation in enumerate((1, 1, 2, 2, 3), 1):
        meta, payload = block({("a", 0): numbers(1, bad=(0,))}, sequence=sequence)
        range_ = msgspec.structs.replace(meta.ranges[0], incarnation=incarnation)
        references.append(decoding.stored.add(msgspec.structs.replace(meta, ranges=(range_,)), payload))
    work = BatchWork(BATCH, 7, 0, False, (tuple(references),), stream="s", epoch=5, output="o")
    decoding.run(work, decode([]))
    assert [row["life"] for row in decoding.rows()] == [1, 1, 2, 2, 3]


# ---- bytes and names -------------------------------------------------------------------------------------------------


def test_every_odd_record_comes_back_as_it_was_from_a_file_and_from_a_topic(tmp_path: Path) -> None:
    decoding = Decoding(tmp_path)
    odd = list(ODD_ROWS)
    work = decoding.work({("a", 0): odd}, headers=True)
    decoding.run(work, decode([], lambda _: json.loads("no")))
    kept = decoding.rows()
    assert [(row["key"], row["value"], row["offset"]) for row in kept] == [row[:3] for row in odd]
    assert kept[4]["headers"] == [{"key": key, "value": value} for key, value in odd[4].headers or []]
    (found,) = decoding.found()
    ((_, table),) = dead_letters.tables(decoding.storage, found)
    assert of_records(as_records(table)).drop_columns(["headers"]).equals(table.drop_columns(["headers"]))
    back = of_records(as_records(table)).column("headers").to_pylist()
    strange = [{"key": f"forebay.{name}", "value": None if name == "cause" else b"1"} for name in ("topic", "cause")]
    others = pa.Table.from_pylist(
        [{"timestamp": 0}, {"timestamp": 0, "headers": strange}], schema=DATAFRAME_SCHEMA(True)
    )
    assert of_records(others).num_rows == 0  # another program's, in the same topic
    assert [headers or None for headers in back] == [row["headers"] or None for row in kept]


@pytest.mark.parametrize(
    "name", ["topic", "partition", "life", "offset", "attempt", "batch_key", "batch_time", "cause"]
)
@pytest.mark.parametrize("value", [b"", b"x", b"-1", b"9" * 5000, "²".encode(), b"9999999999999999999", b"\xff"])
def test_record_with_a_header_that_no_dead_letter_has_is_omitted(name: str, value: bytes, tmp_path: Path) -> None:
    """Any producer can write into the topic."""
    decoding = Decoding(tmp_path)
    decoding.run(decoding.work({("a", 0): [ODD_ROWS[0]]}, headers=True), decode([], lambda _: json.loads("no")))
    (found,) = decoding.found()
    ((_, table),) = dead_letters.tables(decoding.storage, found)
    made = as_records(table)
    headers = made.column("headers").to_pylist()[0] or []
    changed = [{**h, "value": value} if h["key"] == f"forebay.{name}" else h for h in headers]
    assert changed != headers
    odd = made.set_column(
        made.schema.get_field_index("headers"), "headers", pa.array([changed], made.schema.field("headers").type)
    )
    is_valid = (name in ("topic", "cause") and value != b"\xff") or (name, value) == ("batch_key", b"-1")
    assert of_records(pa.concat_tables([odd, made])).num_rows == 1 + is_valid


@pytest.mark.parametrize("name", ["jobs:process", "_private:x", "a/b", "../..", "", "é:ü", "x" * 300])
def test_an_output_s_name_is_a_safe_part_of_a_path(name: str) -> None:
    run = Run("s", KEY, dead_letters.output_folder(name), 1, 1)
    path = dead_letters.object_path(run, 1, 0, 0, [RecordIdentity("a", 0, 1, 2)])
    open_storage("memory://names").put_new(path, b"")  # which checks it
    (found,) = dead_letters.counting([path])
    assert found.run == run


def test_plans_show_no_password(tmp_path: Path) -> None:
    plan = DeadLetterPlan(
        run=Run("s", KEY, "o", 1, 1), time_ms=0, output="o", call=1, limit=1, allowed=1, fraction=0.5, topic="t",
        options={"sasl.password": "secret"},
    )  # fmt: skip
    assert "secret" not in repr(plan) + str(plan)


def test_decoders_are_named_by_their_function() -> None:
    assert Decoder(number, NUMBERS).name.endswith(":number")


def test_a_task_whose_dead_letters_can_not_be_stored_fails_and_a_retry_finishes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-5: no record leaves the rows without being put away; a full disk is an error of the task."""
    decoding = Decoding(tmp_path)
    work = decoding.work({("a", 0): numbers(5, bad=(1, 3))})
    with monkeypatch.context() as patched:

        def full(*_: Any) -> None:
            raise OutOfSpaceError("no space left")

        patched.setattr("wal.storage.local.LocalStorage.put_new", full)
        with pytest.raises(OutOfSpaceError):
            decoding.run(work, decode([]))
    assert decoding.found() == []
    decoding.run(work, decode([]), attempt=2)
    assert [row["offset"] for row in decoding.rows()] == [1, 3]


def test_file_whose_text_is_damaged_is_named() -> None:
    text = pa.Array.from_buffers(pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")])
    columns = [text if field.name == "topic" else pa.nulls(1, field.type) for field in dead_letters.SCHEMA]
    storage = MemoryStorage("memory://letters")
    dead_letters.put(storage, "a.parquet", pa.Table.from_arrays(columns, names=dead_letters.SCHEMA.names))
    with pytest.raises(CorruptionError, match=r"letters/a\.parquet.*no Parquet file of dead letters"):
        dead_letters.read(storage, "a.parquet")
