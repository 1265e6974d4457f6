"""Commands of the driver to receivers and agents, sent in the answers to their heartbeats."""

from __future__ import annotations

from forebay.messages.message import Message
from forebay.model.bounds import Amount, Number, PartitionNumber
from forebay.model.values import TopicPartition


class PartitionRate(Message, frozen=True, kw_only=True):
    """Maximum intake rate of one partition."""

    topic: str
    partition: PartitionNumber
    records_per_second: Amount


class Rates(Message, frozen=True, kw_only=True):
    """Maximum intake rates of a receiver: in total, and of each partition named."""

    records_per_second: Amount
    partitions: tuple[PartitionRate, ...] = ()


class Command(Message, frozen=True, kw_only=True):
    """One command. It is idempotent, and the driver repeats it until its ``version`` is acknowledged.

    ``kind`` for receivers: ``stop``, ``drain``, ``restart`` (drain, and exit with the code after which a supervisor starts the
    receiver again), ``reclaim`` (claim ``partitions`` again) or ``rate`` (take in at most ``rates``; a newer command replaces an
    older one).

    ``kind`` for agents: ``delete`` (delete ``blocks``), ``start-receiver``, ``stop-receiver`` (it drains) or ``kill-receiver``
    (these three: ``receiver_id``). The last three are not acknowledged. The driver repeats them until the agent's heartbeat shows
    the result. The agent does a start once for each version, and applies the other two only to a start with the same or a lower
    version.

    The recipient refuses a command with a ``driver_epoch`` below the highest one that it has seen (INV-4).
    """

    version: Number
    driver_epoch: Number
    kind: str
    partitions: tuple[TopicPartition, ...] = ()
    blocks: tuple[str, ...] = ()
    receiver_id: str = ""
    rates: Rates | None = None
