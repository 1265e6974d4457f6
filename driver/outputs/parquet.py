"""Rows into Parquet files, each batch a folder that appears at once."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from driver.batches.batch import Batch, Written
from driver.outputs.output import told
from driver.outputs.rows import is_frame, pieces
from driver.outputs.run import Run, check_output_name, decoded, reason_to_skip, run_of
from forebay.model.errors import FencedError, StoreError, UsageError
from forebay.model.values import check_name
from forebay.process import failpoints
from forebay.settings.stores import SCHEMES_WITH_FOLDERS, scheme_of
from wal.storage import Folders, open_folders

MARKER = "_forebay.json"
#: folders of attempts, and of earlier runs that give way; readers of Parquet pass over names that begin so
_ASIDE = "_forebay"
_NAME = re.compile(r"(?P<kind>attempt|aside)-(?P<epoch>\d{1,20})-(?P<batch_id>\d{1,20})")
_ROWS_AT_ONCE = 64_000
_FILE_BYTES = 64 * 1024 * 1024  # of rows in memory, after which the next file begins


class ParquetOutput:
    """``ParquetOutput("file:///data/flights")`` or ``ParquetOutput("hdfs://name-node:9000/flights")``: each batch becomes the
    folder ``batch=<id>``, all of it at once.

    A DataFrame is written by Spark's tasks, anything else by pyarrow here, in files of at most 64 MiB of rows. Every host that
    runs tasks must reach the url. ``partition_by``: columns of a DataFrame, as ``DataFrameWriter.partitionBy``. ``storage``:
    options of the client, as ``[storage.<scheme>]``. A store of objects such as ``s3://`` has no move of a folder: it is
    refused, and a table format (``DeltaOutput``) is what to use there.

    The rows are written to ``_forebay/<stream>-<name>/attempt-<epoch>-<id>``, synced (files and folders, on ``file://``), given
    the marker ``_forebay.json``, and moved to ``batch=<id>`` by one rename, which fails if that is there. A rerun that finds
    its own marker there is skipped. **A replay replaces** what an earlier run of the same batch wrote: the old folder is moved
    aside, the new one to its place, the old one deleted. What killed drivers left under ``_forebay`` the next batch removes,
    but for attempts of newer drivers.

    **Crash window**: none for a first run: the folder is there, whole, or not. In a replay the batch is missing between two
    renames, for readers for a moment, after a kill just there until the next batch of the output begins, which moves the old
    folder back first. A reader that has listed the files of a folder that gives way finds them gone. On HDFS what Spark wrote
    is as durable as ``dfs.datanode.synconclose`` makes it.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "parquet",
        partition_by: Sequence[str] = (),
        storage: Mapping[str, Any] | None = None,
    ) -> None:
        """Opens nothing yet. Raises UsageError for a url where no folder can be moved at once."""
        self.name = check_output_name(name)
        scheme = scheme_of(url)
        if scheme not in SCHEMES_WITH_FOLDERS:
            raise UsageError(
                f"ParquetOutput: {url!r}: only file:/// and hdfs:// can move a folder at once; on a store of objects use a "
                "table format, such as DeltaOutput"
            )
        self._folders: Folders = open_folders(url, {scheme: dict(storage or {})})
        self._partition_by = tuple(partition_by)

    def write(self, batch: Batch, data: Any) -> Written:
        """As ``Output.write``."""
        run = run_of(batch, self.name)
        self._tidy(run)
        place = f"batch={run.batch_id}"
        there = self._marker(place)
        skipped = reason_to_skip(run, self._own(there, run, place))
        if skipped:
            return told(batch, Written(self.name, 0, skipped))
        failpoints.hit("output.before-write")
        attempt = f"{self._workshop(run)}/attempt-{run.epoch}-{run.batch_id}"
        rows = self._write_attempt(attempt, data)
        self._folders.put(f"{attempt}/{MARKER}", run.encoded().encode())
        self._folders.sync_folder(attempt)
        failpoints.hit("output.before-commit")
        if there is not None:
            self._move_aside(run, place)
        failpoints.hit("output.aside")
        self._move_in(run, attempt, place)
        failpoints.hit("output.after-commit")
        if there is not None:
            self._tidy(run)
        return told(batch, Written(self.name, rows))

    # ---- inner parts -------------------------------------------------------------------------------------------------

    def _workshop(self, run: Run) -> str:
        return f"{_ASIDE}/{check_name('stream', run.stream)}-{self.name}"

    def _marker(self, folder: str) -> Run | None:
        try:
            content = self._folders.read(f"{folder}/{MARKER}")
        except FileNotFoundError:
            return None
        return decoded(content, f"{self._folders.url}/{folder}/{MARKER}")

    def _own(self, there: Run | None, run: Run, place: str) -> Run | None:
        if there is not None and (there.stream, there.output) != (run.stream, run.output):
            raise UsageError(
                f"{self._folders.url}/{place} is of output {there.output!r} of stream {there.stream!r}: give each output a "
                "folder of its own"
            )
        return there

    def _tidy(self, run: Run) -> None:
        """Removes what drivers up to this one's epoch left: attempts, and what gave way; that goes back to its place if it
        is empty there. A newer driver's things are left alone (INV-4)."""
        workshop = self._workshop(run)
        for name in self._folders.folders(workshop):
            match = _NAME.fullmatch(name)
            if match is None or int(match["epoch"]) > run.epoch:
                continue
            folder = f"{workshop}/{name}"
            if match["kind"] == "aside":
                place = f"batch={match['batch_id']}"
                if self._marker(place) is None:
                    try:
                        self._folders.move_folder(folder, place)
                        continue
                    except (FileExistsError, FileNotFoundError):
                        pass  # it is back, or another driver has been here
            self._folders.delete_folder(folder)

    def _write_attempt(self, attempt: str, data: Any) -> int:
        if is_frame(data):
            from driver.spark import frames as spark_frames

            failpoints.hit("output.mid-write")
            return spark_frames.write_parquet(data, f"{self._folders.url}/{attempt}", self._partition_by)
        if self._partition_by:
            raise UsageError(f"output {self.name!r}: partition_by needs a DataFrame")
        rows = 0
        for number, table in enumerate(_files(data)):
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, compression="zstd")
            self._folders.put(f"{attempt}/part-{number:05}.parquet", sink.getvalue())
            rows += table.num_rows
            failpoints.hit("output.mid-write")
        return rows

    def _move_aside(self, run: Run, place: str) -> None:
        aside = f"{self._workshop(run)}/aside-{run.epoch}-{run.batch_id}"
        self._folders.move_folder(place, aside)
        # a newer driver may have put its own there since it was looked at
        moved = self._marker(aside)
        if moved is not None and moved.epoch > run.epoch:
            self._folders.move_folder(aside, place)
            raise FencedError(f"{self._folders.url}/{place} was written by a newer driver (epoch {moved.epoch})")

    def _move_in(self, run: Run, attempt: str, place: str) -> None:
        try:
            self._folders.move_folder(attempt, place)
        except (FileExistsError, FileNotFoundError) as error:
            # it was moved, and the answer lost; or a newer driver removed the attempt, or was faster
            there = self._marker(place)
            if there == run:
                return
            reason_to_skip(run, self._own(there, run, place))  # raises if it is a newer driver's
            what = "is there" if isinstance(error, FileExistsError) else "could not be made: its attempt is gone"
            raise StoreError(f"{self._folders.url}/{place} {what}, and not by this run") from error


def _files(data: Any) -> Iterator[pa.Table]:
    """The rows as tables, each for one file."""
    gathered: list[pa.RecordBatch] = []
    size = 0
    for piece in pieces(data, _ROWS_AT_ONCE):
        if gathered and (size + piece.nbytes > _FILE_BYTES or piece.schema != gathered[0].schema):
            yield pa.Table.from_batches(gathered)
            gathered, size = [], 0
        gathered.append(piece)
        size += piece.nbytes
    if gathered:
        yield pa.Table.from_batches(gathered)
