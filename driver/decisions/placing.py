"""On which host each managed receiver runs: a policy on values alone.

A host's *slots* are numbered from 0: the first receiver of the stream there takes slot 0, the next one slot 1. The best slot is
the one with the lowest number; of the same number, that of the most preferred host. Receivers take the best free slots. So
preferred hosts come first and the rest is even: no host has two while another one that has room has none.

One that runs moves only to a strictly better slot than it leaves, so a fleet that does not change comes to rest, and stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Host:
    """A host whose agent is heard. ``capacity``: receivers that it may run. ``labels``: ``key=value``."""

    name: str
    capacity: int
    labels: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Fleet:
    """``places``: each receiver's number → its host, or "" if it is to be given one. A host that is not among ``hosts`` is
    not judged: its receiver stays. ``movable``: those that may be moved. ``avoided``: number → hosts where it kept failing."""

    hosts: tuple[Host, ...]
    places: Mapping[int, str]
    movable: Collection[int] = ()
    avoided: Mapping[int, frozenset[str]] | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """``starts``: number → host, of those that had none. ``moves``: number → another host. ``homeless``: no host has room."""

    starts: Mapping[int, str]
    moves: Mapping[int, str]
    homeless: tuple[int, ...] = ()


def rank(host: Host, preferred: Sequence[str]) -> int:
    """How far the host is from the most preferred one: the index of the first of ``preferred`` that is its name or a label
    of it; ``len(preferred)`` if none is."""
    return next(
        (n for n, wanted in enumerate(preferred) if wanted == host.name or wanted in host.labels), len(preferred)
    )


def place(fleet: Fleet, preferred: Sequence[str] = (), moves_max: int = 1, share: bool = True) -> Placement:
    """``share``: False while more hosts may still come: then only the first slot of a host is given (of a preferred one, if
    any is preferred), nothing moves, and who gets none is not homeless but waits."""
    avoided = fleet.avoided or {}
    hosts = {host.name: host for host in fleet.hosts}
    ranks = {host.name: rank(host, preferred) for host in fleet.hosts}
    places = dict(fleet.places)
    taken = Counter(name for name in places.values() if name in hosts)

    def slot(name: str) -> tuple[int, int, str]:
        return taken[name], ranks[name], name

    def has_room(name: str) -> bool:
        if not share and (taken[name] or (preferred and ranks[name] == len(preferred))):
            return False
        return taken[name] < hosts[name].capacity

    starts: dict[int, str] = {}
    homeless = []
    for number in sorted(number for number, name in places.items() if not name):
        free = [name for name in hosts if has_room(name)]
        trusted = [name for name in free if name not in avoided.get(number, ())]
        if not free:
            homeless.append(number)
            continue
        starts[number] = places[number] = min(trusted or free, key=slot)
        taken[starts[number]] += 1
    if not share:
        return Placement(starts, {})

    distrusted = frozenset[str]().union(*avoided.values())
    moves: dict[int, str] = {}
    while len(moves) < moves_max:
        movable = [n for n in fleet.movable if n not in moves and places.get(n) in hosts]
        free = [name for name in hosts if has_room(name) and name not in distrusted]
        if not movable or not free:
            break

        def leaves(number: int) -> tuple[bool, int, int, str, int]:
            name = places[number]
            return taken[name] > hosts[name].capacity, taken[name] - 1, ranks[name], name, number

        number = max(movable, key=leaves)
        beyond, level, from_rank, name, _ = leaves(number)
        best = min(free, key=slot)
        if not beyond and slot(best)[:2] >= (level, from_rank):
            break
        taken[name] -= 1
        taken[best] += 1
        moves[number] = places[number] = best
    return Placement(starts, moves, tuple(homeless))
