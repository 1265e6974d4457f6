"""What is durable at this moment, and what drivers have answered: every family of invariants checks against it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from driver.journal import history
from driver.journal.state import BrokenInvariant, State
from forebay.model.errors import ForebayError
from forebay.model.identifiers import timeline_of
from forebay.model.values import BlockMeta, TopicPartition
from tests.simulation.durable import DurableJournal, SyncedImage
from tests.simulation.invariants.violation import InvariantViolation

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess
    from tests.simulation.world import World


class Observer(Protocol):
    """Gets each change of the durable journal, when it is first read."""

    def journal_lost(self, before: State, finished: tuple[history.FinishedBatch, ...]) -> None:
        """Take what the journal and its history said before the loss."""

    def journal_rebuilt(self, state: State) -> None: ...

    def journal_changed(self, state: State) -> None: ...


class Record:
    """``state``: what the journal durably says; None if it is lost, or a rebuild has begun a timeline without a state yet.

    ``lost``: the journal is lost, and not rebuilt yet. ``accepted``: blocks that a driver answered as accepted → which driver.
    ``cleaned``: blocks whose deletion was durably intended.
    """

    def __init__(self, world: World, observer: Observer) -> None:
        self._observer = observer
        self.journal = DurableJournal(world.journal, world.stream)
        self.wal = SyncedImage(world.wal)
        self.state: State | None = None
        self.lost = False
        self.accepted: dict[str, str] = {}
        self.cleaned: set[str] = set()

    @property
    def finished(self) -> tuple[history.FinishedBatch, ...]:
        """The durable history."""
        return self.journal.finished

    def refresh(self) -> None:
        """Read the durable journal again if its bytes have changed, and check INV-7; the observer checks its content."""
        before, finished = self.state, self.finished
        try:
            if not self.journal.refresh():
                return
        except BrokenInvariant as error:
            raise InvariantViolation("INV-7", f"the durable journal does not replay: {error}") from error
        except ForebayError as error:
            raise InvariantViolation("INV-7", f"the durable journal can't be read: {error}") from error
        self.state = self.journal.state
        if self.state is None:
            if before is not None:
                self.lost = True
                self._observer.journal_lost(before, finished)
            return
        if self.lost:
            self.lost = False
            self._observer.journal_rebuilt(self.state)
        self._observer.journal_changed(self.state)

    def position(self, tp: TopicPartition, incarnation: int) -> int:
        """Return -1 for an incarnation that the durable journal does not know."""
        partition = self.state.partition(tp) if self.state is not None else None
        if partition is None or incarnation > partition.incarnation.number:
            return -1
        if incarnation == partition.incarnation.number:
            return partition.position
        end = partition.incarnations[incarnation - 1].end
        assert end is not None
        return end

    def knows_no_loss(self, driver: DriverProcess) -> bool:
        """Return whether the driver leads a journal that was lost meanwhile.

        Its answers bind no process, but the blocks that it accepts are in the WAL and must be found there.
        """
        return self.lost or (self.state is not None and timeline_of(driver.journal.epoch) < self.state.timeline)

    def is_of_lost_journal(self, meta: BlockMeta) -> bool:
        """Return whether the block's writer may be forgotten."""
        return self.lost or (self.state is not None and timeline_of(meta.epoch) < self.state.timeline)
