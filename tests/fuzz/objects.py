"""Readers of small objects beside the frames: keyed states, dead letters, leases, markers, and names of files."""

from __future__ import annotations

import atexit
import hashlib
import logging
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa

from driver.background.discovery import LostJournal, check_commits, foreign_commits
from driver.journal import checked_json, claims
from driver.journal.claims import Claim
from driver.journal.leadership.lease import Lease, lease_path, stored_lease
from driver.outputs.run import OutputRun, decoded
from executor_agent.store import BlockStore
from forebay.kafka.client.admin import Committed
from forebay.model.errors import CorruptionError, NewerVersionError, StoreError, UsageError
from forebay.model.identifiers import numbered
from forebay.model.values import TopicPartition
from forebay.process.clock import ManualClock
from tests.fuzz.reader import Reader, new_store, store_of, text_reader
from wal import dead_letters
from wal.keyed import files
from wal.keyed.schema import UPDATED
from wal.segments import layout

_DAMAGED = (CorruptionError, NewerVersionError)
_EPOCH = numbered(1, 1)
_PATH = "s/object"


def object_readers() -> dict[str, Reader]:
    """Return the readers of objects that are no frames."""
    return {
        "state manifest": _manifest_reader(),
        "state file": _state_file_reader(),
        "dead letters": _dead_letters_reader(),
        "mark of sent dead letters": _reader(_marks, _encoded(_sent()), allowed=(CorruptionError,)),
        "lease": _reader(_lease, checked_json.encode(_LEASE), _encoded(_LEASE)),
        "claim": _reader(
            lambda data: claims.decode(data, "s/epochs/1"), Claim(_EPOCH, "d", 7).encode(), _encoded(Claim(_EPOCH, "d", 7)),
            allowed=(CorruptionError,),
        ),
        "driver epochs of an agent": _driver_epochs_reader(),
        "metadata of a commit": Reader(
            honest=(b"forebay:1:1", b"another program's"), refused=(b"forebay:1:2", b"forebay:2:1"),
            read=lambda data: _commit(data.decode("utf-8", "surrogateescape")), allowed=(LostJournal,),
        ),
        "output marker": _reader(lambda data: decoded(data, "p"), _encoded(_RUN), allowed=(StoreError,)),
        "names of files": text_reader(
            _parse_name, layout.block_segment("s", "r1", _EPOCH, 1), layout.journal_segment("s", _EPOCH, 123_456_789),
            layout.history_segment("s", _EPOCH, 1), layout.snapshot_copy("s", _EPOCH, 1),
            files.manifest_path(files.run_folder("s", "counts", 7, _EPOCH, 1)), _letters_path(), allowed=(),
        ),
    }  # fmt: skip


_LEASE = Lease(
    epoch=_EPOCH, owner="d", host="h", pid=1, started="boot/1", beat=3, duration_seconds=10.0, url="http://127.0.0.1:1",
    led_epoch=_EPOCH, led_events=5,
)  # fmt: skip
_RUN = OutputRun(stream="s", output="o", timeline=1, replay=0, number=3, batch_id=4, epoch=_EPOCH, newest=4)


def _reader(
    read: Callable[[bytes], Any], *honest: bytes, allowed: tuple[type[Exception], ...] = ()
) -> Reader:  # fmt: skip
    return Reader(honest=honest, read=read, allowed=allowed)


def _encoded(value: msgspec.Struct) -> bytes:
    return msgspec.json.encode(value)


def _lease(data: bytes) -> None:
    """A damaged lease counts as none."""
    stored_lease(store_of(lease_path("s"), data), "s")


