"""Adoption: what Kafka lost and an orphan in the WAL still holds is taken in from there (rule 8).

An orphan is a block that became durable and was never reported in time: its receiver died in between, or lost its claim. The
wanted offsets of one of its ranges, and nothing else of it, are written into a new block under a new token by the receiver
``forebay-adoption``, which is this driver itself, by the tracker's ordinary requests. Killed anywhere it leaves at most an
orphan of its own, which the next search finds.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from driver.decision_loop.loop import DriverLoop
from driver.journal.events import ClaimGiven, Event, FaultRecorded, GapRecorded
from driver.journal.state import ADOPTER, EndedEpoch, State
from driver.tracker.requests import AdoptionBlocked, Ask, Barred, NothingToAdopt, Request, Search, Searches
from forebay import messages as m
from forebay.model.errors import (
    CorruptionError,
    MissingKeyError,
    NewerVersionError,
    SettingsError,
    StoreError,
    TurnedAwayError,
    UnreachableError,
)
from forebay.model.records import Compression, RangeRows, as_source, decode_block, digest, encode_block, extent
from forebay.model.values import Block, BlockMeta, Gap, Handle, OffsetRange, TopicPartition, block_id, timeline_of
from forebay.process import failpoints
from wal.blocks import block_of_frame, decode_meta, encode_meta
from wal.blocks.digests import completed
from wal.blocks.encryption import KeyRing, plain_payload
from wal.segments import layout
from wal.segments.barrier import bar
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import Damage, Newer, read_frame, scan_segment
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import Storage

log = logging.getLogger(__name__)

#: between two rounds while a partition waits for its search
ROUND_SECONDS = 0.5
#: … after a store or Kafka did not answer
BLOCKED_SECONDS = 5.0

#: what a round yields: the name of a place where a process may die, or a request whose answer it is sent
Round = Generator[str | Request, Any, float | None]

# ---- the decision ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Orphan:
    """One range of a frame. ``checked``: its topic's id was read after its last poll, and was that of its life."""

    handle: Handle
    meta: BlockMeta
    held: OffsetRange

    @property
    def checked(self) -> bool:
        return self.meta.checked is True


def eligible(found: Iterable[Orphan], search: Search, same_topic: bool) -> list[Orphan]:
    """Those of ``found`` that hold offsets of the search's life at or after its position.

    ``same_topic``: the topic's id, read after they were found, is still that of the life; ids never come back, so all of
    them are of it. Otherwise a block may hold records of the topic that was created in its place, polled before anybody
    noticed: then only those that say they were checked count.
    """
    return [
        orphan
        for orphan in found
        if (orphan.held.tp, orphan.held.incarnation) == (search.tp, search.incarnation)
        and orphan.held.until_offset > search.position
        and (same_topic or orphan.checked)
    ]


def covering(orphans: Iterable[Orphan], position: int) -> Orphan | None:
    """The one that goes on at ``position`` and reaches furthest."""
    at = [orphan for orphan in orphans if orphan.held.from_offset <= position < orphan.held.until_offset]
    return max(at, key=lambda orphan: orphan.held.until_offset, default=None)


def next_from(orphans: Iterable[Orphan], search: Search) -> int:
    """Where an orphan begins after the position, and before what Kafka holds; -1: nowhere."""
    later = (orphan.held.from_offset for orphan in orphans)
    return min((at for at in later if at > search.position and (search.limit is None or at < search.limit)), default=-1)


def until(orphan: Orphan, limit: int | None) -> int:
    """Up to where ``orphan`` is taken: what Kafka holds is read from there."""
    return orphan.held.until_offset if limit is None else min(limit, orphan.held.until_offset)


# ---- around it -------------------------------------------------------------------------------------------------------


