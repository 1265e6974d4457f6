"""Adoption (rule 8): which orphan, which of its offsets, and when nothing is left to wait for."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from driver.background import adoption
from driver.background.adoption import (
    Adopter,
    AdoptionThread,
    Orphan,
    adopter,
    advanced,
    covering,
    eligible,
    next_from,
    until,
)
from driver.decision_loop.loop import GROWING
from driver.decisions.clean_up import CleanSegment
from driver.journal import events as ev
from driver.journal.state import ADOPTER, State
from driver.journal.transitions import apply, receivers
from driver.tracker import Tracker
from driver.tracker.requests import Request, Search, Searches
from forebay import messages as m
from forebay.model.digest import digest
from forebay.model.errors import (
    FencedError,
    OutOfSpaceError,
    RefusedError,
    StoreError,
    TurnedAwayError,
    UnreachableError,
)
from forebay.model.payload import decode_block, encode_block
from forebay.model.records import RangeRows
from forebay.model.values import Block, BlockMeta, BlockRange, Handle, TopicPartition, block_id, numbered
from tests.support.rows import filler, source_batch
from tests.support.tracked import STREAM, TOPIC, Tracked, offsets, tp, tracker_options
from wal.blocks import block_of_frame, encode_meta
from wal.blocks.encryption import KeyRing
from wal.decisions.retention import SegmentFacts
from wal.segments import layout
from wal.segments.frame import HEADER_LENGTH, FrameKind
from wal.segments.scan import read_frame
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import MemoryStorage

_names = itertools.count()

# ---- the decision ----------------------------------------------------------------------------------------------------


def orphan(start: int, end: int, incarnation: int = 1, checked: bool = False, partition: int = 0) -> Orphan:
    held = offsets(start, end, 1, partition, incarnation)
    meta = BlockMeta(
        block_id("r1", 1, end + 1),
        STREAM,
        "r1",
        1,
        end + 1,
        (held,),
        held.records,
        0,
        "h",
        checked=checked or msgspec.UNSET,
    )
    return Orphan(Handle(f"p{start}-{end}", 0, 1, 0), meta, held)


def search(position: int, limit: int | None = None) -> Search:
    return Search(tp(), 1, "id-1", position, limit, 5, ())


def test_the_orphan_that_covers_the_position_and_reaches_furthest_is_taken() -> None:
    found = [orphan(0, 12), orphan(8, 20), orphan(10, 15), orphan(15, 30)]
    assert covering(found, 10) == found[1]
    assert covering(found, 20) == found[3]
    assert covering(found, 30) is None


def test_only_orphans_of_the_same_incarnation_beyond_the_position_count() -> None:
    found = [orphan(0, 10), orphan(5, 20, incarnation=2), orphan(5, 20), orphan(5, 20, partition=1)]
    assert eligible(found, search(10), same_topic=True) == [found[2]]


def test_of_a_topic_created_again_only_checked_blocks_count() -> None:
    """Another may hold the records of the new topic, which are read in the new life once more (INV-2)."""
    found = [orphan(0, 10), orphan(0, 10, checked=True)]
    assert eligible(found, search(5), same_topic=False) == [found[1]]


def test_a_gap_ends_where_the_next_orphan_begins_if_kafka_does_not_hold_it_anyway() -> None:
    found = [orphan(30, 40), orphan(20, 25)]
    assert next_from(found, search(10)) == 20
    assert next_from(found, search(10, limit=20)) == -1
    assert next_from([], search(10)) == -1
    assert until(found[0], 35) == 35
    assert until(found[0], None) == until(found[0], 90) == 40


# ---- taking in -------------------------------------------------------------------------------------------------------


@dataclass
class Stream(Tracked):
    """A tracker, a WAL in memory, orphans in it, and an adopter that asks the tracker directly."""

    topic_id: str = "id-1"
    kafka_answers: bool = True
    keys: KeyRing | None = None  # the driver's
    sealed_by: KeyRing | None = None  # the orphans' receivers'
    between: dict[str, Any] = field(default_factory=dict)  # step → what happens just before it
    turned_away: tuple[type, ...] = ()  # requests that the decision loop refuses for now
    objects: bool = False  # the WAL's store keeps whole objects

    def __post_init__(self) -> None:
        super().__post_init__()
        self.wal = MemoryStorage(f"adoption-{next(_names)}", appendable=not self.objects)
        self.adopter = self.new_adopter("d1")

    def new_adopter(self, instance: str) -> Adopter:
        uids = itertools.count(next(_names) * 1000)
        limits = SegmentLimits(1 << 20, 1e9)
        return Adopter(
            self.wal,
            stream=STREAM,
            host="h1",
            instance_id=instance,
            compression="none",
            limits=limits,
            topic_ids=self.ask_topic_ids,
            wall_ms=lambda: self.now_ms,
            new_uid=lambda: next(uids),
            keys=lambda: self.keys,
        )

    def ask_topic_ids(self, topics: Iterable[str]) -> Mapping[str, str]:
        if not self.kafka_answers:
            raise UnreachableError("no broker answered")
        return dict.fromkeys(topics, self.topic_id)

    def orphan(
        self,
        epoch: int,
        *ranges: tuple[int, int, int, int],
        incarnation: int = 1,
        checked: bool = False,
        receiver: str = "r1",
        frames: int = 1,
    ) -> Block:
        """Durable in a segment of its own, not reported. ``ranges``: partition, from, until, token. ``frames``: so many times,
        as after a failed sync; the first one is returned."""
        number = self.sequence[receiver] = self.sequence.get(receiver, 0) + 1
        rows = [
            RangeRows(TopicPartition(TOPIC, p), [source_batch(filler(end - start, start))])
            for p, start, end, _ in ranges
        ]
        held = tuple(
            BlockRange(TOPIC, p, incarnation, start, end, end - start, 3, digest(r.batches), token)
            for (p, start, end, token), r in zip(ranges, rows, strict=True)
        )
        meta = BlockMeta(
            block_id(receiver, epoch, number), STREAM, receiver, epoch, number, held, sum(r.records for r in held), 1, "h1",
            checked=checked or msgspec.UNSET,
        )  # fmt: skip
        log = LogWriter(
            self.wal,
            lambda _: layout.block_segment(STREAM, receiver, epoch, number),
            SegmentIdentity(STREAM, receiver, epoch, 1),
            SegmentLimits(1 << 20, 1e9),
            lambda: 0.0,
            lambda: 7_000_000 + number,
        )
        payload = encode_block(rows, headers=False, compression="none")
        if self.sealed_by is not None:
            meta, payload = self.sealed_by.seal(meta, payload)
        pending, *_ = [log.append(FrameKind.BLOCK, encode_meta(meta), payload) for _ in range(frames)]
        log.sync()
        assert pending.handle is not None
        return Block(meta, pending.handle, local=False)

    def round(self, adopter: Adopter | None = None, until_step: str = "") -> float | None:
        """One round; ``until_step``: killed there."""
        steps = (adopter or self.adopter).round()
        answer: Any = None
        while True:
            try:
                wanted = advanced(steps, answer)
            except StopIteration as end:
                return end.value  # type: ignore[no-any-return]
            answer = None
            if isinstance(wanted, self.turned_away):
                answer = TurnedAwayError("down to the reserve")
            elif not isinstance(wanted, str):
                answer = self.say(wanted)
            elif wanted == until_step:
                steps.close()
                return None
            elif wanted in self.between:
                self.between.pop(wanted)()

    def faulted(self, low: int = 40, **changes: Any) -> tuple[int, int]:
        """Play a receiver of partition 0 that reported that Kafka begins at ``low``. Return its epoch and token."""
        epoch = self.register("r2", "i2")
        token = self.claim(epoch, receiver="r2").view.token
        position = self.state.partitions["t/0"].position
        values = {"kind": "out-of-range", "low": low, "high": 90, **changes}
        self.say(
            m.Fault(receiver_id="r2", epoch=epoch, topic=TOPIC, partition=0, token=token, position=position, **values)
        )
        self.beat(epoch, "r2")
        return epoch, token

    def dead_writer(self) -> tuple[int, int]:
        """A receiver that held partitions 0 and 1 and ended; a new process has its id. Returns its epoch and token."""
        epoch = self.register("r1", "i1")
        token = self.claim(epoch, 0).view.token
        self.claim(epoch, 1)
        self.register("r1", "i1-again")
        return epoch, token

    def adopted(self) -> list[BlockRange]:
        return [
            r
            for e in self.events
            if isinstance(e, ev.BlockAdded) and e.block.meta.receiver_id == ADOPTER
            for r in e.block.meta.ranges
        ]

    @property
    def partition(self) -> Any:
        return self.state.partitions["t/0"]


@pytest.mark.parametrize("on_gap", ["stop", "record"])
def test_what_an_orphan_holds_of_the_gap_is_taken_in_and_the_rest_is_the_gap(on_gap: str) -> None:
    """INV-2, whatever the policy: the gap begins where the orphan ends."""
    t = Stream(on_gap=on_gap)
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 25, token))
    t.faulted(low=40)
    assert t.round() is not None
    assert [(r.from_offset, r.until_offset, r.records) for r in t.adopted()] == [(0, 25, 25)]
    assert (t.partition.position, t.partition.fault, t.partition.owner) == (25, None, "")
    t.faulted(low=40)
    t.round()
    if on_gap == "record":
        assert [(g.gap.from_offset, g.gap.until_offset) for g in t.partition.gaps] == [(25, 40)]
    else:
        t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=25, until_offset=40))
    assert t.partition.position == 40


def test_the_adopted_block_can_be_read_and_holds_the_rows_that_lie_before_kafkas_first() -> None:
    """Cut by offset, counted and digested anew."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 60, token))
    t.faulted(low=40)
    t.round()
    (block,) = [b for b in t.state.blocks.values() if b.meta.receiver_id == ADOPTER]
    stored = block_of_frame(read_frame(t.wal, block.handle), block.handle.path)
    ((held, batches),) = decode_block(stored.payload, stored.meta, verify_digests=True)
    assert [row for b in batches for row in b.column("offset").to_pylist()] == list(range(40))
    assert (held.from_offset, held.until_offset, held.token) == (0, 40, t.partition.token)
    assert held.bytes > 0 and held.max_timestamp_ms >= 0
    assert t.partition.position == 40


