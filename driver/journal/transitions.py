"""What each event of the journal changes: :func:`apply`, the only function that changes the driver's state (INV-7).

It trusts that an event was decided rightly, and checks what would be a broken invariant: it raises
:class:`driver.journal.state.BrokenInvariant`, and nothing goes on after that.
"""

from __future__ import annotations

from itertools import chain

import msgspec

from driver.journal import events as ev
from driver.journal.block_index import lowest
from driver.journal.receiver_limits import claiming, gives_way
from driver.journal.state import (
    ADOPTER,
    Batch,
    BrokenInvariant,
    Cleanup,
    Cursor,
    EndedCursor,
    EndedEpoch,
    Incarnation,
    LearnedRate,
    OpenFault,
    Partition,
    Receiver,
    RecordedGap,
    Replay,
    SnapshotCopy,
    State,
    Writer,
)
from forebay.kafka.consume.spans import Span
from forebay.model.values import Block, Gap, numbered
from wal.segments.layout import parse_block

#: superseded instances of a receiver that are remembered
PAST_INSTANCES = 16
#: replays that are remembered: those before them have ended, and the audit only counts them
REPLAYS_KEPT = 1_000
#: ended epochs that are remembered until they are barred; what an older one sent does not land any more
UNBARRED_MAX = 256
#: cursors that ended and are remembered, so that whoever comes back to one learns why it is gone
ENDED_CURSORS_KEPT = 32


def apply(state: State, event: ev.Event) -> None:
    """Changes ``state`` by ``event``; raises BrokenInvariant if the two contradict each other."""
    try:
        _APPLY[type(event)](state, event)  # type: ignore[operator]
    except (LookupError, ValueError, StopIteration) as error:
        raise BrokenInvariant(f"{type(event).__name__} contradicts the state: {error!r}") from error
    state.events += 1


def _stream_created(state: State, event: ev.StreamCreated) -> None:
    if state.created:
        raise BrokenInvariant("the stream was created twice")
    state.created = True
    _add_partitions(state, event.starts, event.time_ms, event.cause)


def _partitions_added(state: State, event: ev.PartitionsAdded) -> None:
    _add_partitions(state, event.starts, event.time_ms, event.cause)


def _add_partitions(state: State, starts: tuple[ev.IncarnationStart, ...], time_ms: int, cause: str) -> None:
    state.shaped = state.events + 1
    for start in starts:
        key = f"{start.topic}/{start.partition}"
        if key in state.partitions:
            raise BrokenInvariant(f"partition {key} was added twice")
        state.topics[start.topic] = True
        for cursor in state.cursors.values():  # held for it until its user says that it does not read it
            cursor.vector[key] = (1, start.start)
        if state.cursors:
            state.index.read_to(key, (1, start.start), state.blocks)
        state.partitions[key] = Partition(
            topic=start.topic,
            partition=start.partition,
            incarnations=[
                Incarnation(number=1, topic_id=start.topic_id, start=start.start, time_ms=time_ms, cause=cause)
            ],
            position=start.start,
            completed=start.start,
            leader_epoch=start.leader_epoch,
        )


def _incarnation_begun(state: State, event: ev.IncarnationBegun) -> None:
    start = event.start
    state.shaped = state.events + 1
    partition = _partition(state, start.topic, start.partition)
    partition.incarnation.end = partition.position
    partition.incarnations.append(
        Incarnation(
            number=partition.incarnation.number + 1,
            topic_id=start.topic_id,
            start=start.start,
            time_ms=event.time_ms,
            cause=event.cause,
        )
    )
    partition.position = partition.completed = start.start
    partition.leader_epoch = start.leader_epoch
    partition.fault = None
    partition.writers = []
    _end_claim(partition)


def _receiver_registered(state: State, event: ev.ReceiverRegistered) -> None:
    _begin_epoch(state, event.receiver_id, event.epoch, event.host, event.instance_id)


def _receiver_fenced(state: State, event: ev.ReceiverFenced) -> None:
    _begin_epoch(state, event.receiver_id, event.epoch, state.receivers[event.receiver_id].host, "")


