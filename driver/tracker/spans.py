"""Spans: the partitions and the batches of a direct stream, which reads exact offsets of Kafka."""

from __future__ import annotations

from driver.journal import events as ev
from driver.tracker.decision import Recorder
from driver.tracker.requests import AllocateSpans, BeginSpans, EndSpans, NameCursor, SkipSpans, said_by


class Spans:
    """Begins, allocates and ends the spans of a direct stream. ``max_queued``: as in :class:`driver.tracker.batches.Batches`."""

    def __init__(self, *, recorder: Recorder, max_queued: int) -> None:
        self._recorder = recorder
        self._max_queued = max_queued

    def begin(self, request: BeginSpans) -> None:
        """Begin partitions of a direct stream."""
        self._recorder.apply(
            ev.SpansBegun(dict(request.offsets), dict(request.topic_ids), request.time_ms, request.cause)
        )

    def end(self, request: EndSpans) -> None:
        """End partitions of a direct stream. The partitions in ``again`` begin a new incarnation."""
        cause = said_by(request.cause)
        self._recorder.apply(ev.SpansEnded(request.partitions, request.time_ms, cause))
        if request.again:
            self._recorder.apply(ev.SpansBegun(dict(request.again), dict(request.topic_ids), request.time_ms, cause))

    def skip(self, request: SkipSpans) -> None:
        """Journal that a direct stream continues without spans that Kafka lost."""
        self._recorder.apply(ev.SpansSkipped(request.spans, request.time_ms, said_by(request.cause)))

    def allocate(self, request: AllocateSpans) -> int | None:
        """Make a direct stream's next batch. Return its id; None while too many batches are queued."""
        state = self._recorder.state
        if state.batch_count - state.completed_number >= self._max_queued:
            return None
        batch_id = state.next_batch_id()
        self._recorder.apply(ev.SpansAllocated(batch_id, state.batch_count + 1, request.time_ms, request.spans))
        return batch_id

    def name_cursor(self, request: NameCursor) -> str:
        """Return the name of a direct stream's cursor in an intake; ``request.name`` if it has none yet."""
        state = self._recorder.state
        if state.cursor:
            return state.cursor
        self._recorder.apply(ev.CursorNamed(request.name, request.time_ms))
        return request.name
