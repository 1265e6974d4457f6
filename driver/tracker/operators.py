"""Decisions of operators: accepting gaps and losses, resetting partitions, fencing and restarting receivers, pausing batches."""

from __future__ import annotations

from collections.abc import Sequence

from driver.decisions.batch_order import window
from driver.journal import events as ev
from driver.tracker.agents import Agents
from driver.tracker.decision import Recorder
from driver.tracker.partitions.claims import Claims
from driver.tracker.partitions.commands import Commands
from driver.tracker.partitions.faults import Faults
from driver.tracker.partitions.writers import Writers
from driver.tracker.receivers import Receivers
from driver.tracker.requests import EndHold, HoldForReset, Reset, said_by
from forebay import messages as m
from forebay.kafka.consume.spans import is_inside, label_of, with_incarnations
from forebay.model.errors import RefusedError, UsageError
from forebay.model.identifiers import is_reserved
from forebay.model.values import TopicPartition
from forebay.process.restarts import RESTART, RESTART_EXIT_CODE


class Operators:
    """Carries out an operator's decision exactly as ``forebay status`` showed it. Otherwise each call raises RefusedError or
    UsageError. ``receiver_timeout_seconds``: how long after its last heartbeat a receiver counts as running."""

    def __init__(
        self,
        *,
        recorder: Recorder,
        commands: Commands,
        writers: Writers,
        claims: Claims,
        faults: Faults,
        receivers: Receivers,
        agents: Agents,
        receiver_timeout_seconds: float,
    ) -> None:
        self._recorder = recorder
        self._commands = commands
        self._writers = writers
        self._claims = claims
        self._faults = faults
        self._receivers = receivers
        self._agents = agents
        self._receiver_timeout_seconds = receiver_timeout_seconds

    # ---- faults ------------------------------------------------------------------------------------------------------

    def accept_gap(self, request: m.AcceptGapRequest, now_ms: int) -> m.OperatorAnswer:
        """Journal the gap or the new incarnation that ends a fault, after the WAL was searched."""
        tp = TopicPartition(request.topic, request.partition)
        partition = self._recorder.state.partition(tp)
        fault = partition.fault if partition is not None else None
        if partition is None or fault is None:
            raise RefusedError(
                f"{tp} does not wait for a decision; `forebay status` shows the partitions that do", "not-found"
            )
        shown = (fault.position, fault.accepted_until)
        if (request.from_offset, request.until_offset) != shown or partition.position != fault.position:
            raise RefusedError(
                f"{tp} waits for a decision about {shown[0]} to {shown[1]}, not {request.from_offset} to "
                f"{request.until_offset}: accept exactly what `forebay status` shows",
                "conflict",
            )
        if fault.tried != partition.token:
            raise RefusedError(
                f"{tp}: the gap can be accepted only after the WAL has been searched; try again then"
                f"{self._faults.why_not_searched(partition)}",
                "not-searched",
            )
        self._faults.accept(partition, fault, now_ms, f"{fault.kind}, accepted by {said_by(request.cause)}")
        done = "a new incarnation was begun" if fault.begins_incarnation else "the gap was recorded"
        return m.OperatorAnswer(message=f"{tp}: {done}; intake continues at {partition.position}")

    def fence(self, request: m.FenceRequest) -> m.OperatorAnswer:
        """End the epoch of a receiver that a search waits for."""
        tp = TopicPartition(request.topic, request.partition)
        partition = self._recorder.state.partition(tp)
        waits_for = []
        if partition is not None and partition.fault is not None:
            waits_for = [writer.receiver_id for writer in self._writers.unsettled(partition)]
        if request.receiver_id not in waits_for or is_reserved(request.receiver_id):
            raise RefusedError(
                f"{tp} does not wait for receiver {request.receiver_id!r}"
                + (f", only for {', '.join(waits_for)}" if waits_for else "; `forebay status` shows what it waits for"),
                "conflict",
            )
        self._receivers.fence(request.receiver_id)
        return m.OperatorAnswer(
            message=f"receiver {request.receiver_id} is fenced: if it runs again it ends, and nothing that it writes counts"
        )

    # ---- receivers ---------------------------------------------------------------------------------------------------

    def restart_receiver(self, request: m.RestartReceiverRequest, now: float) -> m.OperatorAnswer:
        """Drain a receiver that runs; its agent or its supervisor then starts it again. May be repeated."""
        name = request.receiver_id
        if self._agents.managed.restart(name, now):
            return m.OperatorAnswer(message=f"receiver {name} drains if it runs, and its agent starts it again")
        known = self._recorder.state.receivers.get(name)
        if known is None or is_reserved(name):
            raise RefusedError(f"no receiver is named {name!r}: `forebay status` shows the receivers", "not-found")
        latest = self._receivers.latest.get(name)
        if latest is None or now - latest.at > self._receiver_timeout_seconds or latest.heartbeat.state == "draining":
            raise RefusedError(f"receiver {name} does not run: start it on host {known.host}", "conflict")
        if not any(command.kind == RESTART for command in self._commands.open(name)):
            self._commands.order(name, RESTART)
        return m.OperatorAnswer(
            message=f"receiver {name} drains and exits with {RESTART_EXIT_CODE}; its supervisor (`forebay up`, systemd) starts "
            "it again"
        )

    # ---- resets ------------------------------------------------------------------------------------------------------

    def hold_for_reset(self, request: HoldForReset) -> str:
        """Stop claims of the partitions, and return :meth:`why_not_reset`."""
        for tp in request.partitions:
            if self._claims.hold(tp):
                for writer in self._writers.unsettled(self._recorder.state.partitions[str(tp)]):
                    self._commands.reclaim(writer.receiver_id, tp)
        return self.why_not_reset(request.partitions)

    def why_not_reset(self, partitions: Sequence[TopicPartition]) -> str:
        """Return what ``partitions`` wait for before a reset, as a sentence; "" if they wait for nothing."""
        for tp in partitions:
            partition = self._recorder.state.partitions[str(tp)]
            if partition.fault is not None and partition.fault.tried != partition.token:
                return self._faults.describe(partition)
            if unsettled := self._writers.unsettled(partition):
                names = ", ".join(f"{writer.receiver_id} (epoch {writer.epoch:x})" for writer in unsettled)
                return (
                    f"{tp} waits until receiver {names} can write no more of its records: if the receiver does not run, "
                    "start it again"
                )
        return ""

    def reset(self, request: Reset, now_ms: int) -> None:
        """Begin a new incarnation of each partition. If one partition refuses it, nothing changes."""
        partitions = [TopicPartition(start.topic, start.partition) for start in request.starts]
        if reason := self.why_not_reset(partitions):
            raise RefusedError(f"nothing was changed: {reason}", "not-settled")
        cause = f"{request.requested} by {said_by(request.cause)}"
        self._recorder.apply(*(ev.IncarnationBegun(start, now_ms, cause) for start in request.starts))

    def end_hold(self, request: EndHold) -> None:
        """Allow claims of the partitions again."""
        for tp in request.partitions:
            self._claims.end_hold(tp)

    # ---- losses ------------------------------------------------------------------------------------------------------

    def accept_loss(self, request: m.AcceptLossRequest, now_ms: int) -> m.OperatorAnswer:
        """Let an unfinished batch run without ranges that can't be read any more."""
        state = self._recorder.state
        first = state.batches.get(request.batch_id)
        again = state.replaying.get(request.batch_id)
        batch = again or (first if first is not None and first.completed_ms is None else None)
        if batch is None:
            raise RefusedError(f"batch {request.batch_id} is not an unfinished batch of this stream", "not-found")
        # the ranges may be in the batch's window too: the loss is this batch's, not the earlier batch's
        reach = (*window(state, batch, again is not None), batch)
        block_ids = [block_id for one in reach for task in one.tasks for block_id in task]
        labels = {r.label for b in block_ids for r in state.blocks[b].meta.ranges}
        spans = [pair for one in reach for pair in with_incarnations(one.spans, one.incarnations)]
        labels |= {label_of(span, incarnation) for span, incarnation in spans}
        unknown = [label for label in request.ranges if label not in labels and not (spans and is_inside(label, spans))]
        if unknown or not request.ranges:
            raise UsageError(
                f"batch {request.batch_id} contains {', '.join(sorted(labels))}; name one or more of these ranges"
                + (f", not {', '.join(unknown)}" if unknown else "")
            )
        self._recorder.apply(
            ev.LossAccepted(
                batch_id=request.batch_id,
                ranges=tuple(request.ranges),
                time_ms=now_ms,
                cause=said_by(request.cause),
            )
        )
        return m.OperatorAnswer(message=f"batch {request.batch_id} continues without {', '.join(request.ranges)}")

    # ---- batches -----------------------------------------------------------------------------------------------------

    def pause(self, request: m.PauseRequest, now_ms: int) -> m.OperatorAnswer:
        """Pause or resume the batches. May be repeated."""
        before = self._recorder.state.pause
        if (before is not None) != request.paused:
            self._recorder.apply(ev.PauseChanged(request.paused, now_ms, said_by(request.cause)))
        elif before is not None:
            return m.OperatorAnswer(message=f"the batches are paused already, by {before.cause}")
        else:
            return m.OperatorAnswer(message="the batches are not paused")
        if request.paused:
            return m.OperatorAnswer(
                message="no batch begins from now on; jobs that run continue to their end, and receivers take records in; "
                "`forebay resume` ends the pause"
            )
        return m.OperatorAnswer(message="batches begin again")
