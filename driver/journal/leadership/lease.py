"""The lease: a file by which a driver shows that it is running. Another driver refuses to start meanwhile.

The lease only keeps two drivers from fencing each other repeatedly; the journal's epoch protects the data. An observer uses
only its own clock: a lease is fresh if it changes within the duration that it names. The lease of a process that has certainly
ended (``driver.journal.leadership.processes``) is stale immediately.

The lease also contains evidence of what was durable (``driver.journal.leadership.evidence``). So each driver copies this from the
lease before it, and a driver that ends leaves its lease, marked as ended.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable

import msgspec

from driver.journal import checked_json
from driver.journal.leadership.processes import (
    boot_and_start,
    has_ended,
    is_here,
    is_stopped,
    pid_namespace,
    process_start,
)
from forebay.model.errors import AlreadyRunningError, FencedError, StoreError
from forebay.model.wire import UNDECODABLE
from forebay.process.clock import Clock
from wal.storage import Storage

log = logging.getLogger(__name__)

#: pause between two checks whether the earlier driver's process has ended
_LOOK_SECONDS = 0.1


class Lease(msgspec.Struct, frozen=True):
    """The content of the lease file."""

    epoch: int
    owner: str
    host: str
    pid: int
    started: str  # boot and start time of the process, which distinguish it from a later one with the same pid
    beat: int
    duration_seconds: float
    url: str
    spark_application: str = ""  # in which the driver's tasks run; "" where the engine has none
    spark_master: str = ""
    led_epoch: int = 0  # the newest epoch that is known to have led; 0: unknown
    led_events: int = 0  # lower bound of the durable events in that epoch's timeline
    pid_namespace: str = ""  # of ``pid``; "": unknown, as in a lease of an older release

    @property
    def is_ended(self) -> bool:
        """Whether its driver ended by itself. Its duration is 0, so older releases do not wait for it."""
        return self.duration_seconds <= 0

    @property
    def process(self) -> str:
        """The process, as :func:`driver.journal.leadership.processes.process_start` names it; without the pid namespace if the
        lease has none."""
        return f"{self.started}/{self.pid_namespace}" if self.pid_namespace else self.started

    @property
    def text(self) -> str:
        """A description of the lease's driver, for logs and errors."""
        return f"{self.owner} at {self.url} (host {self.host}, pid {self.pid})"


class LeaseHeld(AlreadyRunningError):
    """Another driver is running."""


def lease_path(stream: str) -> str:
    """Return the path of the stream's lease in the journal's store."""
    return f"{stream}/lease"


def read_lease(storage: Storage, stream: str) -> Lease | None:
    """Return the lease of a driver that may be running; None if there is none, or it has ended. Raises StoreError."""
    lease = stored_lease(storage, stream)
    return None if lease is None or lease.is_ended else lease


def stored_lease(storage: Storage, stream: str) -> Lease | None:
    """Return the stored lease, even if it has ended; None if it is absent or damaged. Raises StoreError."""
    try:
        return checked_json.decode(storage.read(lease_path(stream)), Lease)
    except FileNotFoundError:
        return None
    except UNDECODABLE as error:
        # The epoch protects the data. A wrong number of durable events would make every later driver refuse the journal.
        log.warning("the lease %s is damaged and counts as none: %s", lease_path(stream), error)
        return None


def wait_until_stale(storage: Storage, stream: str, stopping: threading.Event) -> bool:
    """Return True as soon as no driver is running, False if ``stopping`` is set first. Raises LeaseHeld if the lease changes
    within the duration that it names; StoreError."""
    first = read_lease(storage, stream)
    if first is None or is_gone(first):
        return True
    log.warning(
        "a driver may be running: watching its lease: owner %s, host %s, pid %s", first.owner, first.host, first.pid
    )
    for _ in range(10):
        if stopping.wait(first.duration_seconds / 10):
            return False
        current = read_lease(storage, stream)
        if current is None or is_gone(current):
            return True
        if (current.owner, current.beat) != (first.owner, first.beat):
            raise LeaseHeld(
                f"a driver leads stream {stream!r} already: {current.text}; stop it first, take over with "
                "`forebay driver --take-over`, or wait for its end with `forebay driver --standby`"
            )
    return True


class LeaseWatch:
    """A standby's decision whether it may lead, by its own clock. It reads no files."""

    def __init__(self) -> None:
        self._seen: Lease | None = None
        self._since = 0.0

    def may_lead(self, lease: Lease | None, gone: bool, now: float) -> bool:
        """Return whether this driver may lead, because no other driver leads: there is no lease, the process of the lease has
        certainly ended (``gone``), or the lease has not changed for the duration that it names. ``now``: monotonic seconds."""
        if lease is None or gone:
            return True
        if self._seen is None or (self._seen.owner, self._seen.beat) != (lease.owner, lease.beat):
            self._since = now
        self._seen = lease
        return now - self._since >= lease.duration_seconds

    def lose_sight(self) -> None:
        """Start to measure the lease's age again: the store did not answer, so the running driver could not renew its lease
        either."""
        self._seen = None


def stand_by(
    storage: Storage,
    stream: str,
    clock: Clock,
    look_seconds: float,
    stopping: threading.Event,
    seen: Callable[[Lease | None], None],
) -> Lease | None:
    """Wait until no driver leads or ``stopping`` is set, and return the last lease; None if there was none. ``seen`` is
    called with each lease that is read. ``look_seconds``: pause between two reads."""
    watch = LeaseWatch()
    while True:
        try:
            lease = read_lease(storage, stream)
        except StoreError as error:
            log.warning("cannot read the lease: %s", error)
            watch.lose_sight()
        else:
            if watch.may_lead(lease, lease is not None and is_gone(lease), clock.monotonic()):
                return lease
            seen(lease)
        if stopping.wait(look_seconds):
            return None


