"""Played agents: a fleet of hosts that performs a driver's commands for managed receivers, without processes or waits."""

from __future__ import annotations

from dataclasses import dataclass, field

from driver.decisions.receiver_lifecycle import (
    ManagedReceivers,
    ManagedRules,
)
from forebay import messages as m
from forebay.model.identifiers import managed_id, managed_ordinal

STREAM = "s"
TIMEOUT_SECONDS = 10.0


@dataclass
class Process:
    pid: int
    epoch: int
    version: int
    exit_code: int | None = None
    hangs: bool = False
    stopping: bool = False

    @property
    def running(self) -> bool:
        return self.exit_code is None


@dataclass
class PlayedAgent:
    """Follows orders as ``executor_agent.receivers``; a drained receiver has ended by the next heartbeat."""

    host: str
    capacity: int = 4
    labels: tuple[str, ...] = ()
    up: bool = True
    children: dict[str, Process] = field(default_factory=dict)

    def said(self) -> m.AgentHeartbeatRequest:
        return m.AgentHeartbeatRequest(
            host=self.host, url="http://a", instance_id="i", acknowledged=0, blocks=0, used_bytes=0, free_bytes=0,
            labels=self.labels, capacity=self.capacity,
            receivers=tuple(
                m.ReceiverProcess(
                    receiver_id=name, driver_epoch=p.epoch, version=p.version, running=p.running,
                    pid=p.pid if p.running else 0, exit_code=p.exit_code,
                )
                for name, p in self.children.items()
            ),
        )  # fmt: skip

    def live(self) -> list[str]:
        return [name for name, process in self.children.items() if process.running]


class Played:
    """A driver's receivers and the hosts' agents. Time moves by :meth:`step`: a second, in which all beat and the driver looks.
    After each step no receiver may run twice, unless an agent was cut off from the driver."""

    def __init__(self, count: int, *hosts: str, capacity: int = 4, **options: object) -> None:
        self.options: dict[str, object] = {"hosts_wait_seconds": 0.0, **options}
        self.now = 100.0
        self.count = count
        self.agents = {host: PlayedAgent(host, capacity) for host in hosts}
        self.agent_heartbeats: dict[str, float] = {}
        self.receiver_heartbeats: dict[str, float] = {}
        self.pids = 0
        self.epoch = 0
        self.cut_off = False
        self.started: list[tuple[str, str]] = []  # receiver, host
        self.journal: dict[int, str] = {}  # number → host where it registered last
        self.driver = self.lead()

    def lead(self) -> ManagedReceivers:
        """Another driver takes over: nothing is known but what the journal says."""
        self.epoch += 1
        self.agent_heartbeats, self.receiver_heartbeats = {}, {}
        self.driver = ManagedReceivers(
            STREAM,
            driver_epoch=self.epoch,
            count=self.count,
            known=self.journal,
            rules=ManagedRules(**{"timeout_seconds": TIMEOUT_SECONDS, **self.options}),  # type: ignore[arg-type]
        )
        return self.driver

    def step(self, seconds: int = 1) -> Played:
        for _ in range(seconds):
            self.now += 1.0
            for agent in self.agents.values():
                if agent.up:
                    self.beat(agent)
            self.driver.run_round(self.now, self.agent_heartbeats, self.receiver_heartbeats)
            running = self.running()
            assert self.cut_off or len(running) == len(set(running)), f"runs twice: {running}"
        return self

    def beat(self, agent: PlayedAgent) -> None:
        for name, process in agent.children.items():
            if process.running and process.stopping and not process.hangs:
                process.exit_code = 0
            if process.running and not process.hangs:
                self.receiver_heartbeats[name] = self.now
                self.journal[number_of(name)] = agent.host
        self.agent_heartbeats[agent.host] = self.now
        for command in self.driver.take_heartbeat(agent.said(), self.now):
            self.obey(agent, command)

    def obey(self, agent: PlayedAgent, command: m.Command) -> None:
        name, run = command.receiver_id, (command.driver_epoch, command.version)
        child = agent.children.get(name)
        if command.kind == "start-receiver":
            fresh = child is None or (not child.running and (child.epoch, child.version) < run)
            if fresh and len(agent.live()) < agent.capacity:
                self.pids += 1
                agent.children[name] = Process(self.pids, *run)
                self.started.append((name, agent.host))
        elif child is not None and child.running and (child.epoch, child.version) <= run:
            if command.kind == "kill-receiver":
                child.exit_code = -9
            else:
                child.stopping = True

    # ---- what a test does

    def process(self, number: int) -> Process:
        """The running process of a receiver."""
        name = managed_id(STREAM, number)
        (process,) = (a.children[name] for a in self.agents.values() if name in a.live())
        return process

    def end(self, number: int, exit_code: int) -> None:
        self.process(number).exit_code = exit_code

    def crash(self, host: str) -> None:
        """The agent is killed, and what runs on it dies."""
        self.agents[host].up = False
        self.agents[host].children.clear()

    # ---- what a test sees

    def running(self) -> list[str]:
        return [name for agent in self.agents.values() for name in agent.live()]

    def hosts(self) -> dict[int, str]:
        return {number_of(name): agent.host for agent in self.agents.values() for name in agent.live()}

    def of(self, number: int) -> m.ManagedReceiver:
        return next(r for r in self.driver.status(self.now) if r.receiver_id == managed_id(STREAM, number))

    def states(self) -> list[str]:
        return [r.state for r in self.driver.status(self.now)]


def number_of(receiver_id: str) -> int:
    number = managed_ordinal(STREAM, receiver_id)
    assert number is not None
    return number
