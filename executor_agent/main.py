"""Runs one executor agent (``forebay agent``): composes its parts and starts them."""

from __future__ import annotations

import itertools
import logging
import os
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from importlib.metadata import version

from executor_agent.api import AgentStatus, agent_application
from executor_agent.metrics import AgentMetrics, AgentView
from executor_agent.receivers import Receivers
from executor_agent.service import AgentIdentity, Heartbeat
from executor_agent.store import BlockStore
from forebay.http.address import loopback_note, reached_at
from forebay.http.driver_client import DriverClient
from forebay.http.server import Server
from forebay.model.errors import ForebayError, SettingsError
from forebay.model.identifiers import check_name
from forebay.process import logs
from forebay.process.clock import Clock, SystemClock
from forebay.process.logs import fields
from forebay.process.notify import Notifier, ServiceStatus
from forebay.process.signals import stop_signals
from forebay.security.access import Guard, announce
from forebay.settings.durability_notes import without_wal
from forebay.settings.schema import Settings

log = logging.getLogger(__name__)

#: maximum number of blocks in each list of the status; it has the number of all
NAMED_MAX = 100
#: time that a receiver may need after its drain timeout, for a write in progress of a slow store
STOP_MARGIN_SECONDS = 5.0
#: maximum time to stop after the drains, for the last heartbeat and requests in flight
CLOSE_SECONDS = 15.0


