"""``forebay lag``: how far intake and batches are behind Kafka, in records, bytes and seconds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from deploy.commands.status import TIMEOUT_SECONDS
from deploy.commands.stop import DurationType
from deploy.console.invocation import FINE, FOUND, Invocation, example, pass_invocation, shared_options
from forebay.messages import LagAnswer, PartitionProgress
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock

if TYPE_CHECKING:
    from rich.console import Group

_Function = TypeVar("_Function", bound=Callable[..., Any])


class Lag(msgspec.Struct, frozen=True):
    """``records``: offsets between position and end, so what Kafka skips counts too. ``bytes``: as many times the mean size of
    the records taken in last. ``seconds``: the age of the record at the position. The last two are None where nothing tells."""

    records: int
    bytes: int | None
    seconds: float | None


class PartitionLag(msgspec.Struct, frozen=True):
    topic: str
    partition: int
    end: int
    position: int
    completed: int
    received: Lag
    processed: Lag


class LagReport(msgspec.Struct, frozen=True):
    partitions: tuple[PartitionLag, ...]
    received: Lag
    processed: Lag


def report(
    progress: tuple[PartitionProgress, ...],
    ends: Mapping[TopicPartition, int],
    since_ms: Mapping[tuple[TopicPartition, int], int],
    now_ms: int,
) -> LagReport:
    """``ends``: where Kafka's logs end for this stream; ``since_ms``: (partition, offset) → timestamp of the record there."""
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
            told_ms = since_ms.get((tp, offset), other_ms)
            seconds = None if told_ms < 0 else round(max(0.0, (now_ms - told_ms) / 1000), 1)
            return Lag(records, round(records * size) if size else None, seconds)

        received = lag(known.position)
        # where Kafka has dropped what the WAL holds, the block's newest record stands for its oldest: at least that old
        processed = lag(known.completed, known.waiting_since_ms)
        found.append(PartitionLag(tp.topic, tp.partition, end, known.position, known.completed, received, processed))
    return LagReport(tuple(found), _total([p.received for p in found]), _total([p.processed for p in found]))


def _total(lags: list[Lag]) -> Lag:
    """The sum of records and bytes, and the oldest; None where one of those behind is not known."""
    sizes = [lag.bytes for lag in lags]
    ages = [lag.seconds for lag in lags]
    return Lag(
        sum(lag.records for lag in lags),
        None if None in sizes else sum(size for size in sizes if size is not None),
        None if None in ages else max((age for age in ages if age is not None), default=0.0),
    )


def too_much(total: Lag, max_records: int | None, max_seconds: float | None) -> list[str]:
    """A sentence for each limit that what is not processed is beyond; an age that nobody can tell is beyond every limit."""
    words = []
    if max_records is not None and total.records > max_records:
        words.append(f"{total.records} records are not processed, more than {max_records}")
    if max_seconds is not None and total.seconds is None:
        words.append("the age of what is not processed can't be told")
    elif max_seconds is not None and total.seconds is not None and total.seconds > max_seconds:
        words.append(f"the oldest record that is not processed is {total.seconds:g} s old, more than {max_seconds:g}")
    return words


def _tables(found: LagReport) -> list[Group]:
    from deploy.console.table import bytes_text, table

    def shown(lag: Lag) -> tuple[object, ...]:
        size = "-" if lag.bytes is None else f"~{bytes_text(lag.bytes)}" if lag.bytes else "0 B"
        return (lag.records, size, "-" if lag.seconds is None else f"{lag.seconds:g}")

    columns = ("partition", "end in Kafka", "not taken in", "size", "seconds", "not processed", "size", "seconds")
    rows = [(f"{p.topic}/{p.partition}", p.end, *shown(p.received), *shown(p.processed)) for p in found.partitions]
    return [table("Lag", columns, [*rows, ("all", "", *shown(found.received), *shown(found.processed))])]


def limit_options(function: _Function) -> _Function:
    """Adds ``--max-records`` and ``--max-seconds`` to a command that shows a lag."""
    for decorate in (
        click.option(
            "--max-seconds",
            metavar="DURATION",
            type=DurationType(),
            help="Exit with 1 if the oldest of these is older, as in 60s.",
        ),
        click.option(
            "--max-records", metavar="N", type=click.IntRange(min=0), help="Exit with 1 if more are not processed."
        ),
    ):
        function = decorate(function)
    return function


@click.command(
    short_help="How far intake and batches are behind Kafka.",
    epilog=example("forebay lag", "forebay lag --max-records 100000 --max-seconds 60s", "forebay lag --json"),
)
@limit_options
@shared_options
@pass_invocation
def lag(invocation: Invocation, max_records: int | None, max_seconds: float | None) -> int:
    """Show how far behind Kafka the stream is: what is not taken in yet, and what is not processed yet by a completed batch.

    Records are counted by offsets. Bytes are estimated by the mean size of the records taken in last. Seconds are the age of
    the oldest record, by its own timestamp.
    """
    from forebay.http.driver_client import DriverClient
    from forebay.kafka.client.admin import KafkaAdmin

    settings = invocation.settings()
    if settings.custom_source:
        raise UsageError(
            f"receiver.source = {settings.receiver.source!r}: `forebay status` shows what it tells of its end"
        )
    client = DriverClient.of(settings, TIMEOUT_SECONDS)
    try:
        progress = client.get("/v1/lag", LagAnswer).partitions
    finally:
        client.close()
    with KafkaAdmin(settings.kafka.options) as admin:
        found = look(progress, admin.ends, admin.first_timestamps)
    return answer(invocation, found, max_records, max_seconds)


def answer(invocation: Invocation, found: LagReport, max_records: int | None, max_seconds: float | None) -> int:
    """Shows the report; the exit code."""
    invocation.write(found, lambda: _tables(found))
    words = too_much(found.processed, max_records, max_seconds)
    for sentence in words:
        invocation.say(f"forebay: {sentence}")
    return FOUND if words else FINE


def look(
    progress: tuple[PartitionProgress, ...],
    ends_of: Callable[[list[TopicPartition]], Mapping[TopicPartition, int]],
    first_timestamps: Callable[[Mapping[TopicPartition, int]], Mapping[TopicPartition, int]],
) -> LagReport:
    """Asks Kafka what the journal does not know. Raises UnreachableError, UsageError, ForebayError."""
    ends = ends_of([TopicPartition(p.topic, p.partition) for p in progress])
    since_ms: dict[tuple[TopicPartition, int], int] = {}
    for processed in (False, True):
        behind = {TopicPartition(p.topic, p.partition): p.completed if processed else p.position for p in progress}
        asked = {tp: at for tp, at in behind.items() if at < ends[tp] and (tp, at) not in since_ms}
        since_ms.update({(tp, asked[tp]): told for tp, told in first_timestamps(asked).items()})
    return report(progress, ends, since_ms, SystemClock().wall_ms())
