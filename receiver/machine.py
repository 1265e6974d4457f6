"""The receiver's decisions: inputs in, actions out. No clock, no threads, no I/O.

:class:`ReceiverMachine` follows the rules of "How a receiver owns a partition" (docs/ARCHITECTURE.md). The service's
threads drive it in production and a seeded scheduler drives the same object in the simulation, so it believes nothing
that it was not told: answers that are late, repeated or lost change nothing, and are known by their request's number.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from forebay import messages
from forebay.columns import Columns, EndOfPartition, PartitionTrouble, Start
from forebay.settings import ReceiverSettings
from forebay.values import TEXT_LENGTH_MAX, TopicPartition, block_id
from receiver import actions as act
from receiver import hole
from receiver import inputs as inp
from receiver.block_draft import BlockDraft, DraftRange, OpenBlock, Piece, remaining
from receiver.named_topics import NamedTopics
from receiver.partition import HOLDING, TAKING, Partition, Phase
from receiver.pausing import Pausing
from receiver.requests import Request, Requests
from receiver.sealed_blocks import SealedBlock, SealedBlocks
from receiver.source import CommitPoint
from receiver.throttle import Throttle
from receiver.told_errors import ToldErrors

#: delays grow by doubling from ``reclaim_delay`` up to this many times it
DELAY_GROWTH_MAX = 16
#: trouble that a person has to decide is told again after so many times ``reclaim_delay``
TROUBLE_REPEAT = 10
#: ranges in one report: keeps its body far below ``forebay.access.Limits.request_bytes``
REPORT_RANGES_MAX = 10_000
#: a rebalance fails a commit or two, which nobody needs to hear of; this many since the last claim are told
COMMITS_FAILED_TOLD = 3
#: a store that has said nothing, not even that it failed, for so many times ``store_timeout`` hangs
STORE_PATIENCE = 2.0
#: a polling thread that has not come round for so long hangs; a synchronous commit may take that
POLL_PATIENCE_SECONDS = 5.0
#: an answer that did not come within so many times ``report_timeout`` is taken for lost
ANSWER_PATIENCE = 3.0


class ReceiverMachine:
    """Drives one process of one receiver id from registration to exit. Not thread-safe.

    ``version``: of this software, for the driver's status. ``by_pattern``: topics come from ``kafka.pattern``.
    """

    def __init__(
        self,
        stream: str,
        receiver_id: str,
        host: str,
        instance_id: str,
        version: str,
        settings: ReceiverSettings,
        *,
        by_pattern: bool = False,
    ) -> None:
        self._stream = stream
        self._receiver_id = receiver_id
        self._host = host
        self._instance_id = instance_id
        self._version = version
        self._settings = settings
        self._origin = "Kafka" if settings.source == "kafka" else settings.source
        self._actions: list[act.Action] = []
        self._requests = Requests()
        self._ended = False

        self.epoch = 0  # 0: not registered
        self._lineage = 0
        self._driver_epoch = 0  # the highest seen
        self._topics = NamedTopics(by_pattern)
        self._acknowledged = 0  # the highest command version done, of that driver
        self._register_at = 0.0
        self._registering = False

        self._partitions: dict[TopicPartition, Partition] = {}
        self._unsettled: set[TopicPartition] = set()  # those not simply active
        self._generations = 0
        self._open = OpenBlock()
        self._sealed = SealedBlocks()
        self._claims = 0  # claims sent
        self._claims_open: set[int] = set()  # those neither answered nor given up
        self._sequence = 0
        self._held_bytes = 0  # of what is held to be cut again
        self._record_bytes = 0.0  # weight of a usual record

        self._report = 0  # the request in flight, 0: none
        self._report_at = 0.0
        self._checking = False
        self._check_at = 0.0
        self._check_obstacle = ""
        self._heartbeat_at = 0.0
        self._beating = False
        self._polled_at = 0.0
        self._errors = ToldErrors()
        self._now = 0.0
        self._driver_failures = 0  # in a row
        self._driver_silence = ""
        self._no_space = ""
        self._lacking = ""  # what there is no more of, in words
        self._store_away = ""
        self._store = ""  # which one is away, in words
        self._second: messages.SecondHost | None = None  # where second copies go
        self._store_answered_at = 0.0
        self._broker_error = ""
        self._pausing = Pausing(settings.memory)
        self._throttle = Throttle(settings)
        self._recommit: set[TopicPartition] = set()
        self._recommit_at = 0.0
        self._commit_failures = 0

        self._revoking: tuple[TopicPartition, ...] = ()
        self._revoke_deadline = 0.0
        self._draining = False
        self._drain_deadline = 0.0
        self._drain_committed = False
        self._drain_request = 0
        self._drain_at = 0.0
        self._drain_obstacle = ""
        self._ending = ""  # what failed, if that is why it drains

        self.records = 0
        self.counters: Counter[str] = Counter()

    # ---- what the shell may ask --------------------------------------------------------------------------------------

    @property
    def buffered_bytes(self) -> int:
        """Memory that records hold: open block, sealed blocks until answered, what waits to be cut again (INV-6)."""
        return self._open.weight_bytes + self._sealed.weight_bytes + self._held_bytes

    @property
    def state(self) -> str:
        if self._draining:
            return "draining"
        if not self.epoch:
            return "starting"
        held_up = self._driver_silence or self._no_space or self._store_away
        return "waiting" if held_up or not self._partitions else "active"

    @property
    def detail(self) -> str:
        """Why it waits, in words; "" if it does not, or only for the group to assign partitions."""
        if self._ending:
            return f"ends: {self._ending}"
        if self._no_space:
            return f"no {self._lacking}: {self._no_space}"
        if self._store_away:
            return f"{self._store} does not take blocks, polling is paused: {self._store_away}"
        if self._driver_silence:
            return f"driver out of reach: {self._driver_silence}"
        if self._topics.detail:
            return self._topics.detail
        if not self._partitions and self._broker_error:
            return f"no partition assigned; {self._origin}: {self._broker_error}"
        if self._check_obstacle:
            return f"blocks wait for their topics' ids: {self._check_obstacle}"
        return "memory is full, polling is paused" if self._pausing.memory_is_full else ""

    def seconds_until_seal(self, now: float) -> float:
        """How long the open block stays open if nothing more comes; the block interval if there is none."""
        interval = self._settings.block_interval
        return max(0.0, self._open.opened_at + interval - now) if self._open.ranges else interval

    def poll_records_max(self, now: float) -> int:
        """How many records the next poll may take so that, by their usual size, memory stays in its bound (INV-6), and no
        more comes in than the rate allows. 0: none should be made before something changes, or the rate has room again."""
        if not self._pausing.all and (self._pausing.waits_for_memory or self.seconds_until_poll(now) > 0.0):
            return 0
        limit: float = self._settings.poll_records
        if self._throttle.limited and not self._pausing.all:
            taking = [tp for tp, p in self._partitions.items() if p.generation and tp not in self._pausing.alone]
            limit = min(limit, self._throttle.records_max(taking, now))
        if self._record_bytes:
            room = self._settings.memory - self.buffered_bytes
            limit = min(limit, room / self._record_bytes)
        return max(1, int(limit))

    def seconds_until_poll(self, now: float) -> float:
        """How long the next poll has to wait for the rate's sake, unless all are paused; 0: not at all."""
        return self._throttle.seconds_until_poll(now)

    def is_current(self, tp: TopicPartition, generation: int) -> bool:
        """Whether a start is still wanted when its turn comes: the group may have taken the partition since."""
        partition = self._partitions.get(tp)
        return partition is not None and partition.generation == generation

    def owns(self, tp: TopicPartition) -> bool:
        return tp in self._partitions

    @property
    def partitions(self) -> tuple[TopicPartition, ...]:
        """Those that the group has given to this receiver, claimed or not."""
        return tuple(self._partitions)

    # ---- the one entry -----------------------------------------------------------------------------------------------

    def handle(self, event: inp.Input, now: float) -> list[act.Action]:
        """What to do about ``event`` at ``now`` (seconds, never going back). After an ``Exit`` nothing is done."""
        if self._ended:
            return []
        self._now = now
        handler: Callable[[Any, float], None] = getattr(self, _HANDLERS[type(event)])
        handler(event, now)
        self._progress(now)
        done, self._actions = self._actions, []
        return done

    def _do(self, action: act.Action) -> None:
        if not self._ended:
            self._actions.append(action)

    def _note(self, text: str, warning: bool = False) -> None:
        self._do(act.Note(text, warning))
        if warning:
            self._errors.add(text, self._now)

    def _exit(self, code: int, reason: str) -> None:
        self._do(act.Exit(code, reason))
        self._ended = True

    def _ask(self, now: float, done: Callable[[Any, float], None], failed: Callable[[str, float], None]) -> int:
        return self._requests.add(now, done, failed)

    def _asked(self, number: int) -> Request | None:
        request = self._requests.take(number)
        if request is None:  # late, or repeated
            self.counters["stale_answers_dropped"] += 1
        return request

    def _answered(self, event: Any, now: float) -> None:
        request = self._asked(event.request)
        if request is not None:
            request.done(event, now)

    def _driver_answered(self, event: Any, now: float) -> None:
        if event.request in self._requests:
            if self._driver_silence:
                self._note("the driver answers again")
            self._driver_silence = ""
            self._driver_failures = 0
        self._answered(event, now)

    def _driver_failed(self, event: inp.DriverFailed, now: float) -> None:
        request = self._asked(event.request)
        if request is not None:
            self._miss(request, event.reason, now)

    def _miss(self, request: Request, reason: str, now: float) -> None:
        # Rule 7: the driver out of reach ends nothing. Polling goes on paused, what is unreported is kept.
        self._driver_failures += 1
        if self._driver_failures.bit_count() == 1:  # said again with growing intervals
            self._note(f"the driver is out of reach, trying again with growing delay: {reason}", warning=True)
        self._driver_silence = reason or "no answer"
        request.failed(reason, now)

    def _broker_failed(self, event: inp.BrokerFailed, now: float) -> None:
        request = self._asked(event.request)
        if request is not None:
            request.failed(event.reason, now)

    def _delay(self, failures: int) -> float:
        growth: int = min(1 << min(max(0, failures - 1), 16), DELAY_GROWTH_MAX)
        return float(self._settings.reclaim_delay) * growth

    def _progress(self, now: float) -> None:
        """Everything that is due: run after every input, so that no input has to know what it makes possible."""
        if self._ended:
            return
        self._expire(now)
        if not self.epoch:
            if self._draining:
                self._exit(0, "asked to end before it was registered")
            self._register(now)
            return
        interval_over = self._open.ranges and now >= self._open.opened_at + self._settings.block_interval
        if interval_over or (self._draining and self._open.ranges):
            self._seal(now)
        self._watch_stores(now)
        self._check_topics(now)
        self._send_report(now)
        self._settle(now)
        self._revoke_on(now)
        self._commit_again(now)
        self._beat(now)
        if self._draining:
            self._drain(now)
        self._balance(now)

    def _source_seen(self, event: inp.SourceSeen, now: float) -> None:
        for tp, offset in event.high_watermarks.items():
            if tp in self._partitions:
                self._partitions[tp].high_watermark = offset
        if event.error and event.error != self._broker_error:
            self._note(f"{self._origin}: {event.error}", warning=True)
        self._broker_error = event.error

    def _tick(self, event: inp.Tick, now: float) -> None:
        """``_progress`` does the rest."""
        self._polled_at = now

    def _expire(self, now: float) -> None:
        for request in self._requests.take_overdue(now - ANSWER_PATIENCE * self._settings.report_timeout):
            request.failed("no answer came", now)

    # ---- rule 1: register --------------------------------------------------------------------------------------------

    def _register(self, now: float) -> None:
        if self._ended or self._registering or now < self._register_at:
            return
        self._registering = True
        message = messages.RegisterRequest(
            stream=self._stream,
            receiver_id=self._receiver_id,
            host=self._host,
            instance_id=self._instance_id,
            release=self._version,
        )
        self._do(act.Register(self._ask(now, self._registered, self._register_failed), message))

    def _registered(self, event: inp.Registered, now: float) -> None:
        self._registering = False
        self.epoch = event.epoch
        self._lineage = event.lineage
        self._see_driver(event.driver_epoch)
        self._note(f"registered as {self._receiver_id}, epoch {event.epoch:x}")
        self._throttle.begin(now)
        self._hear_topics(event.topics)
        self._topics.topics = event.topics
        self._do(act.Subscribe(event.epoch, event.topics))

    def _register_failed(self, reason: str, now: float) -> None:
        self._registering = False
        self._register_at = now + self._delay(self._driver_failures)

    def _fenced(self, event: inp.Fenced, now: float) -> None:
        # INV-4: a newer process has this id. Nothing we write or say counts any more, so we end, and stay ended.
        self._exit(4, f"superseded: {event.reason}")

    def _misused(self, event: inp.Misused, now: float) -> None:
        self._exit(2, event.reason)

    # ---- the group's word --------------------------------------------------------------------------------------------

    def _assigned(self, event: inp.Assigned, now: float) -> None:
        for tp in event.partitions:
            self._throw_away(tp)  # assigned again without a word in between: nothing of before is trusted
            self._partitions[tp] = Partition(tp, due=now)
            self._unsettled.add(tp)
        if event.partitions:
            self._note(f"assigned: {_names(event.partitions)}")

    def _revoked(self, event: inp.Revoked, now: float) -> None:
        # Rule 6: what was taken in is sealed, stored and reported before the partition goes to another receiver.
        own = tuple(tp for tp in event.partitions if tp in self._partitions)
        if any(tp in self._open.ranges for tp in own):
            self._seal(now)
        for tp in own:
            partition = self._partitions[tp]
            self._leave(partition, Phase.REVOKING, now)
            self._drop_held(partition)  # needs a new token, which is no longer ours to ask for; Kafka still has it
        if not event.partitions:
            self._do(act.RevocationDone(()))
        self._revoking = (*self._revoking, *event.partitions)
        self._revoke_deadline = now + self._settings.drain_timeout
        if own:
            self._note(f"revoked: {_names(own)}")

    def _revoke_on(self, now: float) -> None:
        if not self._revoking:
            return
        left = [tp for tp in self._revoking if tp in self._partitions and self._sealed.holds(tp)]
        if left and now < self._revoke_deadline:
            return
        if left:
            self._note(f"revocation: the deadline passed before these were reported: {_names(left)}", warning=True)
            self.counters["revocations_past_deadline"] += 1
        releases = []
        for tp in self._revoking:
            partition = self._partitions.get(tp)
            if partition is not None and partition.token and not self._sealed.may_write(tp):
                releases.append(messages.Release(topic=tp.topic, partition=tp.partition, token=partition.token))
            self._throw_away(tp)
        done, self._revoking = self._revoking, ()
        self._do(act.RevocationDone(done))
        # Says that nothing is written under the token any more. Should it be lost, a heartbeat says so.
        self._release(releases, now, lambda: None)

    def _lost(self, event: inp.Lost, now: float) -> None:
        # Rule 6: another receiver may own them by now. Blocks already sealed may still be reported: the driver decides
        # by their tokens; what is not sealed is thrown away.
        for tp in event.partitions:
            self._throw_away(tp)
        if event.partitions:
            self._note(f"lost: {_names(event.partitions)}", warning=True)

    def _throw_away(self, tp: TopicPartition) -> None:
        self._open.remove(tp)
        partition = self._partitions.pop(tp, None)
        if partition is not None:
            self._drop_held(partition)
        self._unsettled.discard(tp)
        self._recommit.discard(tp)
        self._pausing.forget(tp)
        self._throttle.forget(tp)

    def _drop_held(self, partition: Partition) -> None:
        self._held_bytes -= sum(piece.weight_bytes for piece in partition.held)
        partition.forget_held()

    def _leave(self, partition: Partition, phase: Phase, due: float) -> None:
        """Out of ``ACTIVE``, or to another waiting phase: nothing polled under the old generation counts from here."""
        if partition.generation:
            self._do(act.Pause((partition.tp,)))
            self._pausing.forget(partition.tp)
        partition.generation = 0
        partition.phase = phase
        partition.request = 0
        partition.due = due
        self._unsettled.add(partition.tp)

    # ---- rules 2 to 4: look, commit, claim, start --------------------------------------------------------------------

    def _settle(self, now: float) -> None:
        claiming: list[Partition] = []
        for tp in sorted(self._unsettled):
            partition = self._partitions[tp]
            if partition.request or now < partition.due:
                continue
            # Blocks not answered yet carry the old token: claiming now would have them refused. The trouble message
            # waits for them too, so that the position it names is the durable one.
            if self._sealed.holds(tp) or tp in self._open.ranges:
                continue
            if partition.phase is Phase.WAITING and (not self._draining or partition.held_from >= 0):
                claiming.append(partition)
            elif (partition.phase is Phase.INSPECTING or partition.phase is Phase.TROUBLE) and not self._draining:
                self._inspect(partition, now)
        if claiming:
            self._look(claiming, now)

    def _look(self, claiming: Sequence[Partition], now: float) -> None:
        request = self._ask(now, self._looked, lambda reason, at: self._round_failed(request, reason, at))
        for partition in claiming:
            partition.phase = Phase.LOOKING
            partition.request = request
        partitions = tuple(partition.tp for partition in claiming)
        self._do(
            act.Look(
                request,
                messages.LookRequest(receiver_id=self._receiver_id, epoch=self.epoch, partitions=partitions),
            )
        )

    def _of_request(self, request: int) -> list[Partition]:
        """The partitions that wait for this answer: those revoked or assigned again since are not among them."""
        return [self._partitions[tp] for tp in sorted(self._unsettled) if self._partitions[tp].request == request]

    def _round_failed(self, request: int, reason: str, now: float) -> None:
        for partition in self._of_request(request):
            self._leave(partition, Phase.WAITING, now + self._delay(max(1, self._driver_failures)))
            partition.detail = reason

    def _put_off(self, partition: Partition, reason: str, now: float) -> None:
        """Another try of the whole round, later; the delay grows until the partition is active."""
        partition.refusals += 1
        partition.detail = reason
        self._leave(partition, Phase.WAITING, now + self._delay(partition.refusals))

    def _looked(self, event: inp.Looked, now: float) -> None:
        views = {view.tp: view for view in event.views}
        positions: dict[TopicPartition, CommitPoint] = {}
        committing = []
        for partition in self._of_request(event.request):
            view = views.get(partition.tp)
            if view is None or not view.known:
                # The driver has not begun its first life yet: it resolves the start of new partitions now and then.
                self._put_off(partition, "the driver does not know it yet", now)
                continue
            partition.looked = view
            partition.phase = Phase.COMMITTING
            positions[partition.tp] = CommitPoint(view.position, view.leader_epoch, self._metadata(view.life))
            committing.append(partition)
        if not committing:
            return
        # Rule 4: only a member of the group's current generation can commit. A woken zombie still has its local
        # assignment, but fails here and so never takes a token from the rightful owner. INV-1: the position is durable.
        request = self._ask(now, self._commit_synced, lambda reason, at: self._round_failed(request, reason, at))
        for partition in committing:
            partition.request = request
        self._do(act.CommitSync(request, positions))

    def _metadata(self, life: int) -> str:
        return f"forebay:{self._lineage}:{life}"

    def _commit_synced(self, event: inp.CommitSynced, now: float) -> None:
        claiming = []
        for partition in self._of_request(event.request):
            error = event.errors.get(partition.tp)
            if error is not None:
                self._put_off(partition, f"{self._origin} refused its commit: {error}", now)
            else:
                claiming.append(partition)
        if not claiming:
            return
        self._commit_failures = 0
        self._claims += 1
        number = self._claims
        self._claims_open.add(number)

        def done(event: inp.Claimed, at: float) -> None:
            self._claims_open.discard(number)
            self._claimed(event, at)

        def failed(reason: str, at: float) -> None:
            self._claims_open.discard(number)
            self._round_failed(request, reason, at)

        request = self._ask(now, done, failed)
        asks = []
        for partition in claiming:
            assert partition.looked is not None
            partition.phase = Phase.CLAIMING
            partition.request = request
            # Compare-and-set: a claim that arrives after somebody else's names an older token and changes nothing.
            asks.append(
                messages.ClaimAsk(
                    topic=partition.tp.topic, partition=partition.tp.partition, known_token=partition.looked.token
                )
            )
        self._do(
            act.Claim(
                request,
                messages.ClaimRequest(
                    receiver_id=self._receiver_id, epoch=self.epoch, claims=tuple(asks), number=number
                ),
            )
        )

    def _claimed(self, event: inp.Claimed, now: float) -> None:
        grants = {grant.view.tp: grant for grant in event.grants}
        starting = []
        for partition in self._of_request(event.request):
            grant = grants.get(partition.tp)
            if grant is None or not grant.granted:
                self.counters["claims_refused"] += 1
                self._put_off(partition, "its claim was refused: another one came first", now)
                continue
            self.counters["claims_granted"] += 1
            self._granted(partition, grant.view, now)
            starting.append(partition)
        self._start(starting, now)

    def _granted(self, partition: Partition, view: messages.PartitionView, now: float) -> None:
        held, held_from, held_until = partition.held, partition.held_from, partition.expected
        same_life = partition.life == view.life
        self._drop_held(partition)
        partition.token = view.token
        partition.life = view.life
        partition.topic_id = view.topic_id
        partition.gap = view.preceding_gap
        partition.accepted = partition.expected = view.position
        partition.accepted_leader_epoch = partition.leader_epoch = view.leader_epoch
        partition.hole_until = -1
        partition.trouble = partition.trouble_topic_id = partition.detail = ""
        # Rule 4: cut again only what lies at or after the answered position, and touches it (INV-2); in another life
        # the same offsets mean other records.
        if held_from < 0 or not same_life or not held_from <= view.position < held_until:
            return
        for piece in remaining(held, view.position):
            self._append(partition, piece, now)
        if partition.expected < held_until:
            self._move(partition, held_until, now)

    def _start(self, partitions: Iterable[Partition], now: float) -> None:
        """Assigns at the expected position, each time under a new generation: older ones are dropped (rule 3)."""
        starts = []
        for partition in partitions:
            partition.request = 0
            partition.refusals = 0
            if self._draining:  # only what was held had to be cut again; nothing more is taken in
                partition.phase = Phase.WAITING
                partition.due = now
                continue
            self._generations += 1
            partition.generation = self._generations
            partition.phase = Phase.ACTIVE
            partition.at_start = True
            self._unsettled.discard(partition.tp)
            starts.append(Start(partition.tp, partition.expected, partition.leader_epoch, partition.generation))
        if starts:
            self._do(act.StartPartitions(tuple(starts)))
            if self._pausing.all:
                self._do(act.Pause(tuple(start.tp for start in starts)))

    # ---- what is polled ----------------------------------------------------------------------------------------------

    def _polled(self, event: inp.Polled, now: float) -> None:
        self._polled_at = now
        for item in event.items:
            partition = self._partitions.get(item.tp)
            # Rule 3: a poll may still return what was fetched before a rebalance or a new claim.
            if partition is None or partition.phase not in TAKING or partition.generation != item.generation:
                self.counters["stale_polls_dropped"] += 1
            elif self._draining and self._settings.source == "kafka":
                self.counters["polls_dropped_in_drain"] += 1  # Kafka still has it; another source may not
            elif isinstance(item, Columns):
                self._throttle.took(item.tp, item.rows, item.bytes, now)
                self._take(partition, item, now)
            elif isinstance(item, EndOfPartition):
                self._reach_end(partition, item, now)
            else:
                self._stumble(partition, item, now)

    def _take(self, partition: Partition, columns: Columns, now: float) -> None:
        if columns.last_offset < partition.expected:
            return  # the source may start earlier, within a batch
        first = max(columns.first_offset, partition.expected)
        if self._is_unproven_hole(partition, first, now):
            return
        weight = (Piece(first, columns).weight_bytes) / max(1, columns.rows)
        self._record_bytes = weight if not self._record_bytes else 0.9 * self._record_bytes + 0.1 * weight
        self._append(partition, Piece(first, columns), now)

    def _append(self, partition: Partition, piece: Piece, now: float) -> None:
        """Into the open block, which is cut at ``block_size``; what alone is larger than that is a block of its own."""
        limit = self._settings.block_size
        if self._open.bytes and self._open.bytes + piece.columns.bytes > limit:
            self._seal(now)
        if partition.tp not in self._open.ranges:  # a range begins where the one before it ended (INV-2)
            self._open.move(partition.tp, partition.expected, partition.expected, now)
        self._open.add(piece, now)
        partition.expected = piece.columns.last_offset + 1
        partition.leader_epoch = piece.columns.leader_epoch
        if self._open.bytes >= limit:
            self._seal(now)

    def _reach_end(self, partition: Partition, end: EndOfPartition, now: float) -> None:
        if end.offset < partition.expected:
            return
        partition.high_watermark = end.offset
        if end.offset > partition.expected and not self._is_unproven_hole(partition, end.offset, now):
            self._move(partition, end.offset, now)  # transaction markers at the end: lag reaches 0
        if partition.generation:
            partition.at_start = False

    def _move(self, partition: Partition, until_offset: int, now: float) -> None:
        self._open.move(partition.tp, partition.expected, until_offset, now)
        partition.expected = until_offset

    def _is_unproven_hole(self, partition: Partition, first: int, now: float) -> bool:
        """True if ``first`` leaves a hole that is not known to be compaction or markers: then nothing is taken in.

        Reading again means: assigned at the same position under a new generation, by the same token. Rule 3 asks for
        a new claim where a position goes *back*; here nothing at or after it was taken in under this token, so no
        range can be written twice.
        """
        if first > partition.expected:
            confirmed = first == partition.hole_until
            verdict = hole.judge(at_start=partition.at_start, confirmed=confirmed, log_begins_after_position=False)
            if verdict is not hole.Verdict.SKIPPED:
                partition.hole_until = first
                self._leave(partition, Phase.INSPECTING, now)
                return True
        partition.at_start = False
        partition.hole_until = -1
        return False

    def _seal(self, now: float) -> None:
        self._sequence += 1
        ranges = []
        for tp, part in self._open.ranges.items():
            partition = self._partitions[tp]
            gap = partition.gap
            ranges.append(
                DraftRange(
                    tp=tp,
                    life=partition.life,
                    token=partition.token,
                    from_offset=part.from_offset,
                    until_offset=part.until_offset,
                    leader_epoch=partition.leader_epoch,
                    topic_id=partition.topic_id,
                    preceding_gap=gap if gap is not None and gap.until_offset == part.from_offset else None,
                    pieces=tuple(part.pieces),
                )
            )
        draft = BlockDraft(self.epoch, self._sequence, tuple(ranges))
        self._sealed.add(draft, self._open.weight_bytes, now)
        self._open = OpenBlock()
        self._do(act.StoreBlock(draft))

    # ---- rule 8: holes and trouble -----------------------------------------------------------------------------------

    def _stumble(self, partition: Partition, trouble: PartitionTrouble, now: float) -> None:
        # This partition alone pauses; what was taken in before it is stored and reported first.
        self._into_trouble(partition, trouble.kind, trouble.detail, now)
        partition.trouble_end = trouble.end

    def _into_trouble(self, partition: Partition, kind: str, detail: str, now: float) -> None:
        partition.trouble = kind
        partition.trouble_end = -1
        partition.detail = detail
        self.counters["troubles"] += 1
        self._leave(partition, Phase.TROUBLE, now)
        self._note(f"{partition.tp} stands at {partition.expected}: {kind} ({detail})", warning=True)

    def _inspect(self, partition: Partition, now: float) -> None:
        tp = partition.tp
        request = self._ask(now, self._inspected, lambda reason, at: self._inspect_failed(request, reason, at))
        partition.request = request
        self._do(act.Inspect(request, tp))

    def _inspect_failed(self, request: int, reason: str, now: float) -> None:
        for partition in self._of_request(request):
            partition.refusals += 1
            partition.request = 0
            partition.due = now + self._delay(partition.refusals)
            partition.detail = reason

    def _inspected(self, event: inp.Inspected, now: float) -> None:
        for partition in self._of_request(event.request):
            partition.request = 0
            partition.expected = partition.accepted  # all that was taken in before is answered
            if partition.topic_id and event.topic_id and event.topic_id != partition.topic_id:
                partition.trouble = "recreated"
                partition.trouble_topic_id = event.topic_id
            elif partition.trouble == "recreated" and partition.topic_id and event.topic_id == partition.topic_id:
                partition.trouble = ""
                self._put_off(partition, "the topic is the same as before", now)
                continue
            if partition.phase is Phase.INSPECTING and not partition.trouble:
                lost = hole.judge(
                    at_start=True, confirmed=False, log_begins_after_position=event.low > partition.expected
                )
                if lost is not hole.Verdict.LOST:
                    self._start([partition], now)
                    continue
                partition.trouble = "out-of-range"
            inside = event.low <= partition.expected <= event.high
            if partition.trouble == "out-of-range" and inside:
                # What the broker said a moment ago no longer holds: nothing is missing, so read on.
                partition.trouble = ""
                self._put_off(partition, "the position is inside the log again", now)
                continue
            partition.phase = Phase.TROUBLE
            self._tell_trouble(partition, event, now)

    def _tell_trouble(self, partition: Partition, seen: inp.Inspected, now: float) -> None:
        request = self._ask(now, self._trouble_answered, lambda reason, at: self._inspect_failed(request, reason, at))
        partition.request = request
        message = messages.Trouble(
            receiver_id=self._receiver_id,
            epoch=self.epoch,
            topic=partition.tp.topic,
            partition=partition.tp.partition,
            token=partition.token,
            kind=partition.trouble,
            position=partition.expected,
            low=seen.low,
            # a log cut back below the position may have grown past it again, with other records: what follows the place
            # where it was cut is new (INV-5)
            high=min(seen.high, partition.trouble_end) if partition.trouble_end >= 0 else seen.high,
            topic_id=partition.trouble_topic_id or seen.topic_id,
        )
        self._do(act.SendTrouble(request, message))
        self._heartbeat_at = now  # the driver decides when it has heard that nothing is held under the token

    def _trouble_answered(self, event: inp.TroubleAnswered, now: float) -> None:
        for partition in self._of_request(event.request):
            partition.request = 0
            if event.proceed:
                self._note(f"{partition.tp}: {event.message}")
                self._leave(partition, Phase.WAITING, now)
                continue
            if partition.detail != event.message:
                self._note(event.message, warning=True)
            partition.detail = event.message
            partition.due = now + TROUBLE_REPEAT * self._settings.reclaim_delay

    def _check_topics(self, now: float) -> None:
        """Rule 8: a topic deleted and created again gives other records for the same offsets. Its id is read after a
        block's last poll (here: when it is sealed) and before its report."""
        if self._checking or now < self._check_at:
            return
        waiting = self._sealed.unchecked()
        if not waiting:
            return
        topics = sorted({part.tp.topic for sealed in waiting for part in sealed.draft.ranges if part.topic_id})
        until = waiting[-1].draft.sequence  # blocks sealed from here on need a check of their own
        self._checking = True
        request = self._ask(now, lambda event, at: self._topic_ids_read(event, until, at), self._check_failed)
        self._do(act.CheckTopicIds(request, tuple(topics)))

    def _check_failed(self, reason: str, now: float) -> None:
        self._checking = False
        self._check_at = now + self._settings.reclaim_delay
        self.counters["topic_checks_failed"] += 1
        if reason != self._check_obstacle:  # nothing is reported until it is answered: never without a word (INV-5)
            self._note(f"blocks wait for their topics' ids: {reason}", warning=True)
        self._check_obstacle = reason

    def _topic_ids_read(self, event: inp.TopicIdsRead, until: int, now: float) -> None:
        self._checking = False
        self._check_obstacle = ""
        recreated: dict[TopicPartition, str] = {}
        checked: list[int] = []
        for sealed in self._sealed.unchecked():
            if sealed.draft.sequence > until:
                break
            other = {
                part.tp: event.topic_ids.get(part.tp.topic, "deleted")
                for part in sealed.draft.ranges
                if part.topic_id and event.topic_ids.get(part.tp.topic, "deleted") not in ("", part.topic_id)
            }
            recreated.update(other)
            sealed.checked = not other
            if sealed.checked and sealed.stored is None:
                checked.append(sealed.draft.sequence)
        if checked:
            self._do(act.TopicsChecked(tuple(checked)))
        if not recreated:
            return
        self._withdraw(self._sealed.unchecked()[0].draft.sequence, (), now)
        for tp, topic_id in recreated.items():
            partition = self._partitions.get(tp)
            if partition is not None:
                self._drop_held(partition)  # nobody can tell whose records these are
                partition.expected = partition.accepted
                self._into_trouble(partition, "recreated", f"topic id was {partition.topic_id}, is {topic_id}", now)

    # ---- rules 4 and 5: report and commit ----------------------------------------------------------------------------

    def _send_report(self, now: float) -> None:
        if self._report or now < self._report_at:
            return
        blocks = self._sealed.to_report(REPORT_RANGES_MAX)
        if not blocks:
            return
        # One in flight. After a failure it is sent again, with what was stored since: a repeated id is answered alike.
        self._report = self._ask(now, self._reported, self._report_failed)
        message = messages.ReportRequest(receiver_id=self._receiver_id, epoch=self.epoch, blocks=tuple(blocks))
        self._do(act.Report(self._report, message))

    def _report_failed(self, reason: str, now: float) -> None:
        self._report = 0
        self._report_at = now + self._delay(max(1, self._driver_failures))

    def _reported(self, event: inp.ReportAnswered, now: float) -> None:
        self._report = 0
        results = {result.block_id: result for result in event.results}
        commits: dict[TopicPartition, CommitPoint] = {}
        refused: list[messages.BlockResult] = []
        first_refused = 0
        for sealed in list(self._sealed):
            sequence = sealed.draft.sequence
            result = results.get(block_id(self._receiver_id, self.epoch, sequence))
            if result is None:
                continue
            if result.accepted:
                self._sealed.forget(sealed)
                self._accept(sealed, commits)
            else:
                first_refused = first_refused or sequence
                refused.append(result)
        self._commit(commits)
        if refused:
            self._withdraw(first_refused, refused, now)

    def _accept(self, sealed: SealedBlock, commits: dict[TopicPartition, CommitPoint]) -> None:
        assert sealed.stored is not None
        self.counters["blocks_accepted"] += 1
        self.records += sealed.stored.meta.records
        for part in sealed.draft.ranges:
            partition = self._partitions.get(part.tp)
            if partition is None or partition.token != part.token:
                continue  # no longer ours: the next owner commits
            partition.accepted = part.until_offset
            partition.accepted_leader_epoch = part.leader_epoch
            commits[part.tp] = CommitPoint(part.until_offset, part.leader_epoch, self._metadata(part.life))

    def _withdraw(self, first: int, refused: Sequence[messages.BlockResult], now: float) -> None:
        """Rule 4: a new token for every partition in the refused block and in all that are unanswered, before any of
        their ranges is written again. These blocks are never reported (again): what the WAL has of them are orphans."""
        withdrawn = self._sealed.since(first)
        affected: set[TopicPartition] = set()
        for sealed in withdrawn:  # in order of sequence, so each partition's pieces come in order of offset
            self._sealed.forget(sealed)
            for part in sealed.draft.ranges:
                affected.add(part.tp)
                self._hold(part.tp, part.from_offset, part.pieces, part.token)
        for tp in affected:
            part_open = self._open.remove(tp)
            partition = self._partitions.get(tp)
            if partition is None:
                continue
            if part_open is not None:
                self._hold(tp, part_open.from_offset, part_open.pieces, partition.token)
            if partition.phase in TAKING:
                self._put_off(partition, "a report was refused", now)
            elif partition.phase in (Phase.INSPECTING, Phase.TROUBLE):
                self._leave(partition, Phase.WAITING, now + self._delay(1))
        if refused:
            self.counters["blocks_refused"] += len(refused)
            reasons = [f"{s.topic}/{s.partition} ({s.reason}, now at {s.position})" for r in refused for s in r.stale]
            self._note(f"{len(refused)} blocks refused: {'; '.join(reasons[:8])}; claiming again", warning=True)

    def _hold(self, tp: TopicPartition, from_offset: int, pieces: Iterable[Piece], token: int) -> None:
        partition = self._partitions.get(tp)
        if partition is None or partition.token != token or partition.phase is Phase.REVOKING:
            return
        kept = list(pieces)
        partition.hold(from_offset, kept)
        self._held_bytes += sum(piece.weight_bytes for piece in kept)

    def _commit(self, positions: Mapping[TopicPartition, CommitPoint]) -> None:
        if positions:
            self._recommit -= positions.keys()
            self._do(act.CommitAsync(dict(positions)))

    def _commit_failed(self, event: inp.CommitFailed, now: float) -> None:
        # Kafka's group only shows progress; a failed commit is made up for by the next, or repeated when there is none.
        self.counters["commits_failed"] += len(event.errors)
        self._commit_failures += 1
        self._recommit.update(tp for tp in event.errors if tp in self._partitions)
        self._recommit_at = now + self._delay(self._commit_failures)
        sample = next(iter(event.errors.items()), None)
        if sample is not None and self._commit_failures == COMMITS_FAILED_TOLD:
            self._note(f"{self._origin} refused a commit of {sample[0]}: {sample[1]}", warning=True)

    def _commit_again(self, now: float) -> None:
        if not self._recommit or now < self._recommit_at:
            return
        again = {
            tp: self._commit_point(partition)
            for tp in sorted(self._recommit)
            if (partition := self._partitions.get(tp)) is not None and partition.phase in TAKING
        }
        self._recommit.clear()
        self._commit(again)

    def _commit_point(self, partition: Partition) -> CommitPoint:
        return CommitPoint(partition.accepted, partition.accepted_leader_epoch, self._metadata(partition.life))

    # ---- the stores --------------------------------------------------------------------------------------------------

    def _watch_stores(self, now: float) -> None:
        """A store that fails says so itself. One that hangs says nothing: this ends the wait (INV-6)."""
        waiting = self._sealed.first_not_stored()
        if waiting is None or self._no_space:
            return
        silence = now - max(waiting.sealed_at, self._store_answered_at)
        if silence > STORE_PATIENCE * self._settings.store_timeout:
            self._exit(1, f"the stores have not answered for {silence:.0f} s")

    def _block_stored(self, event: inp.BlockStored, now: float) -> None:
        self._store_answered_at = now
        if self._no_space:
            self._note(f"there is {self._lacking} again")
            self._no_space = ""
        if self._store_away:
            self._note(f"{self._store} takes blocks again")
            self._store_away = ""
        self._sealed.store(event.sequence, event.block)
        if not event.block.local and self._settings.local_copies:
            self.counters["local_copies_given_up"] += 1

    def _store_failed(self, event: inp.StoreFailed, now: float) -> None:
        self._exit(1, event.reason)

    def _store_is_away(self, event: inp.StoreAway, now: float) -> None:
        self._store_answered_at = now  # it does not hang: whoever tells this also tells when it has lasted too long
        if not self._store_away:
            self._note(f"{event.store} does not take blocks, trying again: {event.reason}", warning=True)
        self._store_away, self._store = event.reason, event.store

    def _broken(self, event: inp.Broken, now: float) -> None:
        self._exit(1, event.reason)

    def _source_failed(self, event: inp.SourceFailed, now: float) -> None:
        # What was taken in before is not lost for it: a source that can't be read again gave it once.
        self._ending = event.reason
        self._note(event.reason, warning=True)
        self._begin_drain(now)

    def _out_of_space(self, event: inp.OutOfSpace, now: float) -> None:
        self._store_answered_at = now
        # Rule 7: waiting, not failing. Somebody or the clean-up frees space; nothing is lost meanwhile.
        if not self._no_space:
            self._note(f"no {event.lacking}, waiting for it: {event.reason}", warning=True)
        self._no_space, self._lacking = event.reason, event.lacking

    def _balance(self, now: float) -> None:
        self._pausing.weigh(self.buffered_bytes, now)
        held_up = bool(self._driver_silence or self._no_space or self._store_away or self._draining)
        change = self._pausing.change(held_up, self._reading, self._throttle, now)
        if change.for_memory:
            self.counters["pauses_for_memory"] += 1
        if change.slowed:
            self.counters["pauses_for_rate"] += change.slowed
        self._pause(change.pause)
        self._resume(change.resume)

    def _reading(self) -> tuple[TopicPartition, ...]:
        return tuple(tp for tp, partition in self._partitions.items() if partition.generation)

    def _pause(self, partitions: Collection[TopicPartition]) -> None:
        if partitions:
            self._do(act.Pause(tuple(sorted(partitions))))

    def _resume(self, partitions: Collection[TopicPartition]) -> None:
        if partitions:
            self._do(act.Resume(tuple(sorted(partitions))))

    # ---- heartbeats and commands -------------------------------------------------------------------------------------

    def _see_driver(self, driver_epoch: int) -> None:
        if driver_epoch > self._driver_epoch:
            self._driver_epoch = driver_epoch
            self._acknowledged = 0  # a new driver counts its commands anew

    def _beat(self, now: float) -> None:
        # a poll that hangs is silence, whatever the other threads still do: that is how the driver finds it
        if self._beating or now < self._heartbeat_at or now - self._polled_at > POLL_PATIENCE_SECONDS:
            return
        self._beating = True
        self._heartbeat_at = now + self._settings.heartbeat_interval
        message = messages.HeartbeatRequest(
            receiver_id=self._receiver_id,
            epoch=self.epoch,
            state=self.state,
            detail=self.detail[:TEXT_LENGTH_MAX],
            acknowledged=self._acknowledged,
            release=self._version,
            buffered_bytes=self.buffered_bytes,
            records=self.records,
            counters=dict(self.counters),
            partitions=tuple(self._status(partition) for partition in self._partitions.values()),
            claims_done=min(self._claims_open) - 1 if self._claims_open else self._claims,
            holding=self._holding(),
            rate=self._throttle.rate,
            errors=self._errors.notes(now),
        )
        self._do(act.Heartbeat(self._ask(now, self._beat_answered, self._beat_failed), message))

    def _holding(self) -> tuple[messages.Holding, ...]:
        """Every token under which something may yet be written. One that is not among them never comes back: a partition
        leaves the phases that take in under its token only by a new claim, and from the store there is one way."""
        under = {
            (tp, partition.token)
            for tp, partition in self._partitions.items()
            if partition.phase in HOLDING or tp in self._open.ranges
        }
        under |= self._sealed.written_under
        return tuple(
            messages.Holding(topic=tp.topic, partition=tp.partition, token=token) for tp, token in sorted(under)
        )

    def _status(self, partition: Partition) -> messages.PartitionStatus:
        if partition.phase is Phase.ACTIVE:
            state = "paused" if self._pausing.all else "active"
        elif partition.trouble or partition.phase is Phase.INSPECTING:
            state = "trouble"
        else:
            state = "claiming"
        return messages.PartitionStatus(
            topic=partition.tp.topic,
            partition=partition.tp.partition,
            token=partition.token,
            state=state,
            position=partition.expected,
            high_watermark=partition.high_watermark,
            detail=partition.detail[:TEXT_LENGTH_MAX],
            rate=self._throttle.rate_of(partition.tp),
        )

    def _beat_failed(self, reason: str, now: float) -> None:
        self._beating = False
        self._heartbeat_at = now + max(self._settings.heartbeat_interval, self._delay(self._driver_failures))

    def _beat_answered(self, event: inp.HeartbeatAnswered, now: float) -> None:
        self._beating = False
        if event.driver_epoch > self._driver_epoch:
            # what an older driver learned is over: this one says with the same answer what holds
            self._throttle.learn(None, now)
        second = event.second_host
        if second is not None and event.driver_epoch >= self._driver_epoch and second != self._second:
            self._second = second
            self._note(f"second copies go to host {second.host}")
            self._do(act.CopyTo(second))
        if event.driver_epoch >= self._driver_epoch:
            self._hear_topics(event.topics)
            if event.topics is not None:
                self._follow(event.topics)
        self._see_driver(event.driver_epoch)
        for command in sorted(event.commands, key=lambda c: c.version):
            if command.driver_epoch < self._driver_epoch:  # INV-4: an older driver's order, woken late
                self.counters["commands_refused"] += 1
            elif command.version > self._acknowledged and command.kind == "rate":
                self._acknowledged = command.version
                self._throttle.learn(command.rates, now)
            elif command.version > self._acknowledged:  # repeated until acknowledged, done once
                self._acknowledged = command.version
                self._heartbeat_at = now  # acknowledged at once: the process may be about to end
                self._obey(command, now)

    def _hear_topics(self, topics: tuple[str, ...] | None) -> None:
        if warning := self._topics.hear(topics):
            self._note(warning, warning=True)

    def _follow(self, topics: tuple[str, ...]) -> None:
        if topics != self._topics.topics and not self._draining:
            self._topics.topics = topics
            self._note(f"subscribes to {', '.join(topics) or 'no topic'}, as the driver says")
            self._do(act.Follow(topics))

    def _obey(self, command: messages.Command, now: float) -> None:
        self._note(f"the driver orders: {command.kind}")
        if command.kind == "reclaim":
            for tp in command.partitions:
                self._reclaim(tp, now)
        elif command.kind == "drain":
            self._begin_drain(now)
        elif command.kind == "stop":
            self._stop(now)

    def _reclaim(self, tp: TopicPartition, now: float) -> None:
        partition = self._partitions.get(tp)
        if partition is None:
            return
        if partition.phase in (Phase.ACTIVE, Phase.INSPECTING, Phase.TROUBLE):
            # What is open or sealed is reported first, under the token it was cut under; then the claim (see _settle).
            partition.request = 0
            self._leave(partition, Phase.WAITING, now)
        elif partition.phase is Phase.WAITING:
            partition.due = now

    # ---- the end -----------------------------------------------------------------------------------------------------

    def _drain_requested(self, event: inp.DrainRequested, now: float) -> None:
        self._begin_drain(now)

    def _begin_drain(self, now: float) -> None:
        if self._draining:
            return
        self._draining = True
        self._drain_deadline = now + self._settings.drain_timeout
        self._heartbeat_at = now  # what it says of partitions that it has lost may be the last word of this process
        self._note("draining: what is open is sealed, stored, reported and committed")

    def _stop(self, now: float) -> None:
        """Ends without reporting what is open: Kafka still has it, and the next owner takes it in."""
        self._open = OpenBlock()
        for sealed in list(self._sealed):
            self._sealed.forget(sealed)
        for partition in self._partitions.values():
            self._drop_held(partition)
        self._begin_drain(now)

    def _drain(self, now: float) -> None:
        left = self._left()
        if now >= self._drain_deadline:
            self._exit(1, f"not drained within {self._settings.drain_timeout:g} s: {left or self._drain_obstacle}")
            return
        if left or self._drain_request or now < self._drain_at:
            return
        if not self._drain_committed:
            positions = {
                tp: self._commit_point(partition) for tp, partition in self._partitions.items() if partition.token
            }
            if positions:
                self._drain_obstacle = f"{self._origin} did not answer the last commit"
                self._drain_request = self._ask(now, self._drain_synced, self._drain_failed)
                self._do(act.CommitSync(self._drain_request, positions))
                return
            self._drain_committed = True
        self._drain_obstacle = "the driver did not answer the release of the claims"
        releases = [
            messages.Release(topic=tp.topic, partition=tp.partition, token=partition.token)
            for tp, partition in self._partitions.items()
            if partition.token and not self._sealed.may_write(tp)
        ]
        if not releases:
            self._drained()
            return
        self._drain_request = self._release(releases, now, self._drained, self._drain_failed)

    def _left(self) -> str:
        """What a drain still waits for, in words; "" if nothing."""
        blocks = [sealed.draft.sequence for sealed in self._sealed]
        held = [tp for tp, partition in self._partitions.items() if partition.held_from >= 0]
        if blocks:
            first = block_id(self._receiver_id, self.epoch, blocks[0])
            return f"{len(blocks)} blocks not reported (the first is {first})"
        if self._open.ranges:
            return "the open block is not sealed"
        return f"records to be claimed again: {_names(held)}" if held else ""

    def _drain_synced(self, event: inp.CommitSynced, now: float) -> None:
        self._drain_request = 0
        owned = {tp: error for tp, error in event.errors.items() if tp in self._partitions}
        if not owned:
            self._drain_committed = True
            return
        tp, error = next(iter(owned.items()))
        self._drain_failed(f"{self._origin} refused the last commit of {tp}: {error}", now)

    def _drain_failed(self, reason: str, now: float) -> None:
        self._drain_request = 0
        self._drain_obstacle = reason
        self._drain_at = now + self._settings.reclaim_delay

    def _drained(self) -> None:
        self._drain_request = 0
        self._exit(1 if self._ending else 0, self._ending or "drained")

    def _release(
        self,
        releases: Sequence[messages.Release],
        now: float,
        done: Callable[[], None],
        failed: Callable[[str, float], None] = lambda reason, now: None,
    ) -> int:
        if not releases:
            return 0
        request = self._ask(now, lambda event, at: done(), failed)
        message = messages.ReleaseRequest(receiver_id=self._receiver_id, epoch=self.epoch, releases=tuple(releases))
        self._do(act.Release(request, message))
        return request


