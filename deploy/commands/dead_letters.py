"""``forebay dead-letters``: records that the job could not decode: counted, shown, sent back into a topic."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click
import msgspec

from deploy.commands.replay import MomentType
from deploy.console.invocation import (
    FINE,
    FOUND,
    Invocation,
    changing_options,
    example,
    pass_invocation,
    person,
    shared_options,
)
from forebay.model.errors import UsageError
from forebay.model.topic_pattern import matches
from forebay.model.values import TIMELINE_SHIFT, TopicPartition
from forebay.model.wire import WIRE_NAMES
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Group

    from driver.journal.state import State
    from wal.dead_letters import Identity, Letters, Run
    from wal.storage import Storage

COMPLETED, NOT_COMPLETED = "completed", "not completed"
#: so long the brokers may give nothing of a topic with dead letters
SILENCE_SECONDS = 30.0


class Wanted(NamedTuple):
    """Which dead letters; None and "" want all. ``since_ms``, ``before_ms``: of the batch's time. ``batch``: id or number."""

    topic: str = ""
    cause: str = ""
    batch: int | None = None
    since_ms: int | None = None
    before_ms: int | None = None

    @property
    def everything(self) -> bool:
        return self == Wanted()

    def mask(self, table: pa.Table) -> list[bool]:
        columns = (table.column(name).to_pylist() for name in ("topic", "cause", "batch_id"))
        times = _milliseconds(table)
        return [
            (not self.topic or topic == self.topic)
            and self.cause.lower() in (cause or "").lower()
            and (self.batch is None or self.batch in (batch_id, batch_id & ((1 << TIMELINE_SHIFT) - 1)))
            and (self.since_ms is None or time_ms >= self.since_ms)
            and (self.before_ms is None or time_ms < self.before_ms)
            for topic, cause, batch_id, time_ms in zip(*columns, times, strict=True)
        ]


class Piece(NamedTuple):
    """Some dead letters, with what is the same for all of them. ``letters``: None where they are in a topic. ``sent``: those
    that were sent back. ``where``: behind which offset they end, in a topic."""

    state: str
    table: pa.Table
    sent: frozenset[Identity]
    letters: Letters | None = None
    where: tuple[TopicPartition, int] | None = None


#: columns that a list is made of
LISTED = ("batch_id", "batch_key", "output", "topic", "cause", "partition", "offset")
#: records of a row that a list names
FIRST_MAX = 3


class Counted(msgspec.Struct, frozen=True):
    """Dead letters of one batch, output, topic and kind of cause. ``example``: the cause of the first. ``state``: completed |
    not completed (the batch has yet to run again, and these may go) | "" (in a topic, which does
    not say). ``first``: the first few by name, as ``show`` takes them."""

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
    """One record. ``key``, ``value``: as text where they are, else as ``hex …``; None: null."""

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


class Replayed(msgspec.Struct, frozen=True):
    """``sent``: records by the topic that they went into, or would. ``skipped``: sent by an earlier call. ``waiting``: of batches
    that are not completed, which are left alone."""

    sent: dict[str, int]
    skipped: int
    waiting: int
    done: bool


# ---- where they are --------------------------------------------------------------------------------------------------


def pieces(settings: Settings) -> Iterator[Piece]:
    """All dead letters that count, in order of batches, or of the topic. Raises UsageError if there is no such place."""
    if settings.dead_letters.url is not None:
        yield from _of_objects(settings, settings.dead_letters.url)
    elif settings.dead_letters.topic is not None:
        yield from _of_topic(settings, settings.dead_letters.topic)
    else:
        raise UsageError("this stream keeps no dead letters: set dead_letters.url or dead_letters.topic")


