"""``recover`` and ``recover --apply``: damaged blocks are restored from any source that has them, the rest is listed exactly."""

from __future__ import annotations

import base64
import hashlib
import itertools
from pathlib import Path

import msgspec
import pytest

from deploy.commands.recovery.execution import apply_plan, make_plan
from deploy.commands.recovery.surroundings import Surroundings
from deploy.commands.wal.verification import verified
from driver.journal.events import CleanupIntended
from driver.journal.leadership.lease import LeaseHeld, LeaseKeeper
from driver.journal.log import opening as journal
from driver.journal.transitions import apply
from forebay.model.errors import FencedError, ForebayError, StoreError, UsageError
from forebay.model.payload import decode_block
from forebay.model.values import Block
from forebay.process import failpoints
from recovery.copies import WalCopies
from recovery.examination import UnnamedFrame
from recovery.plan import KafkaView, Loss, RecoveryPlan, sentences
from tests.support.state.forged import forged
from tests.support.state.logged import Logged
from tests.support.state.tracked import STREAM
from wal.blocks import block_of_frame
from wal.reading import BlockReference, check_same
from wal.segments.scan import read_frame


class Alone(Surroundings):
    """No agents and no driver; Kafka has what the test's own Kafka has."""

    def __init__(self, logged: Logged, unreachable: str = "") -> None:
        super().__init__(logged.settings, kafka=True)
        self._unreachable = unreachable

    def find_agents(self) -> None:
        pass

    def kafka(self, state: object) -> KafkaView:
        return KafkaView(self._unreachable)


def planned(logged: Logged, unreachable: str = "") -> RecoveryPlan:
    return make_plan(logged.settings, logged.journal, logged.wal, Alone(logged, unreachable), logged.kafka.read_ranges)


def applied(logged: Logged, unreachable: str = "") -> RecoveryPlan:
    return apply_plan(logged.settings, logged.journal, logged.wal, Alone(logged, unreachable), logged.kafka.read_ranges)


def served(logged: Logged, block: Block) -> Block:
    """Return the block as the journal names it now, if the WAL has the records that were taken in; raise otherwise."""
    named = logged.state().blocks[block.id]
    stored = block_of_frame(read_frame(logged.wal, named.handle), named.handle.path)
    check_same(BlockReference.of(named), stored, named.handle.path)
    assert stored.meta == block.meta
    decode_block(stored.payload, stored.meta, verify_digests=True)
    return named


@pytest.fixture(params=[False, True], ids=["file", "objects"])
def logged(request: pytest.FixtureRequest, tmp_path: Path) -> Logged:
    return Logged(tmp_path, objects=request.param)


def test_a_clean_stream_needs_nothing(logged: Logged) -> None:
    logged.receiver("r1")
    logged.take_in("r1", {0: 5, 1: 3}, local=True)
    logged.keep()
    assert not planned(logged).open
    before = logged.segments()
    assert not applied(logged).open
    assert logged.segments() == before


def test_a_segment_that_a_killed_clean_up_has_not_deleted_yet_is_no_finding(logged: Logged) -> None:
    """INV-8: the journal has the intent and the segment still exists, as the newest of its writer or not."""
    logged.receiver("r1")
    first = logged.take_in("r1", {0: 5})
    logged.finish_batch()
    logged.roll("r1")
    logged.take_in("r1", {0: 3})
    logged.receiver("r2")
    second = logged.take_in("r2", {1: 3})
    logged.finish_batch()
    number = logged.tracked.state.cleanup_count + 1
    intent = CleanupIntended(number=number, segments=(first.handle.path, second.handle.path))
    apply(logged.tracked.state, intent)
    logged.tracked.events.append(intent)
    logged.keep()
    before = logged.segments()
    assert verified(logged.wal, STREAM, logged.journal).findings == ()
    assert not planned(logged).open
    assert not applied(logged).open
    assert logged.segments() == before


def test_damaged_block_is_restored_from_its_local_copy(logged: Logged) -> None:
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5, 1: 3}, local=True)
    logged.take_in("r1", {0: 2}, local=True)
    logged.receiver("r1")
    logged.keep()
    logged.damage(block)
    logged.kafka.gone |= {(0, 1)}
    plan = planned(logged)
    assert [(r.block_id, r.source, r.exact, r.done) for r in plan.recoveries] == [(block.id, "local copy", True, False)]
    assert plan.open and plan.losses == ()
    plan = applied(logged)
    assert [(r.block_id, r.done) for r in plan.recoveries] == [(block.id, True)]
    assert not plan.open
    named = served(logged, block)
    assert named.handle.checksum == block.handle.checksum and named.local
    assert f"/blocks/forebay-repair/{plan.timeline << 40 | 2:016x}/" in named.handle.path
    assert not planned(logged).open
    assert verified(logged.wal, STREAM, logged.journal).findings == ()


