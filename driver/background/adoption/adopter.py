"""The rounds of adoption: search, claim, write, report, release."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import pyarrow as pa

from driver.background.adoption.orphans import Orphan, next_from, until
from driver.background.adoption.search import OrphanSearch
from driver.journal.state import ADOPTER, State
from driver.journal.state_parts import EndedEpoch
from driver.tracker.requests import AdoptionBlocked, Barred, NothingToAdopt, Read, Request, Search, Searches
from forebay import messages as m
from forebay.model.digest import digest
from forebay.model.errors import (
    MissingKeyError,
    NewerVersionError,
    SettingsError,
    SourceError,
    StoreError,
    TurnedAwayError,
    UnreachableError,
)
from forebay.model.identifiers import timeline_of
from forebay.model.payload import Compression, encode_block
from forebay.model.records import RangeRows, extent
from forebay.model.values import Block, BlockMeta, BlockRange, Gap, TopicPartition, block_id
from wal.blocks import encode_meta
from wal.blocks.digests import completed
from wal.blocks.encryption import KeyRing
from wal.segments import layout
from wal.segments.barrier import bar
from wal.segments.frame import FrameKind
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import Storage

log = logging.getLogger(__name__)

#: pause between two rounds while a partition waits for its search
ROUND_SECONDS = 0.5
#: pause before the next round after a store or Kafka did not answer
BLOCKED_SECONDS = 5.0

#: what a round yields: the name of a failpoint, or a request, whose answer is sent into the generator
Round = Generator[str | Request, Any, float | None]


class Adopter:
    """Adopts orphans, round by round. :class:`AdoptionThread` or the simulation drives the rounds and sends the requests.

    ``wal``: None in a stream without a WAL; then a search finds nothing. ``instance_id``: the id of this driver process.
    ``topic_ids``: returns the present ids of topics in Kafka, "" for a topic that does not exist; raises UnreachableError.
    ``stopping``: returns whether a long search must end. ``keys``: returns the keys of encrypted blocks; called for each use,
    because keys change.
    """

    search_type: ClassVar[type[OrphanSearch]] = OrphanSearch

    def __init__(
        self,
        wal: Storage | None,
        *,
        stream: str,
        host: str,
        instance_id: str,
        compression: Compression,
        limits: SegmentLimits,
        topic_ids: Callable[[Iterable[str]], Mapping[str, str]],
        wall_ms: Callable[[], int],
        new_uid: Callable[[], int],
        stopping: Callable[[], bool] = lambda: False,
        keys: Callable[[], KeyRing | None] = lambda: None,
    ) -> None:
        self._wal = wal
        self._stream = stream
        self._host = host
        self._instance_id = instance_id
        self._compression = compression
        self._limits = limits
        self._wall_ms = wall_ms
        self._new_uid = new_uid
        self._search = self.search_type(wal, stream=stream, topic_ids=topic_ids, stopping=stopping, keys=keys)
        self._keys = keys
        self._epoch = 0  # 0: not registered
        self._looked_back = False
        self._writer: LogWriter | None = None
        self._sequence = 0
        self._registrations = 0
        self._blocked: dict[TopicPartition, str] = {}  # as last logged

    def round(self) -> Round:
        """Search once for all partitions that wait. Return in how many seconds the next round is due; None: no partition waits.

        A TurnedAwayError that is thrown in instead of an answer ends the round.
        """
        if not self._looked_back:
            if (yield ReadLeftoverClaim()):
                try:
                    yield from self._register()
                except TurnedAwayError:
                    return BLOCKED_SECONDS
            self._looked_back = True
        searches: tuple[Search, ...] = yield Searches()
        ready = [search for search in searches if not search.waits_for]
        due = ROUND_SECONDS if len(ready) < len(searches) else None
        if not ready:
            return due
        try:
            if not (yield from self._bar()):
                return ROUND_SECONDS
            epochs: list[EndedEpoch] = yield ReadEpochs()
            yield "search"  # every writer of these partitions was settled before
            found = self._search.find(ready, epochs)
        except (StoreError, UnreachableError, NewerVersionError, SourceError) as error:
            for search in ready:
                yield from self._block_adoption(search, str(error))
            return BLOCKED_SECONDS
        for search in ready:
            orphans = found[search.tp]
            try:
                first, rows = self._search.readable(orphans, search.position, search.limit)
            except (StoreError, NewerVersionError, MissingKeyError, SettingsError) as error:
                yield from self._block_adoption(search, str(error))
                due = BLOCKED_SECONDS
                continue
            if first is not None:
                try:
                    blocked = yield from self._adopt(search, orphans, first, rows)
                except TurnedAwayError as error:
                    # the next registration ends the claim, if there is one; what was written under it is an orphan
                    self._start_over()
                    self._looked_back = False
                    yield from self._block_adoption(search, str(error))
                    return BLOCKED_SECONDS
                due = BLOCKED_SECONDS if blocked else ROUND_SECONDS  # ranges that do not touch may remain
            elif not (yield NothingToAdopt(search, next_from(orphans, search), epochs)):
                due = ROUND_SECONDS
        return due

    def _block_adoption(self, search: Search, reason: str) -> Round:
        if self._blocked.get(search.tp) != reason:
            log.warning(
                "partition %s: records in the WAL from offset %d on cannot be adopted yet: %s",
                search.tp, search.position, reason,
            )  # fmt: skip
        self._blocked[search.tp] = reason
        yield AdoptionBlocked(search.tp, reason)
        return None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    # ---- barriers ----------------------------------------------------------------------------------------------------

    def _bar(self) -> Generator[str | Request, Any, bool]:
        """Write the barriers, after all writers are settled and before the search. Return False if clean-up deleted a segment
        meanwhile, so that a barrier is not valid.

        A fenced writer may have sent a request that the store has not carried out yet. Raises StoreError.
        """
        ended: tuple[EndedEpoch, ...] = () if self._wal is None or self._wal.appendable else (yield ReadUnbarred())
        if not ended:
            return True
        yield "bar"
        held: bool = yield Barred(tuple(self._barrier(epoch) for epoch in ended))
        return held

    def _barrier(self, epoch: EndedEpoch) -> layout.BlockPlace:
        self._search.refuse_if_stopping()
        first = layout.BlockPlace(self._stream, epoch.receiver_id, epoch.epoch, epoch.segments + 1)
        return bar(self._required_wal, first, self._wall_ms, self._new_uid)

    @property
    def _required_wal(self) -> Storage:
        """The WAL; called only in a stream that has one."""
        assert self._wal is not None
        return self._wal

    # ---- adopting ----------------------------------------------------------------------------------------------------

    def _adopt(
        self, search: Search, orphans: list[Orphan], orphan: Orphan | None, rows: Sequence[pa.RecordBatch]
    ) -> Round:
        """Claim the partition, take in the orphans that continue at its position without a gap, and release it. If a store does
        not answer, return the reason; otherwise None."""
        if not self._epoch:
            yield from self._register()
        ask = m.ClaimAsk(topic=search.tp.topic, partition=search.tp.partition, known_token=search.token)
        yield "claim"
        answer: m.ClaimAnswer = yield m.ClaimRequest(receiver_id=ADOPTER, epoch=self._epoch, claims=(ask,))
        (grant,) = answer.claims
        if not grant.granted:  # a receiver claimed the partition since the search began
            return None
        view = grant.view
        position, gap = view.position, view.preceding_gap
        blocked = ""
        if (view.incarnation, position) != (
            search.incarnation,
            search.position,
        ):  # its owner's report came before the claim
            orphan = None
        while orphan is not None:
            yield "write"
            try:
                block = self._write(orphan, search, rows, position, view.token, gap)
            except (StoreError, SettingsError) as error:
                blocked = str(error)
                break
            yield "report"
            report: m.ReportAnswer = yield m.ReportRequest(receiver_id=ADOPTER, epoch=self._epoch, blocks=(block,))
            if not report.results[0].accepted:
                break
            adopted = block.meta.ranges[0]
            log.info("adopted %s from block %s of the WAL", adopted.label, orphan.meta.id)
            position, gap = adopted.until_offset, None
            try:
                orphan, rows = self._search.readable(orphans, position, search.limit)
            except (StoreError, NewerVersionError, MissingKeyError, SettingsError) as error:
                blocked = str(error)
                break
        yield "release"
        release = m.Release(topic=search.tp.topic, partition=search.tp.partition, token=view.token)
        yield m.ReleaseRequest(receiver_id=ADOPTER, epoch=self._epoch, releases=(release,))
        if not blocked:
            return None
        # What was written, even if the store carries it out later, has an ended token. It is in the folder of this epoch, to
        # which nothing is written again.
        self._start_over()
        yield from self._block_adoption(search, blocked)
        return BLOCKED_SECONDS

    def _start_over(self) -> None:
        """Forget the epoch; the next round registers again."""
        self.close()
        self._writer, self._epoch, self._sequence = None, 0, 0

    def _register(self) -> Round:
        """Register for a new epoch, which fences the adopter of an older driver and ends its claims."""
        self._registrations += 1
        answer: m.RegisterAnswer = yield m.RegisterRequest(
            stream=self._stream,
            receiver_id=ADOPTER,
            host=self._host,
            instance_id=f"{self._instance_id}-{self._registrations}",
            release="",
        )
        self._epoch = answer.epoch
        return None

    def _write(
        self,
        orphan: Orphan,
        search: Search,
        rows: Sequence[pa.RecordBatch],
        position: int,
        token: int,
        gap: Gap | None,
    ) -> Block:
        """Write the rows as a new block, durable on return. Raises StoreError; SettingsError if a key is missing."""
        until_offset = until(orphan, search.limit)
        bytes_, newest_ms = extent(rows)
        held = BlockRange(
            topic=search.tp.topic,
            partition=search.tp.partition,
            incarnation=search.incarnation,
            from_offset=position,
            until_offset=until_offset,
            records=sum(batch.num_rows for batch in rows),
            # of the orphan's last record, also if it is cut: a start with an older epoch would look truncated
            leader_epoch=orphan.held.leader_epoch,
            digest=digest(rows),
            token=token,
            bytes=bytes_,
            max_timestamp_ms=newest_ms,
            preceding_gap=gap if gap is not None and gap.until_offset == position else None,
        )
        self._sequence += 1
        meta = BlockMeta(
            id=block_id(ADOPTER, self._epoch, self._sequence),
            stream=self._stream,
            receiver_id=ADOPTER,
            epoch=self._epoch,
            sequence=self._sequence,
            ranges=(held,),
            records=held.records,
            created_ms=self._wall_ms(),
            host=self._host,
            headers=orphan.meta.headers,
            checked=orphan.meta.checked,
        )
        payload = encode_block([RangeRows(search.tp, rows)], meta.headers, self._compression)
        meta, payload = completed(meta, payload, self._keys())
        writer = self._writer = self._writer or self._open()
        pending = writer.append(FrameKind.BLOCK, encode_meta(meta), payload)
        writer.sync()
        assert pending.handle is not None
        return Block(meta, pending.handle, local=False)

    def _open(self) -> LogWriter:
        stream, epoch = self._stream, self._epoch
        return LogWriter(
            self._required_wal,
            lambda sequence: layout.block_segment(stream, ADOPTER, epoch, sequence),
            identity=SegmentIdentity(stream, ADOPTER, epoch, timeline_of(epoch)),
            limits=self._limits,
            now=lambda: self._wall_ms() / 1000,
            new_uid=self._new_uid,
            failpoints=True,
        )


@dataclass(frozen=True, slots=True)
class ReadLeftoverClaim(Read[bool]):
    """Reads whether an earlier driver ended during an adoption, so that the journal still has a claim of its adopter.

    The next registration of the adopter ends such a claim.
    """

    def read(self, state: State) -> bool:
        return any(writer.receiver_id == ADOPTER for p in state.partitions.values() for writer in p.writers)


@dataclass(frozen=True, slots=True)
class ReadEpochs(Read[list[EndedEpoch]]):
    """Reads the newest epochs of receivers, as :meth:`State.known_epochs`."""

    def read(self, state: State) -> list[EndedEpoch]:
        return state.known_epochs()


@dataclass(frozen=True, slots=True)
class ReadUnbarred(Read[tuple[EndedEpoch, ...]]):
    """Reads the ended epochs in whose folders the WAL has no barrier yet."""

    def read(self, state: State) -> tuple[EndedEpoch, ...]:
        return tuple(state.unbarred)


def advanced(steps: Round, answer: Any) -> str | Request:
    """Send ``answer`` into the round, or throw it in if it is an error. Return the name of the round's next step, or its next
    request. Raises StopIteration at the round's end."""
    return steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)