def _of_objects(settings: Settings, url: str) -> Iterator[Piece]:
    from driver.journal import log as journal
    from wal import dead_letters
    from wal.storage import open_storage

    storage = open_storage(url, settings.storage)
    # the journal first: of a batch that it calls completed, the run that counts is among the names read after it
    journals = open_storage(settings.driver.journal, settings.storage)
    state = journal.read_beside_a_writer(journals, settings.stream).state
    if state is None:
        raise UsageError(
            f"{journals.url} holds no journal of stream {settings.stream!r}: check stream and driver.journal"
        )
    for item in dead_letters.counting(storage.list(dead_letters.stream_folder(settings.stream))):
        completed = item.done and not is_pending(state, item.run)
        for letters, table in dead_letters.tables(storage, item):
            sent = frozenset(dead_letters.read_marks(storage, letters))
            yield Piece(COMPLETED if completed else NOT_COMPLETED, table, sent, letters)


def is_pending(state: State, run: Run) -> bool:
    """Whether the batch has yet to run, or to run again, so that another run of it may count in the end."""
    if not run.replay:
        return any(batch.batch_id == run.batch_id for batch in state.unfinished())
    current = state.replay
    this = current is not None and current.replay == run.replay and run.key.startswith(f"{state.timeline}-")
    return this and run.batch_id in state.replaying


def _of_topic(settings: Settings, topic: str) -> Iterator[Piece]:
    import pyarrow as pa

    from driver.batches.decoding import of_records
    from forebay.kafka.consume.whole_topic import read_topic
    from wal.dead_letters import identities

    options, group = settings.kafka.options, sent_group(settings)
    sent = _sent_positions(settings, topic)
    for tp, batch in read_topic(options, topic, group, {}, SILENCE_SECONDS):
        offsets: Any = pa.Table.from_batches([batch]).column("offset").to_pylist()
        handled = sum(offset < sent.get(tp, 0) for offset in offsets)
        end = offsets[-1] + 1
        for part, is_sent, until in (
            (batch.slice(0, handled), True, sent.get(tp, 0)),
            (batch.slice(handled), False, end),
        ):
            if part.num_rows:
                table = of_records(pa.Table.from_batches([part]))
                yield Piece("", table, frozenset(identities(table) if is_sent else ()), None, (tp, until))


def sent_group(settings: Settings) -> str:
    """The group whose offsets say how far a topic of dead letters was sent back."""
    return f"{settings.group}.dead-letters"


def _sent_positions(settings: Settings, topic: str) -> dict[TopicPartition, int]:
    from forebay.kafka.client.admin import KafkaAdmin

    with KafkaAdmin(settings.kafka.options, client_id="forebay-dead-letters") as admin:
        partitions = [TopicPartition(topic, number) for number in range(admin.topics().get(topic, 0))]
        return {tp: point.offset for tp, point in admin.committed(sent_group(settings), partitions).items()}


# ---- what is said of them --------------------------------------------------------------------------------------------


def count(settings: Settings, wanted: Wanted) -> list[Counted]:
    """By batch, output, topic and kind of cause."""
    from wal.dead_letters import identities

    counted: dict[tuple[Any, ...], Counted] = {}
    for piece in pieces(settings):
        table = piece.table
        columns = [table.column(n).to_pylist() for n in LISTED]
        rows = zip(wanted.mask(table), identities(table), _milliseconds(table), *columns, strict=True)
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
    topic: str
    partition: int
    offset: int


def record_name(text: str) -> RecordName:
    """``flights/0@1234``. Raises UsageError."""
    match = _RECORD.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r}: write the record as TOPIC/PARTITION@OFFSET, as in flights/0@1234")
    return RecordName(match["topic"], int(match["partition"]), int(match["offset"]))


def find(settings: Settings, name: RecordName) -> list[tuple[Piece, dict[str, Any]]]:
    """Every dead letter of that record: each batch, replay and life has its own."""
    from wal.dead_letters import Identity

    found = []
    for piece in pieces(settings):
        table = piece.table
        for index, (topic, partition, offset) in enumerate(
            zip(*(table.column(column).to_pylist() for column in RecordName._fields), strict=True)
        ):
            if (topic, partition, offset) == name:
                # Python knows no year beyond 9999, Kafka does
                row = table.drop_columns(["timestamp", "batch_time"]).slice(index, 1).to_pylist()[0]
                row.update({name: _milliseconds(table, name)[index] for name in ("timestamp", "batch_time")})
                identity = Identity(topic, partition, row["life"], offset)
                found.append((piece, {**row, "sent": identity in piece.sent}))
    return found


