"""The decision table: a test per row, exactly one row for every evidence, and whole segments."""

from __future__ import annotations

import itertools

import pytest

from forebay.model.values import Block, BlockMeta, BlockRange, Handle, TopicPartition, block_id
from tests.support.state.segments import memory, segment
from wal.blocks import encode_meta
from wal.decisions.recovery import TABLE, Decision, FrameCondition, FrameEvidence, assess_segment, decide
from wal.decisions.retention import JournalView, PartitionPosition, RangeStatus
from wal.segments.frame import Frame
from wal.segments.scan import scan_segment
from wal.storage import MemoryStorage

EVIDENCE = [
    FrameEvidence(found, named, status, closed)
    for found, named, status, closed in itertools.product(FrameCondition, (True, False), RangeStatus, (True, False))
    if named or found is not FrameCondition.ABSENT
]

ROWS = [  # condition, named, status, closed → decision; None: whatever it is
    (FrameCondition.NEWER, None, None, None, Decision.NEWER_REFUSE),
    (FrameCondition.WHOLE, True, None, None, Decision.WHOLE),
    (FrameCondition.WHOLE, False, None, False, Decision.ORPHAN_KEEP),
    (FrameCondition.WHOLE, False, RangeStatus.BEHIND, True, Decision.ORPHAN_KEEP),
    (FrameCondition.WHOLE, False, RangeStatus.UNKNOWN, True, Decision.ORPHAN_KEEP),
    (FrameCondition.WHOLE, False, RangeStatus.PAST, True, Decision.ORPHAN_DELETE),
    (FrameCondition.WHOLE, False, RangeStatus.INCARNATION_ENDED, True, Decision.ORPHAN_DELETE),
    (FrameCondition.TORN, True, None, None, Decision.DAMAGED_QUARANTINE),
    (FrameCondition.TORN, False, None, False, Decision.ORPHAN_KEEP),
    (FrameCondition.TORN, False, None, True, Decision.TORN_DROP),
    (FrameCondition.DAMAGED, True, None, None, Decision.DAMAGED_QUARANTINE),
    (FrameCondition.DAMAGED, False, None, False, Decision.DAMAGED_QUARANTINE),
    (FrameCondition.DAMAGED, False, RangeStatus.BEHIND, True, Decision.DAMAGED_QUARANTINE),
    (FrameCondition.DAMAGED, False, RangeStatus.UNKNOWN, True, Decision.DAMAGED_QUARANTINE),
    (FrameCondition.DAMAGED, False, RangeStatus.PAST, True, Decision.ORPHAN_DELETE),
    (FrameCondition.DAMAGED, False, RangeStatus.INCARNATION_ENDED, True, Decision.ORPHAN_DELETE),
    (FrameCondition.ABSENT, True, None, None, Decision.MISSING),
    (FrameCondition.UNREADABLE, True, None, None, Decision.UNREADABLE),
    (FrameCondition.UNREADABLE, False, None, None, Decision.UNREADABLE),
]


@pytest.mark.parametrize(("condition", "named", "status", "closed", "decision"), ROWS)
def test_each_row_decides_as_written_here(
    condition: FrameCondition, named: bool | None, status: RangeStatus | None, closed: bool | None, decision: Decision
) -> None:
    agreeing = [
        evidence
        for evidence in EVIDENCE
        if evidence.condition is condition
        and named in (None, evidence.named)
        and status in (None, evidence.status)
        and closed in (None, evidence.closed)
    ]
    assert agreeing
    for evidence in agreeing:
        assert decide(evidence).decision is decision


def test_the_table_has_a_row_for_each_test_and_one_row_for_each_evidence() -> None:
    assert [(row.condition, row.named, row.status, row.closed, row.decision) for row in TABLE] == ROWS
    for evidence in EVIDENCE:
        assert sum(row.holds(evidence) for row in TABLE) == 1, evidence


