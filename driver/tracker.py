"""The driver's decisions: who owns an offset, what is accepted, which blocks make a batch, what may be deleted.

A machine without I/O. :meth:`Tracker.decide` takes one request, applies its events to the state at once, and returns them
with the answer and the actions. Whoever drives it (``driver.loop``, the simulation) makes the events durable in the order of
the decisions **before** an answer, a refusal or an action leaves.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

import msgspec

from driver import events as ev
from driver import intake
from driver.allocation import UNLIMITED, BatchLimits, longest_prefix
from driver.batch_order import window
from driver.clean_up import COPIES_AT_ONCE, CleanSegment, is_left_over, is_stray, judge, to_give_up
from driver.cursors import CursorRequest, CursorRules, Cursors
from driver.history import FinishedBatch
from driver.packing import pack
from driver.rate import is_significant
from driver.rate_sharing import Lags, RateSharing
from driver.receiver_life import ManagedReceivers
from driver.receiver_limits import (
    IdLimits,
    Presence,
    gives_way,
    kept,
    makes_room,
    refuse_registration,
    room_for,
)
from driver.replay import REPLAY_BLOCKS_MAX, plan, refuse
from driver.requests import (
    AdoptionHindered,
    Allocate,
    AllocateSpans,
    Archived,
    Ask,
    Barred,
    BeginDrain,
    BeginReplay,
    BeginSpans,
    CleanedUp,
    CleanLocalCopies,
    Complete,
    CompleteOutput,
    Copied,
    EndSpans,
    FailJob,
    FoundPartitions,
    HoldForReset,
    KeepWindow,
    LearnRate,
    LetGo,
    NameCursor,
    NothingToAdopt,
    PlaceReceivers,
    Request,
    Reset,
    Search,
    Searches,
    SkipSpans,
    said_by,
)
from driver.second_hosts import Host, loads, second_host
from driver.state import ADOPTER, Batch, OpenTrouble, Partition, State, Writer
from driver.transitions import apply
from forebay import messages as m
from forebay.errors import FencedError, RefusedError, UsageError
from forebay.kafka.spans import is_inside
from forebay.values import OFFSET_MAX, Block, Gap, OffsetRange, TopicPartition, check_name, is_reserved
from wal.layout import parse_block
from wal.retention import Limits

#: hosts whose agents are known at once, and after which silence one makes room for another
AGENTS_MAX, AGENT_FORGOTTEN_SECONDS = 1_000, 3600.0
#: what one agent says of itself: given copies, receivers, labels; and the length of a text of it
AGENT_ITEMS_MAX, AGENT_TEXT_LENGTH_MAX = 10_000, 1_000
_AGENT_URL = re.compile(r"https?://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?/?", re.IGNORECASE)

# ---- actions ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeleteSegment:
    """Delete the segment in the WAL (idempotent), then answer with CleanedUp(number)."""

    number: int
    path: str


Action = DeleteSegment


@dataclass(frozen=True, slots=True)
class Decision:
    """``refusal``: leaves in place of the answer when ``events``, decided before it, are durable."""

    answer: Any = None
    events: tuple[ev.Event, ...] = ()
    actions: tuple[Action, ...] = ()
    refusal: UsageError | None = None


@dataclass(slots=True)
class ReceiverNews:
    """What a receiver last said of itself: not journalled, lost with the driver."""

    heartbeat: m.HeartbeatRequest
    at: float


@dataclass(slots=True)
class AgentNews:
    """``copies``: ids of the blocks that it was given copies of."""

    heartbeat: m.AgentHeartbeatRequest
    at: float
    copies: tuple[str, ...] = ()


@dataclass(slots=True)
class _Orders:
    """Commands that a receiver has not acknowledged yet."""

    version: int = 0
    open: list[m.Command] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class CopyRules:
    """Of a stream without a WAL: on so many hosts each block lies before it is accepted. A host counts as there for
    ``timeout_seconds`` after it was heard, and takes second copies while ``room_bytes`` are free."""

    copies: int
    timeout_seconds: float
    room_bytes: int


class Tracker:
    """``driver_epoch`` is this driver's journal epoch; ``retention_ms`` the rewind horizon of the WAL, which ends
    earlier while the WAL holds more than ``retention_bytes`` (0: no limit), unless a round of clean-up brings limits of
    its own. ``sharing``: of the rate that was learned; None: receivers are held to no rate. ``managed``: the receivers
    that it keeps; None: none. ``copy_rules``: None where there is a WAL. ``host_timeout_seconds``: so long after it was
    heard a host has the url that its agent named."""

    def __init__(
        self,
        state: State,
        driver_epoch: int,
        on_gap: str,
        max_queued_batches: int,
        retention_ms: int,
        retention_bytes: int = 0,
        batch_limits: BatchLimits = UNLIMITED,
        sharing: RateSharing | None = None,
        managed: ManagedReceivers | None = None,
        copy_rules: CopyRules | None = None,
        cursor_rules: CursorRules | None = None,
        host_timeout_seconds: float = 30.0,
        id_limits: IdLimits | None = None,
    ) -> None:
        self.state = state
        self._id_limits = id_limits or IdLimits()
        self._presence = Presence()
        self.copy_rules = copy_rules
        self.cursors = Cursors(state, cursor_rules or CursorRules(), has_wal=copy_rules is None)
        self.driver_epoch = driver_epoch
        self.receiver_news: dict[str, ReceiverNews] = {}
        self.agent_news: dict[str, AgentNews] = {}
        self.managed = managed or ManagedReceivers(state.stream, driver_epoch, 0, {})
        self.hindered: dict[TopicPartition, str] = {}  # why adoption can't go on
        self._outdated = _outdated(state)  # where each receiver may still write under tokens that others have ended
        self._adopting: dict[TopicPartition, str] = {}  # whose claim adoption ended, to be told to claim again
        self._held_for_reset: dict[TopicPartition, str] = {}  # and whose it was
        self._so_far: list[ev.Event] = []  # applied by the decision that is being made
        self._orders: dict[str, _Orders] = {}
        self._host_timeout_seconds = host_timeout_seconds
        # receiver id → hosts where its second copies go or went, as far as this driver has heard
        self._second_hosts: dict[str, set[str]] = {}
        self._on_gap = on_gap
        self._max_queued_batches = max_queued_batches
        self._limits = Limits(retention_ms, retention_bytes)
        self._batch_limits = batch_limits
        self.sharing = sharing
        self.subscription: tuple[str, ...] | None = None  # as HeartbeatAnswer.topics; set by discovery
        self._decide: dict[type, Callable[[Any, float, int], Decision]] = {
            m.RegisterRequest: self._register,
            m.LookRequest: self._look,
            m.ClaimRequest: self._claim,
            m.ReleaseRequest: self._release,
            m.ReportRequest: self._report,
            m.Trouble: self._trouble,
            m.HeartbeatRequest: self._heartbeat,
            m.AgentHeartbeatRequest: self._agent_heartbeat,
            m.AcceptGapRequest: self._accept_gap,
            m.AcceptLossRequest: self._accept_loss,
            m.FenceRequest: self._fence,
            **dict.fromkeys(get_args(CursorRequest), self._of_cursors),
            m.EarliestRequest: self._earliest,
            m.TimesRequest: self._times,
            m.BlocksRequest: self._blocks,
            Searches: self._searches,
            Barred: self._barred,
            NothingToAdopt: self._nothing_to_adopt,
            AdoptionHindered: self._adoption_hindered,
            FoundPartitions: self._found_partitions,
            Allocate: self._allocate,
            BeginSpans: self._begin_spans,
            EndSpans: self._end_spans,
            SkipSpans: self._skip_spans,
            AllocateSpans: self._allocate_spans,
            NameCursor: self._name_cursor,
            Complete: self._complete,
            CompleteOutput: self._complete_output,
            FailJob: self._fail_job,
            KeepWindow: self._keep_window,
            LearnRate: self._learn_rate,
            BeginDrain: self._begin_drain,
            BeginReplay: self._begin_replay,
            CleanLocalCopies: self._clean_local_copies,
            CleanSegment: self._clean_segment,
            CleanedUp: self._cleaned_up,
            Archived: self._archived,
            Copied: self._copied,
            HoldForReset: self._hold_for_reset,
            Reset: self._reset,
            LetGo: self._let_go,
            PlaceReceivers: self._place_receivers,
            Ask: self._ask,
        }

    def decide(self, request: Request, now: float, now_ms: int) -> Decision:
        """Decides ``request`` against the state, which may be ahead of what is durable, and applies what follows.

        ``now``: seconds on a monotonic clock; ``now_ms``: wall clock. Raises FencedError, RefusedError or UsageError: a
        refusal changes nothing, and leaves, like an answer, only when all that was decided before it is durable. An event that
        the journal could not write is not applied: it ends the decision with a refusal beside the events before it.
        """
        self._so_far.clear()
        self._presence.come_round(now)
        try:
            return self._decide[type(request)](request, now, now_ms)
        except ev.UnwritableEvent as refusal:
            return Decision(events=tuple(self._so_far), refusal=refusal)

    def pending_actions(self) -> list[Action]:
        """What a driver that just opened the journal must do again: every intent without its done (INV-8)."""
        return [
            DeleteSegment(cleanup.number, path) for cleanup in self.state.cleanups.values() for path in cleanup.segments
        ]

    def order(
        self,
        receiver_id: str,
        kind: str,
        partitions: Sequence[TopicPartition] = (),
        rates: m.Rates | None = None,
    ) -> None:
        """Adds a command to the answers of the receiver's heartbeats, until it is acknowledged. ``rates`` take the place of
        those that it has not acknowledged yet."""
        orders = self._orders.setdefault(receiver_id, _Orders())
        if kind == "rate":
            orders.open = [command for command in orders.open if command.kind != "rate"]
        orders.version += 1
        command = m.Command(
            version=orders.version,
            driver_epoch=self.driver_epoch,
            kind=kind,
            partitions=tuple(partitions),
            rates=rates,
        )
        orders.open.append(command)

    def is_to_drain(self, receiver_id: str) -> bool:
        """Whether the receiver has yet to acknowledge that it is to drain."""
        orders = self._orders.get(receiver_id)
        return orders is not None and any(command.kind == "drain" for command in orders.open)

    def _begin_drain(self, request: BeginDrain, now: float, now_ms: int) -> Decision:
        known = self.state.receivers.values()
        told = tuple(sorted(r.receiver_id for r in known if r.instance_id and not is_reserved(r.receiver_id)))
        for receiver_id in told:
            self.order(receiver_id, "drain")
        self.managed.want(0, now)  # or they would be started again
        return Decision(told)

    def _applied(self, *decided: ev.Event) -> tuple[ev.Event, ...]:
        for event in decided:
            ev.refuse_unwritable(event)
            apply(self.state, event)
            self._so_far.append(event)
        return decided

    # ---- receivers (design: who owns an offset) ----------------------------------------------------------------------

    def _register(self, request: m.RegisterRequest, now: float, now_ms: int) -> Decision:
        if request.stream != self.state.stream:
            raise UsageError(f"this driver leads stream {self.state.stream!r}, not {request.stream!r}")
        _check_names(("receiver id", request.receiver_id), ("host", request.host))
        known = self.state.receivers.get(request.receiver_id)
        if known is not None and request.instance_id in known.past:
            # its request was late, or it slept: it must not end the claims of the one that came after it (INV-4)
            raise FencedError(f"another process has registered as receiver {request.receiver_id!r} since this one did")
        decided: tuple[ev.Event, ...] = ()
        if known is None or known.instance_id != request.instance_id:
            decided = self._make_room_for_id(request.receiver_id, now)
            decided += self._applied(
                ev.ReceiverRegistered(
                    receiver_id=request.receiver_id,
                    host=request.host,
                    instance_id=request.instance_id,
                    epoch=self.state.next_epoch(),
                )
            )
            self._forget(request.receiver_id)
        epoch = self.state.receivers[request.receiver_id].epoch
        answer = m.RegisterAnswer(
            epoch=epoch, driver_epoch=self.driver_epoch, lineage=self.state.lineage, topics=self.subscription
        )
        return Decision(answer, decided)

    def _make_room_for_id(self, receiver_id: str, now: float) -> tuple[ev.Event, ...]:
        """Raises RefusedError where a new ``receiver_id`` finds no room."""
        room = room_for(self.state, receiver_id, self._id_limits, self.receiver_news, self._presence, now)
        gone = (*room.forgotten, *room.fenced)
        decided = self._applied(ev.ReceiversForgotten(room.forgotten)) if room.forgotten else ()
        for one in room.fenced:
            decided += self._applied(ev.ReceiverFenced(one, self.state.next_epoch()))
        refuse_registration(self.state, receiver_id)
        if (idle := gives_way(self.state, receiver_id)) is not None:
            gone = (*gone, idle)
        for one in gone:
            self._forget(one)
        return decided

    def _check_epoch(self, receiver_id: str, epoch: int) -> None:
        known = self.state.receivers.get(receiver_id)
        if known is None:
            raise FencedError(f"receiver {receiver_id!r} is not registered with this driver: register first")
        if known.epoch != epoch:
            raise FencedError(
                f"receiver {receiver_id!r} has registered again since (epoch {known.epoch}, this is {epoch})"
            )

    def _look(self, request: m.LookRequest, now: float, now_ms: int) -> Decision:
        self._check_epoch(request.receiver_id, request.epoch)
        return Decision(m.LookAnswer(partitions=tuple(self._view(tp) for tp in request.partitions)))

    def _view(self, tp: TopicPartition) -> m.PartitionView:
        partition = self.state.partition(tp)
        if partition is None:
            return m.PartitionView(topic=tp.topic, partition=tp.partition, known=False)
        return m.PartitionView(
            topic=tp.topic,
            partition=tp.partition,
            known=True,
            token=partition.token,
            life=partition.life.life,
            position=partition.position,
            leader_epoch=partition.leader_epoch,
            topic_id=partition.life.topic_id,
            preceding_gap=partition.preceding_gap,
        )

    def _claim(self, request: m.ClaimRequest, now: float, now_ms: int) -> Decision:
        self._check_epoch(request.receiver_id, request.epoch)
        decided: tuple[ev.Event, ...] = ()
        grants = []
        for ask in request.claims:
            tp = TopicPartition(ask.topic, ask.partition)
            partition = self.state.partition(tp)
            # compare-and-set: a claim sent before somebody else's claim names an older token, and comes too late
            granted = partition is not None and partition.token == ask.known_token
            granted = granted and tp not in self._held_for_reset
            if partition is not None and granted:
                if request.receiver_id == ADOPTER:
                    self._adopting[tp] = partition.owner or self._adopting.get(tp, "")
                elif partition.owner == ADOPTER or (partition.trouble is not None and partition.trouble.kept):
                    # the adopter ends by itself, soon: a claim now would only have it begin again
                    granted = False
            if partition is not None and granted:
                for writer in partition.writers:
                    if writer.receiver_id != request.receiver_id:
                        self._outdated.setdefault(writer.receiver_id, set()).add(tp)
                decided += self._applied(
                    ev.ClaimGiven(
                        topic=ask.topic,
                        partition=ask.partition,
                        receiver_id=request.receiver_id,
                        epoch=request.epoch,
                        token=self.state.next_token(),
                        claim=request.number,
                    )
                )
            grants.append(m.ClaimGrant(granted=granted, view=self._view(tp)))
        return Decision(m.ClaimAnswer(claims=tuple(grants)), decided)

    def _release(self, request: m.ReleaseRequest, now: float, now_ms: int) -> Decision:
        self._check_epoch(request.receiver_id, request.epoch)
        decided: tuple[ev.Event, ...] = ()
        for release in request.releases:
            partition = self.state.partition(TopicPartition(release.topic, release.partition))
            if partition is not None and partition.token == release.token and partition.owner == request.receiver_id:
                decided += self._applied(
                    ev.ClaimReleased(topic=release.topic, partition=release.partition, token=release.token)
                )
                if request.receiver_id == ADOPTER and (partition.trouble is None or not partition.trouble.kept):
                    self._reclaim(self._adopting.pop(partition.tp, ""), partition.tp)
            elif partition is not None and partition.owner != request.receiver_id:
                given = (request.receiver_id, request.epoch, release.token)
                if given in ((writer.receiver_id, writer.epoch, writer.token) for writer in partition.writers):
                    decided += self._applied(_settled(partition, request.receiver_id, request.epoch))
        return Decision(m.Done(), decided)

    def _report(self, request: m.ReportRequest, now: float, now_ms: int) -> Decision:
        self._check_epoch(request.receiver_id, request.epoch)
        decided: list[ev.Event] = []
        results = []
        host = self.state.receivers[request.receiver_id].host
        for block in request.blocks:  # all of them first: once an event is applied nothing may be refused any more
            meta = block.meta
            if (
                meta.receiver_id != request.receiver_id
                or meta.epoch != request.epoch
                or meta.stream != self.state.stream
            ):
                raise UsageError(f"block {meta.id} is not of receiver {request.receiver_id!r} and its epoch")
            if meta.host != host:
                raise UsageError(
                    f"block {meta.id} says that it lies on {meta.host!r}, and its receiver registered on {host!r}"
                )
            self._check_place(block)
            if block.other_hosts and meta.id not in self.state.blocks and not self._second_hosts.get(meta.receiver_id):
                # a driver that has just begun, or there is no second host: the block is reported again
                raise RefusedError(
                    f"block {meta.id} says that it lies on {', '.join(block.other_hosts)} too: this driver has heard of no "
                    f"host yet that takes second copies of receiver {meta.receiver_id!r}",
                    "no-second-host",
                )
        for block in request.blocks:
            meta = block.meta
            if meta.id in self.state.blocks:
                results.append(m.BlockResult(block_id=meta.id, accepted=True))  # a repeated id gets the same answer
                continue
            stale = tuple(s for r in meta.ranges if (s := self._stale(r, request)) is not None)
            if not stale and not self._second_hosts.get(meta.receiver_id, set()).issuperset(block.other_hosts):
                # nobody may be asked for it there, or would have it: cut again, and copied where copies go now
                stale = tuple(self._stale_for(r, "copy") for r in meta.ranges)
            if not stale:
                decided += self._applied(ev.BlockAdded(block))
            results.append(m.BlockResult(block_id=meta.id, accepted=not stale, stale=stale))
        return Decision(m.ReportAnswer(results=tuple(results)), tuple(decided))

    def _check_place(self, block: Block) -> None:
        """Raises UsageError for a block that does not lie where this stream keeps its blocks (INV-1)."""
        meta, rules = block.meta, self.copy_rules
        if rules is None:
            place = parse_block(block.handle.path)
            if place is None or place[:3] != (meta.stream, meta.receiver_id, meta.epoch):
                raise UsageError(f"block {meta.id}: {block.handle.path!r} is no segment of its receiver and epoch")
            if block.other_hosts:
                raise UsageError(
                    f"block {meta.id} says that it has a second copy: those are for a stream without a WAL"
                )
            return
        _check_names(*(("host", host) for host in block.hosts))
        held = len(set(block.hosts))
        if block.in_wal or not block.local or held != len(block.hosts) or held < rules.copies:
            raise UsageError(
                f"block {meta.id} lies {'in a WAL' if block.in_wal else 'on ' + (', '.join(block.hosts) or 'no host')}; this "
                f'stream has wal.url = "none" and receiver.copies = {rules.copies}: give the receiver the same'
            )

    def _stale(self, r: OffsetRange, request: m.ReportRequest) -> m.StaleRange | None:
        partition = self.state.partition(r.tp)
        if partition is None:
            return self._stale_for(r, "life")
        owned = partition.owner == request.receiver_id and partition.owner_epoch == request.epoch
        if r.life != partition.life.life:
            reason = "life"
        elif r.token != partition.token or not owned:
            reason = "token"
        elif r.from_offset != partition.position:
            reason = "position"
        else:
            return None
        return self._stale_for(r, reason)

    def _stale_for(self, r: OffsetRange, reason: str) -> m.StaleRange:
        partition = self.state.partition(r.tp)
        token, position = (partition.token, partition.position) if partition is not None else (0, 0)
        return m.StaleRange(topic=r.topic, partition=r.partition, reason=reason, token=token, position=position)

    def _trouble(self, request: m.Trouble, now: float, now_ms: int) -> Decision:
        self._check_epoch(request.receiver_id, request.epoch)
        tp = TopicPartition(request.topic, request.partition)
        partition = self.state.partition(tp)
        if partition is None:
            raise UsageError(f"partition {tp} has no life in this stream yet")
        outdated = partition.token != request.token or partition.position != request.position or not partition.owner
        if outdated and partition.trouble is not None and partition.trouble.kept:
            return Decision(m.TroubleAnswer(proceed=False, message=self.describe_trouble(partition)))
        if outdated:
            answer = m.TroubleAnswer(proceed=True, message="the journal has moved on since: claim again")
            return Decision(answer)
        found = _trouble_found(request, partition)
        decided: tuple[ev.Event, ...] = ()
        known = partition.trouble
        if known is None or (known.kind, known.accept_until) != (found.kind, found.accept_until):
            decided = self._applied(found)
        return Decision(m.TroubleAnswer(proceed=False, message=self.describe_trouble(partition)), decided)

    def _accepted(self, partition: Partition, trouble: OpenTrouble, now_ms: int, cause: str) -> tuple[ev.Event, ...]:
        if trouble.begins_life:
            start = ev.LifeStart(
                topic=partition.topic,
                partition=partition.partition,
                start=trouble.accept_until,
                topic_id=trouble.topic_id,
                leader_epoch=trouble.leader_epoch,
            )
            return (ev.LifeBegun(start=start, time_ms=now_ms, cause=cause),)
        gap = Gap(from_offset=partition.position, until_offset=trouble.accepted_until, cause=cause)
        return (ev.GapRecorded(topic=partition.topic, partition=partition.partition, gap=gap, time_ms=now_ms),)

    def _decided_upon(
        self, partition: Partition, trouble: OpenTrouble, now_ms: int, cause: str
    ) -> tuple[ev.Event, ...]:
        """The gap or the new life; whoever held the partition is told to claim it again."""
        owner = partition.owner or self._adopting.get(partition.tp, "")
        decided = self._applied(*self._accepted(partition, trouble, now_ms, cause))
        if partition.trouble is None:
            self._adopting.pop(partition.tp, None)
            self._reclaim(owner, partition.tp)
        else:  # a gap before what the WAL holds of a life that is to end
            self._adopting[partition.tp] = owner
        return decided

    def _reclaim(self, receiver_id: str, tp: TopicPartition) -> None:
        """Orders a receiver to claim ``tp`` again, once until it has acknowledged that."""
        orders = self._orders.get(receiver_id, _Orders())
        if receiver_id and not any(c.kind == "reclaim" and tp in c.partitions for c in orders.open):
            self.order(receiver_id, "reclaim", [tp])

    # ---- adoption (rule 8) -------------------------------------------------------------------------------------------

    def _searches(self, request: Searches, now: float, now_ms: int) -> Decision:
        """Which partitions wait for a search of the WAL. A receiver that takes in under an outdated token is told to claim
        again, or it might never learn that the token is."""
        searches = []
        for partition in self.state.partitions.values():
            trouble = partition.trouble
            if trouble is None or trouble.tried == partition.token or partition.position != trouble.position:
                continue
            unsettled = self._unsettled(partition)
            for writer in unsettled:
                if writer.token != partition.token and self._held(writer, partition.tp):
                    self._reclaim(writer.receiver_id, partition.tp)
            searches.append(
                Search(
                    tp=partition.tp,
                    life=partition.life.life,
                    topic_id=partition.life.topic_id,
                    position=partition.position,
                    limit=trouble.accept_until if trouble.kind == "out-of-range" and not trouble.new_life else None,
                    token=partition.token,
                    waits_for=tuple(writer.receiver_id for writer in unsettled),
                )
            )
        self.hindered = {s.tp: self.hindered[s.tp] for s in searches if s.tp in self.hindered}
        return Decision(tuple(searches))

    def _unsettled(self, partition: Partition) -> list[Writer]:
        """Writers that may still sync a block under a token of ``partition``. One whose epoch is outdated or that released
        its token is none of ``partition.writers`` any more; another is settled by its own word, given after it knew."""
        return [writer for writer in partition.writers if not self._settled(writer, partition.tp)]

    def _settled(self, writer: Writer, tp: TopicPartition) -> bool:
        if writer.receiver_id == ADOPTER:
            return False  # of this driver: it releases what it claims
        news = self.receiver_news.get(writer.receiver_id)
        if news is None or news.heartbeat.epoch != writer.epoch or news.heartbeat.claims_done < writer.claim:
            return False
        return not self._held(writer, tp)

    def _held(self, writer: Writer, tp: TopicPartition) -> bool:
        news = self.receiver_news.get(writer.receiver_id)
        return news is not None and any(
            (held.topic, held.partition) == (tp.topic, tp.partition) and held.token <= writer.token
            for held in news.heartbeat.holding
        )

    def _barred(self, request: Barred, now: float, now_ms: int) -> Decision:
        segments = {(ended.receiver_id, ended.epoch): ended.segments for ended in self.state.unbarred}
        standing = [(p.receiver, p.epoch, p.sequence > segments[p[1:3]]) for p in request.places if p[1:3] in segments]
        barred = [ev.EpochBarred(receiver_id, epoch) for receiver_id, epoch, holds in standing if holds]
        return Decision(len(barred) == len(standing), self._applied(*barred))

    def _nothing_to_adopt(self, request: NothingToAdopt, now: float, now_ms: int) -> Decision:
        search = request.search
        partition = self.state.partition(search.tp)
        trouble = partition.trouble if partition is not None else None
        if (
            partition is None
            or trouble is None
            or (partition.life.life, partition.position) != (search.life, search.position)
            or trouble.position != search.position
            # whoever was given a newer one may write since the search began; all others were settled, and stay so
            or partition.token != search.token
        ):
            return Decision(False)
        self.hindered.pop(search.tp, None)
        tried = ev.AdoptionTried(
            topic=search.tp.topic,
            partition=search.tp.partition,
            token=partition.token,
            adoptable_from=request.adoptable_from,
        )
        decided = self._applied(tried)
        if self._recorded(trouble):
            now_accepted = partition.trouble
            assert now_accepted is not None
            decided += self._decided_upon(partition, now_accepted, now_ms, f"{trouble.kind}, recorded by on_gap")
        return Decision(True, decided)

    def _recorded(self, trouble: OpenTrouble) -> bool:
        """Whether the policy decides, and no person."""
        return self._on_gap == "record" and trouble.kind != "corrupt"

    def _adoption_hindered(self, request: AdoptionHindered, now: float, now_ms: int) -> Decision:
        if request.words:
            self.hindered[request.tp] = request.words
        else:
            self.hindered.pop(request.tp, None)
        return Decision()

    def _fence(self, request: m.FenceRequest, now: float, now_ms: int) -> Decision:
        tp = TopicPartition(request.topic, request.partition)
        partition = self.state.partition(tp)
        waits_for = [w.receiver_id for w in self._unsettled(partition)] if partition and partition.trouble else []
        if request.receiver_id not in waits_for or is_reserved(request.receiver_id):
            raise RefusedError(
                f"{tp} does not wait for receiver {request.receiver_id!r}"
                + (f" but for {', '.join(waits_for)}" if waits_for else "; `forebay status` shows what it waits for"),
                "conflict",
            )
        fenced = ev.ReceiverFenced(receiver_id=request.receiver_id, epoch=self.state.next_epoch())
        self._forget(request.receiver_id)
        words = f"receiver {request.receiver_id} is fenced: should it ever wake, it ends, and nothing it does counts"
        return Decision(m.OperatorAnswer(message=words), self._applied(fenced))

    def _forget(self, receiver_id: str) -> None:
        """What was ordered and heard under an epoch that has ended."""
        self._orders.pop(receiver_id, None)
        self._second_hosts.pop(receiver_id, None)
        self.receiver_news.pop(receiver_id, None)
        if self.sharing is not None:
            self.sharing.forget(receiver_id)

    def describe_trouble(self, partition: Partition) -> str:
        """What was lost and the way out, in one sentence."""
        trouble = partition.trouble
        assert trouble is not None
        tp, until = partition.tp, trouble.accepted_until
        words = {
            "truncated": f"Kafka's log was cut back below offset {trouble.position}",
            "out-of-range": f"Kafka's log ended below offset {trouble.position}",
            "recreated": f"the topic was deleted and created again; what it held from offset {trouble.position} on is gone",
            "corrupt": f"the record batch at offset {trouble.position} fails its checksum",
        }.get(trouble.kind if trouble.kind == "corrupt" or trouble.begins_life else "")
        words = words or f"Kafka no longer holds offsets {trouble.position} to {until}"
        if trouble.kept:
            words += f" (the WAL went on up to there; nobody reads before a new life begins at {trouble.accept_until})"
        if self._recorded(trouble):
            way_out = "this is recorded"
        else:
            way_out = f"`forebay offsets accept-gap {tp} {trouble.position} {until}` goes on"
        if trouble.tried == partition.token:
            return f"{tp}: {words}; {way_out}"
        return f"{tp}: {words}; {way_out} when the WAL has been searched for them{self._why_not_searched(partition)}"

    def _why_not_searched(self, partition: Partition) -> str:
        unsettled = [writer for writer in self._unsettled(partition) if writer.receiver_id != ADOPTER]
        if unsettled:
            names = ", ".join(f"{writer.receiver_id} (epoch {writer.epoch:x})" for writer in unsettled)
            return (
                f", which waits for what receiver {names} may still write: stop or restart it; or, if its host is gone for "
                f"good, add `--fence {unsettled[0].receiver_id}`"
            )
        hindered = self.hindered.get(partition.tp, "")
        return f", which can't be done yet: {hindered}" if hindered else ""

    def _heartbeat(self, request: m.HeartbeatRequest, now: float, now_ms: int) -> Decision:
        self._check_epoch(request.receiver_id, request.epoch)
        if (silent := makes_room(self.receiver_news, request.receiver_id, now)) is not None:
            del self.receiver_news[silent]
        self.receiver_news[request.receiver_id] = ReceiverNews(kept(request, self.state), now)
        orders = self._orders.setdefault(request.receiver_id, _Orders())
        orders.open = [command for command in orders.open if command.version > request.acknowledged]
        rates = self.sharing.news(request.receiver_id, self._lags, now) if self.sharing is not None else None
        if rates is not None:
            self.order(request.receiver_id, "rate", rates=rates)
        second = self._second_host(request, now)
        told = {request.second_host} | ({second.host} if second is not None else set())
        self._second_hosts.setdefault(request.receiver_id, set()).update(told & self.agent_news.keys())
        answer = m.HeartbeatAnswer(
            driver_epoch=self.driver_epoch,
            commands=tuple(orders.open),
            second_host=second,
            topics=self.subscription,
        )
        outdated = self._outdated.get(request.receiver_id)
        return Decision(answer, self._settle(request.receiver_id, outdated) if outdated else ())

    def _second_host(self, request: m.HeartbeatRequest, now: float) -> m.SecondHost | None:
        rules = self.copy_rules
        if rules is None or rules.copies < 2:
            return None
        hosts = {
            host: Host(news.heartbeat.url, news.heartbeat.free_bytes)
            for host, news in self.agent_news.items()
            if now - news.at < rules.timeout_seconds and news.heartbeat.state == "active"
        }
        others = (news.heartbeat for name, news in self.receiver_news.items() if name != request.receiver_id)
        return second_host(
            self.state.receivers[request.receiver_id].host,
            request.second_host,
            request.refusing_hosts,
            hosts,
            loads(heartbeat.second_host for heartbeat in others),
            rules.room_bytes,
        )

    def _lags(self) -> Lags:
        """Of what each receiver takes in: partitions that it owns and did not report in trouble. Those of which it has said
        nothing yet, since it was just given them or this driver just began, have no lag."""
        lags: dict[str, dict[TopicPartition, int | None]] = {receiver_id: {} for receiver_id in self.receiver_news}
        said = {
            receiver_id: {TopicPartition(p.topic, p.partition): p for p in news.heartbeat.partitions}
            for receiver_id, news in self.receiver_news.items()
        }
        for partition in self.state.partitions.values():
            if not partition.owner or is_reserved(partition.owner):
                continue
            tp, own = partition.tp, lags.setdefault(partition.owner, {})
            status = said.get(partition.owner, {}).get(tp)
            if status is None or status.state == "claiming" or status.high_watermark < 0:
                own[tp] = None
            elif status.state != "trouble":
                own[tp] = max(0, status.high_watermark - status.position)
        return lags

    def _settle(self, receiver_id: str, outdated: set[TopicPartition]) -> tuple[ev.Event, ...]:
        """Journals, after a heartbeat, under which outdated tokens it says that nothing can be written any more: it may be
        the last one before the receiver or the driver ends."""
        decided: tuple[ev.Event, ...] = ()
        for tp in sorted(outdated):
            partition = self.state.partitions[str(tp)]
            writer = next((writer for writer in partition.writers if writer.receiver_id == receiver_id), None)
            if writer is not None and partition.owner != receiver_id:
                if not self._settled(writer, tp):
                    continue
                decided += self._applied(_settled(partition, receiver_id, writer.epoch))
            outdated.discard(tp)
        return decided

    # ---- agents ------------------------------------------------------------------------------------------------------

    def _agent_heartbeat(self, request: m.AgentHeartbeatRequest, now: float, now_ms: int) -> Decision:
        """Delete commands are the open clean-ups of the host; a clean-up's number is its command's version."""
        _check_agent(request)
        before = self.agent_news.get(request.host)
        if before is None:
            self._make_room_for_agent(now)
        elif (
            request.url != before.heartbeat.url
            and before.heartbeat.state == "active"
            and now - before.at < self._host_timeout_seconds
        ):
            # tasks would send their token there, and receivers their copies
            raise RefusedError(
                f"host {request.host!r} has an agent at {before.heartbeat.url}, heard {now - before.at:.0f} s ago: one at "
                f"{request.url} is taken when that has ended, or was silent for {self._host_timeout_seconds:g} s",
                "other-url",
            )
        copies = request.copies if request.copies is not None else before.copies if before is not None else ()
        kept = msgspec.structs.replace(request, old_blocks=(), copies=None)
        self.agent_news[request.host] = AgentNews(kept, now, copies)
        mine = [c for c in self.state.cleanups.values() if c.host == request.host and c.blocks]
        done = [c.number for c in mine if c.number <= request.acknowledged]
        decided = self._applied(*(ev.CleanupDone(number) for number in done))
        if not any(cleanup.host == request.host for cleanup in self.state.cleanups.values()):
            going = tuple(
                block
                for block in request.old_blocks
                if is_stray(self.state, block) or is_left_over(self.state, block, request.host)
            )
            going = going or to_give_up(self.state, request.host, request.short_bytes)
            if going:
                number = self.state.cleanup_count + 1
                decided += self._applied(ev.CleanupIntended(number=number, host=request.host, blocks=going))
                mine.append(self.state.cleanups[number])
        commands = tuple(
            m.Command(
                version=c.number,
                driver_epoch=self.driver_epoch,
                kind="delete",
                blocks=tuple(f"{self.state.stream}/{block}" for block in c.blocks),
            )
            for c in mine
            if c.number not in done
        )
        commands += self.managed.heard(request, now)
        return Decision(m.AgentHeartbeatAnswer(driver_epoch=self.driver_epoch, commands=commands), decided)

    def _make_room_for_agent(self, now: float) -> None:
        if len(self.agent_news) < AGENTS_MAX:
            return
        host, news = min(self.agent_news.items(), key=lambda item: item[1].at)
        if now - news.at < AGENT_FORGOTTEN_SECONDS:
            raise RefusedError(
                f"{AGENTS_MAX} hosts have agents, and each was heard within {AGENT_FORGOTTEN_SECONDS:g} s: no more are known",
                "too-many",
            )
        del self.agent_news[host]
        self.managed.forget(host)

    def _place_receivers(self, request: PlaceReceivers, now: float, now_ms: int) -> Decision:
        self.managed.look(
            now,
            {host: news.at for host, news in self.agent_news.items()},
            {receiver_id: news.at for receiver_id, news in self.receiver_news.items()},
        )
        return Decision(tuple(self.managed.notes()))

    # ---- people ------------------------------------------------------------------------------------------------------

    def _accept_gap(self, request: m.AcceptGapRequest, now: float, now_ms: int) -> Decision:
        tp = TopicPartition(request.topic, request.partition)
        partition = self.state.partition(tp)
        trouble = partition.trouble if partition is not None else None
        if partition is None or trouble is None:
            raise RefusedError(f"{tp} waits for no decision: `forebay status` shows what does", "not-found")
        shown = (trouble.position, trouble.accepted_until)
        if (request.from_offset, request.until_offset) != shown or partition.position != trouble.position:
            raise RefusedError(
                f"{tp} waits for a decision about {shown[0]} to {shown[1]}, not {request.from_offset} to "
                f"{request.until_offset}: accept exactly what `forebay status` shows",
                "conflict",
            )
        if trouble.tried != partition.token:
            raise RefusedError(
                f"{tp}: nothing is given up before the WAL has been searched for it{self._why_not_searched(partition)}; "
                "try again then",
                "not-searched",
            )
        cause = f"{trouble.kind}, accepted by {said_by(request.cause)}"
        decided = self._decided_upon(partition, trouble, now_ms, cause)
        done = "a new life was begun" if trouble.begins_life else "the gap was recorded"
        return Decision(m.OperatorAnswer(message=f"{tp}: {done}; intake goes on at {partition.position}"), decided)

    def _hold_for_reset(self, request: HoldForReset, now: float, now_ms: int) -> Decision:
        for tp in request.partitions:
            if tp not in self._held_for_reset:
                partition = self.state.partitions[str(tp)]
                self._held_for_reset[tp] = partition.owner
                for writer in self._unsettled(partition):
                    self._reclaim(writer.receiver_id, tp)
        return Decision(self._why_not_reset(request.partitions))

    def _why_not_reset(self, partitions: Sequence[TopicPartition]) -> str:
        for tp in partitions:
            partition = self.state.partitions[str(tp)]
            if partition.trouble is not None and partition.trouble.tried != partition.token:
                return self.describe_trouble(partition)
            if unsettled := self._unsettled(partition):
                names = ", ".join(f"{writer.receiver_id} (epoch {writer.epoch:x})" for writer in unsettled)
                return f"{tp} waits for what receiver {names} may still write: if it does not run, start it again"
        return ""

    def _reset(self, request: Reset, now: float, now_ms: int) -> Decision:
        """All of them or none."""
        partitions = [TopicPartition(start.topic, start.partition) for start in request.starts]
        if words := self._why_not_reset(partitions):
            raise RefusedError(f"nothing was changed: {words}", "not-settled")
        cause = f"{request.words} by {said_by(request.cause)}"
        return Decision(None, self._applied(*(ev.LifeBegun(start, now_ms, cause) for start in request.starts)))

    def _let_go(self, request: LetGo, now: float, now_ms: int) -> Decision:
        for tp in request.partitions:
            self._reclaim(self._held_for_reset.pop(tp, ""), tp)
        return Decision()

    def _accept_loss(self, request: m.AcceptLossRequest, now: float, now_ms: int) -> Decision:
        first = self.state.batches.get(request.batch_id)
        again = self.state.replaying.get(request.batch_id)
        batch = again or (first if first is not None and first.completed_ms is None else None)
        if batch is None:
            raise RefusedError(f"batch {request.batch_id} is not an unfinished batch of this stream", "not-found")
        # a batch also goes on without what it would read in its window: there the loss is its own, not the earlier batch's
        reach = (*window(self.state, batch, again is not None), batch)
        block_ids = [block_id for one in reach for task in one.tasks for block_id in task]
        labels = {r.label for b in block_ids for r in self.state.blocks[b].meta.ranges}
        spans = [span for one in reach for span in one.spans]
        labels |= set(map(str, spans))
        unknown = [label for label in request.ranges if label not in labels and not (spans and is_inside(label, spans))]
        if unknown or not request.ranges:
            raise UsageError(
                f"batch {request.batch_id} holds {', '.join(sorted(labels))}; name ranges of it"
                + (f", not {', '.join(unknown)}" if unknown else "")
            )
        decided = self._applied(
            ev.LossAccepted(
                batch_id=request.batch_id,
                ranges=tuple(request.ranges),
                time_ms=now_ms,
                cause=said_by(request.cause),
            )
        )
        words = f"batch {request.batch_id} goes on without {', '.join(request.ranges)}"
        return Decision(m.OperatorAnswer(message=words), decided)

    # ---- batches -----------------------------------------------------------------------------------------------------

    def _found_partitions(self, request: FoundPartitions, now: float, now_ms: int) -> Decision:
        new = tuple(s for s in request.starts if f"{s.topic}/{s.partition}" not in self.state.partitions)
        if not self.state.created:
            return Decision(True, self._applied(ev.StreamCreated(new, request.time_ms, request.cause)))
        return Decision(
            bool(new), self._applied(ev.PartitionsAdded(new, request.time_ms, request.cause)) if new else ()
        )

    def _allocate(self, request: Allocate, now: float, now_ms: int) -> Decision:
        """All waiting blocks become one batch, or, where a batch may not hold them all, several. Missed intervals coalesce:
        while ``max_queued_batches`` lie beyond the completed prefix, blocks go on waiting and later make larger batches. The
        answer: the id of the first one."""
        first: int | None = None
        decided: tuple[ev.Event, ...] = ()
        state = self.state
        while state.batch_count - state.completed_number < self._max_queued_batches and (
            state.waiting or (request.empty and state.created and first is None)
        ):
            count = len(state.waiting)
            if self._batch_limits != UNLIMITED:
                waiting = (state.blocks[block_id] for block_id in state.waiting)
                count = longest_prefix(((b.meta.records, b.handle.length) for b in waiting), self._batch_limits)
            blocks = list(map(state.blocks.__getitem__, itertools.islice(state.waiting, count)))
            allocated = ev.BatchAllocated(
                batch_id=state.next_batch_id(),
                number=state.batch_count + 1,
                time_ms=request.time_ms,
                tasks=pack(blocks, max(1, request.tasks)),
            )
            first = first or allocated.batch_id
            decided += self._applied(allocated)
        return Decision(first, decided)

    def _begin_spans(self, request: BeginSpans, now: float, now_ms: int) -> Decision:
        begun = ev.SpansBegun(dict(request.offsets), dict(request.topic_ids), request.time_ms, request.cause)
        return Decision(None, self._applied(begun))

    def _end_spans(self, request: EndSpans, now: float, now_ms: int) -> Decision:
        cause = said_by(request.cause)
        ended = ev.SpansEnded(request.partitions, request.time_ms, cause)
        if not request.again:
            return Decision(None, self._applied(ended))
        begun = ev.SpansBegun(dict(request.again), dict(request.topic_ids), request.time_ms, cause)
        return Decision(None, self._applied(ended, begun))

    def _skip_spans(self, request: SkipSpans, now: float, now_ms: int) -> Decision:
        return Decision(None, self._applied(ev.SpansSkipped(request.spans, request.time_ms, said_by(request.cause))))

    def _name_cursor(self, request: NameCursor, now: float, now_ms: int) -> Decision:
        if self.state.cursor:
            return Decision(self.state.cursor)
        return Decision(request.name, self._applied(ev.CursorNamed(request.name, request.time_ms)))

    def _allocate_spans(self, request: AllocateSpans, now: float, now_ms: int) -> Decision:
        state = self.state
        if state.batch_count - state.completed_number >= self._max_queued_batches:
            return Decision()
        batch_id = state.next_batch_id()
        allocated = ev.SpansAllocated(batch_id, state.batch_count + 1, request.time_ms, request.spans)
        return Decision(batch_id, self._applied(allocated))

    def _complete(self, request: Complete, now: float, now_ms: int) -> Decision:
        if request.replay:
            return self._complete_replayed(request)
        batch = self.state.batches.get(request.batch_id)
        if batch is None or batch.completed_ms is not None:
            raise RefusedError(f"batch {request.batch_id} is completed already", "conflict")
        return Decision(None, self._applied(ev.BatchCompleted(request.batch_id, request.time_ms, request.attempts)))

    def _complete_output(self, request: CompleteOutput, now: float, now_ms: int) -> Decision:
        again = self.state.replaying.get(request.batch_id) if request.replay else None
        batch = again if request.replay else self.state.batches.get(request.batch_id)
        replay = self.state.replay.replay if again is not None and self.state.replay is not None else 0
        if batch is None or replay != request.replay or request.output in batch.outputs:
            raise RefusedError(f"output {request.output} of batch {request.batch_id} is completed already", "conflict")
        if isinstance(batch, Batch) and batch.completed_ms is not None:
            raise RefusedError(f"batch {request.batch_id} is completed already", "conflict")
        done = ev.OutputCompleted(request.batch_id, request.output, request.time_ms, request.replay)
        return Decision(None, self._applied(done))

    def _fail_job(self, request: FailJob, now: float, now_ms: int) -> Decision:
        batch_id = request.failure.batch_id
        batch = self.state.batches.get(batch_id)
        if batch_id not in self.state.replaying and (batch is None or batch.completed_ms is not None):
            return Decision()
        return Decision(None, self._applied(request.failure))

    def _keep_window(self, request: KeepWindow, now: float, now_ms: int) -> Decision:
        if request.batches == self.state.window_batches:
            return Decision()
        return Decision(None, self._applied(ev.WindowChanged(request.batches)))

    def _learn_rate(self, request: LearnRate, now: float, now_ms: int) -> Decision:
        """Journalled only where it makes a difference to the next driver; receivers hear of each."""
        if self.sharing is not None:
            self.sharing.change(request.rate)
        learned = self.state.learned
        if learned is not None and not is_significant(learned.rate, request.rate):
            return Decision()
        return Decision(None, self._applied(ev.RateLearned(request.rate, request.time_ms)))

    def _complete_replayed(self, request: Complete) -> Decision:
        replay = self.state.replay
        if replay is None or replay.replay != request.replay or request.batch_id not in self.state.replaying:
            raise RefusedError(f"batch {request.batch_id} of replay {request.replay} is completed already", "conflict")
        done = ev.ReplayCompleted(request.replay, request.batch_id, request.time_ms, request.attempts)
        return Decision(None, self._applied(done))

    def _begin_replay(self, request: BeginReplay, now: float, now_ms: int) -> Decision:
        running = self.state.replay
        if running is not None:
            raise RefusedError(
                f"replay {running.replay} is under way ({running.completed} of {running.batches} batches done): wait for it",
                "conflict",
            )
        if request.archived_number != self.state.archived_number:
            raise RefusedError("batches moved to the history meanwhile: ask again", "stale")
        found = plan(self.state, request.archived, request.to, request.held_in_kafka)
        if not found.possible:
            raise RefusedError(refuse(found), "conflict")
        if sum(_pieces(batch) for batch in (*found.window, *found.batches)) > REPLAY_BLOCKS_MAX:
            raise RefusedError(
                f"a replay may hold {REPLAY_BLOCKS_MAX} blocks or ranges: begin with a later batch", "conflict"
            )
        begun = ev.ReplayBegun(
            replay=self.state.next_replay(),
            batches=tuple(map(_again, found.batches)),
            time_ms=now_ms,
            cause=said_by(request.cause),
            window=tuple(map(_again, found.window)),
        )
        words = (
            f"replay {begun.replay}: {len(begun.batches)} batches run again, from {begun.batches[0].batch_id} to "
            f"{begun.batches[-1].batch_id}; `forebay status` shows how far it is"
        )
        return Decision(m.OperatorAnswer(message=words), self._applied(begun))

    # ---- queries beside the batch job --------------------------------------------------------------------------------

    def _of_cursors(self, request: CursorRequest, now: float, now_ms: int) -> Decision:
        answer, events = self.cursors.decide(request, now, now_ms)
        return Decision(answer, self._applied(*events))

    def _earliest(self, request: m.EarliestRequest, now: float, now_ms: int) -> Decision:
        return Decision(intake.earliest(self.state, request))

    def _times(self, request: m.TimesRequest, now: float, now_ms: int) -> Decision:
        return Decision(intake.times(self.state, request))

    def _blocks(self, request: m.BlocksRequest, now: float, now_ms: int) -> Decision:
        given = ((news.heartbeat.host, news.copies) for news in self.agent_news.values())
        return Decision(intake.blocks(self.state, request, given))

    # ---- clean-up (INV-8) --------------------------------------------------------------------------------------------

    def _clean_local_copies(self, request: CleanLocalCopies, now: float, now_ms: int) -> Decision:
        state = self.state
        busy = {cleanup.host for cleanup in state.cleanups.values()}
        decided: tuple[ev.Event, ...] = ()
        for host in sorted(state.index.spare.keys() - busy):
            blocks = tuple(itertools.islice(state.index.spare[host], COPIES_AT_ONCE))
            decided += self._applied(ev.CleanupIntended(number=state.cleanup_count + 1, host=host, blocks=blocks))
        return Decision(None, decided)

    def _clean_segment(self, request: CleanSegment, now: float, now_ms: int) -> Decision:
        path = request.facts.path
        judgement = judge(self.state, request, self._limits)
        if not judgement.deletable:
            return Decision(judgement)
        number = self.state.cleanup_count + 1
        decided = self._applied(ev.CleanupIntended(number=number, segments=(path,)))
        return Decision(judgement, decided, (DeleteSegment(number, path),))

    def _cleaned_up(self, request: CleanedUp, now: float, now_ms: int) -> Decision:
        if request.number not in self.state.cleanups:
            return Decision()
        return Decision(None, self._applied(ev.CleanupDone(request.number)))

    def _archived(self, request: Archived, now: float, now_ms: int) -> Decision:
        return Decision(None, self._applied(ev.BatchesArchived(request.batch_ids)))

    def _copied(self, request: Copied, now: float, now_ms: int) -> Decision:
        decided = self._applied(ev.SnapshotCopied(next=request.next, path=request.path))
        return Decision(self.state.copies, decided)

    def _ask(self, request: Ask, now: float, now_ms: int) -> Decision:
        return Decision(request.read(self.state))


def _again(batch: FinishedBatch) -> ev.ReplayedBatch:
    return ev.ReplayedBatch(
        batch.batch_id, batch.number, batch.time_ms, batch.tasks, batch.lost, spans=batch.spans, lives=batch.lives
    )


def _pieces(batch: FinishedBatch) -> int:
    return sum(map(len, batch.tasks)) + len(batch.spans)


def _settled(partition: Partition, receiver_id: str, epoch: int) -> ev.WriterSettled:
    return ev.WriterSettled(topic=partition.topic, partition=partition.partition, receiver_id=receiver_id, epoch=epoch)


def _outdated(state: State) -> dict[str, set[TopicPartition]]:
    found: dict[str, set[TopicPartition]] = {}
    for partition in state.partitions.values():
        for writer in partition.writers:
            if writer.receiver_id != partition.owner:
                found.setdefault(writer.receiver_id, set()).add(partition.tp)
    return found


def _check_agent(beat: m.AgentHeartbeatRequest) -> None:
    """Raises UsageError for what no agent says of itself: it is kept, and shown to others."""
    _check_names(("host", beat.host))
    if not _AGENT_URL.fullmatch(beat.url):
        raise UsageError(
            f"host {beat.host}: an agent's url is http:// or https:// with a host and a port, nothing else"
        )
    lists = (beat.copies or (), beat.old_blocks, beat.labels, beat.receivers, beat.damaged)
    if max(map(len, lists)) > AGENT_ITEMS_MAX:
        raise UsageError(
            f"host {beat.host}: an agent tells of {AGENT_ITEMS_MAX} copies, blocks, labels or receivers at most"
        )
    named = (*beat.labels, *beat.old_blocks, *beat.damaged, *(beat.copies or ()))
    texts = (beat.url, beat.instance_id, beat.state, beat.release, *named)
    of_receivers = (text for r in beat.receivers for text in (r.receiver_id, r.last_words))
    if max(map(len, (*texts, *of_receivers))) > AGENT_TEXT_LENGTH_MAX:
        raise UsageError(f"host {beat.host}: a text of an agent has {AGENT_TEXT_LENGTH_MAX} characters at most")


def _check_names(*names: tuple[str, str]) -> None:
    """``names``: (kind, name) as they came over the wire. Raises UsageError."""
    for kind, name in names:
        try:
            check_name(kind, name)
        except ValueError as error:
            raise UsageError(str(error)) from None


def _trouble_found(request: m.Trouble, partition: Partition) -> ev.TroubleFound:
    """What accepting would do. Aged out: the gap up to the low watermark. Otherwise the offsets mean other records from
    some point on: a new life, at the beginning of a recreated topic, or where a truncated log now ends."""
    if not (0 <= request.low <= OFFSET_MAX and 0 <= request.high <= OFFSET_MAX):
        raise UsageError(f"watermarks {request.low} to {request.high} are no offsets")
    recreated = request.kind == "recreated"
    truncated = request.kind == "truncated" or (request.kind == "out-of-range" and request.position > request.high)
    if recreated:
        accept_until = request.low
    elif truncated:
        accept_until = min(request.position, request.high)
    elif request.kind == "corrupt":
        accept_until = min(request.position + 1, OFFSET_MAX)
    else:
        accept_until = request.low
    if not (recreated or truncated) and accept_until <= request.position:
        raise UsageError(
            f"{request.topic}/{request.partition}: nothing is missing at {request.position} "
            f"(watermarks {request.low} to {request.high})"
        )
    return ev.TroubleFound(
        topic=request.topic,
        partition=request.partition,
        kind=request.kind,
        position=request.position,
        accept_until=accept_until,
        new_life=recreated or truncated,
        topic_id=request.topic_id or partition.life.topic_id,
        leader_epoch=request.leader_epoch if (recreated or truncated) else partition.leader_epoch,
    )