def text_of(data: bytes | None) -> str | None:
    """``data`` as text if a person can read it, else as ``hex 00ff``."""
    if data is None:
        return None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return f"hex {data.hex()}"
    readable = all(character.isprintable() or character in "\n\r\t" for character in text)
    return text if readable else f"hex {data.hex()}"


def shown(piece: Piece, row: Mapping[str, Any]) -> Shown:
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


def _milliseconds(table: Any, name: str = "batch_time") -> list[int]:
    """A column of moments as milliseconds since 1970 UTC."""
    import pyarrow as pa

    times: list[int] = table.column(name).cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_pylist()
    return times


# ---- sending them back -----------------------------------------------------------------------------------------------


def send_back(settings: Settings, wanted: Wanted, target: str | None, because: str, yes: bool) -> Replayed:
    """Sends what was not sent yet into ``target``, or each record into the topic that it came from, and marks it, object by
    object: killed in between, one object's records may be sent again by the next call. Raises UsageError, UnreachableError."""
    from driver.batches.decoding import as_records
    from forebay.kafka.client.admin import Committed, KafkaAdmin
    from forebay.kafka.produce.sender import send
    from forebay.process.clock import SystemClock
    from wal import dead_letters
    from wal.storage import open_storage

    letters = settings.dead_letters
    if letters.topic is not None and not wanted.everything:
        raise UsageError("of dead letters in a topic it is marked how far they were sent: all are sent, or none")
    storage: Storage | None = open_storage(letters.url, settings.storage) if letters.url is not None else None
    sent: dict[str, int] = {}
    skipped = waiting = 0
    check_target(settings, target)
    for piece in pieces(settings):
        records = dead_letters.identities(piece.table)
        fits = wanted.mask(piece.table)
        if piece.state == NOT_COMPLETED:
            waiting += sum(fits)
            continue
        fresh = [fit and record not in piece.sent for fit, record in zip(fits, records, strict=True)]
        skipped += sum(fits) - sum(fresh)
        for topic, indexes in _by_topic(piece.table, fresh, target).items():
            if yes:
                part = piece.table.take(indexes)
                send(settings.kafka.options, topic, as_records(part).to_batches(), same_partitions=False)
                if piece.letters is not None and storage is not None:
                    own = dead_letters.identities(part)
                    mark = dead_letters.Sent(topic, SystemClock().wall_ms(), person(because), tuple(own))
                    dead_letters.put_mark(storage, piece.letters, own, mark)
            sent[topic] = sent.get(topic, 0) + len(indexes)
        if yes and piece.where is not None and any(fresh):
            tp, until = piece.where
            with KafkaAdmin(settings.kafka.options, client_id="forebay-dead-letters") as admin:
                for words in admin.publish(sent_group(settings), {tp: Committed(until, -1, "")}).values():
                    raise UsageError(f"group {sent_group(settings)}: what was sent could not be marked: {words}")
    return Replayed(sent, skipped, waiting, yes)


def _by_topic(table: pa.Table, fresh: list[bool], target: str | None) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    topics: Any = table.column("topic").to_pylist()
    for index, (topic, wanted) in enumerate(zip(topics, fresh, strict=True)):
        if wanted:
            found.setdefault(target or topic, []).append(index)
    return found


