"""How a driver comes to lead a stream: it opens the journal, which fences older drivers, and keeps the lease; a standby waits
first."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable
from concurrent.futures import Future

from driver.journal.leadership.lease import Lease, LeaseKeeper, await_tasks_of, read_lease, stand_by
from driver.journal.log import opening
from driver.journal.log.writing import Journal
from driver.journal.state import State
from driver.service.activity import Activity
from driver.service.futures import Result, failed
from driver.service.stores import Stores
from forebay.model.errors import CorruptionError, FencedError, NotTakenError, StoreError, UnreachableError, UsageError
from forebay.process.clock import Clock
from forebay.settings.schema import Settings

log = logging.getLogger(__name__)

#: next steps for a journal that can't be read whole
DAMAGED_JOURNAL = (
    "`forebay journal inspect` shows what is damaged, `forebay journal rebuild` makes a new one from the WAL"
)
DAMAGED_JOURNAL_WITHOUT_WAL = (
    "Without a WAL it can't be rebuilt: restore it from a backup, or begin a stream of another name"
)
#: how often a standby checks the lease during one lease duration
CHECKS_PER_LEASE = 10


class Leadership:
    """Leads the stream, and keeps the lease that shows it.

    ``superseded`` is called when a newer driver has claimed the journal. ``since``: when this driver began to lead, on the
    monotonic clock; before that, when it was made. ``leader``: while the driver is a standby, the URL of the driver that leads,
    or "" if it is not known; otherwise None.
    """

    def __init__(
        self, *, settings: Settings, clock: Clock, activity: Activity, superseded: Callable[[FencedError], bool]
    ) -> None:
        self.leader: str | None = None
        self.since = clock.monotonic()
        self._settings = settings
        self._clock = clock
        self._activity = activity
        self._superseded = superseded
        self._owner = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
        self._lease: LeaseKeeper | None = None
        self._lease_before: Lease | None = None  # of the driver that led before

    def lead(self, stores: Stores, url: str, *, standby: bool) -> tuple[Journal, State] | None:
        """Open the journal as its leader; as a standby, wait first until no other driver leads. Return None if the driver is
        stopped before it leads.

        ``url``: where this driver serves. Raises LeaseHeld, FencedError, CorruptionError, StoreError.
        """
        self._lease_before = read_lease(stores.journal, self._settings.stream)
        led = self._wait_and_open(stores, url) if standby else self._open(stores, url)
        if led is not None:
            self.since = self._clock.monotonic()
        return led

    def not_leading(self) -> Future[Result]:
        """Return the refusal of a request while another driver leads or the journal is being opened."""
        return failed(self.refusal())

    def refusal(self) -> UnreachableError:
        """Return the error that refuses a request while another driver leads or the journal is being opened."""
        if self.leader is None:
            return UnreachableError(self._activity.detail)
        return NotTakenError(f"standby: {self._activity.detail}", self.leader)

    def name_application(self, application: tuple[str, str]) -> None:
        """Write into the lease which Spark application runs the batches: a later driver waits for its tasks."""
        if self._lease is not None:
            self._lease.name_application(*application)

    def await_earlier_tasks(self, *, fresh: bool) -> None:
        """Wait until Spark tasks of the driver that led before have ended. ``fresh``: as in ``await_tasks_of``."""
        await_tasks_of(self._lease_before, self._activity.stopping, fresh=fresh)

    def end(self, *, abandon: bool) -> None:
        """End the lease. ``abandon``: leave the lease file as it is, which belongs to a newer driver.

        If the store fails, the lease becomes stale by itself: the error is logged, because the reason why the driver ends is
        raised.
        """
        lease, self._lease = self._lease, None
        if lease is not None and abandon:
            lease.abandon()
        elif lease is not None:
            try:
                lease.stop()
            except StoreError as error:
                log.warning("cannot end the lease, so the next driver may wait until it is stale: %s", error)

    def _wait_and_open(self, stores: Stores, url: str) -> tuple[Journal, State] | None:
        """Wait as a standby, then open the journal. If another standby claims the journal first, or if the store is full or out
        of reach, continue to wait. Return None if the driver is stopped."""
        activity, stream = self._activity, self._settings.stream
        activity.state = "standby"
        pause_seconds = self._settings.driver.lease_duration / CHECKS_PER_LEASE
        while True:
            self._show_leader(None)
            lease = stand_by(stores.journal, stream, self._clock, pause_seconds, activity.stopping, self._show_leader)
            if activity.stopping.is_set():
                return None
            activity.detail = "opening the journal"
            log.info("no driver leads stream %s any more: taking over", stream)
            try:
                led = self._open(stores, url)
            except FencedError as error:
                log.info("this driver stays a standby: %s", error)
                continue
            except StoreError as error:  # full or out of reach, perhaps for the driver that led too
                log.warning("cannot take over, so this driver stays a standby: %s", error)
                self.end(abandon=True)
                if activity.stopping.wait(pause_seconds):
                    return None
                continue
            activity.state, self.leader = "waiting", None
            self._lease_before = lease
            return led

    def _show_leader(self, lease: Lease | None) -> None:
        detail = f"{lease.text} leads" if lease is not None else "looking for the leading driver"
        if detail != self._activity.detail:
            log.info("standby: %s", detail)
        self.leader, self._activity.detail = lease.url if lease is not None else "", detail

    def _open(self, stores: Stores, url: str) -> tuple[Journal, State]:
        """Open the journal. The lease is renewed from the claim on; otherwise another standby could take over while this driver
        reads."""
        settings = self._settings
        try:
            opened, state = opening.lead(
                stores.journal,
                settings.stream,
                self._owner,
                self._clock.wall_ms(),
                lambda: self._clock.wall_ms() / 1000.0,
                lambda: secrets.randbits(64),
                segment_bytes=settings.driver.journal_segment_size,
                wal=stores.wal,
                claimed=lambda epoch: self._keep_lease(stores, epoch, url),
            )
        except CorruptionError as error:
            way_out = DAMAGED_JOURNAL if stores.wal is not None else DAMAGED_JOURNAL_WITHOUT_WAL
            raise CorruptionError(error.path, error.offset, f"{error.reason}. {way_out}") from None
        except FencedError:
            self.end(abandon=True)
            raise
        assert self._lease is not None  # kept since the claim
        self._lease.follow(lambda: opened.confirmed)
        return opened, state

    def _keep_lease(self, stores: Stores, epoch: int, url: str) -> None:
        self._lease = LeaseKeeper(
            stores.journal,
            self._settings.stream,
            epoch,
            owner=self._owner,
            url=url,
            duration_seconds=self._settings.driver.lease_duration,
            superseded=self._superseded,
        )
        self._lease.start()


def refuse_direct_stream(state: State) -> None:
    """Raise UsageError for the journal of a direct stream: an intake would complete its batches, which have no blocks, unread."""
    if state.is_direct:
        raise UsageError(
            f"driver.journal already holds the checkpoint of direct stream {state.stream!r}: give the intake another "
            "stream name or another driver.journal"
        )


def refuse_other_keeping(state: State, has_wal: bool) -> None:
    """Raise UsageError if ``wal.url`` does not fit the journal's blocks: they are in a WAL and the stream has none now, or the
    reverse."""
    other = next((block.id for block in state.blocks.values() if block.in_wal != has_wal), None)
    if other is None:
        return
    places = "are on hosts alone, since they were taken in without a WAL" if has_wal else "are in the WAL"
    raise UsageError(
        f"wal.url: the journal of stream {state.stream!r} names blocks that {places} (for example {other}). Set wal.url as it "
        "was, or begin a stream of another name"
    )
