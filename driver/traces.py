"""Traces of batches at the driver: from the allocation of a batch until it is completed.

A batch's trace has the root span ``batch`` with links to the traces of its blocks, and the steps ``queue`` (until its job begins)
and ``job`` (each attempt at each output). A block's trace gets the step ``wait``: from its acceptance until its batch.

The decision loop and the threads of jobs only put what happened into a bounded queue. A thread of its own makes the spans.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from driver.journal import events as ev
from driver.listeners.events import BatchFailed, BatchStarted, Happened
from forebay.process.clock import Clock

if TYPE_CHECKING:
    from forebay.traces.spans import Spans

log = logging.getLogger(__name__)

#: groups of events that wait; more are dropped
QUEUE_MAX = 1_000
#: blocks and batches that are remembered until they are allocated or completed; the oldest make room
BLOCKS_MAX, BATCHES_MAX = 100_000, 1_000
#: blocks of a batch that get a span
BLOCKS_SHOWN = 1_000
#: maximum time for which a driver that stops waits for a place in the queue, and until the spans of the queue are made
PUT_SECONDS, JOIN_SECONDS = 1.0, 5.0

_Noted = ev.BlockAdded | ev.BatchAllocated | ev.BatchCompleted | BatchStarted | BatchFailed


@dataclass(slots=True)
class _Batch:
    allocated_ns: int
    blocks: tuple[str, ...]
    records: int = 0
    attempts: int = 0
    running: dict[str, tuple[int, int]] = field(default_factory=dict)  # output → attempt, when it began


class BatchTraces:
    """Makes spans from events of the journal and of jobs. ``note`` and ``tell`` may be called in any thread and never block."""

    def __init__(self, spans: Spans, clock: Clock) -> None:
        self._spans = spans
        self._clock = clock
        self._queue: queue.Queue[tuple[int, Sequence[_Noted]] | None] = queue.Queue(QUEUE_MAX)
        self._dropped = self._failed = False
        self._accepted: OrderedDict[str, tuple[int, int]] = OrderedDict()  # block id → when, records
        self._batches: OrderedDict[int, _Batch] = OrderedDict()
        self._thread = threading.Thread(target=self._run, name="traces", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Make the spans of what is queued, send them, and end. Waits for a bounded time, as the driver still holds its lease."""
        with contextlib.suppress(queue.Full):
            self._queue.put(None, timeout=PUT_SECONDS)
        self._thread.join(JOIN_SECONDS)
        self._spans.close()

    def note(self, events: Sequence[ev.Event]) -> None:
        """Note events of the journal that have become durable."""
        self._put([e for e in events if isinstance(e, (ev.BlockAdded, ev.BatchAllocated, ev.BatchCompleted))])

    def tell(self, happened: Sequence[Happened]) -> None:
        """Note what happened to jobs. Replays are not traced."""
        self._put([e for e in happened if isinstance(e, (BatchStarted, BatchFailed)) and not e.replay])

    def _put(self, noted: Sequence[_Noted]) -> None:
        if not noted:
            return
        try:
            self._queue.put_nowait((self._clock.wall_ms() * 1_000_000, noted))
        except queue.Full:
            if not self._dropped:
                log.warning("the queue of traces is full: some blocks and batches have no trace")
            self._dropped = True

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            now_ns, noted = item
            for event in noted:
                try:
                    self._trace(event, now_ns)
                except Exception:
                    if not self._failed:
                        log.exception("cannot make a span: some blocks and batches have no trace")
                    self._failed = True

    def _trace(self, event: _Noted, now_ns: int) -> None:
        match event:
            case ev.BlockAdded():
                self._accepted[event.block.id] = (now_ns, event.block.meta.records)
                if len(self._accepted) > BLOCKS_MAX:
                    self._accepted.popitem(last=False)
            case ev.BatchAllocated():
                self._allocated(event, now_ns)
            case BatchStarted():
                self._started(event, now_ns)
            case BatchFailed():
                self._ended(event.batch_id, event.output, now_ns, event.detail)
            case ev.BatchCompleted():
                self._completed(event, now_ns)

    def _allocated(self, event: ev.BatchAllocated, now_ns: int) -> None:
        blocks = tuple(block_id for task in event.tasks for block_id in task)
        batch = self._batches[event.batch_id] = _Batch(now_ns, blocks)
        if len(self._batches) > BATCHES_MAX:
            self._batches.popitem(last=False)
        for number, block_id in enumerate(blocks):
            accepted_ns, records = self._accepted.pop(block_id, (0, 0))
            batch.records += records
            if accepted_ns and number < BLOCKS_SHOWN:
                attributes = {"forebay.batch": str(event.batch_id)}
                self._spans.child(
                    "block", block_id, "wait", begun_ns=accepted_ns, ended_ns=now_ns, attributes=attributes
                )

    def _started(self, event: BatchStarted, now_ns: int) -> None:
        batch = self._batches.get(event.batch_id)
        if batch is None:  # of an earlier driver
            return
        name = str(event.batch_id)
        if not batch.attempts:
            self._spans.child("batch", name, "queue", begun_ns=batch.allocated_ns, ended_ns=now_ns)
        for output in tuple(batch.running):  # an output that succeeded before this one began
            self._ended(event.batch_id, output, now_ns)
        batch.attempts += 1
        batch.running[event.output] = (event.attempt, now_ns)

    def _ended(self, batch_id: int, output: str, now_ns: int, error: str = "") -> None:
        batch = self._batches.get(batch_id)
        attempt = batch.running.pop(output, None) if batch is not None else None
        if attempt is None:
            return
        attributes = {"forebay.output": output, "forebay.attempt": attempt[0]}
        self._spans.child(
            "batch", str(batch_id), "job", begun_ns=attempt[1], ended_ns=now_ns, attributes=attributes, error=error
        )

    def _completed(self, event: ev.BatchCompleted, now_ns: int) -> None:
        batch = self._batches.get(event.batch_id)
        if batch is None:
            return
        for output in tuple(batch.running):
            self._ended(event.batch_id, output, now_ns)
        del self._batches[event.batch_id]
        attributes = {
            "forebay.batch": str(event.batch_id),
            "forebay.blocks": len(batch.blocks),
            "forebay.records": batch.records,
            "forebay.attempts": event.attempts,
        }
        linked = [("block", block_id) for block_id in batch.blocks]
        self._spans.root(
            "batch",
            str(event.batch_id),
            begun_ns=batch.allocated_ns,
            ended_ns=now_ns,
            attributes=attributes,
            linked=linked,
        )
