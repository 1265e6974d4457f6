"""The output to a Delta Lake table: each run of a batch is one commit, with Delta's transaction identifiers."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from types import TracebackType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from driver.batches.job.batch import Batch
from driver.batches.job.work import Written
from driver.outputs.output import noted
from driver.outputs.rows import pieces
from driver.outputs.run import OutputRun, check_output_name, run_of
from forebay.model.errors import FencedError, StoreError, UsageError
from forebay.process import failpoints

if TYPE_CHECKING:
    from deltalake import CommitProperties, DeltaTable

_ROWS_AT_ONCE = 64_000
_PIECES_WAITING = 2
_LOOK_SECONDS = 0.2


def transaction(run: OutputRun) -> tuple[str, int]:
    """Return Delta's transaction of a run: application id and version (``txnAppId``, ``txnVersion``).

    The application consists of stream, output, timeline and replay; the version is the batch id. So the batches of a rebuilt
    journal, and of each replay, belong to another application and are not taken for batches that are already written. Within
    one application, the versions ascend with the batches.
    """
    return f"forebay/{run.stream}/{run.output}/{run.timeline}/{run.replay}", run.batch_id


def transaction_of(batch: Batch, output: str) -> tuple[str, int]:
    """Return Delta's ``txnAppId`` and ``txnVersion`` for this run of ``batch``.

    Jobs that write with Spark's own Delta Lake use it::

        app_id, version = transaction_of(batch, "flights")
        frame.write.format("delta").mode("append").option("txnAppId", app_id).option("txnVersion", version).save(path)
    """
    return transaction(run_of(batch, check_output_name(output)))


class DeltaOutput:
    """``DeltaOutput("s3://bucket/flights")``; needs ``forebay[delta]`` (delta-rs), neither Java nor Spark's jars.

    ``url``: a folder, ``file://``, ``s3://``, or another URL that delta-rs supports; ``storage_options`` are passed to
    delta-rs. If the table does not exist, the first rows create it, partitioned by ``partition_by``. ``batch_column``: a text
    column that the output adds to the rows, with ``<stream>/<output>/<batch id>``. With it, a replay replaces the rows of
    earlier runs of its batch, in one commit; without it, a replay adds its rows.

    Each run is one commit with Delta's transaction identifiers (:func:`transaction`, and one with the driver's epoch). The
    output reads them before it writes. If two commits of one output are made at the same time, delta-rs's own check makes one
    fail. Rows go through the driver's process, piece by piece; Spark's tasks don't write. If a run is killed before its
    commit, its files stay in the folder, in no version of the table; ``VACUUM`` removes them.

    **Crash window**: none. One file of the log, created only if absent, commits rows and identifiers. If the answer is lost,
    the retry finds the commit in the table. A commit is as durable as the store makes it: on a local folder delta-rs does not
    sync, so a power loss (not a kill) may remove a commit that the journal calls completed. If the table's
    ``delta.setTransactionRetentionDuration`` is shorter than the time that a driver is down, a rerun can be written twice.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "delta",
        partition_by: Sequence[str] = (),
        batch_column: str | None = None,
        storage_options: Mapping[str, str] | None = None,
    ) -> None:
        """Open nothing yet. Raises UsageError if delta-rs is not installed."""
        try:
            import deltalake  # noqa: F401
        except ImportError:
            raise UsageError("DeltaOutput needs delta-rs: pip install 'forebay[delta]'") from None
        self.name = check_output_name(name)
        self._url = url.removeprefix("file://") if url.startswith("file:///") else url
        self._partition_by = list(partition_by)
        self._batch_column = batch_column
        self._storage_options = dict(storage_options) if storage_options else None
        self._table: DeltaTable | None = None

    def write(self, batch: Batch, data: Any) -> Written:
        """Write as ``Output.write``."""
        run = run_of(batch, self.name)
        try:
            written = self._write(run, data)
        except StoreError:
            self._table = None
            raise
        return noted(batch, written)

    # ---- inner parts -------------------------------------------------------------------------------------------------

    def _write(self, run: OutputRun, data: Any) -> Written:
        table = self._open()
        if table is not None:
            skipped = self._reason_to_skip(run, table)
            if skipped:
                return Written(self.name, 0, skipped)
        failpoints.hit("output.before-write")
        rows = pieces(data, _ROWS_AT_ONCE)
        first = next(rows, None)
        if first is None:  # no rows, and none in a rerun
            if table is not None:
                self._remove_replaced(table, run)
            return Written(self.name, 0)
        schema = self._labelled(first, run).schema
        if table is None:
            # in a separate commit: if two drivers created it with rows, delta-rs would keep the rows of both
            table = self._create(schema)
            skipped = self._reason_to_skip(run, table)
            if skipped:
                return Written(self.name, 0, skipped)
        count = self._commit(table, run, schema, first, rows)
        failpoints.hit("output.after-commit")
        return Written(self.name, count)

    def _reason_to_skip(self, run: OutputRun, table: DeltaTable) -> str:
        newest = table.transaction_version(_epochs(run))
        if newest is not None and newest > run.epoch:
            raise FencedError(
                f"output {self.name!r} was written by a newer driver of stream {run.stream!r} (epoch {newest:x}, this is "
                f"{run.epoch:x})"
            )
        application, version = transaction(run)
        last = table.transaction_version(application)
        if last is None or last < version:
            return ""
        return f"{run.label} is written already" + ("" if last == version else f", and so is {last}")

    def _commit(
        self,
        table: DeltaTable,
        run: OutputRun,
        schema: pa.Schema,
        first: pa.RecordBatch,
        rest: Iterator[pa.RecordBatch],
    ) -> int:
        from deltalake import write_deltalake

        properties, replaced = _properties(run), self._replaced(run)

        def write(rows: Iterator[pa.RecordBatch]) -> None:
            reader = pa.RecordBatchReader.from_batches(schema, rows)
            if replaced is None:
                write_deltalake(table, reader, mode="append", commit_properties=properties)
            else:
                write_deltalake(table, reader, mode="overwrite", predicate=replaced, commit_properties=properties)

        count = 0
        with _Feed(self.name, write) as feed:
            for rows in chain([first], rest):
                feed.put(self._labelled(rows, run))
                count += rows.num_rows
                failpoints.hit("output.mid-write")
            failpoints.hit("output.before-commit")
        return count

    def _replaced(self, run: OutputRun) -> str | None:
        """Return the predicate of the rows that ``run`` replaces; None if it adds its rows."""
        return f"{self._batch_column} = '{_label(run)}'" if self._batch_column and run.replay else None

    def _remove_replaced(self, table: DeltaTable, run: OutputRun) -> None:
        from deltalake.exceptions import DeltaError

        replaced = self._replaced(run)
        if replaced is None:
            return
        try:
            table.delete(replaced, commit_properties=_properties(run))
        except (DeltaError, OSError) as error:
            raise self._failed(error, "cannot delete the rows that this run replaces: ") from error

    def _labelled(self, rows: pa.RecordBatch, run: OutputRun) -> pa.RecordBatch:
        if not self._batch_column:
            return rows
        if self._batch_column in rows.schema.names:
            raise UsageError(
                f"output {self.name!r}: the rows already have a column {self._batch_column}: choose another batch_column"
            )
        return rows.append_column(self._batch_column, pa.array([_label(run)] * rows.num_rows, pa.string()))

    def _open(self) -> DeltaTable | None:
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError, TableNotFoundError

        try:
            if self._table is None:
                self._table = DeltaTable(self._url, storage_options=self._storage_options)
            else:
                self._table.update_incremental()
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise self._failed(error, "cannot read the table: ") from error
        return self._table

    def _create(self, schema: pa.Schema) -> DeltaTable:
        from deltalake import CommitProperties, DeltaTable
        from deltalake.exceptions import DeltaError

        try:
            self._table = DeltaTable.create(
                self._url,
                schema,
                partition_by=self._partition_by or None,
                storage_options=self._storage_options,
                # a retry would replace the schema of a table that another driver has created
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except (DeltaError, OSError) as error:
            table = self._open()
            if table is None:
                raise self._failed(error, "cannot create the table: ") from error
            return table  # another driver has created it
        return self._table

    def _failed(self, error: BaseException, doing: str = "") -> StoreError:
        return StoreError(f"output {self.name!r}: {doing}{_in_one_line(error)}")


class _Feed:
    """Passes rows from the job's thread to delta-rs.

    delta-rs reads them in a thread of its own; Spark jobs started in that thread would not belong to the batch's job group.
    Leaving the context commits. If an error leaves it, nothing is committed, and this error is raised instead of delta-rs's.
    """

    def __init__(self, name: str, write: Callable[[Iterator[pa.RecordBatch]], None]) -> None:
        self._name = name
        self._write = write
        self._queue: queue.Queue[pa.RecordBatch | _AbandonedError | None] = queue.Queue(_PIECES_WAITING)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"output-{name}", daemon=True)

    def put(self, rows: pa.RecordBatch) -> None:
        """Pass rows; wait while the queue is full. Raises StoreError if delta-rs has ended."""
        if not self._offer(rows):
            raise self._failed()

    def __enter__(self) -> _Feed:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._offer(None if error is None else _AbandonedError())
        self._thread.join()
        if error is None and self._failure is not None:
            raise self._failed()

    def _failed(self) -> StoreError:
        error = StoreError(
            f"output {self._name!r}: cannot write the rows: {type(self._failure).__name__}: {_in_one_line(self._failure)}"
        )
        error.__cause__ = self._failure
        return error

    def _offer(self, item: pa.RecordBatch | _AbandonedError | None) -> bool:
        while self._thread.is_alive():
            try:
                self._queue.put(item, timeout=_LOOK_SECONDS)
            except queue.Full:
                continue
            return True
        return False

    def _run(self) -> None:
        try:
            self._write(self._rows())
        except BaseException as error:
            self._failure = error

    def _rows(self) -> Iterator[pa.RecordBatch]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, _AbandonedError):
                raise item
            yield item


class _AbandonedError(Exception):
    """Raised into delta-rs when reading the rows fails, so that it does not commit the rows written so far."""


def _properties(run: OutputRun) -> CommitProperties:
    from deltalake import CommitProperties, Transaction

    return CommitProperties(
        custom_metadata={"forebay": run.encoded()},
        app_transactions=[Transaction(*transaction(run)), Transaction(_epochs(run), run.epoch)],
    )


def _in_one_line(error: BaseException | None) -> str:
    """Return the error's text as one line: delta-rs's errors contain the store's answers, with lines of XML."""
    return " ".join(str(error).split())


def _epochs(run: OutputRun) -> str:
    """Return the application id under which the table stores the epoch of the last driver as a version."""
    return f"forebay/{run.stream}/{run.output}"


def _label(run: OutputRun) -> str:
    return f"{run.stream}/{run.output}/{run.batch_id}"
