"""Hosts of a stream without a WAL: their block directories, and the agents that own them.

The block directory is a real one, in memory where the machine allows it. The agent's store and heartbeat run as product code;
only its HTTP is modelled.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast
from weakref import finalize

from executor_agent.receivers import Receivers
from executor_agent.service import AgentIdentity, Heartbeat
from executor_agent.store import BlockStore
from forebay import messages as m
from forebay.model.errors import ForebayError, UnreachableError
from forebay.model.values import Block
from forebay.process.clock import Clock
from tests.simulation.scheduler import Step, as_fault
from tests.simulation.shells import SteppedEvent, SteppedThread, Task, pause, stepped
from wal.blocks import BLOCK_SUFFIX, COPY_SUFFIX, StoredBlock, local_files, read_stored

if TYPE_CHECKING:
    from tests.simulation.world import World

#: hosts without a receiver, so that a single receiver has a replica host
IDLE_HOST = "host-spare"
#: size of a block directory; far below what a machine has, so that the machine's free space changes no run
QUOTA_BYTES = 1_000_000
#: where block directories are: in memory if possible
_FOLDER = Path("/dev/shm")


class LateClock:
    """A clock by which every file is old: the driver may not rely on the age of the blocks that a heartbeat names."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock

    def wall_ms(self) -> int:
        return 1 << 42  # in the year 2109

    def monotonic(self) -> float:
        return self._clock.monotonic()


class CheckedStore(BlockStore):
    """The agent's store, whose deletions are checked before they happen."""

    def __init__(self, host: Host) -> None:
        super().__init__(host.directory, quota_bytes=QUOTA_BYTES, clock=LateClock(host.clock), may_delete_copies=False)
        self._host = host

    def delete(self, stream: str, block_id: str) -> bool:
        self._host.world.invariants.copy_deleted(self._host.name, block_id)
        deleted = super().delete(stream, block_id)
        self._host.reread()
        return deleted


class _Driver:
    """The agent's client of the driver: the heartbeat's thread pauses until the answer arrives."""

    def post(self, path: str, body: m.AgentHeartbeatRequest, answer: type[m.AgentHeartbeatAnswer]) -> Any:
        return pause(cast(Any, body))


class Agent:
    """One process of the agent on a host. ``awaits``: number of the heartbeat that awaits its answer; 0 for none."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._beats = 0
        self.awaits = 0
        clock = host.clock
        self.store = CheckedStore(host)
        self.store.open()
        self.heartbeat = Heartbeat(
            self.store,
            Receivers(host.world.stream, (), capacity=0, stop_seconds=1.0, clock=clock),
            cast(Any, _Driver()),
            identity=AgentIdentity(stream=host.world.stream, host=host.name, labels=(), instance_id=host.name),
            interval_seconds=1.0,
            clock=clock,
        )
        self.heartbeat.url = f"http://{host.name}:1"
        self.heartbeat._thread = cast(Any, SteppedThread())
        self.heartbeat._stopping = cast(Any, SteppedEvent())
        self.heartbeat._now = cast(Any, SteppedEvent("beat"))
        self.heartbeat.start()
        self._thread: Task = stepped(self.heartbeat._run)

    def beat(self) -> None:
        """Send the next heartbeat."""
        self._go_on(None)

    def _on_answer(self, number: int, answer: Any) -> None:
        """The heartbeat's thread gets the answer, a refusal, or None for "no answer in time"."""
        if number != self.awaits or self._host.agent is not self:
            return  # a late answer, or the process that asked was killed
        self.awaits = 0
        self._go_on(UnreachableError("no answer in time") if answer is None else answer)

    def _go_on(self, answer: Any) -> None:
        if isinstance(answer, ForebayError):
            wanted: Any = self._thread.throw(answer)
        else:
            wanted = self._thread.send(answer)
        if isinstance(wanted, m.AgentHeartbeatRequest):
            self._beats += 1
            self.awaits = self._beats
            on_answer = partial(self._on_answer, self._beats)
            self._host.world.network.send(self._host.name, "agent", wanted, on_answer)
        elif wanted != "beat":
            raise AssertionError(f"the agent's thread waits for {wanted!r}")


class Host:
    """``name``: of the host, and of its agent in the network.

    ``files``: block id → the synced frame, as read back from the directory. ``changes``: how often they changed. ``lost``: blocks
    that were lost with the disk. A host is never down: a host that is lost returns with an empty disk, and an agent that is
    killed is started again.
    """

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = world.clock_of(name.removeprefix("host-"))  # that of the receiver on it
        self.directory = Path(tempfile.mkdtemp(prefix="forebay-sim-", dir=_FOLDER if _FOLDER.is_dir() else None))
        finalize(self, shutil.rmtree, self.directory, True)
        self.files: dict[str, bytes] = {}
        self.changes = 0
        self.lost: set[str] = set()
        self.agent = Agent(self)

    @property
    def running(self) -> bool:
        return True

    def steps(self) -> Iterator[Step]:
        if not self.agent.awaits:
            yield Step(f"{self.name} beat", self.agent.beat, 2)

    def fault_steps(self) -> Iterator[Step]:
        yield as_fault(Step(f"{self.name} kill-agent", self.kill_agent, 1))

    # ---- what receivers write ----------------------------------------------------------------------------------------

    def receive(self, frame: bytes) -> None:
        """Receive a replica of another host's block, as the agent does for a request."""
        meta = read_stored(frame, self.name).meta
        incoming = self.agent.store.receive(meta.stream, meta.id, len(frame))
        try:
            incoming.write(frame)
            incoming.keep(durable=True)
        finally:
            incoming.close()
        self.reread()

    def reread(self) -> None:
        """Read the directory again after a change."""
        self.changes += 1
        found = {}
        for file in local_files(self.directory):
            block_id, suffix = Path(file.name).stem, Path(file.name).suffix
            if suffix in (BLOCK_SUFFIX, COPY_SUFFIX):
                found[block_id] = self.files.get(block_id) or Path(file.path).read_bytes()
        self.files = found

    # ---- the agent ---------------------------------------------------------------------------------------------------

    def kill_agent(self) -> None:
        """Kill the agent by SIGKILL and start it again over the same directory."""
        self.world.network.sender_died(self.name)
        self.world.reached["agent killed"] += 1
        self.agent = Agent(self)

    def lose(self) -> None:
        """Lose the disk, and kill every process on the host."""
        self.lost |= self.files.keys()
        shutil.rmtree(self.directory)
        self.kill_agent()
        self.reread()
        for process in list(self.world.processes()):
            if process.host == self.name:
                process.kill()


def hosts_of(world: World) -> dict[str, Host]:
    if not world.options.copies:
        return {}
    names = [*(f"host-r{number}" for number in range(1, world.options.receivers + 1)), IDLE_HOST]
    return {name: Host(world, name) for name in names}


def loss_steps(world: World) -> Iterator[Step]:
    """Lose one host in a run: with two copies no record is lost, with one it would be."""
    if world.options.copies > 1 and not any(host.lost for host in world.hosts.values()):
        for host in world.hosts.values():
            if host.files:
                yield Step(f"{host.name} lose", partial(host.lose), 2 * world.options.quiet)


def copies_of(world: World, block: Block) -> Iterator[tuple[str, StoredBlock]]:
    """Return those hosts of the journal's that have the block."""
    for name in block.hosts:
        frame = world.hosts[name].files.get(block.id)
        if frame is not None:
            yield name, read_stored(frame, f"{name}/{block.id}")
