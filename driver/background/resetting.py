"""``offsets reset``: a person lets partitions begin a new life at offsets of their choice.

A life ends only when no writer can sync a block under a token of it any more (docs/ARCHITECTURE.md, *When a gap may be
decided*): what its receiver had taken in is accepted first, and what it writes afterwards is of the new life. So the partitions
are held for a while: nobody is granted a claim, and their receivers are told to claim again. That they are held is no part of
the journal: a driver that dies meanwhile has changed nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from driver.background.upstream import Upstream
from driver.journal.events import IncarnationStart
from driver.tracker.requests import Ask, HoldForReset, LetGo, Request, Reset
from forebay.messages import PlannedReset, ResetAnswer, ResetRequest
from forebay.model.errors import RefusedError, UnreachableError, UsageError
from forebay.model.values import TopicPartition

#: between two looks whether all writers are settled
LOOK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Resetting:
    """``ask``: the deciding thread's answer. ``wait_seconds``: so long receivers may take to settle."""

    ask: Callable[[Request], Any]
    admin: Upstream
    group: str
    stopping: threading.Event
    wait_seconds: float

    def run(self, request: ResetRequest) -> ResetAnswer:
        """What would be done, or was. Raises RefusedError, UsageError, UnreachableError: nothing was changed."""
        partitions = self._named(request)
        if not request.apply:
            return self._planned(request, self._starts(request, partitions))
        try:
            waited = 0.0
            while words := self.ask(HoldForReset(partitions)):
                if waited >= self.wait_seconds or self.stopping.wait(LOOK_SECONDS):
                    raise RefusedError(f"nothing was changed: {words}", "not-settled")
                waited += LOOK_SECONDS
            starts = self._starts(request, partitions)  # only now: what was on its way has moved positions meanwhile
            answer = self._planned(request, starts)
            self.ask(Reset(tuple(starts.values()), f"reset to {_words(request)}", request.cause))
            return answer
        finally:
            self.ask(LetGo(partitions))

    def _named(self, request: ResetRequest) -> tuple[TopicPartition, ...]:
        known: set[TopicPartition] = self.ask(Ask(lambda s: {p.tp for p in s.partitions.values()}))
        named = {tp for tp in known if tp.topic == request.topic and request.partition in (-1, tp.partition)}
        if not named:
            wanted = request.topic if request.partition < 0 else f"{request.topic}/{request.partition}"
            raise UsageError(f"{wanted} is no partition of this stream; known are {', '.join(map(str, sorted(known)))}")
        return tuple(sorted(named))

    def _starts(
        self, request: ResetRequest, partitions: tuple[TopicPartition, ...]
    ) -> Mapping[TopicPartition, IncarnationStart]:
        topic = request.topic
        topic_id = self.admin.topic_ids([topic])[topic]
        offsets = self.admin.starting_offsets(_policy(request, partitions), partitions, self.group)
        if self.admin.topic_ids([topic])[topic] != topic_id:
            raise UnreachableError(f"topic {topic} changed while it was looked at: ask again")
        return {tp: IncarnationStart(tp.topic, tp.partition, offsets[tp], topic_id) for tp in partitions}

    def _planned(self, request: ResetRequest, starts: Mapping[TopicPartition, IncarnationStart]) -> ResetAnswer:
        at = self.ask(Ask(lambda s: {p.tp: (p.incarnation.number, p.position) for p in s.partitions.values()}))
        return ResetAnswer(
            done=request.apply,
            partitions=tuple(
                PlannedReset(
                    topic=tp.topic,
                    partition=tp.partition,
                    incarnation=at[tp][0] + 1,
                    position=at[tp][1],
                    start=start.start,
                )
                for tp, start in starts.items()
            ),
        )


def _policy(request: ResetRequest, partitions: tuple[TopicPartition, ...]) -> str | Mapping[str, int]:
    """As ``kafka.starting_offsets`` would have it."""
    if request.to in ("earliest", "latest"):
        return request.to
    if request.to == "time" and request.value > 0:
        return {"timestamp": request.value}
    if request.to == "offset" and request.value >= 0:
        if len(partitions) != 1:
            raise UsageError(f"an offset is of one partition, and {request.topic} has {len(partitions)}: name one")
        return {str(partitions[0]): request.value}
    raise UsageError(f"reset to {request.to!r} ({request.value}): allowed are earliest, latest, a time and an offset")


def _words(request: ResetRequest) -> str:
    return request.to if request.to in ("earliest", "latest") else f"{request.to} {request.value}"