def is_gone(lease: Lease) -> bool:
    """Return whether the process of the lease has certainly ended. The host's name alone does not prove it: two containers, or
    two machines, may share a name. A lease of an older release, which names no pid namespace, does not prove it either."""
    return lease.host == socket.gethostname() and has_ended(lease.pid, lease.process)


def await_end_of(lease: Lease, stopping: threading.Event, fresh: bool = False) -> bool:
    """Wait for the end of the process that held the lease. Return whether it has ended for certain.

    A running driver learns within the duration of its lease that it was fenced, and then cancels its Spark jobs. So a process
    that can be seen from here gets that time, unless it is suspended. A process that can't be seen (on another host, in
    another container, or of an older release) gets it only if the lease is ``fresh``: not yet watched for its duration.
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
    """Wait for the end of the earlier driver's Spark tasks, and log a warning if their end can't be seen.

    Until they end, a job of that driver may write at the same time as a job of this one. ``lease``: of the driver that led
    before; None if there was none. ``fresh``: the lease was not watched for its duration, as in a take-over.
    """
    own = (socket.gethostname(), os.getpid(), process_start(os.getpid()))
    if lease is None or (own[2] and (lease.host, lease.pid, lease.process) == own):
        return  # the lease is of this process, whose engine knows its tasks
    if lease.spark_application and not await_end_of(lease, stopping, fresh):
        log.warning("%s", left_behind(lease))


def left_behind(lease: Lease) -> str:
    """Return a sentence about the Spark tasks of the earlier driver that may still run."""
    return (
        f"tasks of the earlier driver ({lease.text}) may still run, in Spark's application {lease.spark_application} at "
        f"{lease.spark_master}: they can't complete a batch any more; output helpers fence them, but other outputs may be "
        f"written by both drivers. `kill -9 {lease.pid}` on host {lease.host} ends it"
    )


class LeaseKeeper:
    """Renews the lease three times per duration, in a thread of its own.

    ``superseded`` is called with a FencedError if the lease is of a newer epoch. A driver that was suspended, and has nothing to
    write, would not learn it otherwise. It returns whether the driver ends now; else it is called again at the next turn.
    """

    def __init__(
        self,
        storage: Storage,
        stream: str,
        epoch: int,
        *,
        owner: str,
        url: str,
        duration_seconds: float,
        superseded: Callable[[FencedError], bool] = lambda _: True,
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
        """Write the lease and start to renew it. Raises StoreError."""
        self.begin()
        self._thread.start()

    def begin(self) -> None:
        """Write the lease for the first time, with the evidence of the lease before it. Raises StoreError."""
        before = stored_lease(self._storage, self._stream)
        if before is not None:
            self._lease = msgspec.structs.replace(self._lease, led_epoch=before.led_epoch, led_events=before.led_events)
        self.renew()

    def follow(self, confirmed: Callable[[], int]) -> None:
        """From now on, write into each renewal that this driver's epoch leads, and the number of its durable events.
        ``confirmed`` returns this number and is called from the lease's thread."""
        self._confirmed = confirmed

    def stop(self) -> None:
        """End the renewal and the lease. Raises StoreError."""
        self.abandon()
        self.end()

    def end(self) -> None:
        """Write the lease as ended, unless another driver has taken over. Raises StoreError."""
        current = read_lease(self._storage, self._stream)
        if current is not None and current.owner == self._lease.owner:
            with self._lock:
                self._lease = msgspec.structs.replace(
                    self._lease, duration_seconds=0.0, spark_application="", spark_master=""
                )
            self.renew()

    def abandon(self) -> None:
        """Stop renewing and leave the lease as it is: it is a newer driver's, or becomes stale."""
        self._stopping.set()
        if self._thread.ident is not None:  # the first write may have failed
            self._thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(self._lease.duration_seconds / 3):
            try:
                current = read_lease(self._storage, self._stream)
                if current is not None and current.epoch > self._lease.epoch:
                    newer = f"another driver leads stream {self._stream!r}: its epoch is {current.epoch:x}"
                    if self._superseded(FencedError(f"{newer}, this driver's is {self._lease.epoch:x}")):
                        return
                    continue
                self.renew()
            except StoreError as error:
                log.warning("cannot renew the lease: %s", error)
            except Exception:  # too little memory, for one: it must not end the renewals of a driver that goes on
                log.exception("cannot renew the lease")

    def name_application(self, application: str, master: str) -> None:
        """Add Spark's application and master to the lease with the next renewal, so that a driver that takes over knows where
        tasks of this driver may still run."""
        with self._lock:
            self._lease = msgspec.structs.replace(self._lease, spark_application=application, spark_master=master)

    def renew(self) -> None:
        """Write the lease with the next renewal number. Raises StoreError."""
        with self._lock:
            self._lease = msgspec.structs.replace(self._lease, beat=self._lease.beat + 1)
            if self._confirmed is not None:
                self._lease = msgspec.structs.replace(
                    self._lease, led_epoch=self._lease.epoch, led_events=self._confirmed()
                )
        self._storage.replace(lease_path(self._stream), checked_json.encode(self._lease))