def _receivers_forgotten(state: State, event: ev.ReceiversForgotten) -> None:
    needed = claiming(state)
    for receiver_id in event.receiver_ids:
        if receiver_id in needed:
            raise BrokenInvariant(f"receiver {receiver_id} was forgotten while it may write under a token (INV-4)")
        del state.receivers[receiver_id]


def _begin_epoch(state: State, receiver_id: str, epoch: int, host: str, instance_id: str) -> None:
    if epoch != state.next_epoch():
        raise BrokenInvariant(f"epoch {epoch} of receiver {receiver_id} is not the next one (INV-4)")
    state.epochs += 1
    if (forgotten := gives_way(state, receiver_id)) is not None:
        del state.receivers[forgotten]
    older = state.receivers.get(receiver_id)
    if older is not None and any(w.receiver_id == receiver_id for p in state.partitions.values() for w in p.writers):
        ended = EndedEpoch(receiver_id, older.epoch, older.segments)
        state.unbarred = [*state.unbarred, ended][-UNBARRED_MAX:]
    for partition in state.partitions.values():
        if partition.owner == receiver_id:
            _end_claim(partition)
        _settle(partition, receiver_id)
    past = (older.instance_id, *older.past) if older is not None and older.instance_id else older.past if older else ()
    state.receivers[receiver_id] = Receiver(
        receiver_id=receiver_id,
        epoch=epoch,
        host=host,
        instance_id=instance_id,
        past=past[:PAST_INSTANCES],
    )


def _claim_given(state: State, event: ev.ClaimGiven) -> None:
    if event.token != state.next_token():
        raise BrokenInvariant(f"token {event.token} is not the next one (INV-4)")
    receiver = state.receivers.get(event.receiver_id)
    if receiver is None or receiver.epoch != event.epoch:
        raise BrokenInvariant(f"token {event.token} was given to an outdated epoch of {event.receiver_id} (INV-4)")
    state.tokens += 1
    partition = _partition(state, event.topic, event.partition)
    partition.token = event.token
    partition.owner = event.receiver_id
    partition.owner_epoch = event.epoch
    _settle(partition, event.receiver_id)
    partition.writers.append(Writer(event.receiver_id, event.epoch, event.token, event.claim))


def _claim_released(state: State, event: ev.ClaimReleased) -> None:
    partition = _partition(state, event.topic, event.partition)
    if partition.token != event.token:
        raise BrokenInvariant(f"an outdated token of {partition.tp} was released (INV-4)")
    _settle(partition, partition.owner)
    _end_claim(partition)


def _writer_settled(state: State, event: ev.WriterSettled) -> None:
    partition = _partition(state, event.topic, event.partition)
    if partition.owner == event.receiver_id:
        raise BrokenInvariant(f"{event.receiver_id} owns {partition.tp}, and was taken for settled (INV-4)")
    _settle(partition, event.receiver_id)


def _epoch_barred(state: State, event: ev.EpochBarred) -> None:
    state.unbarred = [e for e in state.unbarred if (e.receiver_id, e.epoch) != (event.receiver_id, event.epoch)]


def _count_segment(state: State, path: str) -> None:
    """Of an epoch that may still have to be barred: a segment that may be deleted, or is about to be."""
    place = parse_block(path)
    if place is None:
        return
    receiver = state.receivers.get(place.receiver)
    if receiver is not None and receiver.epoch == place.epoch:
        receiver.segments = max(receiver.segments, place.sequence)
        return
    state.unbarred = [
        EndedEpoch(e.receiver_id, e.epoch, max(e.segments, place.sequence))
        if (e.receiver_id, e.epoch) == (place.receiver, place.epoch)
        else e
        for e in state.unbarred
    ]


