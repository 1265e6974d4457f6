"""A client for all drivers of a stream: it finds the leading driver, and keeps it while it answers."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import msgspec

from forebay.http.client import TIMEOUT_SECONDS, Client
from forebay.model.errors import AccessError, NoListenerError, NotTakenError, UnreachableError
from forebay.security.access import NO_ACCESS, Access
from forebay.security.roles import Role
from forebay.settings.schema import Settings

Answer = TypeVar("Answer")


class DriverClient:
    """Calls the leading driver, as :class:`forebay.http.client.Client` does. Thread-safe. ``urls``: those of all drivers.

    If no driver decided a request (no process listens, or a standby answered), it is sent to the next URL immediately, once to
    each. A request that a driver may have decided is not repeated: its error is raised, and the next request begins at the next
    URL.
    """

    def __init__(
        self,
        urls: Sequence[str],
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        access: Access = NO_ACCESS,
        stream: str = "",
    ) -> None:
        """``stream``: the name in the error for a user if no driver listens at any URL; "" for processes, which wait."""
        self._stream = stream
        self._clients = [Client(url, timeout_seconds, access) for url in urls]
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._current = 0
        self._lock = threading.Lock()

    @classmethod
    def of(
        cls,
        settings: Settings,
        timeout_seconds: float = TIMEOUT_SECONDS,
        role: Role = "operator",
        name: str | None = None,
    ) -> DriverClient:
        """Return the client of a process with ``role``. Raises SettingsError as ``Access.of``."""
        asked_by_person = settings.stream if role in ("operator", "reader") else ""
        return cls(
            settings.driver.all_urls,
            timeout_seconds=timeout_seconds,
            access=Access.of(settings, role, name),
            stream=asked_by_person,
        )

    @property
    def url(self) -> str:
        """The URL of the driver to which the next request goes first."""
        return self._urls[self._current]

    def post(self, path: str, body: msgspec.Struct, answer: type[Answer]) -> Answer:
        """As ``Client.post``."""
        return self._ask(lambda client: client.post(path, body, answer))

    def get(self, path: str, answer: type[Answer], accept: Callable[[Answer], bool] = lambda _: True) -> Answer:
        """As ``Client.get``. A request without an answer, or with one that ``accept`` refuses, is sent to the next URL too."""

        def ask(client: Client) -> Answer:
            found = client.get(path, answer)
            if not accept(found):
                raise NotTakenError(f"{client.url} does not lead", "")
            return found

        return self._ask(ask, repeatable=True)

    @contextmanager
    def stream(self, path: str, idle_seconds: float) -> Iterator[Iterator[bytes]]:
        """As ``Client.stream``, from the leading driver."""
        with contextlib.ExitStack() as opened:
            yield self._ask(lambda client: opened.enter_context(client.stream(path, idle_seconds)), repeatable=True)

    def close(self) -> None:
        for client in self._clients:
            client.close()

    def _ask(self, ask: Callable[[Client], Answer], repeatable: bool = False) -> Answer:
        reasons: list[str] = []
        silent = 0  # number of URLs where no process listens
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
                reasons.append(str(error))
                refused = error if isinstance(error, AccessError) else refused
        if refused is not None:
            raise AccessError("no leading driver answered: " + "; ".join(reasons), refused.code)
        raise UnreachableError("no leading driver answered: " + "; ".join(reasons))

    def _pass_on(self, tried: int) -> None:
        with self._lock:
            if self._current == tried:  # otherwise another thread has done it
                self._current = (tried + 1) % len(self._clients)
