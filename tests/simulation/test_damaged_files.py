"""Named scenarios of damaged files: the product refuses or recovers, and without its protection an invariant is violated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from driver.journal import checked_json
from driver.journal.files import claim_path
from driver.journal.leadership.evidence import Witness
from driver.journal.leadership.lease import lease_path
from driver.journal.log import opening
from executor_agent.store import BlockStore
from forebay.model.errors import CorruptionError
from forebay.model.identifiers import numbered
from tests.simulation.hosts import Host
from tests.simulation.invariants import InvariantViolation
from tests.simulation.options import STREAM
from tests.simulation.script import LOOP, RECEIVER, Script
from tests.simulation.world import World
from wal.segments.scan import scan_object, scan_segment

FAULTS = ("driver", "host", "rot")


def stopped(**options: object) -> World:
    """Return a world whose only driver was killed when it had accepted a block, and renewed its lease."""
    script = Script(faults=FAULTS, **options)
    script.begin("r1")
    script.do("produce t/0 4")
    script.run(*RECEIVER, *LOOP, until=lambda: script.position() == 4)
    script.run(*LOOP, until=lambda: not any(map(script.world.can, LOOP)))
    script.do("d1 renew", "d1 kill")
    return script.world


def open_driver(world: World) -> None:
    world.take("start driver")
    name = world.drivers[-1].name
    for step in ("claim", "read", "snapshot", "open"):
        world.take(f"{name} {step}")


def journal_end(world: World) -> str:
    return [path for path in world.journal.paths(STREAM) if "/epoch-" in path][-1]


def cut_end(world: World) -> None:
    """Cut the newest segment of the journal within its last frame."""
    path = journal_end(world)
    world.journal.damage(path, "cut", len(world.journal.stored(path)) - 70)


def wrong_lease(world: World) -> None:
    """Flip a bit of the number of durable events, which is higher then."""
    lease = world.journal.stored(lease_path(STREAM))
    at = lease.index(b'"led_events":') + len(b'"led_events":')
    higher = next(digit for bit in (1, 2, 4, 8) if lease[at] < (digit := lease[at] ^ bit) <= ord("9"))
    world.journal.replace(lease_path(STREAM), lease[:at] + bytes([higher]) + lease[at + 1 :])


def wrong_claim(world: World) -> None:
    """Flip a bit of the time in the journal's first claim."""
    path = claim_path(STREAM, numbered(1, 1))
    claim = world.journal.stored(path)
    at = claim.index(b'"time_ms":') + len(b'"time_ms":')
    world.journal.replace(path, claim[:at] + bytes([claim[at] ^ 1]) + claim[at + 1 :])


@pytest.mark.parametrize("objects", [False, True], ids=["files", "objects"])
def test_driver_refuses_a_journal_whose_end_is_cut_off(objects: bool) -> None:
    """INV-5. When the disk shows the whole file again, the stream goes on."""
    world = stopped(journal_objects=objects)
    cut_end(world)
    world.take("start driver")
    refused = world.drivers[-1]
    world.take("d2 claim")
    world.take("d2 read")
    assert isinstance(refused.ended, CorruptionError)
    world.settle()


def test_end_that_only_the_lease_counts_would_be_lost_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Witness, "lacks_events", lambda *_: False)
    world = stopped()
    cut_end(world)
    with pytest.raises(InvariantViolation, match="INV-4: d1 accepted block"):
        open_driver(world)


def test_end_of_an_object_would_be_lost_silently_without_a_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    """A torn end is dropped where files are appended to, and nowhere else."""
    for scan in (scan_object, scan_segment):
        monkeypatch.setattr("driver.journal.log.reading.scan_object", scan)
        world = stopped(journal_objects=True)
        world.journal.delete(lease_path(STREAM))
        cut_end(world)
        if scan is scan_segment:
            with pytest.raises(InvariantViolation, match="INV-4: d1 accepted block"):
                open_driver(world)
        else:
            world.take("start driver")
            refused = world.drivers[-1]
            world.take("d2 claim")
            world.take("d2 read")
            assert isinstance(refused.ended, CorruptionError)


@pytest.mark.parametrize("damage", [wrong_lease, wrong_claim])
def test_one_wrong_bit_that_stays_stops_no_driver(damage: Callable[[World], None]) -> None:
    world = stopped()
    damage(world)
    open_driver(world)
    assert world.drivers[-1].alive
    world.settle()


def test_wrong_lease_would_stop_every_later_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    world = stopped()
    monkeypatch.setattr(checked_json, "decode", lambda data, kind: msgspec.json.decode(data, type=kind))
    wrong_lease(world)
    with pytest.raises(InvariantViolation, match=r"the lease says that [0-9]+ were durable"):
        open_driver(world)


def test_wrong_claim_would_stop_every_later_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    world = stopped()
    monkeypatch.setattr(
        opening, "first_claim", lambda journal, stream, number: journal.read(claim_path(stream, numbered(number, 1)))
    )
    wrong_claim(world)
    with pytest.raises(InvariantViolation, match="progress"):
        open_driver(world)


# ---- host-local files --------------------------------------------------------------------------------------------------


def replicated() -> Script:
    """Return a script in which two hosts have an accepted block."""
    script = Script(copies=2, faults=FAULTS)
    script.begin("r1")
    process = script.world.receivers["r1"]
    script.do("host-spare beat", "deliver host-spare/agent#1 d1")
    script.run(*RECEIVER, *LOOP, until=lambda: process.store.replica_host)
    script.do("produce t/0 4")
    script.run(*RECEIVER, *LOOP, until=lambda: script.position() == 4)
    return script


def damage_copy(host: Host) -> Path:
    (path,) = [path for path in (host.directory / STREAM).iterdir() if path.suffix in (".block", ".copy")]
    host.rot(path, path.read_bytes()[:-70])
    return path


def test_a_job_reads_another_copy_and_the_agent_reports_the_damaged_one() -> None:
    world = replicated().world
    block = next(iter(world.invariants.durable.blocks.values()))  # type: ignore[union-attr]
    host = world.hosts[block.hosts[0]]
    damage_copy(host)
    host.kill_agent()
    world.settle()
    assert world.reached["damaged copy noticed"]
    assert world.reached["damage reported by an agent"]


def test_silent_damage_of_a_copy_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    world = replicated().world
    usage = BlockStore.usage
    monkeypatch.setattr(BlockStore, "usage", lambda store: replace(usage(store), damaged=()))
    host = next(iter(world.hosts.values()))
    damage_copy(host)
    host.kill_agent()
    with pytest.raises(InvariantViolation, match="INV-5"):
        host.agent.beat()