def test_records_are_restored_from_kafka_without_a_copy(logged: Logged) -> None:
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5, 1: 3}, local=True)
    logged.local_file(block).unlink()
    logged.receiver("r1")
    logged.keep()
    logged.damage(block)
    plan = applied(logged)
    assert [(r.block_id, r.source, r.exact) for r in plan.recoveries] == [(block.id, "Kafka", False)]
    named = served(logged, block)
    assert not named.local  # its local copy, if it comes back, holds other bytes
    assert not plan.open


def test_other_records_at_the_same_offsets_are_not_taken_from_kafka(logged: Logged) -> None:
    """INV-5: count and digest are those of the journal, or it is a loss."""
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    logged.receiver("r1")
    logged.keep()
    logged.damage(block)
    logged.kafka.other_values = True
    (loss,) = applied(logged).losses
    assert (
        "Kafka: its records of t/0[0, 5) are not the records that were taken in (count or digest differs)"
        in loss.reasons
    )


def test_block_without_a_source_is_listed_with_ranges_and_command(logged: Logged) -> None:
    """INV-5."""
    logged.receiver("r1")
    lost = logged.take_in("r1", {0: 5, 1: 3})
    kept = logged.take_in("r1", {0: 2})
    batch = logged.tracked.batch()
    logged.receiver("r1")
    logged.keep()
    logged.damage(lost)
    logged.kafka.gone |= {(1, 2)}
    plan = applied(logged)
    (loss,) = plan.losses
    assert loss.ranges == ("t/0[0, 5)", "t/1[0, 3)")
    assert loss.command == f"forebay recover --accept-loss {batch} 't/0[0, 5)' 't/1[0, 3)' --apply"
    assert "Kafka no longer holds t/1[0, 3)" in loss.reasons[-1]
    assert any(loss.command in message for message in sentences(plan))
    served(logged, kept)
    again = applied(logged)
    assert [x.block_id for x in again.losses] == [lost.id] and again.recoveries == ()


def test_unreachable_kafka_is_reported_and_not_fatal(logged: Logged) -> None:
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    logged.receiver("r1")
    logged.keep()
    logged.damage(block)
    plan = applied(logged, unreachable="no broker answered")
    assert "Kafka: no broker answered" in plan.losses[0].reasons
    assert [r.source for r in applied(logged).recoveries] == ["Kafka"]
    served(logged, block)


def test_damaged_segment_is_set_aside_after_its_whole_blocks_are_written_again(logged: Logged) -> None:
    """Also an orphan that may still be adopted is kept: nothing intact is lost."""
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    orphan = logged.orphan("r1", {0: 4})
    logged.roll("r1")
    logged.receiver("r1")
    logged.keep()
    path = block.handle.path
    logged.flip(path, 30)  # the segment's own header
    damaged = logged.wal.read(path)
    plan = applied(logged)
    (found,) = plan.damaged
    assert (found.path, found.done) == (path, True)
    assert logged.wal.read(found.aside) == damaged and not logged.wal.exists(path)
    served(logged, block)
    orphans = [p for p in planned(logged).places if p.decision == "orphan-keep"]
    assert orphan.id in [p.block_id for p in orphans]
    assert verified(logged.wal, STREAM, logged.journal).findings == ()


def test_orphan_segment_set_aside_counts_as_a_segment_of_its_epoch(logged: Logged) -> None:
    """INV-4: otherwise a barrier takes its name, and the fenced writer's object appears under the next one."""
    epoch = logged.receiver("r1")
    kept = logged.take_in("r1", {0: 5})
    logged.roll("r1")
    path = logged.orphan("r1", {0: 4}).handle.path
    logged.receiver("r1")
    logged.keep()
    logged.flip(path, 30)
    (found,) = applied(logged).damaged
    assert (found.path, found.done) == (path, True) and not logged.wal.exists(path)
    state = logged.state()
    counted = {ended.epoch: ended.segments for ended in state.unbarred}
    assert counted[epoch] == 2 and not state.cleanups and not state.cleaning_segments
    served(logged, kept)
    assert not planned(logged).damaged