def test_an_encrypted_orphan_waits_for_its_key_and_is_adopted_under_the_current_one() -> None:
    """No key is a why_not_accepted, never a gap."""
    t = Stream(on_gap="record", sealed_by=KeyRing({"old": b"o" * 32}))
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 60, token))
    t.faulted(low=40)
    for t.keys in (None, KeyRing({"new": b"n" * 32})):
        t.round()
        assert (t.partition.position, t.partition.gaps, t.adopted()) == (0, [], [])
    t.keys = KeyRing({"new": b"n" * 32, "old": b"o" * 32})
    t.round()
    (block,) = [b for b in t.state.blocks.values() if b.meta.receiver_id == ADOPTER]
    stored = block_of_frame(read_frame(t.wal, block.handle), block.handle.path)
    assert stored.meta.key_id == block.meta.key_id == "new"
    ((held, _),) = decode_block(t.keys.open(stored.meta, stored.payload, "x"), stored.meta, verify_digests=True)
    assert (held.from_offset, held.until_offset, t.partition.position) == (0, 40, 40)


def test_of_a_block_of_two_partitions_only_the_wanted_range_is_adopted() -> None:
    """INV-2: the other one may have been read again."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token), (1, 0, 9, token + 1))
    again = t.register("r3", "i3")
    t.take_in(again, t.claim(again, 1, receiver="r3").view.token, 5, partition=1, receiver="r3")
    t.faulted(low=40)
    t.round()
    assert [r.label for r in t.adopted()] == ["t/0[0, 40)"]
    assert t.state.partitions["t/1"].position == 5


def test_orphans_that_touch_are_adopted_in_one_go() -> None:
    t = Stream()
    epoch, token = t.dead_writer()
    for start in (0, 10, 20):
        t.orphan(epoch, (0, start, start + 10, token))
    t.faulted(low=30)
    t.round()
    assert [r.from_offset for r in t.adopted()] == [0, 10, 20]
    assert sum(isinstance(e, ev.ClaimGiven) and e.receiver_id == ADOPTER for e in t.events) == 1


def test_the_gap_that_is_shown_ends_where_the_next_orphan_begins() -> None:
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 20, 30, token))
    t.faulted(low=40)
    t.round()
    assert "accept-gap t/0 0 20`" in t.tracker.describe_fault(t.partition)
    with pytest.raises(RefusedError, match="exactly what"):
        t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=0, until_offset=40))
    t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=0, until_offset=20))
    t.faulted(low=40)
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(20, 30)]


def test_contiguous_orphans_of_an_ending_incarnation_are_adopted_first() -> None:
    """Records of the old incarnation are taken in under it; then the new one begins at the offset of the fault."""
    t = Stream(on_gap="record", topic_id="id-2")
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 70, token), checked=True)
    told: dict[str, Any] = {"kind": "recreated", "topic_id": "id-2", "low": 0}
    t.faulted(**told)
    t.round()
    assert (t.partition.incarnation.number, t.partition.position) == (1, 70)
    t.faulted(**told)
    t.round()
    assert (t.partition.incarnation.number, t.partition.incarnations[0].end, t.partition.position) == (2, 70, 0)


def test_truncated_log_is_adopted_in_the_old_incarnation_and_begins_a_new_one_where_it_was_cut() -> None:
    """What Kafka holds beyond the cut are other records: they come in under the new life, also below the adopted ones."""
    t = Stream(on_gap="record")
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 70, token))
    told: dict[str, Any] = {"kind": "truncated", "low": 0, "high": 60}
    first = t.register("r3", "i3")
    t.take_in(first, t.claim(first, receiver="r3").view.token, 65, receiver="r3")
    t.faulted(**told)
    t.beat(first, "r3")
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(65, 70)]
    t.faulted(**told)
    t.round()
    assert (t.partition.incarnation.number, t.partition.incarnations[0].end, t.partition.position) == (2, 70, 60)


def cut_back(on_gap: str, *held: tuple[int, int]) -> Stream:
    """r2 took records in up to 65; then the log was cut back to 60, as only the watermarks show. ``held``: orphans."""
    t = Stream(on_gap=on_gap)
    epoch, token = t.dead_writer()
    for begin, end in held:
        t.orphan(epoch, (0, begin, end, token))
    first = t.register("r3", "i3")
    t.take_in(first, t.claim(first, receiver="r3").view.token, 65, receiver="r3")
    t.beat(first, "r3")
    t.faulted(low=0, high=60)
    t.beat(first, "r3")
    return t


def orders(t: Stream, receiver: str = "r2") -> list[str]:
    return [c.kind for c in t.beat(t.state.receivers[receiver].epoch, receiver)]


def test_adoption_does_not_hide_that_the_incarnation_must_end() -> None:
    """INV-5: the log has grown past the adopted offsets meanwhile, so a receiver that claims there finds nothing amiss, and
    the new records between the cut and there would never be read."""
    t = cut_back("record", (65, 70))
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(65, 70)]
    assert not t.claim(t.state.receivers["r2"].epoch, receiver="r2").granted
    assert orders(t) == []
    t.round()
    assert (t.partition.incarnation.number, t.partition.incarnations[0].end, t.partition.position) == (2, 70, 60)
    assert (t.partition.fault, orders(t)) == (None, ["reclaim"])
    assert t.claim(t.state.receivers["r2"].epoch, receiver="r2").view.position == 60


def test_gap_before_an_orphan_does_not_hide_that_the_incarnation_must_end() -> None:
    t = cut_back("record", (68, 70))
    t.round()
    assert ([(g.gap.from_offset, g.gap.until_offset) for g in t.partition.gaps], t.partition.position) == (
        [(65, 68)],
        68,
    )
    assert (t.partition.fault.position, t.partition.fault.accepted_until) == (68, 60)
    assert not t.claim(t.state.receivers["r2"].epoch, receiver="r2").granted
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(68, 70)]
    t.round()
    assert (t.partition.incarnation.number, t.partition.incarnations[0].end, t.partition.position) == (2, 70, 60)
    assert orders(t) == ["reclaim"]


def test_with_stop_an_adopted_incarnation_ends_when_an_operator_accepts_it() -> None:
    """The answer to a receiver, and the status, say why it waits."""
    t = cut_back("stop", (65, 70))
    told = t.partition.token
    t.round()
    again = m.Fault(
        receiver_id="r2", epoch=t.state.receivers["r2"].epoch, topic=TOPIC, partition=0, token=told,
        kind="out-of-range", position=65, low=0, high=60,
    )  # fmt: skip
    answer = t.say(again)
    assert not answer.proceed
    assert "accept-gap t/0 70 60`" in answer.message and "a new incarnation begins at 60" in answer.message
    assert "forebay-adoption" not in answer.message
    with pytest.raises(RefusedError, match="only after the WAL has been searched"):
        t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=70, until_offset=60))
    t.round()
    assert not t.claim(t.state.receivers["r2"].epoch, receiver="r2").granted
    t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=70, until_offset=60))
    assert (t.partition.incarnation.number, t.partition.position, orders(t)) == (2, 60, ["reclaim"])


@pytest.mark.parametrize("step", ["report", "release", "none"])
def test_a_driver_that_starts_over_after_adoption_still_ends_the_life(step: str) -> None:
    """INV-7: from the events alone, wherever the older driver was killed."""
    t = cut_back("record", (65, 70))
    t.round(until_step=step)
    state = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(state, event)
    t.state = msgspec.msgpack.decode(msgspec.msgpack.encode(state), type=State)
    t.tracker = Tracker(t.state, numbered(1, 2), tracker_options(on_gap="record"))
    adopter = t.new_adopter("d2")
    for _ in range(3):
        if t.partition.incarnation.number == 1:
            epoch = t.register("r2", "i2")
            assert not t.claim(epoch, receiver="r2").granted
        t.beat(t.state.receivers["r2"].epoch, "r2")
        t.round(adopter)
    assert (t.partition.incarnation.number, t.partition.incarnations[0].end, t.partition.position) == (2, 70, 60)


def test_a_record_batch_that_fails_its_checksum_is_taken_from_an_orphan_as_far_as_it_reaches() -> None:
    """The end of the damaged batch is unknown."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 30, token))
    t.faulted(kind="corrupt", low=0)
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 30)]


