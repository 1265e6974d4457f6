"""What the routes of observers ask of the driver."""

from __future__ import annotations

from typing import Protocol

from driver.http.batches import BatchQuery
from driver.http.observation.blocks import BlockQuery
from driver.http.observation.events import EventHub
from driver.http.observation.lists import Query
from driver.http.observation.snapshot import Snapshot
from forebay import messages as m


class Observer(Protocol):
    """A driver as observers see it.

    Its methods may wait for the decision loop or a store, and may be called from any thread but the decision loop's. A driver
    that does not lead answers only :meth:`overview`, :meth:`settings` and :meth:`listeners`; the other methods raise
    NotTakenError. They raise UnreachableError if the decision loop does not answer.
    """

    hub: EventHub

    def overview(self) -> m.OverviewAnswer:
        """Return the stream at a glance; while the decision loop does not answer, the last one with the reason."""

    def snapshot(self) -> Snapshot:
        """Return the present snapshot."""

    def series(self, since_ms: int, points_max: int) -> m.SeriesAnswer:
        """Return the samples from ``since_ms`` on, as at most ``points_max`` points."""

    def held_for_cursors(self) -> int:
        """Return the bytes of WAL segments that are kept only for cursors."""

    def batches(self, query: BatchQuery) -> m.BatchesAnswer:
        """Return a page of the unfinished and the newest completed batches."""

    def batch(self, batch_id: int) -> m.BatchDetail:
        """Return one batch, by its id or number. Raises RefusedError, StoreError."""

    def blocks(self, query: BlockQuery) -> m.BlockListAnswer:
        """Return a page of blocks. Raises UsageError."""

    def block(self, block_id: str) -> m.BlockEntry:
        """Return one block. Raises RefusedError if the journal does not name it."""

    def records(self, block_id: str, first: int, limit: int, bytes_max: int) -> m.RecordsAnswer:
        """Return records of a block, as ``driver.http.observation.records.records_answer``."""

    def wal(self) -> m.WalAnswer:
        """Return the state of the WAL."""

    def states(self, query: Query) -> m.StatesAnswer:
        """Return a page of the keyed states. May read the WAL's store."""

    def journal(self) -> m.JournalAnswer:
        """Return the state of the journal. Raises StoreError."""

    def settings(self) -> m.SettingsAnswer:
        """Return the settings in force."""

    def listeners(self) -> m.ListenersAnswer:
        """Return the listeners."""