def _block_added(state: State, event: ev.BlockAdded) -> None:
    block = event.block
    if block.meta.id in state.blocks:
        raise BrokenInvariant(f"block {block.meta.id} was added twice (INV-2)")
    if not block.in_wal and not block.hosts:
        raise BrokenInvariant(f"block {block.meta.id} is held by no WAL and no host (INV-1)")
    for r in block.meta.ranges:
        partition = _partition(state, r.topic, r.partition)
        if r.incarnation != partition.incarnation.number or r.from_offset != partition.position:
            raise BrokenInvariant(
                f"block {block.meta.id}: {r.label} of life {r.incarnation} does not continue position {partition.position} "
                f"of life {partition.incarnation.number} (INV-2)"
            )
        if r.token != partition.token or partition.owner != block.meta.receiver_id:
            raise BrokenInvariant(f"block {block.meta.id}: {r.label} came under an outdated token (INV-4)")
        partition.position = r.until_offset
        if partition.fault is not None:  # where a receiver goes on by itself nothing is left to decide
            adopted = block.meta.receiver_id == ADOPTER
            partition.fault = partition.fault.moved(r.until_offset) if adopted else None
        if r.leader_epoch >= 0:
            partition.leader_epoch = r.leader_epoch
    receiver = state.receivers[block.meta.receiver_id]
    receiver.accepted = max(receiver.accepted, block.meta.sequence)
    _count_segment(state, block.handle.path)
    state.blocks[block.meta.id] = block
    state.index.add(block)
    state.waiting[block.meta.id] = True
    state.index.waiting_records += block.meta.records


def _block_moved(state: State, event: ev.BlockMoved) -> None:
    block = state.blocks.get(event.block_id)
    if block is None:
        raise BrokenInvariant(f"block {event.block_id} was moved, and the journal names no such block")
    if event.local and not (block.local and event.handle.checksum == block.handle.checksum):
        raise BrokenInvariant(f"block {event.block_id} was moved to bytes that its local copy does not hold")
    if event.handle.path in state.cleaning_segments:
        raise BrokenInvariant(f"block {event.block_id} was moved into a segment that is being deleted (INV-8)")
    sha256 = event.sha256
    if sha256 is msgspec.UNSET and event.handle.checksum == block.handle.checksum:
        sha256 = block.meta.sha256  # the same bytes at another place
    meta = msgspec.structs.replace(block.meta, sha256=sha256)
    state.blocks[block.id] = msgspec.structs.replace(block, meta=meta, handle=event.handle, local=event.local)
    state.index.move(block, state)


def _fault_recorded(state: State, event: ev.FaultRecorded) -> None:
    _partition(state, event.topic, event.partition).fault = OpenFault(
        kind=event.kind,
        position=event.position,
        accept_until=event.accept_until,
        new_incarnation=event.new_incarnation,
        topic_id=event.topic_id,
        leader_epoch=event.leader_epoch,
    )


def _adoption_tried(state: State, event: ev.AdoptionTried) -> None:
    partition = _partition(state, event.topic, event.partition)
    if partition.fault is None or event.token != partition.token:
        raise BrokenInvariant(f"adoption was tried in {partition.tp}, which has no trouble or a newer token (INV-2)")
    partition.fault = msgspec.structs.replace(partition.fault, tried=event.token, adoptable_from=event.adoptable_from)


def _gap_recorded(state: State, event: ev.GapRecorded) -> None:
    partition = _partition(state, event.topic, event.partition)
    if event.gap.from_offset != partition.position:
        raise BrokenInvariant(f"a gap of {partition.tp} begins at {event.gap.from_offset}, not at the position (INV-2)")
    partition.gaps.append(RecordedGap(incarnation=partition.incarnation.number, gap=event.gap, time_ms=event.time_ms))
    partition.position = event.gap.until_offset
    _complete_gaps(partition)
    partition.fault = partition.fault.moved(partition.position) if partition.fault is not None else None
    partition.writers = []
    _end_claim(partition)


def _batch_allocated(state: State, event: ev.BatchAllocated) -> None:
    if event.batch_id != state.next_batch_id():
        raise BrokenInvariant(f"batch {event.batch_id} is not the next one")
    state.batch_count += 1
    block_ids = list(chain.from_iterable(event.tasks))
    taken = dict.fromkeys(block_ids, event.batch_id)
    if len(taken) != len(block_ids) or not taken.keys() <= state.waiting.keys():
        wrong = next((block_id for block_id in block_ids if block_id not in state.waiting), "one that is named twice")
        raise BrokenInvariant(f"batch {event.batch_id}: block {wrong} was not waiting (INV-3)")
    state.batch_of.update(taken)
    if len(taken) == len(state.waiting):  # as ever, unless batches are limited
        records = state.index.waiting_records
        state.waiting.clear()
    else:
        records = sum(block.meta.records for block in map(state.blocks.__getitem__, block_ids))
        for block_id in block_ids:
            del state.waiting[block_id]
    state.index.waiting_records -= records
    state.index.records[event.batch_id] = records
    state.batches[event.batch_id] = Batch(
        batch_id=event.batch_id, number=event.number, time_ms=event.time_ms, tasks=event.tasks
    )


