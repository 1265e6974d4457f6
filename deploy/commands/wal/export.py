"""``forebay wal export``: write records that the WAL still holds to Parquet files or into a topic."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from deploy.console.invocation import (
    FINDINGS,
    FINE,
    Invocation,
    changing_options,
    example,
    pass_invocation,
    shared_options,
)
from deploy.console.parameters import MomentType, NumberType
from deploy.console.progress import progress_bar
from forebay.model.errors import OutOfSpaceError, StoreError, UnreadableBlockError, UsageError
from forebay.model.topic_pattern import matches
from forebay.model.values import Block, BlockRange
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    import pyarrow as pa
    from rich.console import Group

    from driver.journal.state import State
    from wal.reading import ReadPlan
    from wal.storage import Storage


class WantedRange(NamedTuple):
    """Offsets ``[start, until)`` of one incarnation of one partition."""

    topic: str
    partition: int
    incarnation: int
    start: int
    until: int

    @property
    def label(self) -> str:
        """The range as people write it: ``flights/0[10, 20) life 2``."""
        incarnation = "" if self.incarnation == 1 else f" life {self.incarnation}"
        return f"{self.topic}/{self.partition}[{self.start}, {self.until}){incarnation}"


@dataclass(frozen=True, slots=True)
class ExportSelection:
    """The records to export; None selects all. ``since_ms``, ``before_ms``: bounds of record timestamps. ``blocks``: ids."""

    spans: tuple[WantedRange, ...] | None = None
    blocks: frozenset[str] | None = None
    since_ms: int | None = None
    before_ms: int | None = None

    def spans_of(self, r: BlockRange) -> list[WantedRange]:
        """Return the selected offsets of a range."""
        whole = WantedRange(r.topic, r.partition, r.incarnation, r.from_offset, r.until_offset)
        if self.spans is None:
            return [whole]
        return [
            WantedRange(*whole[:3], max(s.start, whole.start), min(s.until, whole.until))
            for s in self.spans
            if s[:3] == whole[:3] and s.start < whole.until and s.until > whole.start
        ]

    def wants(self, block: Block) -> bool:
        """Whether the block may hold selected records."""
        if self.blocks is not None and block.id not in self.blocks:
            return False
        return any(
            self.spans_of(r) and not (self.since_ms is not None and 0 <= r.max_timestamp_ms < self.since_ms)
            for r in block.meta.ranges
        )


class Exported(msgspec.Struct, frozen=True):
    """The result of an export.

    ``records``: number of records written; into a topic, of records that Kafka acknowledged. ``absent``: selected ranges and
    blocks that the WAL does not hold. ``unreadable``: one sentence for each block that no tier could read.
    """

    records: int
    files: tuple[str, ...]
    topic: str
    blocks: int
    absent: tuple[str, ...]
    unreadable: tuple[str, ...]


# ---- what is asked for -----------------------------------------------------------------------------------------------

_RANGE = re.compile(
    r"(?P<topic>[A-Za-z0-9._-]+)/(?P<partition>[0-9]{1,9})\[\s*(?P<start>[0-9]{1,18})\s*,\s*(?P<until>[0-9]{1,18})\s*\)"
    r"(\s+life\s+(?P<life>[1-9][0-9]{0,8}))?"
)


def span(text: str) -> WantedRange:
    """Return the range ``flights/0[10, 20)`` or ``flights/0[10, 20) life 2``. Raises UsageError."""
    match = _RANGE.fullmatch(text.strip())
    if match is None or int(match["start"]) >= int(match["until"]):
        raise UsageError(
            f"--range {text!r}: write 'TOPIC/PARTITION[FROM, UNTIL)', with ' life N' after it for incarnation N"
        )
    return WantedRange(
        match["topic"], int(match["partition"]), int(match["life"] or 1), int(match["start"]), int(match["until"])
    )


def blocks_of_batches(journal_storage: Storage, state: State, named: Sequence[int]) -> tuple[frozenset[str], list[str]]:
    """Return the blocks of the batches with these ids or numbers, and a sentence on each batch with deleted blocks.

    Raises UsageError for a batch that the stream never had.
    """
    from driver.journal import history

    tasks = {batch.batch_id: (batch.number, batch.tasks) for batch in state.batches.values()}
    if not set(named) <= {*tasks, *(number for number, _ in tasks.values())}:
        for finished in history.read(journal_storage, state.stream):
            tasks[finished.batch_id] = (finished.number, finished.tasks)
    wanted: set[str] = set()
    absent = []
    for name in named:
        blocks = [
            block
            for batch_id, (number, packed) in tasks.items()
            if name in (batch_id, number)
            for task in packed
            for block in task
        ]
        if not blocks:
            raise UsageError(
                f"--batch {name}: the stream has no batch with this id or number; `forebay audit` counts its batches"
            )
        deleted = [block for block in blocks if block not in state.blocks]
        if deleted:
            absent.append(
                f"{len(deleted)} of the {len(blocks)} blocks of batch {name} (deleted by wal.retention or one of its limits)"
            )
        wanted.update(blocks)
    return frozenset(wanted), absent


def absent_spans(wanted: Iterable[WantedRange], held: Iterable[Block]) -> list[str]:
    """Return the labels of those parts of ``wanted`` that no block in ``held`` contains."""
    ranges: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for block in held:
        for r in block.meta.ranges:
            ranges.setdefault((r.topic, r.partition, r.incarnation), []).append((r.from_offset, r.until_offset))
    absent = []
    for asked in wanted:
        reached = asked.start
        for begin, end in sorted(ranges.get(asked[:3], ())):
            if begin > reached and reached < asked.until:
                absent.append(WantedRange(*asked[:3], reached, min(begin, asked.until)).label)
            reached = max(reached, end)
        if reached < asked.until:
            absent.append(WantedRange(*asked[:3], reached, asked.until).label)
    return absent


# ---- reading ---------------------------------------------------------------------------------------------------------


class Records(NamedTuple):
    """Rows of one incarnation of one partition, with the columns of Spark's Kafka source."""

    topic: str
    partition: int
    incarnation: int
    batch: pa.RecordBatch


