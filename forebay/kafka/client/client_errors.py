"""Why brokers can't be reached, as librdkafka reports it to a client. The answer to a failed request has no reason.

librdkafka calls ``error_cb`` at each attempt to connect, but not if a broker closes the connection: then it only writes to its
log. A client that waits before its next attempt reports nothing.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from forebay.kafka.client.denials import denial_in, next_step
from forebay.kafka.client.handshakes import handshake_fault
from forebay.kafka.options.rights import Right
from forebay.model.errors import UnreachableError
from forebay.process.clock import Clock, SystemClock
from forebay.process.reminder import Reminder

#: maximum number of reasons that a text names, and that are kept
REASONS_MAX, KEPT_MAX = 3, 100
#: a broker that closes a connection before this age refuses it; milliseconds, the limit of librdkafka's own advice
EARLY_MS = 2_000
#: The part of a reason that differs between attempts. librdkafka gives a reason only as this text.
_ATTEMPT = re.compile(
    r" \((?:after \d+ms in state \w+)(?:, \d+ identical error\(s\) suppressed)?\)|: now=\d+ms, exp=\d+ms"
)
#: A line of librdkafka's log: thread, reason, age and state of the connection. librdkafka calls no callback for a closed
#: connection, so there is no code to compare. ``tests/forebay/kafka/client/test_client_errors.py`` reads both texts from a
#: client.
_CLOSED = re.compile(r"\[thrd:.*?\]: (.*: Disconnected.*) \(after (\d+)ms in state (\w+)")
_NEXT_STEPS = {
    KafkaError._AUTHENTICATION: 'check "sasl.mechanism", "sasl.username" and "sasl.password"',
    KafkaError._SSL: 'check "security.protocol" and the certificates ("ssl.ca.location")',
    KafkaError._RESOLVE: 'check the names in "bootstrap.servers"',
}
#: Part of a reason → the next step. These causes have no error code of their own: it is _TRANSPORT or _SSL for all of them.
_NEXT_STEPS_BY_TEXT = {
    "SSL handshake": _NEXT_STEPS[KafkaError._SSL],
    "tls alert": (
        "the broker refused this client's certificate, or requires one: "
        'check "ssl.certificate.location" and "ssl.key.location"'
    ),
    "SASL OAUTHBEARER token": 'check "sasl.oauthbearer.token.endpoint.url", ".client.id" and ".client.secret"',
    "Disconnected": 'check "security.protocol" and the port: a listener of another kind closes such a connection',
    "Connect to": 'check host and port in "bootstrap.servers", and that a broker runs there',
}


class ClientErrors:
    """The ``error_cb`` and the ``logger`` of clients. Keeps each reason once. Thread-safe.

    ``ended``: the error that ended the client or its transaction, as librdkafka logged it; "" if there is none.
    """

    def __init__(
        self,
        log: logging.Logger | None = None,
        clock: Clock | None = None,
        *,
        options: Mapping[str, str] | None = None,
        rights: Callable[[], Iterable[Right]] = tuple,
    ) -> None:
        """``log``: receives the lines of librdkafka's log, except those about failed connections: of each kind the first one,
        and repeats after growing delays. ``clock``: default: the system's. ``options``: those of the client, to find out why its
        TLS handshakes fail. ``rights``: returns the rights that the client needs, for the next step if one is missing."""
        self._log = log
        self._options = options or {}
        self._rights = rights
        self._clock = clock or SystemClock()
        self._reminders: dict[str, Reminder] = {}  # by librdkafka's name of the kind, such as REQTMOUT
        self._reasons: dict[str, str] = {}  # → what to check
        self.ended = ""
        self._lock = threading.Lock()

    def __call__(self, error: KafkaError) -> None:
        if error.code() != KafkaError._ALL_BROKERS_DOWN:  # repeats the brokers' own errors
            self.add(error.str(), error.code(), next_step(error, self._rights()))

    def log(self, level: int, message: str, facility: str, client: str, text: str) -> None:
        """Called by the client within a poll."""
        if facility in ("FATAL", "TXNERR"):
            self.ended = text.partition("]: ")[2] or text
        if facility != "FAIL":
            if self._log is not None:
                with self._lock:
                    reminder = self._reminders.setdefault(facility, Reminder())
                    is_due = reminder.is_due(self._clock.monotonic())
                    more = reminder.count() if is_due else ""
                if is_due:
                    self._log.log(level, message, facility, client, text + more)
        elif (closed := _CLOSED.match(text)) and (closed[3] != "UP" or int(closed[2]) < EARLY_MS):
            self.add(closed[1])

    def add(self, reason: str, code: int = KafkaError.NO_ERROR, step: str = "") -> None:
        """Keep ``reason``. ``step``: the next step; "" for the one that ``reason`` or ``code`` implies."""
        reason = _ATTEMPT.sub("", reason).replace("/bootstrap:", ":")
        steps = (step for part, step in _NEXT_STEPS_BY_TEXT.items() if part in reason)
        step = step or next(steps, _NEXT_STEPS.get(code, ""))
        with self._lock:
            if len(self._reasons) < KEPT_MAX:
                self._reasons[reason] = step

    @contextmanager
    def fatal(self) -> Iterator[None]:
        """Raise a fatal error, which ends the client within a poll or flush, as KafkaException.

        confluent-kafka calls the callbacks that follow in the same poll while this exception is set, so Python raises a
        SystemError, with or without its cause.
        """
        try:
            yield
        except SystemError as error:
            if isinstance(error.__cause__, KafkaException):
                raise error.__cause__ from None
            if not self.ended:
                raise
            raise KafkaException(denial_in(self.ended) or KafkaError(KafkaError._FATAL, self.ended)) from None

    def forget(self) -> None:
        """Forget all reasons, when a broker has answered."""
        if self._reasons:
            with self._lock:
                self._reasons.clear()

    def text(self) -> str:
        """Return the reasons since :meth:`forget`, and what to check; "" if there are none.

        The order does not depend on the order of the attempts, so the same reasons give the same text.
        """
        with self._lock:
            found = sorted(self._reasons.items())
        shown = dict(found[:REASONS_MAX])
        more = [f"and {len(found) - REASONS_MAX} more"] if len(found) > REASONS_MAX else []
        return "; ".join([*shown, *more, *dict.fromkeys(filter(None, shown.values()))])

    def unreachable(self, what: str) -> UnreachableError:
        """Return the error ``what``, which names the address, with the reasons and what to check.

        If TLS failed, connect once more to find out which certificate is wrong, for at most a few seconds.
        """
        text = self.text()
        fault = handshake_fault(self._options, self._clock.wall_ms()) if "SSL" in text else ""
        return UnreachableError(": ".join(filter(None, (what, "; ".join(filter(None, (fault, text)))))))
