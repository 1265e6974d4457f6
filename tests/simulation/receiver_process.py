"""One process of a receiver: its threads run the product's code, step by step (``shells.py``, ``receiver_threads.py``).

The polling thread runs ``receiver.service``. Encoding, the copy of this host and the writing run ``receiver.stores``, and the
channels run ``receiver.channels``. A thread that waits for another one goes on in the step that ends its wait.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import msgspec

from forebay.messages import ReplicaHost
from forebay.model.errors import ForebayError, UnreachableError
from forebay.model.values import BlockMeta
from receiver import actions as act
from receiver import inputs as inp
from receiver.blocks.encoded_block import EncodingOptions
from receiver.channels.driver_channel import DriverChannel
from receiver.machine import ReceiverIdentity
from receiver.service import ReceiverService
from receiver.stores.replica_store import ReplicaStore
from receiver.stores.store import BlockWrite, Store, StoreOptions
from receiver.stores.wal_store import WalStore
from tests.simulation.hosts import ONE_HOST, QUOTA_BYTES
from tests.simulation.http_answers import HttpAnswer, SimulatedClient
from tests.simulation.invariants.violation import InvariantViolation
from tests.simulation.options import SETTINGS
from tests.simulation.receiver_steps import ReceiverSteps
from tests.simulation.receiver_threads import (
    FOR_EVER,
    CheckedWriteQueue,
    Closing,
    Condition,
    Executor,
    Inbox,
    Sent,
    Thread,
    Wait,
)
from tests.simulation.scheduler import Step
from tests.simulation.shells import Shell, pause
from tests.simulation.source import SimulatedSource
from tests.simulation.upload_faults import ANSWERED, CREATING
from tests.support.stores.forgetful import Crash
from wal.segments.writer import SegmentLimits
from wal.storage import Storage

if TYPE_CHECKING:
    from tests.simulation.world import World

#: how long the WAL may fail before its receiver ends
STORE_SECONDS = 2.0
#: failpoint → the name of the step after it
PAUSES = {"wal.before-sync": "sync"}


class ServiceCondition(Condition):
    """The lock of the service, on which its polling thread waits for actions."""

    def __init__(self, process: ReceiverProcess) -> None:
        super().__init__()
        self._process = process
        self._wait = Wait(process.is_released, self._steps)

    def _steps(self) -> Iterator[str]:
        yield "tick"
        if self._process.has_actions():
            yield "source"

    def wait(self, timeout: float | None = None) -> bool:
        if pause(cast(Any, self._wait)) == "source":
            self._process.source.next_is_chosen()
        return True


def send(path: str, message: msgspec.Struct) -> HttpAnswer | None:
    """Send a request of a channel to the driver: its thread pauses until the answer arrives."""
    answer: HttpAnswer | None = pause(cast(Any, Sent(path.rpartition("/")[2], message)))
    return answer


class Replicas:
    """Sends replicas to the agents of other hosts: the scheduler chooses whether they take one and whether they answer."""

    def __init__(self, process: ReceiverProcess) -> None:
        self._process = process

    def send(self, target: ReplicaHost, meta: BlockMeta, frame: Sequence[Any]) -> None:
        chosen = pause(cast(Any, Wait(steps=lambda: ("copy-second",))))
        world = self._process.world
        if chosen != "refused":
            try:
                world.hosts[target.host].receive(b"".join(bytes(part) for part in frame))
            except UnreachableError:
                world.reached["replica failed"] += 1
                raise
        if chosen != "copy-second":
            world.reached["replica refused"] += 1
            raise UnreachableError(f"{target.host} does not answer")

    def close(self) -> None:
        pass


class Observed:
    """Sees what the machine gets and decides, in order."""

    def __init__(self, process: ReceiverProcess) -> None:
        self._process = process
        self._event: inp.Input | None = None
        self._actions: list[act.Action] = []

    def observe(self, event: inp.Input, now: float) -> None:
        self.flush()
        self._event = event
        if isinstance(event, inp.BlockStored) and event.block.in_wal:
            self._process.later(partial(self._process.world.invariants.block_synced, self._process, event.block.meta))
        elif isinstance(event, inp.ThreadFailure):
            self._process.later(partial(self._process.broken, event))

    def acted(self, action: act.Action, now: float) -> None:
        self._actions.append(action)
        if isinstance(action, act.Exit):
            self.flush()
            self._process.exited(action)

    def flush(self) -> None:
        """Note the decision on the last input."""
        if self._event is not None:
            self._process.world.coverage.acted(self._process.name, self._event, self._actions)
            self._event, self._actions = None, []


class ReceiverProcess:
    """``name``:

    ``<receiver id>.<which process of that id>``. The process is dead once ``exit_code`` or ``killed`` is set.
    """

    replica_store_type: type[ReplicaStore] = ReplicaStore

    def __init__(self, world: World, receiver_id: str, number: int) -> None:
        self.world = world
        self.receiver_id = receiver_id
        self.name = f"{receiver_id}.{number}"
        self.paused = False
        self.killed = False
        self.exit_code: int | None = None
        self.exit_reason = ""
        self.host = ONE_HOST if world.options.one_host_name else f"host-{receiver_id}"
        self.clock = world.clock_of(self.name)
        self.machine = world.kinds.machine(
            ReceiverIdentity(world.stream, receiver_id, self.host, self.name, "simulated"), SETTINGS.receiver
        )
        self.source = SimulatedSource(world.kafka, self.name, self.has_actions)
        self.store: Store
        self._checks: list[Callable[[], None]] = []
        self._observed = Observed(self)
        self.service = self._new_service()
        self._threads: dict[str, Shell] = {}
        self.wanted: dict[str, Any] = {}  # thread → what it waits for
        self._awaited: dict[str, int] = {}  # thread → the number of its request to the driver
        self._requests = 0
        self.is_creating = False  # the next request to the WAL's store
        self._steps = ReceiverSteps(self)

    # ---- the product's parts -----------------------------------------------------------------------------------------

    def _new_service(self) -> ReceiverService:
        service = ReceiverService(
            self.machine,
            SETTINGS,
            self.clock,
            source=self.source,
            store_of=self._new_store,
            channel_of=lambda name, tell: DriverChannel(name, cast(Any, SimulatedClient(send)), tell),
            observers=(self._observed,),
        )
        service._changed = cast(Any, ServiceCondition(self))
        for channel in (service._reports, service._claims, service._beats, service._broker):
            channel._requests = cast(Any, Inbox())
            channel._thread = cast(Any, Thread())
        return service

    def _new_store(self, tell: Callable[[inp.Input], None]) -> Store:
        world = self.world
        encoding = EncodingOptions(
            stream=world.stream, receiver_id=self.receiver_id, host=self.host, headers=False, compression="none"
        )
        options = StoreOptions(timeout_seconds=STORE_SECONDS, gather_bytes=1 << 20, synced=self._is_synced)
        if world.options.copies:
            replicas = self.replica_store_type(
                encoding,
                options,
                clock=self.clock,
                tell=tell,
                directory=world.hosts[self.host].directory,
                quota_bytes=QUOTA_BYTES,
                sender=Replicas(self) if world.options.copies > 1 else None,
            )
            replicas._target._changed = cast(Any, Condition(late="copy-without-host"))
            self.store = replicas
        else:
            self.store = WalStore(
                encoding,
                options,
                clock=self.clock,
                tell=tell,
                storage=self._wal(),
                limits=SegmentLimits(size_bytes=world.options.segment_bytes, age_seconds=float("inf")),
                reserve_bytes=world.options.wal_reserve_bytes,
                new_uid=world.new_uid,
                check_timeline=False,
            )
            self.store.writer_type = world.kinds.writer
        store = self.store
        store._pending = cast(Any, Inbox())
        store._write_queue = CheckedWriteQueue(options.gather_bytes, self.clock, self._is_written)
        store._local = cast(Any, Executor("copy-own" if world.options.copies else ""))
        store._closing = cast(Any, Closing("retry"))
        store._threads = [cast(Any, Thread())]
        store._check_came = cast(Any, Condition(late="encode"))
        return store

    def _wal(self) -> Storage:
        if self.world.bucket is None:
            return self.world.wal
        from tests.simulation.uploads import UploadedStorage  # imports s3fs

        return UploadedStorage(self.world.bucket, self.world.options.wal_part_bytes, self._request)

    def _request(self, method: str) -> str:
        """Pause before a request to the WAL's store, and return what happens to it."""
        self.is_creating = method in CREATING
        self.world.reached["sent in parts"] += method == "upload_part"
        return pause(cast(Any, Wait(steps=lambda: (ANSWERED,)))) or ANSWERED

    def _is_written(self, write: BlockWrite) -> None:
        self.later(partial(self.world.invariants.block_written, write.block.meta))

    def _is_synced(self, seconds: float) -> None:
        if self.world.options.copies:
            self.world.hosts[self.host].reread()

    def start(self) -> None:
        """Start the threads, each up to its first wait."""
        service, store = self.service, self.store
        loops: dict[str, Callable[[], object]] = {
            "polling": service.run,
            "encode": partial(store._guarded, store._encode_all),
            "copy": cast(Any, store._local).run,
            "write": partial(store._guarded, store._write_all),
            "report": service._reports._run,
            "claim": service._claims._run,
            "beat": service._beats._run,
            "broker": service._broker._run,
        }
        for name, loop in loops.items():
            self._threads[name] = Shell(partial(_begin, loop))
            self._threads[name].pauses = PAUSES
        for name in loops:
            self.go_on(name)

    # ---- what its parts ask ------------------------------------------------------------------------------------------

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
        return self.source.member

    def has_actions(self) -> bool:
        """Return whether an action on the source waits, which the polling thread may perform now."""
        actions = self.service._source_actions
        if self.source.in_callback:
            return any(isinstance(action, act.CommitAsync) for action in actions)
        return bool(actions)

    def is_released(self) -> bool:
        """Return whether the machine has ended the callback of the group."""
        return self.source.in_callback and self.service._revocation_done

    def later(self, check: Callable[[], None]) -> None:
        """Run ``check`` when the thread pauses: the product would take its error for one of its own."""
        self._checks.append(check)

    def broken(self, event: inp.ThreadFailure) -> None:
        """A thread may break by a lack of memory."""
        if "MemoryError" not in event.reason:
            raise InvariantViolation("progress", f"{self.name}: {event.reason}")

    # ---- the scheduler -----------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Step]:
        return self._steps.steps()

    def fault_steps(self) -> Iterator[Step]:
        return self._steps.fault_steps()

    def go_on(self, thread: str, answer: Any = None) -> None:
        """Let a thread go on to its next pause, and those that waited for what it did."""
        self._switch(thread, answer)
        again = True
        while again and self.alive:
            again = False
            for name, wanted in self.wanted.items():
                if type(wanted) is Wait and wanted.over():
                    self._switch(name, None)
                    again = True
        self._observed.flush()
        checks, self._checks = self._checks, []
        for check in checks:
            check()

    def _switch(self, thread: str, answer: Any) -> None:
        shell = self._threads[thread]
        with self._folder_acts(thread):
            wanted = shell.throw(answer) if isinstance(answer, ForebayError) else shell.switch(answer)
        if shell.dead:  # the store has failed for good, or the process has ended
            wanted = FOR_EVER
        elif type(wanted) is Sent:
            self._send(thread, wanted)
        self.wanted[thread] = wanted

    def _folder_acts(self, thread: str) -> AbstractContextManager[None]:
        """Let the fault of the block directory act on the thread that writes there."""
        if thread != "copy" or not self.world.options.copies:
            return nullcontext()
        return self.world.hosts[self.host].folder.acting()

    def _send(self, thread: str, sent: Sent) -> None:
        self._requests += 1
        self._awaited[thread] = self._requests
        self.world.network.send(self.name, sent.kind, sent.message, partial(self._on_answer, thread, self._requests))

    def _on_answer(self, thread: str, number: int, answer: HttpAnswer | None) -> None:
        """A channel's client gets an answer, or none in time. It takes one, and no late one."""
        if not self.alive or self._awaited.get(thread) != number:
            return
        del self._awaited[thread]
        self.go_on(thread, answer)

    # ---- ends --------------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """Kill by SIGKILL: the page cache survives. The group does not know yet."""
        self.killed = True
        self.world.network.sender_died(self.name)

    def pause(self) -> None:
        self.paused = True

    def wake(self) -> None:
        self.paused = False

    def exited(self, action: act.Exit) -> None:
        """End the process when its machine says so: what its threads do until then is not simulated."""
        self.exit_code, self.exit_reason = action.code, action.reason
        self.source.leave()
        self.world.network.sender_died(self.name)
        self.later(partial(self.world.invariants.receiver_ended, self))
        pause(cast(Any, FOR_EVER))

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


def _begin(loop: Callable[[], object], answer: None) -> None:
    """Run a thread. ``answer``: what its first switch passes."""
    loop()
