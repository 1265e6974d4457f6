"""Failpoints: named places where a test kills, holds or fails the real process.

``FOREBAY_FAILPOINTS`` holds ``name=action`` pairs split by commas. A place that tells what passes it takes ``name:kind``
too, and acts then at that kind alone (``journal.before-sync:BlockAdded=kill``). An action is one of

* ``kill`` or ``kill@N``: the process kills itself with SIGKILL at the N-th arrival (default 1);
* ``stop`` or ``stop@N``: the process stops itself with SIGSTOP, a zombie until SIGCONT;
* ``hold`` or ``hold@N``: waits at the N-th arrival until the file ``<name>.release`` appears in the directory below;
* ``error:ERRNO`` or ``error:ERRNO@N``: raises OSError with that errno (``ENOSPC``, ``EIO``);
* ``drop`` or ``drop@N``: ``hit`` answers True, and the caller loses what it would have passed on (an answer, say).

``FOREBAY_FAILPOINT_DIR`` names a directory in which each arrival that acted leaves a file ``<name>.hit`` **before** it
acts, so that a test can assert that its failpoint was reached. An armed ``kill`` acts once per directory: a process that
the supervisor restarts finds the ``.hit`` file and goes on. Without the environment variable a failpoint costs one
dictionary look-up.
"""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

#: every failpoint of the product: name → where it stands. Tests go over this table; an unknown name is refused.
NAMES: dict[str, str] = {
    "receiver.after-poll": "records polled, nothing stored",
    "receiver.after-local-write": "local block written, WAL not yet asked",
    "wal.mid-write": "half of a frame's bytes written to a block segment",
    "wal.before-sync": "a block's frame written, not synced",
    "wal.after-sync": "a block's frame durable, nobody told",
    "receiver.before-report": "block durable, report not sent",
    "receiver.after-report": "report answered, nothing done about it",
    "receiver.before-commit": "report accepted, Kafka not told",
    "receiver.revoke": "in the revocation callback, before the open block is sealed",
    "driver.answer": "journal durable, answer about to leave (drop: it is lost)",
    "journal.before-write": "events decided, none written",
    "journal.before-sync": "events written, not synced",
    "journal.after-sync": "events durable, nothing answered or done",
    "journal.opening": "own epoch created, its snapshot not written",
    "journal.after-snapshot": "own snapshot durable, nothing else done",
    "driver.after-allocate": "batch allocated and durable, job not begun",
    "driver.in-job": "the job is running",
    "driver.before-complete": "job done, completion not journalled",
    "driver.after-complete": "completion durable",
    "output.before-write": "an output has found that the run is to be written, nothing written",
    "output.mid-write": "an output has taken some of a batch's rows, not all",
    "output.before-commit": "an output has all rows of a batch, not committed",
    "output.aside": "a folder of an earlier run moved aside, the new one not in its place",
    "output.after-commit": "an output's rows and marker committed, the job not told",
    "sink.task-end": 'a task of format("forebay") has collected its rows, Spark not told',
    "sink.before-rows": 'a transaction of format("forebay") begun, none of its records sent',
    "sink.mid-rows": "the rows of a task sent in the transaction, not of all",
    "sink.before-commit": "all rows of the batch sent in the transaction, not committed",
    "sink.after-commit": "rows and marker committed, Spark not told",
    "cleanup.after-intent": "intent durable, nothing deleted",
    "cleanup.after-delete": "deleted, done not journalled",
    "cleanup.after-done": "done durable",
    "copy.after-write": "a snapshot copy durable beside the WAL, not journalled",
    "copy.after-event": "a snapshot copy journalled, older ones not deleted",
    "history.after-append": "batches in the history, still in the journal's state",
    "adoption.before-bar": "trouble durable, every writer settled, no barrier made on a store of whole objects",
    "adoption.before-search": "trouble durable, every writer settled, the WAL not yet searched",
    "adoption.before-claim": "an orphan found, the partition not yet claimed",
    "adoption.before-write": "the partition claimed for adoption, nothing written",
    "adoption.before-report": "the adopted block durable, not reported",
    "adoption.before-release": "the adopted block accepted, the claim not released",
    "rebuild.after-marker": "a rebuild has marked the WAL with a new lineage, claimed nothing",
    "rebuild.after-claim": "a rebuild has claimed the new lineage, read nothing",
    "rebuild.after-blocks": "a rebuild has written blocks again, the journal does not name them",
    "rebuild.after-history": "a rebuild has saved finished batches, its snapshot is not written",
    "rebuild.after-snapshot": "a rebuild's snapshot is durable, nobody was told",
    "agent.before-delete": "told to delete, not begun",
    "agent.before-copy-kept": "a copy that the agent was given is written and checked, not in its place",
    "recovery.after-write": "blocks written anew and durable, the journal not told",
    "recovery.after-journal": "the journal says where blocks lie now, damaged segments still there",
    "recovery.after-aside": "a damaged segment copied aside, still in the log",
    "recovery.after-delete": "a damaged segment taken out of the log",
}


