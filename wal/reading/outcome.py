"""What a read of a block returned: its records, the tier that had them, the tiers that failed before, and counts of both."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import msgspec
import pyarrow as pa

from forebay.model.errors import (
    AccessError,
    CorruptionError,
    ForebayError,
    MissingKeyError,
    NewerVersionError,
    RangeNotHeldError,
    UnreachableError,
)
from wal.reading.reference import Tier

#: kinds of a tier's failure that another attempt does not change
FINAL_FAILURES = ("missing", "damaged")


@dataclass(frozen=True, slots=True)
class TierFailure:
    """Why a tier did not return the block, or (not stored back) why this host's agent has no copy of what the WAL returned.

    ``kind``: missing | damaged | newer | locked | refused | unreachable | failed | not stored back. locked: the block's key is
    not available; refused: the agent does not accept the token.
    """

    tier: Tier
    kind: str
    detail: str

    @classmethod
    def of(cls, tier: Tier, error: ForebayError | OSError) -> TierFailure:
        """Return the failure of ``tier`` that ``error``, raised by a read, means."""
        match error:
            case FileNotFoundError():
                return cls(tier, "missing", "it is not there")
            case RangeNotHeldError():
                return cls(tier, "missing", str(error))
            case CorruptionError():
                return cls(tier, "damaged", str(error))
            case NewerVersionError():
                return cls(tier, "newer", str(error))
            case MissingKeyError():
                return cls(tier, "locked", str(error))
            case AccessError():
                return cls(tier, "refused", str(error))
            case ConnectionError() | UnreachableError():
                return cls(tier, "unreachable", str(error))
            case _:
                return cls(tier, "failed", str(error))


@dataclass(frozen=True, slots=True)
class BlockRead:
    """A block's records, and where they came from.

    ``batches``: the records, in ``DATAFRAME_SCHEMA``, in the order of the block's ranges. ``tier``: the tier that returned
    them, None if all ranges were accepted as lost. ``ranges``: how many ranges were read. ``failures``: why the tiers that were
    asked before did not return the block.
    """

    batches: tuple[pa.RecordBatch, ...]
    tier: Tier | None
    ranges: int
    failures: tuple[TierFailure, ...] = ()

    @property
    def counts(self) -> TierCounts:
        return TierCounts.of([(self.tier, self.ranges)], self.failures)


class TierCounts(msgspec.Struct, frozen=True):
    """Ranges read by tier, and tiers that failed by ``"<tier>: <kind>"``.

    Each read counts: a batch that its job uses twice counts twice.
    """

    ranges: dict[str, int] = {}
    failures: dict[str, int] = {}

    @classmethod
    def of(cls, ranges: Iterable[tuple[Tier | None, int]], failures: Iterable[TierFailure]) -> TierCounts:
        """Return the counts of ``failures``, and of the numbers of ranges that each tier returned; None is no tier."""
        read: Counter[str] = Counter()
        for tier, count in ranges:
            if tier is not None:
                read[tier] += count
        return cls(dict(read), dict(Counter(f"{failure.tier}: {failure.kind}" for failure in failures)))

    def items(self) -> Iterator[tuple[str, int]]:
        """Yield all counts as a status shows them: ``("local", 12), ("agent: unreachable", 1)``."""
        yield from self.ranges.items()
        yield from self.failures.items()

    def __add__(self, other: TierCounts) -> TierCounts:
        return TierCounts(_sum(self.ranges, other.ranges), _sum(self.failures, other.failures))


@dataclass(frozen=True, slots=True)
class BlocksRead:
    """Records of one block or of several successive ones, in ``DATAFRAME_SCHEMA``, and what was read from which tier."""

    batches: tuple[pa.RecordBatch, ...]
    counts: TierCounts

    @classmethod
    def of(cls, read: BlockRead) -> BlocksRead:
        return cls(read.batches, read.counts)


def _sum(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    return {name: one.get(name, 0) + other.get(name, 0) for name in {**one, **other}}
