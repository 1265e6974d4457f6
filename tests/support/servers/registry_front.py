"""A server in front of a real schema registry that adds authentication, schemas by GUID, and outages.

The registry behind it has no GUIDs. It uses https if it has a certificate.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Callable

from tests.support.servers.answering import AnsweringHandler, AnsweringServer


class RegistryFront(AnsweringServer):
    """``wanted``: the header Authorization, if any, or what says whether one is good. ``guids``: GUID → number behind.
    ``failures``: statuses of the next answers, used up one by one. ``asked``: the paths of all requests. ``headers``: theirs."""

    def __init__(
        self, behind: str, wanted: str | Callable[[str], bool] | None = None, files: dict[str, str] | None = None
    ) -> None:
        self.guids: dict[str, int] = {}
        self.failures: list[int] = []
        self.asked: list[str] = []
        self.headers: list[dict[str, str]] = []
        front = self

        class Handler(AnsweringHandler):
            def do_GET(self) -> None:  # noqa: N802 - its library's name
                front.asked.append(self.path)
                front.headers.append({name.lower(): value for name, value in self.headers.items()})
                status, body = 401, b'{"error_code": 401, "message": "who are you?"}'
                given = self.headers["Authorization"] or ""
                if wanted is None or (wanted(given) if callable(wanted) else given == wanted):
                    status, body = front._answer(behind, self.path)
                self.answer(status, body)

        super().__init__(Handler, files)

    def _answer(self, behind: str, path: str) -> tuple[int, bytes]:
        if self.failures:
            status = self.failures.pop(0)
            return status, b'{"error_code": %d, "message": "out of order"}' % status
        guid = path.partition("/schemas/guids/")[2].partition("?")[0]
        if guid in self.guids:
            path = f"/schemas/ids/{self.guids[guid]}"
        try:
            with urllib.request.urlopen(behind + path, timeout=30) as answer:
                return int(answer.status), answer.read()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read()
