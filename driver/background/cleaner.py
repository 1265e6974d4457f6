"""Clean-up: reads WAL segments, deletes those that the tracker has intended to delete, moves finished batches to the history.

``driver.decisions.clean_up`` decides what may be deleted (INV-8). This module does the I/O, in a thread of its own.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, TypeVar

from driver.background.snapshot_copies import SnapshotCopies
from driver.background.state_files import StateFiles
from driver.decision_loop.loop import DriverLoop
from driver.decisions.clean_up import CleanSegment
from driver.journal import history
from driver.journal.state import State
from driver.tracker import DeleteSegment
from driver.tracker.requests import Archived, CleanedUp, CleanLocalCopies, Read
from forebay.model.errors import FencedError, OutOfSpaceError, StoreError, UnreachableError
from forebay.process import failpoints
from forebay.process.clock import Clock
from wal.decisions.retention import RetentionLimits, SegmentFacts, segment_facts
from wal.segments import layout
from wal.segments.scan import scan_segment
from wal.storage import KeepsFolders, Storage

log = logging.getLogger(__name__)

#: maximum number of segments in one read of the state
PATHS_AT_ONCE = 1_000
#: requests of the WAL's store that run at the same time
REQUESTS_AT_ONCE = 16
#: maximum number of segments whose deletions share one write of the journal; an object contains few blocks, a file may contain
#: thousands, which are all in memory
OBJECTS_AT_ONCE, FILES_AT_ONCE = 256, 16
#: maximum number of frames that the decision loop examines without answering other requests, unless one segment has more
FRAMES_AT_ONCE = 2_000

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class CleanedWal:
    """The WAL whose segments the clean-up deletes.

    ``superseded``: returns whether a rebuilt journal has taken over the WAL. The rebuilt journal may be in another store, so
    this driver's own journal does not show it (INV-4). ``states``: deletes files of keyed states; None: none are deleted.
    """

    storage: Storage
    limits: RetentionLimits
    copies: SnapshotCopies
    superseded: Callable[[], bool] = lambda: False
    states: StateFiles | None = None


class _Candidate(NamedTuple):
    """A segment that clean-up examines. ``sealed``: its writer appends no more."""

    path: str
    receiver: str
    epoch: int
    sealed: bool


class Cleaner:
    """Runs a round of clean-up each ``pause_seconds``; a round reads every sealed segment that may be deletable.

    ``failed`` gets the error that ended the thread; an error of a store does not end it, and the end of the decision loop is not
    reported. ``wal``: None in a stream without a WAL; then only the hosts' local copies are deleted.
    """

    def __init__(
        self,
        loop: DriverLoop,
        wal: CleanedWal | None,
        *,
        history_writer: history.HistoryWriter,
        stream: str,
        clock: Clock,
        pause_seconds: float,
        failed: Callable[[BaseException], None],
    ) -> None:
        self._failed = failed
        self._loop = loop
        self._wal = wal
        self._history = history_writer
        self._stream = stream
        self._clock = clock
        self._pause_seconds = pause_seconds
        self._logged: set[str] = set()  # segments whose damage was logged
        self._actions: queue.Queue[DeleteSegment | None] = queue.Queue()
        self._failed_actions: list[DeleteSegment] = []  # repeated by the next round
        self._failure: StoreError | None = None  # the first one of this round
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(REQUESTS_AT_ONCE, thread_name_prefix="clean-up")  # starts threads when needed
        self._thread = threading.Thread(target=self._run, name="clean-up", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._actions.put(None)
        self._thread.join()
        self._pool.shutdown()
        self._history.close()

    def perform(self, action: DeleteSegment) -> None:
        """Queue an action whose intent is durable. Called in the decision loop; never blocks."""
        self._actions.put(action)

    def _run(self) -> None:
        wait_seconds = 0.0
        while not self._stopping.is_set():
            try:
                self._act(wait_seconds)
                wait_seconds = self._pause_seconds
                self.look()
            except UnreachableError:
                return  # the decision loop has ended, and reports the cause itself
            except OutOfSpaceError as error:
                log.warning("clean-up is paused until the store has space: %s", error)
                self._stopping.wait(self._pause_seconds)
            except StoreError as error:
                log.error("clean-up failed, and the driver retries it: %s", error)
                self._stopping.wait(self._pause_seconds)
            except Exception as error:  # reported, or the disk would fill unnoticed (INV-5)
                self._failed(error)
                return

    def look(self) -> None:
        """Move finished batches to the history, and delete the segments that are due.

        An intent that is durable only after its group was looked at is carried out by the next group or round. A segment that
        can't be read or deleted keeps no other one: the first StoreError is raised at the end.
        """
        self._refuse_if_superseded()
        self._archive()
        if self._wal is not None:
            limits = self._limits(self._wal)
            self._wal.copies.keep_up(limits)
            self._loop.ask(CleanLocalCopies())
            self._look_at_segments(self._wal, limits)
            if self._wal.states is not None:
                self._wal.states.clean()
        else:
            self._loop.ask(CleanLocalCopies())
        self._raise_failure()

    def _limits(self, wal: CleanedWal) -> RetentionLimits:
        """Return the limits of this round: below those of the settings while the store lacks space."""
        held_bytes = self._loop.ask(ReadHeldBytes())
        return wal.limits.within(wal.storage.free_bytes(), held_bytes)

    def act(self) -> None:
        """Carry out the deletions that have been intended so far. At the end, raise the StoreError of the first that failed;
        the next call repeats those."""
        self._repeat_failed()
        self._carry_out_intended()
        self._raise_failure()

    def _act(self, wait_seconds: float) -> None:
        """Carry out the intended deletions, and wait up to ``wait_seconds`` for further ones."""
        self._repeat_failed()
        deadline = self._clock.monotonic() + wait_seconds
        while not self._stopping.is_set():
            try:
                action = self._actions.get(timeout=max(0.001, deadline - self._clock.monotonic()))
            except queue.Empty:
                return
            if action is not None:
                self._carry_out([action, *self._intended()])

    def _repeat_failed(self) -> None:
        for action in self._failed_actions:
            self._actions.put(action)
        self._failed_actions.clear()

    def _raise_failure(self) -> None:
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure

    def _intended(self) -> list[DeleteSegment]:
        """Return intended deletions, at most OBJECTS_AT_ONCE of them. Does not wait."""
        taken: list[DeleteSegment] = []
        while len(taken) < OBJECTS_AT_ONCE and not self._actions.empty():
            action = self._actions.get()
            if action is not None:  # stop() wakes the thread so; the event of the stop is set already
                taken.append(action)
        return taken

    def _carry_out_intended(self) -> None:
        while not self._stopping.is_set() and (actions := self._intended()):
            self._carry_out(actions)

    def _carry_out(self, actions: Sequence[DeleteSegment]) -> None:
        """Delete the segments, then journal all deletions in one write. Note those that failed."""
        assert self._wal is not None, "segments are there only in a WAL"
        done: list[DeleteSegment] = []
        for group in _groups(actions, REQUESTS_AT_ONCE):
            if self._stopping.is_set():
                break  # the next driver finds the intents in the journal
            try:
                self._refuse_if_superseded()
                errors = list(self._pool.map(partial(_delete_segment, self._wal.storage), group))
            except StoreError as error:  # the owner of the WAL is not known
                errors = [error] * len(group)
            for action, failure in zip(group, errors, strict=True):
                if failure is None:
                    done.append(action)
                else:
                    self._failed_actions.append(action)
                    self._failure = self._failure or failure
        self._loop.ask_all([CleanedUp(action.number) for action in done])
        for _ in done:
            failpoints.hit("cleanup.after-done")
        for folder, names in _by_folder(action.path for action in done).items():
            if len(names) == 1:
                log.info("deleted WAL segment %s/%s: no batch, cursor or rewind horizon needs it", folder, names[0])
            else:
                log.info(
                    "deleted WAL segments %s/%s to %s (%d): no batch, cursor or rewind horizon needs them",
                    folder, min(names), max(names), len(names),
                )  # fmt: skip

    def _refuse_if_superseded(self) -> None:
        if self._wal is not None and self._wal.superseded():
            raise FencedError(f"the journal of stream {self._stream!r} was rebuilt: another timeline uses this WAL now")

    def _archive(self) -> None:
        batches = tuple(batch.finished() for batch in self._loop.ask(ReadLeaving()))
        if batches:
            self._history.append(batches)
            self._loop.ask(Archived(tuple(b.batch_id for b in batches)))

    def _look_at_segments(self, wal: CleanedWal, limits: RetentionLimits) -> None:
        now_ms = self._clock.wall_ms()
        due, writers = self._loop.ask(ReadDueSegments(limits, now_ms))
        segments: dict[tuple[str, int], list[tuple[int, str]]] = {}
        listed = wal.storage.list(f"{self._stream}/blocks")
        for path in listed:
            place = layout.parse_block(path)
            if place is not None:
                segments.setdefault((place.receiver, place.epoch), []).append((place.sequence, path))
        worth = set(due)
        for paths in _groups(listed, PATHS_AT_ONCE):
            unnamed = self._loop.ask(ReadUnnamed(tuple(paths)))
            worth |= unnamed
        candidates: list[_Candidate] = []
        for (receiver, epoch), files in segments.items():
            files.sort()
            for index, (_, path) in enumerate(files):
                if path not in worth:
                    continue
                sealed = (
                    index < len(files) - 1 or not wal.storage.appendable
                )  # whole objects are never written to again
                if not sealed and (receiver, epoch) in writers:
                    continue  # not read: kept while its writer may append to it
                candidates.append(_Candidate(path, receiver, epoch, sealed))
        # the decision on a due segment passes those that are due before it
        places = {path: place for place, path in enumerate(due)}
        candidates.sort(key=lambda candidate: places.get(candidate.path, len(places)))
        for group in _groups(candidates, FILES_AT_ONCE if wal.storage.appendable else OBJECTS_AT_ONCE):
            if self._stopping.is_set():
                return
            requests: list[CleanSegment] = []
            frames = 0
            for candidate, facts in zip(group, self._pool.map(partial(_facts, wal.storage), group), strict=True):
                if isinstance(facts, StoreError):
                    self._failure = self._failure or facts
                if not isinstance(facts, SegmentFacts):
                    continue
                if requests and frames + len(facts.frames) > FRAMES_AT_ONCE:
                    self._loop.ask_all(requests)
                    requests, frames = [], 0
                requests.append(CleanSegment(self._noted(facts), candidate.receiver, candidate.epoch, now_ms, limits))
                frames += len(facts.frames)
            self._loop.ask_all(requests)
            self._carry_out_intended()  # before the next group: a store that is full gets room

    def _noted(self, facts: SegmentFacts) -> SegmentFacts:
        """Log the damage in a segment once. Return ``facts``."""
        for reason in facts.unreadable:
            if facts.path not in self._logged:
                log.error("WAL segment %s is kept: %s; examine it with `forebay wal inspect`", facts.path, reason)
        if facts.unreadable:
            self._logged.add(facts.path)
        return facts


def _groups(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[at : at + size] for at in range(0, len(items), size))


def _by_folder(paths: Iterable[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        found.setdefault(folder, []).append(name)
    return found


def _facts(storage: Storage, segment: _Candidate) -> SegmentFacts | StoreError | None:
    """Scan a segment. Return the error if it can't be read; None if it no longer exists: an older driver has deleted it since,
    by a durable intent."""
    try:
        scan = scan_segment(storage, segment.path, payloads=False)
        return segment_facts(segment.path, scan, sealed=segment.sealed, fenced=False)
    except FileNotFoundError:
        return None
    except StoreError as error:
        return error


def _delete_segment(storage: Storage, action: DeleteSegment) -> StoreError | None:
    """Delete a segment. Return the error if that failed."""
    failpoints.hit("cleanup.after-intent")
    try:
        delete(storage, action.path)
    except StoreError as error:
        return error
    failpoints.hit("cleanup.after-delete")
    return None


@dataclass(frozen=True, slots=True)
class ReadHeldBytes(Read[int]):
    """Reads how many bytes the WAL holds."""

    def read(self, state: State) -> int:
        return state.index.bytes


@dataclass(frozen=True, slots=True)
class ReadLeaving(Read[tuple[history.Leaving, ...]]):
    """Reads the batches that move to the history."""

    def read(self, state: State) -> tuple[history.Leaving, ...]:
        return history.leaving(state)


@dataclass(frozen=True, slots=True)
class ReadDueSegments(Read[tuple[tuple[str, ...], set[tuple[str, int]]]]):
    """Reads the paths of segments that are due for deletion, and the receivers that are not fenced, with their epochs."""

    limits: RetentionLimits
    now_ms: int

    def read(self, state: State) -> tuple[tuple[str, ...], set[tuple[str, int]]]:
        return due_paths(state, self.limits, self.now_ms), _writers(state)


@dataclass(frozen=True, slots=True)
class ReadUnnamed(Read[set[str]]):
    """Reads which of ``paths`` are segments in which the journal names no block."""

    paths: tuple[str, ...]

    def read(self, state: State) -> set[str]:
        return unnamed(state, self.paths)


def delete(storage: Storage, path: str) -> None:
    """Delete a segment, and with the last segment of an epoch its folder. May be repeated."""
    storage.delete(path)
    if isinstance(storage, KeepsFolders):
        storage.remove_folder(path.rpartition("/")[0])


def due_paths(state: State, limits: RetentionLimits, now_ms: int) -> tuple[str, ...]:
    """Return the segments that are due for deletion by the journal; a scan may still find blocks that are needed."""
    return tuple(segment.path for segment, _ in state.index.due(limits, now_ms))


def unnamed(state: State, paths: Iterable[str]) -> set[str]:
    """Return the segments in ``paths`` in which the journal names no block. They contain only orphans, if anything."""
    return {path for path in paths if path not in state.index.segments}


def _writers(state: State) -> set[tuple[str, int]]:
    """Return receiver and epoch of all receivers that are not fenced."""
    return {(receiver.receiver_id, receiver.epoch) for receiver in state.receivers.values()}
