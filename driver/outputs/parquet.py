"""The output to Parquet files: each batch is a folder, which appears by one rename.

**Why a folder in its place is whole**, even if drivers are killed or suspended before or after any call to the store:

1. Each folder in ``_forebay`` gets a name that no folder has had before. Only its creator creates it or writes into it.
2. The marker is the first file of an attempt. :meth:`Folders.put` never creates a folder. So a folder with a marker is the one
   that its driver created, and each later call of this driver fails if another driver has moved that folder away.
3. Spark's tasks do create folders, even after their driver has gone on. When Spark has ended, the driver renames the attempt to
   a name that no task knows, and then looks for the marker. A folder that tasks created again has none, and is refused.
4. A driver that deletes a folder first renames it to a name under which it is only deleted. So a folder with any other name has
   all of its files.

So the rename to ``batch=<id>`` moves a whole folder, or fails. Of several drivers that move theirs in, one succeeds. The others
find its marker: they skip the run, or are fenced.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
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
#: "attempt": rows are being written; "ready": it has all rows, out of reach of Spark's tasks; "aside": a replaced run;
#: "dead": it is being deleted. Older releases make "attempt" and "aside", without the last part
_NAME = re.compile(r"(?P<kind>attempt|ready|aside|dead)-(?P<epoch>\d{1,20})-(?P<batch_id>\d{1,20})(?:-[0-9a-f]{16})?")
_ROWS_AT_ONCE = 64_000
_FILE_BYTES = 64 * 1024 * 1024  # of rows in memory, after which the next file begins


class ParquetOutput:
    """``ParquetOutput("file:///data/flights")`` or ``ParquetOutput("hdfs://name-node:9000/flights")``: each batch becomes the
    folder ``batch=<id>``, by one rename.

    Spark's tasks write a DataFrame; pyarrow writes anything else in the driver's process, in files of at most 64 MiB of rows.
    Every host that runs tasks must reach the url. ``partition_by``: columns of a DataFrame, as
    ``DataFrameWriter.partitionBy``. ``storage``: options of the client, as ``[storage.<scheme>]``. Object stores such as
    ``s3://`` can't rename a folder in one step and are refused; use a table format (``DeltaOutput``) there.

    The output creates a folder in ``_forebay/<stream>-<name>``, writes the marker ``_forebay.json`` and the rows to it, syncs
    them (files and folders, on ``file://``), and moves the folder to ``batch=<id>`` by one rename, which fails if
    ``batch=<id>`` exists. A rerun that finds its own marker there is skipped. **A replay replaces** what an earlier run of
    the same batch wrote: it moves the old folder aside, moves the new one in, and deletes the old one. The next batch deletes
    what killed drivers left in ``_forebay``, except attempts of newer drivers. If a driver's attempt is deleted while it
    writes, its write fails: it never moves in a part of its rows.

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
        attempt, rows = self._write_attempt(run, data)
        with self._while_there(attempt):
            self._folders.sync_folder(attempt)
        failpoints.hit("output.before-commit")
        if there is not None:
            self._move_aside(run, place)
        failpoints.hit("output.aside")
        skipped = self._move_in(run, attempt, place)
        failpoints.hit("output.after-commit")
        if there is not None:
            self._tidy(run)
        return noted(batch, Written(self.name, 0 if skipped else rows, skipped))

    # ---- inner parts -------------------------------------------------------------------------------------------------

    def _workshop(self, run: OutputRun) -> str:
        return f"{_ASIDE}/{check_name('stream', run.stream)}-{self.name}"

    def _named(self, kind: str, run: OutputRun) -> str:
        """Return the path of a folder of ``run``, with a name that no folder has had before."""
        return f"{self._workshop(run)}/{kind}-{run.epoch}-{run.batch_id}-{secrets.token_hex(8)}"

    @contextmanager
    def _while_there(self, folder: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise self._no_longer_there(folder) from error

    def _no_longer_there(self, folder: str) -> StoreError:
        return StoreError(
            f"output {self.name!r}: the folder {self._folders.url}/{folder} of this attempt no longer exists: another driver of "
            "the stream, or a later attempt, has deleted it; if this driver still leads the stream, its next attempt writes "
            "all rows again"
        )

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
        found = [_NAME.fullmatch(name) for name in self._folders.folders(workshop)]
        old = [match for match in found if match is not None and int(match["epoch"]) <= run.epoch]
        asides = [(match, self._marker(f"{workshop}/{match[0]}")) for match in old if match["kind"] == "aside"]
        # if there are several of one batch, the newest run is moved back
        for match, marker in sorted(asides, key=lambda aside: _age(aside[1]), reverse=True):
            self._restore_or_delete(run, f"{workshop}/{match[0]}", f"batch={match['batch_id']}", marker)
        for match in old:
            if match["kind"] != "aside":
                self._delete(run, f"{workshop}/{match[0]}", dead=match["kind"] == "dead")

    def _restore_or_delete(self, run: OutputRun, aside: str, place: str, marker: OutputRun | None) -> None:
        if self._marker(place) is None:
            if marker is None:
                return  # what a killed deletion by an older release left, which is no whole run
            try:
                self._folders.move_folder(aside, place)
                return
            except (FileExistsError, FileNotFoundError):
                if self._marker(place) is None:
                    return  # a folder of another program is there
        self._delete(run, aside)

    def _delete(self, run: OutputRun, folder: str, *, dead: bool = False) -> None:
        """Delete a folder of the workshop. ``dead``: it has the name of a folder that is being deleted."""
        if not dead:
            name = self._named("dead", run)
            # another driver has moved it, or the answer to an earlier try was lost
            with suppress(FileNotFoundError, FileExistsError):
                self._folders.move_folder(folder, name)
            folder = name
        self._folders.delete_folder(folder)

    def _write_attempt(self, run: OutputRun, data: Any) -> tuple[str, int]:
        """Write the marker, then the rows, into a new folder. Return the folder and the number of rows."""
        if self._partition_by and not is_frame(data):
            raise UsageError(f"output {self.name!r}: partition_by needs a DataFrame")
        attempt = self._named("attempt", run)
        self._folders.make_folder(attempt)
        self._put(attempt, MARKER, run.encoded().encode())
        if is_frame(data):
            from driver.spark import frames as spark_frames

            failpoints.hit("output.mid-write")
            rows = spark_frames.write_parquet(data, f"{self._folders.url}/{attempt}", self._partition_by)
            return self._out_of_reach(run, attempt), rows
        rows = 0
        for number, table in enumerate(_files(data)):
            sink = pa.BufferOutputStream()
            pq.write_table(table, sink, compression="zstd")
            self._put(attempt, f"part-{number:05}.parquet", sink.getvalue())
            rows += table.num_rows
            failpoints.hit("output.mid-write")
        return attempt, rows

    def _put(self, folder: str, name: str, data: Any) -> None:
        with self._while_there(folder):
            self._folders.put(f"{folder}/{name}", data)

    def _out_of_reach(self, run: OutputRun, attempt: str) -> str:
        """Give the folder a name that Spark's tasks do not know. Return it if the folder has all that they wrote."""
        ready = self._named("ready", run)
        # raised too if the answer to an earlier try was lost: the marker decides
        with suppress(FileNotFoundError, FileExistsError):
            self._folders.move_folder(attempt, ready)
        if self._marker(ready) != run:
            raise self._no_longer_there(attempt)
        return ready

    def _move_aside(self, run: OutputRun, place: str) -> None:
        aside = self._named("aside", run)
        # another driver has moved it, or the answer to an earlier try was lost
        with suppress(FileNotFoundError, FileExistsError):
            self._folders.move_folder(place, aside)
        # a newer driver may have moved its own folder in meanwhile
        moved = self._marker(aside)
        if moved is not None and moved.epoch > run.epoch:
            # the newer driver has moved it back, or written it again
            with suppress(FileNotFoundError, FileExistsError):
                self._folders.move_folder(aside, place)
            raise FencedError(f"{self._folders.url}/{place} was written by a newer driver (epoch {moved.epoch:x})")

    def _move_in(self, run: OutputRun, attempt: str, place: str) -> str:
        """Move the attempt to its place. Return why it is skipped if another driver has written the run meanwhile, else ""."""
        try:
            self._folders.move_folder(attempt, place)
        except (FileExistsError, FileNotFoundError) as error:
            # the answer to the rename was lost, or another driver has deleted the attempt or moved its own in
            there = self._marker(place)
            if there == run:
                return ""
            skipped = reason_to_skip(run, self._own(there, run, place))  # raises if it is a newer driver's
            if skipped:
                return skipped
            if isinstance(error, FileNotFoundError):
                raise self._no_longer_there(attempt) from error
            target = f"{self._folders.url}/{place}"
            if there is None:
                raise StoreError(
                    f"cannot create {target}: it exists, and this run did not write it; move it elsewhere"
                ) from error
            raise StoreError(
                f"cannot create {target}: another driver has moved {there.label} there meanwhile; the next attempt replaces it"
            ) from error
        return ""


def _age(marker: OutputRun | None) -> tuple[int, ...]:
    return () if marker is None else (marker.epoch, marker.timeline, marker.replay)


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
