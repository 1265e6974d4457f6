"""Hosts of a stream without a WAL: their block directories, and the agents that own them.

The block directory is a real one, in memory where the machine allows it. The agent's store and heartbeat run as product code;
only its HTTP is modelled. A file of the directory may rot: a bit of it flips, or its end is cut off. When the faults end, the
file has its bytes again, as if another copy of the disk took its place.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, cast
from weakref import finalize

import msgspec

from executor_agent.copies import read_copies
from executor_agent.receivers import Receivers
from executor_agent.service import AgentIdentity, Heartbeat
from executor_agent.store import BlockStore
from forebay import messages as m
from forebay.model.errors import CorruptionError, StoreError, UnreachableError
from forebay.model.values import Block
from forebay.process.clock import Clock
from tests.simulation.folder_faults import FAULTS, FolderFault
from tests.simulation.http_answers import HttpAnswer, SimulatedClient
from tests.simulation.scheduler import Step, as_fault
from tests.simulation.shells import SteppedEvent, SteppedThread, Task, pause, stepped
from wal.blocks import BLOCK_SUFFIX, COPY_SUFFIX, StoredBlock, local_files, read_stored
from wal.blocks.set_aside import block_of
from wal.reading import BlockReference, check_same

if TYPE_CHECKING:
    from tests.simulation.world import World

#: hosts without a receiver, so that a single receiver has a replica host
IDLE_HOST = "host-spare"
#: the host of all receivers, if their hosts have the same name
ONE_HOST = "host"
#: size of a block directory; far below what a machine has, so that the machine's free space changes no run
QUOTA_BYTES = 1_000_000
#: the names of files with the highest epoch of a driver begin with it
_EPOCH_FILE = "driver-epoch"
#: where block directories are: in memory if possible
_FOLDER = Path("/dev/shm")


class WrongClock:
    """A clock that is wrong by years, so that every file is old, or none is.

    The driver may not rely on the age of the blocks that a heartbeat names.
    """

    def __init__(self, clock: Clock, wall_ms: int) -> None:
        self._clock = clock
        self._wall_ms = wall_ms

    def wall_ms(self) -> int:
        return self._wall_ms

    def monotonic(self) -> float:
        return self._clock.monotonic()


class CheckedStore(BlockStore):
    """The agent's store, whose deletions are checked before they happen. The host knows which epoch it stored."""

    def __init__(self, host: Host) -> None:
        clock = WrongClock(host.clock, host.world.options.agents_ms)
        super().__init__(host.directory, quota_bytes=QUOTA_BYTES, clock=clock, may_delete_copies=False)
        self._host = host

    def keep_driver_epoch(self, stream: str, epoch: int) -> None:
        super().keep_driver_epoch(stream, epoch)
        self._host.obeyed = epoch

    def delete(self, stream: str, block_id: str) -> bool:
        self._host.world.invariants.copy_deleted(self._host.name, block_id)
        try:
            return super().delete(stream, block_id)
        finally:
            self._host.reread()


def _send(path: str, message: msgspec.Struct) -> HttpAnswer | None:
    """Send a heartbeat: its thread pauses until the answer arrives."""
    answer: HttpAnswer | None = pause(cast(Any, message))
    return answer


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
            SimulatedClient(_send),
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

    def _on_answer(self, number: int, answer: HttpAnswer | None) -> None:
        """The heartbeat's thread gets the answer, or None for "no answer in time"."""
        if number != self.awaits or self._host.agent is not self:
            return  # a late answer, or the process that asked was killed
        self.awaits = 0
        self._go_on(answer)

    def _go_on(self, answer: HttpAnswer | None) -> None:
        try:
            with self._host.folder.acting():
                wanted: Any = self._thread.send(answer)
        except MemoryError:  # the thread ends, and then the process
            self._host.kill_agent()
            return
        if isinstance(wanted, m.AgentHeartbeatRequest):
            self._host.check_announced(wanted)
            self._beats += 1
            self.awaits = self._beats
            on_answer = partial(self._on_answer, self._beats)
            self._host.world.network.send(self._host.name, "agent", wanted, on_answer)
        elif wanted != "beat":
            raise AssertionError(f"the agent's thread waits for {wanted!r}")


