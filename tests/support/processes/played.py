"""A receiver that the test plays: real WAL frames, real HTTP, each step by hand."""

from __future__ import annotations

import itertools

from forebay import messages as m
from forebay.http.client import Client
from forebay.model.digest import digest
from forebay.model.payload import encode_block
from forebay.model.records import RangeRows
from forebay.model.values import Block, BlockMeta, BlockRange, TopicPartition, block_id
from forebay.settings.schema import Settings
from tests.support.state.rows import filler, source_batch
from wal.blocks import encode_meta
from wal.blocks.digests import completed
from wal.segments import layout
from wal.segments.frame import FrameKind
from wal.segments.writer import LogWriter, SegmentIdentity, SegmentLimits
from wal.storage import open_storage

_numbers = itertools.count(1)


class PlayedReceiver:
    """Registers immediately. ``take_in`` stores and reports one block of made-up records."""

    def __init__(self, settings: Settings, url: str, receiver_id: str = "r1") -> None:
        self.settings = settings
        self.client = Client(url)
        self.receiver_id = receiver_id
        request = m.RegisterRequest(
            stream=settings.stream,
            receiver_id=receiver_id,
            host="h1",
            instance_id=f"played-{next(_numbers)}",
            release="test",
        )
        self.epoch = self.client.post("/v1/receivers/register", request, m.RegisterAnswer).epoch
        self.tokens: dict[TopicPartition, int] = {}
        self.sequence = 0
        self.writer = LogWriter(
            open_storage(settings.wal.url, settings.storage),
            lambda n: layout.block_segment(settings.stream, receiver_id, self.epoch, n),
            identity=SegmentIdentity(settings.stream, receiver_id, self.epoch, 1),
            limits=SegmentLimits(size_bytes=1, age_seconds=1000.0),  # every block begins a new segment
            now=lambda: 0.0,
            new_uid=lambda: next(_numbers),
        )

    def lookup(self, tp: TopicPartition) -> m.PartitionView:
        request = m.LookupRequest(receiver_id=self.receiver_id, epoch=self.epoch, partitions=(tp,))
        return self.client.post("/v1/partitions/look", request, m.LookupAnswer).partitions[0]

    def claim(self, tp: TopicPartition) -> m.PartitionView:
        ask = m.ClaimAsk(topic=tp.topic, partition=tp.partition, known_token=self.lookup(tp).token)
        request = m.ClaimRequest(receiver_id=self.receiver_id, epoch=self.epoch, claims=(ask,))
        (grant,) = self.client.post("/v1/partitions/claim", request, m.ClaimAnswer).claims
        assert grant.granted
        self.tokens[tp] = grant.view.token
        return grant.view

    def store(self, tp: TopicPartition, count: int) -> Block:
        """A block of ``count`` records at the position, durable in the WAL, not reported."""
        view = self.lookup(tp) if tp in self.tokens else self.claim(tp)
        batches = [source_batch(filler(count, view.position))]
        self.sequence += 1
        end = view.position + count
        r = BlockRange(
            tp.topic, tp.partition, view.incarnation, view.position, end, count, 0, digest(batches), self.tokens[tp]
        )
        meta = BlockMeta(
            id=block_id(self.receiver_id, self.epoch, self.sequence),
            stream=self.settings.stream,
            receiver_id=self.receiver_id,
            epoch=self.epoch,
            sequence=self.sequence,
            ranges=(r,),
            records=count,
            created_ms=1,
            host="h1",
        )
        meta, payload = completed(meta, encode_block([RangeRows(tp, batches)], headers=False, compression="none"), None)
        pending = self.writer.append(FrameKind.BLOCK, encode_meta(meta), payload)
        self.writer.sync()
        assert pending.handle is not None
        return Block(meta, pending.handle, local=False)

    def report(self, *blocks: Block) -> tuple[m.BlockResult, ...]:
        request = m.ReportRequest(receiver_id=self.receiver_id, epoch=self.epoch, blocks=blocks)
        return self.client.post("/v1/blocks/report", request, m.ReportAnswer).results

    def take_in(self, tp: TopicPartition, count: int) -> Block:
        block = self.store(tp, count)
        assert all(result.accepted for result in self.report(block))
        return block
