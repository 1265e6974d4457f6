"""A direct stream's checkpoint: led by the stream that runs on it, or by a person's decision while none does."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from direct.intake import COMMITTED, IntakeAccess, KeptByIntake, Through
from direct.losses import (
    NOTHING,
    Held,
    Loss,
    accept,
    lacking,
    look,
    lost_of,
    of_positions,
    of_state,
    partitions_of,
    positions,
    topic_ids,
)
from direct.parameters import checked_options
from driver.decision_loop.loop import DriverLoop
from driver.decision_loop.rewinding import begin_replay
from driver.decisions.replay import Horizon, ReplayPlan, RewindTo, needed, plan
from driver.http.lag import lag
from driver.journal import history, opening
from driver.journal import reading as journal
from driver.journal.lease import Lease, LeaseKeeper, is_gone, read_lease, wait_until_stale
from driver.journal.state import State
from driver.tracker import Tracker, TrackerOptions
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.spans import Span
from forebay.messages import OperatorAnswer, PartitionProgress, ReplayRequest
from forebay.model.errors import UsageError
from forebay.model.values import TopicPartition, check_name
from forebay.process.clock import Clock, SystemClock
from recovery import audit
from wal.decisions.retention import Limits
from wal.storage import Storage, open_storage

LEASE_SECONDS = 10.0
_LOOKS = 20


@dataclass(frozen=True, slots=True)
class Led:
    """Whoever has this decides; ``failed`` is told when that ends."""

    epoch: int
    state: State
    loop: DriverLoop
    lease: LeaseKeeper


@contextlib.contextmanager
def leading(
    storage: Storage,
    name: str,
    max_queued_batches: int,
    clock: Clock,
    failed: Callable[[BaseException], None],
) -> Iterator[Led]:
    """Leads the checkpoint, which fences whoever led it, until the end. Raises UsageError if it is an intake's; FencedError,
    StoreError, CorruptionError, NewerVersionError."""
    owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    with contextlib.ExitStack() as closing:
        opened, state = opening.lead(
            storage,
            name,
            owner,
            clock.wall_ms(),
            lambda: clock.wall_ms() / 1000,
            lambda: secrets.randbits(64),
        )
        closing.callback(opened.close)
        refuse_intake(storage.url, state)
        lease = LeaseKeeper(
            storage, name, opened.epoch, owner=owner, url="", duration_seconds=LEASE_SECONDS, superseded=failed
        )
        lease.follow(lambda: opened.confirmed)
        lease.start()
        closing.callback(lease.stop)
        tracker = Tracker(
            state,
            opened.epoch,
            TrackerOptions(on_gap="stop", max_queued_batches=max_queued_batches, retention=Limits(0)),
        )
        loop = DriverLoop(tracker, opened, clock, perform=lambda _: None, failed=failed)
        loop.start()
        closing.callback(loop.stop)
        yield Led(opened.epoch, state, loop, lease)


def refuse_intake(url: str, state: State) -> None:
    """Raises UsageError."""
    if (state.partitions or state.blocks) and not state.is_direct:
        raise UsageError(
            f"{url} holds the journal of an intake named {state.stream!r}: give the direct stream a name or a checkpoint of "
            "its own"
        )


class Checkpoint:
    """What the checkpoint at ``url`` says of the direct stream ``name``, and what a person decides about it.

    Looking fences nobody, and the stream may run. To decide it must have stopped: whoever decides leads the checkpoint.
    ``kafka_params`` and ``tracker``: as of the stream, for what needs Kafka or the intake.
    """

    def __init__(
        self,
        url: str,
        name: str,
        kafka_params: Mapping[str, object] | None = None,
        storage: Mapping[str, Mapping[str, Any]] | None = None,
        timeout_seconds: float = 20.0,
        tracker: IntakeAccess | str | None = None,
    ) -> None:
        try:
            check_name("stream", name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self.name = name
        self._params = kafka_params
        self._timeout = timeout_seconds
        self._through = Through.of(tracker)
        self._clock = SystemClock()
        self.storage = open_storage(url, {key: dict(own) for key, own in (storage or {}).items()})

    # ---- looking -----------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """As it is durable. Raises UsageError if there is none, or it is an intake's; CorruptionError, NewerVersionError,
        StoreError."""
        state = journal.read_beside_a_writer(self.storage, self.name).state
        if state is None:
            raise UsageError(
                f"{self.storage.url} holds no checkpoint of a direct stream named {self.name!r}: check both"
            )
        refuse_intake(self.storage.url, state)
        return state

    def lease(self) -> tuple[str, Lease | None]:
        """Whether a stream runs on it: ``running``, ``stopped`` (by itself), ``ended`` (its process is gone), or ``silent``: its
        lease was not renewed while it was watched, for as long as it lasts."""
        first = read_lease(self.storage, self.name)
        if first is None:
            return "stopped", None
        waiting = threading.Event()
        for _ in range(_LOOKS):
            if is_gone(first):
                return "ended", first
            waiting.wait(first.duration_seconds / _LOOKS)
            current = read_lease(self.storage, self.name)
            if current is None:
                return "stopped", None
            if (current.owner, current.beat) != (first.owner, first.beat):
                return "running", current
        return "silent", first

    def audit(self) -> audit.AuditReport:
        """The proof that each offset lies in exactly one batch, or why it does not (INV-2, INV-3). Raises as :meth:`state`."""
        self.state()
        return audit.audit(self.storage, self.name)

    def progress(self) -> tuple[PartitionProgress, ...]:
        """How far the partitions are that are still read. Raises as :meth:`state`."""
        state = self.state()
        return tuple(p for p in lag(state).partitions if f"{p.topic}/{p.partition}" in state.next_offsets)

    def kafka(self) -> KafkaAdmin:
        """To be closed. Raises UsageError if nothing says where Kafka is, and SettingsError."""
        if self._params is None:
            raise UsageError(
                "nothing says where Kafka is: name its brokers (--broker, or bootstrap.servers in kafka_params)"
            )
        options = checked_options(self._params).options
        return KafkaAdmin(options, timeout_seconds=self._timeout, client_id="forebay-checkpoint")

    def losses(self) -> list[Loss]:
        """What of it Kafka no longer holds, nor the intake. Raises as :meth:`state` and :meth:`kafka`, and UnreachableError."""
        return self._losses(self.state())

    def replay_plan(self, to: RewindTo) -> tuple[State, ReplayPlan]:
        """Which completed batches would run again. Raises RefusedError if there is no such batch, and as :meth:`losses`."""
        state = self.state()
        held_in_kafka = self._held_in_kafka(state)
        horizon = Horizon.of(state, held_in_kafka)
        archived = needed(history.read_back(self.storage, self.name), horizon, to)
        return state, plan(state, archived, to, held_in_kafka)

    # ---- deciding ----------------------------------------------------------------------------------------------------

    def accept_losses(self, labels: Iterable[str], cause: str) -> list[Loss]:
        """Journals that the stream goes on without ``labels``, which must be what :meth:`losses` shows; returns what that was.

        Raises LeaseHeld while the stream runs, UsageError for what is not lost, and as :meth:`losses`.
        """
        wanted = set(labels)
        with self._leading() as led:
            losses = self._losses(led.state)
            unknown = sorted(wanted - {loss.label for loss in losses})
            if unknown or not wanted:
                shown = ", ".join(sorted({loss.label for loss in losses})) or "nothing"
                raise UsageError(
                    f"Kafka no longer holds {shown}; name ranges of that"
                    + (f", not {', '.join(unknown)}" if unknown else "")
                )
            accepted = [loss for loss in losses if loss.label in wanted]
            accept(led.loop.ask, accepted, self._clock.wall_ms(), f"accepted by {cause}" if cause else "accepted")
        return accepted

    def replay(self, batch: int, time_ms: int, cause: str) -> str:
        """Journals that completed batches run again when the stream starts, before any other; says so in words. Raises
        LeaseHeld while the stream runs, RefusedError where Kafka no longer holds them all, and as :meth:`losses`."""
        with self._leading() as led:
            request = ReplayRequest(batch=batch, time_ms=time_ms, cause=cause)
            held_in_kafka = self._held_in_kafka(led.state)
            answer: OperatorAnswer = begin_replay(led.loop.ask, self.storage, self.name, request, held_in_kafka)
        return answer.message.partition(";")[0] + " when the stream is started"

    @contextlib.contextmanager
    def _leading(self) -> Iterator[Led]:
        self.state()
        wait_until_stale(self.storage, self.name, threading.Event())
        failures: list[BaseException] = []
        with leading(self.storage, self.name, 1, self._clock, failures.append) as led:
            yield led
        for failure in failures:
            raise failure

    # ---- Kafka, and the intake ---------------------------------------------------------------------------------------

    def _held(self, state: State, more: Mapping[TopicPartition, str] | None = None) -> dict[TopicPartition, Held]:
        wanted = {**(more or {}), **partitions_of(state)}
        with self.kafka() as admin:
            return look(admin, wanted, admin.partitions({tp.topic for tp in wanted}))

    def _losses(self, state: State) -> list[Loss]:
        held = self._held(state)
        at, ids = positions(state), topic_ids(state)
        with self._kept() as kept:
            lacks = lacking(at, ids, of_positions(at, ids, held)) if kept is not None else {}
            found = {tp: kept.kept(span) for tp, span in lacks.items()} if kept is not None else NOTHING
            return of_state(state, held, list if kept is None else kept.lost, found)

    @contextlib.contextmanager
    def _kept(self) -> Iterator[KeptByIntake | None]:
        if self._through is None or self._params is None:
            yield None
            return
        isolation = checked_options(self._params).options.get("isolation.level", COMMITTED)
        with contextlib.closing(KeptByIntake(self._through, isolation, self._timeout)) as kept:
            yield kept

    def _held_in_kafka(self, state: State) -> Callable[[Span], bool]:
        held = self._held(
            state, {partition.tp: partition.incarnation.topic_id for partition in state.partitions.values()}
        )
        return lambda span: not lost_of(span, held)
