"""The tracker: routes each request to the part that decides it.

The tracker does no I/O. :meth:`Tracker.decide` takes one request, applies its events to the state immediately, and returns them
with the answer and the actions. Its caller (``driver.decision_loop.loop``, the simulation) makes the events durable in the
order of the decisions **before** an answer, a refusal or an action leaves.
"""

from __future__ import annotations

from collections.abc import Mapping

from typing_extensions import assert_never

from driver.decisions import intake
from driver.decisions.clean_up import CleanSegment
from driver.decisions.pace import Pace
from driver.decisions.rate_sharing import RateSharing
from driver.decisions.receiver_lifecycle import ManagedReceivers
from driver.journal import events as ev
from driver.journal.state import State
from driver.journal.state_parts import Partition
from driver.tracker.agents import Agents
from driver.tracker.batches import Batches
from driver.tracker.blocks.deletion import Deletion
from driver.tracker.blocks.replicas import Replicas
from driver.tracker.blocks.reports import Reports
from driver.tracker.cursors import CursorRequest, Cursors
from driver.tracker.decision import Action, Decision, Recorder
from driver.tracker.heartbeats import LastAgentHeartbeat, LastHeartbeat
from driver.tracker.operators import Operators
from driver.tracker.options import TrackerOptions
from driver.tracker.partitions.adoption import Adoption
from driver.tracker.partitions.claims import Claims
from driver.tracker.partitions.commands import Commands
from driver.tracker.partitions.faults import Faults
from driver.tracker.partitions.writers import Writers
from driver.tracker.receivers import Receivers
from driver.tracker.replays import Replays
from driver.tracker.requests import (
    AdoptionBlocked,
    Allocate,
    AllocateJoint,
    AllocateNext,
    AllocateSpans,
    Archived,
    Barred,
    BeginDrain,
    BeginReplay,
    BeginSpans,
    CleanedUp,
    CleanLocalCopies,
    Complete,
    CompleteOutput,
    Copied,
    EndHold,
    EndSpans,
    ExpireCursors,
    FailJob,
    FoundPartitions,
    HoldForReset,
    KeepWindow,
    LearnRate,
    NameCursor,
    NothingToAdopt,
    PlaceReceivers,
    Read,
    Request,
    Reset,
    Searches,
    SkipBatch,
    SkipSpans,
)
from driver.tracker.spans import Spans
from forebay import messages as m
from forebay.model.errors import FencedError, RefusedError, UsageError
from forebay.model.values import TopicPartition