def test_an_accepted_tail_is_never_taken_for_torn() -> None:
    """INV-5: what the journal names was durable; if it is cut off now, it was lost, and is reported."""
    for evidence in EVIDENCE:
        if evidence.named:
            assert decide(evidence).decision in (
                Decision.WHOLE,
                Decision.DAMAGED_QUARANTINE,
                Decision.MISSING,
                Decision.NEWER_REFUSE,
                Decision.UNREADABLE,
            )


def test_nothing_is_deleted_or_dropped_while_its_writer_may_still_write_or_report() -> None:
    """INV-8: an orphan is deleted only from a sealed segment or one whose writer is fenced."""
    for evidence in EVIDENCE:
        if not evidence.closed:
            assert decide(evidence).decision not in (Decision.ORPHAN_DELETE, Decision.TORN_DROP)


def test_orphan_is_deleted_only_when_other_blocks_hold_its_offsets() -> None:
    for evidence in EVIDENCE:
        if decide(evidence).decision is Decision.ORPHAN_DELETE:
            assert evidence.status.is_final
            assert not evidence.named


def test_evidence_without_a_frame_and_a_block_is_refused() -> None:
    with pytest.raises(ValueError, match="nothing"):
        FrameEvidence(FrameCondition.ABSENT, False, RangeStatus.PAST, True)


# ---- whole segments --------------------------------------------------------------------------------------------------


def held(partition: int, start: int, until: int, incarnation: int = 1) -> BlockRange:
    return BlockRange("t", partition, incarnation, start, until, until - start, 0, "0" * 16, 1)


def meta(sequence: int, *ranges: BlockRange) -> BlockMeta:
    records = sum(r.records for r in ranges)
    return BlockMeta(block_id("r", 7, sequence), "s", "r", 7, sequence, ranges, records, 0, "h")


METAS = [meta(1, held(0, 0, 10)), meta(2, held(0, 10, 20), held(1, 0, 5)), meta(3, held(0, 20, 30))]


def view(position: int = 0, other: int = 0, incarnation: int = 1) -> JournalView:
    positions = {
        TopicPartition("t", 0): PartitionPosition(incarnation, position),
        TopicPartition("t", 1): PartitionPosition(1, other),
    }
    return JournalView(needed=frozenset(), released=frozenset(), positions=positions)


class Log:
    def __init__(self) -> None:
        self.storage: MemoryStorage = memory()
        self.path = segment(self.storage, [(encode_meta(m), b"payload-%d" % m.sequence * 20) for m in METAS])
        self.data = self.storage.read(self.path)
        self.frames = [item for item in scan_segment(self.storage, self.path) if isinstance(item, Frame)]
        self.blocks = [
            Block(m, Handle(self.path, f.offset, f.length, f.header.payload_checksum), False)
            for m, f in zip(METAS, self.frames[1:], strict=True)
        ]

    def decisions(
        self, data: bytes | None, accepted: list[Block], journal: JournalView, closed: bool = True
    ) -> list[tuple[str, str | None]]:
        found = None
        if data is not None:
            self.storage.replace(self.path, data)
            found = scan_segment(self.storage, self.path)
        verdicts = assess_segment(self.path, found, accepted, journal, closed=closed)
        assert [v.offset for v in verdicts] == sorted(v.offset for v in verdicts)
        return [(verdict.decision.value, verdict.block_id) for verdict in verdicts]


LOG = Log()
IDS = [m.id for m in METAS]


def test_a_segment_that_the_journal_knows_whole_is_whole() -> None:
    assert LOG.decisions(LOG.data, LOG.blocks, view(30, 5)) == [("whole", block) for block in IDS]


