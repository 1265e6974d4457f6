"""The agent's heartbeat: reports the host, its store and its receivers to the driver, and performs the driver's commands.

The commands delete blocks (INV-8) and start and stop receivers.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec

from executor_agent.commands import block_names, orders
from executor_agent.receivers import KINDS, Receivers
from executor_agent.store import BlockStore
from forebay.messages import AgentHeartbeatAnswer, AgentHeartbeatRequest, Command
from forebay.model.errors import FencedError, ForebayError, StoreError, UnreachableError
from forebay.process import failpoints
from forebay.process.clock import Clock
from forebay.process.reminder import Reminder

log = logging.getLogger(__name__)

#: maximum delay between two attempts to reach a driver that does not answer
DELAY_SECONDS_MAX = 15.0
#: silence of a driver that answered before which no warning is logged: a driver that is stopped or restarted on purpose is
#: either back by then, or this agent is stopped too
SILENT_SECONDS = 5.0
#: maximum number of received copies in a heartbeat, the newest ones. Tasks do not read an older one, which does no harm.
COPIES_REPORTED_MAX = 10_000
#: maximum number of blocks with a damaged copy that a heartbeat names; it has the number of all
DAMAGED_REPORTED_MAX = 100
#: maximum number of blocks that could not be deleted in a heartbeat, which then names all; more mean that the disk is broken
UNDELETED_REPORTED_MAX = 1_000
#: maximum characters of the reason in a heartbeat
_CAUSE_CHARACTERS_MAX = 500


class HeartbeatClient(Protocol):
    """The client of the driver; ``forebay.http.driver_client.DriverClient`` implements it."""

    def post(
        self, path: str, body: AgentHeartbeatRequest, answer: type[AgentHeartbeatAnswer]
    ) -> AgentHeartbeatAnswer: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentIdentity:
    """The identity of this process at the driver.

    ``labels``: of the host, as in ``[agent]``. ``instance_id``: differs between two processes of the same host. ``release``: of
    this software, for the driver's status.
    """

    stream: str
    host: str
    labels: tuple[str, ...]
    instance_id: str
    release: str = ""


class Heartbeat:
    """Sends heartbeats from a thread of its own, one every ``interval_seconds``.

    While the driver does not answer, the delay doubles up to ``DELAY_SECONDS_MAX``. A heartbeat acknowledges only commands of
    the answer just before it, so the number of another driver's command is never acknowledged to this driver. A block that cannot
    be deleted stops no other deletion: the heartbeat names it, and the driver repeats the command.
    """

    def __init__(
        self,
        store: BlockStore,
        receivers: Receivers,
        driver: HeartbeatClient,
        *,
        identity: AgentIdentity,
        interval_seconds: float,
        clock: Clock,
        requests: Callable[[], int] = lambda: 0,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """``failed``: called once if the thread ends because of an unexpected error."""
        self._clock = clock
        self._answered_at = -math.inf
        self._warned = ""
        self._requests = requests
        self._failed = failed
        self._store = store
        self._receivers = receivers
        self._driver = driver
        self._identity = identity
        self._interval_seconds = interval_seconds
        self._acknowledged = self._attempted = 0
        self._driver_epoch = 0
        self._stopping = threading.Event()
        self._now = threading.Event()  # set: the next heartbeat is due immediately
        self._draining = False
        self._reported_copies: tuple[int, tuple[str, ...]] | None = (
            None  # the driver's epoch and the copies that it knows
        )
        self._thread = threading.Thread(target=self._guarded, name="heartbeat", daemon=True)
        self.url = ""  # of this agent for other hosts: known when its server listens
        self.deleted = 0
        self.refused = 0
        self.undeleted: Mapping[str, str] = {}  # ids of blocks that the driver orders to delete → why that fails
        self._undeleted_reminder = Reminder()
        self.came_round: Callable[[], None] = lambda: (
            None
        )  # called in every round of the thread, also while the driver does not answer
        self.answered = False  # the driver has answered once
        self.silent_driver = "the driver has not answered yet"  # why the driver cannot be reached; "" while it can

    @property
    def driver_epoch(self) -> int:
        return self._driver_epoch

    def start(self) -> None:
        """Read the highest epoch of a driver that this agent has seen, and start the thread. Raises UsageError, StoreError."""
        self._driver_epoch = self._store.driver_epoch(self._identity.stream)
        self._thread.start()

    def drain(self) -> None:
        """Report from now on, immediately the first time, that tasks should not read blocks from this host."""
        self._draining = True
        self._now.set()

    def stop(self) -> None:
        """Wait for the heartbeat in flight. Then, if the driver answers, report that no receiver runs on this host any more."""
        self._stopping.set()
        self._now.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception:  # without heartbeats the agent would keep blocks that no task reads, so it ends
            log.exception("the heartbeat thread failed")
            self._failed()

    def _run(self) -> None:
        delay = self._interval_seconds
        while not self._stopping.is_set():
            self.came_round()
            try:
                self.beat()
            except (ForebayError, OSError, msgspec.DecodeError) as error:
                self.silent_driver = str(error)
                self._warn(isinstance(error, (UnreachableError, ConnectionError)))
                self._reported_copies = None
                delay = min(delay * 2, max(DELAY_SECONDS_MAX, self._interval_seconds))
            else:
                if self.silent_driver:
                    log.info("the driver answers: epoch %x", self._driver_epoch)
                self.silent_driver = self._warned = ""
                self.answered = True
                self._answered_at = self._clock.monotonic()
                delay = self._interval_seconds
            self._now.wait(delay)
            if not self._stopping.is_set():
                self._now.clear()
        if not self.silent_driver:
            try:
                self.beat()  # so that the driver starts its receivers elsewhere immediately, not when the host counts as lost
            except (ForebayError, OSError, msgspec.DecodeError) as error:
                # a driver that is stopped first needs no last heartbeat; any other waits until the host counts as lost
                log.info("the last heartbeat to the driver failed: %s", error)

    def _warn(self, is_silent: bool) -> None:
        """Log each cause once. ``is_silent``: the driver does not answer, which is a fault only after ``SILENT_SECONDS``."""
        silent_seconds = self._clock.monotonic() - self._answered_at
        if self._warned != self.silent_driver and (not is_silent or silent_seconds >= SILENT_SECONDS):
            self._warned = self.silent_driver
            log.warning("heartbeat to the driver failed: %s", self.silent_driver)

    def beat(self) -> None:
        """Send one heartbeat and perform the commands in its answer.

        Raises ForebayError. The driver repeats the commands that were not performed.
        """
        acknowledged, attempted = self._acknowledged, self._attempted
        self._acknowledged = self._attempted = 0
        usage = self._store.usage()
        copies = tuple(self._of_stream(usage.copies)[-COPIES_REPORTED_MAX:])
        known = self._reported_copies == (self._driver_epoch, copies)
        damaged = self._of_stream(usage.damaged)
        request = AgentHeartbeatRequest(
            host=self._identity.host,
            url=self.url,
            instance_id=self._identity.instance_id,
            acknowledged=acknowledged,
            blocks=usage.blocks,
            used_bytes=usage.used_bytes,
            free_bytes=usage.free_bytes,
            old_blocks=tuple(self._of_stream(usage.old_blocks)),
            labels=self._identity.labels,
            capacity=self._receivers.capacity,
            receivers=self._receivers.processes(),
            state="draining" if self._draining else "active",
            load=round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
            requests=self._requests(),
            short_bytes=usage.short_bytes,
            copies=None if known else copies,
            release=self._identity.release,
            damaged=tuple(damaged[:DAMAGED_REPORTED_MAX]),
            damaged_blocks=len(damaged),
            attempted=attempted if len(self.undeleted) <= UNDELETED_REPORTED_MAX else 0,
            undeleted=tuple(itertools.islice(self.undeleted, UNDELETED_REPORTED_MAX)),
            undeleted_blocks=len(self.undeleted),
            undeleted_cause=next(iter(self.undeleted.values()), "")[:_CAUSE_CHARACTERS_MAX],
        )
        answer = self._driver.post("/v1/agents/heartbeat", request, AgentHeartbeatAnswer)
        if not known:  # a driver that leads since the last answer gets the copies again
            self._reported_copies = (answer.driver_epoch, copies)
        elif answer.driver_epoch != self._driver_epoch:
            self._reported_copies = None
        decided = orders(self._driver_epoch, answer.driver_epoch, answer.commands)
        if decided.driver_epoch > self._driver_epoch:
            self._store.keep_driver_epoch(self._identity.stream, decided.driver_epoch)
            self._driver_epoch = decided.driver_epoch
        self.refused += len(decided.refused)
        self._perform(decided.commands)
        if answer.driver_epoch < decided.driver_epoch:
            raise FencedError(
                f"a superseded driver answered, and is not obeyed: its epoch is {answer.driver_epoch}, "
                f"the highest one seen {decided.driver_epoch}"
            )

    def _of_stream(self, names: Sequence[str]) -> list[str]:
        """Return the block ids of those ``names`` that are of this stream."""
        mine = f"{self._identity.stream}/"
        return [name.removeprefix(mine) for name in names if name.startswith(mine)]

    def _perform(self, commands: Sequence[Command]) -> None:
        """Perform the commands, those about receivers first. A command that fails stops no other one.

        Raises the error of the first command that is refused, after all others were performed.
        """
        refusals: list[ForebayError] = []
        undeleted: dict[str, str] = {}
        for command in commands:
            if command.kind in KINDS:
                try:
                    self._receivers.obey(command)
                except ForebayError as error:
                    refusals.append(error)
        refused = False
        for command in commands:
            if command.kind in KINDS:
                continue
            try:
                undeleted |= self._delete(command)
            except ForebayError as error:
                refusals.append(error)
                refused = True
            if not refused:
                self._attempted = command.version
                if not undeleted:  # acknowledged numbers are cumulative
                    self._acknowledged = command.version
        self._note(undeleted)
        if refusals:
            raise refusals[0]

    def _delete(self, command: Command) -> dict[str, str]:
        """Delete the blocks that a command names. Return those that cannot be deleted, with the reason."""
        if command.kind != "delete":
            raise ForebayError(
                f"command {command.version}: this agent does not know the command {command.kind!r}; upgrade the agent"
            )
        undeleted: dict[str, str] = {}
        try:
            blocks = block_names(command, self._identity.stream)
            failpoints.hit("agent.before-delete")
            for block_id in blocks:
                try:
                    self.deleted += self._store.delete(self._identity.stream, block_id)
                except StoreError as error:
                    undeleted[block_id] = str(error)
        except ValueError as error:
            raise ForebayError(f"command {command.version} (delete) of the driver is refused: {error}") from None
        return undeleted

    def _note(self, undeleted: Mapping[str, str]) -> None:
        """Keep the blocks that could not be deleted, for heartbeats and the status, and log a change or a reminder."""
        if undeleted:
            cause = next(iter(undeleted.values()))
            if self._undeleted_reminder.is_due(self._clock.monotonic(), cause):
                log.warning(
                    "%d blocks that the driver orders to delete stay: %s; check this host's disk and the file's owner",
                    len(undeleted),
                    cause,
                )
        elif self.undeleted:
            log.info("all blocks that the driver ordered to delete are deleted")
            self._undeleted_reminder = Reminder()
        self.undeleted = undeleted
