"""Files of a keyed state: their names, and how they are written and read, checked and encrypted."""

from __future__ import annotations

import hashlib
import re
from typing import Any, NamedTuple

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from forebay.model.errors import CorruptionError, NewerVersionError, UsageError
from forebay.model.identifiers import check_name
from forebay.model.wire import UNDECODABLE
from wal.blocks.encryption import KeyRing
from wal.keyed.schema import UPDATED
from wal.storage import Storage

#: version of manifests and files; a reader refuses newer ones
FORMAT = 1
#: maximum sizes: of one file, of one manifest
FILE_BYTES_MAX = 1 << 30
MANIFEST_BYTES_MAX = 64 << 20
SHARDS_MAX = 1_024

_FORMAT_KEY = b"forebay.state.format"
_FOLDER = re.compile(
    r"(?P<stream>[^/]+)/state/(?P<name>[^/]+)/(?P<batch>[0-9]{1,20})-(?P<epoch>[0-9a-f]{16})-(?P<run>[0-9]{6,18})/"
    r"(?:manifest\.json|[0-9]{4,}-[0-9a-f]{16}\.arrow)"
)


class RunPlace(NamedTuple):
    """The run that wrote a file."""

    name: str
    batch_id: int
    epoch: int
    run: int


class ShardFile(msgspec.Struct, frozen=True):
    """One file of a shard. ``oldest_ms``, ``newest_ms``: the times of its rows' updates. ``key_id``: None: not encrypted."""

    path: str
    bytes: int
    sha256: str
    rows: int
    oldest_ms: int
    newest_ms: int
    key_id: str | None = None


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a keyed state.

    ``schema``: the user's columns, as an Arrow IPC message. ``forgotten_ms``: rows that were last updated at or before this time
    have timed out. ``shards``: for each shard its files in order: a base, then deltas. ``left_out``: names of columns that
    earlier versions had and this one does not.
    """

    format: int
    stream: str
    name: str
    batch_id: int
    epoch: int
    key: tuple[str, ...]
    schema: bytes
    forgotten_ms: int
    shards: tuple[tuple[ShardFile, ...], ...]
    left_out: tuple[str, ...] = ()

    @property
    def columns(self) -> pa.Schema:
        return pa.ipc.read_schema(pa.py_buffer(self.schema))


class _FormatOf(msgspec.Struct):
    format: int


# ---- names -----------------------------------------------------------------------------------------------------------


def states_folder(stream: str) -> str:
    return f"{check_name('stream', stream)}/state"


def run_folder(stream: str, name: str, batch_id: int, epoch: int, run: int) -> str:
    """Return the folder of one run of a batch. ``run``: a number that the driver with this epoch uses once."""
    return f"{states_folder(stream)}/{check_name('state', name)}/{batch_id}-{epoch:016x}-{run:06}"


def manifest_path(folder: str) -> str:
    return f"{folder}/manifest.json"


def parse(path: str) -> RunPlace | None:
    """Return the run that wrote the file; None if the path is none of a keyed state."""
    found = _FOLDER.fullmatch(path)
    return found and RunPlace(found["name"], int(found["batch"]), int(found["epoch"], 16), int(found["run"]))


# ---- manifests -------------------------------------------------------------------------------------------------------


def put_manifest(storage: Storage, path: str, manifest: Manifest) -> bytes:
    """Store the manifest, durable on return. Return its SHA-256. Raises StoreError, UsageError."""
    data = msgspec.json.encode(manifest)
    if len(data) > MANIFEST_BYTES_MAX:
        raise UsageError(
            f"state {manifest.name!r}: its manifest has {len(data):,} bytes, more than the limit of {MANIFEST_BYTES_MAX:,}; "
            "use fewer shards"
        )
    storage.put_new(path, data)
    return hashlib.sha256(data).digest()


def read_manifest(storage: Storage, path: str, sha256: bytes) -> Manifest:
    """Return the manifest that the journal names. Raises CorruptionError, NewerVersionError, StoreError."""
    where = f"{storage.url}/{path}"
    data = _read(storage, path, MANIFEST_BYTES_MAX + 1)
    if hashlib.sha256(data).digest() != sha256:
        raise CorruptionError(where, 0, "the manifest is not the one that the journal names")
    try:
        version = msgspec.json.decode(data, type=_FormatOf).format
        if version > FORMAT:
            raise NewerVersionError(where, 0, version=version, newest=FORMAT)
        return msgspec.json.decode(data, type=Manifest)
    except UNDECODABLE as error:
        raise CorruptionError(where, 0, f"the manifest can't be decoded: {error}") from None


# ---- files of shards -------------------------------------------------------------------------------------------------


def put_rows(storage: Storage, keys: KeyRing | None, folder: str, shard: int, table: pa.Table) -> ShardFile:
    """Store rows of a shard, durable on return. Raises StoreError; UsageError if they are too large for one file.

    The name contains a digest of the bytes: if Spark runs a task twice, each attempt has a file of its own.
    """
    sink = pa.BufferOutputStream()
    schema = table.schema.with_metadata({_FORMAT_KEY: str(FORMAT).encode()})
    with pa.ipc.new_file(sink, schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table.replace_schema_metadata(schema.metadata))
    plain: Any = sink.getvalue()
    if plain.size > FILE_BYTES_MAX:
        raise UsageError(
            f"shard {shard} in {folder} has {plain.size} bytes; a file holds at most {FILE_BYTES_MAX}: use more shards"
        )
    bound = f"{folder}/{shard}".encode()
    key_id, data = (None, plain) if keys is None else (keys.current, keys.encrypt(plain, bound))
    digest = hashlib.sha256(data).hexdigest()
    path = f"{folder}/{shard:04}-{digest[:16]}.arrow"
    storage.put_new(path, data)
    times = table.column(UPDATED)
    first, last = pc.min_max(times).values()
    return ShardFile(path, len(data), digest, table.num_rows, first.as_py() or 0, last.as_py() or 0, key_id)


def read_rows(storage: Storage, keys: KeyRing | None, file: ShardFile) -> pa.Table:
    """Return the rows of a file. Raises CorruptionError, MissingKeyError, NewerVersionError, StoreError."""
    where = f"{storage.url}/{file.path}"
    if not 0 <= file.bytes <= FILE_BYTES_MAX + 64:
        raise CorruptionError(where, 0, f"a file of a state can't have {file.bytes} bytes")
    data: Any = _read(storage, file.path, file.bytes + 1)
    if len(data) != file.bytes or hashlib.sha256(data).hexdigest() != file.sha256:
        raise CorruptionError(where, 0, "the file's bytes are not those that the manifest names")
    if file.key_id is not None:
        folder, _, name = file.path.rpartition("/")
        bound = f"{folder}/{int(name.partition('-')[0])}".encode()
        data = KeyRing.decrypt_with(keys, file.key_id, data, bound, what=f"state file {file.path}", where=where)
    try:
        with pa.ipc.open_file(pa.py_buffer(data)) as reader:
            version = int((reader.schema.metadata or {}).get(_FORMAT_KEY, b"0"))
            if version > FORMAT:
                raise NewerVersionError(where, 0, version=version, newest=FORMAT)
            return reader.read_all().replace_schema_metadata(None)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise CorruptionError(where, 0, f"it is no Arrow file of a state: {error}") from None


def _read(storage: Storage, path: str, length: int) -> bytes:
    try:
        return storage.read(path, 0, length)
    except FileNotFoundError:
        raise CorruptionError(f"{storage.url}/{path}", 0, "a file of a state is missing") from None