def check_target(settings: Settings, target: str | None) -> None:
    """Raises UsageError for a topic that is not there, or that the stream takes in itself."""
    from forebay.kafka.client.admin import KafkaAdmin

    if target is None:
        return
    kafka = settings.kafka
    if target in kafka.topics or (kafka.pattern is not None and matches(kafka.pattern, target)):
        raise UsageError(
            f"--to-topic {target}: stream {settings.stream!r} takes this topic in, so the job would get each record again; "
            "--to-source sends each record back to where it came from, if that is what you want"
        )
    if target == settings.dead_letters.topic:
        raise UsageError(f"--to-topic {target}: this is where dead letters are kept")
    with KafkaAdmin(kafka.options, client_id="forebay-dead-letters") as admin:
        if target not in admin.topics():
            raise UsageError(f"--to-topic {target}: there is no such topic; create it first")


# ---- the commands ----------------------------------------------------------------------------------------------------

_Function = TypeVar("_Function", bound=Callable[..., Any])


def _filters(function: _Function) -> _Function:
    for decorate in (
        click.option("--before", metavar="TIME", type=MomentType(), help="Only of batches cut before TIME."),
        click.option("--since", metavar="TIME", type=MomentType(), help="Only of batches cut at or after TIME."),
        click.option("--batch", metavar="BATCH", type=click.IntRange(min=1), help="Only of this batch: number or id."),
        click.option("--cause", metavar="WORDS", default="", help="Only those whose cause has these words."),
        click.option("--topic", metavar="TOPIC", default="", help="Only records of this topic."),
    ):
        function = decorate(function)
    return function


@click.group(
    "dead-letters",
    short_help="Records that the job could not decode: count, show, send back.",
    epilog=example("forebay dead-letters list", "forebay dead-letters replay --to-topic flights-mended --yes"),
)
@shared_options
def dead_letters() -> None:
    """Records that the job's decode function could not take: the batch went on without them.

    Of each batch those count that its last run left, the one that returned.
    """


@dead_letters.command(
    "list",
    short_help="Count them by batch, topic and cause.",
    epilog=example(
        "forebay dead-letters list --since 2026-11-21T00:00:00Z", "forebay dead-letters list --cause KeyError"
    ),
)
@_filters
@shared_options
@pass_invocation
def list_(
    invocation: Invocation, topic: str, cause: str, batch: int | None, since: int | None, before: int | None
) -> int:
    """Count dead letters by batch, output, topic and kind of cause.

    Exits with 1 if there are some that were not sent back.
    """
    counted = count(invocation.settings(), Wanted(topic, cause, batch, since, before))
    invocation.write(counted, lambda: tables(counted))
    return FOUND if any(row.sent < row.records for row in counted) else FINE


@dead_letters.command(
    "show",
    short_help="Show one record.",
    epilog=example(
        "forebay dead-letters show flights/0@1234", "forebay dead-letters show flights/0@1234 --raw > value"
    ),
)
@click.argument("record", metavar="TOPIC/PARTITION@OFFSET")
@click.option("--raw", is_flag=True, help="Write the bytes of its value to stdout, and nothing else.")
@shared_options
@pass_invocation
def show(invocation: Invocation, record: str, raw: bool) -> int:
    """Show a dead letter: its cause, key, value and headers, as text where they are, else as hex digits."""
    name = record_name(record)
    found = find(invocation.settings(), name)
    if not found:
        invocation.say(f"forebay: {record}: there is no such dead letter")
        return FOUND
    if raw:
        values = {row["value"] for _, row in found}
        if len(values) > 1:
            raise UsageError(
                f"{record}: {len(values)} different records have this offset, of several lives: see without --raw"
            )
        sys.stdout.flush()
        sys.stdout.buffer.write(values.pop() or b"")
        sys.stdout.buffer.flush()
        return FINE
    letters = [shown(piece, row) for piece, row in found]
    invocation.write(letters, lambda: [_letter_table(letter) for letter in letters])
    return FINE