def _spans_begun(state: State, event: ev.SpansBegun) -> None:
    known = event.offsets.keys() & state.next_offsets.keys()
    if known:
        raise BrokenInvariant(f"partition {min(known)} of a direct stream begins twice (INV-2)")
    state.created = state.direct = True
    for key, offset in event.offsets.items():
        topic, _, number = key.rpartition("/")
        before = state.partitions.get(key)
        incarnation = Incarnation(
            before.incarnation.number + 1 if before else 1,
            event.topic_ids.get(topic, ""),
            offset,
            event.time_ms,
            event.cause,
        )
        if before is None:
            state.partitions[key] = Partition(topic, int(number), [incarnation], offset, offset, leader_epoch=-1)
        else:
            before.incarnations.append(incarnation)
            before.position = before.completed = offset
    state.next_offsets.update(event.offsets)
    state.topic_ids.update(event.topic_ids)


def _spans_ended(state: State, event: ev.SpansEnded) -> None:
    for key in event.partitions:
        partition = _direct_partition(state, key, state.next_offsets.pop(key))
        partition.incarnation.end = partition.position
    left = {partition.rpartition("/")[0] for partition in state.next_offsets}
    state.topic_ids = {topic: topic_id for topic, topic_id in state.topic_ids.items() if topic in left}


def _spans_skipped(state: State, event: ev.SpansSkipped) -> None:
    for span in event.spans:
        partition = _move_on(state, span)
        gap = Gap(span.from_offset, span.until_offset, event.cause)
        partition.gaps.append(RecordedGap(partition.incarnation.number, gap, event.time_ms))
        _complete_gaps(partition)


def _move_on(state: State, span: Span) -> Partition:
    """The partition of ``span``, whose next one begins at its end."""
    key = str(span.tp)
    if state.next_offsets.get(key) != span.from_offset:
        raise BrokenInvariant(f"{span} does not begin where the one before it ended (INV-2)")
    partition = _direct_partition(state, key, span.from_offset)
    partition.position = state.next_offsets[key] = span.until_offset
    return partition


def _direct_partition(state: State, key: str, position: int) -> Partition:
    """Of a direct stream; one that began under an older release, which kept no lives, has its first one from ``position`` on."""
    if key not in state.partitions:
        topic, _, number = key.rpartition("/")
        incarnation = Incarnation(1, state.topic_ids.get(topic, ""), position, 0, "begun under an older release")
        state.partitions[key] = Partition(topic, int(number), [incarnation], position, position, leader_epoch=-1)
    return state.partitions[key]


def _spans_allocated(state: State, event: ev.SpansAllocated) -> None:
    if event.batch_id != state.next_batch_id():
        raise BrokenInvariant(f"batch {event.batch_id} is not the next one")
    incarnations = tuple(_move_on(state, span).incarnation.number for span in event.spans)
    state.batch_count += 1
    state.index.records[event.batch_id] = sum(span.size for span in event.spans)
    state.batches[event.batch_id] = Batch(
        batch_id=event.batch_id,
        number=event.number,
        time_ms=event.time_ms,
        tasks=(),
        spans=event.spans,
        incarnations=incarnations,
    )


def _cursor_named(state: State, event: ev.CursorNamed) -> None:
    if state.cursor:
        raise BrokenInvariant(f"the direct stream has the cursor {state.cursor} already, and not {event.name}")
    state.cursor = event.name


