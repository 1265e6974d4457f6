"""The rules about the effects of drivers, on random runs of a model: no finding with the journal's fence, findings without it."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from tests.jepsen import checker
from tests.jepsen.checker import Evidence, JobRun
from tests.jepsen.test_checker import batch, claim, good

_BATCHES, _TURNS = 12, 60


@dataclass
class Store:
    """The journal of a model: claims, and for each epoch its snapshot and the completions that it wrote after it."""

    claims: list[int] = field(default_factory=list)
    snapshots: dict[int, set[int]] = field(default_factory=dict)
    written: dict[int, set[int]] = field(default_factory=dict)

    def read(self) -> set[int]:
        """Return the completed batches, as a reader that begins at the newest snapshot finds them."""
        newest = max(self.snapshots, default=0)
        return self.snapshots.get(newest, set()) | self.written.get(newest, set())


@dataclass
class Model:
    """Drivers that are scheduled at random, as if suspended between any two steps. ``broken``: what they do wrong."""

    draw: Random
    broken: str = ""
    store: Store = field(default_factory=Store)
    runs: list[JobRun] = field(default_factory=list)
    now: float = 0.0

    def driver(self) -> Generator[None, None, None]:
        """Each ``yield`` is a moment at which others may act, or the process may be killed."""
        store = self.store
        early = store.read()
        yield
        epoch = max(store.claims, default=0) + 1
        store.claims.append(epoch)
        yield
        done = early if self.broken == "reads before its claim" else store.read()
        yield
        store.snapshots[epoch] = set(done)
        yield
        while not self.is_fenced(epoch) and (left := sorted({*range(1, _BATCHES + 1)} - done)):
            yield
            run = JobRun(left[0], (), self.now, 0.0, f"d{epoch} {epoch}", epoch)
            yield
            run = replace(run, ended=self.now)
            yield
            self.runs.append(run)
            yield
            store.written.setdefault(epoch, set()).add(run.batch_id)
            done.add(run.batch_id)
            yield

    def is_fenced(self, epoch: int) -> bool:
        return self.broken != "does not check its epoch" and epoch < max(self.store.claims)

    def advance(self, driver: Generator[None, None, None], steps: int) -> bool:
        """Return whether the driver goes on after ``steps``."""
        for _ in range(steps):
            self.now += 1.0
            if next(driver, self) is self:
                return False
        return True

    def play(self) -> Evidence:
        """Let several drivers run, and kill some of them; then one driver completes everything."""
        alive = [self.driver() for _ in range(3)]
        for _ in range(_TURNS):
            chosen = self.draw.choice(alive)
            if self.draw.random() < 0.1 or not self.advance(chosen, self.draw.choice((1, 2, 5, 30))):
                alive.remove(chosen)
                alive.append(self.driver())
        for last in [*self.draw.sample(alive, self.draw.randint(0, 2)), self.driver()]:
            self.advance(last, 10_000)
        assert self.store.read() == {*range(1, _BATCHES + 1)}
        return replace(
            good(), runs=tuple(self.runs), seen=(), batches=tuple(map(batch, range(1, _BATCHES + 1))),
            epochs=tuple(claim(epoch, f"d{epoch}-{epoch}-0") for epoch in self.store.claims),
        )  # fmt: skip


def found(seed: int, broken: str = "") -> set[str]:
    evidence = Model(Random(seed), broken).play()
    rules = (checker.drivers, checker.effects, checker.order)
    return {finding.rule for rule in rules for finding in rule(evidence)}


def test_drivers_with_the_fence_have_no_finding() -> None:
    for seed in range(500):
        assert found(seed) == set(), f"seed {seed}"


@pytest.mark.parametrize("broken", ["does not check its epoch", "reads before its claim"])
def test_drivers_without_a_step_of_the_fence_are_found(broken: str) -> None:
    rules = [found(seed, broken) for seed in range(200)]
    assert sum(map(bool, rules)) > 20
