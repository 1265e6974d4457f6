"""What ``forebay up`` does when a child process has ended: a decision table without I/O."""

from __future__ import annotations

import signal
from enum import Enum

from forebay.model.errors import AlreadyRunningError, FencedError, UsageError
from forebay.process.restarts import RESTART_EXIT_CODE


class ExitVerdict(Enum):
    """What happens to a child that has ended."""

    RESTART = "restart"
    STAY_DOWN = "stay down"  # only this child
    STOP_ALL = "stop all"  # no child can run until a person changes something


class How(Enum):
    """How a child ended."""

    FINISHED = "finished"
    TO_RESTART = "drained to be started again"
    WRONG_USE = "found wrong settings or options"
    FENCED = "was fenced"
    NOT_NEEDED = "found the stream already running"  # at the start of `up`, before the other children are started
    REPLACED = "found another process in its place"  # later
    FAILED = "failed"
    KILLED = "was killed"


#: how a child ended → what happens, and why; docs/operations/start.md documents each row, and a test covers all rows
VERDICTS: dict[How, tuple[ExitVerdict, str]] = {
    How.FINISHED: (ExitVerdict.STAY_DOWN, "it was asked to stop"),
    How.TO_RESTART: (ExitVerdict.RESTART, "an operator requested it at the driver"),
    How.WRONG_USE: (ExitVerdict.STOP_ALL, "all children share the configuration, which must be corrected first"),
    How.FENCED: (ExitVerdict.STAY_DOWN, "another process has replaced it, and the two would fence each other (INV-4)"),
    How.NOT_NEEDED: (ExitVerdict.STOP_ALL, "two instances would fence each other, so no further service was started"),
    How.REPLACED: (ExitVerdict.RESTART, "the other process may end, and then this one is needed again"),
    How.FAILED: (ExitVerdict.RESTART, "the cause may be temporary, and the journal and the WAL hold the state"),
    How.KILLED: (ExitVerdict.RESTART, "the process itself had no fault"),
}


def how_it_ended(return_code: int, alone: bool = False) -> How:
    """Return how a child ended, by its return code as subprocess gives it: negative for the signal that killed it.

    ``alone``: no other child was started yet, because all wait for this one.
    """
    if return_code < 0:
        return How.KILLED
    return {
        0: How.FINISHED,
        RESTART_EXIT_CODE: How.TO_RESTART,
        UsageError.exit_code: How.WRONG_USE,
        FencedError.exit_code: How.FENCED,
        AlreadyRunningError.exit_code: How.NOT_NEEDED if alone else How.REPLACED,
    }.get(return_code, How.FAILED)


def described(return_code: int, alone: bool = False) -> str:
    """Return how a child ended as the end of a sentence, such as ``failed (exit code 1)``."""
    how = how_it_ended(return_code, alone)
    if how is How.KILLED:
        try:
            return f"was killed by {signal.Signals(-return_code).name}"
        except ValueError:
            return f"was killed by signal {-return_code}"
    return how.value if how is How.FINISHED else f"{how.value} (exit code {return_code})"