class Adopter:
    """``round`` is driven by a thread (:class:`AdoptionThread`) or by the simulation; both ask the deciding thread.

    ``topic_ids``: of topics in Kafka now, "" for one that is not there; raises UnreachableError. ``instance_id``: of this driver
    process. ``wal``: None where there is none; then nothing is found. ``stopping``: ends a search that takes long. ``keys``: of
    encrypted blocks, asked each time, since keys change.
    """

    def __init__(
        self,
        wal: Storage | None,
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
        self._topic_ids = topic_ids
        self._logl_ms = wall_ms
        self._new_uid = new_uid
        self._stopping = stopping
        self._keys = keys
        self._epoch = 0  # 0: not registered
        self._looked_back = False
        self._writer: LogWriter | None = None
        self._sequence = 0
        self._registrations = 0
        self._blocked: dict[TopicPartition, str] = {}  # told
        self._damaged: set[Handle] = set()  # told
        self._refused: set[Handle] = set()  # told
        self._passed_over: set[tuple[str, int]] = set()  # told

    def round(self) -> Round:
        """One search for all that waits for it: in how many seconds the next round is due, None if nothing waits. A
        TurnedAwayError, thrown in instead of an answer, costs the round."""
        if not self._looked_back:
            if (yield Ask(_left_over)):
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
            yield "search"  # every writer of these was settled before it begins
            found = self._find(ready)
        except (StoreError, UnreachableError, NewerVersionError) as error:
            for search in ready:
                yield from self._block_adoption(search, str(error))
            return BLOCKED_SECONDS
        for search in ready:
            orphans = found[search.tp]
            try:
                first, rows = self._readable(orphans, search.position, search.limit)
            except (StoreError, NewerVersionError, MissingKeyError, SettingsError) as error:
                yield from self._block_adoption(search, str(error))
                due = BLOCKED_SECONDS
                continue
            if first is not None:
                try:
                    blocked = yield from self._adopt(search, orphans, first, rows)
                except TurnedAwayError as error:
                    # the claim, if there is one, ends with the next registration; what was written under it is an orphan
                    self._start_over()
                    self._looked_back = False
                    yield from self._block_adoption(search, str(error))
                    return BLOCKED_SECONDS
                due = BLOCKED_SECONDS if blocked else ROUND_SECONDS  # what does not touch may remain
            elif not (yield NothingToAdopt(search, next_from(orphans, search))):
                due = ROUND_SECONDS
        return due

    def _block_adoption(self, search: Search, words: str) -> Round:
        if self._blocked.get(search.tp) != words:
            log.warning(
                "%s: what the WAL may hold from %d on can't be adopted yet: %s", search.tp, search.position, words
            )
        self._blocked[search.tp] = words
        yield AdoptionBlocked(search.tp, words)
        return None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()

    # ---- searching ---------------------------------------------------------------------------------------------------

    def _bar(self) -> Generator[str | Request, Any, bool]:
        """Before a search, and after all writers were found settled: those among them that were fenced may have sent what has
        not landed yet. False: clean-up came in between. Raises StoreError."""
        ended: tuple[EndedEpoch, ...] = () if self._wal is None or self._wal.appendable else (yield Ask(_unbarred))
        if not ended:
            return True
        yield "bar"
        held: bool = yield Barred(tuple(self._barrier(epoch) for epoch in ended))
        return held

    def _barrier(self, epoch: EndedEpoch) -> layout.BlockPlace:
        self._refuse_if_stopping()
        first = layout.BlockPlace(self._stream, epoch.receiver_id, epoch.epoch, epoch.segments + 1)
        return bar(self._log, first, self._logl_ms, self._new_uid)

    def _find(self, searches: Sequence[Search]) -> dict[TopicPartition, list[Orphan]]:
        """What is eligible for each search, by one pass over the WAL."""
        found: dict[TopicPartition, list[Orphan]] = {search.tp: [] for search in searches}
        wanted = {search.tp: search for search in searches}
        for path in self._segments():
            for orphan in self._in_segment(path, wanted):
                found[orphan.held.tp].append(orphan)
        # after the pass: an id that is the same now was the same when each of them was polled
        topic_ids = self._topic_ids({search.tp.topic for search in searches if search.topic_id})
        return {
            search.tp: self._eligible(found[search.tp], search, topic_ids.get(search.tp.topic, "") == search.topic_id)
            for search in searches
        }

    def _eligible(self, found: list[Orphan], search: Search, same_topic: bool) -> list[Orphan]:
        orphans = eligible(found, search, same_topic)
        for orphan in eligible(found, search, True):
            if orphan not in orphans and orphan.handle not in self._refused:
                self._refused.add(orphan.handle)
                log.warning("%s is not adopted: it may hold records of another topic of that name", orphan.held.label)
        return orphans

    @property
    def _log(self) -> Storage:
        """The WAL, for who found something in it."""
        assert self._wal is not None
        return self._wal

    def _segments(self) -> Iterable[str]:
        """Every block segment; a listing may lag behind, so what follows the last one of an epoch is asked for by name."""
        if self._wal is None:
            return
        last: dict[tuple[str, int], int] = {}
        for path in self._log.list(layout.block_folder(self._stream)):
            place = layout.parse_block(path)
            if place is not None:
                writer = (place.receiver, place.epoch)
                last[writer] = max(last.get(writer, 0), place.sequence)
                yield path
        for (receiver, epoch), sequence in last.items():
            path = layout.block_segment(self._stream, receiver, epoch, sequence + 1)
            while self._log.exists(path):
                yield path
                sequence += 1
                path = layout.block_segment(self._stream, receiver, epoch, sequence + 1)

    def _in_segment(self, path: str, wanted: Mapping[TopicPartition, Search]) -> list[Orphan]:
        """Nothing that was accepted ends after the position, so the journal need not be asked which are orphans."""
        self._refuse_if_stopping()
        orphans = []
        damage: list[CorruptionError] = []
        readable = wanted_there = False
        try:
            for item in scan_segment(self._log, path, payloads=False):
                if isinstance(item, Damage):
                    damage.append(CorruptionError(path, item.offset, item.reason))
                if isinstance(item, Newer):
                    raise NewerVersionError(path, item.offset, item.version, item.newest, item.feature)
                if not isinstance(item, Frame) or item.header.kind != FrameKind.BLOCK:
                    continue
                try:
                    meta = decode_meta(item.metadata, path, item.offset)
                except CorruptionError as error:
                    damage.append(error)
                    continue
                readable = True
                wanted_there = wanted_there or any(held.tp in wanted for held in meta.ranges)
                handle = Handle(path, item.offset, item.length, item.header.payload_checksum)
                orphans += [
                    Orphan(handle, meta, held)
                    for held in meta.ranges
                    if (search := wanted.get(held.tp)) is not None
                    and held.incarnation == search.incarnation
                    and held.until_offset > search.position
                ]
        except FileNotFoundError:
            return []  # cleaned up meanwhile: all of it had come in
        if wanted_there or not readable or any(error.offset == 0 for error in damage):
            self._pass_over(damage)
        return orphans

    def _refuse_if_stopping(self) -> None:
        if self._stopping():
            raise UnreachableError("the driver is stopping")

    def _pass_over(self, damage: Iterable[CorruptionError]) -> None:
        for error in damage:
            place = (error.path, error.offset)
            if place not in self._passed_over:
                self._passed_over.add(place)
                log.warning("%s; the search for what Kafka lost passes over it", error)

    # ---- adopting ----------------------------------------------------------------------------------------------------

    def _readable(
        self, orphans: list[Orphan], position: int, limit: int | None
    ) -> tuple[Orphan | None, Sequence[pa.RecordBatch]]:
        """The orphan that goes on at ``position`` and its rows from there; those that can't be read leave ``orphans``."""
        while (limit is None or position < limit) and (orphan := covering(orphans, position)) is not None:
            try:
                return orphan, self._rows(orphan, position, until(orphan, limit))
            except (CorruptionError, FileNotFoundError) as error:
                if orphan.handle not in self._damaged:
                    log.error("%s can't be adopted from the WAL: %s", orphan.held.label, error)
                self._damaged.add(orphan.handle)
                orphans.remove(orphan)
        return None, ()

    def _rows(self, orphan: Orphan, from_offset: int, until_offset: int) -> Sequence[pa.RecordBatch]:
        """The rows of ``orphan`` within ``[from_offset, until_offset)``, of the source's schema; its whole range passes its
        digest first."""
        stored = block_of_frame(read_frame(self._log, orphan.handle), orphan.handle.path)
        place = orphan.handle
        payload = plain_payload(stored.meta, stored.payload, self._keys(), place.path)
        decoded = decode_block(payload, stored.meta, verify_digests=True, path=place.path, offset=place.offset)
        rows = []
        for held, batches in decoded:
            if held.tp != orphan.held.tp:
                continue
            for batch in batches:
                offsets = batch.column("offset").to_numpy()
                begin, end = np.searchsorted(offsets, [from_offset, until_offset])
                if begin < end:
                    rows.append(as_source(batch.slice(int(begin), int(end - begin))))
        return rows

    def _adopt(
        self, search: Search, orphans: list[Orphan], orphan: Orphan | None, rows: Sequence[pa.RecordBatch]
    ) -> Round:
        """Claims the partition, takes in what touches from its position on, releases it. Not None: a store hindered it."""
        if not self._epoch:
            yield from self._register()
        ask = m.ClaimAsk(topic=search.tp.topic, partition=search.tp.partition, known_token=search.token)
        yield "claim"
        answer: m.ClaimAnswer = yield m.ClaimRequest(receiver_id=ADOPTER, epoch=self._epoch, claims=(ask,))
        (grant,) = answer.claims
        if not grant.granted:  # somebody else claimed it since the search began
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
                orphan, rows = self._readable(orphans, position, search.limit)
            except (StoreError, NewerVersionError, MissingKeyError, SettingsError) as error:
                blocked = str(error)
                break
        yield "release"
        release = m.Release(topic=search.tp.topic, partition=search.tp.partition, token=view.token)
        yield m.ReleaseRequest(receiver_id=ADOPTER, epoch=self._epoch, releases=(release,))
        if not blocked:
            return None
        # What was written, and may yet land in a store that did not answer, carries a token that has ended. It stays in the
        # folder of this epoch, and nothing is written there again.
        self._start_over()
        yield from self._block_adoption(search, blocked)
        return BLOCKED_SECONDS

    def _start_over(self) -> None:
        """Under a new epoch."""
        self.close()
        self._writer, self._epoch, self._sequence = None, 0, 0

    def _register(self) -> Round:
        """A new epoch of the adopter: fences the one of an older driver, and ends what it had claimed."""
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
        """A block of its own, durable. Raises StoreError, SettingsError (its keys)."""
        until_offset = until(orphan, search.limit)
        bytes_, newest_ms = extent(rows)
        held = OffsetRange(
            topic=search.tp.topic,
            partition=search.tp.partition,
            incarnation=search.incarnation,
            from_offset=position,
            until_offset=until_offset,
            records=sum(batch.num_rows for batch in rows),
            # of the orphan's last record, also where it is cut: a start with an older epoch would seem truncated
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
            created_ms=self._logl_ms(),
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
            self._log,
            lambda sequence: layout.block_segment(stream, ADOPTER, epoch, sequence),
            SegmentIdentity(stream, ADOPTER, epoch, timeline_of(epoch)),
            self._limits,
            now=lambda: self._logl_ms() / 1000,
            new_uid=self._new_uid,
            failpoints=True,
        )


def _left_over(state: State) -> bool:
    """Whether an older driver was ended while it adopted: its claim ends with a new registration."""
    return any(writer.receiver_id == ADOPTER for p in state.partitions.values() for writer in p.writers)


def advanced(steps: Round, answer: Any) -> str | Request:
    """What a round yields next; an ``answer`` that is an error is thrown in. Raises StopIteration at the round's end."""
    return steps.throw(answer) if isinstance(answer, Exception) else steps.send(answer)


def _unbarred(state: State) -> tuple[EndedEpoch, ...]:
    return tuple(state.unbarred)


class AdoptionThread:
    """Drives an adopter: at once when trouble is found, and in rounds while one waits. ``failed`` gets what ended it, if that
    is not the loop's end."""

    def __init__(self, adopter: Adopter, loop: DriverLoop, failed: Callable[[BaseException], None]) -> None:
        self._adopter = adopter
        self._loop = loop
        self._failed = failed
        self._wanted = threading.Event()
        self._wanted.set()  # what was found before this driver
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="adoption", daemon=True)

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._wanted.set()
        self._thread.join()
        self._adopter.close()

    def note(self, events: Sequence[Event]) -> None:
        """Hears of durable events, in the deciding thread: trouble, new tokens of partitions that may be in trouble, and gaps
        before what the WAL holds."""
        if any(isinstance(event, FaultRecorded | ClaimGiven | GapRecorded) for event in events):
            self._wanted.set()

    def _run(self) -> None:
        try:
            due: float | None = None
            while True:
                self._wanted.wait(due)
                if self._stopping.is_set():
                    return
                self._wanted.clear()
                due = self._round()
        except UnreachableError:
            return  # the deciding thread has ended, and says why itself
        except Exception as error:  # partitions in trouble would wait for ever, without a word (INV-5)
            self._failed(error)

    def _round(self) -> float | None:
        steps = self._adopter.round()
        answer: Any = None
        try:
            while True:
                wanted = advanced(steps, answer)
                if isinstance(wanted, str):
                    answer = None
                    failpoints.hit(f"adoption.before-{wanted}")
                else:
                    try:
                        answer = self._loop.ask(wanted)
                    except TurnedAwayError as error:
                        answer = error
        except StopIteration as end:
            due: float | None = end.value
            return due
