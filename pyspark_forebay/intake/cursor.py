"""The cursor of a query over an intake. The intake's WAL keeps all records after the cursor."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from forebay.messages import CloseCursorRequest, MoveCursorRequest, OpenCursorRequest
from forebay.model.errors import FencedError, ForebayError, RefusedError
from forebay.model.values import TopicPartition
from pyspark_forebay.intake.client import Intake, Places, place_messages

_log = logging.getLogger("forebay.source")

#: pause between two heartbeats of a cursor's user
HEARTBEAT_SECONDS = 1.0


class QueryCursor:
    """A cursor in use. A thread sends heartbeats for it until :meth:`close`."""

    def __init__(
        self, intake: Intake, *, name: str, user: str, key: str, places: Places, left: Iterable[TopicPartition]
    ) -> None:
        """Open the cursor ``name`` at ``places``. On return it is in the driver's journal.

        ``user``: a text that names the reading process. ``key``: a random text, without which no other process can move the
        cursor. ``left``: partitions of the intake that the query does not read. Raises RefusedError, UsageError,
        UnreachableError.
        """
        self.name = name
        self._intake = intake
        self._key = key
        request = OpenCursorRequest(
            cursor=name, user=user, places=place_messages(places), left=tuple(sorted(left)), key=self._key
        )
        answer = intake.open(request)
        if answer.ended:
            _log.warning(
                "cursor %s was created again and begins where the query's checkpoint says; it had %s",
                name,
                answer.ended,
            )
        self._epoch = answer.epoch
        self._lost: ForebayError | None = None
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._send_heartbeats, name="cursor", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise FencedError or RefusedError if another user has the cursor, or an operator dropped it."""
        if self._lost is not None:
            raise self._lost

    def move(self, places: Places, left: Iterable[TopicPartition]) -> None:
        """Move to ``places``, so that the WAL may delete records before them.

        Raises as :meth:`check`, and UnreachableError.
        """
        self.check()
        request = MoveCursorRequest(
            cursor=self.name, epoch=self._epoch, places=place_messages(places), left=tuple(sorted(left)), key=self._key
        )
        self._intake.move(request)

    def close(self, forget: bool = False) -> None:
        """Stop the heartbeats and release the cursor, so that the next user does not wait.

        ``forget``: whether the driver drops the cursor, because the query could not begin and no checkpoint names it.
        """
        self._closing.set()
        self._thread.join()
        if self._lost is None:
            try:
                self._intake.end(CloseCursorRequest(cursor=self.name, epoch=self._epoch, forget=forget, key=self._key))
            except ForebayError as error:
                _log.warning("cursor %s was not released, and stays in use until its lease ends: %s", self.name, error)

    def _send_heartbeats(self) -> None:
        request = MoveCursorRequest(cursor=self.name, epoch=self._epoch, key=self._key)
        while not self._closing.wait(HEARTBEAT_SECONDS):
            try:
                self._intake.send_heartbeat(request)
            except (FencedError, RefusedError) as error:
                self._lost = error
                return
            except ForebayError as error:
                _log.debug("cursor %s: %s", self.name, error)  # every driver has it in its journal
