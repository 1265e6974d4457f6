"""``forebay wal repair``: repair segments in place from copies with the same bytes, also while a driver is running.

The command restores a frame byte by byte from a copy with the checksum that the journal names, writes a damaged segment
header again, and cuts off a torn tail that the journal does not name. It changes only segments that no process writes any
more. It copies each segment aside first, checks that all whole frames stay whole, and replaces the segment as a whole.
Blocks that must be read from Kafka, and missing segments, need ``forebay recover --apply``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from deploy.commands.recovery.surroundings import Surroundings, agent_option
from deploy.console.invocation import (
    FINDINGS,
    FINE,
    NOTHING_CHANGED,
    Invocation,
    changing_options,
    example,
    pass_invocation,
    shared_options,
)
from deploy.console.ownership import refuse_as_root
from deploy.console.progress import progress_bar
from driver.journal.files import newest_claim
from driver.journal.leadership.timeline import REBUILDER
from driver.journal.state import REPAIR_WRITER
from forebay.model.errors import StoreError
from forebay.model.identifiers import timeline_of
from forebay.model.values import Block
from forebay.process.clock import SystemClock
from recovery.examination import (
    Examination,
    Segment,
    examine_beside_a_driver,
    examine_segment,
    journal_view,
    read_state,
    total_bytes,
)
from recovery.plan import KafkaView, broken_blocks, damaged_segments
from recovery.restoration import copy_aside
from wal.blocks import encode_meta
from wal.decisions.recovery import Decision, FrameCondition
from wal.segments.encoding import encode_frame
from wal.segments.frame import HEADER_LENGTH, Frame, FrameKind, SegmentHeader, aligned, parse_header
from wal.segments.scan import scan_segment
from wal.storage import LeavesTemporaries, Storage, open_storage

if TYPE_CHECKING:
    from rich.console import Group

    from recovery import copies

#: minimum age of a temporary file to be removed; a process that writes one renames or removes it within seconds
TEMPORARY_AGE_SECONDS = 600.0


class RepairedSegment(msgspec.Struct, frozen=True):
    """The repair of one segment.

    ``blocks``: ids of the restored blocks. ``header``: whether the segment header was written again. ``cut``: bytes of a torn
    tail. ``aside``: copy of the segment before the repair, "" in a dry run.
    """

    path: str
    blocks: tuple[str, ...]
    header: bool
    cut: int
    aside: str = ""


class RepairReport(msgspec.Struct, frozen=True, rename={"repaired": "mended"}):
    """The result of a repair; without ``--apply``, the result that it would have.

    ``repaired``: repaired segments. ``left``: one sentence for each fault that remains. ``temporaries``: files that a killed
    process left behind; if ``done``, those that were removed. ``not_removed``: one sentence for each that could not be.
    """

    done: bool
    repaired: tuple[RepairedSegment, ...]
    temporaries: tuple[str, ...]
    left: tuple[str, ...]
    not_removed: tuple[str, ...] = ()


class _Bytes:
    """The new bytes of a segment, readable like a store, so that they can be scanned before they are stored."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._data[offset:] if length is None else self._data[offset : offset + length]

    def size(self, path: str) -> int:
        return len(self._data)


def repair_segment(
    segment: Segment, storage: Storage, found: Sequence[tuple[Block, copies.BlockCopy]]
) -> tuple[bytes, RepairedSegment] | None:
    """Return the segment's bytes with the blocks of ``found`` in their places.

    None if nothing needs a repair, or if too little of the segment is left to know its identity.
    """
    data = bytearray(storage.read(segment.path))
    uid = next(
        (item.header.uid for item in scan_segment(storage, segment.path, payloads=False) if isinstance(item, Frame)),
        None,
    )
    if segment.place is None or uid is None:
        return None
    cut = 0
    for verdict in segment.verdicts:
        if verdict.decision is Decision.TORN_DROP:
            cut = len(data) - verdict.offset
            del data[verdict.offset :]
    begins = sorted({v.offset for v in segment.verdicts if v.named or v.condition is FrameCondition.WHOLE})
    put = []
    for block, copy in found:
        offset = block.handle.offset
        frame = b"".join(
            bytes(memoryview(part))
            for part in encode_frame(
                FrameKind.BLOCK,
                uid=uid,
                offset=offset,
                index=_index(data, offset, 1 + begins.index(offset)),
                metadata=encode_meta(copy.meta),
                payload=copy.payload,
            )
        )
        if len(frame) != aligned(block.handle.length):
            continue  # another release wrote the metadata, with a different length
        data.extend(bytes(max(0, offset - len(data))))
        data[offset : offset + len(frame)] = frame
        put.append(block.id)
    header = _repair_header(data, segment, uid, begins)
    if not (put or header or cut):
        return None
    return bytes(data), RepairedSegment(segment.path, tuple(put), header, cut)


