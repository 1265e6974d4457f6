"""One process of a receiver: the real machine, encoding and log writer; the threads around them as steps.

Steps of one thread keep their order (``receiver.service``, ``receiver.stores``). The scheduler interleaves the steps of
different threads.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from forebay import messages
from forebay.model.errors import FencedError, ForebayError, OutOfSpaceError, StoreError, UsageError
from forebay.model.values import Block, TopicPartition, timeline_of
from receiver import actions as act
from receiver import inputs as inp
from receiver.blocks.encoded_block import EncodedBlock, EncodingOptions, encode
from receiver.blocks.pending_block import PendingBlock
from receiver.channels.driver_channel import ask
from receiver.machine import Identity
from receiver.sources.source import CommitPoint
from receiver.stores.replica_store import REPLICA_HOST, copy_handle
from receiver.stores.wal_store import has_room
from tests.simulation.scheduler import Step, as_fault
from tests.simulation.source import SimulatedSource
from tests.support.forgetful import Crash
from wal.blocks import encode_meta, local_frame
from wal.segments.frame import FrameKind
from wal.segments.layout import block_segment
from wal.segments.writer import LogWriter, Pending, SegmentIdentity, SegmentLimits

if TYPE_CHECKING:
    from tests.simulation.world import World

#: requests that have other names in the labels of traces
TRACE_NAMES: dict[type[act.DriverAction], str] = {act.Lookup: "look", act.SendFault: "sendtrouble"}
#: failing attempts to write before the store fails for good: the simulation's ``store_timeout``
STORE_ATTEMPTS = 3


@dataclass
class Copying:
    """A block that is being copied to hosts.

    ``own``: this host has it. ``second``: the replica host that has it, "" for none.
    """

    sequence: int
    block: EncodedBlock
    frame: bytes
    waits_for_replica: bool
    own: bool = False
    second: str = ""


class ReceiverProcess:
    """``name``:

    ``<receiver id>.<which process of that id>``. The process is dead once ``exit_code`` or ``killed`` is set.
    """

    def __init__(self, world: World, receiver_id: str, number: int) -> None:
        self.world = world
        self.receiver_id = receiver_id
        self.name = f"{receiver_id}.{number}"
        self.paused = False
        self.killed = False
        self.exit_code: int | None = None
        self.exit_reason = ""
        self.host = "host" if world.options.one_host_name else f"host-{receiver_id}"
        self.clock = world.clock_of(self.name)
        self.machine = world.kinds.machine(
            Identity(world.stream, receiver_id, self.host, self.name, "simulated"), world.receiver_settings
        )
        self.source = SimulatedSource(world.kafka)
        self._encoding = EncodingOptions(world.stream, receiver_id, self.host, False, "none")
        self._copying: Copying | None = None  # without a WAL: the block that is being copied
        self._second = ""
        self._refusing = ""
        self._writer: LogWriter | None = None
        self._pending: deque[PendingBlock] = deque()
        self._checked: set[int] = set()  # blocks whose topics' ids were read
        self._appended: list[tuple[EncodedBlock, Pending]] = []
        self._sync_failures = 0
        self._source_actions: deque[act.SourceAction] = deque()
        self._questions: deque[act.CheckTopicIds | act.Inspect] = deque()
        self._commits: deque[dict[TopicPartition, CommitPoint]] = deque()
        self._commit_errors: dict[TopicPartition, str] = {}
        self._subscribed = False
        self._member: str | None = None
        self._joins = 0
        self._generation = 0
        self._owned: frozenset[TopicPartition] = frozenset()
        self._revoking: frozenset[TopicPartition] | None = (
            None  # within the callback until the machine says that it is done
        )
        self._offered = self._steps_of()

    @property
    def alive(self) -> bool:
        return not self.killed and self.exit_code is None

    @property
    def running(self) -> bool:
        return self.alive and not self.paused

    @property
    def has_unreported(self) -> bool:
        """Return whether it holds a durable block without an answer of a driver."""
        return any(sealed.stored is not None for sealed in self.machine._parts.buffer.sealed)

    @property
    def member(self) -> str | None:
        return self._member

    # ---- what can happen next ----------------------------------------------------------------------------------------

    def _steps_of(self) -> dict[str, Step]:
        """Everything that may happen to this process, by name: most of it is offered again before each step."""
        name, quiet = self.name, self.world.options.quiet
        kill = f"{name} kill"
        steps = {
            "tick": Step(f"{name} tick", self.tick, 4),
            "source": Step(f"{name} source", self.act_on_source, 40),
            "poll": Step(f"{name} poll", self.poll, 30),
            "group": Step(f"{name} group", self.group_turn, 15),
            "append": Step(f"{name} append", self.append, 30),
            "sync": Step(f"{name} sync", self.sync, 20),
            "ask-broker": Step(f"{name} ask-broker", self.ask_broker, 20),
            "commit": Step(f"{name} commit", self.commit, 15),
            "encode": Step(f"{name} encode", self.begin_copying, 30),
            "copy-own": Step(f"{name} copy-own", self.copy_own, 20),
            "copy-second": Step(f"{name} copy-second", self.copy_replica, 20),
            "copy-without-host": Step(f"{name} copy-second", self.copy_replica, 1),
            **{
                f"fetch {tp}": Step(f"{name} fetch {tp}", partial(self.source.fetch, tp, 4), 15)
                for tp in self.world.kafka.partitions()
            },
        }
        faults = {
            # steps that make orphans are as likely as steps that make progress, in a quiet run too
            "kill": Step(kill, self.kill, 2),
            "kill-unreported": Step(kill, self.kill, 4 * quiet),
            "pause": Step(f"{name} pause", self.pause, 2),
            "drain": Step(f"{name} drain", self.drain, 1),
            "refused": Step(f"{name} copy-second-refused", partial(self.copy_replica_refused, False), 3 * quiet),
            "unanswered": Step(f"{name} copy-second-unanswered", partial(self.copy_replica_refused, True), 3 * quiet),
            "append-crash": Step(f"{name} append-crash", partial(self.crash_in, self.append), 10, range(1, 8)),
            "append-fails": Step(f"{name} append-fails", partial(self.fail_in, self.append, "append"), 6),
            "sync-crash": Step(f"{name} sync-crash", partial(self.crash_in, self.sync), 10, range(1, 6)),
            "sync-fails": Step(f"{name} sync-fails", partial(self.fail_in, self.sync, "sync"), 6),
            "sync-lands-now": Step(f"{name} sync-lands-now", partial(self.fail_in, self.sync, "sync", "now"), 5),
            "sync-lands-late": Step(f"{name} sync-lands-late", partial(self.fail_in, self.sync, "sync", "late"), 5),
            "ask-broker-fails": Step(f"{name} ask-broker-fails", self.ask_broker_in_vain, 6),
            "commit-lost": Step(f"{name} commit-lost", self.lose_commit, 6),
        }
        return {**steps, **{key: as_fault(step) for key, step in faults.items()}}

    def steps(self) -> Iterator[Step]:
        offered = self._offered
        yield offered["tick"]
        if self._source_actions and (self._revoking is None or isinstance(self._source_actions[0], act.CommitAsync)):
            yield offered["source"]
        if self._subscribed and self._revoking is None:
            if self._commit_errors or (self.source.can_poll() and self.machine.poll_records_max(self.world.now)):
                yield offered["poll"]
            if self._group_due():
                yield offered["group"]
            for tp in self.source.reading:
                if self.source.can_fetch(tp):
                    yield offered[f"fetch {tp}"]
        if self.world.options.copies:
            yield from self._copy_steps()
        elif self._pending and self._writer is not None and not self._sync_failures:
            yield offered["append"]
        if self._appended:
            yield offered["sync"]
        if self._questions:
            yield offered["ask-broker"]
        if self._commits:
            yield offered["commit"]

    def fault_steps(self) -> Iterator[Step]:
        offered = self._offered
        yield offered["kill-unreported" if self.has_unreported else "kill"]
        yield offered["pause"]
        yield offered["drain"]
        if self._copying is not None and self._copying.waits_for_replica and self._second:
            yield offered["refused"]
            yield offered["unanswered"]
        if self._pending and self._writer is not None and not self._sync_failures:
            yield offered["append-crash"]
            yield offered["append-fails"]
        if self._appended:
            yield offered["sync-crash"]
            yield offered["sync-fails"]
            if not self.world.wal.appendable:
                yield offered["sync-lands-now"]
                yield offered["sync-lands-late"]
        if self._questions:
            yield offered["ask-broker-fails"]
        if self._commits:
            yield offered["commit-lost"]

    # ---- inputs of the machine ---------------------------------------------------------------------------------------

    def tell(self, event: inp.Input) -> None:
        actions = self.machine.handle(event, self.world.now)
        self.world.coverage.acted(self.name, event, actions)
        for action in actions:
            self._hand_out(action)

    def _hand_out(self, action: act.Action) -> None:
        if isinstance(action, act.StoreBlock):
            self._pending.append(action.pending)
        elif isinstance(action, act.TopicsChecked):
            self._checked.update(action.sequences)
        elif isinstance(action, act.ReplicateTo):
            self._second = action.host.host
        elif isinstance(action, act.DriverAction):
            self._send(action)
        elif isinstance(action, act.CheckTopicIds | act.Inspect):
            self._questions.append(action)
        elif isinstance(action, act.RevocationDone):
            self._revocation_done()
        elif isinstance(action, act.Exit):
            self._exit(action)
        elif not isinstance(action, act.Note):
            self._source_actions.append(action)

    def _send(self, action: act.DriverAction) -> None:
        kind = TRACE_NAMES.get(type(action)) or type(action).__name__.lower()
        message = action.message
        if isinstance(message, messages.HeartbeatRequest):
            refusing = (self._refusing,) if self._refusing else ()
            message = msgspec.structs.replace(message, replica_host=self._second, refusing_hosts=refusing)
        self.world.network.send(self.name, kind, message, partial(self._told, action))

    def _told(self, action: act.DriverAction, answer: Any) -> None:
        """As ``DriverChannel`` does: an answer, a refusal, or no answer in time."""
        if not self.alive:
            return
        if answer is None:
            self.tell(inp.DriverFailed(action.request, "no answer in time"))
        elif isinstance(answer, FencedError):
            self.tell(inp.Fenced(str(answer)))
        elif isinstance(answer, UsageError) and isinstance(action, act.Register):
            self.tell(inp.Misused(str(answer)))
        elif isinstance(answer, ForebayError):
            self.tell(inp.DriverFailed(action.request, str(answer)))
        else:
            self.tell(ask(action, lambda path, body, kind: answer))

    def tick(self) -> None:
        self.tell(inp.Tick())

    def drain(self) -> None:
        self.tell(inp.DrainRequested())

    # ---- ends --------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill by SIGKILL: the page cache survives. The group does not know yet."""
        self.killed = True
        self.world.network.sender_died(self.name)

    def pause(self) -> None:
        self.paused = True

    def wake(self) -> None:
        self.paused = False

    def _exit(self, action: act.Exit) -> None:
        self.exit_code, self.exit_reason = action.code, action.reason
        if self._member is not None:
            self.world.kafka.group.leave(self._member)
        self.world.network.sender_died(self.name)
        self.world.invariants.receiver_ended(self)

    def crash_in(self, step: Any, at: int) -> None:
        """Kill during a write: just before the ``at``-th operation of ``step`` on the WAL."""
        wal = self.world.wal
        wal.crash_at_step = wal.steps + at
        try:
            step()
        except Crash:
            self.kill()
        wal.crash_process()

    def fail_in(self, step: Any, operation: str, lands: str = "never") -> None:
        self.world.wal.fail(operation, 1, lands=lands)
        step()
        self.world.clear_failures(self.world.wal)

    # ---- the store ---------------------------------------------------------------------------------------------------

    def append(self) -> None:
        with self._guarded():
            self._append()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """End the process by an error that breaks a thread of the store."""
        try:
            yield
        except MemoryError as error:
            self.tell(inp.Broken(f"a thread of the store broke: {error!r}"))

    def _append(self) -> None:
        assert self._writer is not None
        pending = self._pending[0]
        block = encode(pending, self._encoding, self.clock.wall_ms())
        if not self._has_room(block.payload.length):
            self.world.reached["no room above the reserve"] += 1
            self.tell(inp.OutOfSpace("the WAL is down to its reserve"))
            return
        self._pending.popleft()
        if pending.sequence in self._checked:
            block = replace(block, meta=msgspec.structs.replace(block.meta, checked=True))
        appended = self._writer.append(FrameKind.BLOCK, encode_meta(block.meta), block.payload)
        self._appended.append((block, appended))
        self.world.invariants.block_written(block.meta)

    # ---- the store without a WAL: ``receiver.stores.replica_store``, each copy a step ------------------------------------

    def _copy_steps(self) -> Iterator[Step]:
        copying = self._copying
        if copying is None and self._pending:
            yield self._offered["encode"]
        if copying is not None and not copying.own:
            yield self._offered["copy-own"]
        if copying is not None and copying.waits_for_replica:
            # without a host it reports that, and checks again
            yield self._offered["copy-second" if self._second else "copy-without-host"]

    def begin_copying(self) -> None:
        pending = self._pending.popleft()
        block = encode(pending, self._encoding, self.clock.wall_ms())
        frame = b"".join(bytes(part) for part in local_frame(block.meta, block.payload))
        self._copying = Copying(pending.sequence, block, frame, waits_for_replica=self.world.options.copies > 1)
        self.world.invariants.block_written(block.meta)

    def copy_own(self) -> None:
        copying = self._copying
        assert copying is not None
        self.world.hosts[self.host].keep(copying.frame)
        copying.own = True
        self._copied()

    def copy_replica(self) -> None:
        copying = self._copying
        assert copying is not None
        if not self._second:
            self.tell(inp.OutOfSpace("no host", REPLICA_HOST))
            return
        self.world.hosts[self._second].receive(copying.frame)
        copying.second, copying.waits_for_replica = self._second, False
        self._copied()

    def copy_replica_refused(self, lands: bool) -> None:
        copying = self._copying
        assert copying is not None
        if lands:
            self.world.hosts[self._second].receive(copying.frame)
        self._refusing = self._second
        self.world.reached["replica refused"] += 1
        self.tell(inp.OutOfSpace(f"host {self._second} did not take a replica", REPLICA_HOST))

    def _copied(self) -> None:
        """Report the block when all its copies are stored."""
        copying = self._copying
        assert copying is not None
        if not copying.own or copying.waits_for_replica:
            return
        self._copying, self._refusing = None, ""
        self.tell_stored(copying)

    def tell_stored(self, copying: Copying) -> None:
        frame = copying.frame
        others = (copying.second,) if copying.second else ()
        self.tell(inp.BlockStored(copying.sequence, Block(copying.block.meta, copy_handle([frame]), True, others)))

    def _has_room(self, needed_bytes: int) -> bool:
        """As ``WalStore`` waits for room above the reserve, each check a step."""
        reserve_bytes = self.world.options.wal_reserve_bytes
        return not reserve_bytes or has_room(self.world.wal.free_bytes(), needed_bytes, reserve_bytes)

    def sync(self) -> None:
        with self._guarded():
            self._sync()

    def _sync(self) -> None:
        assert self._writer is not None
        try:
            self._writer.sync()
        except OutOfSpaceError as error:
            self._sync_failures += 1
            self.tell(inp.OutOfSpace(str(error)))
            return
        except FencedError as error:
            self.tell(inp.Fenced(str(error)))
            return
        except StoreError as error:
            self._sync_failures += 1
            if self._sync_failures >= STORE_ATTEMPTS:
                self.tell(inp.StoreFailed(str(error)))
            return
        self._sync_failures = 0
        stored, self._appended = self._appended, []
        for block, _ in stored:
            self.world.invariants.block_synced(self, block.meta)
        for block, pending in stored:
            assert pending.handle is not None
            self.tell(inp.BlockStored(block.meta.sequence, Block(block.meta, pending.handle, False)))

    def _open_epoch(self, epoch: int) -> None:
        world = self.world
        if world.options.copies:
            return
        self._writer = world.kinds.writer(
            world.wal,
            lambda sequence: block_segment(world.stream, self.receiver_id, epoch, sequence),
            identity=SegmentIdentity(world.stream, self.receiver_id, epoch, timeline_of(epoch)),
            limits=SegmentLimits(world.options.segment_bytes, float("inf")),
            now=lambda: world.now,
            new_uid=world.new_uid,
        )

    # ---- the polling thread ------------------------------------------------------------------------------------------

    def poll(self) -> None:
        items = self.source.poll()
        if items:
            self.tell(inp.Polled(items))
        if self._commit_errors and self.alive:
            errors, self._commit_errors = self._commit_errors, {}
            self.tell(inp.CommitFailed(errors))

    def act_on_source(self) -> None:
        action = self._source_actions.popleft()
        if isinstance(action, act.CommitAsync):
            self._commits.append(dict(action.positions))
        elif isinstance(action, act.CommitSync):
            self.tell(inp.CommitSynced(action.request, self._commit(dict(action.positions))))
        elif isinstance(action, act.StartPartitions):
            self.source.start(s for s in action.starts if self.machine.is_current(s.tp, s.generation))
        elif isinstance(action, act.Pause):
            self.source.pause((tp for tp in action.partitions if self.machine.owns(tp)), True)
        elif isinstance(action, act.Resume):
            self.source.pause((tp for tp in action.partitions if self.machine.owns(tp)), False)
        elif isinstance(action, act.Subscribe):
            self._open_epoch(action.epoch)
            self._subscribed = True
        else:
            raise AssertionError(f"no such action on the source: {action}")

    def _commit(self, positions: dict[TopicPartition, CommitPoint]) -> dict[TopicPartition, str]:
        return self.world.kafka.group.commit(self._member, self._generation, positions)

    def commit(self) -> None:
        """An asynchronous commit arrives at the broker."""
        self._commit_errors.update(self._commit(self._commits.popleft()))

    def lose_commit(self) -> None:
        self._commit_errors.update(dict.fromkeys(self._commits.popleft(), "_TRANSPORT"))

    # ---- the broker channel ------------------------------------------------------------------------------------------

    def ask_broker(self) -> None:
        question = self._questions.popleft()
        kafka = self.world.kafka
        if isinstance(question, act.CheckTopicIds):
            self.tell(inp.TopicIdsRead(question.request, {topic: kafka.topic_id(topic) for topic in question.topics}))
        else:
            log = kafka.log(question.tp)
            self.tell(inp.Inspected(question.request, log.low, log.high, kafka.topic_id(question.tp.topic)))

    def ask_broker_in_vain(self) -> None:
        self.tell(inp.BrokerFailed(self._questions.popleft().request, "the broker did not answer"))

    # ---- the group's callbacks, within a poll ------------------------------------------------------------------------

    def _group_due(self) -> bool:
        group = self.world.kafka.group
        if self._member is None or self._member not in group.members:
            return True
        if group.rebalancing:
            return self._member not in group.joined
        return self._generation != group.generation

    def group_turn(self) -> None:
        """What the client does when it receives an answer of the coordinator."""
        group = self.world.kafka.group
        if self._member is not None and self._member not in group.members:
            lost, self._owned, self._member = self._owned, frozenset(), None
            self.source.drop(lost)
            if lost:
                self.tell(inp.Lost(tuple(sorted(lost))))
            return
        if self._member is None:
            self._joins += 1
            self._member = f"{self.name}/{self._joins}"
            group.join(self._member, ())
        elif group.rebalancing:
            if group.cooperative or not self._owned:
                group.join(self._member, self._owned)
            else:
                self._revoke(self._owned)
        else:
            self._generation = group.generation
            target = group.assignment.get(self._member, frozenset())
            gone, new = self._owned - target, target - self._owned
            self._owned = self._owned | new
            if new:
                self.tell(inp.Assigned(tuple(sorted(new))))
            if gone and self.alive:
                self._revoke(gone)

    def _revoke(self, partitions: frozenset[TopicPartition]) -> None:
        self._revoking = partitions
        self.tell(inp.Revoked(tuple(sorted(partitions))))

    def _revocation_done(self) -> None:
        """The callback returns. A cooperative member requests the rebalance that assigns its partitions to others."""
        gone, self._revoking = self._revoking, None
        group = self.world.kafka.group
        if gone is None or self._member is None:
            return
        self._owned -= gone
        self.source.drop(gone)
        if self._member in group.members:
            group.join(self._member, self._owned)
