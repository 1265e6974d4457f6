"""The output to Parquet files: each batch is a folder, which appears by one rename."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from driver.batches.job.batch import Batch
from driver.batches.job.work import Written
from driver.outputs.output import noted
from driver.outputs.rows import is_frame, pieces
from driver.outputs.run import OutputRun, check_output_name, decoded, reason_to_skip, run_of
from forebay.model.errors import FencedError, StoreError, UsageError
from forebay.model.identifiers import check_name
from forebay.process import failpoints
from forebay.settings.stores import SCHEMES_WITH_FOLDERS, scheme_of
from wal.storage import Folders, open_folders

MARKER = "_forebay.json"
#: folder of attempts and of replaced runs; readers of Parquet ignore names that begin with an underscore
_ASIDE = "_forebay"
_NAME = re.compile(r"(?P<kind>attempt|aside)-(?P<epoch>\d{1,20})-(?P<batch_id>\d{1,20})")
_ROWS_AT_ONCE = 64_000
_FILE_BYTES = 64 * 1024 * 1024  # of rows in memory, after which the next file begins


class ParquetOutput:
    """``ParquetOutput("file:///data/flights")`` or ``ParquetOutput("hdfs://name-node:9000/flights")``: each batch becomes the
    folder ``batch=<id>``, by one rename.

    Spark's tasks write a DataFrame; pyarrow writes anything else in the driver's process, in files of at most 64 MiB of rows.
    Every host that runs tasks must reach the url. ``partition_by``: columns of a DataFrame, as
    ``DataFrameWriter.partitionBy``. ``storage``: options of the client, as ``[storage.<scheme>]``. Object stores such as
    ``s3://`` can't rename a folder in one step and are refused; use a table format (``DeltaOutput``) there.

    The output writes the rows to ``_forebay/<stream>-<name>/attempt-<epoch>-<id>``, syncs them (files and folders, on
    ``file://``), adds the marker ``_forebay.json``, and moves the folder to ``batch=<id>`` by one rename, which fails if
    ``batch=<id>`` exists. A rerun that finds its own marker there is skipped. **A replay replaces** what an earlier run of
    the same batch wrote: it moves the old folder aside, moves the new one in, and deletes the old one. The next batch deletes
    what killed drivers left in ``_forebay``, except attempts of newer drivers.

    **Crash window**: none for a first run: the folder exists completely or not at all. In a replay the batch is missing
    between the two renames: for readers for a moment, and after a kill at this point until the output's next batch begins,
    which first moves the old folder back. A reader that has listed the files of a replaced folder no longer finds them. On
    HDFS, what Spark wrote is as durable as ``dfs.datanode.synconclose`` makes it.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "parquet",
        partition_by: Sequence[str] = (),
        storage: Mapping[str, Any] | None = None,
    ) -> None:
        """Open nothing yet. Raises UsageError for a url whose store can't rename a folder in one step."""
        self.name = check_output_name(name)
        scheme = scheme_of(url)
        if scheme not in SCHEMES_WITH_FOLDERS:
            raise UsageError(
                f"ParquetOutput: {url!r}: only file:/// and hdfs:// can rename a folder in one step; on an object store use a "
                "table format, such as DeltaOutput"
            )
        self._folders: Folders = open_folders(url, {scheme: dict(storage or {})})
        self._partition_by = tuple(partition_by)

    def write(self, batch: Batch, data: Any) -> Written:
        """Write as ``Output.write``."""
        run = run_of(batch, self.name)
        self._tidy(run)
        place = f"batch={run.batch_id}"
        there = self._marker(place)
        skipped = reason_to_skip(run, self._own(there, run, place))
        if skipped:
            return noted(batch, Written(self.name, 0, skipped))
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
        return noted(batch, Written(self.name, rows))

    # ---- inner parts -------------------------------------------------------------------------------------------------

    def _workshop(self, run: OutputRun) -> str:
        return f"{_ASIDE}/{check_name('stream', run.stream)}-{self.name}"

    def _marker(self, folder: str) -> OutputRun | None:
        try:
            content = self._folders.read(f"{folder}/{MARKER}")
        except FileNotFoundError:
            return None
        return decoded(content, f"{self._folders.url}/{folder}/{MARKER}")

    def _own(self, there: OutputRun | None, run: OutputRun, place: str) -> OutputRun | None:
        if there is not None and (there.stream, there.output) != (run.stream, run.output):
            raise UsageError(
                f"{self._folders.url}/{place} belongs to output {there.output!r} of stream {there.stream!r}: give each output "
                "its own folder"
            )
        return there

    def _tidy(self, run: OutputRun) -> None:
        """Delete the attempts and replaced runs that this driver and older ones left behind. If the batch of a replaced run has
        no folder, move that run back instead. Folders of a newer driver stay unchanged (INV-4)."""
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
                        pass  # it was moved back, or another driver did the same
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

    def _move_aside(self, run: OutputRun, place: str) -> None:
        aside = f"{self._workshop(run)}/aside-{run.epoch}-{run.batch_id}"
        self._folders.move_folder(place, aside)
        # a newer driver may have moved its own folder in meanwhile
        moved = self._marker(aside)
        if moved is not None and moved.epoch > run.epoch:
            self._folders.move_folder(aside, place)
            raise FencedError(f"{self._folders.url}/{place} was written by a newer driver (epoch {moved.epoch:x})")

    def _move_in(self, run: OutputRun, attempt: str, place: str) -> None:
        try:
            self._folders.move_folder(attempt, place)
        except (FileExistsError, FileNotFoundError) as error:
            # the answer to the rename was lost, or a newer driver has deleted the attempt or moved its own in
            there = self._marker(place)
            if there == run:
                return
            reason_to_skip(run, self._own(there, run, place))  # raises if it is a newer driver's
            target = f"{self._folders.url}/{place}"
            if isinstance(error, FileExistsError):
                raise StoreError(
                    f"cannot create {target}: it exists, and this run did not write it; move it elsewhere"
                ) from error
            raise StoreError(
                f"cannot create {target}: the folder {attempt} of this attempt no longer exists"
            ) from error


def _files(data: Any) -> Iterator[pa.Table]:
    """Return the rows as tables, one for each file."""
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
