"""Jobs that get the batches of several streams together (joint batches), in a process that runs the drivers of all.

The stream that leads runs the job. The others follow: the job of a follower's batch only offers it to the leader, and waits until
the leader has journalled the end of its own. ``driver.decisions.joint_batches`` says why this is safe at any end of the process.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from types import MappingProxyType
from typing import cast

from driver.batches.job.batch import Batch
from driver.batches.job.dead_letters import confirm_dead_letters
from driver.batches.job.engine import NamedJob
from driver.batches.job.work import BatchWork
from driver.batches.joint.streams import JointStreams, Offer, Port
from driver.batches.tasks.reading import unreadable
from driver.decisions.joint_batches import Fate, JointNeeds, fate_of, joint_needs, named_by
from driver.journal.events import BatchAllocated, BatchCompleted, BatchSkipped, Event
from driver.journal.state import State
from driver.listeners.events import BatchFailed, Happened
from driver.tracker.requests import AllocateJoint, NextAllocated, Read
from forebay.model.errors import PartnerSkippedError, RunAgainError, UnreadableBlockError, UsageError
from forebay.process.logs import fields

log = logging.getLogger(__name__)

#: time after which a stream that waits for another one asks it again; the first time, the wait is logged
NOTE_SECONDS = 10.0

#: a job that gets stream → batch
JointJob = Callable[[Mapping[str, Batch]], None]

_WAY_OUT = "run these streams together as before until it is completed, or skip it with `forebay batch skip`"

_NONE_MADE = NextAllocated(None, left=True)


class ReadNeeds(Read[JointNeeds]):
    """Reads what a stream needs of the next joint batch. The arguments are those of :func:`joint_needs`."""

    __slots__ = ("_leader", "_named")

    def __init__(self, leader: str, named: int = 0) -> None:
        self._leader = leader
        self._named = named

    def read(self, state: State) -> JointNeeds:
        return joint_needs(state, self._leader, self._named)


class ReadNamed(Read[dict[str, int]]):
    """Reads each follower's batch in the leader's newest joint batch."""

    __slots__ = ()

    def read(self, state: State) -> dict[str, int]:
        return dict(named_by(state))


class ReadFate(Read[Fate]):
    """Reads from the leader what becomes of a follower's batch."""

    __slots__ = ("_batch_id", "_follower")

    def __init__(self, follower: str, batch_id: int) -> None:
        self._follower = follower
        self._batch_id = batch_id

    def read(self, state: State) -> Fate:
        return fate_of(state, self._follower, self._batch_id)


class ReadIsUnfinished(Read[bool]):
    """Reads whether a batch is there and not completed."""

    __slots__ = ("_batch_id",)

    def __init__(self, batch_id: int) -> None:
        self._batch_id = batch_id

    def read(self, state: State) -> bool:
        batch = state.batches.get(self._batch_id)
        return batch is not None and batch.completed_ms is None


class JointMember(ABC):
    """One stream's part in a joint job, for the parts of its driver."""

    #: whether this stream runs the job
    leads: bool

    def __init__(self, streams: JointStreams, stream: str) -> None:
        self._streams = streams
        self._stream = stream
        self._port: Port | None = None

    @property
    def is_over(self) -> bool:
        """Whether a stream of the job has failed for good."""
        return self._streams.over.is_set()

    @property
    def others(self) -> tuple[str, ...]:
        """The other streams of the job."""
        streams = self._streams
        return tuple(stream for stream in (streams.leader, *streams.followers) if stream != self._stream)

    def attach(self, port: Port) -> None:
        """Take part from now on, until :meth:`detach`."""
        self._port = port
        self._streams.attach(self._stream, port)

    def detach(self) -> None:
        """Take part no longer. May be repeated."""
        self._streams.detach(self._stream)

    def wake(self) -> None:
        """End the waits of this stream's threads for the others."""
        self._streams.wake()

    def request_batch(self, time_ms: int) -> None:
        """Have the leader make a joint batch, if blocks wait in a stream."""
        leader = self._streams.port(self._streams.leader)
        if leader is not None:
            leader.end_interval(time_ms)

    @property
    def held_up(self) -> str:
        """Why the leader can complete no batch; "" if it can."""
        leader = self._streams.port(self._streams.leader)
        return leader.held_up() if leader is not None and not self.leads else ""

    def drain(self, busy: bool) -> bool:
        """Note whether this stream, which drains, has something left. Return whether another one that drains has."""
        return self._streams.drain(self._stream, busy)

    def catch_up(self) -> None:
        """Note that this stream is caught up. The last one drains all."""
        if self._streams.catch_up(self._stream):
            self._streams.stop([self._streams.leader], True, None)

    def fail(self) -> None:
        """Stop the other streams, because this one has failed for good."""
        self._streams.fail(self._stream)

    def stopped_by(self, stop: Callable[[bool, float | None], None]) -> None:
        """Set how this stream's driver is stopped, and stop it if another stream has failed for good meanwhile."""
        self._streams.stops[self._stream] = stop
        if self.is_over:  # set before it stops the others
            stop(False, None)

    def begin_again(self) -> None:
        """Forget that a stream has failed: all are started again."""
        self._streams.over.clear()

    def stop_others(self, drain: bool, timeout_seconds: float | None) -> None:
        """Stop the followers, because the leader's driver was asked to stop."""
        if self.leads:
            self._streams.stop(self._streams.followers, drain, timeout_seconds)

    def tell(self, happened: Sequence[Happened]) -> None:
        """Process events for listeners, in the thread that runs the batch."""
        if self.leads and any(isinstance(event, BatchFailed) for event in happened):
            self._streams.give_back()

    @abstractmethod
    def jobs(self, named: Sequence[NamedJob]) -> tuple[NamedJob, ...]:
        """Return the jobs that this stream's driver runs. ``named``: those of the user."""

    @abstractmethod
    def note(self, events: Sequence[Event]) -> None:
        """Process events that have become durable. Called in the decision loop."""

    @abstractmethod
    def check(self, work: BatchWork) -> None:
        """Raise UsageError if the batch can't run as part of this joint job."""


