"""What to do when a child process of ``forebay up`` has ended: a decision on values alone, kept as a table."""

from __future__ import annotations

import signal
from enum import Enum

from forebay.model.errors import AlreadyRunningError, FencedError, UsageError


class Verdict(Enum):
    RESTART = "restart"
    STAY_DOWN = "stay down"  # this child alone
    STOP_ALL = "stop all"  # no child can work until a person has changed something


class How(Enum):
    """How a child ended."""

    FINISHED = "finished"
    WRONG_USE = "was used wrongly"
    FENCED = "was fenced"
    NOT_NEEDED = "found another at work"  # at the start of `up`: the others were not started yet
    REPLACED = "found another in its place"  # later
    FAILED = "failed"
    KILLED = "was killed"


#: each row is a promise to the person on call (docs/operations/start.md); a test goes over all of them
VERDICTS: dict[How, tuple[Verdict, str]] = {
    How.FINISHED: (Verdict.STAY_DOWN, "it was told to stop"),
    How.WRONG_USE: (Verdict.STOP_ALL, "all children share the configuration: it must be mended first"),
    How.FENCED: (Verdict.STAY_DOWN, "another process has taken its place, and two would fight (INV-4)"),
    How.NOT_NEEDED: (Verdict.STOP_ALL, "two would fight, so nothing was started beside it"),
    How.REPLACED: (Verdict.RESTART, "the other may end, and this one is then needed again"),
    How.FAILED: (Verdict.RESTART, "what failed may pass: the journal and the WAL hold all that counts"),
    How.KILLED: (Verdict.RESTART, "nothing was wrong with it"),
}


def how_it_ended(return_code: int, alone: bool = False) -> How:
    """``return_code`` as subprocess gives it: negative for the signal that killed it. ``alone``: the other children wait for
    this one, and none was started yet."""
    if return_code < 0:
        return How.KILLED
    return {
        0: How.FINISHED,
        UsageError.exit_code: How.WRONG_USE,
        FencedError.exit_code: How.FENCED,
        AlreadyRunningError.exit_code: How.NOT_NEEDED if alone else How.REPLACED,
    }.get(return_code, How.FAILED)


def described(return_code: int, alone: bool = False) -> str:
    how = how_it_ended(return_code, alone)
    if how is How.KILLED:
        try:
            return f"was killed by {signal.Signals(-return_code).name}"
        except ValueError:
            return f"was killed by signal {-return_code}"
    return how.value if how is How.FINISHED else f"{how.value} (exit code {return_code})"
