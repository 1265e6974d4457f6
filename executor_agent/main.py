"""``forebay agent``: one executor agent, from settings to exit code."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import uuid
from contextlib import ExitStack
from importlib.metadata import version
from types import FrameType
from urllib.parse import urlsplit

from executor_agent.api import AgentStatus, agent_application
from executor_agent.service import Heartbeat
from executor_agent.store import BlockStore
from forebay.clock import SystemClock
from forebay.errors import ForebayError, SettingsError
from forebay.http import Client, Server
from forebay.settings import Settings
from forebay.values import check_name

log = logging.getLogger(__name__)


class Agent:
    """The parts of one agent put together. Entering opens the store, serves it and begins the heartbeat.

    ``url``: where it listens, known when entered. Entering raises UsageError (directory, host, port).
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._host = settings.agent.host or socket.gethostname()
        self._release = version("forebay")
        self.store = BlockStore(settings.agent.blocks, settings.agent.quota, SystemClock())
        self._client = Client(settings.driver.url)
        self.heartbeat = Heartbeat(
            self.store,
            self._client,
            stream=settings.stream,
            host=self._host,
            instance_id=uuid.uuid4().hex,
            interval_seconds=settings.agent.heartbeat_interval,
        )
        self._open = ExitStack()
        self._server = Server(agent_application(self.store, self.status, self._release), settings.agent.url)

    @property
    def url(self) -> str:
        return self._server.url

    def status(self) -> AgentStatus:
        usage = self.store.usage()
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
        )

    def __enter__(self) -> Agent:
        try:
            check_name("host", self._host)
        except ValueError as error:
            raise SettingsError(f"agent.host: {error}") from None
        with ExitStack() as opening:
            opening.callback(self._client.close)
            for dropped in self.store.open():
                log.warning("dropped %s", dropped)
            opening.enter_context(self._server)
            self.heartbeat.url = reached_at(self._server.url, self._host)
            opening.callback(self.heartbeat.stop)
            self.heartbeat.start()
            self._open = opening.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


def reached_at(listens_at: str, host: str) -> str:
    """The url that others use: an agent that listens on every address is reached by its host's name."""
    parts = urlsplit(listens_at)
    return f"http://{host}:{parts.port}" if parts.hostname in ("0.0.0.0", "::") else listens_at


def run(settings: Settings) -> int:
    """Runs the agent until SIGTERM or SIGINT. Returns the exit code: 0 stopped as told, 2 wrong settings, 1 failed."""
    told, tell = os.pipe()

    def told_to_stop(number: int, _: FrameType | None) -> None:
        # a handler runs amid any line of the main thread: it takes no lock, as an Event would
        signal.signal(number, signal.SIG_DFL)  # a second signal ends at once
        os.write(tell, b"!")

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, told_to_stop)
    try:
        with Agent(settings) as agent:
            print(f"forebay agent: serves {agent.store.directory} at {agent.url}", file=sys.stderr, flush=True)
            os.read(told, 1)
    except ForebayError as error:
        log.error("%s", error)
        return error.exit_code
    return 0
