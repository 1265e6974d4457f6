"""Dead letters: records that a job could not decode, stored as Parquet objects (docs/FORMAT.md).

::

    <stream>/dead-letters/<batch key>/<output>/<epoch>-<attempt>/<call>-<task>-<piece>-<records>-<digest>.parquet
    <stream>/dead-letters/<batch key>/<output>/<epoch>-<attempt>/done
    <stream>/dead-letters/<batch key>/<output>/<epoch>-<attempt>/<name of an object>.<digest>.sent

Every run of an output writes into a folder of its own, named after the driver's journal epoch and the attempt. An object's name
depends on the records in it, so a second attempt of a Spark task usually stores no object twice. If it reads other copies, it can
put a record into another object; readers return such a record once. Of the runs of a batch only the newest one
with ``done`` counts. The others failed, and readers ignore their objects.
"""

from __future__ import annotations

import io
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import xxhash

from forebay.model.errors import CorruptionError
from forebay.model.identifiers import check_name
from forebay.model.records import DATAFRAME_SCHEMA
from forebay.model.wire import UNDECODABLE
from wal.storage import Storage

#: columns after Kafka's own: why the record is a dead letter
_OWN: list[pa.Field[Any]] = [
    pa.field("life", pa.int32()),
    pa.field("cause", pa.string()),
    pa.field("function", pa.string()),
    pa.field("attempt", pa.int32()),
    pa.field("batch_id", pa.int64()),
    pa.field("batch_key", pa.string()),
    pa.field("batch_time", pa.timestamp("ms", "UTC")),
    pa.field("output", pa.string()),
]
SCHEMA = pa.schema([*DATAFRAME_SCHEMA(True), *_OWN])

_OBJECT = re.compile(
    r"(?P<stream>[^/]+)/dead-letters/(?P<key>[0-9]{1,20}-[0-9]{1,20}-[0-9]{1,20})/(?P<output>[^/]+)/(?P<epoch>[0-9a-f]{16})-(?P<attempt>[0-9]{6,18})/"
    r"(?:(?P<call>[0-9]{1,18})-(?P<task>[0-9]{1,18})-(?P<piece>[0-9]{1,18})-(?P<records>[0-9]{1,18})-[0-9a-f]{16}\.parquet"
    r"|(?P<done>done)|(?P<sent_of>[^/]+\.parquet)\.[0-9a-f]{16}\.sent)"
)


class RecordIdentity(NamedTuple):
    """The identity of one Kafka record."""

    topic: str
    partition: int
    incarnation: int
    offset: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.partition}@{self.offset}" + (
            f" life {self.incarnation}" if self.incarnation > 1 else ""
        )


class Run(NamedTuple):
    """One run of one output of one batch. For the same batch and output, a later run compares greater."""

    stream: str
    key: str
    output: str  # as in the folder's name
    epoch: int
    attempt: int

    @property
    def folder(self) -> str:
        return f"{batch_folder(self.stream, self.key)}/{self.output}/{self.epoch:016x}-{self.attempt:06}"

    @property
    def batch_id(self) -> int:
        return int(self.key.rpartition("-")[2])

    @property
    def replay(self) -> int:
        return int(self.key.split("-")[1])


class Letters(NamedTuple):
    """One object. ``sent``: paths of the marks of its records that were sent back."""

    path: str
    records: int
    sent: tuple[str, ...]

    @property
    def place(self) -> tuple[int, int, int]:
        """The numbers of the call of ``decode``, the task and the piece."""
        call, task, piece, _ = self.path.rpartition("/")[2].split("-", 3)
        return int(call), int(task), int(piece)


class CountedRun(NamedTuple):
    """The run that counts for an output of a batch, with its objects. ``done``: whether the run finished."""

    run: Run
    done: bool
    letters: tuple[Letters, ...]


class Sent(msgspec.Struct, frozen=True):
    """A mark: these records of an object were sent to ``topic``, and Kafka acknowledged them."""

    topic: str
    time_ms: int
    by: str
    records: tuple[tuple[str, int, int, int], ...]


# ---- names -----------------------------------------------------------------------------------------------------------


def stream_folder(stream: str) -> str:
    return f"{check_name('stream', stream)}/dead-letters"


def batch_folder(stream: str, key: str) -> str:
    return f"{stream_folder(stream)}/{key}"


def output_folder(output: str) -> str:
    """Return an output's name as a part of a path.

    Characters that a path can't have become dots; a digest keeps names distinct.
    """
    plain = re.sub(r"[^A-Za-z0-9_.-]", ".", output)[:80].lstrip("._-")
    return f"{plain}-{xxhash.xxh32_hexdigest(output.encode())}" if plain else xxhash.xxh32_hexdigest(output.encode())


def object_path(run: Run, call: int, task: int, piece: int, records: Sequence[RecordIdentity]) -> str:
    return f"{run.folder}/{call}-{task}-{piece}-{len(records)}-{digest(records)}.parquet"


def digest(records: Iterable[RecordIdentity]) -> str:
    return xxhash.xxh64_hexdigest(msgspec.json.encode(list(records)))


