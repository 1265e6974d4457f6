"""Keyed state with the local engine: what a batch sees, what counts, what is refused."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pyarrow as pa
import pytest

from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.batches.local_engine import LocalEngine
from driver.journal.transitions.keyed_states import states_rewound
from forebay.model.errors import CorruptionError, MissingKeyError, NewerVersionError, UsageError
from forebay.model.identifiers import numbered
from forebay.settings.reading.load import from_values
from tests.support.state.columns import schema_of
from tests.support.state.states import COUNTS, StateLine, as_dict, counts, table
from tests.support.state.stored import Stored


def run_locally(stored: Stored, work: BatchWork, job: Callable[[Batch], Any]) -> None:
    LocalEngine(stored.settings(), dict).run(work, job)


@pytest.fixture
def line(tmp_path: Path) -> StateLine:
    return StateLine(tmp_path, run_locally)


def add(known: pa.Table, rows: pa.Table) -> pa.Table:
    """Adds up the counts of each key."""
    both = pa.concat_tables([known, rows]).group_by("key").aggregate([("count", "sum")])
    changed = rows.column("key").unique()
    return both.rename_columns({"count_sum": "count"}).filter(pa.compute.is_in(both.column("key"), changed))


def test_a_batch_sees_what_completed_batches_wrote_and_a_rerun_never_its_own(line: StateLine) -> None:
    """INV-3: a run that was not completed leaves nothing behind for the next one."""
    seen: list[dict[str, int]] = []

    def job(batch: Batch) -> None:
        state = counts(batch)
        seen.append(as_dict(state.read()))
        state.update(table(a=batch.number, b=1), add)
        assert as_dict(state.read()) == seen[-1], "it shows the state before the batch, also after its change"
        assert as_dict(state.read_changed()) == {
            "a": seen[-1].get("a", 0) + batch.number,
            "b": seen[-1].get("b", 0) + 1,
        }

    line.run(1, job, complete=False)
    line.run(1, job)
    line.run(2, job, complete=False)
    line.run(2, job)
    line.run(3, job)
    assert seen == [{}, {}, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"a": 3, "b": 2}]


def test_rows_are_set_and_deleted_by_key_over_many_compactions(line: StateLine) -> None:
    expected: dict[str, int] = {}
    seen: list[dict[str, int]] = []
    for number in range(1, 40):
        rows = {f"k{(number * 7 + i) % 50}": number * 100 + i for i in range(10)}
        gone = [key for key in (f"k{(number * 3 + i) % 50}" for i in range(4)) if key not in rows]

        def job(batch: Batch, rows: dict[str, int] = rows, gone: list[str] = gone) -> None:
            state = counts(batch)
            seen.append(as_dict(state.read()))
            state.write(table(**rows), delete=pa.table({"key": gone}))

        line.run(number, job)
        assert seen.pop() == expected
        expected |= rows
        for key in gone:
            expected.pop(key, None)
    manifest = msgspec.json.decode(
        (line.stored.root / "wal" / line.state.keyed["counts"].versions[-1].manifest).read_bytes()
    )
    assert all(1 <= len(shard) <= 9 for shard in manifest["shards"]), "deltas are merged into bases"


def test_a_key_times_out_once_in_the_first_batch_after_its_timeout(line: StateLine) -> None:
    """By batch times. A row that a write replaces when it times out is in no other result, so it is shown as expired."""
    start = 1_700_000_000_000
    seen: list[tuple[dict[str, int], dict[str, int]]] = []

    def job(**rows: int) -> Callable[[Batch], None]:
        def run(batch: Batch) -> None:
            state = counts(batch, timeout="10s")
            if rows:
                state.write(table(**rows))
            seen.append((as_dict(state.read()), as_dict(state.read_expired())))

        return run

    for number, (seconds, rows) in enumerate(
        [(0, {"a": 1, "b": 1}), (9, {"b": 2}), (10, {}), (11, {}), (19, {"b": 3}), (40, {})], 1
    ):
        line.run(number, job(**rows), time_ms=start + seconds * 1_000)
    assert seen == [
        ({}, {}),
        ({"a": 1, "b": 1}, {}),
        ({"b": 2}, {"a": 1}),
        ({"b": 2}, {}),
        ({}, {"b": 2}),  # b times out now, and begins again
        ({}, {"b": 3}),
    ]
    manifest = msgspec.json.decode(
        (line.stored.root / "wal" / line.state.keyed["counts"].versions[-1].manifest).read_bytes()
    )
    assert manifest["shards"] == [[]] * 4, "shards whose rows have all timed out hold no file"


def test_an_update_gets_the_row_of_its_key_that_times_out_now(line: StateLine) -> None:
    """As in mapWithState, a key with records in the batch does not time out. Other keys of the shard do."""
    start = 1_700_000_000_000
    seen: list[tuple[dict[str, int], dict[str, int]]] = []

    def job(**rows: int) -> Callable[[Batch], None]:
        def run(batch: Batch) -> None:
            state = counts(batch, timeout="10s", shards=1)
            known: list[dict[str, int]] = []

            def noted(before: pa.Table, new: pa.Table) -> pa.Table:
                known.append(as_dict(before))
                after = add(before, new)
                return after.filter(pa.compute.not_equal(after.column("key"), pa.scalar("gone")))

            state.update(table(**rows), noted)
            seen.append((known[0], as_dict(state.read_expired())))

        return run

    line.run(1, lambda batch: counts(batch, shards=1).write(table(a=5, b=6, gone=7)), time_ms=start)
    line.run(2, job(a=1, gone=1), time_ms=start + 20_000)
    line.run(3, job(b=1, c=1), time_ms=start + 21_000)
    line.run(4, job(c=1), time_ms=start + 40_000)
    assert seen == [
        ({"a": 5, "gone": 7}, {"b": 6, "gone": 7}),
        ({"a": 6}, {}),
        ({"c": 1}, {"a": 6, "b": 1}),
    ]


def test_a_longer_timeout_brings_no_forgotten_key_back(line: StateLine) -> None:
    start = 1_700_000_000_000
    line.run(1, lambda batch: counts(batch, timeout=1).write(table(a=1)), time_ms=start)
    line.run(2, lambda batch: counts(batch, timeout=1).write(table(b=1)), time_ms=start + 5_000)
    seen: list[dict[str, int]] = []
    line.run(3, lambda batch: seen.append(as_dict(counts(batch, timeout=3600).read())), time_ms=start + 5_500)
    assert seen == [{"b": 1}]


def test_columns_are_added_and_removed_and_keys_of_several_columns_and_types_work(line: StateLine) -> None:
    first = schema_of(day=pa.date32(), id=pa.int32(), gone=pa.string(), n=pa.int64())
    second = schema_of(id=pa.int32(), day=pa.date32(), n=pa.int64(), tags=pa.list_(pa.string()))
    rows = [{"day": day, "id": id_, "gone": "x", "n": id_ or -1} for day in (None, 3) for id_ in (None, 1, 2)]
    line.run(1, lambda batch: batch.state("s", first, ("day", "id")).write(pa.Table.from_pylist(rows, first)))
    seen: list[Any] = []

    def job(batch: Batch) -> None:
        state = batch.state("s", second, ("day", "id"))
        seen.extend(state.read().to_pylist())
        state.write(pa.table({"id": [1], "day": [None], "n": [7], "tags": [["a"]]}, second))

    line.run(2, job)
    assert len(seen) == 6
    assert {(row["n"], row["tags"]) for row in seen} == {(-1, None), (1, None), (2, None)}
    line.run(3, lambda batch: seen.extend(batch.state("s", second, ("day", "id")).read().to_pylist()))
    assert len(seen) == 12
    assert [row for row in seen[6:] if row["tags"]] == [{"id": 1, "day": None, "n": 7, "tags": ["a"]}]


def test_a_column_that_was_left_out_is_not_added_again(line: StateLine) -> None:
    """Files that are not merged still have its old values, perhaps of another type."""
    old = schema_of(key=pa.string(), x=pa.string(), y=pa.int64())
    less = schema_of(key=pa.string(), y=pa.int64())
    line.run(1, lambda b: b.state("s", old, "key").write(pa.table({"key": ["a"], "x": ["old"], "y": [1]}, old)))
    for number in (2, 3):
        line.run(number, lambda b: b.state("s", less, "key").write(pa.table({"key": ["b"], "y": [b.number]}, less)))
    for again in (old, schema_of(key=pa.string(), x=pa.int64(), y=pa.int64())):

        def reopen(batch: Batch, columns: pa.Schema = again) -> None:
            batch.state("s", columns, "key").read()

        with pytest.raises(UsageError, match="column 'x' was left out"):
            line.run(4, reopen)
    line.run(4, lambda b: b.state("s", less, "key").read())


LABELS = pa.dictionary(pa.int32(), pa.string())
NESTED = pa.map_(pa.string(), pa.list_(pa.struct([("label", LABELS)])))
LABELLED: dict[str, tuple[pa.DataType, Callable[[str], Any]]] = {
    "a dictionary": (LABELS, lambda label: label),
    "a view": (pa.string_view(), lambda label: label),
    "a view in a list": (pa.list_(pa.string_view()), lambda label: [label]),
    "a dictionary in a struct in a list in a map": (
        NESTED,
        lambda label: [(label, [{"label": label}, {"label": None}])],
    ),
}


@pytest.mark.parametrize("case", LABELLED)
def test_dictionaries_and_views_are_written_deleted_merged_and_updated(line: StateLine, case: str) -> None:
    """Each batch has a dictionary of its own, and a file can have only one."""
    type_, value = LABELLED[case]
    columns = pa.schema([("key", pa.string()), ("label", type_)])
    expected: dict[str, Any] = {}
    seen: list[dict[str, Any]] = []

    def rows(labels: dict[str, str]) -> pa.Table:
        values = pa.array([value(label) for label in labels.values()], type_)
        return pa.table({"key": pa.array(labels, pa.string()), "label": values})

    def change(known: pa.Table, part: pa.Table) -> tuple[pa.Table, pa.Table]:
        is_new = pa.compute.greater_equal(part.column("key"), pa.scalar("k"))
        return part.filter(is_new), part.filter(pa.compute.invert(is_new))

    for number in range(1, 24):
        new = {f"k{(number * 5 + i) % 17}": f"{number}-{i}" * 9 for i in range(3)}
        gone = [key for key in (f"k{number % 17}",) if key not in new]

        def job(batch: Batch, new: dict[str, str] = new, gone: list[str] = gone) -> None:
            state = batch.state("labels", columns, "key", shards=2)
            known: Any = state.read().to_pydict()
            seen.append(dict(zip(known["key"], known["label"], strict=True)))
            if batch.number % 3:
                state.write(rows(new), delete=pa.table({"key": pa.array(gone, pa.string())}))
            else:
                more = rows({"another": "label"})
                state.update(pa.concat_tables([rows(new), more]), change)

        line.run(number, job)
        assert seen.pop() == expected
        expected |= {key: value(label) for key, label in new.items()}
        if number % 3:
            expected = {key: label for key, label in expected.items() if key not in gone}


def test_rows_of_an_update_that_arrow_can_not_select_are_refused(line: StateLine) -> None:
    encode: Any = pa.compute
    rows = pa.table({"key": ["a"], "more": encode.run_end_encode(pa.array(["a"]))})
    with pytest.raises(
        UsageError, match=r"the rows of an update: Arrow can't select rows of the column 'more' of type run"
    ):
        line.run(1, lambda b: counts(b).update(rows, add))


TEXTS = schema_of(key=pa.string(), count=pa.string())
REFUSED: dict[str, tuple[Callable[[Batch], Any], str]] = {
    "another key": (lambda b: b.state("counts", COUNTS, ("key", "count"), shards=4), "has the key"),
    "another type": (lambda b: b.state("counts", TEXTS, "key", shards=4), "has type int64"),
    "other shards": (lambda b: counts(b, shards=5), "has 4 shards"),
    "a key without column": (lambda b: b.state("x", COUNTS, "missing"), "not in the schema"),
    "a key of floats": (lambda b: b.state("x", pa.schema([("f", pa.float64())]), "f"), "can be an integer"),
    "a run-end encoded column": (
        lambda b: b.state("x", pa.schema([("k", pa.int64()), ("v", pa.run_end_encoded(pa.int32(), pa.string()))]), "k"),
        "which a state can't keep",
    ),
    "a reserved column": (lambda b: b.state("x", pa.schema([("k", pa.int64()), ("__k", pa.int64())]), "k"), "reserved"),
    "a name that is a path": (lambda b: b.state("../x", COUNTS, "key"), "a name has"),
    "too many shards": (lambda b: counts(b, shards=5_000), "shards must be"),
    "no timeout": (lambda b: counts(b, timeout=0), "timeout must be at least 1 ms"),
    "no version": (lambda b: counts(b, versions=0), "versions must be"),
    "a key twice": (lambda b: counts(b).write(pa.table({"key": ["a", "a"], "count": [1, 2]}, COUNTS)), "more than once"),
    "a key set and deleted": (lambda b: counts(b).write(table(a=1), delete=pa.table({"key": ["a"]})), "more than once"),
    "a missing column": (lambda b: counts(b).write(pa.table({"key": ["a"]})), "lack the columns count"),
    "rows that do not fit": (lambda b: counts(b).write(pa.table({"key": ["a"], "count": ["x"]})), "do not fit"),
    "no rows": (lambda b: counts(b).write(7), "must be a DataFrame"),
    "two writes": (lambda b: [counts(b).write(table(a=n)) for n in (1, 2)], "changed it already"),
    "no function": (lambda b: counts(b).update(table(a=1), cast(Any, 7)), "needs a function"),
    "a DataFrame without Spark": (lambda b: counts(b).df, "needs Spark"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_state_cannot_be_is_refused_with_the_reason(line: StateLine, case: str) -> None:
    line.run(1, lambda batch: counts(batch).write(table(a=1)))
    job, message = REFUSED[case]
    with pytest.raises(UsageError, match=message):
        line.run(2, job)


def test_streams_and_outputs_that_can_have_no_state_are_refused(line: StateLine) -> None:
    line.run(1, lambda batch: counts(batch).write(table(a=1)))
    with pytest.raises(UsageError, match=r"concurrent_jobs = 1"):
        line.run(2, counts, concurrent_jobs=2)
    with pytest.raises(UsageError, match="another output"):
        line.run(1, counts)
    kafka = {"topics": ["t"], "bootstrap.servers": "127.0.0.1:1"}
    without_wal = from_values(
        {
            "stream": "s",
            "kafka": kafka,
            "wal": {"url": "none"},
            "driver": {"journal": "file:///none", "url": "http://127.0.0.1:9"},
            "agent": {"blocks": "/none"},
        }
    )
    with pytest.raises(UsageError, match=r"set wal\.url"):
        LocalEngine(without_wal, dict).run(line.work(2), cast(Any, counts))


def test_damage_is_never_an_empty_state(line: StateLine) -> None:
    """INV-5."""
    line.run(1, lambda batch: counts(batch, shards=1).write(table(a=1)))
    wal = line.stored.root / "wal"
    manifest = wal / line.state.keyed["counts"].versions[-1].manifest
    (file,) = manifest.parent.glob("*.arrow")

    def read() -> None:
        line.run(2, lambda batch: counts(batch, shards=1).read())

    whole = file.read_bytes()
    for damaged in (whole[:-1], whole[:100] + bytes([whole[100] ^ 1]) + whole[101:], whole + b"x", b""):
        file.write_bytes(damaged)
        with pytest.raises(CorruptionError, match="not those that the manifest names"):
            read()
    file.unlink()
    with pytest.raises(CorruptionError, match="missing"):
        read()
    file.write_bytes(whole)
    text = manifest.read_bytes()
    manifest.write_bytes(text.replace(b'"forgotten_ms":0', b'"forgotten_ms":1'))
    with pytest.raises(CorruptionError, match="not the one that the journal names"):
        read()
    manifest.unlink()
    with pytest.raises(CorruptionError, match="missing"):
        read()
    manifest.write_bytes(text)
    read()


def test_a_manifest_of_a_newer_format_is_refused(line: StateLine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr("wal.keyed.files.FORMAT", 2)
        line.run(1, lambda batch: counts(batch).write(table(a=1)))
    with pytest.raises(NewerVersionError, match="format 2"):
        line.run(2, counts)


def test_a_state_is_encrypted_with_the_keys_of_the_wal(line: StateLine, monkeypatch: pytest.MonkeyPatch) -> None:
    key = base64.b64encode(b"k" * 32).decode()
    secret = "not-to-be-found"
    monkeypatch.setenv("FOREBAY_WAL_KEYS", f"one {key}")
    line.run(1, lambda batch: counts(batch).write(table(**{secret: 1})))
    assert not [p for p in line.stored.root.rglob("*") if p.is_file() and secret.encode() in p.read_bytes()]
    seen: list[dict[str, int]] = []
    line.run(2, lambda batch: seen.append(as_dict(counts(batch).read())))
    assert seen == [{secret: 1}]
    monkeypatch.delenv("FOREBAY_WAL_KEYS")
    with pytest.raises(MissingKeyError, match="'one'"):
        line.run(2, lambda batch: counts(batch).read())


def test_a_replay_reads_the_version_before_its_batch(line: StateLine) -> None:
    for number in (1, 2, 3):
        line.run(number, lambda batch: counts(batch).update(table(a=batch.number), add))
    states_rewound(line.state, numbered(1, 2))
    seen: list[dict[str, int]] = []

    def corrected(batch: Batch) -> None:
        state = counts(batch)
        seen.append(as_dict(state.read()))
        state.update(table(a=batch.number * 10), add)

    line.run(2, corrected, replay=1)
    line.run(3, corrected, replay=1)
    assert seen == [{"a": 1}, {"a": 21}]


def test_a_change_without_rows_makes_no_version(line: StateLine) -> None:
    line.run(1, lambda batch: counts(batch).write(table(a=1)))
    assert line.run(2, lambda batch: counts(batch).update(table(a=1), lambda known, rows: rows.slice(0, 0))) == ()
    assert line.run(3, lambda batch: counts(batch).read()) == ()


def test_what_tasks_get_shows_no_secret(line: StateLine) -> None:
    def job(batch: Batch) -> None:
        assert re.fullmatch(r"<StatePlan of s/state/counts/\S+>", repr(counts(batch)._plan))

    line.run(1, job)
