"""Where receivers put their second copies in a stream without a WAL (``receiver.copies = 2``): a decision on values.

Nothing of it is kept: a receiver says in its heartbeat where its copies go, and is told to stay there as long as that host can
take them. So a new driver moves nobody, and a choice that no driver remembers can't contradict one that is under way.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from forebay.messages import ReplicaHost


@dataclass(frozen=True, slots=True)
class Host:
    """A host whose agent was heard of lately."""

    url: str
    free_bytes: int


def replica_host(
    own_host: str,
    current: str,
    refusing: Iterable[str],
    hosts: Mapping[str, Host],
    loads: Mapping[str, int],
    room_bytes: int,
) -> ReplicaHost | None:
    """The host for the second copies of a receiver on ``own_host``; None if there is none with ``room_bytes`` free.

    ``current`` stays while it can take copies. Else the host to which the fewest receivers copy (``loads``), of these the one
    with most room. One that the receiver finds ``refusing`` is chosen only if no other is left: it may take them again.
    """
    able = {name: host for name, host in hosts.items() if name != own_host and host.free_bytes >= room_bytes}
    refusing = set(refusing)
    if current in able and (current not in refusing or able.keys() <= refusing):
        return ReplicaHost(host=current, url=able[current].url)
    name = min(
        able, key=lambda name: (name in refusing, loads.get(name, 0), -able[name].free_bytes, name), default=None
    )
    return ReplicaHost(host=name, url=able[name].url) if name is not None else None


def loads(seconds: Iterable[str]) -> Counter[str]:
    """Host → how many receivers copy to it. ``seconds``: of each receiver, where its second copies go; "": nowhere."""
    return Counter(host for host in seconds if host)
