"""The offsets of a batch, for listeners and observers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import TypeAlias

import msgspec

from driver.journal import events as ev
from driver.journal.history import FinishedRange, merge, ranges_of_spans
from driver.journal.state import State
from driver.listeners.events import BatchSubmitted, Happened
from forebay.kafka.consume.spans import OffsetRange, with_incarnations
from forebay.messages import BatchRange
from forebay.model.values import Block, BlockRange


def batch_ranges(ranges: Iterable[FinishedRange | BlockRange]) -> tuple[BatchRange, ...]:
    """Return ranges of a batch or block as messages."""
    return tuple(
        BatchRange(
            topic=r.topic,
            partition=r.partition,
            incarnation=r.incarnation,
            from_offset=r.from_offset,
            until_offset=r.until_offset,
            records=r.records,
            bytes=r.bytes,
        )
        for r in ranges
    )


#: maximum number of blocks of a batch whose offsets are joined where other work waits
BLOCKS_SOON_MAX = 1_000


class SubmittedOffsets:
    """The offsets of a submitted batch, read at their first use: joining 500,000 ranges takes 0.4 s, so the decision loop, which
    makes the event, does not.

    ``blocks``: those of the journal's state, which keeps the blocks of a batch until it is completed. ``spans``: in a direct
    stream, with their incarnations. ``expected``: about how many ranges they are.
    """

    def __init__(
        self,
        *,
        blocks: Mapping[str, Block],
        tasks: Sequence[Sequence[str]] = (),
        spans: Sequence[tuple[OffsetRange, int]] = (),
        expected: int | None = None,
    ) -> None:
        self._blocks = blocks
        self._tasks = tasks
        self._spans = spans
        #: number of blocks and spans
        self.items = sum(map(len, tasks)) + len(spans)
        self.expected = self.items if expected is None else expected

    @cached_property
    def ranges(self) -> tuple[BatchRange, ...]:
        """The ranges by partition, touching ones joined; () if a block is deleted already, as when a listener is far behind."""
        found = [self._blocks.get(block_id) for block_id in chain.from_iterable(self._tasks)]
        blocks = [block for block in found if block is not None]
        if len(blocks) < len(found):
            return ()
        of_blocks = chain.from_iterable(block.meta.ranges for block in blocks)
        return batch_ranges(merge(chain(of_blocks, ranges_of_spans(self._spans))))


#: returns batch id → offsets, of the batches that an event of the journal submits
OffsetsOf: TypeAlias = Callable[[ev.Event], Mapping[int, SubmittedOffsets]]


def unknown_offsets(_: ev.Event) -> Mapping[int, SubmittedOffsets]:
    """Return no offsets: those of no batch are known."""
    return {}


def submitted_offsets(state: State, event: ev.Event) -> Mapping[int, SubmittedOffsets]:
    """Return the offsets of the batches that ``event``, which ``state`` contains, submits. Visits no block."""
    match event:
        case ev.BatchAllocated():
            partitions = len(state.index.reached.get(event.batch_id, ()))
            return {event.batch_id: SubmittedOffsets(blocks=state.blocks, tasks=event.tasks, expected=partitions)}
        case ev.SpansAllocated():
            batch = state.batches.get(event.batch_id)
            spans = tuple(batch.spans_with_incarnations) if batch is not None else ()
            return {event.batch_id: SubmittedOffsets(blocks=state.blocks, spans=spans)}
        case ev.ReplayBegun():
            return {
                batch.batch_id: SubmittedOffsets(
                    blocks=state.blocks,
                    tasks=batch.tasks,
                    spans=tuple(with_incarnations(batch.spans, batch.incarnations)),
                )
                for batch in event.batches
            }
        case _:
            return {}


def with_offsets(happened: Happened, offsets: Mapping[int, SubmittedOffsets]) -> Happened:
    """Return the event with its offsets if it submits one of the batches in ``offsets``."""
    if isinstance(happened, BatchSubmitted) and (found := offsets.get(happened.batch_id)) is not None:
        return msgspec.structs.replace(happened, ranges=found.ranges)
    return happened
