"""Traces of blocks at their receiver: from the seal of a block until the driver has accepted it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from forebay.model.values import Block
from forebay.process.clock import Clock
from receiver import actions as act
from receiver import inputs as inp

if TYPE_CHECKING:
    from forebay.traces.spans import Spans

log = logging.getLogger(__name__)

#: maximum number of ranges that a span names
RANGES_MAX = 10


@dataclass(slots=True)
class _Stored:
    block: Block
    sealed_ns: int
    reported_ns: int = 0


class BlockTraces:
    """Makes spans from the inputs and actions of one receiver, in the order in which its machine sees them.

    A block's trace has the root span ``block``, and the steps ``store`` (until it is durable) and ``report`` (until the driver
    has accepted it). Never raises: if a span can't be made, the first error is logged, and the receiver continues without it.
    """

    def __init__(self, spans: Spans, clock: Clock) -> None:
        self._spans = spans
        self._since_ns = clock.wall_ms() * 1_000_000 - round(clock.monotonic() * 1e9)
        self._failed = False
        self._storing: dict[int, int] = {}  # sequence → when the block was sealed
        self._stored: dict[str, _Stored] = {}  # block id → a durable block without an answer; bounded by the machine

    def acted(self, action: act.Action, now: float) -> None:
        """Note an action before it is performed."""
        match action:
            case act.StoreBlock():
                self._storing[action.pending.sequence] = self._wall_ns(now)
            case act.Report():
                for block in action.message.blocks:
                    if (stored := self._stored.get(block.id)) is not None:
                        stored.reported_ns = self._wall_ns(now)

    def observe(self, event: inp.Input, now: float) -> None:
        """Note an input."""
        match event:
            case inp.BlockStored() if event.sequence in self._storing:
                sealed_ns = self._storing.pop(event.sequence)
                self._stored[event.block.id] = _Stored(event.block, sealed_ns)
                with self._caught():
                    self._spans.child("block", event.block.id, "store", begun_ns=sealed_ns, ended_ns=self._wall_ns(now))
            case inp.ReportAnswered():
                for result in event.results:
                    stored = self._stored.pop(result.block_id, None)
                    if stored is not None and result.accepted:
                        with self._caught():
                            self._accepted(stored, self._wall_ns(now))

    @contextmanager
    def _caught(self) -> Iterator[None]:
        try:
            yield
        except Exception:
            if not self._failed:
                log.exception("cannot make a span: some blocks have no trace")
            self._failed = True

    def _accepted(self, stored: _Stored, now_ns: int) -> None:
        meta = stored.block.meta
        self._spans.child("block", meta.id, "report", begun_ns=stored.reported_ns, ended_ns=now_ns)
        attributes = {
            "forebay.block": meta.id,
            "forebay.receiver": meta.receiver_id,
            "forebay.records": meta.records,
            "forebay.bytes": sum(held.bytes for held in meta.ranges),
            "forebay.ranges": [held.label for held in meta.ranges[:RANGES_MAX]],
        }
        self._spans.root("block", meta.id, begun_ns=stored.sealed_ns, ended_ns=now_ns, attributes=attributes)

    def _wall_ns(self, now: float) -> int:
        return self._since_ns + round(now * 1e9)
