"""Which run of a batch is written over which, and what outputs refuse."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable

from driver.outputs import DeltaOutput, KafkaOutput, ParquetOutput, SqlOutput, Written, transaction_of
from driver.outputs.parquet import MARKER
from driver.outputs.run import OutputRun, decoded, reason_to_skip, run_of
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.model.errors import FencedError, StoreError, UnreadableBlockError, UsageError
from forebay.model.identifiers import numbered
from tests.support.processes.output_process import Turn, batch_of, rows_of


def run(number: int, replay: int = 0, timeline: int = 1, epoch: int = numbered(3, 1)) -> OutputRun:
    return OutputRun(
        stream="s",
        output="o",
        timeline=timeline,
        replay=replay,
        number=number,
        batch_id=numbered(timeline, number),
        epoch=epoch,
    )


@pytest.mark.parametrize(
    ("last", "own", "written"),
    [
        (None, run(1), True),
        (run(1), run(2), True),
        (run(2), run(2), False),  # committed, and not completed
        (run(3), run(2), False),
        (run(10), run(5, replay=1), True),  # a replay begins
        (run(5, replay=1), run(6, replay=1), True),
        (run(6, replay=1), run(6, replay=1), False),
        (run(10, replay=1), run(11), True),  # new batches after it
        (run(10, replay=1), run(5, replay=2), True),
        (run(7), run(1, timeline=2), True),  # ids ascend over timelines
        (run(1, timeline=2), run(7), False),
        # the rebuilt journal counts replays from 1 again; run_of gives a replay the timeline of its journal
        (run(7, replay=1), run(5, replay=1, timeline=2), True),
        (run(2, epoch=numbered(3, 1)), run(2, epoch=numbered(3, 2)), False),  # by the driver before this one
    ],
)
def test_a_run_is_written_unless_it_or_a_later_run_of_its_sequence_is_in_the_output(
    last: OutputRun | None, own: OutputRun, written: bool
) -> None:
    assert (reason_to_skip(own, last) == "") == written


def test_a_first_run_that_was_committed_before_a_replay_is_skipped_after_it() -> None:
    """INV-3: a driver that is killed between commit and completion leaves a batch that runs again after the replay."""
    marker = None
    for own in (run(9), run(10), run(5, replay=1), run(6, replay=1)):
        assert reason_to_skip(own, marker) == ""
        marker = own.after(marker)
    assert "batch" in reason_to_skip(run(9), marker) and "is written already" in reason_to_skip(run(10), marker)
    assert reason_to_skip(run(11), marker) == "" == reason_to_skip(run(1, timeline=2), marker)
    assert reason_to_skip(run(5, replay=2), run(11).after(marker)) == ""
    assert reason_to_skip(run(5, replay=1), run(5, replay=1).after(None)) != ""


@pytest.mark.parametrize("kind", ["parquet", "delta", "sql"])
def test_a_batch_is_in_the_output_once_despite_a_replay_between_commit_and_completion(
    kind: str, tmp_path: Path
) -> None:
    """INV-3."""
    output = outputs(tmp_path)[kind]
    for turn in (Turn(1), Turn(2), Turn(1, replay=1)):
        if kind == "sql" and turn.replay:
            continue  # its table refuses a row that is there
        assert output.write(batch_of(turn), rows_of(turn)).rows == 60
    if kind == "sql":
        empty = output.write(batch_of(Turn(1, replay=1)), [])
        assert (empty.rows, empty.skipped) == (0, "")
    again = output.write(batch_of(Turn(2)), rows_of(Turn(2)))
    assert again.rows == 0 and "is written already" in again.skipped


def test_a_replay_that_gives_no_rows_takes_the_old_ones_out_of_a_delta_table(tmp_path: Path) -> None:
    output = DeltaOutput(f"file://{tmp_path}/delta", batch_column="batch")
    for turn in (Turn(1), Turn(2)):
        output.write(batch_of(turn), rows_of(turn))
    for _ in range(2):
        assert output.write(batch_of(Turn(1, replay=1)), []).rows == 0
    kept = DeltaTable(f"{tmp_path}/delta").to_pyarrow_table()
    assert set(kept.column("number").to_pylist()) == {2} and kept.num_rows == 60


def test_a_newer_drivers_output_refuses_an_older_driver() -> None:
    """INV-4."""
    with pytest.raises(FencedError, match="newer driver of stream 's'"):
        reason_to_skip(run(9, epoch=numbered(1, 8)), run(2, epoch=numbered(1, 9)))


def test_deltas_version_ascends_within_an_application_of_one_timeline_and_replay() -> None:
    """After a rebuild the same number is another batch: it must not be taken for the one before."""
    first, second = (transaction_of(batch_of(Turn(number)), "o") for number in (1, 2))
    assert first[0] == second[0] == "forebay/flights/o/1/0" and first[1] < second[1]
    rebuilt = transaction_of(batch_of(Turn(1, timeline=2), numbered(2, 1)), "o")
    replayed = transaction_of(batch_of(Turn(1, replay=1), numbered(2, 1)), "o")
    assert (rebuilt[0], replayed[0]) == ("forebay/flights/o/2/0", "forebay/flights/o/2/1")


def test_a_marker_is_read_as_it_was_written_and_nothing_else_is() -> None:
    assert decoded(run(3, replay=2).encoded(), "there") == run(3, replay=2)
    with pytest.raises(StoreError, match="there is no marker"):
        decoded("7", "there")


def outputs(folder: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(folder / "data.db")) as database, database:
        database.execute('CREATE TABLE t ("key" BLOB, "value" BLOB, number INTEGER, place INTEGER, replay INTEGER)')
        database.execute("CREATE UNIQUE INDEX place ON t (number, place)")
    return {
        "parquet": ParquetOutput(f"file://{folder}/parquet"),
        "delta": DeltaOutput(f"file://{folder}/delta"),
        "sql": SqlOutput(f"sqlite:///{folder}/data.db", "t"),
    }


@pytest.mark.parametrize("kind", ["parquet", "delta", "sql"])
def test_a_write_is_answered_and_noted_and_unreadable_rows_leave_nothing(kind: str, tmp_path: Path) -> None:
    """INV-5: the error of the rows is the job's, whatever library was in between."""
    output = outputs(tmp_path)[kind]

    def lost() -> Any:
        yield from list(rows_of(Turn(1)))[:2]
        raise UnreadableBlockError("no tier")

    with pytest.raises(UnreadableBlockError, match="no tier"):
        output.write(batch_of(Turn(1)), lost())
    batch = batch_of(Turn(1))
    assert output.write(batch, pa.Table.from_batches(rows_of(Turn(1)))) == Written(output.name, 60)
    assert batch.noted == (Written(output.name, 60),)
    rerun = batch_of(Turn(1))
    again = output.write(rerun, rows_of(Turn(1)))
    assert again.rows == 0 and "written already" in again.skipped
    assert rerun.noted == (again,)
    assert output.write(batch_of(Turn(2)), []).rows == 0
    assert output.write(batch_of(Turn(3)), next(rows_of(Turn(3)))).rows == 20


