"""Chooses the next step by its name: drawn by a seed, or read from a trace."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from random import Random

#: marks a label of a trace that is taken only if it is possible
OPTIONAL = "?"


@dataclass(slots=True, eq=False)  # not frozen: many are made before each step
class Step:
    """One thing that can happen now.

    ``weight``: its relative probability. ``numbers``: if not None, the step takes a number of this range, which is drawn
    and becomes the last word of its label.
    """

    label: str
    run: Callable[..., None]
    weight: int = 10
    numbers: range | None = None
    fault: bool = False


def as_fault(step: Step) -> Step:
    """Mark ``step`` as a fault, and return it."""
    step.fault = True
    return step


@dataclass(slots=True)
class Choice:
    label: str
    run: Callable[[], None]


class TraceMismatch(Exception):
    """The trace names a step that cannot happen here: the code or the simulation has changed since it was recorded."""


def draw(steps: Sequence[Step], random: Random, quiet: int) -> Choice:
    """Draw one of ``steps`` by their weights, or each as likely if none has a weight.

    ``quiet``: factor on the weight of each step that is no fault.
    """
    sums = list(accumulate([step.weight if step.fault else step.weight * quiet for step in steps]))
    step = steps[bisect(sums, random.randrange(sums[-1]))] if sums[-1] else random.choice(steps)
    return _chosen(step, None if step.numbers is None else random.choice(step.numbers))


def find(steps: Iterable[Step], label: str) -> Choice | None:
    """Return the step that ``label`` names; None if it cannot happen now."""
    head, _, number = label.rpartition(" ")
    for step in steps:
        if step.numbers is None and step.label == label:
            return _chosen(step, None)
        if step.numbers is not None and step.label == head and number.isdigit():
            return _chosen(step, int(number))
    return None


def _chosen(step: Step, number: int | None) -> Choice:
    if number is None:
        return Choice(step.label, step.run)
    return Choice(f"{step.label} {number}", partial(step.run, number))
