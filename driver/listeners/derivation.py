"""Derives the events for listeners from events of the journal and from heartbeats. Decision logic, without I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import msgspec

from driver.journal import events as ev
from driver.listeners.events import (
    BatchSkipped,
    BatchSubmitted,
    BlockAdded,
    GapFound,
    Happened,
    PauseChanged,
    RateChanged,
    ReceiverError,
    ReceiverFailed,
    ReceiverResumed,
    ReceiverStarted,
    ReceiverStopped,
)
from forebay.kafka.consume.planning import sizes
from forebay.kafka.consume.spans import OffsetRange

#: returns how many records an unfinished batch has; None: unknown
RecordsOf: TypeAlias = Callable[[int], int | None]


def unknown_records(_: int) -> int | None:
    """Return None: the records of no batch are known."""
    return None


def happened_in(event: ev.Event, now_ms: int, records_of: RecordsOf = unknown_records) -> list[Happened]:
    """Return the events for listeners that follow from an event of the journal. The thread that runs a batch tells the others:
    that it starts, fails and is completed."""
    if isinstance(event, ev.BlockAdded):
        meta = event.block.meta
        labels = tuple(range_.label for range_ in meta.ranges)
        return [
            BlockAdded(
                time_ms=now_ms, block_id=meta.id, receiver_id=meta.receiver_id, records=meta.records, ranges=labels
            )
        ]
    if isinstance(event, ev.ReceiverRegistered):
        return [ReceiverStarted(time_ms=now_ms, receiver_id=event.receiver_id, host=event.host, epoch=event.epoch)]
    if isinstance(event, ev.ReceiverFenced):
        detail = "an operator reported that its host no longer exists"
        return [
            ReceiverFailed(time_ms=now_ms, receiver_id=event.receiver_id, host="", epoch=event.epoch, detail=detail)
        ]
    if isinstance(event, ev.BatchAllocated):
        return [_submitted(event, now_ms, records_of(event.batch_id))]
    if isinstance(event, ev.SpansAllocated):
        return [_submitted(event, now_ms, sizes(event.spans))]
    if isinstance(event, ev.SpansSkipped):
        return [_skipped(span, event.cause, now_ms) for span in event.spans]
    if isinstance(event, ev.ReplayBegun):
        return [_submitted(batch, now_ms, replay=event.replay) for batch in event.batches]
    if isinstance(event, ev.BatchSkipped):
        return [
            BatchSkipped(
                time_ms=now_ms,
                batch_id=event.batch_id,
                attempts=event.attempts,
                cause=event.cause,
                replay=event.replay,
            )
        ]
    if isinstance(event, ev.PauseChanged):
        return [PauseChanged(time_ms=now_ms, paused=event.paused, cause=event.cause)]
    if isinstance(event, ev.RateLearned):
        return [RateChanged(time_ms=now_ms, records_per_second=event.rate)]
    if isinstance(event, ev.GapRecorded):
        return [
            GapFound(
                time_ms=now_ms,
                topic=event.topic,
                partition=event.partition,
                from_offset=event.gap.from_offset,
                until_offset=event.gap.until_offset,
                recorded=True,
                detail=event.gap.cause,
            )
        ]
    if isinstance(event, ev.FaultRecorded):
        return [
            GapFound(
                time_ms=now_ms,
                topic=event.topic,
                partition=event.partition,
                from_offset=event.position,
                until_offset=event.accept_until,
                recorded=False,
                detail=event.kind,
                new_incarnation=event.new_incarnation,
            )
        ]
    return []


def _skipped(span: OffsetRange, cause: str, now_ms: int) -> GapFound:
    return GapFound(
        time_ms=now_ms,
        topic=span.topic,
        partition=span.partition,
        from_offset=span.from_offset,
        until_offset=span.until_offset,
        recorded=True,
        detail=cause,
    )


def _submitted(
    batch: ev.BatchAllocated | ev.SpansAllocated | ev.ReplayedBatch,
    now_ms: int,
    records: int | None = None,
    replay: int = 0,
) -> BatchSubmitted:
    return BatchSubmitted(
        time_ms=now_ms,
        batch_id=batch.batch_id,
        number=batch.number,
        blocks=0 if isinstance(batch, ev.SpansAllocated) else sum(map(len, batch.tasks)),
        replay=replay,
        batch_time_ms=batch.time_ms,
        records=records,
    )


class SeenReceiver(msgspec.Struct, frozen=True):
    """A receiver as its last heartbeat shows it. ``state``: as ``TrackedReceiver.state``."""

    receiver_id: str
    host: str
    epoch: int
    state: str
    detail: str = ""

    @property
    def is_held_up(self) -> bool:
        """Whether the receiver takes in nothing and says why."""
        return self.state == "waiting" and bool(self.detail)


def receiver_events(before: Mapping[str, SeenReceiver], now: Mapping[str, SeenReceiver], now_ms: int) -> list[Happened]:
    """Return the events that follow from the states of receivers in the observations ``before`` and ``now``."""
    return [*ended(before, now, now_ms), *held_up(before, now, now_ms)]


def ended(before: Mapping[str, SeenReceiver], now: Mapping[str, SeenReceiver], now_ms: int) -> list[Happened]:
    """Return an event for each receiver that stopped sending heartbeats between the observations ``before`` and ``now``.

    A receiver whose last heartbeat said that it drains has stopped; any other has failed.
    """
    found: list[Happened] = []
    for receiver_id, receiver in sorted(now.items()):
        last = before.get(receiver_id)
        if receiver.state != "lost" or last is None or last.epoch != receiver.epoch or last.state == "lost":
            continue
        if last.state == "draining":
            found.append(ReceiverStopped(time_ms=now_ms, **_named(receiver)))
        else:
            detail = f"no heartbeats; last state {last.state}" + (f": {last.detail}" if last.detail else "")
            found.append(ReceiverFailed(time_ms=now_ms, **_named(receiver), detail=detail))
    return found


def held_up(before: Mapping[str, SeenReceiver], now: Mapping[str, SeenReceiver], now_ms: int) -> list[Happened]:
    """Return an event for each receiver that began to wait and says what for, or that is active again after that."""
    found: list[Happened] = []
    for receiver_id, receiver in sorted(now.items()):
        last = before.get(receiver_id)
        was_held_up = last is not None and last.epoch == receiver.epoch and last.is_held_up
        if receiver.is_held_up and not was_held_up:
            found.append(ReceiverError(time_ms=now_ms, **_named(receiver), detail=receiver.detail))
        elif receiver.state == "active" and was_held_up:
            found.append(ReceiverResumed(time_ms=now_ms, **_named(receiver)))
    return found


def _named(receiver: SeenReceiver) -> dict[str, Any]:
    return {"receiver_id": receiver.receiver_id, "host": receiver.host, "epoch": receiver.epoch}