def _names(partitions: Iterable[TopicPartition]) -> str:
    names = [str(tp) for tp in partitions]
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")


_HANDLERS: dict[type[inp.Input], str] = {
    inp.Tick: "_tick",
    inp.DrainRequested: "_drain_requested",
    inp.Assigned: "_assigned",
    inp.Revoked: "_revoked",
    inp.Lost: "_lost",
    inp.Polled: "_polled",
    inp.SourceSeen: "_source_seen",
    inp.CommitSynced: "_answered",
    inp.CommitFailed: "_commit_failed",
    inp.TopicIdsRead: "_answered",
    inp.Inspected: "_answered",
    inp.BrokerFailed: "_broker_failed",
    inp.BlockStored: "_block_stored",
    inp.StoreFailed: "_store_failed",
    inp.StoreAway: "_store_is_away",
    inp.OutOfSpace: "_out_of_space",
    inp.Registered: "_driver_answered",
    inp.Looked: "_driver_answered",
    inp.Claimed: "_driver_answered",
    inp.Released: "_driver_answered",
    inp.ReportAnswered: "_driver_answered",
    inp.TroubleAnswered: "_driver_answered",
    inp.HeartbeatAnswered: "_driver_answered",
    inp.DriverFailed: "_driver_failed",
    inp.Fenced: "_fenced",
    inp.Misused: "_misused",
    inp.Broken: "_broken",
    inp.SourceFailed: "_source_failed",
}