def test_a_block_of_a_topic_created_again_that_does_not_say_it_was_checked_is_not_adopted() -> None:
    t = Stream(on_gap="record", topic_id="id-2")
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 70, token))
    t.faulted(kind="recreated", topic_id="id-2", low=0)
    t.round()
    assert not t.adopted()
    assert t.partition.incarnation.number == 2


def test_an_orphan_whose_bytes_are_damaged_is_left_and_another_one_taken() -> None:
    t = Stream()
    epoch, token = t.dead_writer()
    bad = t.orphan(epoch, (0, 0, 40, token))
    t.orphan(epoch, (0, 0, 15, token))
    whole = bytearray(t.wal.read(bad.handle.path))
    whole[bad.handle.offset + bad.handle.length - 1] ^= 0xFF
    t.wal.replace(bad.handle.path, bytes(whole))
    t.faulted(low=40)
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 15)]


@pytest.mark.parametrize(
    ("damaged", "frames", "partition", "told"),
    [
        ("segment header", 1, 0, True),
        ("segment header", 1, 1, True),
        ("block", 1, 0, True),
        ("block", 1, 1, True),  # nothing says any more whose it was
        ("block", 2, 0, True),
        ("block", 2, 1, False),
    ],
)
def test_damage_that_may_hide_an_orphan_is_logged_once_and_changes_no_decision(
    damaged: str, frames: int, partition: int, told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """INV-5: else nothing names what a gap's records may have lain in."""
    t = Stream(on_gap="record")
    epoch, token = t.dead_writer()
    orphan = t.orphan(epoch, (partition, 0, 40, token), frames=frames).handle
    offset = 0 if damaged == "segment header" else orphan.offset
    whole = bytearray(t.wal.read(orphan.path))
    whole[offset + HEADER_LENGTH + 2] ^= 0xFF
    t.wal.replace(orphan.path, bytes(whole))
    t.faulted(low=40)
    t.kafka_answers = False
    t.round()  # searches, and decides nothing
    t.kafka_answers = True
    t.round()
    warnings = [
        r.getMessage() for r in caplog.records if r.levelname == "WARNING" and "lost records skips it" in r.getMessage()
    ]
    assert len(warnings) == told
    assert all(words.startswith(f"{orphan.path} is damaged at byte {offset}: ") for words in warnings)
    readable = partition == 0 and (damaged == "segment header" or frames == 2)
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 40)] * readable
    assert bool(t.partition.gaps) != readable


