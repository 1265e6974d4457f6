"""Agents with a recent heartbeat, and the wait for those that hold blocks in a stream without a WAL."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from driver.journal.state import State
from driver.service.activity import Activity
from driver.tracker import LastAgentHeartbeat, Tracker
from driver.tracker.requests import Ask, Read
from forebay.process.clock import Clock

log = logging.getLogger(__name__)

#: pause between two checks whether the agents that hold blocks have sent a heartbeat
HOSTS_CHECK_SECONDS = 0.1


class ActiveAgents:
    """Agents that sent a heartbeat within ``timeout_seconds`` and do not drain. Thread-safe.

    Tasks ask only these agents, because an agent that does not answer costs a timeout for each of its blocks.
    """

    def __init__(self, tracker: Tracker, clock: Clock, timeout_seconds: float) -> None:
        self._tracker = tracker
        self._clock = clock
        self._timeout_seconds = timeout_seconds

    def heartbeats(self) -> list[LastAgentHeartbeat]:
        """Return the agents' last heartbeats."""
        since = self._clock.monotonic() - self._timeout_seconds
        agents = list(self._tracker.agent_heartbeats.values())
        return [latest for latest in agents if latest.at >= since and latest.heartbeat.state == "active"]

    def urls(self) -> dict[str, str]:
        """Return host → URL of its agent."""
        return {latest.heartbeat.host: latest.heartbeat.url for latest in self.heartbeats()}

    def copies(self) -> dict[str, tuple[str, ...]]:
        """Return block id → hosts whose agents have a cached copy of it."""
        found: dict[str, tuple[str, ...]] = {}
        for latest in self.heartbeats():
            for block_id in latest.copies:
                found[block_id] = (*found.get(block_id, ()), latest.heartbeat.host)
        return found

    def by_host(self) -> tuple[tuple[str, tuple[str, ...]], ...]:
        """Return each host with the ids of the blocks that its agent has cached copies of."""
        return tuple((latest.heartbeat.host, tuple(latest.copies)) for latest in self.heartbeats())


def hosts_needed(state: State) -> set[str]:
    """Return the hosts with local copies of blocks of unfinished batches, in a stream without a WAL. Called in the decision
    loop."""
    return {
        host
        for block in state.blocks.values()
        if not block.in_wal and block.id not in state.released
        for host in block.hosts
    }


@dataclass(frozen=True, slots=True)
class ReadHostsNeeded(Read[set[str]]):
    """Reads the hosts of :func:`hosts_needed`."""

    def read(self, state: State) -> set[str]:
        return hosts_needed(state)


def await_hosts(ask: Ask, agents: ActiveAgents, activity: Activity, clock: Clock, timeout_seconds: float) -> None:
    """Wait until the agents of all hosts that hold blocks have sent a heartbeat, or for ``timeout_seconds``.

    Without a WAL only hosts have the blocks of unfinished batches, and a driver that has just started knows no agent yet.
    """
    hosts = ask(ReadHostsNeeded())
    until = clock.monotonic() + timeout_seconds
    while missing := sorted(hosts - agents.urls().keys()):
        detail = f"waiting for the agents of hosts that keep blocks: {', '.join(missing)}"
        if detail != activity.detail:
            log.warning("%s. Next step: start `forebay agent` there", detail)
        activity.detail = detail
        if clock.monotonic() >= until or activity.stopping.wait(HOSTS_CHECK_SECONDS):
            break
    activity.await_partitions()
