"""Notifications to systemd: as decisions, over a real socket, and by real services."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from forebay.process.clock import ManualClock
from forebay.process.notify import PING_SECONDS_MAX, Notifier, Pulse, ServiceStatus, changes


class Listening:
    """systemd's end: a datagram socket. ``address``: what a service finds as NOTIFY_SOCKET."""

    def __init__(self, folder: Path) -> None:
        self.address = str(folder / "notify")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(self.address)

    def received(self, seconds: float = 0.0) -> list[str]:
        """The lines of the next message; [] if none comes."""
        self._socket.settimeout(seconds)
        try:
            return self._socket.recv(4096).decode().splitlines()
        except (BlockingIOError, TimeoutError):
            return []

    def until(self, line: str, seconds: float = 60.0) -> list[str]:
        """All lines up to ``line``. Fails when it does not come."""
        seen: list[str] = []
        while not any(one.startswith(line) for one in seen):
            received = self.received(seconds)
            assert received, f"{line} did not come after {seen}"
            seen += received
        return seen

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def listening(tmp_path: Path) -> Iterator[Listening]:
    found = Listening(tmp_path)
    yield found
    found.close()


class Service:
    """A notifier over a clock that the test moves."""

    def __init__(self, listening: Listening, watchdog_seconds: float = 40.0) -> None:
        self.clock = ManualClock()
        self.service_status = ServiceStatus(False, "starting")
        self.notifier = Notifier(
            listening.address,
            watchdog_seconds=watchdog_seconds,
            clock=self.clock,
            service_status=lambda: self.service_status,
        )
        self.notifier.watch("decide")
        self.notifier.watch("http")

    def come_round(self, *loops: str) -> None:
        for loop in loops:
            self.notifier.came_round(loop)


def test_a_ping_is_due_when_all_loops_came_round_and_the_interval_has_passed() -> None:
    pulse = Pulse(10.0)
    pulse.watch("a")
    pulse.watch("b")
    assert not pulse.came_round("a", 0.0)
    assert pulse.came_round("b", 0.0)
    assert not pulse.came_round("a", 5.0) and not pulse.came_round("b", 5.0)
    assert pulse.came_round("b", 10.0)
    assert not pulse.came_round("b", 30.0), "a has hung since"
    assert pulse.came_round("a", 31.0)


def test_a_loop_that_begins_later_is_awaited_from_then_on() -> None:
    pulse = Pulse(10.0)
    pulse.watch("http")
    assert pulse.came_round("http", 0.0)
    pulse.watch("decide")
    assert not pulse.came_round("http", 20.0)
    assert pulse.came_round("decide", 20.0)


@pytest.mark.parametrize(
    ("before", "now", "lines"),
    [
        (None, ServiceStatus(False, "starting"), ["STATUS=starting"]),
        (ServiceStatus(False, "starting"), ServiceStatus(True, "running"), ["READY=1", "STATUS=running"]),
        (ServiceStatus(True, "running"), ServiceStatus(True, "running"), []),
        (ServiceStatus(True, "a"), ServiceStatus(True, "b\nREADY=0"), ["STATUS=b READY=0"]),
        (
            ServiceStatus(True, "running"),
            ServiceStatus(True, "running", 35.0),
            ["STOPPING=1", "EXTEND_TIMEOUT_USEC=35000000"],
        ),
        (ServiceStatus(True, "draining", 35.0), ServiceStatus(True, "draining", 35.0), []),
    ],
)
def test_systemd_is_notified_of_changes(before: ServiceStatus | None, now: ServiceStatus, lines: list[str]) -> None:
    assert changes(before, now) == lines


def test_a_service_that_starts_asks_for_more_time_and_one_that_is_ready_pings(listening: Listening) -> None:
    service = Service(listening)
    service.come_round("http", "decide")
    assert listening.received() == ["STATUS=starting"]
    assert listening.received() == ["EXTEND_TIMEOUT_USEC=60000000"]
    service.service_status = ServiceStatus(True, "running")
    service.clock.advance(10.0)
    service.come_round("http")
    assert listening.received() == ["READY=1", "STATUS=running"]
    service.come_round("decide")
    assert listening.received() == ["WATCHDOG=1"]


def test_hung_loop_stops_the_pings_while_other_loops_run(listening: Listening) -> None:
    service = Service(listening)
    service.service_status = ServiceStatus(True, "running")
    service.come_round("http", "decide")
    while listening.received():
        pass
    for _ in range(100):
        service.clock.advance(1.0)
        service.come_round("http")
        assert listening.received() == []
    service.come_round("decide")
    assert listening.received() == ["WATCHDOG=1"]


def test_without_a_watchdog_no_ping_is_sent(listening: Listening) -> None:
    service = Service(listening, watchdog_seconds=0.0)
    service.service_status = ServiceStatus(True, "running")
    for _ in range(3):
        service.clock.advance(PING_SECONDS_MAX)
        service.come_round("http", "decide")
    assert listening.received() == ["READY=1", "STATUS=running"]
    assert listening.received() == []


def test_lost_notification_is_repeated(listening: Listening, tmp_path: Path) -> None:
    service = Service(listening)
    service.service_status = ServiceStatus(True, "running")
    listening.close()
    Path(listening.address).unlink()
    service.come_round("http", "decide")
    again = Listening(tmp_path)
    service.clock.advance(20.0)
    service.come_round("http", "decide")
    assert again.until("WATCHDOG") == ["READY=1", "STATUS=running", "WATCHDOG=1"]
    again.close()


def test_no_notification_without_a_socket_and_no_inheritance_by_children() -> None:
    asked = threading.Event()

    def service_status() -> ServiceStatus:
        asked.set()
        return ServiceStatus(True, "")

    Notifier.of({}, ManualClock(), service_status, 7).came_round("http")
    assert not asked.is_set()
    environment = {"NOTIFY_SOCKET": "/nowhere", "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "7", "PATH": "/bin"}
    Notifier.of(environment, ManualClock(), service_status, 7)
    assert environment == {"PATH": "/bin"}


def test_watchdog_of_another_process_is_ignored(listening: Listening) -> None:
    environment = {"NOTIFY_SOCKET": listening.address, "WATCHDOG_USEC": "4000000", "WATCHDOG_PID": "8"}
    notifier = Notifier.of(environment, ManualClock(), lambda: ServiceStatus(True, "running"), 7)
    notifier.watch("http")
    notifier.came_round("http")
    assert listening.received() == ["READY=1", "STATUS=running"]
    assert listening.received() == []
