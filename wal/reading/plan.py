"""How the tasks of a batch may read: the tiers, and what each of them needs."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from forebay.kafka.options.access import KafkaAccess
from forebay.model.values import TIERS, Tier
from forebay.security.access import NO_ACCESS, Access
from wal.storage import StorageOptions

__all__ = ["TIERS", "ReadPlan", "Tier"]


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
