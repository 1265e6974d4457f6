"""The faults of a run depend on the seed alone, and never exclude one another."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.jepsen import soak
from tests.jepsen.faults import CLUSTERED, KINDS, REPLICATED, Step, compatible, plan, upgrading
from tests.jepsen.services import Service
from tests.jepsen.story import Story
from tests.jepsen.world import DRIVERS, MASTER, Shape, World
from tests.support.processes.namespaces import Host
from tests.support.run.releases import RELEASES

SPARK = Shape(engine="spark")


def test_one_seed_gives_one_plan_and_another_seed_another() -> None:
    assert plan(7, 600, Shape(), list(KINDS)) == plan(7, 600, Shape(), list(KINDS))
    assert plan(7, 600, Shape(), list(KINDS)) != plan(8, 600, Shape(), list(KINDS))


def test_every_kind_is_drawn_and_ends_in_time() -> None:
    steps = [step for seed in range(5) for step in plan(seed, 600, SPARK, list(KINDS))]
    assert {step.kind for step in steps} == KINDS.keys()
    assert all(step.at + step.seconds <= 600 for step in steps)
    in_driver = [step for seed in range(5) for step in plan(seed, 600, Shape(), list(KINDS))]
    assert {step.kind for step in in_driver} == KINDS.keys() - {*CLUSTERED}


def test_one_broker_has_no_elections() -> None:
    steps = [step for seed in range(5) for step in plan(seed, 600, Shape(brokers=1), list(KINDS))]
    assert not {step.kind for step in steps} & {*REPLICATED}


def drawn(shape: Shape, *kinds: str) -> set[str]:
    """Return the targets of faults of ``kinds`` in several plans."""
    steps = [step for seed in range(10) for step in plan(seed, 600, shape, list(KINDS))]
    return {target for step in steps if step.kind in kinds for target in step.targets}


def test_faults_reach_spark_on_the_worker_hosts() -> None:
    """Master, workers and executors are killed and paused; a restart in order is for what a supervisor starts."""
    daemons, executors = {MASTER, "worker-w1", "worker-w2"}, {"executors-w1", "executors-w2"}
    assert drawn(SPARK, "kill") >= daemons | executors
    assert drawn(SPARK, "pause") >= daemons | executors
    assert drawn(SPARK, "stop") == daemons | {*SPARK.services}
    assert MASTER in drawn(SPARK, "cut") & drawn(SPARK, "cut-way") & drawn(SPARK, "isolate")


def test_clocks_move_on_hosts_of_forebay_alone() -> None:
    """Also those of Spark's workers there; the master keeps its clock, as brokers and the store do."""
    hosts = {target for target in drawn(SPARK, "clock") if not target.startswith(("+", "-"))}
    assert hosts == {*DRIVERS, "w1", "w2"}


def test_engine_in_the_driver_has_no_host_or_process_of_spark() -> None:
    everything = drawn(Shape(), *KINDS)
    assert not everything & {MASTER, *SPARK.spark_daemons, *SPARK.executors}
    assert not Shape().spark_daemons + Shape().executors
    assert MASTER not in Shape().hosts


def test_services_of_an_upgrade_are_forebays_alone() -> None:
    upgraded = [name for names in SPARK.upgrades for name in names]
    assert sorted(upgraded) == sorted(SPARK.services) == sorted(Shape().services)


@pytest.mark.parametrize(
    ("kind", "targets", "active", "may"),
    [
        ("kill", ("d1",), [], True),
        ("kill", ("d1",), [("pause", ("d1",))], False),
        ("kill", ("d1",), [("pause", ("d2",))], True),
        ("kill", ("d1",), [("pause", ("d2",)), ("cut", ("k1", "k2"))], False),
        ("tokens", (), [("tokens", ())], False),
        ("tokens", (), [("certificates", ())], True),
        ("rolling", (), [("pause", ("d2",))], False),
        ("kill", ("d1",), [("unclean", ("0",))], False),
    ],
)
def test_fault_waits_for_others_with_its_target(
    kind: str, targets: tuple[str, ...], active: list[tuple[str, tuple[str, ...]]], may: bool
) -> None:
    assert compatible(Step(0, kind, targets, 1), [Step(0, *one, 1) for one in active]) is may


def test_run_from_an_earlier_release_upgrades_after_three_quarters_and_has_no_unclean_election_before() -> None:
    drawn = [step for seed in range(5) for step in plan(seed, 600, Shape(), list(KINDS))]
    steps = upgrading(drawn, 600)
    assert [step.at for step in steps if step.kind == "rolling"] == [150, 300, 450]
    assert [step.at for step in steps] == sorted(step.at for step in steps)
    unclean = [step.at for step in steps if step.kind == "unclean"]
    assert unclean
    assert min(unclean) > 450
    others = [step for step in drawn if step.kind not in ("rolling", "unclean")]
    assert sorted(map(str, others)) == sorted(str(step) for step in steps if step.kind not in ("rolling", "unclean"))


def test_rolling_faults_upgrade_drivers_then_agents_then_receivers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of docs/operations/upgrade.md. What runs this code is restarted as a whole."""
    release = RELEASES[-1]
    world = World(tmp_path, Shape(), Story(tmp_path, quiet=True), release)
    host = Host("d1", "198.18.0.1", "fb1-d1", "fb1.1", tmp_path / "hosts.txt", {})
    for name in world.shape.services:
        world.services.add(Service(name, host, tmp_path, ("driver",), {}, release))
    started: list[tuple[str, bool]] = []
    monkeypatch.setattr(
        Service, "start", lambda self: started.append((self.name, str(release.command) in self.command))
    )

    def restarted(kind: str, *targets: str) -> list[tuple[str, bool]]:
        started.clear()
        for _ in KINDS[kind].run(world, Step(0, kind, targets, 0)):
            pass
        return list(started)

    assert restarted("stop", "d1") == [("d1", True)]
    assert restarted("rolling") == [("d1", False), ("d2", False)]
    assert restarted("rolling") == [("agent-w1", False), ("agent-w2", False)]
    assert restarted("stop", "receiver-w1") == [("receiver-w1", True)]
    assert restarted("rolling") == [("receiver-w1", False), ("receiver-w2", False)]
    assert world.outdated == ()
    assert restarted("rolling") == [(name, False) for name in world.shape.services]
    assert world.shape.upgrades[0] == DRIVERS


def test_soak_makes_a_fault_each_minute_that_ends_no_process_of_forebay() -> None:
    steps = soak.plan(3, 3600, Shape())
    assert [int(step.at // 60) for step in steps] == list(range(60))
    assert not {step.kind for step in steps} & {"kill", "stop", "rolling", "unclean"}


def test_store_on_hdfs_keeps_its_disk() -> None:
    """A NameNode whose disk was full waits for an operator."""
    drawn = {KINDS["disk"].draw(Random(seed), Shape(store="hdfs")) for seed in range(20)}
    assert drawn == {("w1",), ("w2",)}
