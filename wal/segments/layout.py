"""Names of the log's files, relative to the root of their storage (docs/FORMAT.md).

* ``<stream>/blocks/<receiver>/<epoch>/<sequence>.seg``: block segments, in the WAL.
* ``<stream>/lineage-<8 digits>``: markers of the journals that wrote here, in the WAL.
* ``<stream>/epoch-<epoch>/<sequence>.seg``: the journal.
* ``<stream>/history/<epoch>/<sequence>.seg``: finished batches, beside the journal.
* ``<stream>/snapshots/<epoch>/<sequence>.seg``: copies of the journal's snapshots, in the WAL.

``<epoch>`` is 16 lower-case hex digits. ``<sequence>`` is 8 digits; from 100,000,000 on it has 9 to 12. Sequences are dense
within their folder. Names sort as their sequences only up to 8 digits, so compare the numbers. Parse functions return None for
any other path.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from forebay.model.identifiers import check_name

_STREAM = r"(?P<stream>[A-Za-z0-9][A-Za-z0-9_.-]{0,63})"
_PLACE = r"(?P<epoch>[0-9a-f]{16})/(?P<sequence>[0-9]{8}|[1-9][0-9]{8,11})\.seg"
_BLOCKS = re.compile(rf"{_STREAM}/blocks/(?P<receiver>[A-Za-z0-9][A-Za-z0-9_.-]{{0,63}})/{_PLACE}")
_JOURNAL = re.compile(rf"{_STREAM}/epoch-{_PLACE}")
_HISTORY = re.compile(rf"{_STREAM}/history/{_PLACE}")
_SNAPSHOT = re.compile(rf"{_STREAM}/snapshots/{_PLACE}")


class BlockPlace(NamedTuple):
    stream: str
    receiver: str
    epoch: int
    sequence: int


class LogPlace(NamedTuple):
    """The place of a segment of the journal, of the history, or of a snapshot copy."""

    stream: str
    epoch: int
    sequence: int


def block_folder(stream: str, receiver: str | None = None, epoch: int | None = None) -> str:
    """Return the folder of block segments: of the whole stream, of one receiver, or of one epoch of a receiver."""
    path = f"{check_name('stream', stream)}/blocks"
    if receiver is not None:
        path += f"/{check_name('receiver id', receiver)}"
        if epoch is not None:
            path += f"/{_epoch(epoch)}"
    return path


def block_segment(stream: str, receiver: str, epoch: int, sequence: int) -> str:
    return f"{block_folder(stream, receiver, epoch)}/{_sequence(sequence)}.seg"


def journal_segment(stream: str, epoch: int, sequence: int) -> str:
    return f"{check_name('stream', stream)}/epoch-{_epoch(epoch)}/{_sequence(sequence)}.seg"


def history_segment(stream: str, epoch: int, sequence: int) -> str:
    return f"{check_name('stream', stream)}/history/{_epoch(epoch)}/{_sequence(sequence)}.seg"


def snapshot_folder(stream: str, epoch: int | None = None) -> str:
    """Return the folder of the snapshot copies: of all, or of those of one journal epoch."""
    folder = f"{check_name('stream', stream)}/snapshots"
    return folder if epoch is None else f"{folder}/{_epoch(epoch)}"


def snapshot_copy(stream: str, epoch: int, sequence: int) -> str:
    return f"{snapshot_folder(stream, epoch)}/{_sequence(sequence)}.seg"


def timeline_marker(stream: str, timeline: int) -> str:
    if not 0 <= timeline < 10**8:
        raise ValueError(f"timeline {timeline}: must have at most 8 digits")
    return f"{check_name('stream', stream)}/lineage-{timeline:08d}"


@lru_cache(256)  # most blocks have the path of the block before
def parse_block(path: str) -> BlockPlace | None:
    found = _BLOCKS.fullmatch(path)
    return found and BlockPlace(found["stream"], found["receiver"], int(found["epoch"], 16), int(found["sequence"]))


def parse_journal(path: str) -> LogPlace | None:
    found = _JOURNAL.fullmatch(path)
    return found and LogPlace(found["stream"], int(found["epoch"], 16), int(found["sequence"]))


def parse_history(path: str) -> LogPlace | None:
    found = _HISTORY.fullmatch(path)
    return found and LogPlace(found["stream"], int(found["epoch"], 16), int(found["sequence"]))


def parse_snapshot_copy(path: str) -> LogPlace | None:
    found = _SNAPSHOT.fullmatch(path)
    return found and LogPlace(found["stream"], int(found["epoch"], 16), int(found["sequence"]))


def _epoch(epoch: int) -> str:
    if not 0 <= epoch < 1 << 64:
        raise ValueError(f"epoch {epoch}: must fit in 64 bits")
    return f"{epoch:016x}"


def _sequence(sequence: int) -> str:
    if not 0 <= sequence < 10**12:
        raise ValueError(f"sequence {sequence}: must have at most 12 digits")
    return f"{sequence:08d}"