def test_a_claim_that_came_since_the_search_makes_it_void() -> None:
    """The receiver with the newer token may have written since."""
    t = Stream(on_gap="record")
    epoch, _ = t.faulted()
    t.between["search"] = lambda: t.claim(epoch, receiver="r2")
    assert t.round() is not None
    assert not t.partition.gaps
    t.beat(epoch, "r2")
    t.round()
    assert t.partition.gaps


def test_a_report_that_comes_before_the_claim_is_not_repeated_from_the_wal() -> None:
    """INV-2: the owner's block was late, not lost."""
    t = Stream()
    epoch, token = t.faulted(low=40)
    late = t.orphan(epoch, (0, 0, 40, token), receiver="r2")
    t.between["claim"] = lambda: t.report(epoch, late, receiver="r2")
    t.round()
    assert not t.adopted()
    assert (t.partition.position, t.partition.owner) == (40, "")


def test_no_receiver_gets_a_partition_while_it_is_adopted() -> None:
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    again, _ = t.faulted(low=40)
    granted = []
    t.between["write"] = lambda: granted.append(t.claim(again, receiver="r2").granted)
    t.round()
    assert granted == [False]
    assert t.partition.position == 40
    (command,) = t.beat(again, "r2")
    assert (command.kind, command.partitions) == ("reclaim", (tp(),))
    assert t.claim(again, receiver="r2").granted