class Agent:
    """One agent: the block store, its HTTP server, the heartbeat and the receivers of the host.

    Entering opens the store, serves it and starts the heartbeat. It raises UsageError for a directory, host or port that
    cannot be used. Leaving drains: the agent reports it to the driver, its receivers stop, and then the requests in flight
    end within ``agent.drain_timeout``.

    ``url``: where it listens, known after entering. ``receiver_command``: the command that starts a receiver, without the
    receiver's id at its end; () if this agent runs no receivers.
    """

    def __init__(self, settings: Settings, receiver_command: Sequence[str] = (), clock: Clock | None = None) -> None:
        clock = clock or SystemClock()
        self._settings = settings
        self._host = settings.agent.host or socket.gethostname()
        self._release = version("forebay")
        # without a WAL a copy on this host may be the last one
        self.store = BlockStore(
            settings.agent.blocks, quota_bytes=settings.agent.quota, clock=clock, may_delete_copies=settings.has_wal
        )
        self._guard = Guard(settings)
        self._client = DriverClient.of(settings, role="agent", name=self._host)
        self.receivers = Receivers(
            settings.stream,
            receiver_command,
            capacity=settings.agent.capacity,
            stop_seconds=settings.receiver.drain_timeout + STOP_MARGIN_SECONDS,
            clock=clock,
            # a receiver writes its local copies into the directory of this agent, so it has the same host
            environment={**os.environ, "FOREBAY__RECEIVER__HOST": self._host},
        )
        self.heartbeat = Heartbeat(
            self.store,
            self.receivers,
            self._client,
            identity=AgentIdentity(
                stream=settings.stream,
                host=self._host,
                labels=settings.agent.labels,
                instance_id=uuid.uuid4().hex,
                release=self._release,
            ),
            interval_seconds=settings.agent.heartbeat_interval,
            clock=clock,
            requests=lambda: self._server.requests,
            failed=lambda: self.failed(),
        )
        #: called when a thread of the agent failed unexpectedly
        self.failed: Callable[[], None] = lambda: None
        self._open = ExitStack()
        #: called in every round of a loop with its name, "http" or "heartbeat", for the watchdog
        self.came_round: Callable[[str], None] = lambda loop: None
        self.heartbeat.came_round = lambda: self.came_round("heartbeat")
        self._stopping = False
        metrics = AgentMetrics(
            stream=settings.stream,
            host=self._host,
            release=self._release,
            quota_bytes=settings.agent.quota,
            clock=clock,
            view=self._seen,
        )
        self._server = Server(
            agent_application(
                self.store,
                self.status,
                release=self._release,
                idle_seconds=settings.agent.idle_timeout,
                guard=self._guard,
                stream=settings.stream,
                host=self._host,
                metrics=metrics,
            ),
            settings.agent.url,
            grace_seconds=settings.agent.drain_timeout,
            idle_seconds=settings.agent.idle_timeout,
            connections_max=settings.agent.connections_max,
            came_round=lambda: self.came_round("http"),
            guard=self._guard,
        )

    @property
    def url(self) -> str:
        return self._server.url

    def status(self) -> AgentStatus:
        usage = self.store.usage()
        undeleted = self.heartbeat.undeleted
        return AgentStatus(
            stream=self._settings.stream,
            host=self._host,
            release=self._release,
            blocks=usage.blocks,
            used_bytes=usage.used_bytes,
            free_bytes=usage.free_bytes,
            driver_epoch=self.heartbeat.driver_epoch,
            deleted=self.heartbeat.deleted,
            refused_commands=self.heartbeat.refused,
            silent_driver=self.heartbeat.silent_driver,
            requests=self._server.requests,
            receivers=self.receivers.processes(),
            damaged=usage.damaged[:NAMED_MAX],
            damaged_blocks=len(usage.damaged),
            undeleted=tuple(
                f"{self._settings.stream}/{block_id}" for block_id in itertools.islice(undeleted, NAMED_MAX)
            ),
            undeleted_blocks=len(undeleted),
            undeleted_cause=next(iter(undeleted.values()), ""),
        )

    def _seen(self) -> AgentView:
        """Return what a scrape of the metrics reads."""
        return AgentView(
            usage=self.store.usage(),
            deleted=self.heartbeat.deleted,
            refused=self.heartbeat.refused,
            undeleted_blocks=len(self.heartbeat.undeleted),
            driver_reachable=not self.heartbeat.silent_driver,
            receivers=self.receivers.processes(),
            http_requests=self._server.requests,
        )

    def service_status(self) -> ServiceStatus:
        """Return the status for a supervisor. The agent is ready when the driver has answered a heartbeat."""
        silent = self.heartbeat.silent_driver
        undeleted = len(self.heartbeat.undeleted)
        stuck = f"; {undeleted} blocks cannot be deleted" if undeleted else ""
        drains = self._settings.receiver.drain_timeout + self._settings.agent.drain_timeout
        seconds = drains + STOP_MARGIN_SECONDS + CLOSE_SECONDS
        return ServiceStatus(
            self.heartbeat.answered,
            f"driver out of reach: {silent}" if silent else f"serving {self.store.directory}{stuck}",
            seconds if self._stopping else None,
        )

    def __enter__(self) -> Agent:
        try:
            check_name("host", self._host)
        except ValueError as error:
            raise SettingsError(f"agent.host: {error}") from None
        for note in filter(None, (without_wal(self._settings), loopback_note(self._settings, "agent"))):
            log.warning("%s", note)
        with ExitStack() as opening:
            opening.callback(self._client.close)
            for done in self.store.open():
                log.warning("%s", done)
            opening.enter_context(self._server)
            announce(self._guard, self._server.url)
            self.heartbeat.url = reached_at(self._server.url, self._host)
            opening.callback(self.heartbeat.stop)
            self.heartbeat.start()
            # while the heartbeat still reports, and before the thread ends that started them
            opening.callback(self.receivers.stop)
            opening.callback(self.heartbeat.drain)
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        self._open.close()


def run(settings: Settings, receiver_command: Sequence[str] = ()) -> int:
    """Run the agent until SIGTERM or SIGINT, then drain its receivers. A second signal ends it immediately.

    Returns the exit code: 0 stopped by a signal, 1 failed, 2 wrong settings.
    """
    logs.configure(settings.log.format, settings.log.level, service="agent", stream=settings.stream)
    stopped, broken = threading.Event(), threading.Event()

    def end() -> None:
        broken.set()
        stopped.set()

    try:
        # first, since it removes systemd's variables from the environment that receivers inherit
        notifier = Notifier.of(os.environ, SystemClock(), lambda: agent.service_status(), os.getpid())
        agent = Agent(settings, receiver_command)
        for loop in ("http", "heartbeat"):
            notifier.watch(loop)
        agent.came_round = notifier.came_round
        agent.failed = end
        with stop_signals(stopped.set), agent:
            log.info("serves %s at %s", agent.store.directory, agent.url, extra=fields(url=agent.url))
            stopped.wait()
    except ForebayError as error:
        log.error("%s", error)
        return error.exit_code
    return 1 if broken.is_set() else 0
