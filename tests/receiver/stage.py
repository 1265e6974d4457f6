"""A stage for one machine: gives it inputs, keeps its actions, and plays the group, the stores and the driver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from forebay.messages import BlockResult, ClaimGrant, Command, PartitionView, StaleRange
from forebay.model.columns import Columns, Start
from forebay.model.identifiers import numbered
from forebay.model.units import Duration, Size
from forebay.model.values import Block, BlockMeta, BlockRange, Handle, TopicPartition, block_id
from forebay.settings.schema import ReceiverSettings
from receiver import actions as act
from receiver import inputs as inp
from receiver.blocks.pending_block import PendingBlock
from receiver.machine import ReceiverIdentity, ReceiverMachine

A = TypeVar("A", bound=act.Action)

EPOCH = numbered(1, 7)
P0, P1, P2 = (TopicPartition("t", n) for n in range(3))


def settings(**changes: object) -> ReceiverSettings:
    values: dict[str, object] = {
        "block_interval": Duration(1.0),
        "block_size": Size(1000),
        "memory": Size(10_000),
        "reclaim_delay": Duration(0.5),
        "report_timeout": Duration(10.0),
        "drain_timeout": Duration(20.0),
        "heartbeat_interval": Duration(5.0),
    }
    return ReceiverSettings(**{**values, **changes})  # type: ignore[arg-type]


def columns(tp: TopicPartition, generation: int, offsets: Sequence[int], record_bytes: int = 10) -> Columns:
    """Records at ``offsets``; the opaque batch is the tuple of offsets."""
    rows = tuple(offsets)
    return Columns(tp, generation, rows[0], rows[-1], len(rows), len(rows) * record_bytes, 5, 3, rows)


def offsets_of(pending: PendingBlock, tp: TopicPartition) -> list[int]:
    """Return the offsets that a store would write of ``tp``: the rows of each piece from its offset on."""
    return [
        offset
        for part in pending.ranges
        if part.tp == tp
        for piece in part.pieces
        for offset in piece.columns.batch
        if offset >= piece.from_offset
    ]


def bounds(pending: PendingBlock, tp: TopicPartition) -> tuple[int, int]:
    (part,) = [part for part in pending.ranges if part.tp == tp]
    return part.from_offset, part.until_offset


def stored(pending: PendingBlock, local: bool = True) -> Block:
    ranges = []
    for part in pending.ranges:
        rows = len(offsets_of(pending, part.tp))
        ranges.append(
            BlockRange(
                topic=part.tp.topic,
                partition=part.tp.partition,
                incarnation=part.incarnation,
                from_offset=part.from_offset,
                until_offset=part.until_offset,
                records=rows,
                leader_epoch=part.leader_epoch,
                digest="0" * 16,
                token=part.token,
                preceding_gap=part.preceding_gap,
            )
        )
    meta = BlockMeta(
        id=block_id("r", pending.epoch, pending.sequence),
        stream="s",
        receiver_id="r",
        epoch=pending.epoch,
        sequence=pending.sequence,
        ranges=tuple(ranges),
        records=sum(part.records for part in ranges),
        created_ms=0,
        host="h",
    )
    return Block(meta=meta, handle=Handle("x", 0, 1, 0), local=local)


def view(tp: TopicPartition, position: int = 0, token: int = 1, incarnation: int = 1, **more: object) -> PartitionView:
    values = {"topic": tp.topic, "partition": tp.partition, "known": True, "token": token, "incarnation": incarnation}
    return PartitionView(**{**values, "position": position, **more})  # type: ignore[arg-type]


class Stage:
    """``now`` moves only by :meth:`wait`. Actions stay in ``actions`` until taken."""

    def __init__(self, *, by_pattern: bool = False, **changes: object) -> None:
        self.now = 100.0
        self.machine = ReceiverMachine(
            ReceiverIdentity("s", "r", "h", "instance", "0"), settings(**changes), by_pattern=by_pattern
        )
        self.actions: list[act.Action] = []
        self.tokens = 10

    def tell(self, event: inp.Input) -> Stage:
        self.actions += self.machine.handle(event, self.now)
        return self

    def wait(self, seconds: float) -> Stage:
        self.now += seconds
        return self.tell(inp.Tick())

    def all(self, kind: type[A]) -> list[A]:
        found: list[A] = [action for action in self.actions if isinstance(action, kind)]
        self.actions = [action for action in self.actions if not isinstance(action, kind)]
        return found

    def one(self, kind: type[A]) -> A:
        found = self.all(kind)
        assert len(found) == 1, f"{len(found)} {kind.__name__} among {self.actions}"
        return found[0]

    def none(self, kind: type[A]) -> None:
        assert not self.all(kind)

    # ---- group, stores, driver ---------------------------------------------------------------------------------------

    def register(self) -> Stage:
        self.tell(inp.Tick())
        self.tell(inp.Registered(self.one(act.Register).request, EPOCH, numbered(1, 1), 1))
        self.one(act.Subscribe)
        return self

    def claim(
        self, views: Mapping[TopicPartition, PartitionView], granted_at: Mapping[TopicPartition, int] = {}
    ) -> list[Start]:
        """Play one round of claims that is due: the lookup answers ``views``, and the claim is granted at those positions."""
        look = self.one(act.Lookup)
        assert set(look.message.partitions) == set(views)
        self.tell(inp.LookupAnswered(look.request, tuple(views.values())))
        self.tell(inp.CommitSynced(self.one(act.CommitSync).request, {}))
        claim = self.one(act.Claim)
        grants = []
        for ask in claim.message.claims:
            tp = TopicPartition(ask.topic, ask.partition)
            assert ask.known_token == views[tp].token
            self.tokens += 1
            seen = views[tp]
            new = view(
                tp, granted_at.get(tp, seen.position), self.tokens, seen.incarnation,
                topic_id=seen.topic_id, preceding_gap=seen.preceding_gap,
            )  # fmt: skip
            grants.append(ClaimGrant(granted=True, view=new))
        self.tell(inp.Claimed(claim.request, tuple(grants)))
        return [start for action in self.all(act.StartPartitions) for start in action.starts]

    def own(self, *partitions: TopicPartition, position: int = 0, **more: Any) -> dict[TopicPartition, Start]:
        """Register, assign and start; return the starts."""
        self.register()
        self.tell(inp.Assigned(partitions))
        starts = self.claim({tp: view(tp, position, **more) for tp in partitions})
        return {start.tp: start for start in starts}

    def poll(self, start: Start, offsets: Sequence[int], record_bytes: int = 10) -> Stage:
        return self.tell(inp.Polled([columns(start.tp, start.generation, offsets, record_bytes)]))

    def store(self, *pending_blocks: PendingBlock) -> Stage:
        for pending in pending_blocks:
            self.tell(inp.BlockStored(pending.sequence, stored(pending)))
        return self

    def sealed(self) -> list[PendingBlock]:
        return [action.pending for action in self.all(act.StoreBlock)]

    def seal_and_store(self) -> list[PendingBlock]:
        self.wait(1.0)
        pending_blocks = self.sealed()
        self.store(*pending_blocks)
        return pending_blocks

    def answer(self, refused: Mapping[int, Sequence[TopicPartition]] = {}) -> act.Report:
        """Answer the report in flight: accept all blocks except the sequences in ``refused``, with these stale partitions."""
        report = self.one(act.Report)
        results = []
        for block in report.message.blocks:
            stale = tuple(
                StaleRange(topic=tp.topic, partition=tp.partition, reason="token", token=99, position=0)
                for tp in refused.get(block.meta.sequence, ())
            )
            accepted = block.meta.sequence not in refused
            results.append(BlockResult(block_id=block.id, accepted=accepted, stale=stale))
        self.tell(inp.ReportAnswered(report.request, tuple(results)))
        return report


def answer_beat(stage: Stage, driver_epoch: int, *commands: Command) -> act.Heartbeat:
    """Wait for the next heartbeat, answer it with ``commands``, and return it."""
    stage.wait(5.0)
    beat = stage.all(act.Heartbeat)[-1]
    stage.tell(inp.HeartbeatAnswered(beat.request, driver_epoch, commands))
    return beat
