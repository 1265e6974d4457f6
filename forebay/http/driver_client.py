"""One client for all drivers of a stream: of several the one that leads is found, and kept while it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

import msgspec

from forebay.http.client import Client
from forebay.model.errors import AccessError, NoListenerError, NotTakenError, UnreachableError
from forebay.security.access import NO_ACCESS, Access
from forebay.security.roles import Role
from forebay.settings.schema import Settings

Answer = TypeVar("Answer")
Found = TypeVar("Found")


class DriverClient:
    """Calls the driver at work, as :class:`forebay.http.client.Client` does; thread-safe. ``urls``: as ``driver.all_urls``.

    A request that nobody took (nobody listens, or a standby answered) goes to the next url at once, once round. One that may
    have been taken is never sent twice by itself: its error is raised, and the next request begins at the next url.
    """

    def __init__(
        self, urls: Sequence[str], timeout_seconds: float = 10.0, access: Access = NO_ACCESS, stream: str = ""
    ) -> None:
        """``stream``: named to a person when nobody listens at any of ``urls``; "" for processes, which wait."""
        self._stream = stream
        self._clients = [Client(url, timeout_seconds, access) for url in urls]
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._current = 0
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls, settings: Settings, timeout_seconds: float = 10.0, role: Role = "operator", name: str | None = None
    ) -> DriverClient:
        """Of the stream's drivers, for a process of ``role``. Raises SettingsError as ``Access.of``."""
        asked_by_person = settings.stream if role == "operator" else ""
        return cls(settings.driver.all_urls, timeout_seconds, Access.of(settings, role, name), asked_by_person)

    @property
    def url(self) -> str:
        """Of the driver that is asked first."""
        return self._urls[self._current]

    def post(self, path: str, body: msgspec.Struct, answer: type[Answer]) -> Answer:
        """As ``Client.post``."""
        return self._ask(lambda client: client.post(path, body, answer))

    def get(self, path: str, answer: type[Answer]) -> Answer:
        """As ``Client.get``; a read that got no answer goes on to the next url too."""
        return self._ask(lambda client: client.get(path, answer), repeatable=True)

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _ask(self, ask: Callable[[Client], Found], repeatable: bool = False) -> Found:
        words: list[str] = []
        silent = 0  # drivers' urls where nobody listens
        refused: AccessError | None = None
        for _ in self._clients:
            tried = self._current
            try:
                return ask(self._clients[tried])
            except UnreachableError as error:
                self._pass_on(tried)
                silent += isinstance(error, NoListenerError)
                if self._stream and silent == len(self._clients):
                    raise NotTakenError(
                        f"no driver of stream {self._stream} at {', '.join(self._urls)}: start it with `forebay up` "
                        f"({error.reason if isinstance(error, NoListenerError) else error})"
                    ) from None
                if len(self._clients) == 1 or not (repeatable or isinstance(error, NotTakenError)):
                    raise
                words.append(str(error))
                refused = error if isinstance(error, AccessError) else refused
        if refused is not None:
            raise AccessError("no driver that leads answers: " + "; ".join(words), refused.code)
        raise UnreachableError("no driver that leads answers: " + "; ".join(words))

    def _pass_on(self, tried: int) -> None:
        with self._lock:
            if self._current == tried:  # else another thread did
                self._current = (tried + 1) % len(self._clients)
