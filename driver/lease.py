"""The lease: a driver at work says so in the journal's store, and another one refuses to start while it does.

Only a courtesy that keeps two drivers from fencing each other in turn; what protects the data is the journal's epoch. The
observer trusts its own clock alone: a lease is fresh if it changes while being watched for the duration it names. The lease
of a process of this very machine that is gone is stale at once.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from pathlib import Path

import msgspec

from forebay.clock import Clock
from forebay.errors import ForebayError, StoreError
from wal.storage import Storage

log = logging.getLogger(__name__)


class Lease(msgspec.Struct, frozen=True):
    epoch: int
    owner: str
    host: str
    pid: int
    started: str  # tells a process from a later one with the same pid
    beat: int
    duration_seconds: float
    url: str


class LeaseHeld(ForebayError):
    """Another driver is at work."""


def lease_path(stream: str) -> str:
    return f"{stream}/lease"


def read_lease(storage: Storage, stream: str) -> Lease | None:
    try:
        return msgspec.json.decode(storage.read(lease_path(stream)), type=Lease)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # half a lease is nobody's: the epoch protects


def wait_until_stale(storage: Storage, stream: str, stopping: threading.Event) -> None:
    """Returns if no driver is at work. Raises LeaseHeld if the lease changes within the duration it names."""
    first = read_lease(storage, stream)
    if first is None or _is_gone(first):
        return
    log.warning("a driver (%s, host %s, pid %s) may be at work: watching its lease", first.owner, first.host, first.pid)
    for _ in range(10):
        if stopping.wait(first.duration_seconds / 10):
            raise LeaseHeld("told to stop while waiting for another driver's lease to end")
        current = read_lease(storage, stream)
        if current is None or _is_gone(current):
            return
        if (current.owner, current.beat) != (first.owner, first.beat):
            raise LeaseHeld(
                f"a driver leads stream {stream!r} already: {current.owner} at {current.url} (host {current.host}, "
                f"pid {current.pid}); stop it first, or take over with `forebay driver --take-over`"
            )


def _is_gone(lease: Lease) -> bool:
    return lease.host == socket.gethostname() and process_start(lease.pid) != lease.started


def process_start(pid: int) -> str:
    """Boot id and start time of a process of this machine; "" if there is none."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] == "Z" else f"{boot}/{fields[19]}"


class LeaseKeeper:
    """Renews the lease three times per duration, from a thread of its own."""

    def __init__(
        self, storage: Storage, stream: str, epoch: int, owner: str, url: str, duration_seconds: float, clock: Clock
    ) -> None:
        self._storage = storage
        self._stream = stream
        self._lease = Lease(
            epoch=epoch,
            owner=owner,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=process_start(os.getpid()),
            beat=0,
            duration_seconds=float(duration_seconds),
            url=url,
        )
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        self._renew()
        self._thread.start()

    def stop(self) -> None:
        """Ends the lease, unless another driver has taken over meanwhile."""
        self._stopping.set()
        self._thread.join()
        current = read_lease(self._storage, self._stream)
        if current is not None and current.owner == self._lease.owner:
            self._storage.delete(lease_path(self._stream))

    def abandon(self) -> None:
        """Stops renewing and leaves the lease as it is: a newer driver's, or to grow stale."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._lease.duration_seconds / 3):
            try:
                current = read_lease(self._storage, self._stream)
                if current is not None and current.epoch > self._lease.epoch:
                    return  # taken over: the next journal write finds out, and ends this driver
                self._renew()
            except StoreError as error:
                log.warning("the lease could not be renewed: %s", error)

    def _renew(self) -> None:
        self._lease = msgspec.structs.replace(self._lease, beat=self._lease.beat + 1)
        self._storage.replace(lease_path(self._stream), msgspec.json.encode(self._lease))
