"""``forebay offsets reset``: begins a new incarnation of partitions at offsets that an operator chooses.

An incarnation ends only when no writer can sync a block under one of its tokens any more (``docs/architecture/ownership.md``).
The driver first accepts the records that the receiver has already taken in. Records that the receiver writes later belong to
the new incarnation. So the partitions are held for a while: no receiver gets a claim, and their owners are ordered to claim
again. The hold is not journalled: a driver that ends meanwhile has changed nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass

from driver.journal.events import IncarnationStart
from driver.tracker.reads import ReadOffsets
from driver.tracker.requests import Ask, EndHold, HoldForReset, Reset
from forebay.messages import PlannedReset, ResetAnswer, ResetRequest
from forebay.model.errors import RefusedError, UnreachableError, UsageError
from forebay.model.values import TopicPartition
from forebay.sources.kind import Upstream

#: pause between two checks whether all writers are settled
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Resetting:
    """Runs resets. ``ask``: sends a request to the decision loop. ``wait_seconds``: maximum time that the writers may take to
    settle."""

    ask: Ask
    admin: Upstream
    group: str
    stopping: threading.Event
    wait_seconds: float

    def run(self, request: ResetRequest) -> ResetAnswer:
        """Return what was done, or in a dry run what would be done.

        Raises RefusedError, UsageError, UnreachableError; then nothing was changed.
        """
        partitions = self._named(request)
        if not request.apply:
            return self._planned(request, self._starts(request, partitions))
        try:
            waited = 0.0
            while reason := self.ask(HoldForReset(partitions)):
                if waited >= self.wait_seconds or self.stopping.wait(LOOK_SECONDS):
                    raise RefusedError(f"nothing was changed: {reason}", "not-settled")
                waited += LOOK_SECONDS
            starts = self._starts(request, partitions)  # only now: reports that were under way have moved the positions
            answer = self._planned(request, starts)
            self.ask(Reset(tuple(starts.values()), f"reset to {_requested(request)}", request.cause))
            return answer
        finally:
            self.ask(EndHold(partitions))

    def _named(self, request: ResetRequest) -> tuple[TopicPartition, ...]:
        known = self.ask(ReadOffsets()).partitions.keys()
        named = {tp for tp in known if tp.topic == request.topic and request.partition in (-1, tp.partition)}
        if not named:
            wanted = request.topic if request.partition < 0 else f"{request.topic}/{request.partition}"
            raise UsageError(f"the stream has no partition {wanted}; it has {', '.join(map(str, sorted(known)))}")
        return tuple(sorted(named))

    def _starts(
        self, request: ResetRequest, partitions: tuple[TopicPartition, ...]
    ) -> Mapping[TopicPartition, IncarnationStart]:
        topic = request.topic
        topic_id = self.admin.listed_topic_ids([topic])[topic]
        offsets = self.admin.starting_offsets(_policy(request, partitions), partitions, self.group)
        if self.admin.listed_topic_ids([topic])[topic] != topic_id:
            raise UnreachableError(f"topic {topic} changed during the reset; try again")
        return {tp: IncarnationStart(tp.topic, tp.partition, offsets[tp], topic_id) for tp in partitions}

    def _planned(self, request: ResetRequest, starts: Mapping[TopicPartition, IncarnationStart]) -> ResetAnswer:
        at = self.ask(ReadOffsets()).partitions
        return ResetAnswer(
            done=request.apply,
            partitions=tuple(
                PlannedReset(
                    topic=tp.topic,
                    partition=tp.partition,
                    incarnation=at[tp].incarnation + 1,
                    position=at[tp].position,
                    start=start.start,
                )
                for tp, start in starts.items()
            ),
        )


def _policy(request: ResetRequest, partitions: tuple[TopicPartition, ...]) -> str | Mapping[str, int]:
    """Return the requested offsets in the form of ``kafka.starting_offsets``."""
    if request.to in ("earliest", "latest"):
        return request.to
    if request.to == "time" and request.value > 0:
        return {"timestamp": request.value}
    if request.to == "offset" and request.value >= 0:
        if len(partitions) != 1:
            raise UsageError(f"an offset applies to one partition, and {request.topic} has {len(partitions)}; name one")
        return {str(partitions[0]): request.value}
    raise UsageError(
        f"cannot reset to {request.to!r} ({request.value}); allowed are earliest, latest, a time and an offset"
    )


def _requested(request: ResetRequest) -> str:
    return request.to if request.to in ("earliest", "latest") else f"{request.to} {request.value}"
