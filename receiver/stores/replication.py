"""Replicas: the copies of blocks on another host, which the driver names, and their sending to that host's agent."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import urllib3

from forebay.http.connections import connections
from forebay.messages import ReplicaHost
from forebay.model.values import BlockMeta
from forebay.process.clock import Clock
from forebay.security.access import Access
from wal.blocks.sending import give_frame

if TYPE_CHECKING:
    from typing_extensions import Buffer

#: how long heartbeats name a host that did not take a replica; the driver may then choose another one
REFUSING_SECONDS = 60.0


class ReplicaSender(Protocol):
    """Sends replicas to other hosts. Called from one thread."""

    def send(self, target: ReplicaHost, meta: BlockMeta, frame: Sequence[Buffer]) -> None:
        """Send a replica, whose bytes are the buffers in ``frame``. The host has it on return. May be repeated.

        Raises ForebayError: the replica may exist or not.
        """

    def close(self) -> None: ...


class AgentReplicaSender:
    """Sends replicas to agents over HTTP. An agent has ``timeout_seconds`` (5 s at most) for each MiB, and ``timeout_seconds``
    for its answer.

    ``durable``: the agent syncs a replica before it answers.
    """

    def __init__(self, timeout_seconds: float, access: Access, *, durable: bool) -> None:
        self._timeout_seconds = timeout_seconds
        self._durable = durable
        self._access = access
        self._pools: dict[str, urllib3.PoolManager] = {}  # by scheme

    def send(self, target: ReplicaHost, meta: BlockMeta, frame: Sequence[Buffer]) -> None:
        scheme = urlsplit(target.url).scheme
        pool = self._pools.get(scheme)
        if pool is None:
            pool = self._pools[scheme] = connections(target.url, self._access)
        give_frame(
            pool,
            target.url,
            meta,
            frame,
            timeout_seconds=self._timeout_seconds,
            durable=self._durable,
            host=target.host,
            headers=self._access.headers(),
        )

    def close(self) -> None:
        for pool in self._pools.values():
            pool.clear()


class ReplicaTarget:
    """The host that the driver names for replicas, and the hosts that did not take one lately. For any thread."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._target: ReplicaHost | None = None
        self._changed = threading.Condition()
        self._refusing: dict[str, float] = {}  # host → until when heartbeats name it

    def name(self, target: ReplicaHost) -> None:
        """Use ``target`` from now on."""
        with self._changed:
            self._target = target
            self._changed.notify_all()

    @property
    def current(self) -> ReplicaHost | None:
        return self._target

    @property
    def host(self) -> str:
        """The named host; "" for none."""
        return self._target.host if self._target is not None else ""

    @property
    def refusing(self) -> tuple[str, ...]:
        """The hosts that did not take a replica in the last ``REFUSING_SECONDS``."""
        now = self._clock.monotonic()
        return tuple(sorted(host for host, until in self._refusing.copy().items() if now < until))

    def refused(self, target: ReplicaHost) -> None:
        """Record that ``target`` refused a replica: its host is in :attr:`refusing` for a while."""
        self._refusing[target.host] = self._clock.monotonic() + REFUSING_SECONDS

    def accepted(self, target: ReplicaHost) -> None:
        """Record that ``target`` accepted a replica: its host is no longer in :attr:`refusing`."""
        self._refusing.pop(target.host, None)

    def wait(self, seconds_max: float) -> ReplicaHost | None:
        """Wait until a host is named, at most ``seconds_max``, and return it."""
        with self._changed:
            self._changed.wait_for(lambda: self._target is not None, seconds_max)
            return self._target

    def wait_for_another(self, failed: ReplicaHost, seconds_max: float, ending: threading.Event) -> None:
        """Wait until another host than ``failed`` is named, at most ``seconds_max``."""
        with self._changed:
            self._changed.wait_for(lambda: self._target != failed or ending.is_set(), seconds_max)
