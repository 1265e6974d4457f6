"""Why brokers can't be reached, as librdkafka's ``error_cb`` tells it; the answer to a question names no reason."""

from __future__ import annotations

import re
import threading

from confluent_kafka import KafkaError

#: kept of different reasons
REASONS_MAX = 3
#: what changes from one attempt to the next
_ATTEMPT = re.compile(r" \((?:after \d+ms in state \w+)(?:, \d+ identical error\(s\) suppressed)?\)")
_NEXT_STEPS = {
    KafkaError._AUTHENTICATION: 'check "sasl.mechanism", "sasl.username" and "sasl.password"',
    KafkaError._SSL: 'check "security.protocol" and the certificates ("ssl.ca.location")',
    KafkaError._RESOLVE: 'check the names in "bootstrap.servers"',
}


class ClientErrors:
    """The ``error_cb`` of clients. Keeps the latest reasons, each once; from any thread."""

    def __init__(self) -> None:
        self._reasons: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, error: KafkaError) -> None:
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            return  # says nothing that the brokers' own errors don't say
        reason = _ATTEMPT.sub("", error.str()).replace("/bootstrap:", ":")
        code = KafkaError._SSL if "SSL handshake" in reason else error.code()
        with self._lock:
            self._reasons.pop(reason, None)
            self._reasons[reason] = code
            while len(self._reasons) > REASONS_MAX:
                del self._reasons[next(iter(self._reasons))]

    def forget(self) -> None:
        with self._lock:
            self._reasons.clear()

    def words(self) -> str:
        """The reasons, and what to check; "" if there are none."""
        with self._lock:
            reasons = dict(self._reasons)
        steps = dict.fromkeys(_NEXT_STEPS[code] for code in reasons.values() if code in _NEXT_STEPS)
        return "; ".join([*reasons, *steps])
