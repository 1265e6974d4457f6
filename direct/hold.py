"""What a direct stream has yet to read is held in the WAL of the intake that it reads through: by a cursor, as a query's is.

The cursor's name is journalled in the checkpoint before it is first opened, so no kill leaves one that nobody comes back to. It
moves behind what the checkpoint says is completed, and never beyond. While the intake's driver is away nothing is let go, and the
stream goes on.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

from direct.intake import Through, check_isolation
from direct.losses import OFFSET_MAX, positions, topic_ids
from driver.journal.events import ReplayedBatch
from driver.journal.state import Batch, State
from forebay.kafka.consume.spans import Span
from forebay.messages import IntakePartition
from forebay.model.errors import UnreachableError
from forebay.model.values import TopicPartition
from pyspark_forebay.intake import Place, QueryCursor, partitions_of
from pyspark_forebay.intake_plan import first_place

log = logging.getLogger(__name__)

#: between two looks at what is completed; so long the intake's driver is asked again for one of them
MOVE_SECONDS = 1.0
PATIENCE_SECONDS = 5.0
#: a partition that the intake has, and the stream does not read, is let go after this many looks at most
LOOKS = 10


def wanted(state: State) -> tuple[Span, ...]:
    """What the stream has yet to read, or may read again: batches that are not finished, or that a window or a replay reaches,
    and all from its positions on."""
    batches: tuple[Batch | ReplayedBatch, ...] = (
        *state.replaying.values(),
        *state.replay_window.values(),
        *(batch for batch in state.batches.values() if not state.is_past(batch.number)),
    )
    ids = topic_ids(state)
    following = (Span(tp.topic, tp.partition, at, OFFSET_MAX, ids[tp]) for tp, at in positions(state).items())
    return (*chain.from_iterable(batch.spans for batch in batches), *following)


def place_of(span: Span, partition: IntakePartition) -> Place | None:
    """Where ``span`` begins in the intake: in the newest life of its topic that has the offset, or else in the first one of that
    topic; None if that topic was never taken in."""
    same = [one for one in partition.incarnations if not span.topic_id or one.topic_id in ("", span.topic_id)]
    if not same:
        return None
    incarnation = next((one for one in reversed(same) if one.start <= span.from_offset), same[0])
    return incarnation.number, span.from_offset


def places_of(
    spans: Iterable[Span], partitions: Mapping[TopicPartition, IntakePartition]
) -> dict[TopicPartition, Place]:
    """Of each partition of the intake that ``spans`` are of the first place that they need."""
    found: dict[TopicPartition, Place] = {}
    for span in spans:
        place = place_of(span, partitions[span.tp]) if span.tp in partitions else None
        if place is not None:
            found[span.tp] = min(place, found.get(span.tp, place))
    return found


class Hold:
    """The cursor ``name``, in use until :meth:`stop`. ``wanted``: what must stay, asked now and again; ``failed`` is told if
    another one reads by the cursor, or it was dropped."""

    def __init__(
        self,
        through: Through,
        isolation: str,
        name: str,
        user: str,
        key: str,
        wanted: Callable[[], tuple[Span, ...]],
        failed: Callable[[BaseException], None],
    ) -> None:
        """All that the intake has is held on return, and what ``wanted`` gives from there on. ``user``: who reads, in words that
        no other process has; ``key``: random. Raises UnreachableError, RefusedError, UsageError, AccessError."""
        self._wanted = wanted
        self._failed = failed
        asked = through.intake()
        try:
            answer = asked.look()
        finally:
            asked.close()
        check_isolation(answer, isolation)
        partitions = partitions_of(answer)
        self._spans = wanted()
        self._intake = through.intake(PATIENCE_SECONDS)
        try:
            # also of partitions that an older checkpoint, put back, has not begun yet
            first = {tp: first_place(partition) for tp, partition in partitions.items()}
            places = {**first, **places_of(self._spans, partitions)}
            self._cursor = QueryCursor(self._intake, name, user, key, places, ())
        except BaseException:
            self._intake.close()
            raise
        self._looks = 0
        self._told = ""
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """From now on what nobody wants is let go: the stream's partitions have begun."""
        self._thread = threading.Thread(target=self._run, name="direct-cursor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """The next user need not wait. A cursor of a stream that could not begin is given up."""
        self._closing.set()
        if self._thread is not None:
            self._thread.join()
        self._cursor.close(forget=self._thread is None and not self._spans)
        self._intake.close()

    def _run(self) -> None:
        try:
            self._move()
            while not self._closing.wait(MOVE_SECONDS):
                self._cursor.check()
                self._move()
            self._move()
        except BaseException as error:
            self._failed(error)

    def _move(self) -> None:
        spans = self._wanted()
        if self._looks and spans == self._spans and self._looks < LOOKS:
            self._looks += 1
            return
        try:
            partitions = partitions_of(self._intake.look())
            places = places_of(spans, partitions)
            self._cursor.move(places, partitions.keys() - places.keys())
        except UnreachableError as error:
            if str(error) != self._told:
                log.warning("the stream's cursor stays where it is, since the intake's driver is away: %s", error)
            self._told = str(error)
            return
        self._spans, self._looks, self._told = spans, 1, ""