class Tracker:
    """The driver's decisions. Not thread-safe: all calls come from the decision loop.

    ``driver_epoch``: this driver's journal epoch. ``sharing``: how a learned rate is divided among receivers; None: receivers are
    held to no rate. ``managed``: the receivers that the driver keeps running; None: none.
    """

    def __init__(
        self,
        state: State,
        driver_epoch: int,
        options: TrackerOptions,
        *,
        sharing: RateSharing | None = None,
        managed: ManagedReceivers | None = None,
    ) -> None:
        self.driver_epoch = driver_epoch
        receiver_heartbeats: dict[str, LastHeartbeat] = {}
        agent_heartbeats: dict[str, LastAgentHeartbeat] = {}
        # one for all parts
        self.recorder = recorder = Recorder(state)
        self.commands = commands = Commands(driver_epoch)
        self.writers = writers = Writers(recorder=recorder, receiver_heartbeats=receiver_heartbeats)
        self.replicas = replicas = Replicas(
            recorder=recorder,
            rules=options.copy_rules,
            receiver_heartbeats=receiver_heartbeats,
            agent_heartbeats=agent_heartbeats,
        )
        # the parts that decide
        self.receivers = Receivers(
            recorder=recorder,
            driver_epoch=driver_epoch,
            latest=receiver_heartbeats,
            commands=commands,
            writers=writers,
            replicas=replicas,
            sharing=sharing,
            id_limits=options.id_limits,
        )
        self.claims = Claims(recorder=recorder, commands=commands, writers=writers)
        pace = Pace(options.batch_interval_ms, options.concurrent_jobs)
        self.reports = Reports(recorder=recorder, replicas=replicas, pace=pace)
        self.faults = Faults(recorder=recorder, claims=self.claims, writers=writers, on_gap=options.on_gap)
        self.adoption = Adoption(recorder=recorder, commands=commands, writers=writers, faults=self.faults)
        self.agents = Agents(
            recorder=recorder,
            driver_epoch=driver_epoch,
            latest=agent_heartbeats,
            receiver_heartbeats=receiver_heartbeats,
            managed=managed or ManagedReceivers(state.stream, driver_epoch=driver_epoch, count=0, known={}),
            host_timeout_seconds=options.host_timeout_seconds,
        )
        self.operators = Operators(
            recorder=recorder,
            commands=commands,
            writers=writers,
            claims=self.claims,
            faults=self.faults,
            receivers=self.receivers,
            agents=self.agents,
            receiver_timeout_seconds=options.host_timeout_seconds,
        )
        self.batches = Batches(
            recorder=recorder, max_queued=options.max_queued_batches, limits=options.batch_limits, pace=pace
        )
        self.replays = Replays(recorder=recorder)
        self.spans = Spans(recorder=recorder, max_queued=options.max_queued_batches)
        self.cursors = Cursors(state=state, rules=options.cursor_rules, has_wal=options.has_wal)
        self.deletion = Deletion(recorder=recorder, limits=options.retention)

    # ---- decisions ---------------------------------------------------------------------------------------------------

    def decide(self, request: Request, now: float, now_ms: int) -> Decision:
        """Decide ``request`` from the present state, and apply the resulting events to it. The state may contain events that
        are not durable yet.

        ``now``: seconds on a monotonic clock; ``now_ms``: wall clock. Raises FencedError, RefusedError or UsageError if the
        request is refused before an event is applied: then nothing has changed. Like an answer, the refusal is sent only when
        all earlier decisions are durable. If the request is refused after an event was applied, the refusal is returned
        together with the events, because the journal must have them. An event that the journal can't write is not applied, and
        the request is refused.
        """
        self.recorder.begin()
        self.receivers.come_round(now)
        try:
            return self.recorder.decision(self._answer(request, now, now_ms))
        except ev.UnwritableEvent as refusal:
            return self.recorder.decision(refusal=refusal)
        except (FencedError, RefusedError, UsageError) as refusal:
            if not self.recorder.has_events:
                raise
            return self.recorder.decision(refusal=refusal)

    def pending_actions(self) -> list[Action]:
        """Return the actions that a driver must repeat when it has opened the journal (INV-8)."""
        return self.deletion.pending_actions()

    def _answer(self, request: Request, now: float, now_ms: int) -> object:
        """Return the answer; None for a request that needs none."""
        match request:
            # receivers
            case m.RegisterRequest():
                return self.receivers.register(request, now)
            case (
                m.LookupRequest()
                | m.ClaimRequest()
                | m.ReleaseRequest()
                | m.ReportRequest()
                | m.Fault()
                | m.HeartbeatRequest()
            ):
                self.receivers.check_epoch(request.receiver_id, request.epoch)
                return self._answer_receiver(request, now, now_ms)
            case LearnRate():
                self.receivers.learn_rate(request)
            case BeginDrain():
                self.agents.managed.want(0, now)  # or they would be started again
                return self.receivers.begin_drain()
            # agents
            case m.AgentHeartbeatRequest():
                return self.agents.heartbeat(request, now)
            case PlaceReceivers():
                return self.agents.place_receivers(now)
            # adoption
            case Searches():
                return self.adoption.searches()
            case Barred():
                return self.adoption.bar(request)
            case NothingToAdopt():
                return self.adoption.nothing_found(request, now_ms)
            case AdoptionBlocked():
                self.faults.block(request.tp, request.reason)
            # operators
            case m.AcceptGapRequest():
                return self.operators.accept_gap(request, now_ms)
            case m.AcceptLossRequest():
                return self.operators.accept_loss(request, now_ms)
            case m.RestartReceiverRequest():
                return self.operators.restart_receiver(request, now)
            case m.FenceRequest():
                return self.operators.fence(request)
            case HoldForReset():
                return self.operators.hold_for_reset(request)
            case Reset():
                self.operators.reset(request, now_ms)
            case EndHold():
                self.operators.end_hold(request)
            # batches
            case FoundPartitions():
                return self.batches.add_partitions(request)
            case Allocate():
                return self.batches.allocate(request)
            case AllocateNext():
                return self.batches.allocate_next(request, now_ms)
            case AllocateJoint():
                return self.batches.allocate_joint(request, now_ms)
            case BeginSpans():
                self.spans.begin(request)
            case EndSpans():
                self.spans.end(request)
            case SkipSpans():
                self.spans.skip(request)
            case AllocateSpans():
                return self.spans.allocate(request)
            case NameCursor():
                return self.spans.name_cursor(request)
            case Complete():
                self.batches.complete(request, now_ms)
            case CompleteOutput():
                self.batches.complete_output(request)
            case FailJob():
                self.batches.fail_job(request)
            case SkipBatch():
                self.batches.skip(request, now_ms)
            case m.PauseRequest():
                return self.operators.pause(request, now_ms)
            case KeepWindow():
                self.batches.keep_window(request)
            case Archived():
                self.batches.archive(request)
            case BeginReplay():
                return self.replays.begin(request, now_ms, self.batches.window_ms)
            # queries beside the batch job
            case (
                m.OpenCursorRequest()
                | m.MoveCursorRequest()
                | m.CloseCursorRequest()
                | m.DropCursorRequest()
                | ExpireCursors()
            ):
                return self._answer_cursor(request, now, now_ms)
            case m.EarliestRequest():
                return intake.earliest(self.state, request)
            case m.TimesRequest():
                return intake.times(self.state, request)
            case m.BlocksRequest():
                copies = ((latest.heartbeat.host, latest.copies) for latest in self.agent_heartbeats.values())
                return intake.blocks(self.state, request, copies)
            # deletion
            case CleanLocalCopies():
                self.deletion.clean_local_copies()
            case CleanSegment():
                return self.deletion.clean_segment(request)
            case CleanedUp():
                self.deletion.cleaned_up(request)
            case Copied():
                return self.deletion.copied(request)
            # the driver's own threads
            case Read():
                return request.read(self.state)
            case _:
                assert_never(request)
        return None

    def _answer_receiver(
        self,
        request: m.LookupRequest | m.ClaimRequest | m.ReleaseRequest | m.ReportRequest | m.Fault | m.HeartbeatRequest,
        now: float,
        now_ms: int,
    ) -> object:
        """Answer a receiver whose epoch is current."""
        match request:
            case m.LookupRequest():
                return self.claims.look_up(request)
            case m.ClaimRequest():
                return self.claims.claim(request)
            case m.ReleaseRequest():
                return self.claims.release(request)
            case m.ReportRequest():
                return self.reports.accept(request, now_ms)
            case m.Fault():
                return self.faults.report(request)
            case m.HeartbeatRequest():
                return self.receivers.heartbeat(request, now)
            case _:
                assert_never(request)

    def _answer_cursor(self, request: CursorRequest, now: float, now_ms: int) -> object:
        answer, events = self.cursors.decide(request, now, now_ms)
        self.recorder.apply(*events)
        return answer

    # ---- what others read --------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The journal's state, which may be ahead of what is durable."""
        return self.recorder.state

    @property
    def receiver_heartbeats(self) -> Mapping[str, LastHeartbeat]:
        """Receiver id → its last heartbeat."""
        return self.receivers.latest

    @property
    def agent_heartbeats(self) -> Mapping[str, LastAgentHeartbeat]:
        """Host → its agent's last heartbeat."""
        return self.agents.latest

    @property
    def managed(self) -> ManagedReceivers:
        """The receivers that the driver keeps running."""
        return self.agents.managed

    @property
    def sharing(self) -> RateSharing | None:
        """How a learned rate is divided among receivers."""
        return self.receivers.sharing

    @property
    def subscription(self) -> tuple[str, ...] | None:
        """The topics that receivers subscribe to, as ``HeartbeatAnswer.topics``."""
        return self.receivers.subscription

    @subscription.setter
    def subscription(self, topics: tuple[str, ...] | None) -> None:
        self.receivers.subscription = topics

    @property
    def blocked(self) -> Mapping[TopicPartition, str]:
        """Partitions with a fault → why the WAL can't be searched for them."""
        return self.faults.blocked

    def describe_fault(self, partition: Partition) -> str:
        """Return what was lost of ``partition`` and the way out, in one sentence."""
        return self.faults.describe(partition)

    def is_to_drain(self, receiver_id: str) -> bool:
        """Return whether the receiver has yet to acknowledge a drain command."""
        return self.commands.is_to_drain(receiver_id)
