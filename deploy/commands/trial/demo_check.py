"""The outcome of ``forebay demo``, compared with the data set itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from recovery.audit import AuditReport

TOPIC = "flights"
PARTITIONS = 4


class Carrier(msgspec.Struct, frozen=True):
    """The flights of one carrier. ``minutes``: sum of the delays at arrival; an early arrival is negative."""

    carrier: str
    flights: int
    arrived: int
    minutes: float

    @property
    def mean_minutes(self) -> float:
        return self.minutes / self.arrived if self.arrived else 0.0


class Outcome(msgspec.Struct, frozen=True):
    """The result of the demo. ``differences``: one sentence for each fault; empty if all is right."""

    records: int
    seconds: float
    kills: tuple[str, ...]
    carriers: tuple[Carrier, ...]
    differences: tuple[str, ...]
    audit: Any


class _Flight(msgspec.Struct):
    """The fields of a record that the expected sums need."""

    carrier: str
    arr_delay: float | None = None


@dataclass(slots=True)
class Expected:
    """The sums of the data set, computed while it is loaded, without Forebay or Spark."""

    sums: dict[str, tuple[int, int, float]] = field(default_factory=dict)

    def counting(
        self, records: Iterable[tuple[bytes | None, bytes | None]]
    ) -> Iterator[tuple[bytes | None, bytes | None]]:
        decoder = msgspec.json.Decoder(_Flight)
        for key, value in records:
            flight = decoder.decode(value or b"")
            flights, arrived, minutes = self.sums.get(flight.carrier, (0, 0, 0.0))
            delay = flight.arr_delay
            self.sums[flight.carrier] = (
                flights + 1,
                arrived + (delay is not None),
                minutes + (0.0 if delay is None else delay),
            )
            yield key, value


def differences(
    expected: Mapping[str, tuple[int, int, float]],
    found: Mapping[str, tuple[int, int, float]],
    report: AuditReport,
    loaded: Mapping[int, int],
) -> list[str]:
    """Return one sentence for each fault in the job's results or in the audit.

    ``expected`` and ``found``: carrier → flights, arrivals and minutes, by the data set and by the job. ``loaded``: partition →
    offset after the last record loaded.
    """
    from deploy.commands.inspection.audit import sentence

    wrong = [sentence(finding) for finding in report.findings]
    for carrier in sorted({*expected, *found}):
        want, have = expected.get(carrier, (0, 0, 0.0)), found.get(carrier, (0, 0, 0.0))
        if want[:2] != have[:2] or abs(want[2] - have[2]) > 1e-6:
            wrong.append(f"carrier {carrier}: expected {want} by the data set, but the job's result is {have}")
    for partition, end in sorted(loaded.items()):
        completed = {
            incarnation.completed_until
            for incarnation in report.incarnations
            if (incarnation.topic, incarnation.partition) == (TOPIC, partition)
        }
        if completed != {end}:
            wrong.append(f"{TOPIC}/{partition}: loaded up to {end}, completed up to {sorted(completed)}")
    wrong += [
        f"{one.topic}/{one.partition}: {len(one.gaps)} gaps, {one.waiting} records in no batch yet"
        for one in report.incarnations
        if one.gaps or one.waiting
    ]
    return wrong
