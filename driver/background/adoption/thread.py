"""The thread that drives an adopter."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from driver.background.adoption.adopter import Adopter, advanced
from driver.decision_loop.loop import DriverLoop
from driver.journal.events import ClaimGiven, Event, FaultRecorded, GapRecorded
from forebay.model.errors import (
    TurnedAwayError,
    UnreachableError,
)
from forebay.process import failpoints


class AdoptionThread:
    """Drives an adopter: immediately when a fault is recorded, and in rounds while a partition waits.

    ``failed`` gets the error that ended the thread, unless the decision loop has ended.
    """

    def __init__(self, adopter: Adopter, loop: DriverLoop, failed: Callable[[BaseException], None]) -> None:
        self._adopter = adopter
        self._loop = loop
        self._failed = failed
        self._wanted = threading.Event()
        self._wanted.set()  # for faults that were recorded before this driver led
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adoption", daemon=True)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wanted.set()
        self._thread.join()
        self._adopter.close()

    def note(self, events: Sequence[Event]) -> None:
        """Start a round if durable events may need one: faults, new tokens of partitions with a fault, gaps before orphans.

        Called in the decision loop.
        """
        if any(isinstance(event, FaultRecorded | ClaimGiven | GapRecorded) for event in events):
            self._wanted.set()

    def _run(self) -> None:
        try:
            due: float | None = None
            while True:
                self._wanted.wait(due)
                if self._stopping.is_set():
                    return
                self._wanted.clear()
                due = self._round()
        except UnreachableError:
            return  # the decision loop has ended, and reports the cause itself
        except Exception as error:  # or partitions with a fault would wait for ever, unnoticed (INV-5)
            self._failed(error)

    def _round(self) -> float | None:
        steps = self._adopter.round()
        answer: Any = None
        try:
            while True:
                wanted = advanced(steps, answer)
                if isinstance(wanted, str):
                    answer = None
                    failpoints.hit(f"adoption.before-{wanted}")
                else:
                    try:
                        answer = self._loop.ask(wanted)
                    except TurnedAwayError as error:
                        answer = error
        except StopIteration as end:
            due: float | None = end.value
            return due