def records(block: Block, plan: ReadPlan, wanted: ExportSelection) -> Iterator[Records]:
    """Yield the selected rows of a block. Raises UnreadableBlockError."""
    from wal.reading import BlockReference, read_block

    ranges = {(r.topic, r.partition): r for r in block.meta.ranges}
    for batch in read_block(BlockReference.of(block), plan).batches:
        columns: Any = batch
        r = ranges[columns.column("topic")[0].as_py(), columns.column("partition")[0].as_py()]
        for part in wanted.spans_of(r):
            kept = _rows(columns, part, wanted)
            if kept.num_rows:
                yield Records(r.topic, r.partition, r.incarnation, kept)


def _rows(batch: Any, part: WantedRange, wanted: ExportSelection) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    calculate: Any = pc
    offsets = batch.column("offset")
    kept = calculate.and_(calculate.greater_equal(offsets, part.start), calculate.less(offsets, part.until))
    times = batch.column("timestamp").view(pa.int64())
    if wanted.since_ms is not None:
        kept = calculate.and_(kept, calculate.greater_equal(times, wanted.since_ms * 1000))
    if wanted.before_ms is not None:
        kept = calculate.and_(kept, calculate.less(times, wanted.before_ms * 1000))
    return batch.filter(kept)


class _Reader:
    """The selected rows of all blocks, in the order of acceptance. Unreadable blocks are noted and left out."""

    def __init__(self, blocks: Sequence[Block], plan: ReadPlan, wanted: ExportSelection) -> None:
        self._blocks = blocks
        self._plan = plan
        self._wanted = wanted
        self.unreadable: list[str] = []
        self.records = 0

    def __iter__(self) -> Iterator[Records]:
        with progress_bar("export", len(self._blocks), unit_bytes=False) as progress:
            for block in self._blocks:
                try:
                    for part in records(block, self._plan, self._wanted):
                        self.records += part.batch.num_rows
                        yield part
                except UnreadableBlockError as error:
                    self.unreadable.append(str(error))
                progress(1)


