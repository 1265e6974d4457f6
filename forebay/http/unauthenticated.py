"""Connections that are not authenticated yet: their number is bounded, and a new one replaces an old one. No I/O.

If new connections were refused, a flood of silent connections would exclude all other clients. So a new connection is accepted,
and the oldest connection of the peer with the most connections ends. A peer with few connections loses none to a peer with many.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

Connection = TypeVar("Connection", bound=Hashable)

#: number of bits of an IPv6 address that a peer can't choose freely
_IPV6_PREFIX = 64


def peer_of(address: str) -> str:
    """Return the peer to which the numeric ``address`` belongs: an IPv4 address, or an IPv6 network of 64 bits."""
    if ":" not in address:
        return address
    parsed = ipaddress.IPv6Address(address)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.IPv6Network((int(parsed), _IPV6_PREFIX), strict=False))


class Unauthenticated(Generic[Connection]):
    """At most ``room`` connections, each with its peer and its place in the order of arrival."""

    def __init__(self, room: int) -> None:
        self._room = room
        self._arrivals = 0
        self._peer: dict[Connection, str] = {}
        self._of_peer: dict[str, OrderedDict[Connection, int]] = {}

    def __len__(self) -> int:
        return len(self._peer)

    def add(self, connection: Connection, peer: str) -> Connection | None:
        """Add ``connection``. Remove and return the connection that must end for it; None if there is room."""
        self._arrivals += 1
        self._peer[connection] = peer
        self._of_peer.setdefault(peer, OrderedDict())[connection] = self._arrivals
        return self.pop() if len(self._peer) > self._room else None

    def pop(self) -> Connection | None:
        """Remove and return the oldest connection of the peer with the most connections; among several such peers, the oldest.
        None without connections."""
        if not self._peer:
            return None
        most = max(self._of_peer.values(), key=lambda of_one: (len(of_one), -next(iter(of_one.values()))))
        oldest = next(iter(most))
        self.discard(oldest)
        return oldest

    def discard(self, connection: Connection) -> None:
        """Remove ``connection``, if it is present."""
        peer = self._peer.pop(connection, None)
        if peer is None:
            return
        of_peer = self._of_peer[peer]
        del of_peer[connection]
        if not of_peer:
            del self._of_peer[peer]
