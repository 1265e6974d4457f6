"""What ``forebay top`` shows, and what a key or an answer of the driver changes. No I/O."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from forebay import messages as m

ListName: TypeAlias = Literal["batches", "receivers", "partitions", "hosts"]
LISTS: tuple[ListName, ...] = ("batches", "receivers", "partitions", "hosts")
#: maximum number of entries of a list that the screen holds
LIST_MAX = 200
#: keys that change the screen
Key: TypeAlias = Literal["quit", "pause", "left", "right", "up", "down", "page-up", "page-down", "home", "other"]
#: rows that page-up and page-down move
PAGE_ROWS = 10


@dataclass(frozen=True, slots=True)
class Answers:
    """The newest answers of the driver. ``at``: monotonic seconds when the overview arrived."""

    overview: m.OverviewAnswer
    at: float
    series: m.SeriesAnswer | None = None
    batches: tuple[m.BatchEntry, ...] = ()
    receivers: tuple[m.TrackedReceiver, ...] = ()
    partitions: tuple[m.TrackedPartition, ...] = ()
    hosts: tuple[m.TrackedAgent, ...] = ()
    totals: dict[str, int] = field(default_factory=dict)  # list → its number of entries at the driver


@dataclass(frozen=True, slots=True)
class Screen:
    """The state of the screen.

    ``answers``: those that are shown; None before the first one. ``lost``: why the driver can't be reached; "" while it answers.
    ``first``: number of the first row of the list that is shown. ``held``: answers that arrived while the display is paused.
    """

    url: str
    answers: Answers | None = None
    lost: str = ""
    paused: bool = False
    shown_list: ListName = "batches"
    first: int = 0
    held: Answers | None = None
    ended: bool = False


def received(screen: Screen, answers: Answers) -> Screen:
    """Return the screen after an answer. While the display is paused, the answer is held."""
    if screen.paused:
        return replace(screen, held=answers, lost="")
    return _within(replace(screen, answers=answers, lost=""))


def disconnected(screen: Screen, why: str) -> Screen:
    """Return the screen when the driver can't be reached; the last answers stay."""
    return replace(screen, lost=why)


def pressed(screen: Screen, key: Key) -> Screen:
    """Return the screen after a key."""
    if key == "quit":
        return replace(screen, ended=True)
    if key == "pause":
        shown = screen.held if screen.paused and screen.held is not None else screen.answers
        return _within(replace(screen, paused=not screen.paused, answers=shown, held=None))
    if key in ("left", "right"):
        step = 1 if key == "right" else -1
        at = (LISTS.index(screen.shown_list) + step) % len(LISTS)
        return replace(screen, shown_list=LISTS[at], first=0)
    rows = {"up": -1, "down": 1, "page-up": -PAGE_ROWS, "page-down": PAGE_ROWS, "home": -LIST_MAX}.get(key, 0)
    return _within(replace(screen, first=screen.first + rows))


def _within(screen: Screen) -> Screen:
    entries = getattr(screen.answers, screen.shown_list) if screen.answers is not None else ()
    return replace(screen, first=max(0, min(screen.first, len(entries) - 1)))