@dead_letters.command(
    "replay",
    short_help="Send them into a topic, each once.",
    epilog=example(
        "forebay dead-letters replay --to-topic flights-mended",
        "forebay dead-letters replay --to-source --cause Timeout --yes",
    ),
)
@click.option("--to-topic", "target", metavar="TOPIC", help="Send them there.")
@click.option("--to-source", is_flag=True, help="Send each into the topic that it came from: the job gets it again.")
@click.option("--because", metavar="WORDS", default="", help="Why, in a few words: kept with your name.")
@_filters
@changing_options
@shared_options
@pass_invocation
def replay(
    invocation: Invocation,
    target: str | None,
    to_source: bool,
    because: str,
    topic: str,
    cause: str,
    batch: int | None,
    since: int | None,
    before: int | None,
    yes: bool,
) -> int:
    """Send dead letters of completed batches into a topic, with key, value, headers and timestamp as they were.

    Headers that begin with "forebay." say where each came from and why it was put away. What was sent is marked, so that a
    second call does not send it again; only if this command is killed may some be sent twice.
    """
    if (target is None) != to_source:
        raise click.UsageError("name either --to-topic TOPIC or --to-source")
    wanted = Wanted(topic, cause, batch, since, before)
    done = send_back(invocation.settings(), wanted, target, because, yes)
    invocation.write(done, lambda: _replay_tables(done))
    if done.waiting:
        invocation.say(
            f"{done.waiting} records are of batches that are not completed: they are left alone until these are"
        )
    if not yes:
        invocation.say(f"would send {sum(done.sent.values())} records; nothing was sent: say --yes to do it")
    return FINE


# ---- tables ----------------------------------------------------------------------------------------------------------


def tables(counted: list[Counted]) -> list[Group]:
    from deploy.console.table import table

    return [
        table(
            f"Dead letters: {sum(row.records for row in counted)}",
            (
                "batch",
                "time",
                "output",
                "topic",
                "cause",
                "records",
                "sent back",
                "batch is",
                "partition@offset",
                "for example",
            ),
            [
                (
                    f"{row.batch_id} ({row.batch_key})",
                    _moment(row.batch_time_ms),
                    row.output,
                    row.topic,
                    row.cause,
                    row.records,
                    row.sent,
                    row.state or "-",
                    _first_of(row),
                    row.example[:120],
                )
                for row in counted
            ],
        )
    ]


def _first_of(row: Counted) -> str:
    """``0@12, 3@7 and 4 more``, of the row's topic."""
    more = row.records - len(row.first)
    return ", ".join(name.rpartition("/")[2] for name in row.first) + (f" and {more} more" if more else "")


def _letter_table(letter: Shown) -> Group:
    from deploy.console.table import table

    incarnation = f" life {letter.incarnation}" if letter.incarnation > 1 else ""
    headers = [(f"header {name}", "null" if value is None else value) for name, value in letter.headers]
    return table(
        f"{letter.topic}/{letter.partition}@{letter.offset}{incarnation}",
        ("what", "value"),
        [
            ("cause", letter.cause),
            ("key", "null" if letter.key is None else letter.key),
            ("value", "null" if letter.value is None else letter.value),
            *headers,
            ("timestamp", _moment(letter.timestamp_ms)),
            (
                "batch",
                f"{letter.batch_id} ({letter.batch_key}) of {_moment(letter.batch_time_ms)} {letter.state}".rstrip(),
            ),
            ("output", letter.output),
            ("function", letter.function),
            ("attempt", str(letter.attempt)),
            ("sent back", "yes" if letter.sent else "no"),
        ],
    )


def _replay_tables(done: Replayed) -> list[Group]:
    from deploy.console.table import table

    verb = "sent to" if done.done else "would go to"
    rows: list[tuple[str, object]] = [(f"{verb} {topic}", records) for topic, records in done.sent.items()]
    return [table("Dead letters", ("what", "records"), [*rows, ("sent before", done.skipped)])]


def _moment(time_ms: int) -> str:
    from datetime import datetime, timezone

    try:
        return datetime.fromtimestamp(time_ms / 1000, timezone.utc).isoformat(timespec="milliseconds")
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms since 1970"
