"""The replica host of each receiver (``receiver.copies = 2``). Decision logic, without I/O.

The driver stores no choice. A receiver reports its replica host in each heartbeat and keeps it while that host can take
replicas. So a new driver moves no receiver, and no choice contradicts an earlier one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forebay.messages import ReplicaHost


@dataclass(frozen=True, slots=True)
class HostSpace:
    """A host whose agent sent a heartbeat recently, and its free space."""

    url: str
    free_bytes: int


def replica_host(
    own_host: str,
    current: str,
    refusing: Iterable[str],
    hosts: Mapping[str, HostSpace],
    loads: Mapping[str, int],
    room_bytes: int,
) -> ReplicaHost | None:
    """Return the replica host for a receiver on ``own_host``; None if no other host has ``room_bytes`` free.

    ``current`` stays while it can take replicas. Otherwise the host with the fewest receivers (``loads``) is chosen, and
    among these the one with the most space. A host that refused the receiver's replicas (``refusing``) is chosen only if
    there is no other: it may accept them again.
    """
    able = {name: host for name, host in hosts.items() if name != own_host and host.free_bytes >= room_bytes}
    refusing = set(refusing)
    if current in able and (current not in refusing or able.keys() <= refusing):
        return ReplicaHost(host=current, url=able[current].url)
    name = min(
        able, key=lambda name: (name in refusing, loads.get(name, 0), -able[name].free_bytes, name), default=None
    )
    return ReplicaHost(host=name, url=able[name].url) if name is not None else None


def loads(replica_hosts: Iterable[str]) -> Counter[str]:
    """Return host → number of receivers that have it as replica host. ``replica_hosts``: the replica host of each receiver; ""
    if it has none."""
    return Counter(host for host in replica_hosts if host)
