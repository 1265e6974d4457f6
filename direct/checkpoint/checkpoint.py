"""What the checkpoint of a direct stream contains, and what a person decides about it while the stream is stopped."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from direct.checkpoint.leadership import Leadership, lead, refuse_intake
from direct.checkpoint.losses import (
    NOTHING_KEPT,
    Held,
    Loss,
    compared,
    held_by_kafka,
    incarnations,
    journal_losses,
    lacked_by_kafka,
    leader_epochs,
    losses_at_positions,
    losses_of_state,
    lost_of,
    partitions_of,
    points_of_state,
    positions,
    topic_ids,
)
from direct.intake.access import IntakeAccess, IntakeEndpoint
from direct.intake.coverage import COMMITTED, KeptByIntake
from direct.parameters import checked_options
from driver.decision_loop.rewinding import begin_replay
from driver.decisions.replay import Horizon, ReplayPlan, RewindTo, needed, plan
from driver.http.lag import lag
from driver.journal import history
from driver.journal.leadership.lease import Lease, is_gone, read_lease, wait_until_stale
from driver.journal.log import reading as journal
from driver.journal.state import State
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.spans import OffsetRange
from forebay.kafka.options.access import TIMEOUT_SECONDS
from forebay.messages import OperatorAnswer, PartitionProgress, ReplayRequest
from forebay.model.errors import UsageError
from forebay.model.identifiers import check_name
from forebay.model.values import TopicPartition
from forebay.process.clock import SystemClock
from recovery import audit
from wal.storage import open_storage

#: how often a lease is read while it is watched for a renewal
_LEASE_READS = 20


class Checkpoint:
    """The checkpoint at ``url`` of the direct stream ``name``: what it contains, and a person's decisions about it.

    Reading fences no stream, so the stream may run. Before a decision the stream must be stopped, because a decision
    leads the checkpoint. ``kafka_params`` and ``tracker``: as in the stream, for methods that need Kafka or the intake.
    """

    def __init__(
        self,
        url: str,
        name: str,
        kafka_params: Mapping[str, object] | None = None,
        *,
        storage: Mapping[str, Mapping[str, Any]] | None = None,
        timeout_seconds: float = TIMEOUT_SECONDS,
        tracker: IntakeAccess | str | None = None,
    ) -> None:
        try:
            check_name("stream", name)
        except ValueError as error:
            raise UsageError(str(error)) from None
        self.name = name
        self._params = kafka_params
        self._timeout = timeout_seconds
        self._endpoint = IntakeEndpoint.of(tracker)
        self._clock = SystemClock()
        self.storage = open_storage(url, {key: dict(own) for key, own in (storage or {}).items()})

    # ---- reading -----------------------------------------------------------------------------------------------------

    def state(self) -> State:
        """Return the durable state. Raises UsageError if there is none, or if it is an intake's; CorruptionError,
        NewerVersionError, StoreError."""
        state = journal.read_beside_a_writer(self.storage, self.name).state
        if state is None:
            raise UsageError(
                f"{self.storage.url} has no checkpoint of a direct stream named {self.name!r}: check the url and the name"
            )
        refuse_intake(self.storage.url, state)
        return state

    def lease(self) -> tuple[str, Lease | None]:
        """Return the stream's status and its lease. Takes up to the duration of the lease.

        The status is ``running``; ``stopped``: the stream ended by itself; ``ended``: its process no longer exists; or
        ``silent``: its process did not renew the lease in time.
        """
        first = read_lease(self.storage, self.name)
        if first is None:
            return "stopped", None
        waiting = threading.Event()
        for _ in range(_LEASE_READS):
            if is_gone(first):
                return "ended", first
            waiting.wait(first.duration_seconds / _LEASE_READS)
            current = read_lease(self.storage, self.name)
            if current is None:
                return "stopped", None
            if (current.owner, current.beat) != (first.owner, first.beat):
                return "running", current
        return "silent", first

    def audit(self) -> audit.AuditReport:
        """Return the proof that each offset is in exactly one batch, or the exceptions (INV-2, INV-3).

        Raises as :meth:`state`.
        """
        self.state()
        return audit.audit(self.storage, self.name)

    def progress(self) -> tuple[PartitionProgress, ...]:
        """Return how far the partitions are that the stream still reads. Raises as :meth:`state`."""
        state = self.state()
        return tuple(p for p in lag(state).partitions if f"{p.topic}/{p.partition}" in state.next_offsets)

    def kafka(self) -> KafkaAdmin:
        """Return an admin client, which the caller closes. Raises UsageError if no broker address is known; SettingsError."""
        if self._params is None:
            raise UsageError(
                "nothing says where Kafka is: name its brokers (--broker, or bootstrap.servers in kafka_params)"
            )
        options = checked_options(self._params).options
        return KafkaAdmin(options, timeout_seconds=self._timeout, client_id="forebay-checkpoint")

    def losses(self) -> list[Loss]:
        """Return what neither Kafka nor the intake holds any more.

        Raises as :meth:`state` and :meth:`kafka`, and UnreachableError.
        """
        return self._losses(self.state())

    def replay_plan(self, to: RewindTo) -> tuple[State, ReplayPlan]:
        """Return the state and which completed batches a replay would run.

        Raises RefusedError if there is no such batch, and as :meth:`losses`.
        """
        state = self.state()
        held_in_kafka = self._held_in_kafka(state)
        horizon = Horizon.of(state, held_in_kafka)
        archived = needed(history.read_back(self.storage, self.name), horizon, to)
        return state, plan(state, archived, to, held_in_kafka)

    # ---- deciding ----------------------------------------------------------------------------------------------------

    def accept_losses(self, labels: Iterable[str], cause: str) -> list[Loss]:
        """Journal that the stream continues without ``labels``, labels of :meth:`losses`; return these losses.

        Raises LeaseHeld while the stream runs, UsageError for a label that is not among the losses, and as :meth:`losses`.
        """
        wanted = set(labels)
        with self._leading() as led:
            losses = self._losses(led.state)
            unknown = sorted(wanted - {loss.label for loss in losses})
            if unknown or not wanted:
                shown = ", ".join(sorted({loss.label for loss in losses})) or "nothing"
                refused = f"{', '.join(unknown)} is not a loss of the stream" if unknown else "no loss is named"
                raise UsageError(f"{refused}; its losses are: {shown}")
            accepted = [loss for loss in losses if loss.label in wanted]
            journal_losses(
                led.loop.ask, accepted, self._clock.wall_ms(), f"accepted by {cause}" if cause else "accepted"
            )
        return accepted

    def replay(self, batch: int, time_ms: int, cause: str) -> str:
        """Journal that completed batches run again when the stream starts, before others. Return a message that says so.

        Raises LeaseHeld while the stream runs, RefusedError if Kafka no longer holds all of them, and as :meth:`losses`.
        """
        with self._leading() as led:
            request = ReplayRequest(batch=batch, time_ms=time_ms, cause=cause)
            held_in_kafka = self._held_in_kafka(led.state)
            answer: OperatorAnswer = begin_replay(led.loop.ask, self.storage, self.name, request, held_in_kafka)
        return answer.message.partition(";")[0] + " when the stream is started"

    @contextlib.contextmanager
    def _leading(self) -> Iterator[Leadership]:
        self.state()
        wait_until_stale(self.storage, self.name, threading.Event())
        failures: list[BaseException] = []
        with lead(self.storage, self.name, 1, self._clock, failures.append) as led:
            yield led
        for failure in failures:
            raise failure

    # ---- Kafka, and the intake ---------------------------------------------------------------------------------------

    def _held(self, state: State, more: Mapping[TopicPartition, str] | None = None) -> dict[TopicPartition, Held]:
        wanted = {**(more or {}), **partitions_of(state)}
        with self.kafka() as admin:
            held = held_by_kafka(admin, wanted, admin.partitions({tp.topic for tp in wanted}))
            return compared(admin, held, wanted, points_of_state(state))

    def _losses(self, state: State) -> list[Loss]:
        held = self._held(state)
        at, ids = positions(state), topic_ids(state)
        with self._kept() as kept:
            losses = losses_at_positions(
                at, ids, held, leader_epochs=leader_epochs(state), incarnations=incarnations(state)
            )
            lacks = lacked_by_kafka(at, ids, losses) if kept is not None else {}
            found = {tp: kept.kept(span) for tp, span in lacks.items()} if kept is not None else NOTHING_KEPT
            return losses_of_state(state, held, list if kept is None else kept.lost, found)

    @contextlib.contextmanager
    def _kept(self) -> Iterator[KeptByIntake | None]:
        if self._endpoint is None or self._params is None:
            yield None
            return
        isolation = checked_options(self._params).options.get("isolation.level", COMMITTED)
        with contextlib.closing(KeptByIntake(self._endpoint, isolation, self._timeout)) as kept:
            yield kept

    def _held_in_kafka(self, state: State) -> Callable[[OffsetRange], bool]:
        held = self._held(
            state, {partition.tp: partition.incarnation.topic_id for partition in state.partitions.values()}
        )
        return lambda span: not lost_of(span, held)
