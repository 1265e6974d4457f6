"""``forebay wal repair``: mends segments where they lie, beside a driver at work, wherever the very bytes can be had.

A frame is put back byte by byte from a copy that has the checksum which the journal names; a damaged segment header is
written again; a torn tail that nothing names is cut off. Only segments that nobody writes any more are touched, each is
copied aside first and replaced as a whole, and what was whole before stays what it was: that is checked before. What needs
other bytes (Kafka's), or a segment that is gone, is for ``forebay recover --apply``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click
import msgspec

from deploy.commands.recovery import Surroundings
from deploy.console.invocation import (
    FINE,
    FOUND,
    Invocation,
    changing_options,
    example,
    pass_invocation,
    shared_options,
)
from deploy.console.progress import progress_bar
from driver.journal.log import newest_claim
from driver.journal.state import REPAIR_WRITER
from driver.journal.timeline import REBUILDER
from forebay.model.values import Block, timeline_of
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
from wal.segments.frame import HEADER_LENGTH, Frame, FrameKind, SegmentHeader, aligned, encode_frame, parse_header
from wal.segments.scan import scan_segment
from wal.storage import LeavesTemporaries, Storage, open_storage

if TYPE_CHECKING:
    from rich.console import Group

    from recovery import copies

#: a temporary file younger than this may be one that is being written; it is renamed or removed within seconds
TEMPORARY_AGE_SECONDS = 600.0


class Mended(msgspec.Struct, frozen=True):
    """One segment. ``blocks``: put back; ``header``: written again; ``cut``: bytes of a torn tail; ``aside``: where the segment
    as it was lies now, "" if nothing was done yet."""

    path: str
    blocks: tuple[str, ...]
    header: bool
    cut: int
    aside: str = ""


class RepairReport(msgspec.Struct, frozen=True):
    """``left``: what this can't mend, in words. ``temporaries``: files that a kill left behind, removed if ``done``."""

    done: bool
    mended: tuple[Mended, ...]
    temporaries: tuple[str, ...]
    left: tuple[str, ...]


class _Bytes:
    """A segment's bytes to be scanned before they are stored."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def read(self, path: str, offset: int = 0, length: int | None = None) -> bytes:
        return self._data[offset:] if length is None else self._data[offset : offset + length]

    def size(self, path: str) -> int:
        return len(self._data)


def mend(
    segment: Segment, storage: Storage, found: Sequence[tuple[Block, copies.BlockCopy]]
) -> tuple[bytes, Mended] | None:
    """The segment's bytes with the blocks of ``found`` in their places; None if there is nothing to mend, or too little left to
    know how."""
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
            continue  # another release wrote its metadata: the place does not fit
        data.extend(bytes(max(0, offset - len(data))))
        data[offset : offset + len(frame)] = frame
        put.append(block.id)
    header = _mend_header(data, segment, uid, begins)
    if not (put or header or cut):
        return None
    return bytes(data), Mended(segment.path, tuple(put), header, cut)


def _index(data: bytearray, offset: int, otherwise: int) -> int:
    header = parse_header(bytes(data[offset : offset + HEADER_LENGTH]))
    return otherwise if isinstance(header, str) else header.index


def _mend_header(data: bytearray, segment: Segment, uid: int, begins: Sequence[int]) -> bool:
    """Writes the segment's own header again where it is damaged and its place is known."""
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
        created_ms=SystemClock().wall_ms(),  # of the header, for people
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
    """Looks, and with ``yes`` mends. May be killed at any step and called again. Raises UsageError if there is no journal."""
    with progress_bar("reading the WAL", total_bytes(wal_storage, stream)) as progress:
        examined = examine_beside_a_driver(journal_storage, wal_storage, stream, progress)
    state = examined.state
    assert state is not None
    surroundings.find_agents()
    sources = surroundings.sources(
        examined, wal_storage, KafkaView("only the very bytes can be put back in place"), None
    )
    broken: dict[str, list[Block]] = {}
    for block in broken_blocks(examined):
        broken.setdefault(block.handle.path, []).append(block)
    leads = newest_claim(journal_storage, stream)  # asked last: who wrote a segment that was listed had claimed before
    mended = []
    for segment in examined.segments:
        if not segment.closed or not segment.bytes or segment.swapped or _may_be_written(segment, leads):
            continue
        copies_ = [(block, sources.find(block)[0]) for block in broken.get(segment.path, ())]
        found = [(block, copy) for block, copy in copies_ if copy is not None]
        result = mend(segment, wal_storage, found)
        if result is None or not _is_better(segment, result[0], examined):
            continue
        data, done = result
        if yes:
            if segment.path in read_state(journal_storage, stream).cleaning_segments:
                continue  # nothing needs it any more, and it is being deleted
            done = msgspec.structs.replace(done, aside=copy_aside(wal_storage, segment.path))
            wal_storage.replace(segment.path, data)
        mended.append(done)
    return RepairReport(
        done=yes,
        mended=tuple(mended),
        temporaries=_temporaries(wal_storage, stream, yes),
        left=tuple(_left(examined, mended)),
    )


