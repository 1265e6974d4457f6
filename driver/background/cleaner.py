"""Clean-up's shell: looks into WAL segments, deletes what the tracker intended, moves finished batches to the history.

What may go is decided by ``driver.decisions.clean_up`` (INV-8); here is only the I/O around it, in a thread of its own.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import partial

from driver.background.snapshot_copies import SnapshotCopies
from driver.decision_loop.loop import DriverLoop
from driver.decisions.clean_up import CleanSegment
from driver.journal import history
from driver.journal.state import State
from driver.tracker import DeleteSegment
from driver.tracker.requests import Archived, Ask, CleanedUp, CleanLocalCopies
from forebay.model.errors import FencedError, OutOfSpaceError, StoreError, UnreachableError
from forebay.process import failpoints
from forebay.process.clock import Clock
from wal.decisions.retention import Limits, segment_facts
from wal.segments import layout
from wal.segments.scan import scan_segment
from wal.storage import KeepsFolders, Storage

log = logging.getLogger(__name__)

#: segments that one question to the deciding thread names at most
PATHS_AT_ONCE = 1_000


@dataclass(frozen=True, slots=True)
class CleanedWal:
    """``superseded``: whether the WAL belongs to a rebuilt journal since, which may lie where this driver's journal does not
    show it (INV-4)."""

    storage: Storage
    limits: Limits
    copies: SnapshotCopies
    superseded: Callable[[], bool] = lambda: False


class Cleaner:
    """``pause_seconds`` lie between two rounds; a round looks at every sealed segment that may be deletable. ``failed`` gets
    what ended it, if that is neither the loop's end nor the store's trouble. ``wal``: None where there is none; then hosts'
    copies are all that is deleted."""

    def __init__(
        self,
        loop: DriverLoop,
        wal: CleanedWal | None,
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
        self._told: set[str] = set()  # segments whose damage was logged
        self._actions: queue.Queue[DeleteSegment | None] = queue.Queue()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="clean-up", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._actions.put(None)
        self._thread.join()
        self._history.close()

    def perform(self, action: DeleteSegment) -> None:
        """Takes an action whose intent is durable; called by the deciding thread, never blocks."""
        self._actions.put(action)

    def _run(self) -> None:
        wait_seconds = 0.0
        while not self._stopping.is_set():
            try:
                self._act(wait_seconds)
                wait_seconds = self._pause_seconds
                self.look()
            except UnreachableError:
                return  # the deciding thread has ended, and says why itself
            except OutOfSpaceError as error:
                log.warning("clean-up waits for space: %s", error)
                self._stopping.wait(self._pause_seconds)
            except StoreError as error:
                log.error("clean-up could not go on, and tries again: %s", error)
                self._stopping.wait(self._pause_seconds)
            except Exception as error:  # a fault of its own: told, or the disk would fill without a word (INV-5)
                self._failed(error)
                return

    def look(self) -> None:
        """Moves finished batches to the history, and decides what goes now; the next round deletes it."""
        self._refuse_if_superseded()
        self._archive()
        if self._wal is not None:
            limits = self._limits(self._wal)
            self._wal.copies.keep_up(limits)
            self._loop.ask(CleanLocalCopies())
            self._look_at_segments(self._wal, limits)
        else:
            self._loop.ask(CleanLocalCopies())

    def _limits(self, wal: CleanedWal) -> Limits:
        """Of this round: less than the settings allow while the store lacks space."""
        held_bytes = self._loop.ask(Ask(lambda state: state.index.bytes))
        return wal.limits.within(wal.storage.free_bytes(), held_bytes)

    def act(self) -> None:
        """Deletes what was intended by now."""
        while not self._actions.empty():
            self._act(0.0)

    def _act(self, wait_seconds: float) -> None:
        """Deletes what was intended; waits up to ``wait_seconds`` for more. What can't be deleted is kept for later."""
        deadline = self._clock.monotonic() + wait_seconds
        while not self._stopping.is_set():
            try:
                action = self._actions.get(timeout=max(0.001, deadline - self._clock.monotonic()))
            except queue.Empty:
                return
            if action is None:
                return
            failpoints.hit("cleanup.after-intent")
            assert self._wal is not None, "segments are there only in a WAL"
            try:
                self._refuse_if_superseded()
                delete(self._wal.storage, action.path)
            except StoreError:
                self._actions.put(action)
                raise
            failpoints.hit("cleanup.after-delete")
            self._loop.ask(CleanedUp(action.number))
            failpoints.hit("cleanup.after-done")
            log.info("deleted WAL segment %s: no batch, cursor or rewind horizon needs it", action.path)

    def _refuse_if_superseded(self) -> None:
        if self._wal is not None and self._wal.superseded():
            raise FencedError(
                f"the journal of stream {self._stream!r} was rebuilt: another lineage goes on in this WAL"
            )

    def _archive(self) -> None:
        batches = tuple(batch.finished() for batch in self._loop.ask(Ask(history.leaving)))
        if batches:
            self._history.append(batches)
            self._loop.ask(Archived(tuple(b.batch_id for b in batches)))

    def _look_at_segments(self, wal: CleanedWal, limits: Limits) -> None:
        now_ms = self._clock.wall_ms()
        due, writers = self._loop.ask(Ask(lambda state: (due_paths(state, limits, now_ms), _writers(state))))
        segments: dict[tuple[str, int], list[tuple[int, str]]] = {}
        listed = wal.storage.list(f"{self._stream}/blocks")
        for path in listed:
            place = layout.parse_block(path)
            if place is not None:
                segments.setdefault((place.receiver, place.epoch), []).append((place.sequence, path))
        worth = set(due)
        for chunk in (listed[at : at + PATHS_AT_ONCE] for at in range(0, len(listed), PATHS_AT_ONCE)):
            worth |= self._loop.ask(Ask(partial(unnamed, paths=chunk)))
        for (receiver, epoch), files in segments.items():
            files.sort()
            for index, (_, path) in enumerate(files):
                if self._stopping.is_set():
                    return
                if path not in worth:
                    continue
                sealed = (
                    index < len(files) - 1 or not wal.storage.appendable
                )  # whole objects are never written to again
                if not sealed and (receiver, epoch) in writers:
                    continue  # kept as long as its writer may append to it: not worth reading
                try:
                    facts = self._facts(wal.storage, path, receiver, epoch, sealed)
                except FileNotFoundError:
                    continue  # deleted meanwhile, by an older driver whose durable intent it was
                self._loop.ask(replace(facts, limits=limits))

    def _facts(self, storage: Storage, path: str, receiver: str, epoch: int, sealed: bool) -> CleanSegment:
        scan = scan_segment(storage, path, payloads=False)
        facts = segment_facts(path, scan, sealed=sealed, fenced=False)
        for words in facts.unreadable:
            if path not in self._told:
                log.error("WAL segment %s is kept: %s; look with `forebay wal inspect`", path, words)
        if facts.unreadable:
            self._told.add(path)
        return CleanSegment(facts, receiver, epoch, self._clock.wall_ms())


def delete(storage: Storage, path: str) -> None:
    """A segment, and with the last one of its epoch the folder. May be repeated."""
    storage.delete(path)
    if isinstance(storage, KeepsFolders):
        storage.remove_folder(path.rpartition("/")[0])


def due_paths(state: State, limits: Limits, now_ms: int) -> tuple[str, ...]:
    """Segments of which the journal says that they go now, if a scan does not find more in them."""
    return tuple(segment.path for segment, _ in state.index.due(limits, now_ms))


def unnamed(state: State, paths: Iterable[str]) -> set[str]:
    """Those of ``paths`` in which the journal names no block: orphans at most."""
    return {path for path in paths if path not in state.index.segments}


def _writers(state: State) -> set[tuple[str, int]]:
    """Receiver and epoch of those that are not fenced."""
    return {(receiver.receiver_id, receiver.epoch) for receiver in state.receivers.values()}
