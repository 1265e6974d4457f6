"""``forebay size``: how many receivers, how much disk and how much memory a load needs (docs/sizing.md)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click
import msgspec

from deploy.console.invocation import FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.parameters import DurationType, NumberType
from forebay.model.units import Duration, Size, parse_size
from forebay.settings.schema import DriverSettings, ReceiverSettings
from forebay.settings.toml_text import toml_text

if TYPE_CHECKING:
    from rich.console import Group

_RECEIVER, _DRIVER = ReceiverSettings(), DriverSettings(journal="")
#: defaults of what no setting says
OUTAGE, RETENTION, RECEIVER_RATE, RECEIVER_BYTES = Duration(3600), Duration(86_400), 100_000, Size(50_000_000)
#: what a record takes in a block beside its key and value: the other columns
RECORD_OVERHEAD_BYTES = 36
#: memory of the driver, and bytes of a snapshot of the journal, for each block in the WAL
DRIVER_BLOCK_BYTES, SNAPSHOT_BLOCK_BYTES = 2048, 1024
#: bytes of the history for each batch, for each of its partitions, and for each of its blocks
HISTORY_BATCH_BYTES, HISTORY_PARTITION_BYTES, HISTORY_BLOCK_BYTES = 250, 65, 38
#: peak memory of a receiver and of a driver without Spark, beside what grows with the load
RECEIVER_BASE_BYTES, DRIVER_BASE_BYTES = 260_000_000, 200_000_000
#: how many batches have local copies at the same time: waiting, queued, running
LOCAL_BATCHES = 4
#: maximum number of records per second, far above any stream
RATE_MAX = 10**12
#: a smaller quota saves nothing, and a slow job would read from the WAL
QUOTA_BYTES_MIN = 1_000_000_000
#: blocks in the WAL above which the driver's memory and its start become a burden
BLOCKS_MANY = 500_000


class SizeType(click.ParamType[Size]):
    """A size as in the settings, such as ``64MB``, in bytes."""

    name = "size"

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> Size:
        if isinstance(value, Size):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(f"{value!r} {error}", parameter, context)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What a stream takes in at its peak, and what it must endure.

    ``compressed``: bytes of compressed keys and values for each byte of them; 1.0 with ``wal.compression = "none"``.
    ``outage_seconds``: the longest time in which no batch completes. ``retention_seconds``: how long completed batches stay.
    ``copies``: hosts that hold each block. ``receiver_rate``, ``receiver_bytes``: what one receiver takes in per second.
    """

    records_per_second: int
    record_bytes: int
    partitions: int
    hosts: int = 1
    compressed: float = 1.0
    outage_seconds: float = OUTAGE
    retention_seconds: float = RETENTION
    block_interval_seconds: float = _RECEIVER.block_interval
    block_bytes: int = _RECEIVER.block_size
    batch_interval_seconds: float = _DRIVER.batch_interval
    window_batches: int = 0
    copies: int = _RECEIVER.copies
    receiver_memory_bytes: int = _RECEIVER.memory
    receiver_rate: int = RECEIVER_RATE
    receiver_bytes: int = RECEIVER_BYTES


class Sizes(msgspec.Struct, frozen=True):
    """What a load needs. Memory is of one process, ``local_bytes`` of one host. ``notes``: what to change in the plan."""

    receivers: int
    stored_bytes_per_second: float
    blocks_per_second: float
    wal_bytes: int
    wal_blocks: int
    local_bytes: int
    receiver_memory_bytes: int
    driver_memory_bytes: int
    journal_bytes: int
    history_bytes_per_day: int
    batch_records: int
    notes: tuple[str, ...]


