"""The lease: a driver at work says so in the journal's store, and another one refuses to start while it does.

Only a courtesy that keeps two drivers from fencing each other in turn; what protects the data is the journal's epoch. The
observer trusts its own clock alone: a lease is fresh if it changes while being watched for the duration it names. The lease
of a process that has surely ended (``driver.journal.processes``) is stale at once.

The lease also carries evidence of what was durable (``driver.journal.evidence``), so each driver passes on what it found in
the lease before, and a driver that ends leaves its lease behind as an ended one.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable

import msgspec

from driver.journal.processes import boot_and_start, has_ended, is_here, is_stopped, pid_namespace, process_start
from forebay.model.errors import AlreadyRunningError, FencedError, StoreError
from forebay.process.clock import Clock
from wal.storage import Storage

log = logging.getLogger(__name__)

#: between two looks whether the process before has ended
_LOOK_SECONDS = 0.1


class Lease(msgspec.Struct, frozen=True):
    epoch: int
    owner: str
    host: str
    pid: int
    started: str  # boot and start time of the process: tells it from a later one with the same pid
    beat: int
    duration_seconds: float
    url: str
    spark_application: str = ""  # in which the driver's tasks run; "" where the engine has none
    spark_master: str = ""
    led_epoch: int = 0  # the newest epoch that is known to have led; 0: unknown
    led_events: int = 0  # that are durable at least, in that epoch's lineage
    pid_namespace: str = ""  # of ``pid``; "": unknown, as in a lease of an older release

    @property
    def is_ended(self) -> bool:
        """Its driver ended by itself. Older releases wait no time for it, since it lasts none."""
        return self.duration_seconds <= 0

    @property
    def process(self) -> str:
        """As :func:`driver.journal.processes.process_start` names it; without the pid namespace if the lease does not name it."""
        return f"{self.started}/{self.pid_namespace}" if self.pid_namespace else self.started

    @property
    def words(self) -> str:
        return f"{self.owner} at {self.url} (host {self.host}, pid {self.pid})"


class LeaseHeld(AlreadyRunningError):
    """Another driver is at work."""


def lease_path(stream: str) -> str:
    return f"{stream}/lease"


def read_lease(storage: Storage, stream: str) -> Lease | None:
    """Return the lease of a driver that may be at work; None if there is none, or it has ended. Raises StoreError."""
    lease = stored_lease(storage, stream)
    return None if lease is None or lease.is_ended else lease


def stored_lease(storage: Storage, stream: str) -> Lease | None:
    """Return the lease as it is stored, also an ended one; None if it is absent or damaged. Raises StoreError."""
    try:
        return msgspec.json.decode(storage.read(lease_path(stream)), type=Lease)
    except FileNotFoundError:
        return None
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None  # half a lease is nobody's: the epoch protects


def wait_until_stale(storage: Storage, stream: str, stopping: threading.Event) -> bool:
    """Return True once no driver is at work, False if ``stopping`` is set first. Raises LeaseHeld if the lease changes within the
    duration it names."""
    first = read_lease(storage, stream)
    if first is None or is_gone(first):
        return True
    log.warning("a driver (%s, host %s, pid %s) may be at work: watching its lease", first.owner, first.host, first.pid)
    for _ in range(10):
        if stopping.wait(first.duration_seconds / 10):
            return False
        current = read_lease(storage, stream)
        if current is None or is_gone(current):
            return True
        if (current.owner, current.beat) != (first.owner, first.beat):
            raise LeaseHeld(
                f"a driver leads stream {stream!r} already: {current.words}; stop it first, take over with "
                "`forebay driver --take-over`, or wait for its end with `forebay driver --standby`"
            )
    return True


class LeaseWatch:
    """What a standby knows of the driver at work, by its own clock alone. A decision on values: it reads nothing."""

    def __init__(self) -> None:
        self._seen: Lease | None = None
        self._since = 0.0

    def may_lead(self, lease: Lease | None, gone: bool, now: float) -> bool:
        """Whether nobody leads: there is no lease, its process is known to be ``gone``, or it has been read again and again,
        the same each time, for as long as it names. ``now``: monotonic seconds."""
        if lease is None or gone:
            return True
        if self._seen is None or (self._seen.owner, self._seen.beat) != (lease.owner, lease.beat):
            self._since = now
        self._seen = lease
        return now - self._since >= lease.duration_seconds

    def lose_sight(self) -> None:
        """The store did not answer: the driver at work could not renew its lease either, so the time begins anew."""
        self._seen = None


def stand_by(
    storage: Storage,
    stream: str,
    clock: Clock,
    look_seconds: float,
    stopping: threading.Event,
    seen: Callable[[Lease | None], None],
) -> Lease | None:
    """Returns when nobody leads, or ``stopping`` is set: the last lease there was, None if there was none. ``seen`` hears of
    each lease that is read."""
    watch = LeaseWatch()
    while True:
        try:
            lease = read_lease(storage, stream)
        except StoreError as error:
            log.warning("the lease can't be read: %s", error)
            watch.lose_sight()
        else:
            if watch.may_lead(lease, lease is not None and is_gone(lease), clock.monotonic()):
                return lease
            seen(lease)
        if stopping.wait(look_seconds):
            return None


def is_gone(lease: Lease) -> bool:
    """Whether it is of a process that has ended, as far as this one can be sure of it. The host's name alone says nothing: two
    containers, and two machines, may share one. Neither does a lease of an older release, which names no pid namespace."""
    return lease.host == socket.gethostname() and has_ended(lease.pid, lease.process)


def await_end_of(lease: Lease, stopping: threading.Event, fresh: bool = False) -> bool:
    """Return whether the process that held the lease is gone, as far as this one can be sure of it.

    A driver that is awake learns that it was fenced, and cancels its Spark jobs, within the duration of its lease. So a process
    that can be seen from here gets that time, unless it is stopped. One that can't be seen (on another host, in another
    container, or of an older release) gets it only if the lease is ``fresh``: not yet watched for its duration.
    """
    seen = lease.host == socket.gethostname() and is_here(lease.process)
    patience_seconds = lease.duration_seconds if seen or fresh else 0.0
    waited = 0.0
    while not is_gone(lease):
        if (seen and is_stopped(lease.pid)) or waited >= patience_seconds:
            return False
        if stopping.wait(_LOOK_SECONDS):
            return False
        waited += _LOOK_SECONDS
    return True


def await_tasks_of(lease: Lease | None, stopping: threading.Event, fresh: bool = False) -> None:
    """``lease``: of who led before, None if nobody did; ``fresh``: it was not watched for its duration, as in a take-over. A job
    of it may write beside ours while Spark's tasks of it go on: they are waited for, and named where their end can't be seen."""
    own = (socket.gethostname(), os.getpid(), process_start(os.getpid()))
    if lease is None or (own[2] and (lease.host, lease.pid, lease.process) == own):
        return  # of this very program, whose engine knows its tasks
    if lease.spark_application and not await_end_of(lease, stopping, fresh):
        log.warning("%s", left_behind(lease))


def left_behind(lease: Lease) -> str:
    """What may still run of the driver that was taken over, in words."""
    return (
        f"tasks of the driver before ({lease.words}) may still run, in Spark's application {lease.spark_application} at "
        f"{lease.spark_master}: nothing of it is completed any more; output helpers fence it, other outputs may be written "
        f"beside this driver's. `kill -9 {lease.pid}` on host {lease.host} ends it"
    )


class LeaseKeeper:
    """Renews the lease three times per duration, from a thread of its own. ``superseded`` gets a FencedError when the lease is
    of a newer epoch: a driver that slept, and has nothing to write, would not find out otherwise."""

    def __init__(
        self,
        storage: Storage,
        stream: str,
        epoch: int,
        owner: str,
        url: str,
        duration_seconds: float,
        superseded: Callable[[FencedError], None] = lambda _: None,
    ) -> None:
        self._storage = storage
        self._stream = stream
        self._lease = Lease(
            epoch=epoch,
            owner=owner,
            host=socket.gethostname(),
            pid=os.getpid(),
            started=boot_and_start(os.getpid()),
            beat=0,
            duration_seconds=float(duration_seconds),
            url=url,
            pid_namespace=pid_namespace(),
        )
        self._superseded = superseded
        self._confirmed: Callable[[], int] | None = None
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lease", daemon=True)

    def start(self) -> None:
        """Write the lease, and renew it from now on. Raises StoreError."""
        self.begin()
        self._thread.start()

    def begin(self) -> None:
        """Write the lease for the first time, with what the one before proves. Raises StoreError."""
        before = stored_lease(self._storage, self._stream)
        if before is not None:
            self._lease = msgspec.structs.replace(self._lease, led_epoch=before.led_epoch, led_events=before.led_events)
        self.renew()

    def follow(self, confirmed: Callable[[], int]) -> None:
        """The epoch leads: each renewal names it, and how many of its events are durable, which ``confirmed`` returns. It is
        called from the lease's thread."""
        self._confirmed = confirmed

    def stop(self) -> None:
        """End the renewal and the lease. Raises StoreError."""
        self._stopping.set()
        self._thread.join()
        self.end()

    def end(self) -> None:
        """Write the lease as an ended one, unless another driver has taken over meanwhile. Raises StoreError."""
        current = read_lease(self._storage, self._stream)
        if current is not None and current.owner == self._lease.owner:
            with self._lock:
                self._lease = msgspec.structs.replace(
                    self._lease, duration_seconds=0.0, spark_application="", spark_master=""
                )
            self.renew()

    def abandon(self) -> None:
        """Stops renewing and leaves the lease as it is: a newer driver's, or to grow stale."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._lease.duration_seconds / 3):
            try:
                current = read_lease(self._storage, self._stream)
                if current is not None and current.epoch > self._lease.epoch:
                    words = f"another driver leads stream {self._stream!r} since epoch {current.epoch}"
                    self._superseded(FencedError(f"{words}; this was {self._lease.epoch}"))
                    return
                self.renew()
            except StoreError as error:
                log.warning("the lease could not be renewed: %s", error)

    def name_application(self, application: str, master: str) -> None:
        """Who takes over is to know where tasks of this driver may still run; written with the next renewal."""
        with self._lock:
            self._lease = msgspec.structs.replace(self._lease, spark_application=application, spark_master=master)

    def renew(self) -> None:
        """Write the lease with the next beat. Raises StoreError."""
        with self._lock:
            self._lease = msgspec.structs.replace(self._lease, beat=self._lease.beat + 1)
            if self._confirmed is not None:
                self._lease = msgspec.structs.replace(
                    self._lease, led_epoch=self._lease.epoch, led_events=self._confirmed()
                )
        self._storage.replace(lease_path(self._stream), msgspec.json.encode(self._lease))