def _driver_epochs_reader() -> Reader:
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    store = BlockStore(folder.name, quota_bytes=1 << 30, clock=ManualClock())
    store.keep_driver_epoch("s", _EPOCH)
    files = sorted(Path(folder.name, "s").iterdir())
    honest = files[0].read_bytes()
    logging.getLogger(BlockStore.__module__).addHandler(logging.NullHandler())  # most attempts log a warning

    def read(data: bytes) -> None:
        """One file has the bytes, then both. The agent obeys no older driver because of the first."""
        assert len(files) == 2
        for other in (honest, data):
            for file, content in zip(files, (data, other), strict=True):
                file.write_bytes(content)
            epoch = store.driver_epoch("s")
            assert epoch >= (_EPOCH if other is honest else 0)

    return Reader(honest=(honest, b"%d" % _EPOCH), read=read, allowed=(UsageError,), cost=4)


def _commit(text: str) -> None:
    """Any program can commit any metadata for the group."""
    tp = TopicPartition("t", 0)
    commit = {tp: Committed(5, -1, text)}
    foreign_commits(commit, "g", {tp: 7})
    check_commits(commit, "g", 1, {tp: (1, 7)})


def _manifest_reader() -> Reader:
    columns: dict[str, pa.DataType] = {"word": pa.string(), "count": pa.int64()}
    schema = pa.schema(columns)
    file = files.ShardFile("s/state/counts/a.arrow", 100, "0" * 64, 5, 1, 2, "k")
    made = files.Manifest(
        format=files.FORMAT, stream="s", name="counts", batch_id=7, epoch=_EPOCH, key=("word",),
        schema=schema.serialize().to_pybytes(), forgotten_ms=0, shards=((file,), ()), left_out=("old",),
    )  # fmt: skip

    def read(data: bytes) -> None:
        """The bytes are those that the journal names: a driver of another release may have written them."""
        files.read_manifest(store_of(_PATH, data), _PATH, hashlib.sha256(data).digest())

    return _reader(read, _encoded(made), allowed=_DAMAGED)


def _state_file_reader() -> Reader:
    storage = new_store()
    times = pa.array([1, 2, 3], pa.int64())
    table = pa.table({"word": ["a", "b", None], "count": [1, 2, 3], UPDATED: times})
    file = files.put_rows(storage, None, "s/state/counts", 0, table)
    honest = storage.read(file.path)

    def read(data: bytes) -> None:
        """A file whose bytes changed is never read as rows."""
        found = files.read_rows(store_of(file.path, data), None, file)
        assert data == honest
        assert found.num_rows == table.num_rows

    return _reader(read, honest, allowed=_DAMAGED)


def _letters_path() -> str:
    run = dead_letters.Run("s", "1-2-3", dead_letters.output_folder("o"), _EPOCH, 1)
    return dead_letters.object_path(run, 0, 0, 0, [dead_letters.RecordIdentity("t", 0, 1, 5)])


def _dead_letters_reader() -> Reader:
    columns = {field.name: pa.nulls(3, field.type) for field in dead_letters.SCHEMA}
    numbers = {"partition": pa.int32(), "life": pa.int32(), "offset": pa.int64()}
    columns |= {name: pa.array([1, 2, 3], kind) for name, kind in numbers.items()}
    columns |= {"topic": pa.array(["t"] * 3), "value": pa.array([b"x", b"", b"y" * 900], pa.binary())}
    storage, path = new_store(), _letters_path()
    dead_letters.put(storage, path, pa.table(columns, schema=dead_letters.SCHEMA))

    def read(data: bytes) -> None:
        dead_letters.identities(dead_letters.read(store_of(path, data), path))

    return _reader(read, storage.read(path), allowed=(CorruptionError,))


def _sent() -> dead_letters.Sent:
    return dead_letters.Sent("t", 1_700_000_000_000, "a person", (("t", 0, 1, 5), ("t", 1, 1, 6)))


def _marks(data: bytes) -> None:
    letters = dead_letters.Letters(_letters_path(), 2, (_PATH,))
    dead_letters.read_marks(store_of(_PATH, data), letters)


def _parse_name(path: str) -> None:
    """A store may list any name."""
    layout.parse_block(path)
    layout.parse_journal(path)
    layout.parse_history(path)
    layout.parse_snapshot_copy(path)
    files.parse(path)
    dead_letters.counting([path])
