"""The faults of a run depend on the seed alone, and never exclude one another."""

from __future__ import annotations

from random import Random

import pytest

from tests.jepsen import soak
from tests.jepsen.faults import KINDS, REPLICATED, Step, compatible, plan
from tests.jepsen.world import Shape


def test_one_seed_gives_one_plan_and_another_seed_another() -> None:
    assert plan(7, 600, Shape(), list(KINDS)) == plan(7, 600, Shape(), list(KINDS))
    assert plan(7, 600, Shape(), list(KINDS)) != plan(8, 600, Shape(), list(KINDS))


def test_every_kind_is_drawn_and_ends_in_time() -> None:
    steps = [step for seed in range(5) for step in plan(seed, 600, Shape(), list(KINDS))]
    assert {step.kind for step in steps} == KINDS.keys()
    assert all(step.at + step.seconds <= 600 for step in steps)


def test_one_broker_has_no_elections() -> None:
    steps = [step for seed in range(5) for step in plan(seed, 600, Shape(brokers=1), list(KINDS))]
    assert not {step.kind for step in steps} & {*REPLICATED}


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


def test_soak_makes_a_fault_each_minute_that_ends_no_process_of_forebay() -> None:
    steps = soak.plan(3, 3600, Shape())
    assert [int(step.at // 60) for step in steps] == list(range(60))
    assert not {step.kind for step in steps} & {"kill", "stop", "rolling", "unclean"}


def test_store_on_hdfs_keeps_its_disk() -> None:
    """A NameNode whose disk was full waits for an operator."""
    drawn = {KINDS["disk"].draw(Random(seed), Shape(store="hdfs")) for seed in range(20)}
    assert drawn == {("w1",), ("w2",)}
