"""Failpoints: named places where a test kills, holds or fails the real process.

``FOREBAY_FAILPOINTS`` is a list of ``name=action`` pairs, separated by commas. Some places name what passes them: there
``name:kind`` acts only at that kind (``journal.before-sync:BlockAdded=kill``). An action is one of

* ``kill`` or ``kill@N``: the process kills itself with SIGKILL at the N-th arrival (default 1);
* ``stop`` or ``stop@N``: the process stops itself with SIGSTOP, until SIGCONT;
* ``hold`` or ``hold@N``: waits at the N-th arrival until the file ``<name>.release`` appears in the directory below;
* ``error:ERRNO`` or ``error:ERRNO@N``: raises OSError with that errno (``ENOSPC``, ``EIO``);
* ``drop`` or ``drop@N``: ``hit`` returns True, and the caller drops what it would have sent, such as an answer.

``FOREBAY_FAILPOINT_DIR`` names a directory. **Before** a failpoint acts, it creates the file ``<name>.hit`` there, so that a test
can assert that the failpoint was reached. A ``kill`` acts once for each directory: a process that the supervisor restarts finds
the ``.hit`` file and continues. Without the environment variable, a failpoint costs one dictionary lookup.
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

#: every failpoint of the product: name → its place. Tests have a case for each; an unknown name is refused.
NAMES: dict[str, str] = {
    "receiver.after-poll": "records polled, nothing stored",
    "receiver.after-local-write": "local block written, WAL write not begun",
    "wal.mid-write": "half of a frame's bytes written to a block segment",
    "wal.before-sync": "a block's frame written, not synced",
    "wal.after-sync": "a block's frame durable, nothing reported",
    "receiver.before-report": "block durable, report not sent",
    "receiver.after-report": "report answered, answer not processed",
    "receiver.before-commit": "report accepted, offsets not committed to Kafka",
    "receiver.revoke": "in the revocation callback, before the open block is sealed",
    "driver.answer": "journal durable, answer not sent (drop: it is lost)",
    "journal.before-write": "events decided, none written",
    "journal.before-sync": "events written, not synced",
    "journal.after-sync": "events durable, nothing answered or executed",
    "journal.opening": "own epoch created, its snapshot not written",
    "journal.after-snapshot": "own snapshot durable, nothing else done",
    "driver.after-allocate": "batch allocated and durable, job not begun",
    "driver.in-job": "the job is running",
    "driver.before-complete": "job done, completion not journalled",
    "driver.after-complete": "completion durable",
    "output.before-write": "an output has decided to write the run, nothing written",
    "output.mid-write": "an output has received some of a batch's rows, not all",
    "output.before-commit": "an output has all rows of a batch, not committed",
    "output.aside": "a folder of an earlier run moved aside, the new one not in its place",
    "output.after-commit": "an output's rows and marker committed, nothing returned to the job",
    "state.before-write": "a keyed state is to be changed, nothing written",
    "state.mid-write": "a file of one shard of a keyed state written, not of all shards",
    "state.before-manifest": "the job has returned, all files of a keyed state written, no manifest",
    "state.after-manifest": "the manifest of a keyed state durable, the completion not journalled",
    "state.before-clean": "files of a keyed state that nothing needs found, none deleted",
    "state.mid-clean": "one file of a keyed state that nothing needs deleted, not all",
    "sink.task-end": 'a task of format("forebay") has collected its rows, nothing returned to Spark',
    "sink.before-rows": 'a transaction of format("forebay") begun, none of its records sent',
    "sink.mid-rows": "the rows of one task sent in the transaction, not of all tasks",
    "sink.before-commit": "all rows of the batch sent in the transaction, not committed",
    "sink.after-commit": "rows and marker committed, nothing returned to Spark",
    "cleanup.after-intent": "intent durable, nothing deleted",
    "cleanup.after-delete": "deleted, deletion not journalled as done",
    "cleanup.after-done": "deletion durably journalled as done",
    "copy.after-write": "a snapshot copy durable beside the WAL, not journalled",
    "copy.after-event": "a snapshot copy journalled, older ones not deleted",
    "history.after-append": "batches in the history, and still in the journal's state",
    "adoption.before-bar": "fault durable, no writer can write any more, no barrier created on an object store",
    "adoption.before-search": "fault durable, no writer can write any more, the WAL not searched",
    "adoption.before-claim": "an orphan found, the partition not claimed",
    "adoption.before-write": "the partition claimed for adoption, nothing written",
    "adoption.before-report": "the adopted block durable, not reported",
    "adoption.before-release": "the adopted block accepted, the claim not released",
    "rebuild.after-marker": "a rebuild has marked the WAL with a new timeline, claimed nothing",
    "rebuild.after-claim": "a rebuild has claimed the new timeline, read nothing",
    "rebuild.after-blocks": "a rebuild has rewritten blocks, the journal does not name them",
    "rebuild.after-history": "a rebuild has saved finished batches, its snapshot is not written",
    "rebuild.after-snapshot": "a rebuild's snapshot is durable, nothing reported",
    "agent.before-delete": "deletion ordered, not begun",
    "agent.before-copy-kept": "a copy that the agent received is written and checked, not renamed to its place",
    "recovery.after-write": "blocks rewritten and durable, the journal does not name them",
    "recovery.after-journal": "the journal names the blocks' new places, damaged segments still there",
    "recovery.after-aside": "a damaged segment copied aside, still in the WAL",
    "recovery.after-delete": "a damaged segment deleted from the WAL",
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
            # to this thread: a signal to the process may reach another thread first, and this one would run on
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
    """Pass the failpoint ``name``. Return True only if it is armed with ``drop``: the caller then drops what it would send.

    ``kinds``: the kinds of what passes here; read only if some failpoint is armed.
    """
    dropped = _active.hit(name)
    if _active.any_armed:
        for kind in sorted(set(kinds)):
            dropped |= _active.hit(f"{name}:{kind}")
    return dropped


def armed(name: str) -> bool:
    """Return whether ``name`` will act at some arrival; for places that are expensive to pass."""
    return _active.armed(name)


def any_armed() -> bool:
    """Return whether any failpoint is armed in this process."""
    return _active.any_armed


def arm(spec: str, directory: str | None = None) -> None:
    """Arm failpoints of this process, for tests; ``arm("")`` disarms all."""
    global _active
    _active = _Failpoints(spec, directory)