def test_unknown_segment_is_kept_until_other_blocks_hold_its_offsets() -> None:
    assert LOG.decisions(LOG.data, [], view(10)) == [
        ("orphan-delete", IDS[0]),
        ("orphan-keep", IDS[1]),
        ("orphan-keep", IDS[2]),
    ]
    assert LOG.decisions(LOG.data, [], view(20, 4))[1] == ("orphan-keep", IDS[1])
    assert LOG.decisions(LOG.data, [], view(30, 5)) == [("orphan-delete", block) for block in IDS]
    assert LOG.decisions(LOG.data, [], view(0, 5, incarnation=2)) == [("orphan-delete", block) for block in IDS]
    assert LOG.decisions(LOG.data, [], view(30, 5), closed=False) == [("orphan-keep", block) for block in IDS]


def test_a_cut_segment_loses_what_the_journal_named_and_drops_what_it_did_not() -> None:
    cut = LOG.data[: LOG.frames[2].offset + 100]
    assert LOG.decisions(cut, LOG.blocks[:1], view(10)) == [("whole", IDS[0]), ("torn-drop", None)]
    assert LOG.decisions(cut, LOG.blocks, view(30, 5)) == [
        ("whole", IDS[0]),
        ("damaged-quarantine", IDS[1]),
        ("missing", IDS[2]),
    ]
    at_a_boundary = LOG.data[: LOG.frames[2].offset]
    assert LOG.decisions(at_a_boundary, LOG.blocks, view(30, 5)) == [
        ("whole", IDS[0]),
        ("missing", IDS[1]),
        ("missing", IDS[2]),
    ]
    assert LOG.decisions(None, LOG.blocks, view(30, 5)) == [("missing", block) for block in IDS]


def test_a_quarantined_block_names_the_ranges_to_be_read_again() -> None:
    frame = LOG.frames[2]
    broken = bytearray(LOG.data)
    broken[frame.offset + frame.header.payload_start] ^= 1
    LOG.storage.replace(LOG.path, bytes(broken))
    for accepted, journal in ((LOG.blocks, view(30, 5)), ([], view(0))):
        found = scan_segment(LOG.storage, LOG.path)
        verdicts = assess_segment(LOG.path, found, accepted, journal, closed=True)
        assert (verdicts[1].decision, verdicts[1].ranges) == (Decision.DAMAGED_QUARANTINE, METAS[1].ranges)


def test_damage_over_several_accepted_blocks_names_each_of_them() -> None:
    first, third = LOG.frames[1].offset, LOG.frames[3].offset
    broken = LOG.data[:first] + b"\xff" * (third - first) + LOG.data[third:]
    assert LOG.decisions(broken, LOG.blocks, view(30, 5)) == [
        ("damaged-quarantine", IDS[0]),
        ("damaged-quarantine", IDS[1]),
        ("whole", IDS[2]),
    ]
    assert LOG.decisions(broken, [], view(0))[0] == ("damaged-quarantine", None)


def test_frame_that_does_not_match_the_handle_is_damage() -> None:
    block = LOG.blocks[0]
    handle = Handle(LOG.path, block.handle.offset, block.handle.length, block.handle.checksum ^ 1)
    other = [Block(block.meta, handle, False), *LOG.blocks[1:]]
    assert LOG.decisions(LOG.data, other, view(30, 5))[0] == ("damaged-quarantine", IDS[0])
    other = [Block(METAS[2], block.handle, False)]
    assert LOG.decisions(LOG.data, other, view(30, 5))[0] == ("damaged-quarantine", IDS[2])


def test_a_swapped_segment_quarantines_everything_the_journal_has_there() -> None:
    here = memory()
    here.replace(LOG.path.replace("00000001", "00000002"), LOG.data)
    path = LOG.path.replace("00000001", "00000002")
    verdicts = assess_segment(path, scan_segment(here, path), LOG.blocks, view(30, 5), closed=True)
    assert [v.decision for v in verdicts] == [Decision.DAMAGED_QUARANTINE] * 3
    verdicts = assess_segment(path, scan_segment(here, path), [], view(30, 5), closed=True)
    assert [v.decision for v in verdicts] == [Decision.DAMAGED_QUARANTINE]