def mark_path(letters: Letters, records: Sequence[RecordIdentity]) -> str:
    return f"{letters.path}.{digest(records)}.sent"


def counting(paths: Iterable[str]) -> list[CountedRun]:
    """Return the runs that count among the files at ``paths``, in order of batches.

    For each output of each batch, the newest run that is done counts; if none is done, the newest run. Other files are ignored.
    """
    objects: dict[Run, list[tuple[str, int]]] = {}
    sent: dict[str, list[str]] = {}
    done: set[Run] = set()
    for path in paths:
        match = _OBJECT.fullmatch(path)
        if match is None:
            continue
        run = Run(match["stream"], match["key"], match["output"], int(match["epoch"], 16), int(match["attempt"]))
        if match["done"]:
            done.add(run)
        elif match["sent_of"]:
            sent.setdefault(f"{run.folder}/{match['sent_of']}", []).append(path)
        else:
            objects.setdefault(run, []).append((path, int(match["records"])))
    newest: dict[tuple[str, str, str], Run] = {}
    for run in sorted({*objects, *done}):
        known = newest.get(run[:3])
        if known is None or run in done or known not in done:
            newest[run[:3]] = run
    return [
        CountedRun(
            run,
            run in done,
            tuple(Letters(path, records, tuple(sent.get(path, ()))) for path, records in sorted(objects.get(run, ()))),
        )
        for run in sorted(newest.values(), key=lambda run: (run.batch_id, run))
    ]


# ---- bytes -----------------------------------------------------------------------------------------------------------


def put(storage: Storage, path: str, table: pa.Table) -> None:
    """Store the object, unless one of that name exists: it has the same records. Raises StoreError, OutOfSpaceError."""
    import pyarrow.parquet as parquet  # slow to import, and most processes never meet a dead letter

    sink = io.BytesIO()
    parquet.write_table(table, sink, compression="zstd")
    try:
        storage.put_new(path, sink.getvalue())
    except FileExistsError:
        return


def read(storage: Storage, path: str) -> pa.Table:
    """Return an object's rows (``SCHEMA``), each record once. Raises CorruptionError, StoreError, FileNotFoundError."""
    import pyarrow.parquet as parquet

    data = storage.read(path)
    try:
        table = parquet.read_table(io.BytesIO(data), schema=SCHEMA)
        table.validate(full=True)  # Parquet does not check that strings are UTF-8
        return table
    except (pa.ArrowException, OSError) as error:
        raise CorruptionError(f"{storage.url}/{path}", 0, f"it is no Parquet file of dead letters: {error}") from None


def identities(table: pa.Table) -> list[RecordIdentity]:
    columns = [table.column(name).to_pylist() for name in ("topic", "partition", "life", "offset")]
    return [RecordIdentity(*row) for row in zip(*columns, strict=True)]


def tables(storage: Storage, found: CountedRun) -> Iterator[tuple[Letters, pa.Table]]:
    """Yield the objects of a run, one in memory at a time. A record that several tasks wrote is yielded once."""
    seen: set[RecordIdentity] = set()
    for letters in found.letters:
        table = read(storage, letters.path)
        records = identities(table)
        fresh = [identity not in seen for identity in records]
        seen.update(records)
        yield letters, table if all(fresh) else table.filter(pa.array(fresh))


def records_by_call(storage: Storage, found: CountedRun) -> Mapping[int, int]:
    """Return how many dead letters each call of ``decode`` has. A record that several attempts of a task wrote counts once.

    Objects are read only if two attempts of a task divided the records differently. Raises CorruptionError, StoreError.
    """
    tasks: dict[tuple[int, int], list[Letters]] = defaultdict(list)
    for letters in found.letters:
        tasks[letters.place[:2]].append(letters)
    counts: Counter[int] = Counter()
    for (call, _), pieces in tasks.items():
        if len({letters.place for letters in pieces}) == len(pieces):
            counts[call] += sum(letters.records for letters in pieces)
        else:
            read_pieces = tables(storage, found._replace(letters=tuple(pieces)))
            counts[call] += sum(table.num_rows for _, table in read_pieces)
    return counts


def read_marks(storage: Storage, letters: Letters) -> dict[RecordIdentity, Sent]:
    """Return which records of the object were sent back, and by which mark. Raises CorruptionError, StoreError."""
    marks: dict[RecordIdentity, Sent] = {}
    for path in letters.sent:
        try:
            sent = msgspec.json.decode(storage.read(path), type=Sent)
        except UNDECODABLE as error:
            raise CorruptionError(f"{storage.url}/{path}", 0, f"it is no mark of dead letters: {error}") from None
        marks.update((RecordIdentity(*record), sent) for record in sent.records)
    return marks


def put_mark(storage: Storage, letters: Letters, records: Sequence[RecordIdentity], sent: Sent) -> None:
    """Store a mark, durable on return. Raises StoreError."""
    try:
        storage.put_new(mark_path(letters, records), msgspec.json.encode(sent))
    except FileExistsError:
        return


def put_done(storage: Storage, run: Run) -> None:
    """Mark the run as done, so that it counts. Durable on return. Raises StoreError."""
    try:
        storage.put_new(f"{run.folder}/done", b"")
    except FileExistsError:
        return
