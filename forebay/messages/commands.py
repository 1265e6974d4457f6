"""Commands of the driver, which it sends in its answers to heartbeats."""

from __future__ import annotations

from forebay.messages.message import Message
from forebay.model.values import Amount, Number, PartitionNumber, TopicPartition


class PartitionRate(Message, frozen=True, kw_only=True):
    topic: str
    partition: PartitionNumber
    records_per_second: Amount


class Rates(Message, frozen=True, kw_only=True):
    """What a receiver may take in: in all, and of each partition named."""

    records_per_second: Amount
    partitions: tuple[PartitionRate, ...] = ()


class Command(Message, frozen=True, kw_only=True):
    """An order that rides on the answer to a heartbeat, repeated until its ``version`` is acknowledged; idempotent.

    kind: ``stop`` | ``drain`` (receivers), ``reclaim`` (``partitions``: claim these again), ``rate`` (``rates``: take in no more;
    a newer one replaces it), ``delete`` (agents: ``blocks``),
    ``start-receiver`` | ``stop-receiver`` (it drains) | ``kill-receiver`` (agents: ``receiver_id``). The last three are not
    acknowledged: they are repeated until the agent's heartbeat says that it is so. A start is done once for its version,
    the others only to a start that is not newer than they are.
    ``driver_epoch`` below the highest one seen: refused by whoever gets it (INV-4).
    """

    version: Number
    driver_epoch: Number
    kind: str
    partitions: tuple[TopicPartition, ...] = ()
    blocks: tuple[str, ...] = ()
    receiver_id: str = ""
    rates: Rates | None = None
