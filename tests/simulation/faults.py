"""Faults of stores, clocks and messages: which may happen next, and what they do."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random
from typing import TYPE_CHECKING, Any

import msgspec

from driver.journal import checked_json
from driver.journal.files import EventsMeta, claim_path
from driver.journal.leadership.lease import Lease, lease_path
from forebay.model.identifiers import numbered, timeline_of
from tests.simulation.durable import StoredImage, SyncedImage
from tests.simulation.faulty import ERRORS, OLD_CHANGES_MAX, STALLS, FaultyStorage
from tests.simulation.network import Exchange
from tests.simulation.scheduler import Step
from wal.segments import layout
from wal.segments.frame import Frame, FrameKind
from wal.segments.scan import Readable, scan_segment

if TYPE_CHECKING:
    from tests.simulation.driver_process import DriverProcess
    from tests.simulation.receiver_process import ReceiverProcess
    from tests.simulation.world import World

#: by how many milliseconds a host's wall clock jumps
JUMPS_MS = tuple(
    sign * milliseconds
    for milliseconds in (1_500, 60_000, 3_600_000, 86_400_000, 10 * 365 * 86_400_000)
    for sign in (1, -1)
)
#: seconds that each operation of a slow store takes
SLOW_SECONDS = (0.2, 3.0)
#: seconds that pass while a store is stalled or slow: less and more than every time limit of the product's settings
WAIT_SECONDS = (4.0, 12.0, 70.0, 200.0)
#: the newest segments of the journal, whose reads may end early
TORN_SEGMENTS = 4
#: how often they pass in one run, so that it does not outlast ``options.LONG_RETENTION_MS``
WAITS_MAX = 5
#: numbers of a message that a sender may state wrongly, by their names on the wire, and extreme values of them. The driver cannot
#: check some others, because only the sender knows them: what a block has (its end, bytes, leader epoch and times) and its place
#: in the WAL, the watermarks of a fault, and the number of a claim
ODD_FIELDS = frozenset(
    {
        "epoch",
        "token",
        "known_token",
        "acknowledged",
        "used_bytes",
        "free_bytes",
        "sequence",
        "request",
        "buffered_bytes",
        # offsets and partitions
        "partition",
        "from",
        "position",
        "high_watermark",
        "life",
        # counts
        "records",
        "storing_records",
        "open_records",
        "count",
        # times
        "open_seconds",
        "storing_seconds",
        "store_seconds",
        "seconds_ago",
        "rate",
    }
)
ODD_NUMBERS = (0, 1, -1, 1 << 31, 1 << 53, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


class Faults:
    """``clocks``: by how many milliseconds the wall clock of each process is off."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.clocks: dict[str, int] = {}
        # steps that are no faults are more likely by this factor
        self._often = 2 + world.options.quiet // 2
        self._seldom = 1 + world.options.quiet // 8
        self._waits = 0
        #: the small files that a driver reads when it opens the journal
        self._small = (lease_path(world.stream), claim_path(world.stream, numbered(1, 1)))
        self.stores = {"journal": world.journal, "wal": world.wal}
        self._offered = {name: self._always_the_same(name, store) for name, store in self.stores.items()}
        self._jumps: dict[str, Step] = {}  # by process

    def _always_the_same(self, name: str, store: FaultyStorage) -> dict[str, Step]:
        """Return the steps of a store that differ in nothing whenever they are offered, by the last word of their label."""
        often, seldom = self._often, self._seldom
        return {
            "heals": Step(f"{name} heals", store.heal, 3),
            "tears": _fault(Step(f"{name} tears", store.tear, often, range(0, 400, 7))),
            "tears-file": _fault(Step(f"{name} tears-file", partial(self._tear_file, store), often, range(10_000))),
            "errs": _fault(Step(f"{name} errs", store.fail_next, 2 * often, range(len(ERRORS)))),
            "omits": _fault(Step(f"{name} omits", store.omit, often, range(1_000))),
            "lists-old": _fault(Step(f"{name} lists-old", store.list_old, often, range(1, OLD_CHANGES_MAX + 1))),
            "away": _fault(Step(f"{name} away", partial(self._away, store), seldom)),
            "slow": _fault(Step(f"{name} slow", partial(self._slow, store), seldom, range(len(SLOW_SECONDS)))),
            "goes-on": Step(f"{name} goes-on", store.end_stall, 2),
            "stalls": _fault(Step(f"{name} stalls", partial(self._stall, store), 3 * often, range(len(STALLS)))),
        }

    @property
    def shown(self) -> int:
        """How often a store gave another answer than it would have without a fault."""
        return self._world.journal.shown + self._world.wal.shown

    def end_outages(self) -> None:
        """End the faults of stores, except rot."""
        for store in self.stores.values():
            store.end_outage()
        for host in self._world.hosts.values():
            host.folder.disarm()

    def heal(self) -> None:
        """End the faults of stores and of hosts' disks. Clocks stay wrong."""
        for store in self.stores.values():
            store.heal()
        for host in self._world.hosts.values():
            host.heal()

    def steps(self) -> Iterator[Step]:
        faults = self._world.options.faults
        for name, store in self.stores.items():
            if store.is_faulty:
                yield self._offered[name]["heals"]
            if "rot" in faults:
                yield from self._rot_steps(name, store)
            if "store" in faults:
                yield from self._store_steps(self._offered[name], store)
            if "stall" in faults:
                yield self._offered[name]["goes-on" if store.is_stalled else "stalls"]
        if "rot" in faults:
            for host in self._world.hosts.values():
                yield from host.rot_steps()
        if self._waits < WAITS_MAX and any(store.is_stalled or store.slow_seconds for store in self.stores.values()):
            yield _fault(Step("wait", self._wait, 2 * self._often, range(len(WAIT_SECONDS))))
        if "clock" in faults:
            processes: list[DriverProcess | ReceiverProcess] = [*self._world.drivers, *self._world.receivers.values()]
            for process in processes:
                if process.running:
                    yield self._jumps.get(process.name) or self._jump_of(process.name)
        if "odd" in faults:
            yield from self._odd_steps()

    def _jump_of(self, process: str) -> Step:
        jump = Step(f"{process} clock", partial(self._jump, process), self._seldom, range(len(JUMPS_MS)))
        self._jumps[process] = _fault(jump)
        return jump

    def _rot_steps(self, name: str, store: FaultyStorage) -> Iterator[Step]:
        if store.has_durable(self._world.stream):
            # rot that a reader meets is as likely as a step that makes progress
            weight = self._often * (12 if store is self._world.wal and self._needed() else 2)
            yield _fault(Step(f"{name} rots", partial(self._rot, store), weight, range(10_000)))
        if store is self._world.journal and store.rotten():
            for driver in self._world.drivers:  # the next driver reads what is rotten
                if driver.leading:
                    yield _fault(Step(f"{driver.name} kill", driver.kill, 3 * self._world.options.quiet))
        if store is self._world.wal:
            if not self._world.options.copies:
                yield self._offered[name]["tears"]
        elif self._world.invariants.durable is not None:
            yield self._offered[name]["tears-file"]

    def _tear_file(self, store: FaultyStorage, seed: int) -> None:
        """Let the next read of one of the newest segments of the journal end early.

        It is the read of this segment only: a driver reads objects in threads, in no order.
        """
        random = Random(seed)
        segments = [path for path in store.paths(self._world.stream) if _is_of_journal(path)]
        if segments:
            path = random.choice(segments[-TORN_SEGMENTS:])
            store.tear(random.randrange(max(1, len(store.stored(path)))), path)

    def _rot(self, store: FaultyStorage, seed: int) -> None:
        """Flip a bit of a file, or cut its end off.

        The lease is the only file that counts the events at the end of the journal. So the journal's end is cut only where the
        lease counts the events that are missing then, and one of both may be damaged at a time.
        """
        random = Random(seed)
        paths = list(store.durable_sizes(self._world.stream))
        needed = [path for path in paths if path in self._needed()]
        if store is self._world.journal:
            needed = [path for path in paths if _is_of_journal(path)][-1:] + [
                path for path in paths if path in self._small
            ]
        path = random.choice(needed if needed and seed % 4 else paths)
        if path == lease_path(self._world.stream) and any(map(_is_of_journal, store.rotten())):
            return
        kind = random.choice(("flip", "cut"))
        data = store.stored(path)
        until = len(data)
        if kind == "cut" and store is self._world.journal and _is_of_journal(path):
            until = self._counted_bytes(path)
            kind = "cut" if until else "flip"
        at = random.randrange(until or len(data))
        if not path.endswith(".seg") and seed % 2:  # a number of a small file
            at = random.choice([place for place, byte in enumerate(data) if byte in b"0123456789"] or [at])
        store.damage(path, kind, at)
        self._world.reached["rot"] += 1
        self._world.reached["journal cut"] += kind == "cut" and _is_of_journal(path)

    def _counted_bytes(self, path: str) -> int:
        """Return up to which byte the end of a segment of the journal may be missing so that this is noticed; 0: nowhere."""
        journal = self._world.journal
        if not journal.appendable:
            return len(journal.stored(path))
        place, lease_file = layout.parse_journal(path), lease_path(self._world.stream)
        if place is None or journal.is_rotten(lease_file) or not journal.holds(lease_file):
            return 0
        lease = checked_json.decode(journal.stored(lease_file), Lease)
        if timeline_of(lease.led_epoch) != timeline_of(place.epoch):
            return 0
        # a failed sync leaves events that a reader may find, and that the driver wrote again into the next segment
        before = max((meta.first + meta.count for meta, _ in self._events_before(path, place.epoch)), default=0)
        until = 0
        for meta, end in _events_in(SyncedImage(journal), path):
            if meta.first + meta.count > before and max(meta.first, before) < lease.led_events:
                until = end
        return until

    def _events_before(self, path: str, epoch: int) -> Iterator[tuple[EventsMeta, int]]:
        """Yield the frames of events in earlier segments of the timeline, also those that are not durable."""
        for earlier in self._world.journal.paths(self._world.stream):
            place = layout.parse_journal(earlier)
            if place is not None and earlier < path and timeline_of(place.epoch) == timeline_of(epoch):
                yield from _events_in(StoredImage(self._world.journal), earlier)

    def _needed(self) -> set[str]:
        """Return the segments with blocks that a batch still has to read."""
        state = self._world.invariants.durable
        if state is None:
            return set()
        return {block.handle.path for block in state.blocks.values() if block.id not in state.released}

    def _store_steps(self, offered: dict[str, Step], store: FaultyStorage) -> Iterator[Step]:
        yield offered["errs"]
        yield offered["lists-old"]
        if store is self._world.wal:
            yield offered["omits"]
        if not store.is_away:
            yield offered["away"]
        if not store.slow_seconds:
            yield offered["slow"]

    def _stall(self, store: FaultyStorage, number: int) -> None:
        store.stall(number)
        self._world.reached["store stalled"] += 1

    def _wait(self, number: int) -> None:
        self._waits += 1
        self._world.clock.advance(WAIT_SECONDS[number])

    def _away(self, store: FaultyStorage) -> None:
        store.is_away = True
        self._world.reached["store away"] += 1

    def _slow(self, store: FaultyStorage, number: int) -> None:
        store.slow_seconds = SLOW_SECONDS[number]

    def _jump(self, process: str, number: int) -> None:
        self.clocks[process] = self.clocks.get(process, 0) + JUMPS_MS[number]

    def set_drivers_ahead(self) -> None:
        """The wall clocks of all drivers jump a day ahead."""
        for driver in self._world.drivers:
            self._jump(driver.name, JUMPS_MS.index(86_400_000))

    def _odd_steps(self) -> Iterator[Step]:
        """A message with an extreme number reaches a driver, besides the right one. Its answer reaches no process."""
        leading = [driver for driver in self._world.drivers if driver.leading and driver.running]
        for exchange in self._world.network.exchanges.values():
            if exchange.copies:
                for driver in leading:
                    odd = partial(self._deliver_odd, exchange, driver)
                    yield _fault(Step(f"odd {exchange.label} {driver.name}", odd, self._often, range(1_000)))

    def _deliver_odd(self, exchange: Exchange, driver: Any, seed: int) -> None:
        random = Random(seed)
        odd = _with_odd_number(msgspec.to_builtins(exchange.body), random)
        try:
            body = msgspec.json.decode(msgspec.json.encode(odd), type=type(exchange.body))
        except (msgspec.ValidationError, OverflowError):
            self._world.reached["odd message refused"] += 1  # by the bounds of its fields, with status 400
            return
        self._world.reached["odd message"] += 1
        driver.submit(body)


def _with_odd_number(value: Any, random: Random) -> Any:
    """Return ``value`` with one of its numbers replaced by an extreme one."""
    found: list[tuple[dict[str, Any], str]] = []
    _find_numbers(value, found)
    if found:
        holder, key = random.choice(found)
        holder[key] = random.choice(ODD_NUMBERS)
    return value


def _find_numbers(value: Any, found: list[tuple[dict[str, Any], str]]) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ODD_FIELDS and isinstance(item, int | float):
                found.append((value, key))
            _find_numbers(item, found)
    elif isinstance(value, list | tuple):
        for item in value:
            _find_numbers(item, found)


def _events_in(source: Readable, path: str) -> Iterator[tuple[EventsMeta, int]]:
    """Yield the metadata of each whole frame of events in a segment, and the byte at which the frame ends."""
    for found in scan_segment(source, path):
        if isinstance(found, Frame) and found.header.kind == FrameKind.EVENTS:
            yield msgspec.msgpack.decode(found.metadata, type=EventsMeta), found.offset + found.length


def _is_of_journal(path: str) -> bool:
    return layout.parse_journal(path) is not None


def _fault(step: Step) -> Step:
    step.fault = True
    return step
