"""The routes for observers."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any
from urllib.parse import quote

from forebay import messages as m
from forebay.client.connection import ClientConnection
from forebay.client.events import Event, decoded, parse_events
from forebay.model.errors import UnreachableError

#: time without an event after which the connection counts as lost; a driver sends an overview each second
EVENT_SECONDS = 15.0
#: entries of each page while all entries are read
EACH_LIMIT = 1_000


class Reads(ClientConnection):
    """Reads what the driver shows to observers."""

    # ---- the stream at a glance --------------------------------------------------------------------------------------

    def overview(self) -> m.OverviewAnswer:
        """Return the stream at a glance, from the driver that leads. If only standbys answer, return a standby's answer, which
        names the leader."""
        standby: m.OverviewAnswer | None = None

        def leads(answer: m.OverviewAnswer) -> bool:
            nonlocal standby
            standby = answer if answer.leader else standby
            return not answer.leader

        try:
            return self._driver.get("/v1/overview", m.OverviewAnswer, accept=leads)
        except UnreachableError:
            if standby is None:
                raise
            return standby

    def status(self) -> m.StatusAnswer:
        """Return the whole status."""
        return self._get("/v1/status", m.StatusAnswer)

    def lag(self) -> m.LagAnswer:
        """Return how far each partition is, by the journal."""
        return self._get("/v1/lag", m.LagAnswer)

    def series(self, since_ms: int = 0, points_max: int = 360) -> m.SeriesAnswer:
        """Return rates, lag and delays from ``since_ms`` on, as at most ``points_max`` points."""
        return self._get("/v1/series", m.SeriesAnswer, since_ms=since_ms, points_max=points_max)

    def caller(self) -> m.CallerAnswer:
        """Return the roles of this client's token."""
        return self._get("/v1/caller", m.CallerAnswer)

    def events(self) -> Generator[Event, None, None]:
        """Yield events as they happen, and an overview each second, until the driver or the caller ends it.

        The driver drops a client that falls behind by 10,000 events; the last event then is of kind "dropped". Raises
        UnreachableError if the connection is lost, or if the answer is not a stream of events.
        """
        with self._driver.stream("/v1/events", EVENT_SECONDS) as chunks:
            try:
                for kind, data, number in parse_events(chunks):
                    yield decoded(kind, data, number, m.OverviewAnswer)
                    if kind in ("dropped", "end"):
                        return
            except ValueError as error:
                raise UnreachableError(f"the answer to GET /v1/events: {error}") from None

    # ---- lists -------------------------------------------------------------------------------------------------------

    def partitions(self, *, limit: int = 100, after: str = "", state: str = "", text: str = "") -> m.PartitionsAnswer:
        """Return a page of partitions, of at most ``limit``, behind the page whose ``next`` is ``after``. ``text``: part of the
        name."""
        return self._get("/v1/partitions", m.PartitionsAnswer, limit=limit, after=after, state=state, text=text)

    def receivers(self, *, limit: int = 100, after: str = "", state: str = "", text: str = "") -> m.ReceiversAnswer:
        """Return a page of receivers. Arguments as for :meth:`partitions`."""
        return self._get("/v1/receivers", m.ReceiversAnswer, limit=limit, after=after, state=state, text=text)

    def hosts(self, *, limit: int = 100, after: str = "", state: str = "", text: str = "") -> m.HostsAnswer:
        """Return a page of hosts. Arguments as for :meth:`partitions`."""
        return self._get("/v1/hosts", m.HostsAnswer, limit=limit, after=after, state=state, text=text)

    def cursors(self, *, limit: int = 100, after: str = "", state: str = "", text: str = "") -> m.CursorsAnswer:
        """Return a page of cursors. Arguments as for :meth:`partitions`."""
        return self._get("/v1/cursors", m.CursorsAnswer, limit=limit, after=after, state=state, text=text)

    def batches(
        self,
        *,
        limit: int = 100,
        after: str = "",
        state: str = "",
        text: str = "",
        failed: bool = False,
        since_ms: int = 0,
    ) -> m.BatchesAnswer:
        """Return a page of the unfinished and the newest completed batches, newest first. ``failed``: only batches with a failed
        attempt. ``since_ms``: only batches of this time or later."""
        return self._get(
            "/v1/batches",
            m.BatchesAnswer,
            limit=limit,
            after=after,
            state=state,
            text=text,
            failed=str(failed).lower(),
            since_ms=since_ms,
        )

    def blocks(
        self,
        *,
        limit: int = 100,
        after: str = "",
        state: str = "",
        text: str = "",
        batch: int = 0,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
    ) -> m.BlockListAnswer:
        """Return a page of blocks, newest first. ``batch``, ``topic``, ``partition``, ``offset``: only blocks that have it."""
        return self._get(
            "/v1/blocks",
            m.BlockListAnswer,
            limit=limit,
            after=after,
            state=state,
            text=text,
            batch=batch,
            topic=topic,
            partition=partition,
            offset=offset,
        )

    def states(self, *, limit: int = 100, after: str = "", text: str = "") -> m.StatesAnswer:
        """Return a page of keyed states, by name. ``limit``, ``after``, ``text``: as for :meth:`partitions`."""
        return self._get("/v1/states", m.StatesAnswer, limit=limit, after=after, text=text)

    def each_partition(self, *, state: str = "", text: str = "") -> Iterator[m.TrackedPartition]:
        """Yield all partitions, page by page. Arguments as for :meth:`partitions`."""
        return _each(lambda after: self.partitions(limit=EACH_LIMIT, after=after, state=state, text=text), "partitions")

    def each_receiver(self, *, state: str = "", text: str = "") -> Iterator[m.TrackedReceiver]:
        """Yield all receivers, page by page. Arguments as for :meth:`partitions`."""
        return _each(lambda after: self.receivers(limit=EACH_LIMIT, after=after, state=state, text=text), "receivers")

    def each_host(self, *, state: str = "", text: str = "") -> Iterator[m.TrackedAgent]:
        """Yield all hosts, page by page. Arguments as for :meth:`partitions`."""
        return _each(lambda after: self.hosts(limit=EACH_LIMIT, after=after, state=state, text=text), "hosts")

    def each_cursor(self, *, state: str = "", text: str = "") -> Iterator[m.TrackedCursor]:
        """Yield all cursors, page by page. Arguments as for :meth:`partitions`."""
        return _each(lambda after: self.cursors(limit=EACH_LIMIT, after=after, state=state, text=text), "cursors")

    def each_state(self, *, text: str = "") -> Iterator[m.StateEntry]:
        """Yield all keyed states, page by page, by name."""
        return _each(lambda after: self.states(limit=EACH_LIMIT, after=after, text=text), "states")

    def each_batch(
        self, *, state: str = "", text: str = "", failed: bool = False, since_ms: int = 0
    ) -> Iterator[m.BatchEntry]:
        """Yield the unfinished and the newest completed batches, newest first. Arguments as for :meth:`batches`."""

        def page(after: str) -> m.BatchesAnswer:
            return self.batches(limit=EACH_LIMIT, after=after, state=state, text=text, failed=failed, since_ms=since_ms)

        return _each(page, "batches")

    def each_block(
        self,
        *,
        state: str = "",
        text: str = "",
        batch: int = 0,
        topic: str = "",
        partition: int | None = None,
        offset: int | None = None,
    ) -> Iterator[m.BlockEntry]:
        """Yield all blocks, page by page, newest first. Arguments as for :meth:`blocks`."""

        def page(after: str) -> m.BlockListAnswer:
            return self.blocks(
                limit=EACH_LIMIT,
                after=after,
                state=state,
                text=text,
                batch=batch,
                topic=topic,
                partition=partition,
                offset=offset,
            )

        return _each(page, "blocks")

    # ---- single things -----------------------------------------------------------------------------------------------

    def batch(self, batch: int) -> m.BatchDetail:
        """Return one batch, by its id or number, with its offsets and blocks."""
        return self._get(f"/v1/batches/{batch}", m.BatchDetail)

    def block(self, block_id: str) -> m.BlockEntry:
        """Return one block, with its ranges."""
        return self._get(f"/v1/blocks/{quote(block_id, safe='')}", m.BlockEntry)

    def records(self, block_id: str, *, first: int = 0, limit: int = 20, bytes_max: int = 4_096) -> m.RecordsAnswer:
        """Return ``limit`` records of a block (at most 100), from record number ``first`` on. Keys, values and headers are cut
        off after ``bytes_max`` bytes (at most 65,536). Needs the role ``query`` or ``operator``."""
        path = f"/v1/blocks/{quote(block_id, safe='')}/records"
        return self._get(path, m.RecordsAnswer, **{"from": first}, limit=limit, bytes_max=bytes_max)

    def wal(self) -> m.WalAnswer:
        """Return the state of the WAL."""
        return self._get("/v1/wal", m.WalAnswer)

    def journal(self) -> m.JournalAnswer:
        """Return the state of the journal."""
        return self._get("/v1/journal", m.JournalAnswer)

    def settings(self) -> m.SettingsAnswer:
        """Return the driver's settings in force, without secrets."""
        return self._get("/v1/settings", m.SettingsAnswer)

    def threads(self) -> m.ThreadsAnswer:
        """Return what each thread of the driver is doing, for diagnosis. Needs the role ``operator``."""
        return self._get("/v1/threads", m.ThreadsAnswer)

    def listeners(self) -> m.ListenersAnswer:
        """Return the listeners of the driver."""
        return self._get("/v1/listeners", m.ListenersAnswer)

    def direct(self) -> m.DirectAnswer:
        """Return the direct streams that read through the intake."""
        return self._get("/v1/direct", m.DirectAnswer)


def _each(page: Callable[[str], Any], name: str) -> Iterator[Any]:
    after = ""
    while True:
        found = page(after)
        yield from getattr(found, name)
        after = found.next
        if not after:
            return