@pytest.mark.parametrize("step", ["search", "claim", "write", "report", "release"])
def test_killed_at_any_step_it_adopts_once_in_the_end(step: str) -> None:
    """INV-2: the next driver's adopter begins anew, from the orphan or from what its predecessor wrote."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)
    t.round(until_step=step)
    after = t.new_adopter("d2")
    t.round(after)
    assert t.partition.owner == ""
    if step != "release":  # else it had come in, and the trouble was over
        assert t.partition.position == 40
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 40)]


def test_adoption_is_tried_again_after_a_store_without_space_with_the_claim_released(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The frame that was not written carries a token that has ended: it is never written later."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)

    def full(*_: object) -> None:
        raise OutOfSpaceError("memory://: the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(LogWriter, "sync", full)
        t.round()
    assert t.partition.owner == ""
    assert "the disk is full" in t.tracker.describe_fault(t.partition)
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 40)]
    segments = t.wal.list(layout.block_folder(STREAM, ADOPTER))
    assert len({layout.parse_block(path).epoch for path in segments}) == len(segments)  # type: ignore[union-attr]


@pytest.mark.parametrize("turned_away", [m.RegisterRequest, m.ClaimRequest, m.ReportRequest])
def test_a_round_that_the_reserve_turns_away_begins_anew_when_there_is_room(turned_away: type) -> None:
    """INV-2: with the claim that it may hold ended, and what it may have written taken in like any orphan."""
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)
    t.turned_away = (turned_away,)
    for _ in range(2):
        assert t.round() == adoption.BLOCKED_SECONDS
        assert "down to the reserve" in t.tracker.describe_fault(t.partition)
    t.turned_away = ()
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 40)]
    assert (t.partition.position, t.partition.owner, t.partition.fault) == (40, "", None)
    segments = t.wal.list(layout.block_folder(STREAM, ADOPTER))
    assert len({layout.parse_block(path).epoch for path in segments}) == len(segments)  # type: ignore[union-attr]


def test_an_adopter_that_can_not_end_what_an_older_driver_claimed_tries_again() -> None:
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)
    t.round(until_step="write")
    after = t.new_adopter("d2")
    t.turned_away = (m.RegisterRequest,)
    assert t.round(after) == adoption.BLOCKED_SECONDS
    assert t.partition.owner == ADOPTER
    t.turned_away = ()
    t.round(after)
    assert (t.partition.position, t.partition.owner) == (40, "")


class Turnstile:
    """A decision loop that refuses requests that grow the journal for a number of times. ``ended``: it answers none."""

    def __init__(self, t: Stream, closed_for: int) -> None:
        self._t = t
        self._closed_for = closed_for
        self.ended = False

    def ask(self, request: Request) -> Any:
        if self.ended:
            raise UnreachableError("the driver is stopping")
        if isinstance(request, GROWING) and self._closed_for:
            self._closed_for -= 1
            raise TurnedAwayError("down to the reserve")
        return self._t.say(request)


def test_the_thread_goes_on_after_it_was_turned_away_and_ends_with_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it what is in trouble would wait for the driver's next start, without a word (INV-5)."""
    monkeypatch.setattr(adopter, "BLOCKED_SECONDS", 0.0)
    monkeypatch.setattr(adopter, "ROUND_SECONDS", 0.0)
    t = Stream()
    epoch, token = t.dead_writer()
    t.orphan(epoch, (0, 0, 40, token))
    t.faulted(low=40)
    turnstile, failed = Turnstile(t, closed_for=3), list[BaseException]()
    thread = AdoptionThread(t.adopter, turnstile, failed.append)  # type: ignore[arg-type]
    adopted = threading.Event()
    say = t.say

    def noticed(request: Request) -> Any:
        answer = say(request)
        if t.partition.position == 40 and not t.partition.owner:
            adopted.set()
        return answer

    monkeypatch.setattr(t, "say", noticed)
    thread.start()
    try:
        assert adopted.wait(30.0)
        turnstile.ended = True
        thread.note([ev.ClaimGiven("t", 0, "r1", 1, 1)])
        thread._thread.join(30.0)
        assert not thread._thread.is_alive()
    finally:
        thread.stop()
    assert failed == []


