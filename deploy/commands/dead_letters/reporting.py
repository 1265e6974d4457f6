"""Dead letters counted by batch, topic and cause, and single dead letters in full."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from deploy.commands.dead_letters.stored import LetterFilter, Piece, milliseconds, pieces
from forebay.model.errors import UsageError
from forebay.model.wire import WIRE_NAMES
from forebay.settings.schema import Settings

#: columns that a list is counted from
LISTED = ("batch_id", "batch_key", "output", "topic", "cause", "partition", "offset")
#: maximum number of records that a row of a list names
FIRST_MAX = 3


class Counted(msgspec.Struct, frozen=True):
    """The count of dead letters of one batch, output, topic and kind of cause.

    ``example``: full cause of the first. ``state``: completed | not completed (a later run of the batch may replace them) |
    "" (unknown, in a topic). ``first``: names of the first few records, as ``show`` accepts them.
    """

    batch_id: int
    batch_key: str
    batch_time_ms: int
    output: str
    topic: str
    cause: str
    example: str
    records: int
    sent: int
    state: str
    first: tuple[str, ...] = ()


class Shown(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """One dead letter. ``key``, ``value``: text if readable, otherwise ``hex …``; None for null."""

    topic: str
    partition: int
    incarnation: int
    offset: int
    timestamp_ms: int
    key: str | None
    value: str | None
    headers: tuple[tuple[str, str | None], ...]
    cause: str
    function: str
    batch_id: int
    batch_key: str
    batch_time_ms: int
    output: str
    attempt: int
    state: str
    sent: bool


def count(settings: Settings, wanted: LetterFilter) -> list[Counted]:
    """Count the dead letters that ``wanted`` accepts, by batch, output, topic and kind of cause."""
    from wal.dead_letters import identities

    counted: dict[tuple[Any, ...], Counted] = {}
    for piece in pieces(settings):
        table = piece.table
        columns = [table.column(n).to_pylist() for n in LISTED]
        rows = zip(wanted.mask(table), identities(table), milliseconds(table), *columns, strict=True)
        for fits, identity, time_ms, batch_id, key, output, topic, cause, partition, offset in rows:
            if not fits:
                continue
            kind = (cause or "").partition(":")[0]
            group = (key, output, topic, kind, piece.state)
            known = counted.get(group) or Counted(
                batch_id, key, time_ms, output or "", topic, kind, cause or "", 0, 0, piece.state
            )
            again = identity in piece.sent
            first = known.first if len(known.first) == FIRST_MAX else (*known.first, f"{topic}/{partition}@{offset}")
            counted[group] = msgspec.structs.replace(
                known, records=known.records + 1, sent=known.sent + again, first=first
            )
    return list(counted.values())


_RECORD = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})/(?P<partition>[0-9]{1,9})@(?P<offset>[0-9]{1,18})")


class RecordName(NamedTuple):
    """A record by its place in Kafka."""

    topic: str
    partition: int
    offset: int


def record_name(text: str) -> RecordName:
    """Return the record named by ``flights/0@1234``. Raises UsageError."""
    match = _RECORD.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no record: write TOPIC/PARTITION@OFFSET, as in flights/0@1234")
    return RecordName(match["topic"], int(match["partition"]), int(match["offset"]))


def find(settings: Settings, name: RecordName) -> list[tuple[Piece, dict[str, Any]]]:
    """Return all dead letters of a record: one for each batch, replay and incarnation."""
    from wal.dead_letters import RecordIdentity

    found = []
    for piece in pieces(settings):
        table = piece.table
        for index, (topic, partition, offset) in enumerate(
            zip(*(table.column(column).to_pylist() for column in RecordName._fields), strict=True)
        ):
            if (topic, partition, offset) == name:
                # Python's dates end with year 9999, Kafka's timestamps do not
                row = table.drop_columns(["timestamp", "batch_time"]).slice(index, 1).to_pylist()[0]
                row.update({name: milliseconds(table, name)[index] for name in ("timestamp", "batch_time")})
                identity = RecordIdentity(topic, partition, row["life"], offset)
                found.append((piece, {**row, "sent": identity in piece.sent}))
    return found


def text_of(data: bytes | None) -> str | None:
    """Return ``data`` as text if a person can read it, otherwise as ``hex 00ff``."""
    if data is None:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return f"hex {data.hex()}"
    readable = all(character.isprintable() or character in "\n\r\t" for character in text)
    return text if readable else f"hex {data.hex()}"


def shown(piece: Piece, row: Mapping[str, Any]) -> Shown:
    """Return a row of ``piece`` as it is printed."""
    return Shown(
        topic=row["topic"],
        partition=row["partition"],
        incarnation=row["life"],
        offset=row["offset"],
        timestamp_ms=row["timestamp"],
        key=text_of(row["key"]),
        value=text_of(row["value"]),
        headers=tuple((header["key"], text_of(header["value"])) for header in row["headers"] or ()),
        cause=row["cause"] or "",
        function=row["function"] or "",
        batch_id=row["batch_id"],
        batch_key=row["batch_key"],
        batch_time_ms=row["batch_time"],
        output=row["output"] or "",
        attempt=row["attempt"],
        state=piece.state,
        sent=row["sent"],
    )
