"""The cursor of a direct stream in its intake. The intake's WAL keeps all records after the cursor.

The stream writes the cursor's name to its checkpoint before it first opens the cursor, so a crash leaves no cursor
without a stream. The cursor never moves past batches that the checkpoint does not call completed. While the intake's
driver is unavailable, the cursor does not move and the stream continues.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from itertools import chain

from direct.checkpoint.losses import OFFSET_MAX, positions, topic_ids
from direct.intake.access import IntakeEndpoint
from direct.intake.coverage import check_isolation
from driver.journal.events import ReplayedBatch
from driver.journal.state import State
from driver.journal.state_parts import Batch
from forebay.kafka.consume.spans import OffsetRange
from forebay.messages import IntakePartition
from forebay.model.errors import UnreachableError
from forebay.model.values import TopicPartition
from pyspark_forebay.intake.client import Place, partitions_of
from pyspark_forebay.intake.cursor import QueryCursor
from pyspark_forebay.intake.planning import first_place

log = logging.getLogger(__name__)

#: pause between two checks for completed batches
MOVE_SECONDS = 1.0
#: how long one move is retried while the intake's driver does not answer
PATIENCE_SECONDS = 5.0
#: after how many checks without a change the cursor moves anyway, to release new partitions that the stream does not read
CHECKS_MAX = 10


def ranges_to_keep(state: State) -> tuple[OffsetRange, ...]:
    """Return the ranges that the stream has yet to read or may read again.

    These are uncompleted batches, batches of a window or a replay, and everything from the stream's positions on.
    """
    batches: tuple[Batch | ReplayedBatch, ...] = (
        *state.replaying.values(),
        *state.replay_window.values(),
        *(batch for batch in state.batches.values() if not state.is_past(batch.number)),
    )
    ids = topic_ids(state)
    following = (OffsetRange(tp.topic, tp.partition, at, OFFSET_MAX, ids[tp]) for tp, at in positions(state).items())
    return (*chain.from_iterable(batch.spans for batch in batches), *following)


def place_of(span: OffsetRange, partition: IntakePartition) -> Place | None:
    """Return where ``span`` begins in the intake; None if the intake never took in the topic with this id.

    Of the incarnations with the topic's id, it is the newest one that contains the offset, otherwise the first one.
    """
    same = [one for one in partition.incarnations if not span.topic_id or one.topic_id in ("", span.topic_id)]
    if not same:
        return None
    incarnation = next((one for one in reversed(same) if one.start <= span.from_offset), same[0])
    return incarnation.number, span.from_offset


def places_of(
    spans: Iterable[OffsetRange], partitions: Mapping[TopicPartition, IntakePartition]
) -> dict[TopicPartition, Place]:
    """Return for each partition the first place in the intake that ``spans`` need."""
    found: dict[TopicPartition, Place] = {}
    for span in spans:
        place = place_of(span, partitions[span.tp]) if span.tp in partitions else None
        if place is not None:
            found[span.tp] = min(place, found.get(span.tp, place))
    return found


class StreamCursor:
    """The cursor of a direct stream, in use until :meth:`stop`."""

    def __init__(
        self,
        endpoint: IntakeEndpoint,
        *,
        isolation: str,
        name: str,
        user: str,
        key: str,
        wanted: Callable[[], tuple[OffsetRange, ...]],
        failed: Callable[[BaseException], None],
    ) -> None:
        """Open the cursor ``name``. On return, the intake's WAL keeps everything that it holds.

        ``isolation``: the stream's ``isolation.level``. ``user``: a text that names only this process. ``key``: a random
        text. ``wanted`` returns the ranges that the WAL must keep. ``failed`` is called with the error if another
        process uses the cursor, or if an operator dropped it. Raises UnreachableError, RefusedError, UsageError,
        AccessError.
        """
        self._wanted = wanted
        self._failed = failed
        first_contact = endpoint.connect()
        try:
            answer = first_contact.describe()
        finally:
            first_contact.close()
        check_isolation(answer, isolation)
        partitions = partitions_of(answer)
        self._spans = wanted()
        self._intake = endpoint.connect(PATIENCE_SECONDS)
        try:
            # including partitions that an older, restored checkpoint has not begun yet
            first = {tp: first_place(partition) for tp, partition in partitions.items()}
            places = {**first, **places_of(self._spans, partitions)}
            self._cursor = QueryCursor(self._intake, name=name, user=user, key=key, places=places, left=())
        except BaseException:
            self._intake.close()
            raise
        self._checks = 0
        self._warned = ""
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Start to move the cursor. Call it after the stream knows the first offsets of its partitions."""
        self._thread = threading.Thread(target=self._run, name="direct-cursor", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Release the cursor, so that its next user need not wait. Drop it if the stream could not begin."""
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
        if self._checks and spans == self._spans and self._checks < CHECKS_MAX:
            self._checks += 1
            return
        try:
            partitions = partitions_of(self._intake.describe())
            places = places_of(spans, partitions)
            self._cursor.move(places, partitions.keys() - places.keys())
        except UnreachableError as error:
            if str(error) != self._warned:
                log.warning("the stream's cursor does not move while the intake's driver is unavailable: %s", error)
            self._warned = str(error)
            return
        self._spans, self._checks, self._warned = spans, 1, ""
