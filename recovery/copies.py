"""Where the bytes of an accepted block can be had again when its place in the WAL no longer holds them.

In this order: a frame elsewhere in the WAL, this host's local copy, one that its agent set aside as damaged, the agents'
copies, Kafka by exact offsets. All but the last give the very bytes that were accepted; Kafka gives the same records (count
and digest are compared), encoded anew.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import urllib3

from forebay.model.errors import ForebayError, MissingKeyError, UnreachableError
from forebay.model.records import Compression, RangeRows, digest, encode_block
from forebay.model.values import Block, BlockMeta, Handle
from recovery.examination import Copy
from wal.blocks import StoredBlock, block_of_frame
from wal.digests import completed
from wal.encryption import KeyRing
from wal.reading import BlockReference, ReadPlan, Tier, check_same, incarnation_key, stored_copy
from wal.scan import read_frame
from wal.set_aside import copies_set_aside, read_set_aside
from wal.storage import Storage

if TYPE_CHECKING:
    from forebay.kafka.consume.ranges import Wanted


class ReadRanges(Protocol):
    """As ``forebay.kafka.consume.ranges.read_ranges``: the records of ranges of different partitions, in the order given. Raises
    ForebayError where Kafka no longer holds the very records, or can't be asked."""

    def __call__(self, wanted: Sequence[Wanted], headers: bool) -> list[RangeRows]: ...


@dataclass(frozen=True, slots=True)
class Found:
    """A block's bytes. ``exact``: they are those whose checksum the journal names."""

    source: str
    meta: BlockMeta
    payload: Any
    exact: bool


class Source(Protocol):
    name: str

    def read(self, block: Block) -> Found | None:
        """The block, verified; None where this source never kept it. Raises ForebayError, FileNotFoundError, OSError or
        urllib3's HTTPError with the reason why it can't be had."""


@dataclass(slots=True)
class Sources:
    """All of them, asked in order."""

    sources: Sequence[Source]

    def find(self, block: Block) -> tuple[Found | None, tuple[str, ...]]:
        """The first that has the block, and in words why each one asked before has not."""
        reasons = []
        for source in self.sources:
            try:
                found = source.read(block)
            except FileNotFoundError:
                reasons.append(f"{source.name}: it is not there")
            except (ForebayError, OSError, urllib3.exceptions.HTTPError) as error:
                reasons.append(f"{source.name}: {error}")
            else:
                if found is not None:
                    return found, tuple(reasons)
        return None, tuple(reasons)


class WalCopies:
    """Frames of the WAL that lie elsewhere than where the journal names them: written twice after a failed sync, in a segment
    under another's name, or by a recovery that was cut off."""

    name = "WAL"

    def __init__(self, storage: Storage, copies: Sequence[Copy]) -> None:
        self._storage = storage
        self._handles: dict[str, list[Handle]] = {}
        for copy in copies:
            self._handles.setdefault(copy.block_id, []).append(copy.handle)

    def read(self, block: Block) -> Found | None:
        reasons = []
        for handle in self._handles.get(block.id, ()):
            try:
                stored = block_of_frame(read_frame(self._storage, handle), handle.path)
                check_same(BlockReference.of(block), stored, handle.path)
            except (ForebayError, OSError) as error:  # another frame of it may be whole
                reasons.append(str(error))
            else:
                return _exact(self.name, stored)
        if reasons:
            raise ForebayError("; ".join(reasons))
        return None


class TierCopies:
    """What one tier of reading keeps: every agent is asked, since the journal does not name the copies that agents were given."""

    def __init__(self, tier: Tier, plan: ReadPlan) -> None:
        self.name: str = "local copy" if tier == "local" else tier
        self._tier: Tier = tier
        self._plan = plan

    def read(self, block: Block) -> Found | None:
        reference = BlockReference.of(block).also_at(tuple(self._plan.agent_urls))
        stored = stored_copy(reference, self._plan, self._tier)
        return None if stored is None else _exact(self.name, stored)


class DamagedCopies:
    """What this host's agent set aside: a copy of which the header or the metadata is damaged, and the payload is not."""

    name = "damaged copy"

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def read(self, block: Block) -> Found | None:
        reasons = []
        for path in copies_set_aside(self._directory, block.meta.stream, block.id):
            try:
                stored = read_set_aside(path, block)
            except (ForebayError, OSError) as error:  # another one of it may be whole
                reasons.append(str(error))
            else:
                return _exact(self.name, stored)
        if reasons:
            raise ForebayError("; ".join(reasons))
        return None


class KafkaCopies:
    """What Kafka still holds, by exact offsets. ``topic_ids``: ``life_key`` → id."""

    name = "Kafka"

    def __init__(
        self,
        read_ranges: ReadRanges,
        topic_ids: Mapping[str, str],
        compression: Compression,
        keys: KeyRing | None = None,
    ) -> None:
        self._read_ranges = read_ranges
        self._topic_ids = topic_ids
        self._compression: Compression = compression
        self._keys = keys

    def read(self, block: Block) -> Found:
        from forebay.kafka.consume.ranges import Wanted  # loads librdkafka

        meta = block.meta
        ranges = self._read_ranges(
            [Wanted(r, self._topic_ids.get(incarnation_key(r), "")) for r in meta.ranges], meta.headers
        )
        for rows, r in zip(ranges, meta.ranges, strict=True):
            if sum(batch.num_rows for batch in rows.batches) != r.records or digest(rows.batches) != r.digest:
                raise ForebayError(f"what it holds of {r.label} is not what was taken in")
        payload = encode_block(ranges, meta.headers, self._compression)
        if self._keys is None and meta.key_id is not None:
            raise MissingKeyError(
                f"the block was encrypted with key {meta.key_id!r}; without keys its records are not written again"
            )
        return Found(self.name, *completed(meta, payload, self._keys), exact=False)


class NoKafka:
    """Kafka could not be asked, for the reason ``why``."""

    name = "Kafka"

    def __init__(self, why: str) -> None:
        self._why = why

    def read(self, block: Block) -> Found | None:
        raise UnreachableError(self._why)


def _exact(name: str, stored: StoredBlock) -> Found:
    return Found(name, stored.meta, stored.payload, exact=True)
