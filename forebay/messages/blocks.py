"""Messages with which a receiver reports the blocks that it has stored."""

from __future__ import annotations

from forebay.messages.message import Message
from forebay.model.values import Block, Number, Offset, PartitionNumber, Text


class ReportRequest(Message, frozen=True, kw_only=True):
    """POST /v1/blocks/report. Sealed and stored blocks in order of their sequence; repeated until answered."""

    receiver_id: Text
    epoch: Number
    blocks: tuple[Block, ...]


class StaleRange(Message, frozen=True, kw_only=True):
    topic: str
    partition: PartitionNumber
    reason: str  # token | life | position | copy (the second copy lies where none was sent)
    token: Number  # the newest token now
    position: Offset  # the durable position now


class BlockResult(Message, frozen=True, kw_only=True):
    block_id: str
    accepted: bool
    stale: tuple[StaleRange, ...] = ()


class ReportAnswer(Message, frozen=True, kw_only=True):
    results: tuple[BlockResult, ...]  # in the order reported
