"""Reports of the blocks that a receiver has stored."""

from __future__ import annotations

from forebay.messages.message import Message
from forebay.model.bounds import Number, NumberOrNone, Offset, PartitionNumber, Text
from forebay.model.values import Block


class ReportRequest(Message, frozen=True, kw_only=True):
    """POST /v1/blocks/report. Reports sealed and stored blocks, in the order of their sequence numbers.

    The receiver repeats the request until it is answered.
    """

    receiver_id: Text
    epoch: Number
    blocks: tuple[Block, ...]


class StaleRange(Message, frozen=True, kw_only=True):
    """A range of a refused block that the journal can't accept.

    ``reason``: what does not match the journal: ``token``, ``life`` (the incarnation), ``position``, ``copy`` (the block names
    a replica host to which no replica was sent), or ``segment`` (clean-up has deleted its segment).
    """

    topic: str
    partition: PartitionNumber
    reason: str
    token: Number  # the newest token now
    position: Offset  # the durable position now


class BlockResult(Message, frozen=True, kw_only=True):
    """Decision on one reported block."""

    block_id: str
    accepted: bool
    stale: tuple[StaleRange, ...] = ()


class ReportAnswer(Message, frozen=True, kw_only=True):
    """Answer to :class:`ReportRequest`.

    ``next_batch_ms``: in how many milliseconds the driver expects to make the next batch; -1: unknown, or an older release.
    ``every_ms``: how long after that it expects to make the following one. A receiver may seal a block early for them.
    """

    results: tuple[BlockResult, ...]  # in the order of the request
    next_batch_ms: NumberOrNone = -1
    every_ms: Number = 0
