"""INV-8: bytes are deleted only after the journal durably says that nothing needs them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from driver.journal.log import reading as journal
from driver.journal.state import State
from tests.simulation.invariants.record import Record
from tests.simulation.invariants.violation import InvariantViolation
from tests.simulation.options import LONG_RETENTION_MS
from wal.segments import layout

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess
    from tests.simulation.world import World


#: part of a long retention that must pass before a deletion; the rest allows for clocks that differ little, and are trusted
KEPT_SHARE = 0.5


class Deletion:
    """Checks intentions in the journal, and each deletion in the WAL and on hosts."""

    def __init__(self, world: World, record: Record) -> None:
        self._world = world
        self._record = record
        self._copies_signature: Any = None
        self._covering: frozenset[str] | None = None
        self._done_at: dict[str, float] = {}  # block → when the first job that read it returned

    def check(self, state: State) -> None:
        """Check that nothing needs the blocks of segments whose deletion is intended."""
        covering = self._copies_call_released() if state.cleaning_segments else None
        for path in state.cleaning_segments:
            for block in state.blocks.values():
                if block.handle.path != path:
                    continue
                if covering is None or block.id not in covering:
                    raise InvariantViolation(
                        "INV-8", f"{path} is to be deleted, and a copy does not call {block.id} released"
                    )
                if block.id not in state.released:
                    raise InvariantViolation("INV-8", f"{path} is to be deleted, its block {block.id} is needed")
                self._check_age(path, block.id)
                self._record.cleaned.add(block.id)

    def job_done(self, block_ids: Iterable[str]) -> None:
        for block_id in block_ids:
            self._done_at.setdefault(block_id, self._world.now)

    def _check_age(self, path: str, block_id: str) -> None:
        """INV-8: a completed batch stays as long as ``wal.retention`` says, by the time that passes."""
        options = self._world.options
        if options.retention_ms < LONG_RETENTION_MS or options.retention_bytes or block_id in self._record.cleaned:
            return
        age_seconds = self._world.now - self._done_at.get(block_id, self._world.now)
        if age_seconds < options.retention_ms / 1000 * KEPT_SHARE:
            raise InvariantViolation(
                "INV-8", f"{path} is to be deleted by its age, the job of {block_id} returned {age_seconds:.0f} s ago"
            )

    def _copies_call_released(self) -> frozenset[str] | None:
        """Return the blocks that are released in each of the last two snapshot copies beside the WAL; None if there are
        fewer copies.
        """
        folder = layout.snapshot_folder(self._world.stream)
        if self._record.wal.signature(folder) != self._copies_signature:
            self._copies_signature = self._record.wal.signature(folder)
            found = []
            for path in self._record.wal.list(folder):
                place = layout.parse_snapshot_copy(path)
                copy = journal.snapshot_in(self._record.wal, path)
                if place is not None and copy is not None:
                    found.append((place, copy))
            newest = [copy for _, copy in sorted(found, key=lambda one: one[0])[-2:]]
            released = [frozenset(copy.released) for copy in newest]
            self._covering = released[0] & released[1] if len(released) == 2 else None
        return self._covering

    def deleting(self, driver: DriverProcess, path: str) -> None:
        """INV-8: bytes are deleted only after the journal durably says that nothing needs them."""
        self._record.refresh()
        if layout.parse_block(path) is None:
            return  # a snapshot copy: whether enough are left is checked where they cover a deletion
        if self._record.knows_no_loss(driver):
            self._record.cleaned.update(b.id for b in driver.tracker.state.blocks.values() if b.handle.path == path)
            return
        if self._world.wal.holds(path) and (
            self._record.state is None or path not in self._record.state.cleaning_segments
        ):
            raise InvariantViolation("INV-8", f"{driver.name} deletes {path}, the journal does not durably intend it")

    def copy_deleted(self, host: str, block_id: str) -> None:
        """INV-8: a copy is deleted only after the journal durably says that nothing needs it."""
        self._record.refresh()
        intents = self._record.state.cleanups.values() if self._record.state is not None else ()
        if block_id not in self._world.hosts[host].files:
            return
        self._world.reached["copy deleted"] += 1
        if not any(c.host == host and block_id in c.blocks for c in intents):
            raise InvariantViolation("INV-8", f"{host} deletes {block_id}, the journal does not durably intend it")
        if self._record.state is not None and (block := self._record.state.blocks.get(block_id)) is not None:
            if host in block.hosts and block_id not in self._record.state.released:
                raise InvariantViolation("INV-8", f"{host} deletes {block_id}, which a batch may need")
            self._record.cleaned.add(block_id)
