"""Where blocks are stored: in the WAL, and on hosts beside it or, in a stream without a WAL, on hosts alone."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from driver.decisions.replica_hosts import HostSpace, loads, replica_host
from driver.tracker.decision import Recorder
from driver.tracker.heartbeats import LastAgentHeartbeat, LastHeartbeat
from driver.tracker.names import check_names
from driver.tracker.options import CopyRules
from forebay import messages as m
from forebay.model.errors import UsageError
from forebay.model.values import Block
from wal.segments.layout import parse_block


class Replicas:
    """Replica hosts, and the check that a block is stored where it must be.

    ``rules``: None if the stream has a WAL and no replicas. ``receiver_heartbeats`` and ``agent_heartbeats``: the last
    heartbeats, by receiver id and by host.
    """

    def __init__(
        self,
        *,
        recorder: Recorder,
        rules: CopyRules | None,
        receiver_heartbeats: Mapping[str, LastHeartbeat],
        agent_heartbeats: Mapping[str, LastAgentHeartbeat],
    ) -> None:
        self.rules = rules
        self._recorder = recorder
        self._receiver_heartbeats = receiver_heartbeats
        self._agent_heartbeats = agent_heartbeats
        #: receiver id → hosts that hold its replicas or were named to it, as far as this driver knows
        self._hosts: dict[str, set[str]] = {}

    def hosts_of(self, receiver_id: str) -> set[str]:
        """Return the known replica hosts of the receiver."""
        return self._hosts.get(receiver_id, set())

    def answer(self, request: m.HeartbeatRequest, now: float) -> m.ReplicaHost | None:
        """Return the replica host that the receiver must use from now on; None if it needs none, or if no host is available."""
        chosen = self._choose(request, now)
        named = {request.replica_host} | ({chosen.host} if chosen is not None else set())
        self._hosts.setdefault(request.receiver_id, set()).update(named & self._agent_heartbeats.keys())
        return chosen

    def forget(self, receiver_id: str) -> None:
        """Forget the replica hosts of a receiver's epoch that has ended."""
        self._hosts.pop(receiver_id, None)

    def check_place(self, block: Block) -> None:
        """Raise UsageError if the block is not stored where this stream keeps its blocks (INV-1)."""
        meta, rules = block.meta, self.rules
        check_names(*(("host", host) for host in block.hosts))
        if rules is None or rules.beside_wal:
            place = parse_block(block.handle.path)
            if place is None or place[:3] != (meta.stream, meta.receiver_id, meta.epoch):
                raise UsageError(
                    f"block {meta.id}: {block.handle.path!r} is not a segment of the receiver and epoch that wrote the block"
                )
            if len(block.other_hosts) > 1 or meta.host in block.other_hosts:
                raise UsageError(
                    f"block {meta.id} names replicas on {', '.join(block.other_hosts)}: beside a WAL a block has at most one, "
                    "on another host than its receiver's"
                )
            return
        held = len(set(block.hosts))
        if block.in_wal or not block.local or held != len(block.hosts) or held < rules.copies:
            raise UsageError(
                f"block {meta.id} is stored {'in a WAL' if block.in_wal else 'on ' + (', '.join(block.hosts) or 'no host')}; "
                f'this stream has wal.url = "none" and receiver.copies = {rules.copies}: give the receiver the same settings'
            )

    def without_unknown(self, block: Block) -> Block | None:
        """Return the block as it can be accepted: with hosts alone that hold the receiver's replicas as far as this driver knows.

        None: no reader could find a replica that the stream needs. Beside a WAL a replica is dispensable, and is left out.
        """
        known = self.hosts_of(block.meta.receiver_id)
        if known.issuperset(block.other_hosts):
            return block
        if not block.in_wal:
            return None
        return msgspec.structs.replace(block, other_hosts=tuple(host for host in block.other_hosts if host in known))

    def _choose(self, request: m.HeartbeatRequest, now: float) -> m.ReplicaHost | None:
        rules = self.rules
        if rules is None or rules.copies < 2:
            return None
        hosts = {
            host: HostSpace(latest.heartbeat.url, latest.heartbeat.free_bytes)
            for host, latest in self._agent_heartbeats.items()
            if now - latest.at < rules.timeout_seconds and latest.heartbeat.state == "active"
        }
        others = (latest.heartbeat for name, latest in self._receiver_heartbeats.items() if name != request.receiver_id)
        return replica_host(
            self._recorder.state.receivers[request.receiver_id].host,
            request.replica_host,
            request.refusing_hosts,
            hosts,
            loads(heartbeat.replica_host for heartbeat in others),
            rules.room_bytes,
        )
