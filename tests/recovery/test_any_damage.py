"""Any damage to a WAL of many blocks: bytes turned, segments cut, removed and swapped, several of these, drawn from a seed.

``wal verify`` finds all of it; ``recover --apply`` brings back everything that a copy or Kafka still has and lists exactly the
rest; nothing intact is lost, no damaged byte is served, and an accepted tail is never taken for torn. What is expected is
worked out from the bytes alone, by none of the code under test.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deploy.commands.wal.verification import verified
from forebay.model.values import Block, Handle
from tests.recovery.test_recovering import applied, planned, served
from tests.support.state.logged import Logged
from tests.support.state.tracked import STREAM

SEEDS = range(int(os.environ.get("FOREBAY_RECOVERY_SEEDS", "25")))
HEADER = 64


@dataclass
class Log:
    """A WAL as it was written. ``extents``: the bytes of each segment that are not padding."""

    logged: Logged
    before: dict[str, bytes]
    extents: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    frames: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # from header to end of payload

    def __post_init__(self) -> None:
        for path, data in self.before.items():
            at = 0
            while at < len(data):
                metadata = int.from_bytes(data[at + 36 : at + 40], "little")
                payload = int.from_bytes(data[at + 40 : at + 48], "little")
                begin = at + HEADER + -(-metadata // 64) * 64
                self.extents.setdefault(path, []).append((at, at + HEADER + metadata))
                self.extents[path].append((begin, begin + payload))
                self.frames.setdefault(path, []).append((at, begin + payload))
                at = -(-(begin + payload) // 64) * 64

    def same(self, data: bytes, path: str, start: int, until: int) -> bool:
        """Return whether ``data`` still has all bytes of ``[start, until)`` of ``path`` that are not padding."""
        return all(
            data[a:b] == self.before[path][a:b] and len(data) >= b
            for a, b in self.extents[path]
            if a >= start and b <= until
        )

    def whole(self, handle: Handle, path: str, data: bytes) -> bool:
        """Return whether a reader may take the frame that was written at ``handle`` from ``data``, which is at ``path`` now."""
        if not self.same(data, handle.path, handle.offset, handle.offset + handle.length):
            return False
        header = self.frames[handle.path][0]
        return path == handle.path or not self.same(data, handle.path, *header)


def write(root: Path, draw: random.Random, objects: bool) -> Log:
    logged = Logged(root, objects=objects)
    receivers = ["r1", "r2", "r3"]
    for name in receivers:
        logged.receiver(name)
    for _ in range(draw.randint(12, 24)):
        name = draw.choice(receivers)
        step = draw.random()
        if step < 0.08:
            logged.receiver(name)
        elif step < 0.3:
            logged.roll(name)
        counts = {p: draw.randint(1, 6) for p in draw.sample(range(3), draw.randint(1, 3))}
        if draw.random() < 0.15:
            logged.orphan(name, counts, local=draw.random() < 0.3)
        else:
            logged.take_in(name, counts, local=draw.random() < 0.5)
        state = logged.tracked.state
        if state.waiting and draw.random() < 0.12 and len(state.unfinished()) < 4:
            if state.unfinished() or draw.random() < 0.3:
                logged.tracked.batch()
            else:
                logged.finish_batch()
    for name in receivers:
        if draw.random() < 0.7:
            logged.receiver(name)  # fences the older epoch: all its segments are closed
    logged.keep()
    return Log(logged, logged.segments())


def break_it(log: Log, draw: random.Random) -> list[str]:
    """Damage the WAL several times, one after the other; return a description of what was done."""
    logged, changes = log.logged, []
    for _ in range(draw.randint(1, 4)):
        there = {path: data for path, data in logged.segments().items() if data}
        if not there:
            break
        path = draw.choice(sorted(there))
        fault = draw.choice(["flip", "flip", "flip", "cut", "remove", "swap"])
        if fault == "flip":
            spans = [(a, min(b, len(there[path]))) for a, b in log.extents[path] if a < min(b, len(there[path]))]
            if not spans:
                continue
            at = draw.randrange(*draw.choice(spans))
            logged.flip(path, at, 1 << draw.randrange(8))
            changes.append(f"flipped {path} at {at}")
        elif fault == "cut":
            at = draw.randrange(len(there[path]))
            logged.overwrite(path, there[path][:at])
            changes.append(f"cut {path} to {at} of {len(there[path])}")
        elif fault == "remove":
            logged.wal.delete(path)
            changes.append(f"removed {path}")
        else:
            other = draw.choice(sorted(there))
            logged.overwrite(path, there[other])
            logged.overwrite(other, there[path])
            changes.append(f"swapped {path} and {other}")
    for block in logged.accepted.values():
        if block.local and draw.random() < 0.3:
            file = logged.local_file(block)
            if draw.random() < 0.5:
                file.unlink()
            else:
                data = bytearray(file.read_bytes())
                data[draw.choice([3, len(data) // 2])] ^= 1
                file.write_bytes(data)
    for partition in range(3):
        end = logged.tracked.state.partitions[f"t/{partition}"].position
        logged.kafka.gone |= {(partition, n) for n in range(draw.randint(0, end))}  # retention: from the beginning on
    return changes


def local_copy_is_whole(logged: Logged, block: Block) -> bool:
    try:
        data = logged.local_file(block).read_bytes()
    except FileNotFoundError:
        return False
    metadata = int.from_bytes(data[36:40], "little")
    begin = HEADER + -(-metadata // 64) * 64
    return (
        data[:8] == b"\x89FBY\r\n\x1a\n"
        and data[begin : begin + len(logged.payloads[block.id])] == logged.payloads[block.id]
    )


@pytest.mark.parametrize("objects", [False, True], ids=["file", "objects"])
@pytest.mark.parametrize("seed", SEEDS)
def test_all_damage_is_found_and_every_block_with_a_source_restored(seed: int, objects: bool, tmp_path: Path) -> None:
    """INV-1, INV-2, INV-5, INV-8."""
    draw = random.Random(f"{seed} {objects}")
    log = write(tmp_path, draw, objects)
    logged = log.logged
    changes = break_it(log, draw)
    after = logged.segments()
    context = f"seed {seed}: {'; '.join(changes)}"

    broken = {
        b.id for b in logged.accepted.values() if not log.whole(b.handle, b.handle.path, after.get(b.handle.path, b""))
    }
    found = verified(logged.wal, STREAM, logged.journal)
    named = {p.block_id for p in found.findings if p.block_id in logged.accepted and _is_named(p, logged)}
    assert named == broken, context
    for path in log.before:
        now = after.get(path)
        if now is None or all(log.same(now, path, a, b) for a, b in log.frames[path]):
            continue
        at_a_boundary = len(now) in {0, *(a for a, _ in log.frames[path])} and log.same(now, path, 0, len(now))
        torn = [p for p in _planned_torn(logged) if p == path]
        assert at_a_boundary or torn or any(p.path == path for p in found.findings), f"{context}: {path}"

    has_copy = {
        b
        for b in broken
        if (local_copy_is_whole(logged, logged.accepted[b]) and logged.accepted[b].local)
        or any(_in_any_file(log, logged.accepted[b].handle, data) for data in after.values())
    }
    in_kafka = {b for b in broken if all(logged.kafka.holds(r) for r in logged.accepted[b].meta.ranges)}
    state = logged.state()
    positions = {key: p.position for key, p in state.partitions.items()}
    plan = planned(logged)
    assert {r.block_id for r in plan.recoveries} == has_copy | in_kafka, context
    assert {r.block_id for r in plan.recoveries if r.exact} == has_copy, context
    done = applied(logged)
    assert {r.block_id for r in done.recoveries} == has_copy | in_kafka, context
    assert {x.block_id for x in done.losses} == broken - has_copy - in_kafka, context
    for loss in done.losses:
        assert loss.ranges == tuple(r.label for r in logged.accepted[loss.block_id].meta.ranges)

    state = logged.state()
    assert {key: p.position for key, p in state.partitions.items()} == positions
    lost = {x.block_id for x in done.losses}
    for block in logged.accepted.values():
        if block.id not in lost:
            served(logged, block)
    for block_id in lost & state.blocks.keys():
        with pytest.raises(Exception, match=r"damaged|not there|No such|flights"):
            served(logged, logged.accepted[block_id])
    orphans = [b for b in logged.orphans.values() if b.handle.path in after]
    whole_orphans = {b.id for b in orphans if log.whole(b.handle, b.handle.path, after[b.handle.path])}
    unsettled = {
        b for b in whole_orphans if any(r.until_offset > positions[str(r.tp)] for r in logged.orphans[b].meta.ranges)
    }
    again = planned(logged)
    assert unsettled <= {p.block_id for p in again.places if p.decision.startswith("orphan")}, context
    assert {x.block_id for x in again.losses} == lost & state.blocks.keys(), context
    assert not again.recoveries, context
    assert all(d.kept for d in again.damaged), context


def _is_named(place: object, logged: Logged) -> bool:
    handle = logged.accepted[place.block_id].handle  # type: ignore[attr-defined]
    return (handle.path, handle.offset) == (place.path, place.offset)  # type: ignore[attr-defined]


def _planned_torn(logged: Logged) -> list[str]:
    return [p.path for p in planned(logged).places if p.decision in ("torn-drop", "orphan-keep") and not p.block_id]


def _in_any_file(log: Log, handle: Handle, data: bytes) -> bool:
    """Return whether the whole frame is at its offset in a file of any name, by its checksum."""
    start, until = handle.offset, handle.offset + handle.length
    return log.same(data, handle.path, start, until)
