"""Carries out a rebuild: the order in which it marks, claims, reads and writes.

A crash after any step leaves a journal that no driver leads, and the next attempt begins a timeline of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

import msgspec

from driver.journal import claims
from driver.journal.files import claim_path, newest_claim
from driver.journal.history import HistoryWriter
from driver.journal.leadership import timeline
from driver.journal.log import reading as journal
from driver.journal.log.opening import SEGMENT_BYTES, first_claim
from driver.journal.log.writing import Journal
from driver.journal.state import BrokenInvariant, State
from forebay.model.errors import CorruptionError, FencedError, RefusedError, StoreError
from forebay.model.identifiers import numbered, timeline_of
from forebay.model.values import Block
from forebay.process import failpoints
from recovery.rebuild.evidence import Evidence
from recovery.rebuild.reading import TopicIds, read_evidence
from recovery.rebuild.state import RebuildPlan, rebuilt
from wal.segments import layout
from wal.segments.frame import FrameKind
from wal.segments.scan import read_frame
from wal.segments.writer import LogWriter, Pending, SegmentIdentity, SegmentLimits
from wal.storage import Storage

#: maximum bytes of blocks that are written between two syncs
GROUP_BYTES = 64_000_000


def refuse_intact(journal_storage: Storage, wal: Storage, stream: str, copy: State) -> None:
    """Raise RefusedError if a driver can lead the journal: a rebuild would only lose information that the journal has.

    A driver can lead it if the journal is complete, has the WAL's newest timeline, and is not older than ``copy``, the newest
    snapshot copy. Raises NewerVersionError if a newer release wrote the journal, StoreError.
    """
    marked = timeline.newest_marker(wal, stream)
    first = numbered(marked, 1) if marked else 0
    newest = newest_claim(journal_storage, stream, first)
    if not newest or timeline_of(newest) != marked:
        return
    try:
        state = journal.read_beside_a_writer(journal_storage, stream, first).state
        same = first_claim(journal_storage, stream, marked) == wal.read(layout.timeline_marker(stream, marked))
    except (CorruptionError, BrokenInvariant, FileNotFoundError, timeline.TimelineFound):
        return
    if state is None or not same or (copy.timeline, copy.events) > (state.timeline, state.events):
        return
    raise RefusedError(
        f"the journal at {journal_storage.url} is whole, and belongs to this WAL: start the driver. A rebuild would only "
        "forget which batches have run; if this journal is an old backup nevertheless, add --even-if-intact",
        "conflict",
    )


def steps(
    journal_storage: Storage,
    wal: Storage,
    *,
    stream: str,
    topic_ids: TopicIds,
    owner: str,
    wall_ms: int,
    now: Callable[[], float],
    new_uid: Callable[[], int],
    segment_bytes: int = SEGMENT_BYTES,
    compose: Callable[[Evidence, int, int, str], RebuildPlan] = rebuilt,
) -> Generator[str, None, RebuildPlan]:
    """Rebuild step by step: yield the name of each step that is done, return the plan that was carried out.

    Everything is read before the first step, so a WAL that can't be read is refused without a change. The first two steps mark
    the WAL and claim the journal: from then on no driver of an older timeline acts, and none leads until the new timeline's
    snapshot is durable. Each attempt begins a timeline of its own, so an earlier attempt that was killed or suspended can't
    disturb it. ``now`` gives seconds on the wall clock; ``segment_bytes`` limits a segment's size; ``compose`` makes the plan.
    Raises FencedError if another rebuild or driver came in between; CorruptionError, NewerVersionError, RefusedError, StoreError.
    """
    marked = timeline.newest_marker(wal, stream)
    if not marked:
        raise RefusedError(
            f"{wal.url} was never the WAL of stream {stream!r}: there is no journal to rebuild; check [wal].url",
            "not-found",
        )
    # refused before anything is changed; read again below, when no process of an older timeline can add to it
    read_evidence(journal_storage, wal, stream, lambda _: {})
    new_timeline = marked + 1
    epoch = numbered(new_timeline, 1)
    claim = claims.Claim(epoch=epoch, owner=owner, time_ms=wall_ms).encode()
    try:
        wal.put_new(layout.timeline_marker(stream, new_timeline), claim)
    except FileExistsError:
        raise FencedError(f"another rebuild of stream {stream!r} has begun timeline {new_timeline}") from None
    yield "marked"
    failpoints.hit("rebuild.after-marker")
    for older in range(2, new_timeline):  # a driver looks up the timeline after its own: none may be missing
        marker = layout.timeline_marker(stream, older)
        content = wal.read(marker)
        claims.decode(content, marker)  # a damaged claim would be another journal's for every later driver
        wal.put_new(marker, content)  # its name may not be durable, if its rebuild was killed
        _put_claim(journal_storage, stream, older, content)
    _put_claim(journal_storage, stream, new_timeline, claim)
    yield "claimed"
    failpoints.hit("rebuild.after-claim")
    plan = compose(read_evidence(journal_storage, wal, stream, topic_ids), new_timeline, wall_ms, owner)
    yield "read"
    limits = SegmentLimits(size_bytes=segment_bytes, age_seconds=float("inf"))
    state = _write_again(wal, stream=stream, epoch=epoch, plan=plan, limits=limits, now=now, new_uid=new_uid)
    yield "written"
    failpoints.hit("rebuild.after-blocks")
    if plan.archive:
        writer = HistoryWriter(journal_storage, stream, epoch, segment_bytes=segment_bytes, now=now, new_uid=new_uid)
        try:
            writer.append(plan.archive)
        finally:
            writer.close()
    yield "archived"
    failpoints.hit("rebuild.after-history")
    opened = Journal(
        journal_storage, stream=stream, epoch=epoch, state=state, segment_bytes=segment_bytes, now=now, new_uid=new_uid
    )
    try:
        opened.snapshot()
        yield "snapshot"
        failpoints.hit("rebuild.after-snapshot")
        opened.check()
    finally:
        opened.close()
    return plan


def rebuild(
    journal_storage: Storage,
    wal: Storage,
    *,
    stream: str,
    topic_ids: TopicIds,
    owner: str,
    wall_ms: int,
    now: Callable[[], float],
    new_uid: Callable[[], int],
    segment_bytes: int = SEGMENT_BYTES,
) -> RebuildPlan:
    """Run all :func:`steps` and return the plan that was carried out."""
    doing = steps(
        journal_storage,
        wal,
        stream=stream,
        topic_ids=topic_ids,
        owner=owner,
        wall_ms=wall_ms,
        now=now,
        new_uid=new_uid,
        segment_bytes=segment_bytes,
    )
    while True:
        try:
            next(doing)
        except StopIteration as end:
            plan: RebuildPlan = end.value
            return plan


def _put_claim(journal_storage: Storage, stream: str, of_timeline: int, claim: bytes) -> None:
    path = claim_path(stream, numbered(of_timeline, 1))
    try:
        journal_storage.put_new(path, claim)
    except FileExistsError:
        found = journal_storage.read(path)
        if found == claim:
            return
        marker = layout.timeline_marker(stream, of_timeline)
        claims.decode(found, path, f"; if the WAL is this journal's, copy the content of {marker} in the WAL into it")
        raise RefusedError(
            f"{journal_storage.url} holds a journal of timeline {of_timeline} of another WAL: correct [driver].journal or "
            "[wal].url",
            "conflict",
        ) from None


def _write_again(
    wal: Storage,
    *,
    stream: str,
    epoch: int,
    plan: RebuildPlan,
    limits: SegmentLimits,
    now: Callable[[], float],
    new_uid: Callable[[], int],
) -> State:
    """Write the plan's taken blocks again, and return its state with their new handles. The blocks are durable on return.

    The old frame of a block that was never reported may be only in a page cache, or in a segment whose sync failed. Reading
    can't detect either case. A damaged block keeps its old handle.
    """
    if not plan.taken:
        return plan.state
    writer = LogWriter(
        wal,
        lambda sequence: layout.block_segment(stream, timeline.REBUILDER, epoch, sequence),
        identity=SegmentIdentity(stream=stream, writer=timeline.REBUILDER, epoch=epoch, timeline=timeline_of(epoch)),
        limits=limits,
        now=now,
        new_uid=new_uid,
    )
    blocks = dict(plan.state.blocks)
    group: list[tuple[Block, Pending]] = []
    size = 0

    def sync() -> None:
        writer.sync()
        for block, pending in group:
            if pending.handle is None:
                raise StoreError(f"block {block.id} was synced and has no handle")
            blocks[block.id] = msgspec.structs.replace(block, handle=pending.handle)
        group.clear()

    try:
        for one in plan.taken:
            if not one.whole or one.block.id not in blocks:
                continue
            frame = read_frame(wal, one.block.handle)
            pending = writer.append(FrameKind.BLOCK, bytes(frame.metadata), frame.payload)
            group.append((one.block, pending))
            size += one.block.handle.length
            if size >= GROUP_BYTES:
                sync()
                size = 0
        sync()
    finally:
        writer.close()
    return msgspec.structs.replace(plan.state, blocks=blocks)