class Host:
    """``name``: of the host, and of its agent in the network.

    ``files``: block id → the synced frame, as read back from the directory before it rotted. ``changes``: how often they changed.
    ``lost``: blocks that were lost with the disk. ``obeyed``: the newest epoch of a driver that the agent stored. A host is never
    down: a host that is lost returns with an empty disk, and an agent that is killed is started again.
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
        self.obeyed = 0
        self._rot: dict[Path, tuple[bytes, bytes]] = {}  # file → its bytes before, and as they are now
        self.folder = FolderFault(self._folder_failed)
        self.agent = Agent(self)

    @property
    def running(self) -> bool:
        return True

    def steps(self) -> Iterator[Step]:
        if not self.agent.awaits:
            yield Step(f"{self.name} beat", self.agent.beat, 2)

    def fault_steps(self) -> Iterator[Step]:
        yield as_fault(Step(f"{self.name} kill-agent", self.kill_agent, 1))
        if not self.folder.is_armed:
            weight = 1 + self.world.options.quiet // 4
            yield as_fault(Step(f"{self.name} folder-fails", self.folder.arm, weight, FAULTS))

    def rot_steps(self) -> Iterator[Step]:
        """Rot that a reader meets is as likely as a step that makes progress."""
        quiet = self.world.options.quiet
        if self.files or self.obeyed:
            is_whole = any(self._is_needed(block_id) and not self.is_damaged(block_id) for block_id in self.files)
            yield as_fault(
                Step(f"{self.name} rots", self._rots, 40 * quiet if is_whole else 1 + quiet // 4, range(10_000))
            )
        if self._rot:
            # an agent examines its files when it starts
            yield as_fault(Step(f"{self.name} kill-agent", self.kill_agent, 5 * quiet))
            yield Step(f"{self.name} heals", self.heal, 1)

    # ---- what receivers write ----------------------------------------------------------------------------------------

    def receive(self, frame: bytes) -> None:
        """Receive a replica of another host's block, as the agent does for a request.

        Raises UnreachableError if that fails: the agent answers with an error, and goes on.
        """
        meta = read_stored(frame, self.name).meta
        try:
            with self.folder.acting():
                incoming = self.agent.store.receive(meta.stream, meta.id, len(frame))
                try:
                    incoming.write(frame)
                    incoming.keep(durable=True)
                finally:
                    incoming.close()
        except (StoreError, MemoryError) as error:
            raise UnreachableError(f"{self.name}: {error}") from None
        finally:
            self.reread()

    def _folder_failed(self) -> None:
        self.world.reached["block directory failed"] += 1

    def reread(self) -> None:
        """Read the directory again after a change."""
        with self.folder.ignored():
            self._reread()

    def _reread(self) -> None:
        self.changes += 1
        found = {}
        for file in local_files(self.directory):
            block_id, suffix = Path(file.name).stem, Path(file.name).suffix
            if suffix in (BLOCK_SUFFIX, COPY_SUFFIX):
                found[block_id] = self.files.get(block_id) or Path(file.path).read_bytes()
            elif (damaged := block_of(file.name)) is not None:
                found.setdefault(damaged, self.files[damaged])
        self.files = found

    # ---- rot ---------------------------------------------------------------------------------------------------------

    def _rots(self, seed: int) -> None:
        """Flip a bit of a file, or cut its end off: mostly of a block that a batch still has to read.

        Of the two files with a driver's epoch, one at a time.
        """
        random = Random(seed)
        files = sorted(Path(file.path) for file in local_files(self.directory) if block_of(file.name) is None)
        if any(path.name.startswith(_EPOCH_FILE) for path in self._rot):
            files = [path for path in files if not path.name.startswith(_EPOCH_FILE)]
        files = [path for path in files if path not in self._rot]
        if not files:
            return
        needed = [path for path in files if self._is_needed(path.stem)]
        path = random.choice(needed if needed and seed % 4 else files)
        before = path.read_bytes()
        # an empty file has no content that could be damaged, and the agent deletes it
        at = random.randrange(1, len(before))
        rotten = before[:at]
        if random.random() < 0.5:
            rotten += bytes([before[at] ^ 1 << random.randrange(8)]) + before[at + 1 :]
        self.rot(path, rotten)

    def _is_needed(self, block_id: str) -> bool:
        """Return whether a batch may still have to read the block, which may not be accepted yet."""
        state = self.world.invariants.durable
        return state is not None and block_id not in state.released

    def rot(self, path: Path, content: bytes) -> None:
        """Let a file have other bytes, until the faults end."""
        self._rot[path] = path.read_bytes(), content
        path.write_bytes(content)
        self.world.reached["rot on a host"] += 1

    def heal(self) -> None:
        """Give every rotten file its bytes back, also one that the agent has set aside, and start the agent again."""
        for path, (before, rotten) in self._rot.items():
            aside = [
                Path(file.path)
                for file in local_files(self.directory)
                if block_of(file.name) == path.stem and Path(file.path).read_bytes() == rotten
            ]
            if (path.exists() and path.read_bytes() == rotten) or (aside and not path.exists()):
                path.write_bytes(before)
            for file in aside:
                file.unlink()
        if self._rot:
            self._rot.clear()
            self.kill_agent()
            self.reread()

    def is_damaged(self, block_id: str) -> bool:
        return any(path.stem == block_id for path in self._rot)

    def check_announced(self, beat: m.AgentHeartbeatRequest) -> None:
        """Check that the heartbeat names every damaged copy that the agent has set aside."""
        aside = {name for file in local_files(self.directory) if (name := block_of(file.name)) is not None}
        self.world.invariants.damage_reported(self.name, aside, beat.damaged)
        self.world.reached["damage reported by an agent"] += bool(aside)

    def copy_of(self, block: Block) -> StoredBlock:
        """Return the block as the agent serves it, verified as a task does. Raises FileNotFoundError, CorruptionError."""
        where = f"{self.name}/{block.id}"
        (size,), data = read_copies(self.agent.store, self.world.stream, [block.id])
        try:
            if not size:
                raise FileNotFoundError(where)
            stored = read_stored(data, where)
            check_same(BlockReference.of(block), stored, where)
        except (FileNotFoundError, CorruptionError):
            if not self.is_damaged(block.id):
                raise
            self.world.reached["damaged copy noticed"] += 1
            raise
        return stored

    # ---- the agent ---------------------------------------------------------------------------------------------------

    def kill_agent(self) -> None:
        """Kill the agent by SIGKILL and start it again over the same directory."""
        self.world.network.sender_died(self.name)
        self.world.reached["agent killed"] += 1
        try:
            with self.folder.acting():
                self.agent = Agent(self)
        except (StoreError, MemoryError):  # it ends, and is started again; after a UsageError it would stay down
            self.agent = Agent(self)
        self.reread()
        self.world.invariants.agent_started(self.name, self.obeyed, self.agent.heartbeat.driver_epoch)

    def lose(self) -> None:
        """Lose the disk, and kill every process on the host."""
        self.lost |= self.files.keys()
        shutil.rmtree(self.directory)
        self._rot.clear()
        self.files, self.obeyed = {}, 0
        self.kill_agent()
        for process in list(self.world.processes()):
            if process.host == self.name:
                process.kill()


def hosts_of(world: World) -> dict[str, Host]:
    if not world.options.copies:
        return {}
    names = [*(f"host-r{number}" for number in range(1, world.options.receivers + 1)), IDLE_HOST]
    if world.options.one_host_name:
        names = [ONE_HOST, IDLE_HOST]
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
