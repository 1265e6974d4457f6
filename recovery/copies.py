"""Sources of an accepted block whose place in the WAL no longer has its bytes.

In this order: a frame elsewhere in the WAL, this host's local copy, a copy that its agent set aside as damaged, the agents'
copies, Kafka by exact offsets. All except Kafka return the very bytes that were accepted. Kafka returns the same records (count
and digest are compared), which are encoded again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import urllib3

from forebay.model.digest import digest
from forebay.model.errors import ForebayError, MissingKeyError, UnreachableError
from forebay.model.payload import Compression, encode_block
from forebay.model.records import RangeRows
from forebay.model.values import Block, BlockMeta, Handle
from recovery.examination import UnnamedFrame
from wal.blocks import StoredBlock, block_of_frame
from wal.blocks.digests import completed
from wal.blocks.encryption import KeyRing
from wal.blocks.set_aside import copies_set_aside, read_set_aside
from wal.reading import BlockReference, ReadPlan, Tier, check_same, incarnation_key
from wal.reading.stored_copies import stored_copy
from wal.segments.scan import read_frame
from wal.storage import Storage

if TYPE_CHECKING:
    from forebay.kafka.consume.block_ranges import Wanted


class ReadRanges(Protocol):
    """Reads the records of ranges of different partitions, in their order, as ``forebay.kafka.consume.block_ranges.read_ranges``.

    Raises ForebayError if Kafka no longer has exactly these records, or can't be reached.
    """

    def __call__(self, wanted: Sequence[Wanted], headers: bool) -> list[RangeRows]: ...


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """A block's bytes from one source. ``exact``: their checksum is the one that the journal names."""

    source: str
    meta: BlockMeta
    payload: Any
    exact: bool


class CopySource(Protocol):
    """One source from which a block may be read again."""

    name: str

    def read(self, block: Block) -> BlockCopy | None:
        """Return the block, verified; None if this source never had it.

        Raises ForebayError, FileNotFoundError, OSError or urllib3's HTTPError with the reason why it can't be read.
        """


@dataclass(slots=True)
class CopySources:
    """All sources, asked in order."""

    sources: Sequence[CopySource]

    def find(self, block: Block) -> tuple[BlockCopy | None, tuple[str, ...]]:
        """Return the first copy found, and for each source asked before the reason why it has none."""
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
    """Frames of the WAL at other places than the journal names.

    Such frames exist if a frame was written twice after a failed sync, if a segment is stored under another segment's name, or
    if a recovery was interrupted.
    """

    name = "WAL"

    def __init__(self, storage: Storage, copies: Sequence[UnnamedFrame]) -> None:
        self._storage = storage
        self._handles: dict[str, list[Handle]] = {}
        for copy in copies:
            self._handles.setdefault(copy.block_id, []).append(copy.handle)

    def read(self, block: Block) -> BlockCopy | None:
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
    """Copies of one tier of reading. Every agent is asked, since the journal does not name cached copies."""

    def __init__(self, tier: Tier, plan: ReadPlan) -> None:
        self.name: str = "local copy" if tier == "local" else tier
        self._tier: Tier = tier
        self._plan = plan

    def read(self, block: Block) -> BlockCopy | None:
        reference = BlockReference.of(block).also_at(tuple(self._plan.agent_urls))
        stored = stored_copy(reference, self._plan, self._tier)
        return None if stored is None else _exact(self.name, stored)


class DamagedCopies:
    """Copies that this host's agent set aside as damaged, if only their header or metadata is damaged and not the payload."""

    name = "damaged copy"

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def read(self, block: Block) -> BlockCopy | None:
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
    """Records that Kafka still has, by exact offsets. ``topic_ids``: ``incarnation_key`` → topic id."""

    name = "Kafka"

    def __init__(
        self,
        read_ranges: ReadRanges,
        *,
        topic_ids: Mapping[str, str],
        compression: Compression,
        keys: KeyRing | None = None,
    ) -> None:
        self._read_ranges = read_ranges
        self._topic_ids = topic_ids
        self._compression: Compression = compression
        self._keys = keys

    def read(self, block: Block) -> BlockCopy:
        from forebay.kafka.consume.block_ranges import Wanted  # loads librdkafka

        meta = block.meta
        ranges = self._read_ranges(
            [Wanted(r, self._topic_ids.get(incarnation_key(r), "")) for r in meta.ranges], meta.headers
        )
        for rows, r in zip(ranges, meta.ranges, strict=True):
            if sum(batch.num_rows for batch in rows.batches) != r.records or digest(rows.batches) != r.digest:
                raise ForebayError(
                    f"its records of {r.label} are not the records that were taken in (count or digest differs)"
                )
        payload = encode_block(ranges, meta.headers, self._compression)
        if self._keys is None and meta.key_id is not None:
            raise MissingKeyError(
                f"the block was encrypted with key {meta.key_id!r}, and may not be written unencrypted: set wal.key_file"
            )
        return BlockCopy(self.name, *completed(meta, payload, self._keys), exact=False)


class NoKafka:
    """The Kafka source if Kafka could not be reached: it has no copy, for the reason ``why``."""

    name = "Kafka"

    def __init__(self, why: str) -> None:
        self._why = why

    def read(self, block: Block) -> BlockCopy | None:
        raise UnreachableError(self._why)


def _exact(name: str, stored: StoredBlock) -> BlockCopy:
    return BlockCopy(name, stored.meta, stored.payload, exact=True)
