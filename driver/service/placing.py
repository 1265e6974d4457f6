"""The placing thread: once per ``driver.placing_interval`` it places managed receivers, and checks health and cursors."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

from driver.http.health import HealthLog
from driver.http.tracked import receiver_state
from driver.journal.state import State
from driver.listeners.derivation import SeenReceiver, receiver_events
from driver.service.answers.view import LeaderView, ReadHealth
from driver.service.composition import Parts
from driver.service.options import Given
from driver.tracker import Tracker
from driver.tracker.requests import ExpireCursors, PlaceReceivers, Read
from forebay.model.identifiers import is_reserved
from forebay.process.clock import Clock

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadReceivers(Read[dict[str, SeenReceiver]]):
    """Reads the state of each receiver, as listeners get it."""

    tracker: Tracker
    clock: Clock
    timeout_seconds: float

    def read(self, state: State) -> dict[str, SeenReceiver]:
        now = self.clock.monotonic()
        seen = {}
        for receiver in state.receivers.values():
            name = receiver.receiver_id
            if not is_reserved(name):
                latest = self.tracker.receiver_heartbeats.get(name)
                detail = latest.heartbeat.detail if latest is not None else ""
                how = receiver_state(self.tracker.receiver_heartbeats, receiver, now, self.timeout_seconds)
                seen[name] = SeenReceiver(name, receiver.host, receiver.epoch, how, detail)
        return seen


class Placing:
    """Runs until ``stopping`` is set. ``failed`` gets the error that ended the thread."""

    def __init__(
        self,
        given: Given,
        parts: Parts,
        view: LeaderView,
        *,
        stopping: threading.Event,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._given = given
        self._loop = parts.loop
        self._view = view
        self._read_receivers = ReadReceivers(parts.tracker, given.clock, given.settings.driver.receiver_timeout)
        self._stopping = stopping
        self._failed = failed
        self._health_log = HealthLog(given.settings.stream)
        self._seen: dict[str, SeenReceiver] = {}
        self._thread = threading.Thread(target=self._run, name="placing", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._thread.join()

    def _run(self) -> None:
        try:
            while not self._stopping.wait(self._given.settings.driver.placing_interval):
                self._round()
        except BaseException as error:
            self._failed(error)

    def _round(self) -> None:
        for change in self._loop.ask(PlaceReceivers()):
            log.info("receiver %s", change)
        self._health_log.note(self._loop.ask(ReadHealth(self._view)), self._given.clock.monotonic())
        for expiry in self._loop.ask(ExpireCursors()):
            log.error("%s", expiry)
        listeners = self._given.listeners
        if listeners:
            seen = self._loop.ask(self._read_receivers)
            listeners.tell_all(receiver_events(self._seen, seen, self._given.clock.wall_ms()))
            self._seen = seen
        else:  # what changes while nothing listens is no event for the next listener
            self._seen = {}