def sizes(load: Load) -> Sizes:
    """Return what ``load`` needs. Everything is an upper estimate, except ``journal_bytes`` without its reserve."""
    taken_bytes = load.records_per_second * load.record_bytes
    needed = max(
        math.ceil(load.records_per_second / load.receiver_rate),
        math.ceil(taken_bytes / load.receiver_bytes),
        load.hosts,
        1,
    )
    receivers = min(needed, load.partitions)
    stored = load.records_per_second * (load.record_bytes * load.compressed + RECORD_OVERHEAD_BYTES)
    blocks = max(receivers / load.block_interval_seconds, taken_bytes / load.block_bytes)
    kept_seconds = load.outage_seconds + load.retention_seconds
    wal_blocks = math.ceil(blocks * kept_seconds)
    batches_a_day = 86_400 / load.batch_interval_seconds
    history = batches_a_day * (HISTORY_BATCH_BYTES + HISTORY_PARTITION_BYTES * load.partitions)
    history += 86_400 * blocks * HISTORY_BLOCK_BYTES
    local_seconds = load.batch_interval_seconds * (LOCAL_BATCHES + load.window_batches)
    return Sizes(
        receivers=receivers,
        stored_bytes_per_second=stored,
        blocks_per_second=blocks,
        wal_bytes=math.ceil(stored * kept_seconds),
        wal_blocks=wal_blocks,
        local_bytes=math.ceil(stored * load.copies / load.hosts * local_seconds),
        receiver_memory_bytes=RECEIVER_BASE_BYTES + 2 * load.receiver_memory_bytes,
        driver_memory_bytes=DRIVER_BASE_BYTES + DRIVER_BLOCK_BYTES * wal_blocks,
        journal_bytes=2 * SNAPSHOT_BLOCK_BYTES * wal_blocks + 128_000_000,
        history_bytes_per_day=math.ceil(history),
        batch_records=math.ceil(load.records_per_second * load.batch_interval_seconds),
        notes=tuple(_notes(load, needed, wal_blocks)),
    )


def _notes(load: Load, needed: int, wal_blocks: int) -> Iterator[str]:
    if needed > load.partitions:
        yield (
            f"{needed} receivers are needed, but {load.partitions} partitions keep only {load.partitions} of them busy: "
            "create the topic with more partitions"
        )
    if load.copies > load.hosts:
        yield f"receiver.copies = {load.copies} needs {load.copies} hosts: add hosts with agents, or omit --copies"
    if wal_blocks > BLOCKS_MANY:
        longer = load.block_interval_seconds * math.ceil(wal_blocks / BLOCKS_MANY)
        yield (
            f"the WAL would hold {wal_blocks:,} blocks, each with 2 KB of the driver's memory: set receiver.block_interval to "
            f"{longer:g}s, or keep completed batches for a shorter time"
        )


def settings_of(load: Load, needed: Sizes) -> list[str]:
    """Return the keys of ``forebay.toml`` that follow from the sizes."""
    return [
        "[receiver]",
        f"count = {needed.receivers}",
        *([f"copies = {load.copies}"] if load.copies > 1 else []),
        "",
        "[wal]",
        f'retention = "{round(load.retention_seconds)}s"',
        f'retention_size = "{_megabytes(needed.wal_bytes)}MB"',
        f"retention_blocks = {needed.wal_blocks}",
        "",
        "[agent]",
        f'quota = "{_megabytes(max(needed.local_bytes, QUOTA_BYTES_MIN))}MB"',
    ]


def _megabytes(size: float) -> int:
    return max(1, math.ceil(size / 1e6))


def _as_given(value: Duration | Size) -> str:
    """Return ``value`` as an option takes it, such as ``64MB``."""
    return toml_text(value).strip('"')


def _shown(size: float) -> str:
    """Return a size for people, with three digits."""
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= factor:
            return f"{size / factor:.3g} {unit}"
    return f"{size:.0f} B"


def tables(load: Load, needed: Sizes) -> list[Group]:
    """Return the sizes as a table for people, each with the setting that it decides."""
    from deploy.console.table import table

    rows = [
        ("receivers", f"{needed.receivers}", "receiver.count"),
        ("processors for receivers", f"{needed.receivers}", "one for each, at full speed"),
        ("memory of a receiver", _shown(needed.receiver_memory_bytes), "receiver.memory"),
        ("WAL", _shown(needed.wal_bytes), "wal.retention_size, wal.reserve"),
        ("WAL, per second", _shown(needed.stored_bytes_per_second), "wal.compression"),
        ("blocks in the WAL", f"{needed.wal_blocks:,}", "wal.retention_blocks, receiver.block_interval"),
        ("local copies, per host", _shown(needed.local_bytes), "agent.quota"),
        ("memory of the driver, beside Spark", _shown(needed.driver_memory_bytes), "wal.retention_blocks"),
        ("journal", _shown(needed.journal_bytes), "driver.journal_reserve"),
        ("history, per day", _shown(needed.history_bytes_per_day), "driver.batch_interval"),
        ("records of a batch", f"{needed.batch_records:,}", "driver.batch_interval"),
    ]
    return [table("What the stream needs", ("what", "size", "decided by"), rows)]