def test_interrupted_deletion_of_orphan_segment_leaves_its_intent(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-8: the intent is journalled before; the next call finds nothing to do."""
    logged.receiver("r1")
    path = logged.orphan("r1", {0: 4}).handle.path
    logged.receiver("r1")
    logged.keep()
    logged.flip(path, 30)

    class CutShort(Exception):
        pass

    def cut(name: str, *_: object) -> bool:
        if name == "recovery.after-delete":
            raise CutShort
        return False

    with monkeypatch.context() as patched:
        patched.setattr("forebay.process.failpoints.hit", cut)
        with pytest.raises(CutShort):
            applied(logged)
    assert [cleanup.segments for cleanup in logged.state().cleanups.values()] == [(path,)]
    assert not applied(logged).damaged


def test_a_segment_that_its_receiver_may_still_write_stays_where_it_is(tmp_path: Path) -> None:
    """Only blocks that the journal names are written again: the receiver still has the file open."""
    logged = Logged(tmp_path)
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5}, local=True)
    logged.keep()
    logged.damage(block)
    plan = applied(logged)
    (found,) = plan.damaged
    assert "may still write to it" in found.kept and plan.open
    assert logged.wal.exists(block.handle.path)
    later = logged.take_in("r1", {0: 5})  # goes on in the same file
    assert later.handle.path == block.handle.path
    logged.keep()
    served(logged, block)
    served(logged, later)
    logged.receiver("r1")
    logged.keep()
    plan = applied(logged)
    assert not plan.open and not logged.wal.exists(block.handle.path)
    served(logged, later)


def test_blocks_of_swapped_segments_are_restored_without_a_copy(logged: Logged) -> None:
    logged.receiver("r1")
    one = logged.take_in("r1", {0: 5})
    logged.roll("r1")
    other = logged.take_in("r1", {0: 7})
    logged.receiver("r1")
    logged.keep()
    paths = (one.handle.path, other.handle.path)
    first, second = (logged.wal.read(path) for path in paths)
    logged.overwrite(paths[0], second)
    logged.overwrite(paths[1], first)
    logged.kafka.gone |= {(0, 0), (0, 6)}
    plan = applied(logged)
    assert {r.source for r in plan.recoveries} == {"WAL"} and not plan.open
    served(logged, one)
    served(logged, other)


def test_a_block_that_only_a_replay_would_need_is_forgotten_with_its_segment(logged: Logged) -> None:
    """Otherwise the journal would name it forever: clean-up never finds a deleted segment (INV-8)."""
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    logged.finish_batch()
    logged.receiver("r1")
    logged.keep()
    logged.damage(block)
    logged.kafka.gone |= {(0, 0)}
    plan = planned(logged)
    assert plan.forgotten == (block.handle.path,) and block.id in logged.state().blocks
    plan = applied(logged)
    assert [x.block_id for x in plan.losses] == [block.id]
    assert "only a replay would need it" in sentences(plan)[0]
    assert block.id not in logged.state().blocks
    assert not planned(logged).open


def test_recovery_refuses_while_a_driver_runs_and_says_how_to_stop_it(logged: Logged) -> None:
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5}, local=True)
    logged.keep()
    logged.damage(block)
    epoch = 1 << 40 | 1
    lease = LeaseKeeper(logged.journal, STREAM, epoch, owner="driver", url="http://d", duration_seconds=0.3)
    lease.start()
    try:
        with pytest.raises(LeaseHeld, match="with SIGTERM, then repeat this command"):
            applied(logged)
    finally:
        lease.stop()
    assert [
        path for path in logged.journal.list(f"{STREAM}/epochs") if path.endswith("2")
    ] == []  # no driver was fenced


def test_without_a_journal_nothing_is_done(logged: Logged) -> None:
    with pytest.raises(UsageError, match="holds no journal"):
        applied(logged)
    assert logged.journal.list("") == []


def test_another_frame_of_the_block_is_used_if_the_store_does_not_return_one(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    copies = [
        UnnamedFrame(block.id, msgspec.structs.replace(block.handle, path=path))
        for path in ("s/away", block.handle.path)
    ]
    read = logged.wal.read

    def away(path: str, offset: int = 0, length: int | None = None) -> bytes:
        if path == "s/away":
            raise StoreError("the store does not answer")
        return read(path, offset, length)

    monkeypatch.setattr(logged.wal, "read", away)
    found = WalCopies(logged.wal, copies).read(block)
    assert found is not None and bytes(found.payload) == logged.payloads[block.id]
    with pytest.raises(ForebayError, match="does not answer"):
        WalCopies(logged.wal, copies[:1]).read(block)


def test_second_call_lists_only_losses(logged: Logged) -> None:
    logged.receiver("r1")
    blocks = [logged.take_in("r1", {0: 5}, local=number % 2 == 0) for number in range(4)]
    logged.receiver("r1")
    logged.keep()
    for block in blocks:
        logged.damage(block)
    logged.kafka.gone |= {(0, block.meta.ranges[0].from_offset) for block in blocks}
    first, second = applied(logged), applied(logged)
    assert [r.block_id for r in first.recoveries] == [blocks[0].id, blocks[2].id]
    assert [loss_id(x) for x in first.losses] == [loss_id(x) for x in second.losses] == [blocks[1].id, blocks[3].id]
    assert second.recoveries == () and second.damaged == ()


def loss_id(loss: Loss) -> str:
    return loss.block_id


def test_records_from_kafka_are_encrypted_with_the_current_key(logged: Logged, tmp_path: Path) -> None:
    """The journal knows the block as it was before: without a key, or with an older one."""
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    logged.receiver("r1")
    logged.keep()
    logged.damage(block)
    keys = tmp_path / "keys"
    keys.touch(mode=0o600)
    keys.write_text(f"new {base64.b64encode(bytes(32)).decode()}\n")
    logged.settings = msgspec.structs.replace(
        logged.settings, wal=msgspec.structs.replace(logged.settings.wal, key_file=str(keys))
    )
    assert [r.source for r in applied(logged).recoveries] == ["Kafka"]
    named = logged.state().blocks[block.id]
    frame = read_frame(logged.wal, named.handle)
    assert block_of_frame(frame, named.handle.path).meta.key_id == "new"
    assert b"value 0 of 0" not in bytes(frame.payload)
    assert named.meta.sha256 == hashlib.sha256(frame.payload).digest() != block.meta.sha256
    plan = planned(logged)
    assert not plan.open and plan.counts == {"whole": 1}


def test_a_forged_block_of_the_wal_is_found_and_written_again(logged: Logged) -> None:
    """Its checksums match; the SHA-256 in the journal does not."""
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5, 1: 3}, local=True)
    logged.take_in("r1", {0: 2})
    logged.receiver("r1")
    logged.keep()
    payload = logged.payloads[block.id]
    data, value = logged.wal.read(block.handle.path), logged.kafka.rows(0, 0, 1)[0].value
    assert value is not None and payload in data
    logged.overwrite(block.handle.path, data.replace(payload, forged(payload, value, bytes(len(value)))))
    assert len(verified(logged.wal, STREAM, logged.journal).findings) == 1
    plan = applied(logged)
    assert [(r.block_id, r.source, r.exact, r.done) for r in plan.recoveries] == [(block.id, "local copy", True, True)]
    served(logged, block)
    assert verified(logged.wal, STREAM, logged.journal).findings == ()


def test_forged_block_without_another_source_is_a_loss(logged: Logged) -> None:
    """Whole blocks of a damaged segment are written again, and the journal must not get the forgery's digest."""
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5, 1: 3})
    other = logged.take_in("r1", {0: 2})
    logged.receiver("r1")
    logged.keep()
    payload = logged.payloads[block.id]
    data, value = logged.wal.read(block.handle.path), logged.kafka.rows(0, 0, 1)[0].value
    assert value is not None and payload in data
    logged.overwrite(block.handle.path, data.replace(payload, forged(payload, value, bytes(len(value)))))
    logged.kafka.gone |= {(0, 1)}
    plan = applied(logged)
    assert [loss.block_id for loss in plan.losses] == [block.id]
    assert logged.state().blocks[block.id].meta.sha256 == block.meta.sha256
    served(logged, other)
    for path in logged.segments():
        if "/forebay-repair/" in path:
            assert block.id.encode() not in logged.wal.read(path)


