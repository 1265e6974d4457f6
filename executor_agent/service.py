"""The agent's heartbeat: tells the driver how the host, its store and its receivers stand, deletes what the driver says (INV-8),
and has receivers started and ended by its word."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec

from executor_agent.commands import block_names, orders
from executor_agent.receivers import KINDS, Receivers
from executor_agent.store import BlockStore
from forebay.messages import AgentHeartbeatAnswer, AgentHeartbeatRequest, Command
from forebay.model.errors import FencedError, ForebayError
from forebay.process import failpoints

log = logging.getLogger(__name__)

#: the longest time between two attempts to reach a driver that does not answer
DELAY_SECONDS_MAX = 15.0
#: given copies that a driver is told of, the newest: what it does not know of is found by nobody, and harms nobody
COPIES_TOLD_MAX = 10_000
#: blocks with a damaged copy that a driver is told of by name; it is told the number of all
DAMAGED_TOLD_MAX = 100


class Driver(Protocol):
    """The driver as the agent sees it: ``forebay.http.driver_client.DriverClient``."""

    def post(
        self, path: str, body: AgentHeartbeatRequest, answer: type[AgentHeartbeatAnswer]
    ) -> AgentHeartbeatAnswer: ...


class Heartbeat:
    """One thread. :meth:`beat` is one exchange; the thread repeats it every ``interval_seconds``.

    While the driver does not answer, the delay doubles up to ``DELAY_SECONDS_MAX``. A heartbeat acknowledges only what
    the answer before it asked for, so a number of another driver's is never taken for one of this driver's.
    """

    def __init__(
        self,
        store: BlockStore,
        receivers: Receivers,
        driver: Driver,
        *,
        stream: str,
        host: str,
        labels: tuple[str, ...],
        instance_id: str,
        interval_seconds: float,
        release: str = "",
        requests: Callable[[], int] = lambda: 0,
        failed: Callable[[], None] = lambda: None,
    ) -> None:
        """``failed``: called once, when the thread ends by a fault of its own."""
        self._requests = requests
        self._failed = failed
        self._store = store
        self._receivers = receivers
        self._labels = labels
        self._driver = driver
        self._stream = stream
        self._host = host
        self._instance_id = instance_id
        self._interval_seconds = interval_seconds
        self._release = release
        self._acknowledged = 0
        self._driver_epoch = 0
        self._stopping = threading.Event()
        self._now = threading.Event()  # set: the next exchange is due at once
        self._draining = False
        self._told: tuple[int, tuple[str, ...]] | None = None  # which driver knows of which copies
        self._thread = threading.Thread(target=self._guarded, name="heartbeat", daemon=True)
        self.url = ""  # where this agent is reached: known when its server listens
        self.deleted = 0
        self.refused = 0
        self.came_round: Callable[[], None] = lambda: None  # the thread does, also while the driver is silent
        self.heard = False  # the driver has answered once
        self.silent_driver = "the driver has not answered yet"  # why the driver can't be reached; "" while it can

    @property
    def driver_epoch(self) -> int:
        return self._driver_epoch

    def start(self) -> None:
        """Reads the highest epoch of a driver seen here, and begins. Raises UsageError, StoreError."""
        self._driver_epoch = self._store.driver_epoch(self._stream)
        self._thread.start()

    def drain(self) -> None:
        """The driver is told at once, and from now on, that tasks are to look elsewhere for this host's blocks."""
        self._draining = True
        self._now.set()

    def stop(self) -> None:
        """Returns when the exchange in flight has ended, and the driver, if it answers, knows that no receiver runs here."""
        self._stopping.set()
        self._now.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _guarded(self) -> None:
        try:
            self._run()
        except Exception:  # whatever it is: an agent that nobody hears of would keep blocks that nobody reads
            log.exception("the heartbeat broke")
            self._failed()

    def _run(self) -> None:
        delay = self._interval_seconds
        while not self._stopping.is_set():
            self.came_round()
            try:
                self.beat()
            except (ForebayError, OSError, msgspec.DecodeError) as error:
                if str(error) != self.silent_driver:
                    log.warning("heartbeat: %s", error)
                self.silent_driver = str(error)
                self._acknowledged = 0
                self._told = None
                delay = min(delay * 2, max(DELAY_SECONDS_MAX, self._interval_seconds))
            else:
                if self.silent_driver:
                    log.info("the driver answers, its epoch is %d", self._driver_epoch)
                self.silent_driver = ""
                self.heard = True
                delay = self._interval_seconds
            self._now.wait(delay)
            if not self._stopping.is_set():
                self._now.clear()
        if not self.silent_driver:
            try:
                self.beat()  # its receivers are started elsewhere at once, and not when the host counts as lost
            except (ForebayError, OSError, msgspec.DecodeError) as error:
                log.warning("the last heartbeat: %s", error)

    def beat(self) -> None:
        """One heartbeat and what its answer asks for. Raises ForebayError; what was not done is asked for again."""
        usage = self._store.usage()
        copies = tuple(self._of_stream(usage.copies)[-COPIES_TOLD_MAX:])
        known = self._told == (self._driver_epoch, copies)
        damaged = self._of_stream(usage.damaged)
        request = AgentHeartbeatRequest(
            host=self._host,
            url=self.url,
            instance_id=self._instance_id,
            acknowledged=self._acknowledged,
            blocks=usage.blocks,
            used_bytes=usage.used_bytes,
            free_bytes=usage.free_bytes,
            old_blocks=tuple(self._of_stream(usage.old_blocks)),
            labels=self._labels,
            capacity=self._receivers.capacity,
            receivers=self._receivers.processes(),
            state="draining" if self._draining else "active",
            load=round(os.getloadavg()[0] / (os.cpu_count() or 1), 2),
            requests=self._requests(),
            short_bytes=usage.short_bytes,
            copies=None if known else copies,
            release=self._release,
            damaged=tuple(damaged[:DAMAGED_TOLD_MAX]),
            damaged_blocks=len(damaged),
        )
        answer = self._driver.post("/v1/agents/heartbeat", request, AgentHeartbeatAnswer)
        self._acknowledged = 0
        if not known:  # a driver that has begun to lead since the last answer is told again, and knows all then
            self._told = (answer.driver_epoch, copies)
        elif answer.driver_epoch != self._driver_epoch:
            self._told = None
        decided = orders(self._driver_epoch, answer.driver_epoch, answer.commands)
        if decided.driver_epoch > self._driver_epoch:
            self._store.keep_driver_epoch(self._stream, decided.driver_epoch)
            self._driver_epoch = decided.driver_epoch
        self.refused += len(decided.refused)
        for command in decided.commands:
            if command.kind in KINDS:
                self._receivers.obey(command)
        for command in decided.commands:
            if command.kind not in KINDS:
                self._obey(command)
                self._acknowledged = command.version
        if answer.driver_epoch < decided.driver_epoch:
            raise FencedError(
                f"the driver that answers has epoch {answer.driver_epoch}, {decided.driver_epoch} was seen: not obeyed"
            )

    def _of_stream(self, names: Sequence[str]) -> list[str]:
        """Ids of those of ``names`` that are of this stream."""
        mine = f"{self._stream}/"
        return [name.removeprefix(mine) for name in names if name.startswith(mine)]

    def _obey(self, command: Command) -> None:
        if command.kind != "delete":
            raise ForebayError(f"command {command.version}: this release of the agent does not know {command.kind!r}")
        try:
            blocks = block_names(command, self._stream)
            failpoints.hit("agent.before-delete")
            for block_id in blocks:
                self.deleted += self._store.delete(self._stream, block_id)
        except ValueError as error:
            raise ForebayError(f"command {command.version} is refused: {error}") from None
