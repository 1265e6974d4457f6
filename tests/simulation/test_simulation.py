"""The fixed set of random runs; ``python -m tests.simulation`` runs new ones."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.simulation import __main__ as command
from tests.simulation import traces
from tests.simulation.mistakes import MISTAKES
from tests.simulation.world import Options, World

#: runs in one test, so that a failure names few of them
RUNS = 25
STEPS = 600
#: minimum of the 30 runs of one test that reach each rare event
SEEDS_MIN = 2


@pytest.mark.parametrize("first", range(RUNS, 225, RUNS))
def test_all_invariants_hold_after_every_step_of_random_runs(first: int) -> None:
    """INV-1 to INV-4, INV-7, INV-8 hold under crashes, zombies, lost messages and full disks.

    Then everything is completed.
    """
    for seed in range(first, first + RUNS):
        explored(seed)


def explored(seed: int) -> World:
    outcome = traces.explore(seed, STEPS)
    assert isinstance(outcome, World), f"python -m tests.simulation --seed {seed} --steps {STEPS}: {outcome.violation}"
    return outcome


@pytest.mark.parametrize("first", [0, RUNS])
def test_all_invariants_hold_without_a_wal(first: int) -> None:
    """One copy or two of each block, a lost host, replica hosts that refuse or do not answer.

    Then everything is completed.
    """
    reached: Counter[str] = Counter()
    for seed in range(first, first + RUNS):
        outcome = traces.explore(seed, STEPS, drawn=Options.without_wal)
        assert isinstance(outcome, World), (
            f"python -m tests.simulation --without-wal --seed {seed} --steps {STEPS}: {outcome.violation}"
        )
        reached.update(set(outcome.reached))
        reached["host lost"] += any(host.lost for host in outcome.hosts.values())
    assert {kind: reached[kind] for kind in ("copy deleted", "replica refused", "host lost") if reached[kind] < 2} == {}


@pytest.mark.parametrize("first", [0, RUNS])
def test_all_invariants_hold_while_ids_of_receivers_are_forgotten(first: int) -> None:
    """INV-4, INV-7, INV-8. An id is forgotten as soon as nothing needs it, although its process may live, sleep or
    return.
    """
    reached: Counter[str] = Counter()
    for seed in range(first, first + RUNS):
        outcome = traces.explore(seed, STEPS, drawn=Options.forgetting)
        assert isinstance(outcome, World), (
            f"python -m tests.simulation --forgetting --seed {seed} --steps {STEPS}: {outcome.violation}"
        )
        reached.update(set(outcome.reached))
    rare = ("ReceiversForgotten", "ReceiverFenced")
    assert {kind: reached[kind] for kind in rare if reached[kind] < SEEDS_MIN} == {}


def test_a_seed_gives_the_same_run_again() -> None:
    one, other = traces.explore(7, 300), traces.explore(7, 300)
    assert isinstance(one, World)
    assert isinstance(other, World)
    assert one.taken == other.taken


def test_a_run_is_replayed_from_its_labels() -> None:
    outcome = traces.explore(11, 300)
    assert isinstance(outcome, World)
    trace = traces.Trace(about="", options=outcome.options, steps=tuple(outcome.taken[:300]))
    assert traces.replay(trace).taken == outcome.taken


def test_all_invariants_hold_in_random_runs_that_reach_rare_events() -> None:
    """A simulation whose faults prevent all progress would prove nothing. The first runs of those above."""
    worlds = [explored(seed) for seed in range(30)]
    states = [world.invariants.durable for world in worlds]
    assert sum(state.records_completed for state in states if state is not None) > 1000
    assert sum(len(p.gaps) for state in states if state is not None for p in state.partitions.values()) > 0
    assert sum(len(p.incarnations) - 1 for state in states if state is not None for p in state.partitions.values()) > 0
    assert sum(len(world.invariants.runs) for world in worlds) > 50
    assert sum(world.read_from_kafka for world in worlds) > 5
    assert sum(world.query.rows for world in worlds) > 100
    assert any(len(state.cleanups) or state.cleanup_count for state in states if state is not None)
    seeds = Counter(kind for world in worlds for kind in world.reached)
    rare = (
        "adopted",
        "EpochBarred",
        "ReplayCompleted",
        "turned away",
        "no room above the reserve",
        "allocated by a worker",
    )
    assert {kind: seeds[kind] for kind in rare if seeds[kind] < SEEDS_MIN} == {}


def test_failing_seed_is_reduced_to_a_trace_that_fails_again(tmp_path: Path) -> None:
    kinds = next(mistake.kinds for mistake in MISTAKES if mistake.name == "journal-order-unlike-decisions")
    outcomes = (traces.explore(seed, 300, kinds) for seed in range(50))
    failure = next(outcome for outcome in outcomes if isinstance(outcome, traces.Failure))
    trace = traces.shrink(failure, 5.0, kinds)
    assert len(trace.steps) < len(failure.trace.steps)
    traces.save(trace, tmp_path / "trace.json")
    with pytest.raises(type(failure.violation)) as again:
        traces.replay(traces.load(tmp_path / "trace.json"), kinds)
    assert again.value.invariant == failure.violation.invariant


def test_the_command_runs_seeds_and_replays_traces(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--seed", "3", "--runs", "2", "--steps", "50"]) == 0
    assert command.main(["--replay", str(traces.DIRECTORY / "two-openers-act.json")]) == 0
    assert "all invariants held" in capsys.readouterr().out