def taken_over_at(place: str, logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a driver open the journal when a recovery is at the failpoint ``place``."""

    def hit(name: str, kinds: object = ()) -> bool:
        if name == place:
            new_uid = itertools.count(1).__next__
            journal.lead(
                logged.journal, STREAM, "driver", 1, lambda: 0.0, new_uid, segment_bytes=1 << 20, wal=logged.wal
            )
        return False

    monkeypatch.setattr(failpoints, "hit", hit)


def test_recovery_that_a_driver_takes_over_tells_so_after_its_events(
    logged: Logged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """INV-4: the driver that leads now does not know the new place of the block."""
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    logged.keep()
    logged.flip(block.handle.path, block.handle.offset + block.handle.length - 1)
    taken_over_at("recovery.after-write", logged, monkeypatch)
    with pytest.raises(FencedError):
        applied(logged)
    assert logged.state().blocks[block.id].handle == block.handle


def test_recovery_that_a_driver_takes_over_deletes_nothing(logged: Logged, monkeypatch: pytest.MonkeyPatch) -> None:
    """INV-8: the driver that leads now may still read what else is in the segment of a lost block."""
    logged.receiver("r1")
    block = logged.take_in("r1", {0: 5})
    logged.receiver("r1")
    logged.keep()
    logged.damage(block)
    logged.kafka.gone |= {(0, 2)}
    taken_over_at("recovery.after-aside", logged, monkeypatch)
    with pytest.raises(FencedError):
        applied(logged)
    assert logged.wal.exists(block.handle.path)