@pytest.mark.parametrize("kind", ["parquet", "delta", "sql"])
def test_a_second_write_of_one_batch_is_refused_and_not_taken_for_written(kind: str, tmp_path: Path) -> None:
    """INV-5: its rows would be lost, with a warning that they are there."""
    output, batch = outputs(tmp_path)[kind], batch_of(Turn(1))
    output.write(batch, rows_of(Turn(1)))
    with pytest.raises(UsageError, match="writes a batch once"):
        output.write(batch, rows_of(Turn(2)))


@pytest.mark.parametrize("kind", ["parquet", "delta", "sql"])
@pytest.mark.parametrize("data", [7, "rows", {"a": 1}, [1, 2], None])
def test_data_that_is_no_rows_is_refused(kind: str, data: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="an output writes a Spark DataFrame"):
        outputs(tmp_path)[kind].write(batch_of(Turn(1)), data)


@pytest.mark.parametrize("kind", ["parquet", "delta", "sql", "kafka"])
def test_concurrent_batches_are_refused(kind: str, tmp_path: Path) -> None:
    output = KafkaOutput({}, "t") if kind == "kafka" else outputs(tmp_path)[kind]
    with pytest.raises(UsageError, match=r"set driver\.concurrent_jobs = 1"):
        output.write(batch_of(Turn(1), concurrent_jobs=2), rows_of(Turn(1)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda f: ParquetOutput("s3://bucket/x"), "use a table format, such as DeltaOutput"),
        (lambda f: ParquetOutput("/data/x"), "only file:/// and hdfs:///? can rename"),
        (lambda f: ParquetOutput(f"file://{f}", name="../x"), "output '../x': a name has"),
        (
            lambda f: ParquetOutput(f"file://{f}", partition_by=("a",)).write(batch_of(Turn(1)), rows_of(Turn(1))),
            "partition_by needs a DataFrame",
        ),
        (lambda f: SqlOutput("nonsense", "t"), "the url is not one of SQLAlchemy's"),
        (lambda f: SqlOutput("mysql://u:secret@h/d", "t"), "driver is not installed"),
        (lambda f: SqlOutput(f"sqlite:///{f}/x.db", "none").write(batch_of(Turn(1)), []), "has no table none"),
        (lambda f: outputs(f)["sql"].write(batch_of(Turn(1)), pa.table({"x": [1]})), "table t has no column x"),
        (
            lambda f: (
                outputs(f),
                SqlOutput(f"sqlite:///{f}/data.db", "t", key=["place"]).write(batch_of(Turn(1)), []),
            ),
            r"no primary key, unique constraint or unique index over \(place\)",
        ),
        (
            lambda f: (
                outputs(f),
                SqlOutput(f"sqlite:///{f}/data.db", "t", batch_column="b").write(batch_of(Turn(1)), []),
            ),
            "table t has no column b",
        ),
        (
            lambda f: DeltaOutput(f"file://{f}/d", batch_column="place").write(batch_of(Turn(1)), rows_of(Turn(1))),
            "already have a column place",
        ),
    ],
)
def test_impossible_outputs_are_refused_in_one_sentence(
    make: Callable[[Path], Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=message) as refused:
        make(tmp_path)
    assert "secret" not in str(refused.value) and "\n" not in str(refused.value)


def test_two_outputs_cannot_share_a_folder_and_another_programs_marker_stays(tmp_path: Path) -> None:
    ParquetOutput(f"file://{tmp_path}", name="a").write(batch_of(Turn(1)), rows_of(Turn(1)))
    with pytest.raises(UsageError, match="belongs to output 'a' of stream 'flights'"):
        ParquetOutput(f"file://{tmp_path}", name="b").write(batch_of(Turn(1)), rows_of(Turn(1)))
    (tmp_path / f"batch={Turn(2).batch_id}").mkdir()
    (tmp_path / f"batch={Turn(2).batch_id}" / "mine").write_text("kept")
    with pytest.raises(StoreError, match="exists, and this run did not write it"):
        ParquetOutput(f"file://{tmp_path}", name="a").write(batch_of(Turn(2)), rows_of(Turn(2)))
    (tmp_path / f"batch={Turn(2).batch_id}" / MARKER).write_text("{}")
    with pytest.raises(StoreError, match="is no marker of Forebay"):
        ParquetOutput(f"file://{tmp_path}", name="a").write(batch_of(Turn(2)), rows_of(Turn(2)))
    assert (tmp_path / f"batch={Turn(2).batch_id}" / "mine").read_text() == "kept"


def test_attempts_of_older_drivers_are_removed_and_those_of_newer_ones_and_of_other_outputs_are_not(
    tmp_path: Path,
) -> None:
    older, newer = numbered(1, 1), numbered(1, 3)
    kept = [
        tmp_path / "_forebay" / "flights-parquet" / f"attempt-{newer}-7",
        tmp_path / "_forebay" / "flights-other" / f"attempt-{older}-7",
        tmp_path / "_forebay" / "flights-parquet" / "notes",
    ]
    dead = tmp_path / "_forebay" / "flights-parquet" / f"attempt-{older}-7"
    for folder in [*kept, dead]:
        folder.mkdir(parents=True)
        (folder / "part").touch()
    ParquetOutput(f"file://{tmp_path}").write(batch_of(Turn(1), numbered(1, 2)), rows_of(Turn(1)))
    assert all(folder.is_dir() for folder in kept) and not dead.exists()


def test_passwords_and_rows_are_in_no_error(tmp_path: Path) -> None:
    output = outputs(tmp_path)["sql"]
    output.write(batch_of(Turn(1)), rows_of(Turn(1)))
    with pytest.raises(StoreError, match="UNIQUE constraint failed") as failed:
        output.write(batch_of(Turn(2)), rows_of(Turn(1)))
    shown = f"{failed.value} {failed.value.__cause__}"
    assert "1 0 0" not in shown
    with pytest.raises(StoreError) as away:
        SqlOutput("postgresql+psycopg://u:secret@127.0.0.1:1/d", "t", connect_seconds=1).write(batch_of(Turn(1)), [])
    assert "secret" not in f"{away.value} {away.value.__cause__!r}"


@pytest.mark.kafka
def test_kafka_refuses_what_it_cannot_send(kafka_broker: KafkaBroker, topic_name: Callable[[], str]) -> None:
    topic = topic_name()
    with pytest.raises(UsageError, match=f"topic {topic} does not exist"):
        KafkaOutput(kafka_broker.options, topic, name="o").write(batch_of(Turn(1)), rows_of(Turn(1)))
    kafka_broker.create_topic(topic)
    output = KafkaOutput(kafka_broker.options, topic, name=topic[-60:].lstrip("-"))
    with pytest.raises(UsageError, match="need a column value"):
        output.write(batch_of(Turn(1)), pa.table({"x": [1]}))
    with pytest.raises(UsageError, match="column value is int64: cast it to bytes or text"):
        output.write(batch_of(Turn(1)), pa.table({"value": [1]}))
    rows = pa.table({"value": ["a"], "headers": [[{"key": "h", "value": b"1"}]], "partition": [0]})
    assert output.write(batch_of(Turn(1)), rows).rows == 1
    assert "written already" in output.write(batch_of(Turn(1)), rows).skipped
    output.close()
    assert "written already" in output.write(batch_of(Turn(1)), rows).skipped
    output.close()


def test_the_refusal_of_concurrent_batches_names_the_output() -> None:
    with pytest.raises(UsageError, match="output 'o' commits batches in order"):
        run_of(batch_of(Turn(1), concurrent_jobs=4), "o")


def test_a_folder_replaced_by_a_killed_replay_is_moved_back_first(tmp_path: Path) -> None:
    """Whatever batch comes next: a rebuilt journal has cut the replay off, say."""
    output = ParquetOutput(f"file://{tmp_path}")
    output.write(batch_of(Turn(1)), rows_of(Turn(1)))
    place, aside = tmp_path / f"batch={Turn(1).batch_id}", tmp_path / "_forebay" / "flights-parquet" / "aside-5-"
    place.rename(f"{aside}{Turn(1).batch_id}")
    output.write(batch_of(Turn(2)), rows_of(Turn(2)))
    assert (place / MARKER).exists() and not Path(f"{aside}{Turn(1).batch_id}").exists()


def test_of_several_replaced_folders_the_newest_run_is_moved_back(tmp_path: Path) -> None:
    """Several drivers were killed in a replay. A folder without a marker is what an older release has partly deleted."""
    output, place = ParquetOutput(f"file://{tmp_path}"), tmp_path / f"batch={Turn(1).batch_id}"
    workshop = tmp_path / "_forebay" / "flights-parquet"
    for replay, name in ((1, "aside-9-"), (2, "aside-11-"), (0, "aside-10-")):
        output.write(batch_of(Turn(1, replay=replay), numbered(1, 1 + replay)), rows_of(Turn(1, replay=replay)))
        place.rename(tmp_path / f"{name}{Turn(1).batch_id}")  # the next write finds none
    (tmp_path / "aside-12-7").mkdir()
    for aside in tmp_path.glob("aside-*"):
        aside.rename(workshop / aside.name)
    output.write(batch_of(Turn(2), numbered(1, 4)), rows_of(Turn(2)))
    assert decoded((place / MARKER).read_bytes(), "").replay == 2
    assert [path.name for path in workshop.iterdir()] == ["aside-12-7"]
    assert not (tmp_path / "batch=7").exists()


def test_replaced_folder_stays_if_another_program_has_its_place(tmp_path: Path) -> None:
    output, place = ParquetOutput(f"file://{tmp_path}"), tmp_path / f"batch={Turn(1).batch_id}"
    output.write(batch_of(Turn(1)), rows_of(Turn(1)))
    aside = tmp_path / "_forebay" / "flights-parquet" / f"aside-5-{Turn(1).batch_id}"
    place.rename(aside)
    place.mkdir()
    (place / "mine").touch()
    output.write(batch_of(Turn(2)), rows_of(Turn(2)))
    assert (aside / MARKER).exists() and (place / "mine").exists()


def test_batch_that_an_older_driver_commits_during_a_write_is_skipped(tmp_path: Path) -> None:
    output = ParquetOutput(f"file://{tmp_path}")

    def rows() -> Any:
        yield from rows_of(Turn(1))
        ParquetOutput(f"file://{tmp_path}").write(batch_of(Turn(1), numbered(1, 1)), rows_of(Turn(1)))

    written = output.write(batch_of(Turn(1), numbered(1, 2)), rows())
    assert written.rows == 0 and "is written already" in written.skipped


def test_write_whose_attempt_a_newer_driver_deletes_names_the_folder(tmp_path: Path) -> None:
    def rows() -> Any:
        yield from rows_of(Turn(1))
        ParquetOutput(f"file://{tmp_path}").write(batch_of(Turn(2), numbered(1, 2)), rows_of(Turn(2)))

    with pytest.raises(StoreError, match=r"the folder file:///.*/attempt-\d+-\d+-\w+ of this attempt no longer exists"):
        ParquetOutput(f"file://{tmp_path}").write(batch_of(Turn(1), numbered(1, 1)), rows())