def _output_completed(state: State, event: ev.OutputCompleted) -> None:
    if event.replay:
        again = state.replaying[event.batch_id]
        outputs = (*again.outputs, event.output)
        if state.replays[-1].replay != event.replay or event.output in again.outputs:
            raise BrokenInvariant(f"output {event.output} of batch {event.batch_id} was completed twice (INV-3)")
        state.replaying[event.batch_id] = msgspec.structs.replace(again, outputs=outputs)
        state.failures.pop(event.batch_id, None)
        return
    batch = state.batches[event.batch_id]
    if batch.completed_ms is not None or event.output in batch.outputs:
        raise BrokenInvariant(f"output {event.output} of batch {event.batch_id} was completed twice (INV-3)")
    batch.outputs = (*batch.outputs, event.output)
    state.failures.pop(event.batch_id, None)


def _batch_completed(state: State, event: ev.BatchCompleted) -> None:
    batch = state.batches.get(event.batch_id)
    if batch is None or batch.completed_ms is not None:
        raise BrokenInvariant(f"batch {event.batch_id} was completed twice or never allocated (INV-3)")
    batch.completed_ms = event.time_ms
    batch.attempts = event.attempts
    state.failures.pop(event.batch_id, None)
    state.batches_completed += 1
    state.records_completed += state.index.records.pop(event.batch_id)
    _advance_completed_prefix(state)


def _job_failed(state: State, event: ev.JobFailed) -> None:
    batch = state.batches.get(event.batch_id)
    if event.batch_id not in state.replaying and (batch is None or batch.completed_ms is not None):
        raise BrokenInvariant(
            f"an attempt at batch {event.batch_id} failed, which was completed or never allocated (INV-3)"
        )
    if event.attempts:
        state.failures[event.batch_id] = event
    else:
        state.failures.pop(event.batch_id, None)


def _rate_learned(state: State, event: ev.RateLearned) -> None:
    state.learned = LearnedRate(event.rate, event.time_ms)


def _advance_completed_prefix(state: State) -> None:
    """The completed position, the clean-up and the published position follow the contiguous completed prefix."""
    while True:
        following = state.batches.get(numbered(state.timeline, state.completed_number + 1))
        if following is None or following.completed_ms is None:
            return
        state.completed_number += 1
        _unneeded_copies(state, state.completed_number - state.window_batches)
        reached = {  # of a life's ranges, which may be thousands, the last is the furthest (INV-2)
            (r.topic, r.partition, r.incarnation): r.until_offset
            for block in map(state.blocks.__getitem__, following.block_ids)
            for r in block.meta.ranges
        }
        for span, incarnation in following.lived_spans:
            _direct_partition(state, str(span.tp), span.from_offset)  # it may be of an older release
            reached[span.topic, span.partition, incarnation] = span.until_offset
        for (topic, number, incarnation_number), until in reached.items():
            partition = _partition(state, topic, number)
            if incarnation_number == partition.incarnation.number:
                partition.completed = max(partition.completed, until)
                _complete_gaps(partition)


def _unneeded_copies(state: State, number: int) -> None:
    """No window reaches back to the batch any more: its local copies may go, unless a replay wants them."""
    batch = state.batches.get(numbered(state.timeline, number)) if number > 0 else None
    if batch is not None and batch.batch_id not in state.replaying and batch.batch_id not in state.replay_window:
        blocks = (state.blocks[b] for b in batch.block_ids if b not in state.cleaning_blocks)
        state.index.finish(block for block in blocks if block.in_wal)


def _window_changed(state: State, event: ev.WindowChanged) -> None:
    if event.batches < 0:
        raise BrokenInvariant(f"a window can't reach back {event.batches} batches")
    before, state.window_batches = state.window_batches, event.batches
    for number in range(state.completed_number - before + 1, state.completed_number - event.batches + 1):
        _unneeded_copies(state, number)
    for number in range(max(1, state.completed_number - event.batches + 1), state.completed_number - before + 1):
        batch = state.batches.get(numbered(state.timeline, number))
        state.index.clean(state.blocks[block_id] for block_id in (batch.block_ids if batch is not None else ()))


def _complete_gaps(partition: Partition) -> None:
    """No batch will ever hold a gap: what is completed up to one is completed to its end."""
    for recorded in partition.gaps:
        if recorded.incarnation == partition.incarnation.number and recorded.gap.from_offset == partition.completed:
            partition.completed = recorded.gap.until_offset


