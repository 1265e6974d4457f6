"""Replicas beside a WAL: sent to another host while the WAL is written, and left out if that host does not take them in time."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeoutError

from forebay.messages import ReplicaHost
from forebay.model.errors import ForebayError
from forebay.model.values import BlockMeta
from forebay.process.clock import Clock
from receiver.stores.replication import ReplicaSender, ReplicaTarget
from wal.blocks.local_writing import local_frame
from wal.segments.payload import Payload

_log = logging.getLogger("forebay.receiver")

#: maximum time that the report of a block waits for its replica when the WAL has the block; each write to the agent has as long
REPLICA_SECONDS_MAX = 2.0
#: time after a failure in which nothing is sent to the same host: a lost host delays the blocks once in this time
REST_SECONDS = 10.0


class OptionalReplicas:
    """Sends replicas in a thread of its own. Failures are counted and logged, never raised.

    One thread calls :meth:`begin` and :meth:`end`. ``target``: the host that gets the replicas.
    """

    def __init__(self, sender: ReplicaSender, clock: Clock) -> None:
        self.target = ReplicaTarget(clock)
        self._sender = sender
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="store-replica")
        self._sending_to: ReplicaHost | None = None  # of the write in progress, or the last one
        self._overdue: Future[str] | None = None  # is no longer awaited, and has not ended
        self._resting: tuple[str, float] = ("", 0.0)  # a host that failed, and until when nothing is sent to it
        self._failure_logged = False

    def begin(self, meta: BlockMeta, payload: Payload) -> Future[str] | None:
        """Begin to send a replica. The future has its host, "" if the host did not take it. None: there is no host to send to.

        The payload is not copied.
        """
        target = self.target.current
        if target is None or self._is_resting(target) or (self._overdue is not None and not self._overdue.done()):
            return None
        return self._thread.submit(self._send, target, meta, payload)

    def end(self, sending: Future[str] | None, until: float) -> tuple[str, ...]:
        """Return the host that has the replica, () if none has it at ``until``, in seconds of the monotonic clock."""
        if sending is None:
            return ()
        try:
            host = sending.result(max(0.0, until - self._clock.monotonic()))
        except FutureTimeoutError:
            if not sending.cancel():
                self._overdue = sending
                self._failed(self._sending_to, f"it takes longer than {REPLICA_SECONDS_MAX:g} s")
            return ()
        return (host,) if host else ()

    def close(self) -> None:
        """Wait for the write in progress and close the connections."""
        self._thread.shutdown(wait=True, cancel_futures=True)
        self._sender.close()

    def _is_resting(self, target: ReplicaHost) -> bool:
        host, until = self._resting
        return host == target.host and self._clock.monotonic() < until

    def _send(self, target: ReplicaHost, meta: BlockMeta, payload: Payload) -> str:
        if self._is_resting(target):  # it failed after this block was queued
            return ""
        self._sending_to = target
        try:
            self._sender.send(target, meta, local_frame(meta, payload))
        except ForebayError as error:
            self._failed(target, str(error))
            return ""
        self.target.accepted(target)
        self._failure_logged = False
        return target.host

    def _failed(self, target: ReplicaHost | None, reason: str) -> None:
        assert target is not None
        self.target.refused(target)
        self._resting = (target.host, self._clock.monotonic() + REST_SECONDS)
        if not self._failure_logged:
            _log.warning(
                "host %s did not take a replica; blocks are reported without one for now: %s", target.host, reason
            )
        self._failure_logged = True