class JointFollower(JointMember):
    """The part of a stream whose batches another stream's job gets."""

    leads = False

    def jobs(self, named: Sequence[NamedJob]) -> tuple[NamedJob, ...]:
        if named:
            raise UsageError(
                f"stream {self._stream!r} has a job of its own, and its batches are for the job of stream "
                f"{self._streams.leader!r}: remove one of the two"
            )
        return (NamedJob(f"joint with {self._streams.leader}", self._follow),)

    def note(self, events: Sequence[Event]) -> None:
        if any(isinstance(event, BatchAllocated) for event in events) and self._port is not None:
            self._port.wake()
        if any(isinstance(event, BatchCompleted | BatchSkipped) for event in events):
            self.wake()

    def check(self, work: BatchWork) -> None:
        if work.joint is not None and work.joint.leader != self._streams.leader:
            raise UsageError(f"batch {work.batch_id} is for the job of stream {work.joint.leader!r}; {_WAY_OUT}")

    def _follow(self, batch: Batch) -> None:
        """Offer the batch, and return when the leader has journalled the completion of the joint batch.

        Raises PartnerSkippedError if it was skipped, UnreadableBlockError if the job could not read this batch, RunAgainError if
        this stream stops before.
        """
        streams, offer = self._streams, Offer(batch)
        with streams.offered(self._stream, offer):
            while True:
                seen = streams.changes
                fate = offer.fate
                if not offer.used_by:
                    fate = fate or streams.ask(streams.leader, ReadFate(self._stream, batch.id))
                if fate is not None and fate.ended:
                    break
                if offer.error is not None:
                    raise offer.error
                if self._port is None or (self._port.stopping() and not offer.used_by):
                    raise RunAgainError(
                        f"batch {batch.id} waits for stream {streams.leader!r}, and runs with the next driver"
                    )
                streams.await_change(seen, NOTE_SECONDS)  # an answer that came too late changes nothing, so ask again
        if fate.skipped:
            raise PartnerSkippedError(f"the joint batch of stream {streams.leader!r} is skipped", fate.skipped)
        if offer.fate is None:
            log.info(
                "batch %d ends without its job: an earlier driver of stream %s has completed the joint batch",
                batch.id,
                streams.leader,
                extra=fields(stream=self._stream, batch=batch.id),
            )


