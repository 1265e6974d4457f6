"""The choice of a host for each managed receiver. Decision logic, without I/O.

A host's *slots* are numbered from 0: the first receiver of the stream there takes slot 0, the next one slot 1. The best slot is
the one with the lowest number; among slots with the same number, the one on the most preferred host. Receivers take the best
free slots. So receivers are distributed evenly, preferred hosts first: no host has two receivers while another host with room
has none.

A running receiver moves only to a strictly better slot. So if hosts and receivers do not change, the receivers stop moving
after some moves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from forebay.settings.schema import ReceiverSettings

_RECEIVER = ReceiverSettings()


@dataclass(frozen=True, slots=True)
class Host:
    """A host whose agent sends heartbeats. ``capacity``: maximum number of receivers on it. ``labels``: ``key=value``."""

    name: str
    capacity: int
    labels: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Fleet:
    """The input of a decision: hosts and receivers.

    ``places``: receiver number → its host; "" if it needs one. A receiver on a host that is not among ``hosts`` stays there.
    ``movable``: receivers that may move. ``avoided``: receiver number → hosts on which it failed repeatedly.
    """

    hosts: tuple[Host, ...]
    places: Mapping[int, str]
    movable: Collection[int] = ()
    avoided: Mapping[int, frozenset[str]] | None = None


@dataclass(frozen=True, slots=True)
class Placement:
    """The result of a decision. ``starts``: receiver number → host, for receivers that had none. ``moves``: receiver number →
    new host. ``homeless``: receivers for which no host has room."""

    starts: Mapping[int, str]
    moves: Mapping[int, str]
    homeless: tuple[int, ...] = ()


def rank(host: Host, preferred: Sequence[str]) -> int:
    """Return the index of the first of ``preferred`` that is the host's name or one of its labels; ``len(preferred)`` if none
    is."""
    return next(
        (n for n, wanted in enumerate(preferred) if wanted == host.name or wanted in host.labels), len(preferred)
    )


def place(
    fleet: Fleet, preferred: Sequence[str] = (), moves_max: int = _RECEIVER.moves_max, share: bool = True
) -> Placement:
    """Choose hosts for the receivers that have none, and up to ``moves_max`` moves.

    ``share``: False while more hosts may still appear. Then a host gets at most one receiver (only preferred hosts, if there are
    any), nothing moves, and a receiver without a host waits instead of being homeless.
    """
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