def test_nothing_is_decided_while_kafka_does_not_say_which_topic_it_is() -> None:
    t = Stream(on_gap="record", kafka_answers=False)
    t.faulted()
    t.round()
    assert not t.partition.gaps
    assert "no broker answered" in t.tracker.describe_fault(t.partition)
    t.kafka_answers = True
    t.round()
    assert t.partition.gaps


# ---- what may still land ---------------------------------------------------------------------------------------------


def first_name(epoch: int, sequence: int = 1, receiver: str = "r1") -> str:
    return layout.block_segment(STREAM, receiver, epoch, sequence)


def unbarred(t: Tracked) -> list[tuple[str, int, int]]:
    return [(ended.receiver_id, ended.epoch, ended.segments) for ended in t.state.unbarred]


@pytest.mark.parametrize("on_gap", ["stop", "record"])
def test_before_the_search_the_next_name_of_a_fenced_writer_is_taken_from_it(on_gap: str) -> None:
    """INV-2: else what it sent may land when the gap that holds it was recorded."""
    t = Stream(on_gap=on_gap, objects=True)
    epoch, _ = t.dead_writer()
    assert unbarred(t) == [("r1", epoch, 0)]
    t.faulted(low=40)
    t.round()
    with pytest.raises(FileExistsError):
        t.wal.put_new(first_name(epoch), b"what the writer had sent")
    assert unbarred(t) == []
    assert bool(t.partition.gaps) == (on_gap == "record")
    assert not t.wal.exists(first_name(t.state.receivers["r2"].epoch, receiver="r2"))


def test_what_landed_after_all_is_adopted_and_the_name_after_it_taken() -> None:
    t = Stream(on_gap="record", objects=True)
    epoch, token = t.dead_writer()
    t.faulted(low=40)
    t.between["bar"] = lambda: t.orphan(epoch, (0, 0, 40, token))
    t.round()
    assert [(r.from_offset, r.until_offset) for r in t.adopted()] == [(0, 40)]
    assert t.wal.exists(first_name(epoch, 2)) and not t.partition.gaps


def test_files_that_are_appended_to_have_no_barriers() -> None:
    t = Stream(on_gap="record")
    epoch, _ = t.dead_writer()
    t.faulted(low=40)
    t.round()
    assert t.partition.gaps
    assert not t.wal.exists(first_name(epoch))


@pytest.mark.parametrize("step", ["bar", "search"])
def test_killed_around_its_barriers_a_search_begins_with_them_again(step: str) -> None:
    """Before them, and where they are in the WAL and the journal does not know."""
    t = Stream(on_gap="record", objects=True)
    epoch, _ = t.dead_writer()
    t.faulted(low=40)
    before = msgspec.msgpack.encode(t.state)
    t.round(until_step=step)
    there = t.wal.list(layout.block_folder(STREAM, "r1"))
    assert there == ([] if step == "bar" else [first_name(epoch)])
    t.state = msgspec.msgpack.decode(before, type=State)
    t.tracker = Tracker(t.state, numbered(1, 2), tracker_options(on_gap="record"))
    t.beat(t.state.receivers["r2"].epoch, "r2")
    t.round(t.new_adopter("d2"))
    assert t.wal.list(layout.block_folder(STREAM, "r1")) == [first_name(epoch)]
    assert (unbarred(t), bool(t.partition.gaps)) == ([], True)