def _loss_accepted(state: State, event: ev.LossAccepted) -> None:
    causes = dict.fromkeys(event.ranges, event.cause)
    if not state.is_direct:
        state.lost.update(causes)
    again = state.replaying.get(event.batch_id)
    if again is not None:  # completed once: its record stays as it was
        lost = tuple(sorted({*again.lost, *event.ranges}))
        state.replaying[event.batch_id] = msgspec.structs.replace(again, lost=lost)
        state.replays[-1].lost.update(causes)
        return
    batch = state.batches[event.batch_id]
    batch.lost = tuple(sorted({*batch.lost, *event.ranges}))
    batch.loss_causes.update(causes)


def _replay_begun(state: State, event: ev.ReplayBegun) -> None:
    if state.replaying or event.replay != state.next_replay() or not event.batches:
        raise BrokenInvariant(f"replay {event.replay} began out of order")
    for batch in (*event.window, *event.batches):
        known = state.batches.get(batch.batch_id)
        if known is not None and known.completed_ms is None:
            raise BrokenInvariant(f"replay {event.replay}: batch {batch.batch_id} is not completed (INV-3)")
        for block in _blocks_of(state, batch):
            if block.handle.path in state.cleaning_segments:
                raise BrokenInvariant(f"replay {event.replay} needs block {block.id}, which is being deleted (INV-8)")
            if block.id in state.released:
                state.index.hold(block)
            state.index.clean((block,))
    state.replaying = {batch.batch_id: batch for batch in event.batches}
    state.replay_window = {batch.batch_id: batch for batch in event.window}
    state.replays.append(
        Replay(
            replay=event.replay,
            first_id=event.batches[0].batch_id,
            last_id=event.batches[-1].batch_id,
            batches=len(event.batches),
            begun_ms=event.time_ms,
            cause=event.cause,
        )
    )
    del state.replays[:-REPLAYS_KEPT]


def _replay_completed(state: State, event: ev.ReplayCompleted) -> None:
    following = next(iter(state.replaying), None)
    if following != event.batch_id or state.replays[-1].replay != event.replay:
        raise BrokenInvariant(f"batch {event.batch_id} is not the next one of replay {event.replay} (INV-3)")
    state.replay_window[event.batch_id] = state.replaying.pop(event.batch_id)
    state.failures.pop(event.batch_id, None)
    while len(state.replay_window) > (state.window_batches if state.replaying else 0):
        _replayed(state, state.replay_window.pop(next(iter(state.replay_window))))
    replay = state.replays[-1]
    replay.completed += 1
    replay.attempts += event.attempts
    if not state.replaying:
        replay.completed_ms = event.time_ms


def _replayed(state: State, batch: ev.ReplayedBatch) -> None:
    """The replay no longer needs the batch, nor does the window of one that it has yet to run."""
    for block in _blocks_of(state, batch):
        if block.id in state.released:
            state.uncovered[block.id] = state.events  # a copy made meanwhile has the replay under way
            state.index.release(block, state.released[block.id])
        if (
            batch.batch_id not in state.batches or state.is_past(batch.number)
        ) and block.id not in state.cleaning_blocks:
            state.index.finish((block,))


def _blocks_of(state: State, batch: ev.ReplayedBatch) -> list[Block]:
    try:
        return [state.blocks[block_id] for task in batch.tasks for block_id in task]
    except KeyError as missing:
        raise BrokenInvariant(
            f"batch {batch.batch_id} of a replay needs block {missing}, which is gone (INV-8)"
        ) from None


def _cleanup_intended(state: State, event: ev.CleanupIntended) -> None:
    if event.number != state.cleanup_count + 1:
        raise BrokenInvariant(f"clean-up {event.number} is not the next one")
    state.cleanup_count += 1
    state.cleanups[event.number] = Cleanup(
        number=event.number, host=event.host, blocks=event.blocks, segments=event.segments
    )
    named = [block_id for block_id in event.blocks if _is_named(state, block_id, event.host)]
    state.cleaning_blocks.update(dict.fromkeys(named, True))
    state.index.clean((state.blocks[b] for b in named if b in state.blocks), event.host)
    for path in event.segments:
        share = state.index.segments.get(path)
        if share is not None and share.unread:  # a cursor that begins before it later finds it gone, and is told
            raise BrokenInvariant(f"segment {path} is to be deleted while a cursor has yet to read it (INV-8)")
    state.cleaning_segments.update(dict.fromkeys(event.segments, True))
    for path in event.segments:
        _count_segment(state, path)