class JointLeader(JointMember):
    """The part of the stream that runs the job. ``empty``: whether an interval without records gives a joint batch too."""

    leads = True

    def __init__(self, streams: JointStreams, stream: str, empty: bool = False) -> None:
        super().__init__(streams, stream)
        self.empty = empty

    def jobs(self, named: Sequence[NamedJob]) -> tuple[NamedJob, ...]:
        return tuple(NamedJob(one.name, partial(self._lead, cast(JointJob, one.function))) for one in named)

    def note(self, events: Sequence[Event]) -> None:
        for event in events:
            if isinstance(event, BatchCompleted):
                self._streams.end_batch(event.batch_id, Fate(True))
            elif isinstance(event, BatchSkipped) and not event.replay:
                self._streams.end_batch(event.batch_id, Fate(True, event.cause))

    def check(self, work: BatchWork) -> None:
        partners = work.joint.partners if work.joint is not None and work.joint.leader == self._stream else {}
        if set(partners) != set(self._streams.followers):
            with_whom = f"the batches of {', '.join(partners)}" if partners else "a job of its own"
            followers = ", ".join(self._streams.followers)
            raise UsageError(
                f"batch {work.batch_id} was made for {with_whom}, not for those of {followers}; {_WAY_OUT}"
            )
        if gone := self._gone(partners):
            raise UsageError(
                f"batch {work.batch_id} belongs to batch {partners[gone]} of stream {gone!r}, which is no longer there: it was "
                f"run alone, or its journal was rebuilt; {_WAY_OUT}"
            )

    def _gone(self, partners: Mapping[str, int]) -> str:
        """Return a follower whose batch is not unfinished any more; "" if there is none."""
        for stream, batch_id in partners.items():
            if self._streams.ask(stream, ReadIsUnfinished(batch_id)) is False:
                return stream
        return ""

    # ---- making of batches -------------------------------------------------------------------------------------------

    def allocate_next(self, time_ms: int | None) -> NextAllocated:
        """Make the next joint batch: first each follower's batch, then that of this stream, which names them."""
        streams, port = self._streams, self._port
        if port is None:
            return _NONE_MADE
        named = port.ask(ReadNamed())
        needs = {
            stream: streams.ask(stream, ReadNeeds(self._stream, named.get(stream, 0))) for stream in streams.followers
        }
        known = [need for need in (port.ask(ReadNeeds(self._stream)), *needs.values()) if need is not None]
        if len(known) <= len(needs) or not all(need.ready for need in known):
            return _NONE_MADE
        if not self.empty and not any(need.waits for need in known):
            return NextAllocated(None, left=False)
        # of an allocation that the end of a process interrupted
        time_ms = min((need.time_ms for need in known if need.time_ms is not None), default=time_ms)
        partners, left = dict[str, int](), False
        for stream in streams.followers:
            tasks = other.tasks() if (other := streams.port(stream)) is not None else 1
            made = streams.ask(stream, AllocateJoint(time_ms, tasks, self._stream, named=named.get(stream, 0)))
            if made is None or made.batch_id is None:
                return _NONE_MADE
            partners[stream], left = made.batch_id, left or made.left
        own = port.ask(AllocateJoint(time_ms, port.tasks(), self._stream, partners))
        return NextAllocated(own.batch_id, left or own.left)

    # ---- running of batches ------------------------------------------------------------------------------------------

    def await_partners(self, work: BatchWork, ends: Callable[[], bool]) -> bool:
        """Wait until the followers offer their batches. Return False if ``ends`` returns true before; :meth:`wake` follows each
        change of what it returns. A batch that can't run is not waited for: its attempt fails with the reason."""
        streams, port = self._streams, self._port
        partners = work.joint.partners if work.joint is not None else {}
        noted = False
        while True:
            seen = streams.changes
            if port is None or ends():
                return False
            missing = streams.missing(partners)
            if not missing or set(partners) != set(streams.followers) or self._gone(partners):
                return True
            if not streams.await_change(seen, NOTE_SECONDS) and not noted:
                noted = True
                log.warning(
                    "batch %d waits for the batches of %s: the driver of that stream is not running, or can't read its batch",
                    work.batch_id,
                    ", ".join(missing),
                    extra=fields(stream=self._stream, batch=work.batch_id),
                )

    def _lead(self, function: JointJob, batch: Batch) -> None:
        """Run the user's job with the batches of all streams. Raises what it raises; RunAgainError if a follower stops before, or
        has to read its batch again."""
        joint = batch._work.joint
        taken = self._streams.take(batch, joint.partners if joint is not None else {})
        if taken is None:
            raise RunAgainError(f"batch {batch.id} waits for the batches of the other streams")
        try:
            function(MappingProxyType({self._stream: batch, **taken}))
            for one in taken.values():
                confirm_dead_letters(one._work)
        except BaseException as error:
            lost = _unreadable(error, batch, taken)
            self._streams.give_back(lost)
            if lost:
                message = f"batch {batch.id} runs again when stream {', '.join(lost)} can read its batch"
                raise RunAgainError(message) from None
            raise


def refuse_alone(work: BatchWork) -> None:
    """Raise UsageError if the batch is for a joint job. A driver that runs no joint job calls it."""
    if work.joint is not None:
        raise UsageError(f"batch {work.batch_id} is for the joint job of stream {work.joint.leader!r}; {_WAY_OUT}")


def _unreadable(error: BaseException, leading: Batch, taken: Mapping[str, Batch]) -> dict[str, UnreadableBlockError]:
    """Return the follower whose batch could not be read, with the cause; {} if the error is another one."""
    cause = unreadable(error)
    if cause is None or _holds(leading, cause):
        return {}
    return {stream: cause for stream, batch in taken.items() if _holds(batch, cause)}


def _holds(batch: Batch, cause: UnreadableBlockError) -> bool:
    """Whether the block that ``cause`` names is one of the batch."""
    message, work = str(cause), batch._work
    references = chain.from_iterable(task for one in (*work.past, work) for task in one.tasks)
    return any(
        f"block {reference.id} " in message
        and all(range_.label in message for range_ in reference.ranges if range_.label not in work.lost)
        for reference in references
    )
