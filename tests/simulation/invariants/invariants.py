"""All invariants of a simulated world: what the world reports, and the family that checks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from driver.journal import history
from driver.journal.state import State
from recovery import audit
from tests.simulation.invariants.batches import Batches
from tests.simulation.invariants.deletion import Deletion
from tests.simulation.invariants.durability import Durability
from tests.simulation.invariants.exclusions import Exclusions
from tests.simulation.invariants.processes import Processes
from tests.simulation.invariants.rebuilds import Rebuilds
from tests.simulation.invariants.record import Record
from tests.simulation.invariants.violation import InvariantViolation

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess
    from tests.simulation.world import World


class Invariants:
    """``check`` after every step; the other methods are called by the processes of the world, at what their names say."""

    def __init__(self, world: World) -> None:
        self._record = Record(world, self)
        self._durability = Durability(world, self._record)
        self._exclusions = Exclusions(world, self._record)
        self._deletion = Deletion(world, self._record)
        self._batches = Batches(world, self._record)
        self._rebuilds = Rebuilds(world, self._record)
        self._processes = Processes(world, self._record)
        self.hosts_crashed = self._durability.hosts_crashed
        self.block_synced = self._exclusions.block_synced
        self.block_written = self._exclusions.block_written
        self.landed = self._exclusions.landed
        self.unreported = self._exclusions.unreported
        self.deleting = self._deletion.deleting
        self.copy_deleted = self._deletion.copy_deleted
        self.block_read = self._batches.block_read
        self.query_read = self._batches.query_read
        self.published = self._batches.published
        self.settled = self._batches.settled
        self.unnoticed = self._batches.unnoticed
        self.unsettled = self._batches.unsettled
        self.check_completed = self._batches.check_completed
        self.opened = self._processes.opened
        self.checked = self._processes.checked
        self.decide = self._processes.decide
        self.released = self._processes.released
        self.driver_ended = self._processes.driver_ended
        self.receiver_ended = self._processes.receiver_ended
        self.agent_started = self._processes.agent_started
        self.damage_reported = self._processes.damage_reported

    @property
    def durable(self) -> State | None:
        """The state in the durable journal; None if there is none."""
        return self._record.state

    @property
    def lost(self) -> bool:
        """Whether the journal is lost, and not rebuilt yet."""
        return self._record.lost

    @property
    def runs(self) -> dict[int, tuple[object, ...]]:
        """Batch → packing and rows that the job saw."""
        return self._batches.runs

    def has_copy(self) -> bool:
        """Return whether the durable journal names a snapshot copy."""
        self._record.refresh()
        return self.durable is not None and bool(self.durable.copies)

    def job_done(
        self, driver: DriverProcess, batch_id: int, replay: int, rows: tuple[Any, ...], past: tuple[int, ...]
    ) -> None:
        self._batches.job_done(driver, batch_id, replay, rows, past)
        self._deletion.job_done(block_id for block_ids, _ in rows for block_id in block_ids)

    def check(self) -> None:
        self._record.refresh()
        self._durability.check_blocks()
        self._durability.check_commits()

    def journal_lost(self, before: State, finished: tuple[history.FinishedBatch, ...]) -> None:
        self._rebuilds.lose(before, finished)
        self._batches.lose(before, finished)

    def journal_rebuilt(self, state: State) -> None:
        self._rebuilds.check(state)

    def journal_changed(self, state: State) -> None:
        self._deletion.check(state)
        self._processes.check(state)
        self._batches.check(state)
        self._exclusions.check(state)
        findings = audit.report(state, self._record.finished).findings
        if findings:
            invariant = "INV-3" if findings[0].kind == "duplicate" else "INV-2"
            raise InvariantViolation(invariant, f"the audit finds {findings[0]}")