def test_no_search_begins_while_a_barrier_can_not_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    t = Stream(on_gap="record", objects=True)
    t.dead_writer()
    t.faulted(low=40)

    def away(*_: object) -> None:
        raise StoreError("memory://: no answer")

    with monkeypatch.context() as patched:
        patched.setattr(t.wal, "put_new", away)
        assert t.round() == adoption.BLOCKED_SECONDS
    assert "no answer" in t.tracker.describe_fault(t.partition)
    assert not t.partition.gaps
    t.round()
    assert t.partition.gaps


def test_a_barrier_that_clean_up_overtook_is_made_again_before_the_search() -> None:
    t = Stream(on_gap="record", objects=True)
    epoch, _ = t.dead_writer()
    t.faulted(low=40)
    put_new = t.wal.put_new

    def put_then_clean(path: str, data: bytes) -> None:
        put_new(path, data)
        if path == first_name(epoch):
            t.say(CleanSegment(SegmentFacts(path, True, False, ()), "r1", epoch, t.now_ms))

    t.wal.put_new = put_then_clean  # type: ignore[method-assign,assignment]
    assert t.round() == adoption.ROUND_SECONDS
    assert (unbarred(t), t.partition.gaps) == ([("r1", epoch, 1)], [])
    t.round()
    assert t.wal.exists(first_name(epoch, 2))
    assert (unbarred(t), bool(t.partition.gaps)) == ([], True)


def test_an_epoch_is_barred_only_if_it_ended_while_it_could_write() -> None:
    t = Stream()
    quiet = t.register("r1", "i1")
    t.register("r1", "i2")
    released = t.register("r3", "i1")
    token = t.claim(released, receiver="r3").view.token
    release = m.Release(topic=TOPIC, partition=0, token=token)
    t.say(m.ReleaseRequest(receiver_id="r3", epoch=released, releases=(release,)))
    t.register("r3", "i2")
    assert unbarred(t) == []
    fenced = t.register("r4", "i1")
    t.claim(fenced, receiver="r4")
    t.faulted()
    t.say(m.FenceRequest(topic=TOPIC, partition=0, receiver_id="r4"))
    assert unbarred(t) == [("r4", fenced, 0)]
    assert quiet < fenced


def test_the_journal_knows_behind_which_segments_of_an_epoch_nothing_was_deleted() -> None:
    """INV-7: those that held what was accepted, and those that clean-up deletes, before and after the epoch's end."""
    t = Stream()
    epoch = t.register("r1", "i1")
    token = t.claim(epoch).view.token
    t.take_in(epoch, token, 5, path=first_name(epoch, 2))
    t.take_in(epoch, token, 9, path=first_name(epoch, 4))
    t.register("r1", "i2")
    assert unbarred(t) == [("r1", epoch, 4)]
    t.say(CleanSegment(SegmentFacts(first_name(epoch, 3), True, False, ()), "r1", epoch, t.now_ms))
    assert unbarred(t) == [("r1", epoch, 4)]
    t.say(CleanSegment(SegmentFacts(first_name(epoch, 7), True, False, ()), "r1", epoch, t.now_ms))
    assert unbarred(t) == [("r1", epoch, 7)]
    replayed = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(replayed, event)
    assert replayed == t.state


