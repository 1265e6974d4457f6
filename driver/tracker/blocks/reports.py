"""Which reported blocks are accepted (rule 4 in ``docs/architecture/ownership.md``)."""

from __future__ import annotations

from driver.decisions.pace import Pace
from driver.journal import events as ev
from driver.tracker.blocks.replicas import Replicas
from driver.tracker.decision import Recorder
from forebay import messages as m
from forebay.model.errors import RefusedError, UsageError
from forebay.model.values import Block, BlockRange
from wal.segments.layout import parse_block


class Reports:
    """Accepts a block if each of its ranges continues at its partition's position, under the current token of its sender."""

    def __init__(self, *, recorder: Recorder, replicas: Replicas, pace: Pace) -> None:
        self._recorder = recorder
        self._pace = pace
        self._replicas = replicas

    def accept(self, request: m.ReportRequest, now_ms: int) -> m.ReportAnswer:
        """Accept the request's blocks, or say which ranges of them are stale. Raises UsageError, RefusedError.

        The answer says when the next batch is expected, unless that is unknown: none begins during a pause, a replay or while a
        batch fails.
        """
        state = self._recorder.state
        for block in request.blocks:  # all of them first: after the first applied event nothing may be refused
            self._check(block, request)
        results = []
        for block in request.blocks:
            meta = block.meta
            if meta.id in state.blocks:
                results.append(m.BlockResult(block_id=meta.id, accepted=True))  # reported again: the same answer
                continue
            stale = tuple(s for r in meta.ranges if (s := self._stale(r, request)) is not None)
            if not stale and self._is_deleted(block):
                stale = tuple(self._stale_for(r, "segment") for r in meta.ranges)
            kept = self._replicas.without_unknown(block)
            if not stale and kept is None:
                # the receiver cuts the block again and copies it to its present host
                stale = tuple(self._stale_for(r, "copy") for r in meta.ranges)
            if not stale and kept is not None:
                self._recorder.apply(ev.BlockAdded(kept))
            results.append(m.BlockResult(block_id=meta.id, accepted=not stale, stale=stale))
        following = self._pace.next_batch(now_ms)
        if following is None or state.pause is not None or state.replay is not None or state.failures:
            return m.ReportAnswer(results=tuple(results))
        return m.ReportAnswer(results=tuple(results), next_batch_ms=following.in_ms, every_ms=following.every_ms)

    def _check(self, block: Block, request: m.ReportRequest) -> None:
        state, meta = self._recorder.state, block.meta
        host = state.receivers[request.receiver_id].host
        if meta.receiver_id != request.receiver_id or meta.epoch != request.epoch or meta.stream != state.stream:
            raise UsageError(f"block {meta.id} was not written by receiver {request.receiver_id!r} under its epoch")
        if meta.host != host:
            raise UsageError(f"block {meta.id} names host {meta.host!r}, but its receiver registered on host {host!r}")
        self._replicas.check_place(block)
        waits = block.other_hosts and not block.in_wal and meta.id not in state.blocks
        if waits and not self._replicas.hosts_of(meta.receiver_id):
            # this driver has just started, or no host takes replicas: the receiver reports the block again
            raise RefusedError(
                f"block {meta.id} has replicas on {', '.join(block.other_hosts)}, but this driver knows no host yet that takes "
                f"replicas of receiver {meta.receiver_id!r}",
                "no-second-host",
            )

    def _is_deleted(self, block: Block) -> bool:
        """Whether the block's segment, or a later one, was deleted before the block was reported (INV-1).

        Clean-up deletes a segment whose end is torn: what a failed write left holds nothing. But a damaged disk may have cut off
        a block that its receiver still knows.
        """
        place = parse_block(block.handle.path) if block.in_wal else None
        return place is not None and 0 < place.sequence <= self._recorder.state.receivers[place.receiver].deleted

    def _stale(self, r: BlockRange, request: m.ReportRequest) -> m.StaleRange | None:
        """Return the reason why the range can't be accepted; None if it can."""
        partition = self._recorder.state.partition(r.tp)
        if partition is None:
            return self._stale_for(r, "life")
        owned = partition.owner == request.receiver_id and partition.owner_epoch == request.epoch
        if r.incarnation != partition.incarnation.number:
            reason = "life"
        elif r.token != partition.token or not owned:
            reason = "token"
        elif r.from_offset != partition.position:
            reason = "position"
        else:
            return None
        return self._stale_for(r, reason)

    def _stale_for(self, r: BlockRange, reason: str) -> m.StaleRange:
        partition = self._recorder.state.partition(r.tp)
        token, position = (partition.token, partition.position) if partition is not None else (0, 0)
        return m.StaleRange(topic=r.topic, partition=r.partition, reason=reason, token=token, position=position)