def _index(data: bytearray, offset: int, otherwise: int) -> int:
    header = parse_header(bytes(data[offset : offset + HEADER_LENGTH]))
    return otherwise if isinstance(header, str) else header.index


def _repair_header(data: bytearray, segment: Segment, uid: int, begins: Sequence[int]) -> bool:
    """Write the segment header again if it is damaged and the end of its place is known."""
    if (
        not any(v.offset == 0 and v.condition is FrameCondition.DAMAGED and not v.named for v in segment.verdicts)
        or not begins
    ):
        return False
    place = segment.place
    assert place is not None
    header = SegmentHeader(
        path=segment.path,
        stream=place.stream,
        writer=place.receiver,
        epoch=place.epoch,
        sequence=place.sequence,
        timeline=timeline_of(place.epoch),
        uid=uid,
        created_ms=SystemClock().wall_ms(),  # time of this header; only people read it
    )
    metadata = msgspec.msgpack.encode(header)
    frame = encode_frame(FrameKind.SEGMENT, uid=uid, offset=0, index=0, metadata=metadata, payload=b"")
    written = b"".join(bytes(memoryview(part)) for part in frame)
    if len(written) != begins[0]:
        return False
    data[: len(written)] = written
    return True


def repaired(
    stream: str,
    journal_storage: Storage,
    wal_storage: Storage,
    surroundings: Surroundings,
    *,
    yes: bool,
) -> RepairReport:
    """Find faults that copies with the same bytes can repair; with ``yes``, repair them.

    May be killed at any step and called again. Raises UsageError if there is no journal.
    """
    with progress_bar("reading the WAL", total_bytes(wal_storage, stream)) as progress:
        examined = examine_beside_a_driver(journal_storage, wal_storage, stream, progress)
    state = examined.state
    assert state is not None
    surroundings.find_agents()
    sources = surroundings.sources(
        examined, wal_storage, KafkaView("not asked: a repair in place needs the same bytes"), None
    )
    broken: dict[str, list[Block]] = {}
    for block in broken_blocks(examined):
        broken.setdefault(block.handle.path, []).append(block)
    leads = newest_claim(journal_storage, stream)  # read last: the writer of each listed segment had claimed before
    repaired = []
    for segment in examined.segments:
        if not segment.closed or not segment.bytes or segment.swapped or segment.unreadable:
            continue
        if _may_be_written(segment, leads):
            continue
        copies_ = [(block, sources.find(block)[0]) for block in broken.get(segment.path, ())]
        found = [(block, copy) for block, copy in copies_ if copy is not None]
        result = repair_segment(segment, wal_storage, found)
        if result is None or not _is_better(segment, result[0], examined):
            continue
        data, done = result
        if yes:
            if segment.path in read_state(journal_storage, stream).cleaning_segments:
                continue  # no longer needed, and being deleted
            done = msgspec.structs.replace(done, aside=copy_aside(wal_storage, segment.path))
            wal_storage.replace(segment.path, data)
        repaired.append(done)
    temporaries, kept = _temporaries(wal_storage, stream, yes)
    return RepairReport(
        done=yes,
        repaired=tuple(repaired),
        temporaries=tuple(temporaries),
        left=tuple(_left(examined, repaired)),
        not_removed=tuple(kept),
    )


def _may_be_written(segment: Segment, leads: int) -> bool:
    """Return whether a running recovery or rebuild may still write the segment.

    A recovery or rebuild leads the journal and writes under its epoch. This command does not lead, so it does not fence them.
    """
    place = segment.place
    return place is not None and place.receiver in (REPAIR_WRITER, REBUILDER) and place.epoch >= leads


def _is_better(segment: Segment, data: bytes, examined: Examination) -> bool:
    """Whether all whole frames of the segment are whole in ``data``, and fewer places are broken."""
    state = examined.state
    assert state is not None
    accepted = [block for block in state.blocks.values() if block.handle.path == segment.path]
    after = examine_segment(
        _Bytes(data), segment.path, accepted, journal_view(state), sealed=segment.sealed, fenced=segment.fenced
    )

    def whole(of: Segment) -> set[tuple[int, str | None]]:
        return {(v.offset, v.block_id) for v in of.verdicts if v.condition is FrameCondition.WHOLE}

    def wrong(of: Segment) -> int:
        return sum(
            v.condition in (FrameCondition.DAMAGED, FrameCondition.TORN, FrameCondition.ABSENT) for v in of.verdicts
        )

    return whole(segment) <= whole(after) and wrong(after) < wrong(segment)