def _read_plan(settings: Settings, state: State, blocks: Sequence[Block]) -> ReadPlan:
    """Return a plan to read these blocks as tasks of a batch would, with the agents that answer now."""
    from deploy.commands.recovery.surroundings import Surroundings
    from forebay.security.access import Access
    from forebay.sources.kind import source_kind
    from recovery.examination import topic_ids
    from wal.reading import ReadPlan

    surroundings = Surroundings(settings, kafka=False)
    surroundings.find_agents()
    return ReadPlan(
        wal_url=settings.wal.url,
        storage=settings.storage,
        blocks_directory=settings.agent.blocks,
        agent_urls=surroundings.agents,
        headers=settings.kafka.headers or any(block.meta.headers for block in blocks),
        key_file=settings.wal.key_file,
        kafka=source_kind(settings).kafka_access(),
        topic_ids=topic_ids(state, blocks),
        access=Access.of(settings, "operator"),
    )


# ---- Parquet ---------------------------------------------------------------------------------------------------------


def write_parquet(parts: Iterable[Records], folder: Path) -> list[str]:
    """Write one file for each incarnation of each partition, and return the paths.

    The name is ``<topic>-<partition>.parquet``, or ``<topic>-<partition>-life-<n>.parquet`` for a later incarnation. A file
    with this name is complete. Raises UsageError if it already exists, OutOfSpaceError, StoreError.
    """
    import pyarrow.parquet as parquet

    opened: dict[Path, Any] = {}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for part in parts:
            incarnation = "" if part.incarnation == 1 else f"-life-{part.incarnation}"
            path = folder / f"{part.topic}-{part.partition}{incarnation}.parquet"
            writer = opened.get(path)
            if writer is None:
                if path.exists():
                    raise UsageError(f"{path} already exists: name another folder with --output")
                writer = opened[path] = parquet.ParquetWriter(_temporary(path), part.batch.schema, compression="zstd")
            writer.write_batch(part.batch)
        for path, writer in opened.items():
            writer.close()
            _temporary(path).rename(path)
    except OSError as error:
        kind = OutOfSpaceError if error.errno == 28 else StoreError
        raise kind(f"cannot write to {folder}: {error.strerror or error}") from None
    finally:
        for path, writer in opened.items():
            with contextlib.suppress(OSError):  # a failed writer fails again when it is closed
                writer.close()
            _temporary(path).unlink(missing_ok=True)
    return [str(path) for path in sorted(opened)]


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.tmp")


# ---- the command -----------------------------------------------------------------------------------------------------


def check_topic(
    settings: Settings, state: State, topic: str, force: bool, blocks: Sequence[Block], by_key: bool
) -> None:
    """Raise UsageError for a topic that does not exist, has too few partitions, or is taken in by the stream itself.

    ``by_key``: the number of partitions does not matter. ``force``: a topic of the stream is allowed.
    """
    from forebay.kafka.client.admin import KafkaAdmin

    own = topic in settings.kafka.topics or topic in state.topics
    own = own or (settings.kafka.pattern is not None and matches(settings.kafka.pattern, topic))
    if own and not force:
        raise UsageError(
            f"--to-topic {topic}: stream {state.stream!r} takes this topic in, so it would take in each record a second time; "
            "if that is intended, add --force"
        )
    if not settings.kafka.options.get("bootstrap.servers"):
        raise UsageError(
            '--to-topic: kafka."bootstrap.servers" is missing: set it to the address of a broker, such as "127.0.0.1:9092"'
        )
    with KafkaAdmin(settings.kafka.options, client_id="forebay-export") as admin:
        there = admin.topics()
        admin.check_visible({topic} - there.keys())
    if topic not in there:
        raise UsageError(f"--to-topic {topic}: the topic does not exist; create it first")
    needed = 1 + max((r.partition for block in blocks for r in block.meta.ranges), default=0)
    if not by_key and there[topic] < needed:
        raise UsageError(
            f"--to-topic {topic}: it has {there[topic]} partitions, but {needed} are needed to keep the partition of each "
            "record; add partitions, or choose partitions by key with --by-key"
        )