def _is_named(state: State, block_id: str, host: str) -> bool:
    """Whether what goes at ``host`` is a copy that the journal may name, and not one that the host was given besides."""
    block = state.blocks.get(block_id)
    return block is None or host in (block.meta.host, *block.other_hosts)


def _cleanup_done(state: State, event: ev.CleanupDone) -> None:
    cleanup = state.cleanups.pop(event.number)
    for block_id in cleanup.blocks:
        if not _is_named(state, block_id, cleanup.host):
            continue
        state.cleaning_blocks.pop(block_id, None)
        block = state.blocks.get(block_id)
        if block is None:
            continue
        left = block.without_copy(cleanup.host)
        if left.in_wal or left.hosts:
            state.blocks[block_id] = left
        elif state.released.pop(block_id, None) is not None:
            _forget_block(state, block_id)
        else:
            raise BrokenInvariant(f"the last copy of block {block_id} was deleted while a batch may need it (INV-8)")
    for path in cleanup.segments:
        state.cleaning_segments.pop(path, None)
        share = state.index.segments.get(path)
        held = share is not None and share.held > 0
        for block_id in state.index.drop(path, state.blocks):
            state.uncovered.pop(block_id, None)
            if state.released.pop(block_id, None) is None or held:
                raise BrokenInvariant(f"block {block_id} was deleted while a batch may need it (INV-8)")
            state.index.clean((_forget_block(state, block_id),))


def _forget_block(state: State, block_id: str) -> Block:
    block = state.blocks.pop(block_id)
    if state.lost:
        for r in block.meta.ranges:
            state.lost.pop(r.label, None)
    return block


def _batches_archived(state: State, event: ev.BatchesArchived) -> None:
    for batch_id in event.batch_ids:
        batch = state.batches.pop(batch_id)
        if batch.completed_ms is None or batch.number != state.archived_number + 1:
            raise BrokenInvariant(f"batch {batch_id} left the state out of order or unfinished (INV-3)")
        if batch.number > state.completed_number:
            raise BrokenInvariant(f"batch {batch_id} was archived beyond the completed prefix (INV-3)")
        if not state.is_past(batch.number):
            raise BrokenInvariant(f"batch {batch_id} was archived while a window reaches back to it (INV-8)")
        state.archived_number = batch.number
        for block_id in batch.block_ids:
            del state.batch_of[block_id]
            block = state.blocks[block_id]
            state.released[block_id] = batch.completed_ms
            if not block.in_wal:  # its copies are its bytes: they stay as long as those of a WAL would
                state.index.finish((block,))
                continue
            state.uncovered[block_id] = state.events
            state.index.release(block, batch.completed_ms)
            if batch_id in state.replaying or batch_id in state.replay_window:
                state.index.hold(state.blocks[block_id])


def _snapshot_copied(state: State, event: ev.SnapshotCopied) -> None:
    state.copies = (*state.copies, SnapshotCopy(next=event.next, path=event.path))[-2:]
    if len(state.copies) == 2:
        said = min(copy.next for copy in state.copies)
        state.uncovered = {block: number for block, number in state.uncovered.items() if number >= said}


def _cursor_opened(state: State, event: ev.CursorOpened) -> None:
    if event.epoch != state.next_epoch():
        raise BrokenInvariant(f"epoch {event.epoch} of cursor {event.name} is not the next one (INV-4)")
    state.epochs += 1
    cursor = state.cursors.setdefault(
        event.name, Cursor(event.name, event.epoch, event.user, {}, event.time_ms, event.time_ms)
    )
    cursor.epoch, cursor.user, cursor.key_digest = event.epoch, event.user, event.key_digest
    state.ended_cursors = [ended for ended in state.ended_cursors if ended.name != event.name]
    _move_cursor(state, cursor, event)