def _temporaries(storage: Storage, stream: str, remove: bool) -> tuple[list[str], list[str]]:
    """Return the temporary files, and a sentence for each error: the repairs are done, and their report must not be lost."""
    if not isinstance(storage, LeavesTemporaries):
        return [], []
    found: list[str] = []
    kept: list[str] = []
    try:
        left_over = storage.left_over(stream, SystemClock().wall_ms() / 1000 - TEMPORARY_AGE_SECONDS)
    except StoreError as error:
        return [], [f"{error}; correct this, then repeat the command to remove those of killed processes"]
    for path in left_over:
        try:
            if remove:
                storage.remove_left_over(path)
            found.append(path)
        except StoreError as error:
            kept.append(
                f"temporary file {path} of a killed process stays: {error}; correct this, then repeat the command"
            )
    return found, kept


def _left(examined: Examination, repaired: Sequence[RepairedSegment]) -> list[str]:
    put_back = {block for done in repaired for block in done.blocks}
    left = [
        f"block {block.id} with {', '.join(r.label for r in block.meta.ranges)} is not whole in {block.handle.path}"
        for block in broken_blocks(examined)
        if block.id not in put_back
    ]
    headers = {done.path for done in repaired if done.header}
    left += [
        f"segment {segment.path} stays as it is: {segment.unreadable}"
        for segment in examined.segments
        if segment.unreadable
    ]
    left += [
        f"{damage.path} has damage outside accepted blocks"
        for damage in damaged_segments(examined)
        if damage.path not in headers
        and any(
            v.condition is FrameCondition.DAMAGED and not v.named
            for segment in examined.segments
            if segment.path == damage.path
            for v in segment.verdicts
        )
    ]
    return left


@click.command(
    "repair",
    epilog=example("forebay wal repair", "forebay wal repair --apply"),
)
@click.option(
    "--agent",
    "agents",
    metavar="HOST=URL",
    multiple=True,
    help="URL of a host's agent to read copies from; repeatable.",
)
@changing_options
@shared_options
@pass_invocation
def repair(invocation: Invocation, agents: tuple[str, ...], yes: bool) -> int:
    """Repair damaged segments in place, from copies with the same bytes: local copies and other frames of the WAL.

    The command also cuts off torn tails that the journal does not name, and removes temporary files of killed processes. It
    changes only segments that no process writes any more, and copies each to STREAM/aside/ below the WAL's folder first.
    Without --apply nothing is changed. The driver may be running.

    Use it after `forebay wal verify` reported damage. Exits with 1 if a fault remains; `forebay recover` can repair more, but
    needs a stopped driver.
    """
    settings = invocation.settings()
    if yes:
        refuse_as_root(settings.stream, settings.wal.url)
    surroundings = Surroundings(settings, kafka=False, agents=[agent_option(text) for text in agents])
    report = repaired(
        settings.stream,
        open_storage(settings.driver.journal, settings.storage),
        open_storage(settings.wal.url, settings.storage),
        surroundings,
        yes=yes,
    )
    invocation.write(report, lambda: tables(report))
    if not yes and (report.repaired or report.temporaries):
        invocation.say(NOTHING_CHANGED)
    for fault in report.left:
        invocation.say(f"forebay: {fault}; see `forebay recover`")
    for fault in report.not_removed:
        invocation.say(f"forebay: {fault}")
    waits = not yes and report.repaired
    return FINDINGS if report.left or report.not_removed or waits else FINE


def tables(report: RepairReport) -> list[Group]:
    """Return the table of a report."""
    from deploy.console.table import table

    return [
        table(
            "Repaired segments" if report.done else "Segments that --apply repairs",
            ("segment", "blocks restored", "header", "torn tail", "copied aside to"),
            [
                (
                    m.path,
                    "\n".join(m.blocks) or "-",
                    "written again" if m.header else "-",
                    f"{m.cut} bytes",
                    m.aside or "-",
                )
                for m in report.repaired
            ]
            + [(path, "-", "-", "a temporary file", "removed" if report.done else "-") for path in report.temporaries],
        )
    ]
