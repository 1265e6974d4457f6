"""Posts what happens in a stream to a url, as JSON."""

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

from driver.listeners.dispatch import Happened
from forebay.model.errors import UnreachableError

log = logging.getLogger(__name__)

#: how often a request is made before its events are given up, and the longest wait between two
ATTEMPTS_MAX = 5
WAIT_SECONDS_MAX = 5.0
_ANSWER_BYTES_MAX = 65_536


class Posted(msgspec.Struct, frozen=True):
    """The body of a request. ``dropped``: events since the driver began that no request has had."""

    stream: str
    dropped: int
    events: tuple[Happened, ...]


class WebHook:
    """``url`` may hold a secret, so no log, status or message has more of it than its host."""

    def __init__(self, url: str, stream: str, timeout_seconds: float, first_wait_seconds: float = 0.2) -> None:
        self._url = url
        self._stream = stream
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.hostname}" + (f":{parts.port}" if parts.port else "")
        self.failures = 0
        self.last_error = ""
        self._closing = threading.Event()
        self._again = False  # the last request failed for good: said once, until one succeeds
        self._pool = urllib3.PoolManager(maxsize=1, retries=False, timeout=timeout_seconds)
        self._retrying = Retrying(
            retry=retry_if_exception_type(UnreachableError),
            stop=stop_any(stop_after_attempt(ATTEMPTS_MAX), stop_when_event_set(self._closing)),
            wait=wait_exponential(multiplier=first_wait_seconds, max=WAIT_SECONDS_MAX),
            sleep=sleep_using_event(self._closing),
        )

    def take(self, happened: Sequence[Happened], dropped: int) -> int:
        body = msgspec.json.encode(Posted(self._stream, dropped, tuple(happened)))
        try:
            self._retrying(self._post, body)
        except RetryError:
            if not self._again:
                log.warning("web hook %s: %s; events are dropped, status counts them", self.name, self.last_error)
            self._again = True
            return len(happened)
        if self._again:
            log.info("web hook %s takes events again", self.name)
        self._again = False
        return 0

    def _post(self, body: bytes) -> None:
        headers = {"content-type": "application/json"}
        try:
            response = self._pool.request("POST", self._url, body=body, headers=headers, preload_content=False)
            response.read(_ANSWER_BYTES_MAX)
            response.close()  # of what is not read: nobody wants it; else the connection is kept
        except urllib3.exceptions.HTTPError as error:
            # its words have the whole url
            raise self._failed(f"no answer ({type(error).__name__})") from None
        if not 200 <= response.status < 300:
            raise self._failed(f"HTTP {response.status}")

    def _failed(self, words: str) -> UnreachableError:
        self.failures += 1
        self.last_error = words
        return UnreachableError(words)

    def close(self) -> None:
        """Ends the waiting between attempts."""
        self._closing.set()