@click.command(
    "export",
    epilog=example(
        "forebay wal export --range 'flights/0[1200, 1800)' --output flights-lost",
        "forebay wal export --batch 12 --to-topic flights-again --apply",
    ),
)
@click.option(
    "--range", "ranges", metavar="RANGE", multiple=True, help="Offsets TOPIC/PARTITION[FROM, UNTIL); repeatable."
)
@click.option(
    "--batch",
    "batches",
    metavar="BATCH",
    multiple=True,
    type=NumberType(1),
    help="Number or id of a batch; repeatable.",
)
@click.option("--since", metavar="TIME", type=MomentType(), help="Only records with a timestamp at or after TIME.")
@click.option("--before", metavar="TIME", type=MomentType(), help="Only records with a timestamp before TIME.")
@click.option(
    "--output", metavar="FOLDER", type=click.Path(file_okay=False, path_type=Path), help="Folder for Parquet files."
)
@click.option("--to-topic", "topic", metavar="TOPIC", help="Topic for the records, instead of Parquet files.")
@click.option(
    "--by-key", is_flag=True, help="With --to-topic: choose partitions by key [default: partition of the record]."
)
@click.option("--force", is_flag=True, help="With --to-topic: allow a topic that the stream itself takes in.")
@changing_options
@shared_options
@pass_invocation
def export(
    invocation: Invocation,
    ranges: tuple[str, ...],
    batches: tuple[int, ...],
    since: int | None,
    before: int | None,
    output: Path | None,
    topic: str | None,
    by_key: bool,
    force: bool,
    yes: bool,
) -> int:
    """Write records of a range, batch or time to Parquet files or into a topic, also if Kafka no longer holds them.

    Parquet files have the columns of Spark's Kafka source. Records sent into a topic keep key, value, headers and timestamp,
    and Kafka acknowledges each; without --apply they are only counted. The records are read from the same places as for a
    batch: local copy, agent, WAL.

    Exits with 1 if a selected record is missing or unreadable; all others are exported.
    """
    if (output is None) == (topic is None):
        raise click.UsageError("give either --output FOLDER or --to-topic TOPIC")
    if not ranges and not batches and since is None and before is None:
        raise click.UsageError("select records with --range, --batch, --since or --before")
    if topic is None and (by_key or force or yes):
        raise click.UsageError("--by-key, --force and --apply need --to-topic")
    from recovery.examination import read_state
    from wal.storage import open_storage

    settings = invocation.settings()
    journal_storage = open_storage(settings.driver.journal, settings.storage)
    state = read_state(journal_storage, settings.stream)
    spans = tuple(map(span, ranges)) or None
    named, absent = blocks_of_batches(journal_storage, state, batches) if batches else (None, [])
    wanted = ExportSelection(spans, named, since, before)
    blocks = [block for block in state.blocks.values() if wanted.wants(block)]
    absent += absent_spans(spans or (), blocks)
    reader = _Reader(blocks, _read_plan(settings, state, blocks), wanted)
    files: list[str] = []
    if output is not None:
        files = write_parquet(reader, output)
    else:
        assert topic is not None
        check_topic(settings, state, topic, force, blocks, by_key)
        if yes:
            from forebay.kafka.produce.sender import send

            send(settings.kafka.options, topic, (part.batch for part in reader), same_partitions=not by_key)
        else:
            for _ in reader:
                pass
    done = Exported(
        records=reader.records if output is not None or yes else 0,
        files=tuple(files),
        topic=topic or "",
        blocks=len(blocks),
        absent=tuple(absent),
        unreadable=tuple(reader.unreadable),
    )
    invocation.write(done, lambda: tables(done))
    if topic is not None and not yes:
        invocation.say(f"would send {reader.records} records to {topic}; nothing was sent: add --apply to do it")
    for finding in (*(f"not in the WAL: {label}" for label in done.absent), *done.unreadable):
        invocation.say(f"forebay: {finding}")
    return FINDINGS if done.absent or done.unreadable else FINE


def tables(done: Exported) -> list[Group]:
    """Return the table of an export."""
    from deploy.console.table import table

    rows: list[tuple[str, object]] = [("blocks", done.blocks), ("records", done.records)]
    rows += [("file", path) for path in done.files]
    if done.topic:
        rows.append(("topic", done.topic))
    return [table("Exported", ("what", "value"), rows)]
