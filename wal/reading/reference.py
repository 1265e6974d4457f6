"""The input of a reading task: references to its blocks, as the journal has them, and the plan that says how to read them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from forebay.kafka.options.access import KafkaAccess
from forebay.model.errors import ForebayError
from forebay.model.values import TIERS, Block, BlockRange, Handle, Tier
from forebay.security.access import NO_ACCESS, Access
from wal.blocks import StoredBlock
from wal.storage import StorageOptions

__all__ = ["TIERS", "BlockReference", "Fetched", "ReadPlan", "Tier", "incarnation_key"]

#: memory of a record's columns beside key, value and headers
_RECORD_BYTES = 40


class BlockReference(msgspec.Struct, frozen=True, gc=False):
    """What a task needs to find and verify one block. Small; can be pickled.

    ``host``: the host of the receiver that wrote the block; it keeps a copy if ``local``. ``other_hosts``: more hosts that keep
    a copy.
    """

    id: str
    stream: str
    ranges: tuple[BlockRange, ...]
    records: int
    handle: Handle
    host: str
    local: bool
    headers: bool = False
    other_hosts: tuple[str, ...] = ()
    sha256: bytes | msgspec.UnsetType = msgspec.UNSET

    @classmethod
    def of(cls, block: Block) -> BlockReference:
        meta = block.meta
        return cls(
            meta.id,
            meta.stream,
            meta.ranges,
            meta.records,
            block.handle,
            meta.host,
            block.local,
            meta.headers,
            block.other_hosts,
            meta.sha256,
        )

    def also_at(self, hosts: tuple[str, ...]) -> BlockReference:
        """Return the reference with ``hosts`` added to the hosts that keep a copy."""
        more = tuple(host for host in hosts if host not in self.hosts)
        return msgspec.structs.replace(self, other_hosts=self.other_hosts + more) if more else self

    @property
    def hosts(self) -> tuple[str, ...]:
        """All hosts that keep a copy, the receiver's first."""
        return (self.host, *self.other_hosts) if self.local else self.other_hosts

    @property
    def decoded_bytes(self) -> int:
        """Return about how many bytes the decoded block needs in memory; compressed blocks need more than they have in a store.

        Compressed headers are not counted, nor are compressed blocks of releases that did not write ``BlockRange.bytes``.
        """
        columns = sum(range_.bytes for range_ in self.ranges) + self.records * _RECORD_BYTES
        return max(self.handle.length, columns)

    @property
    def in_wal(self) -> bool:
        return bool(self.handle.path)


class ReadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """How the tasks of a batch may read. Can be pickled.

    ``storage``: options of the stores' clients (``Settings.storage``). ``blocks_directory``: where a host keeps its copies, the
    same path on every host. ``agent_urls``: host → URL of its agent. ``lost``: labels of ranges whose loss an operator has
    accepted; they are skipped. ``headers``: every batch gets a headers column, also one from a block without headers.
    ``key_file``: where a task finds the keys of encrypted blocks (``wal.blocks.encryption``), the same path on every host.
    ``access``: the token and certificates for agents. ``store_back``: send a block that had to be read from the WAL to the agent
    of the task's host. ``kafka``: None if the Kafka tier is switched off. ``topic_ids``: ``incarnation_key`` of each
    range → the topic's id in that incarnation.
    """

    wal_url: str
    storage: StorageOptions = {}
    blocks_directory: str | None = None
    agent_urls: Mapping[str, str] = {}
    headers: bool = False
    tiers: tuple[Tier, ...] = TIERS
    lost: frozenset[str] = frozenset()
    verify_digests: bool = False
    agent_timeout_seconds: float = 5.0
    key_file: str | None = None
    kafka: KafkaAccess | None = None
    topic_ids: Mapping[str, str] = {}
    access: Access = NO_ACCESS
    store_back: bool = False


#: what a tier returned for one block: the block as it keeps it, its frame verified; why not; None if the tier does not apply
Fetched = tuple[BlockReference, StoredBlock | ForebayError | OSError | None]


def incarnation_key(range_: BlockRange) -> str:
    """Return the key of the range's incarnation in ``ReadPlan.topic_ids``."""
    return f"{range_.topic}/{range_.partition}/{range_.incarnation}"
