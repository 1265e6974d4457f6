"""Telling systemd how a service stands (``sd_notify(3)``): ready, its words, alive, stopping.

A watchdog is of use only if what must make progress feeds it, so pings leave from the service's own loops: each says that it
:meth:`~Notifier.came_round`, and a ping leaves when all of them have since the one before. A loop that hangs stops the pings,
and systemd ends the process. Where nobody listens (no ``NOTIFY_SOCKET``), nothing is done.
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, MutableMapping
from dataclasses import dataclass

from forebay.process.clock import Clock

log = logging.getLogger(__name__)

#: pings in the time after which systemd gives a silent service up; and between two of them at most
PINGS_PER_WATCHDOG, PING_SECONDS_MAX = 4, 15.0
#: between two looks at how the service stands
LOOK_SECONDS = 1.0
#: a service that starts may take so long more from each round of its loops on
START_SECONDS = 60.0
#: characters of a status
WORDS_MAX = 500


@dataclass(frozen=True, slots=True)
class ServiceStatus:
    """How a service stands. ``ready``: it does what others wait for; ``words``: one line for people; ``stop_seconds``: it
    stops, and takes no longer than that (None: it does not stop)."""

    ready: bool
    words: str
    stop_seconds: float | None = None


class Pulse:
    """When a ping is due: ``interval_seconds`` after the last one at the earliest, and not before every watched loop has come
    round since. Decides on values alone."""

    def __init__(self, interval_seconds: float) -> None:
        self._interval_seconds = interval_seconds
        self._loops: set[str] = set()
        self._awaited: set[str] = set()
        self._next = 0.0

    def watch(self, loop: str) -> None:
        """From now on ``loop`` must come round."""
        self._loops.add(loop)
        self._awaited.add(loop)

    def came_round(self, loop: str, now: float) -> bool:
        """Whether a ping is due now that ``loop`` came round."""
        self._awaited.discard(loop)
        if self._awaited or now < self._next:
            return False
        self._awaited = set(self._loops)
        self._next = now + self._interval_seconds
        return True


class Notifier:
    """Speaks to systemd for one process. ``standing`` is asked about once a second, in the loop that came round: it must not
    block. May be used from any thread. ``address``: "" if nobody listens."""

    def __init__(
        self, address: str, watchdog_seconds: float, clock: Clock, service_status: Callable[[], ServiceStatus]
    ) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
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
        """As systemd says in ``environment``, from which it is taken: child processes are none of systemd's business."""
        address = environment.pop("NOTIFY_SOCKET", "")
        watchdog = environment.pop("WATCHDOG_USEC", "")
        watched = environment.pop("WATCHDOG_PID", "")
        ours = watchdog.isdigit() and watched in ("", str(process_id))
        return cls(address, int(watchdog) / 1e6 if ours else 0.0, clock, service_status)

    def watch(self, loop: str) -> None:
        """From now on no ping leaves without ``loop``."""
        with self._lock:
            self._pulse.watch(loop)

    def came_round(self, loop: str) -> None:
        """``loop`` makes progress. Sends what is due: a ping, and what has changed."""
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
        words = ""
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as line:
                line.setblocking(False)  # a loop that must make progress does not wait for systemd
                line.connect(self._address)
                line.send("\n".join(lines).encode())
        except OSError as error:
            self._said = None  # said again, whole, in the next round
            words = f"systemd was not told how this service stands: {error}"
        if words and words != self._failed:
            log.warning("%s", words)
        self._failed = words


def changes(before: ServiceStatus | None, now: ServiceStatus) -> list[str]:
    """What systemd is told of the way from ``before`` to ``now``."""
    lines = []
    if now.ready and not (before and before.ready):
        lines.append("READY=1")
    if now.stop_seconds is not None and not (before and before.stop_seconds is not None):
        lines += ["STOPPING=1", _extend(now.stop_seconds)]
    if before is None or before.words != now.words:
        lines.append("STATUS=" + " ".join(now.words.split())[:WORDS_MAX])
    return lines


def _extend(seconds: float) -> str:
    return f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}"
