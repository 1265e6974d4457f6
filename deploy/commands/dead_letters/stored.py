"""Stored dead letters, in objects or in a topic, and which of them a command takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from forebay.model.errors import UsageError
from forebay.model.identifiers import TIMELINE_SHIFT
from forebay.model.values import TopicPartition
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    import pyarrow as pa

    from driver.journal.state import State
    from wal.dead_letters import Letters, RecordIdentity, Run

COMPLETED, NOT_COMPLETED = "completed", "not completed"
#: maximum time without data from the brokers while a topic with dead letters is read
SILENCE_SECONDS = 30.0


class LetterFilter(NamedTuple):
    """Conditions on dead letters; None and "" accept all.

    ``cause``: text that the cause contains, ignoring case. ``batch``: id or number. ``since_ms`` (inclusive) and ``before_ms``
    (exclusive): bounds of the batch's time.
    """

    topic: str = ""
    cause: str = ""
    batch: int | None = None
    since_ms: int | None = None
    before_ms: int | None = None

    @property
    def everything(self) -> bool:
        """Whether all dead letters are accepted."""
        return self == LetterFilter()

    def mask(self, table: pa.Table) -> list[bool]:
        """Return for each row of ``table`` whether it is accepted."""
        columns = (table.column(name).to_pylist() for name in ("topic", "cause", "batch_id"))
        times = milliseconds(table)
        return [
            (not self.topic or topic == self.topic)
            and self.cause.lower() in (cause or "").lower()
            and (self.batch is None or self.batch in (batch_id, batch_id & ((1 << TIMELINE_SHIFT) - 1)))
            and (self.since_ms is None or time_ms >= self.since_ms)
            and (self.before_ms is None or time_ms < self.before_ms)
            for topic, cause, batch_id, time_ms in zip(*columns, times, strict=True)
        ]


class Piece(NamedTuple):
    """Dead letters that share an object, or a message batch of a topic.

    ``state``: of their batch: completed | not completed | "" (unknown, in a topic). ``sent``: those already sent into a topic.
    ``letters``: the object; None in a topic. ``where``: the partition and the offset after the last one, in a topic.
    """

    state: str
    table: pa.Table
    sent: frozenset[RecordIdentity]
    letters: Letters | None = None
    where: tuple[TopicPartition, int] | None = None


def pieces(settings: Settings) -> Iterator[Piece]:
    """Yield all valid dead letters, in the order of batches or of the topic.

    Valid are those of a batch's last run. Raises UsageError if the stream keeps no dead letters.
    """
    if settings.dead_letters.url is not None:
        yield from _of_objects(settings, settings.dead_letters.url)
    elif settings.dead_letters.topic is not None:
        yield from _of_topic(settings, settings.dead_letters.topic)
    else:
        raise UsageError("this stream keeps no dead letters; to keep them, set dead_letters.url or dead_letters.topic")


def _of_objects(settings: Settings, url: str) -> Iterator[Piece]:
    from driver.journal.log import reading as journal
    from wal import dead_letters
    from wal.storage import open_storage

    storage = open_storage(url, settings.storage)
    # the journal first: if it calls a batch completed, the names read after it include the batch's last run
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
    """Whether the batch must still run, or run again, so that a later run may replace these dead letters."""
    if not run.replay:
        return any(batch.batch_id == run.batch_id for batch in state.unfinished())
    current = state.replay
    this = current is not None and current.replay == run.replay and run.key.startswith(f"{state.timeline}-")
    return this and run.batch_id in state.replaying


def _of_topic(settings: Settings, topic: str) -> Iterator[Piece]:
    import pyarrow as pa

    from driver.batches.tasks.decoding import of_records
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
    """Return the consumer group whose offsets record how far the dead letters of a topic were sent."""
    return f"{settings.group}.dead-letters"


def _sent_positions(settings: Settings, topic: str) -> dict[TopicPartition, int]:
    from forebay.kafka.client.admin import KafkaAdmin

    with KafkaAdmin(settings.kafka.options, client_id="forebay-dead-letters") as admin:
        partitions = [TopicPartition(topic, number) for number in range(admin.topics().get(topic, 0))]
        return {tp: point.offset for tp, point in admin.committed(sent_group(settings), partitions).items()}


def milliseconds(table: Any, name: str = "batch_time") -> list[int]:
    """Return a column of timestamps as milliseconds since 1970 UTC."""
    import pyarrow as pa

    times: list[int] = table.column(name).cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64()).to_pylist()
    return times
