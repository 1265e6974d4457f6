"""The web hook: posts the events of a stream to a URL, as JSON."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from urllib.parse import urlsplit

import msgspec
import urllib3
from tenacity import (
    RetryError,
    Retrying,
    retry_if_exception_type,
    sleep_using_event,
    stop_after_attempt,
    stop_any,
    stop_when_event_set,
    wait_exponential,
)

from driver.listeners.events import Happened
from forebay.http.connections import BoundedConnections, is_chunked
from forebay.model.errors import UnreachableError

log = logging.getLogger(__name__)

#: attempts at a request before its events are dropped, and the longest wait between two
ATTEMPTS_MAX = 5
WAIT_SECONDS_MAX = 5.0
_ANSWER_BYTES_MAX = 65_536


class Posted(msgspec.Struct, frozen=True):
    """The body of a request. ``dropped``: events since the driver's start that no request contained."""

    stream: str
    dropped: int
    events: tuple[Happened, ...]


class WebHook:
    """Posts events to ``url``. The URL may contain a secret, so logs, status and messages show only its host and port.

    ``timeout_seconds``: maximum time of one request. ``first_wait_seconds``: pause after the first failed attempt; it doubles
    up to ``WAIT_SECONDS_MAX``.
    """

    def __init__(self, url: str, *, stream: str, timeout_seconds: float, first_wait_seconds: float = 0.2) -> None:
        self._url = url
        self._stream = stream
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        self.failures = 0
        self.last_error = ""
        self._closing = threading.Event()
        self._failing = False  # the last request failed after all attempts; logged once, until one succeeds
        self._pool = BoundedConnections(maxsize=1, retries=False, timeout=timeout_seconds)
        self._retrying = Retrying(
            retry=retry_if_exception_type(UnreachableError),
            stop=stop_any(stop_after_attempt(ATTEMPTS_MAX), stop_when_event_set(self._closing)),
            wait=wait_exponential(multiplier=first_wait_seconds, max=WAIT_SECONDS_MAX),
            sleep=sleep_using_event(self._closing),
        )

    def take(self, happened: Sequence[Happened], dropped: int) -> int:
        """Post events as one request. Return how many of them were dropped."""
        body = msgspec.json.encode(Posted(self._stream, dropped, tuple(happened)))
        try:
            self._retrying(self._post, body)
        except RetryError:
            if not self._failing:
                log.warning("web hook %s: %s; dropping events (see `forebay status`)", self.name, self.last_error)
            self._failing = True
            return len(happened)
        if self._failing:
            log.info("web hook %s: requests succeed again", self.name)
        self._failing = False
        return 0

    def _post(self, body: bytes) -> None:
        headers = {"content-type": "application/json"}
        try:
            response = self._pool.request("POST", self._url, body=body, headers=headers, preload_content=False)
            if not is_chunked(response):
                response.read(_ANSWER_BYTES_MAX, decode_content=False)
            response.close()  # ends the connection only if the answer has more
        except urllib3.exceptions.HTTPError as error:
            # the error's text contains the whole url
            raise self._failed(f"no answer ({type(error).__name__})") from None
        if not 200 <= response.status < 300:
            raise self._failed(f"HTTP {response.status}")

    def _failed(self, reason: str) -> UnreachableError:
        self.failures += 1
        self.last_error = reason
        return UnreachableError(reason)

    def close(self) -> None:
        """End the wait between two attempts."""
        self._closing.set()
