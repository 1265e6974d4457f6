"""``forebay lag``: how far the intake and the batches are behind Kafka, in records, bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from deploy.console.driver_requests import observer
from deploy.console.invocation import FINDINGS, FINE, Invocation, example, pass_invocation, shared_options
from deploy.console.parameters import DurationType, NumberType
from deploy.console.progress import spinner
from forebay.messages import PartitionProgress
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from forebay.sources.kind import source_kind

if TYPE_CHECKING:
    from rich.console import Group

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Lag(msgspec.Struct, frozen=True):
    """The distance of a position from the end of Kafka's log.

    ``records``: offsets in between, including offsets that Kafka skips. ``bytes``: ``records`` times the mean size of the
    newest records taken in. ``seconds``: age of the record at the position. ``bytes`` and ``seconds`` are None if unknown.
    """

    records: int
    bytes: int | None
    seconds: float | None


class PartitionLag(msgspec.Struct, frozen=True):
    """``received``: lag of the intake. ``processed``: lag of the completed batches."""

    topic: str
    partition: int
    end: int
    position: int
    completed: int
    received: Lag
    processed: Lag


class LagReport(msgspec.Struct, frozen=True):
    """The lag of each partition, and of all together."""

    partitions: tuple[PartitionLag, ...]
    received: Lag
    processed: Lag


def report(
    progress: tuple[PartitionProgress, ...],
    ends: Mapping[TopicPartition, int],
    since_ms: Mapping[tuple[TopicPartition, int], int],
    now_ms: int,
) -> LagReport:
    """Return the lag of each partition.

    ``ends``: partition → end of Kafka's log as the stream sees it. ``since_ms``: (partition, offset) → timestamp of the
    record there.
    """
    found = []
    for known in progress:
        tp = TopicPartition(known.topic, known.partition)
        end = ends.get(tp, known.position)

        def lag(
            offset: int, other_ms: int = -1, tp: TopicPartition = tp, end: int = end, size: float = known.record_bytes
        ) -> Lag:
            records = max(0, end - offset)
            if not records:
                return Lag(0, 0, 0.0)
            timestamp_ms = since_ms.get((tp, offset), other_ms)
            seconds = None if timestamp_ms < 0 else round(max(0.0, (now_ms - timestamp_ms) / 1000), 1)
            return Lag(records, round(records * size) if size else None, seconds)

        received = lag(known.position)
        # if Kafka has dropped the record, the newest record of its block gives a lower bound of the age
        processed = lag(known.completed, known.waiting_since_ms)
        found.append(PartitionLag(tp.topic, tp.partition, end, known.position, known.completed, received, processed))
    return LagReport(tuple(found), _total([p.received for p in found]), _total([p.processed for p in found]))


def _total(lags: list[Lag]) -> Lag:
    """Return the sums of records and bytes, and the highest age. A value is None if it is unknown for any partition."""
    sizes = [lag.bytes for lag in lags]
    ages = [lag.seconds for lag in lags]
    return Lag(
        sum(lag.records for lag in lags),
        None if None in sizes else sum(size for size in sizes if size is not None),
        None if None in ages else max((age for age in ages if age is not None), default=0.0),
    )


def too_much(total: Lag, max_records: int | None, max_seconds: float | None) -> list[str]:
    """Return one sentence for each limit that ``total`` exceeds. An unknown age exceeds every limit."""
    reasons = []
    if max_records is not None and total.records > max_records:
        reasons.append(f"{total.records} records are not processed; the limit is {max_records}")
    if max_seconds is not None and total.seconds is None:
        reasons.append("the age of the oldest unprocessed record is unknown")
    elif max_seconds is not None and total.seconds is not None and total.seconds > max_seconds:
        reasons.append(f"the oldest unprocessed record is {total.seconds:g} s old; the limit is {max_seconds:g} s")
    return reasons


def _tables(found: LagReport) -> list[Group]:
    from rich.filesize import decimal

    from deploy.console.table import table

    def shown(lag: Lag) -> tuple[object, ...]:
        size = "-" if lag.bytes is None else f"~{decimal(lag.bytes)}" if lag.bytes else decimal(0)
        return (lag.records, size, "-" if lag.seconds is None else f"{lag.seconds:g}")

    columns = ("partition", "end in Kafka", "not taken in", "size", "seconds", "not processed", "size", "seconds")
    rows = [(f"{p.topic}/{p.partition}", p.end, *shown(p.received), *shown(p.processed)) for p in found.partitions]
    return [table("Lag", columns, [*rows, ("all", "", *shown(found.received), *shown(found.processed))])]


def limit_options(function: _Function) -> _Function:
    """Add ``--max-records`` and ``--max-seconds`` to a command that shows a lag."""
    for decorate in (
        click.option(
            "--max-seconds",
            metavar="DURATION",
            type=DurationType(),
            help="Maximum age of the oldest unprocessed record, as in 60s; exit with 1 if it is older [default: none].",
        ),
        click.option(
            "--max-records",
            metavar="N",
            type=NumberType(0),
            help="Maximum number of unprocessed records; exit with 1 if there are more [default: none].",
        ),
    ):
        function = decorate(function)
    return function


@click.command(
    epilog=example("forebay lag", "forebay lag --max-records 100000 --max-seconds 60s", "forebay lag --json"),
)
@limit_options
@shared_options
@pass_invocation
def lag(invocation: Invocation, max_records: int | None, max_seconds: float | None) -> int:
    """Show how far the stream is behind Kafka: records not taken in yet, and records not in a completed batch yet.

    Records are counted by offsets. Bytes are an estimate from the mean size of the newest records taken in. Seconds are the
    age of the oldest such record by its own timestamp. For monitoring, set limits: the command exits with 1 beyond them.
    """
    from forebay.kafka.client.admin import KafkaAdmin

    settings = invocation.settings()
    if not source_kind(settings).has_groups:
        raise UsageError(
            f"receiver.source = {settings.receiver.source!r} is not Kafka, so it has no lag to show; "
            "`forebay status` shows its end"
        )
    with observer(settings) as client:
        progress = client.lag().partitions
    with spinner("comparing with Kafka"), KafkaAdmin(settings.kafka.options) as admin:
        found = compare_with_kafka(progress, admin.ends, admin.first_timestamps)
    return answer(invocation, found, max_records, max_seconds)


def answer(invocation: Invocation, found: LagReport, max_records: int | None, max_seconds: float | None) -> int:
    """Print the report, and return the exit code: 1 if it exceeds a limit."""
    invocation.write(found, lambda: _tables(found))
    reasons = too_much(found.processed, max_records, max_seconds)
    for sentence in reasons:
        invocation.say(f"forebay: {sentence}")
    return FINDINGS if reasons else FINE


def compare_with_kafka(
    progress: tuple[PartitionProgress, ...],
    ends_of: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]],
    first_timestamps: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]],
) -> LagReport:
    """Return the lag by the ends and timestamps that Kafka reports. Raises UnreachableError, UsageError, ForebayError."""
    ends = ends_of([TopicPartition(p.topic, p.partition) for p in progress])
    since_ms: dict[tuple[TopicPartition, int], int] = {}
    for processed in (False, True):
        behind = {TopicPartition(p.topic, p.partition): p.completed if processed else p.position for p in progress}
        asked = {tp: at for tp, at in behind.items() if at < ends[tp] and (tp, at) not in since_ms}
        since_ms.update({(tp, asked[tp]): timestamp for tp, timestamp in first_timestamps(asked).items()})
    return report(progress, ends, since_ms, SystemClock().wall_ms())
