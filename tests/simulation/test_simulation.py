"""The fixed set of random runs; ``python -m tests.simulation`` runs new ones."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from executor_agent.store import BlockStore
from forebay.model.errors import ForebayError, StoreError
from forebay.process.clock import ManualClock
from tests.simulation import __main__ as command
from tests.simulation import night, traces
from tests.simulation.faulty import STALLS, FaultyStorage
from tests.simulation.folder_faults import FAULTS, FolderFault
from tests.simulation.mistakes import MISTAKES
from tests.simulation.options import Options
from tests.simulation.shells import Stalled, stepped
from tests.simulation.story import story
from tests.simulation.world import World
from wal.segments.layout import block_segment

#: runs in one test, so that a failure names few of them
RUNS = 40
STEPS = 150
#: what at least ``SEEDS_MIN`` runs of one test must reach, by variant: faults that prevent all progress would prove nothing
RARE = {
    "": (
        "adopted",
        "EpochBarred",
        "GapRecorded",
        "CleanupDone",
        "turned away",
        "allocated by a worker",
        "CursorMoved",
        "sent in parts",
        "answer cut",
        "answer of another program",
    ),
    "faulty": (
        "rot",
        "journal cut",
        "damage noticed",
        "store away",
        "store stalled",
        "CleanupDone",
        "recovered",
        "set aside",
    ),
    "without-wal": (
        "copy deleted",
        "replica refused",
        "host lost",
        "damaged copy noticed",
        "damage reported by an agent",
        "store stalled",
    ),
    "forgetting": ("ReceiversForgotten", "CleanupIntended"),
}
SEEDS_MIN = 1

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("first", [0, *(pytest.param(first, marks=pytest.mark.long) for first in (RUNS, 2 * RUNS))])
@pytest.mark.parametrize("variant", RARE)
def test_all_invariants_hold_after_every_step_of_random_runs(variant: str, first: int) -> None:
    """INV-1 to INV-5, INV-7, INV-8 hold under crashes, zombies, lost messages, full disks and faulty stores.

    Then everything is completed.
    """
    reached: Counter[str] = Counter()
    for seed in range(first, first + RUNS):
        world = explored(seed, variant)
        reached.update(kind for kind, times in world.reached.items() if times)
        reached["host lost"] += any(host.lost for host in world.hosts.values())
    assert {kind: reached[kind] for kind in RARE[variant] if reached[kind] < SEEDS_MIN} == {}


def explored(seed: int, variant: str = "") -> World:
    outcome = traces.explore(seed, STEPS, drawn=night.VARIANTS[variant])
    option = f" --{variant}" if variant else ""
    assert isinstance(outcome, World), f"python -m tests.simulation{option} --seed {seed}: {outcome.violation}"
    return outcome


def test_long_runs_complete_what_they_took_in() -> None:
    records = 0
    for seed in (4, 5, 6):
        world = traces.explore(seed, 600)
        assert isinstance(world, World)
        state = world.invariants.durable
        assert state is not None
        records += state.records_completed
        assert world.invariants.runs
    assert records > 300


def test_a_seed_gives_the_same_run_again() -> None:
    one, other = (traces.explore(7, STEPS, drawn=Options.faulty) for _ in range(2))
    assert isinstance(one, World)
    assert isinstance(other, World)
    assert one.taken == other.taken
    assert one.coverage.reached == other.coverage.reached


def test_a_seed_gives_the_same_run_in_another_process() -> None:
    """Otherwise a failing seed could not be run again. Sets of strings and of partitions have another order in each process."""
    code = (
        "from tests.simulation import night, traces\n"
        "for seed in range(5008, 5012):\n"
        "    print(*traces.explore(seed, 150, drawn=night.VARIANTS['']).taken)\n"
    )
    runs = [
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True, text=True, check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]  # fmt: skip
    assert len(runs[0]) > 1000 and runs[0] == runs[1]


def test_a_run_is_replayed_from_its_labels() -> None:
    outcome = explored(11)
    trace = traces.Trace(about="", options=outcome.options, steps=tuple(outcome.taken[: outcome.steps_with_faults]))
    assert traces.replay(trace).taken == outcome.taken


def test_failing_seed_is_reduced_to_a_story_that_fails_again(tmp_path: Path) -> None:
    kinds = next(mistake.kinds for mistake in MISTAKES if mistake.name == "journal-order-unlike-decisions")
    task = night.Task(first_seed=0, runs=50, variant="", steps=STEPS, shrink_seconds=3.0)
    ((trace, message),) = night.perform(task, kinds).failures
    assert len(trace.steps) < STEPS
    traces.save(trace, tmp_path / "trace.json")
    with pytest.raises(AssertionError, match=trace.invariant):
        traces.replay(traces.load(tmp_path / "trace.json"), kinds)
    text = story(trace.steps, message)
    assert all(f"(`{label}`)" in text for label in trace.steps)
    assert "receives register" in text
    assert text.endswith(f"This breaks {message}\n")


def test_a_beginning_that_reached_something_new_is_continued() -> None:
    first = night.perform(night.Task(first_seed=0, runs=2, variant="", steps=STEPS))
    begin = max(first.reached.values(), key=lambda begin: len(begin.steps))
    world = traces.explore(99, 20, begin=begin)
    assert isinstance(world, World)
    assert tuple(world.taken[: len(begin.steps)]) == begin.steps
    assert world.steps_with_faults == len(begin.steps) + 20


def test_the_command_runs_seeds_replays_traces_and_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "3", "--runs", "2", "--steps", "50"]) == 0
    assert command.main(["--replay", str(traces.DIRECTORY / "two-openers-act.json")]) == 0
    assert "all invariants held" in capsys.readouterr().out
    assert command.main(["--hours", "0.00001", "--workers", "1", "--seed", "3", "--out", str(tmp_path)]) == 0
    assert "decisions in their order were reached, 0 failures were found" in (tmp_path / "simulation.md").read_text()


def test_clocks_of_hosts_drift_apart_and_processes_of_one_host_share_a_clock() -> None:
    world = World(Options(drift=1))
    world.clock.advance(1000.0)
    clocks = {name: world.clock_of(name) for name in ("r1.1", "r1.2", "r2.1", "d1")}
    seen = {name: clock.monotonic() for name, clock in clocks.items()}
    assert seen["r1.1"] == seen["r1.2"]
    assert len(set(seen.values())) == 3
    assert all(0 < abs(seconds - 1000.0) <= 10.0 for seconds in seen.values())
    for name, clock in clocks.items():
        assert clock.wall_ms() == pytest.approx(1_000_000 + seen[name] * 1000, abs=1)
    assert World(Options()).clock_of("r1.1").monotonic() == 0.0


@pytest.mark.parametrize("number", range(len(STALLS)))
def test_a_request_to_a_stalled_store_ends_when_the_stall_is_over(number: int) -> None:
    kind = STALLS[number]
    store = FaultyStorage("forgetful://test", lambda _: None, appendable=False)
    ended: list[str] = []

    def put() -> None:
        try:
            store.put_new("a/b", b"0123456789")
            ended.append("stored")
        except StoreError:
            ended.append("failed")

    store.stall(number)
    thread = stepped(put)
    waits = next(thread)
    assert isinstance(waits, Stalled)
    assert (waits.is_over, store.holds("a/b")) == (False, kind.is_early)
    store.end_stall()
    assert (waits.is_over, ended) == (True, [])
    assert list(thread) == []
    assert ended == ["failed" if kind.fails else "stored"]
    assert store.holds("a/b") == (kind.is_early or not kind.fails)
    assert len(store.late) == kind.lands_late


def test_a_faulty_store_hides_no_byte_from_the_invariants() -> None:
    store = FaultyStorage("forgetful://test", lambda _: None)
    store.replace("a/b", b"0123456789")
    store.rot(["a/b"], 1, cuts=False)
    assert store.read("a/b") != b"0123456789"
    assert store.stored("a/b") == b"0123456789"
    assert store.shown == 1
    store.heal()
    store.tear(4)
    assert [store.read("a/b"), store.read("a/b")] == [b"0123", b"0123456789"]
    store.tear(4, "a/c")
    assert store.read("a/b") == b"0123456789"
    store.put_new("a/c", b"")
    store.delete("a/b")
    store.list_old(2)
    assert [store.list("a"), store.list("a")] == [["a/b"], ["a/c"]]


def test_a_listing_of_blocks_omits_what_a_search_finds_by_name() -> None:
    store = FaultyStorage("forgetful://test", lambda _: None)
    paths = [block_segment("s", "r1", epoch, sequence) for epoch, sequence in ((1, 1), (1, 2), (1, 3), (2, 1))]
    for path in paths:
        store.put_new(path, b"")
    store.put_new("s/other", b"")
    omitted: list[str] = []
    for number in range(4):
        store.omit(number)
        assert store.list("s/other") == []
        omitted += set(paths).difference(store.list("s/blocks"))
        assert store.list("s/blocks") == paths
    assert omitted == [*paths[1:], paths[1]]


@pytest.mark.parametrize("number", FAULTS)
def test_one_call_in_a_block_directory_fails_once(tmp_path: Path, number: int) -> None:
    failed: list[int] = []
    fault = FolderFault(lambda: failed.append(number))
    store = BlockStore(tmp_path, quota_bytes=1_000, clock=ManualClock(0))
    store.open()
    (tmp_path / "s").mkdir(exist_ok=True)
    (tmp_path / "s" / "r1-1-9.block").write_bytes(b"damaged")
    fault.arm(number)
    with fault.ignored(), fault.acting():
        (tmp_path / "a").write_bytes(b"")
        os.scandir(tmp_path).close()
    assert fault.is_armed
    with fault.acting(), contextlib.suppress(ForebayError, OSError, MemoryError):
        store.keep_driver_epoch("s", 1)
        store.usage()
        store.receive("s", "r1-1-1", 10).write(b"")
        store.receive("s", "r1-1-2", 10).close()
        store.receive("s", "r1-1-3", 10).write(b"0123456789")
        store.open()  # sets the damaged copy aside
    assert (failed, fault.is_armed) == ([number], False)
    store.keep_driver_epoch("s", 2)
    assert store.driver_epoch("s") == 2
