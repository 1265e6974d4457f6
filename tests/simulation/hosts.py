"""Hosts of a stream without a WAL: their block directories, and agents that report them and delete on command of the
driver.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from executor_agent.commands import block_names, orders
from forebay import messages as m
from forebay.model.errors import ForebayError
from forebay.model.values import Block
from tests.simulation.network import Exchange
from tests.simulation.scheduler import Step
from wal.blocks import StoredBlock, read_stored

if TYPE_CHECKING:
    from tests.simulation.world import World

#: hosts without a receiver, so that a single receiver has a replica host
SPARE = "host-spare"


@dataclass
class Host:
    """``files``: block id → the synced frame.

    ``name``: of the host, and of its agent in the network. A host is never down: a host that is lost returns with an
    empty disk.
    """

    world: World
    name: str
    files: dict[str, bytes] = field(default_factory=dict)
    lost: set[str] = field(default_factory=set)  # blocks that were lost with its disk
    acknowledged: int = 0
    driver_epoch: int = 0
    exchange: Exchange | None = None

    @property
    def running(self) -> bool:
        return True

    def steps(self) -> Iterator[Step]:
        if self.exchange is None:
            yield Step(f"{self.name} beat", self.beat, 2)

    def keep(self, block_id: str, frame: bytes) -> None:
        self.files[block_id] = frame

    def beat(self) -> None:
        request = m.AgentHeartbeatRequest(
            host=self.name, url=f"http://{self.name}:1", instance_id=self.name,
            acknowledged=self.acknowledged, blocks=len(self.files),
            used_bytes=0, free_bytes=1_000_000, old_blocks=tuple(sorted(self.files)),
        )  # fmt: skip
        self.exchange = self.world.network.send(self.name, "agent", request, self._told)

    def _told(self, answer: Any) -> None:
        """As ``Heartbeat.beat``: a performed command is acknowledged once."""
        self.exchange, self.acknowledged = None, 0
        if answer is None or isinstance(answer, ForebayError):
            return
        decided = orders(self.driver_epoch, answer.driver_epoch, answer.commands)
        self.driver_epoch = decided.driver_epoch
        for command in decided.commands:
            for block_id in block_names(command, self.world.stream):
                self.world.invariants.copy_deleted(self.name, block_id)
                self.files.pop(block_id, None)
            self.acknowledged = command.version

    def lose(self) -> None:
        """Lose the disk, and kill every process on the host."""
        self.lost |= self.files.keys()
        self.files.clear()
        for process in list(self.world.processes()):
            if process.host == self.name:
                process.kill()


def hosts_of(world: World) -> dict[str, Host]:
    if not world.options.copies:
        return {}
    names = [*(f"host-r{number}" for number in range(1, world.options.receivers + 1)), SPARE]
    return {name: Host(world, name) for name in names}


def loss_steps(world: World) -> Iterator[Step]:
    """Lose one host in a run: with two copies no record is lost, with one it would be."""
    if world.options.copies > 1 and not any(host.lost for host in world.hosts.values()):
        for host in world.hosts.values():
            if host.files:
                yield Step(f"{host.name} lose", partial(host.lose), max(1, world.options.quiet // 4))


def copies_of(world: World, block: Block) -> Iterator[tuple[str, StoredBlock]]:
    """Return those hosts of the journal's that have the block."""
    for name in block.hosts:
        frame = world.hosts[name].files.get(block.id)
        if frame is not None:
            yield name, read_stored(frame, f"{name}/{block.id}")