@click.command(
    epilog=example(
        "forebay size --records 50000 --bytes 500 --partitions 24",
        "forebay size --records 50000 --bytes 500 --partitions 24 --hosts 3 --retention 1d --outage 2h",
    ),
)
@click.option("--records", type=click.IntRange(1, RATE_MAX), required=True, help="Records per second at the peak.")
@click.option(
    "--bytes",
    "record_bytes",
    type=NumberType(1),
    required=True,
    help="Mean size of a record's key and value.",
)
@click.option("--partitions", type=NumberType(1), required=True, help="Partitions of all topics together.")
@click.option("--hosts", type=NumberType(1), default=1, show_default=True, help="Hosts that run receivers.")
@click.option(
    "--outage",
    type=DurationType(),
    default=_as_given(OUTAGE),
    show_default=True,
    help="Longest time in which no batch completes.",
)
@click.option(
    "--retention",
    type=DurationType(),
    default=_as_given(RETENTION),
    show_default=True,
    help="How long completed batches stay readable.",
)
@click.option(
    "--compressed",
    type=click.FloatRange(min=0, max=1, min_open=True),
    default=1.0,
    show_default=True,
    help="Stored bytes for each byte of keys and values, if wal.compression is set.",
)
@click.option(
    "--block-interval",
    type=DurationType(),
    default=_as_given(_RECEIVER.block_interval),
    show_default=True,
    help="As receiver.block_interval.",
)
@click.option(
    "--batch-interval",
    type=DurationType(),
    default=_as_given(_DRIVER.batch_interval),
    show_default=True,
    help="As driver.batch_interval; if that is 0s, the time that the job takes.",
)
@click.option("--window", type=NumberType(0), default=0, show_default=True, help="As driver.window_batches.")
@click.option("--copies", type=click.IntRange(1, 2), default=1, show_default=True, help="As receiver.copies.")
@click.option(
    "--memory", type=SizeType(), default=_as_given(_RECEIVER.memory), show_default=True, help="As receiver.memory."
)
@click.option(
    "--receiver-rate",
    type=click.IntRange(1, RATE_MAX),
    default=RECEIVER_RATE,
    show_default=True,
    help="Records per second that one receiver takes in; `python -m benchmarks --only receiver` measures it.",
)
@click.option(
    "--receiver-bytes",
    type=SizeType(),
    default=_as_given(RECEIVER_BYTES),
    show_default=True,
    help="Bytes of keys and values per second that one receiver takes in.",
)
@shared_options
@pass_invocation
def size(
    invocation: Invocation,
    records: int,
    record_bytes: int,
    partitions: int,
    hosts: int,
    outage: Duration,
    retention: Duration,
    compressed: float,
    block_interval: Duration,
    batch_interval: Duration,
    window: int,
    copies: int,
    memory: Size,
    receiver_rate: int,
    receiver_bytes: Size,
) -> int:
    """Calculate how many receivers, how much disk and how much memory a load needs.

    The command reads no configuration and asks no service. Give the rate of the peak, not the mean of a day. The results are
    upper estimates. At the end it prints the keys of forebay.toml that follow from them.
    """
    for name, value in (
        ("--block-interval", block_interval), ("--batch-interval", batch_interval), ("--compressed", compressed),
        ("--receiver-bytes", receiver_bytes),
    ):  # fmt: skip
        if not value > 0:  # also if it is no number
            raise click.UsageError(f"{name} must be above 0")
    load = Load(
        records_per_second=records,
        record_bytes=record_bytes,
        partitions=partitions,
        hosts=hosts,
        compressed=compressed,
        outage_seconds=outage,
        retention_seconds=retention,
        block_interval_seconds=block_interval,
        batch_interval_seconds=batch_interval,
        window_batches=window,
        copies=copies,
        receiver_memory_bytes=memory,
        receiver_rate=receiver_rate,
        receiver_bytes=receiver_bytes,
    )
    needed = sizes(load)
    invocation.write(needed, lambda: tables(load, needed))
    for note in needed.notes:
        invocation.say(f"forebay: {note}")
    if not invocation.json:
        click.echo("\n".join(settings_of(load, needed)))
    return FINE