class _Armed(NamedTuple):
    action: str
    at: int


class _Failpoints:
    def __init__(self, spec: str, directory: str | None) -> None:
        self._armed: dict[str, _Armed] = {}
        self._count: dict[str, int] = {}
        self._lock = threading.Lock()
        self._directory = Path(directory) if directory else None
        for part in filter(None, (p.strip() for p in spec.split(","))):
            name, _, action = part.partition("=")
            if name.partition(":")[0] not in NAMES:
                raise ValueError(f"unknown failpoint {name!r}: known are {', '.join(sorted(NAMES))}")
            action, _, at = action.partition("@")
            self._armed[name] = _Armed(action, int(at or 1))

    @property
    def any_armed(self) -> bool:
        return bool(self._armed)

    def armed(self, name: str) -> bool:
        return name in self._armed

    def hit(self, name: str) -> bool:
        armed = self._armed.get(name)
        if armed is None:
            return False
        with self._lock:
            self._count[name] = count = self._count.get(name, 0) + 1
        if count != armed.at:
            return False
        if self._directory is not None:
            mark = self._directory / f"{name}.hit"
            try:
                mark.touch(exist_ok=False)
            except FileExistsError:
                return False
        return self._act(name, armed.action)

    def _act(self, name: str, action: str) -> bool:
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "stop":
            # to this thread: sent to the process, another thread takes it, and this one goes on until that had its turn
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)
        elif action == "drop":
            return True
        elif action == "hold":
            assert self._directory is not None, "hold needs FOREBAY_FAILPOINT_DIR"
            release = self._directory / f"{name}.release"
            while not release.exists():
                time.sleep(0.01)
        elif action.startswith("error:"):
            number = getattr(errno, action.removeprefix("error:"))
            raise OSError(number, f"{os.strerror(number)} (failpoint {name})")
        else:
            raise ValueError(f"failpoint {name}: unknown action {action!r}")
        return False


_active = _Failpoints(os.environ.get("FOREBAY_FAILPOINTS", ""), os.environ.get("FOREBAY_FAILPOINT_DIR"))


def hit(name: str, kinds: Iterable[str] = ()) -> bool:
    """Passes the failpoint ``name``. True only if it is armed with ``drop``: the caller then loses what it holds.

    ``kinds``: of what passes here; read only if some failpoint is armed.
    """
    dropped = _active.hit(name)
    if _active.any_armed:
        for kind in sorted(set(kinds)):
            dropped |= _active.hit(f"{name}:{kind}")
    return dropped


def armed(name: str) -> bool:
    """Whether ``name`` will act at some arrival: for places that cost something to pass."""
    return _active.armed(name)


def any_armed() -> bool:
    """Whether any failpoint is armed in this process."""
    return _active.any_armed


def arm(spec: str, directory: str | None = None) -> None:
    """Arms failpoints within this process (tests); ``arm("")`` disarms all."""
    global _active
    _active = _Failpoints(spec, directory)