def test_newest_epochs_without_a_barrier_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-6: also where barriers are never made."""
    monkeypatch.setattr(receivers, "UNBARRED_MAX", 2)
    t = Stream()
    epochs = []
    for number in range(4):
        epochs.append(t.register("r1", f"i{number}"))
        t.claim(epochs[-1])
    assert [epoch for _, epoch, _ in unbarred(t)] == epochs[1:3]


# ---- when a writer is settled ----------------------------------------------------------------------------------------


def waits_for(t: Tracked) -> tuple[str, ...]:
    (found,) = t.searches()
    return found.waits_for


def test_a_gap_waits_for_the_older_writer_until_it_says_that_it_holds_nothing() -> None:
    """Not for its silence, and not for a heartbeat that names its token; the gap is refused to a person meanwhile."""
    t = Stream()
    old = t.register("r1", "i1")
    token = t.claim(old).view.token
    t.faulted()
    assert waits_for(t) == ("r1",)
    with pytest.raises(RefusedError, match=r"The search waits until receiver r1 .*--fence r1`"):
        t.say(m.AcceptGapRequest(topic=TOPIC, partition=0, from_offset=0, until_offset=40))
    t.beat(old, holding=(token,))
    assert waits_for(t) == ("r1",)
    t.beat(old)
    assert waits_for(t) == ()


def test_a_heartbeat_from_before_the_claim_settles_nothing_however_late_it_comes() -> None:
    """Trace: granted, the answer on its way; an older heartbeat, which names nothing, arrives; then the receiver writes."""
    t = Stream()
    old = t.register("r1", "i1")
    before = t.claims
    t.claim(old)
    t.beat(old, claims_done=before)
    t.faulted()
    t.beat(old, claims_done=before)
    assert waits_for(t) == ("r1",)


def test_a_claim_whose_answer_was_lost_is_settled_when_the_receiver_has_given_it_up() -> None:
    t = Stream()
    old = t.register("r1", "i1")
    t.claim(old)
    number = t.claims
    t.faulted()
    t.beat(old, claims_done=number - 1)
    assert waits_for(t) == ("r1",)
    t.beat(old, claims_done=number)
    assert waits_for(t) == ()


def test_a_heartbeat_of_an_older_release_settles_nothing() -> None:
    t = Stream()
    old = t.register("r1", "i1")
    t.claim(old)
    t.faulted()
    t.beat(old, claims_done=-1)
    assert waits_for(t) == ("r1",)


@pytest.mark.parametrize("how", ["registered again", "released", "fenced"])
def test_a_writer_is_settled_by_the_end_of_its_epoch_or_its_token(how: str) -> None:
    t = Stream()
    old = t.register("r1", "i1")
    token = t.claim(old).view.token
    if how == "released":
        release = m.Release(topic=TOPIC, partition=0, token=token)
        t.say(m.ReleaseRequest(receiver_id="r1", epoch=old, releases=(release,)))
    t.faulted()
    if how == "registered again":
        t.register("r1", "i1-again")
    elif how == "fenced":
        t.say(m.FenceRequest(topic=TOPIC, partition=0, receiver_id="r1"))
    assert waits_for(t) == ()


def test_fenced_receiver_is_refused_and_returns_only_as_a_new_process() -> None:
    """INV-4."""
    t = Stream()
    old = t.register("r1", "i1")
    t.claim(old)
    t.faulted()
    t.say(m.FenceRequest(topic=TOPIC, partition=0, receiver_id="r1"))
    for request in (lambda: t.beat(old), lambda: t.register("r1", "i1"), lambda: t.look(old)):
        with pytest.raises(FencedError):
            request()
    assert t.register("r1", "i1-again") > old


def test_only_a_receiver_that_is_waited_for_can_be_fenced() -> None:
    t = Stream()
    bystander = t.register("r3", "i3")
    t.faulted()
    for name in ("r3", "r2", "nobody", ADOPTER):
        with pytest.raises(RefusedError, match="does not wait for"):
            t.say(m.FenceRequest(topic=TOPIC, partition=0, receiver_id=name))
    assert t.look(bystander, receiver="r3").known


def test_a_receiver_that_takes_in_under_an_outdated_token_is_ordered_to_claim_again_once() -> None:
    """Without records it would never have a report refused, and be waited for without end."""
    t = Stream()
    old = t.register("r1", "i1")
    token = t.claim(old).view.token
    t.faulted()
    t.beat(old, holding=(token,))
    t.say(Searches())
    t.say(Searches())
    (command,) = t.beat(old, holding=(token,))
    assert (command.kind, command.partitions) == ("reclaim", (tp(),))


def test_the_word_of_an_older_writer_is_journalled_and_that_of_the_owner_asked_for_anew() -> None:
    """INV-7: the older one may have ended since, in good order, and would be waited for without end after a driver's
    restart; the owner goes on telling."""
    t = Stream()
    old = t.register("r1", "i1")
    t.claim(old)
    t.faulted()
    t.beat(old)
    assert waits_for(t) == ()
    t.tracker.receivers.latest.clear()
    assert waits_for(t) == ("r2",)
    replayed = State(stream=STREAM, timeline=1)
    for event in t.events:
        apply(replayed, event)
    assert replayed == t.state


def test_a_release_that_comes_after_the_next_claim_still_settles() -> None:
    t = Stream()
    old = t.register("r1", "i1")
    token = t.claim(old).view.token
    t.faulted()
    release = m.Release(topic=TOPIC, partition=0, token=token)
    t.say(m.ReleaseRequest(receiver_id="r1", epoch=old, releases=(release,)))
    assert waits_for(t) == ()
    assert t.partition.owner == "r2"


def test_a_driver_that_opens_the_journal_settles_by_the_first_heartbeat() -> None:
    t = Stream()
    old = t.register("r1", "i1")
    t.claim(old)
    t.faulted()
    after = Tracker(t.state, t.tracker.driver_epoch + 1, tracker_options())
    t.tracker = after
    t.beat(old)
    assert [e.receiver_id for e in t.events if isinstance(e, ev.WriterSettled)] == ["r1"]


def test_an_older_claim_of_one_epoch_is_settled_with_its_newest() -> None:
    """One entry for each epoch, so that the state stays small however often a partition is claimed."""
    t = Stream()
    old = t.register("r1", "i1")
    first = t.claim(old).view.token
    t.claim(old)
    t.faulted()
    assert len(t.partition.writers) == 2
    t.beat(old, holding=(first,))
    assert waits_for(t) == ("r1",)
