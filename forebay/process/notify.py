"""Reports a service's status to systemd (``sd_notify(3)``): ready, a status line, watchdog pings, stopping.

A watchdog is useful only if its pings depend on progress. So the service's own loops send them: each loop calls
:meth:`~Notifier.came_round` once in each turn, and a ping is sent when all loops have called it since the last ping. A loop that
hangs stops the pings, and systemd ends the process. Without systemd (no ``NOTIFY_SOCKET``), nothing is sent.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import dataclass

from forebay.model.numbers import whole_number
from forebay.process.clock import Clock

log = logging.getLogger(__name__)

#: pings within systemd's watchdog timeout; maximum seconds between two pings
PINGS_PER_WATCHDOG, PING_SECONDS_MAX = 4, 15.0
#: interval between two reads of the service's status
LOOK_SECONDS = 1.0
#: how much longer the start may take, from each turn of the service's loops on
START_SECONDS = 60.0
#: maximum characters of the status line
TEXT_MAX = 500


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """The status of a service.

    ``ready``: it serves requests. ``text``: one line of text. ``stop_seconds``: maximum time until its end, if it is stopping;
    else None.
    """

    ready: bool
    text: str
    stop_seconds: float | None = None


#: variables of systemd for the process that it started, and for no process that this one starts
_VARIABLES = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


def taken_out(environment: MutableMapping[str, str]) -> dict[str, str]:
    """Remove systemd's variables from ``environment``, and return them for :meth:`Notifier.of`."""
    return {name: environment.pop(name) for name in _VARIABLES if name in environment}


class Pulse:
    """Decides when a ping is due: at least ``interval_seconds`` after the last one, and after every watched loop has completed a
    turn since. Does no I/O."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._loops: set[str] = set()
        self._awaited: set[str] = set()
        self._next = 0.0

    def watch(self, loop: str) -> None:
        """Require turns of ``loop`` for each ping from now on."""
        self._loops.add(loop)
        self._awaited.add(loop)

    def forget(self, loop: str) -> None:
        """Require no more turns of ``loop``, which has ended."""
        self._loops.discard(loop)
        self._awaited.discard(loop)

    def came_round(self, loop: str, now: float) -> bool:
        """Record a turn of ``loop``, and return whether a ping is due."""
        self._awaited.discard(loop)
        if self._awaited or now < self._next:
            return False
        self._awaited = set(self._loops)
        self._next = now + self._interval_seconds
        return True


class Notifier:
    """Sends one process's status to systemd. Thread-safe.

    ``address``: systemd's socket; "" without systemd. ``watchdog_seconds``: systemd's watchdog timeout; 0 for none.
    ``service_status``: returns the status; it is called about once a second, in the loop that completed a turn, and must not
    block.
    """

    def __init__(
        self, address: str, *, watchdog_seconds: float, clock: Clock, service_status: Callable[[], ServiceStatus]
    ) -> None:
        self._address = address
        self._watchdog_seconds = watchdog_seconds
        self._clock = clock
        self._service_status = service_status
        self._lock = threading.Lock()
        self._pulse = Pulse(min(watchdog_seconds / PINGS_PER_WATCHDOG or PING_SECONDS_MAX, PING_SECONDS_MAX))
        self._look_at = 0.0
        self._said: ServiceStatus | None = None
        self._failed = ""

    @classmethod
    def of(
        cls,
        environment: MutableMapping[str, str],
        clock: Clock,
        service_status: Callable[[], ServiceStatus],
        process_id: int,
    ) -> Notifier:
        """Return the notifier that systemd's variables describe. They are removed, so that no child process notifies systemd."""
        address = environment.pop("NOTIFY_SOCKET", "")
        watchdog = environment.pop("WATCHDOG_USEC", "")
        watched = environment.pop("WATCHDOG_PID", "")
        microseconds = whole_number(watchdog) if watched in ("", str(process_id)) else None
        return cls(address, watchdog_seconds=(microseconds or 0) / 1e6, clock=clock, service_status=service_status)

    def watch(self, loop: str) -> None:
        """Require turns of ``loop`` for each ping from now on."""
        with self._lock:
            self._pulse.watch(loop)

    def forget(self, loop: str) -> None:
        """Require no more turns of ``loop``, which has ended."""
        with self._lock:
            self._pulse.forget(loop)

    def came_round(self, loop: str) -> None:
        """Record a turn of ``loop``. Send what is due: a ping, and a changed status."""
        if not self._address:
            return
        now = self._clock.monotonic()
        with self._lock:
            ping = self._pulse.came_round(loop, now)
            if not ping and now < self._look_at:
                return
            self._look_at = now + LOOK_SECONDS
            before, self._said = self._said, self._service_status()
            lines = changes(before, self._said)
            if ping and self._said.ready and self._watchdog_seconds:
                lines.append("WATCHDOG=1")
            elif ping and not self._said.ready and self._said.stop_seconds is None:
                lines.append(_extend(START_SECONDS))
            if lines:
                self._send(lines)

    def _send(self, lines: list[str]) -> None:
        failure = ""
        try:
            send(self._address, lines)
        except OSError as error:
            self._said = None  # the whole status is sent again in the next turn
            failure = f"cannot send the status to systemd: {error}"
        if failure and failure != self._failed:
            log.warning("%s", failure)
        self._failed = failure


def send(address: str, lines: Sequence[str]) -> None:
    """Send ``lines`` to the notification socket at ``address`` without waiting. Raises OSError."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
        line.setblocking(False)  # a service's loop must not wait for systemd
        line.connect("\0" + address[1:] if address.startswith("@") else address)
        line.send("\n".join(lines).encode())


def changes(before: ServiceStatus | None, now: ServiceStatus) -> list[str]:
    """Return the lines for systemd when the status changes from ``before`` to ``now``."""
    lines = []
    if now.ready and not (before and before.ready):
        lines.append("READY=1")
    if now.stop_seconds is not None and not (before and before.stop_seconds is not None):
        lines += ["STOPPING=1", _extend(now.stop_seconds)]
    if before is None or before.text != now.text:
        lines.append("STATUS=" + " ".join(now.text.split())[:TEXT_MAX])
    return lines


def _extend(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}"