def _cursor_moved(state: State, event: ev.CursorMoved) -> None:
    cursor = state.cursors[event.name]
    for key, place in event.vector.items():
        if place < cursor.vector.get(key, place):
            raise BrokenInvariant(f"cursor {event.name} went back in {key} (INV-8)")
    _move_cursor(state, cursor, event)


def _move_cursor(state: State, cursor: Cursor, event: ev.CursorOpened | ev.CursorMoved) -> None:
    cursor.heard_ms = max(cursor.heard_ms, event.time_ms)
    for key, place in event.vector.items():
        if key not in state.partitions:
            raise BrokenInvariant(f"cursor {cursor.name} reads partition {key}, which has no life yet")
        cursor.vector[key] = place
    for key in event.left:
        cursor.vector.pop(key, None)
    for key in (*event.vector, *event.left):
        state.index.read_to(key, lowest(state, key), state.blocks)


def _cursor_ended(state: State, event: ev.CursorEnded) -> None:
    cursor = state.cursors.pop(event.name, None)
    if cursor is None:
        ended = next(one for one in state.ended_cursors if one.name == event.name)
        ended = msgspec.structs.replace(ended, cause=f"{ended.cause}; {event.cause}", expired=False)
    else:
        ended = EndedCursor(cursor.name, cursor.user, cursor.vector, event.time_ms, event.cause, event.expired)
        for key in cursor.vector:
            state.index.read_to(key, lowest(state, key), state.blocks)
    kept = [*(one for one in state.ended_cursors if one.name != event.name), ended]
    while len(kept) > ENDED_CURSORS_KEPT:  # an expired one stays until a person has seen it, if there is another to go
        del kept[next((at for at, one in enumerate(kept) if not one.expired), 0)]
    state.ended_cursors = kept


def _partition(state: State, topic: str, partition: int) -> Partition:
    found = state.partitions.get(f"{topic}/{partition}")
    if found is None:
        raise BrokenInvariant(f"partition {topic}/{partition} has no life yet")
    return found


def _settle(partition: Partition, receiver_id: str) -> None:
    """No epoch of the receiver so far can still write of the partition, or a newer token of the same epoch stands for all."""
    partition.writers = [writer for writer in partition.writers if writer.receiver_id != receiver_id]


def _end_claim(partition: Partition) -> None:
    partition.owner = ""
    partition.owner_epoch = 0


_APPLY = {
    ev.StreamCreated: _stream_created,
    ev.PartitionsAdded: _partitions_added,
    ev.IncarnationBegun: _incarnation_begun,
    ev.ReceiverRegistered: _receiver_registered,
    ev.ReceiverFenced: _receiver_fenced,
    ev.ReceiversForgotten: _receivers_forgotten,
    ev.ClaimGiven: _claim_given,
    ev.ClaimReleased: _claim_released,
    ev.WriterSettled: _writer_settled,
    ev.EpochBarred: _epoch_barred,
    ev.BlockAdded: _block_added,
    ev.BlockMoved: _block_moved,
    ev.FaultRecorded: _fault_recorded,
    ev.AdoptionTried: _adoption_tried,
    ev.GapRecorded: _gap_recorded,
    ev.BatchAllocated: _batch_allocated,
    ev.OutputCompleted: _output_completed,
    ev.WindowChanged: _window_changed,
    ev.BatchCompleted: _batch_completed,
    ev.JobFailed: _job_failed,
    ev.RateLearned: _rate_learned,
    ev.LossAccepted: _loss_accepted,
    ev.ReplayBegun: _replay_begun,
    ev.ReplayCompleted: _replay_completed,
    ev.CleanupIntended: _cleanup_intended,
    ev.CleanupDone: _cleanup_done,
    ev.BatchesArchived: _batches_archived,
    ev.SnapshotCopied: _snapshot_copied,
    ev.CursorOpened: _cursor_opened,
    ev.CursorMoved: _cursor_moved,
    ev.CursorEnded: _cursor_ended,
    ev.SpansBegun: _spans_begun,
    ev.SpansEnded: _spans_ended,
    ev.SpansAllocated: _spans_allocated,
    ev.SpansSkipped: _spans_skipped,
    ev.CursorNamed: _cursor_named,
}
