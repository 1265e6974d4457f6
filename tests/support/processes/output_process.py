"""Runs batches into an output in a process that can be killed at any failpoint, as a driver would be.

``python -m tests.support.processes.output_process`` imports everything once and forks a child for each task on stdin:
a line of JSON, answered by a line with the child's exit status. A child runs the batches that are not yet in the file of the
completed ones, in order, and completes each when its job has returned.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, cast

import pyarrow as pa
from pyspark.sql.types import BinaryType, StructType

from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.outputs import DeltaOutput, KafkaOutput, Output, ParquetOutput, SqlOutput
from forebay.model.errors import ForebayError
from forebay.model.identifiers import numbered
from forebay.process import failpoints
from pyspark_forebay.sink.rows import pack_rows
from pyspark_forebay.sink.writers import TaskRows, writer_of
from tests.support.stores import s3

PIECES, PIECE_ROWS = 3, 20


class SinkOutput:
    """What the planner's process of a streaming query does when the tasks of a batch have ended; each piece is a task's."""

    def __init__(self, options: Mapping[str, str]) -> None:
        schema = StructType().add("key", BinaryType()).add("value", BinaryType())
        self._options = options
        self._writer = writer_of({**options, "transactional": "true"}, schema, streaming=True)

    def write(self, batch: Batch, data: Iterator[pa.RecordBatch]) -> None:
        tasks = [TaskRows("of-a-test", batch.number, pack_rows([piece], self._options.get("topic"))) for piece in data]
        self._writer.commit([*tasks], batch.number)


OUTPUTS: Mapping[str, Any] = {
    "parquet": ParquetOutput, "delta": DeltaOutput, "sql": SqlOutput, "kafka": KafkaOutput, "sink": SinkOutput,
}  # fmt: skip


class Turn(NamedTuple):
    """One run of a batch, as the journal would ask for it."""

    number: int
    replay: int = 0
    timeline: int = 1

    @property
    def batch_id(self) -> int:
        return numbered(self.timeline, self.number)


def batch_of(turn: Turn, epoch: int = numbered(1, 1), concurrent_jobs: int = 1) -> Batch:
    work = BatchWork(
        turn.batch_id, turn.number, 1_700_000_000_000 + turn.number, False, (), replay=turn.replay, stream="flights",
        epoch=epoch, concurrent_jobs=concurrent_jobs,
    )  # fmt: skip
    return Batch(work, cast(Any, None))


def rows_of(turn: Turn) -> Iterator[pa.RecordBatch]:
    """The same rows each time, in pieces; a replay's say so."""
    for piece in range(PIECES):
        places = range(piece * PIECE_ROWS, (piece + 1) * PIECE_ROWS)
        yield pa.record_batch({
            "key": pa.array([f"{turn.number}-{place}".encode() for place in places], pa.binary()),
            "value": pa.array([f"{turn.number} {place} {turn.replay}".encode() for place in places], pa.binary()),
            "number": pa.array([turn.number] * PIECE_ROWS, pa.int64()),
            "place": pa.array(list(places), pa.int64()),
            "replay": pa.array([turn.replay] * PIECE_ROWS, pa.int64()),
        })  # fmt: skip


def expected(turns: Sequence[Turn]) -> list[tuple[int, int, int]]:
    """(number, place, replay) of every row of ``turns``, sorted."""
    return sorted((t.number, place, t.replay) for t in turns for place in range(PIECES * PIECE_ROWS))


def run_turns(task: Mapping[str, Any]) -> None:
    output: Output | SinkOutput = OUTPUTS[task["kind"]](*task["arguments"], **task["options"])
    completed = Path(task["completed"])
    done = completed.read_text().split() if completed.exists() else []
    with completed.open("a") as file:
        for turn in (Turn(*fields) for fields in task["turns"]):
            batch = batch_of(turn, numbered(1, task["epoch"]))
            if batch.key in done:
                continue
            output.write(batch, rows_of(turn))
            failpoints.hit("driver.before-complete")
            file.write(f"{batch.key}\n")
            file.flush()


class OutputProcess:
    """Forks children that run batches, from a process that has imported all they need."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **s3.ENVIRONMENT},
        )

    def run(
        self, kind: str, arguments: Sequence[Any], options: Mapping[str, Any], completed: Path, turns: Sequence[Turn],
        epoch: int = 1, armed: str = "", directory: Path | None = None,
    ) -> int:  # fmt: skip
        """The child's exit status: 0, an error's exit code, or minus the signal that ended it."""
        self.begin(kind, arguments, options, completed, turns, epoch, armed, directory)
        return self.end()

    def begin(
        self, kind: str, arguments: Sequence[Any], options: Mapping[str, Any], completed: Path, turns: Sequence[Turn],
        epoch: int = 1, armed: str = "", directory: Path | None = None,
    ) -> None:  # fmt: skip
        """:meth:`run` without its end. The child writes its pid into ``directory``."""
        task = {
            "kind": kind, "arguments": arguments, "options": options, "completed": str(completed), "turns": turns,
            "epoch": epoch, "armed": armed, "directory": str(directory) if directory else None,
        }  # fmt: skip
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(task) + "\n")
        self._process.stdin.flush()

    def end(self) -> int:
        """Waits for the child of :meth:`begin`."""
        assert self._process.stdout is not None
        answer = self._process.stdout.readline()
        assert answer, "the process that forks has ended"
        return int(answer)

    def __enter__(self) -> OutputProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(90)
        self._process.stdout.close()


def _serve() -> None:
    import deltalake  # noqa: F401
    import sqlalchemy.dialects.postgresql
    import sqlalchemy.dialects.sqlite  # noqa: F401

    list(rows_of(Turn(1)))  # pyarrow imports pandas when it makes its first array
    for line in sys.stdin:
        task = json.loads(line)
        child = os.fork()
        if not child:
            try:
                if task["directory"]:
                    (Path(task["directory"]) / "pid").write_text(str(os.getpid()))
                failpoints.arm(task["armed"], task["directory"])
                run_turns(task)
            except ForebayError as error:
                print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
                os._exit(error.exit_code)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            sys.stderr.flush()
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _serve()