def _may_be_written(segment: Segment, leads: int) -> bool:
    """Recovery and a rebuild write under the journal epoch that they lead, which counts as fenced to those who lead after
    them: this command leads nothing, and one of them may be at work."""
    place = segment.place
    return place is not None and place.receiver in (REPAIR_WRITER, REBUILDER) and place.epoch >= leads


def _is_better(segment: Segment, data: bytes, examined: Examination) -> bool:
    """Whether all that was whole in the segment is whole in ``data``, and less is broken."""
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


def _temporaries(storage: Storage, stream: str, remove: bool) -> tuple[str, ...]:
    if not isinstance(storage, LeavesTemporaries):
        return ()
    found = storage.left_over(stream, SystemClock().wall_ms() / 1000 - TEMPORARY_AGE_SECONDS)
    for path in found if remove else ():
        storage.remove_left_over(path)
    return tuple(found)


def _left(examined: Examination, mended: Sequence[Mended]) -> list[str]:
    put_back = {block for done in mended for block in done.blocks}
    left = [
        f"block {block.id} with {', '.join(r.label for r in block.meta.ranges)} is not whole in {block.handle.path}"
        for block in broken_blocks(examined)
        if block.id not in put_back
    ]
    headers = {done.path for done in mended if done.header}
    left += [
        f"{damage.path} holds damage that no accepted block explains"
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
    short_help="Put damaged frames back from copies, in place.",
    epilog=example("forebay wal repair", "forebay wal repair --yes"),
)
@click.option(
    "--agent", "agents", metavar="HOST=URL", multiple=True, help="Where that host's agent answers; may be repeated."
)
@changing_options
@shared_options
@pass_invocation
def repair(invocation: Invocation, agents: tuple[str, ...], yes: bool) -> int:
    """Mend segments where they lie, from local copies and other frames of the WAL that hold the very bytes; cut off torn tails
    that nothing names; remove temporary files that a kill left behind.

    May be run beside a driver at work: only segments that nobody writes any more are touched, each is copied aside first
    (STREAM/aside/...). Exits with 1 if something is left that it can't mend: `forebay recover` says more of it.
    """
    from deploy.commands.recovery import agent_option

    settings = invocation.settings()
    surroundings = Surroundings(settings, kafka=False, agents=[agent_option(text) for text in agents])
    report = repaired(
        settings.stream,
        open_storage(settings.driver.journal, settings.storage),
        open_storage(settings.wal.url, settings.storage),
        surroundings,
        yes=yes,
    )
    invocation.write(report, lambda: tables(report))
    if not yes and (report.mended or report.temporaries):
        invocation.say("nothing was changed: say --yes to do it")
    for words in report.left:
        invocation.say(f"forebay: {words}; see `forebay recover`")
    waits = not yes and report.mended
    return FOUND if report.left or waits else FINE


def tables(report: RepairReport) -> list[Group]:
    from deploy.console.table import table

    return [
        table(
            "Mended" if report.done else "What --yes mends",
            ("segment", "blocks put back", "header", "torn tail", "as it was"),
            [
                (
                    m.path,
                    "\n".join(m.blocks) or "-",
                    "written again" if m.header else "-",
                    f"{m.cut} bytes",
                    m.aside or "-",
                )
                for m in report.mended
            ]
            + [(path, "-", "-", "a temporary file", "removed" if report.done else "-") for path in report.temporaries],
        )
    ]
