"""Determines what a direct stream needs and Kafka no longer holds, and makes the requests that journal it. Pure."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Literal, TypeAlias

import msgspec

from driver.decisions.batch_order import window
from driver.journal.events import ReplayedBatch
from driver.journal.state import State
from driver.journal.state_parts import Batch
from driver.tracker.requests import EndSpans, Request, SkipSpans
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.log_cuts import LeaderEnds
from forebay.kafka.consume.spans import OffsetRange, label_of, parse_label, with_incarnations, without, without_lost
from forebay.messages import AcceptLossRequest
from forebay.model.errors import ForebayError, OutOfRangeError, RangeNotHeldError, UnknownTopicError, UnreachableError
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class Held:
    """The offsets ``[begin, end)`` of a partition that Kafka holds, for a consumer with the stream's parameters.

    ``topic_id``: the id of the topic, "" if the broker does not know one. ``leader_epoch``: the leader's, -1 if it does not
    report it. ``cuts``: leader epoch → the offset from which on the log has other records than it had under this leader, as
    :func:`compared` found it.
    """

    topic_id: str
    begin: int
    end: int
    leader_epoch: int = -1
    cuts: Mapping[int, int] = field(default_factory=dict)

    def end_of(self, leader_epoch: int) -> int:
        """Return the offset up to which the log has the records that it had under the leader with ``leader_epoch``."""
        return min(self.end, self.cuts.get(leader_epoch, self.end))


#: offsets [from, until) that Kafka lacks and an intake's WAL holds, in order, by partition
Kept: TypeAlias = Mapping[TopicPartition, Sequence[tuple[int, int]]]
NOTHING_KEPT: Kept = {}
NO_POSITIONS: Mapping[TopicPartition, int] = {}
#: kinds of losses of a whole partition; the intake may still have records of it
WHOLE = ("gone", "created-again")
#: greater than every offset that Kafka can store
OFFSET_MAX = 10**18 - 1


class Loss(msgspec.Struct, frozen=True, rename={"message": "words"}):
    """Something that a direct stream needs and that is lost.

    ``kind``: ``batch``: offsets that batch ``batch_id`` has yet to read; ``gap``: offsets between the stream's position
    and the first one that Kafka holds; ``gone``, ``created-again`` and ``cut-back``: a whole partition. ``label``: the
    name for people: ``t/0[0, 500)``, in a later incarnation ``t/0[0, 500) life 2``, or ``t/0`` for a whole partition.
    ``goes_on_at``: where the partition continues, -1 if it does not; ``topic_id`` is the id of its topic from there on.
    """

    kind: Literal["batch", "gap", "gone", "created-again", "cut-back"]
    label: str
    message: str
    batch_id: int = 0
    goes_on_at: int = -1
    topic_id: str = ""


@contextlib.contextmanager
def listed_partitions() -> Iterator[None]:
    """Raise UnreachableError in place of UnknownTopicError: a broker has listed the partitions that the requests are about.

    Another broker may not know a new topic yet, or the topic is being deleted. The next list of partitions will show it.
    """
    try:
        yield
    except UnknownTopicError as error:
        raise UnreachableError(f"{error}, although a broker listed it; it may be new, or about to be deleted") from None


def held_by_kafka(
    admin: KafkaAdmin, partitions: Mapping[TopicPartition, str], there: Collection[TopicPartition]
) -> dict[TopicPartition, Held]:
    """Ask Kafka what it holds of ``partitions``; partitions that no longer exist are omitted.

    ``partitions``: each with the last known id of its topic ("" if unknown). ``there``: the partitions that brokers
    have just listed. Raises UnreachableError, also while a partition has no leader.
    """
    ids = admin.topic_ids({tp.topic for tp in partitions})
    unknown = sorted({tp.topic for tp, before in partitions.items() if before and tp in there and not ids[tp.topic]})
    if unknown:  # it may be another topic of that name
        raise UnreachableError(
            f"no broker returns the id of topic {', '.join(unknown)}, which had one before; it may be temporarily unavailable"
        )
    # metadata may omit a partition without a leader: only a broker that does not know the topic, or knows another, proves its end
    wanted = [
        tp for tp, before in partitions.items() if tp in there or (ids[tp.topic] and before in ("", ids[tp.topic]))
    ]
    with listed_partitions():
        begins = admin.places(dict.fromkeys(wanted, "earliest"))
        ends = admin.log_ends(wanted)
    return {tp: Held(ids[tp.topic], begins[tp], ends[tp].offset, ends[tp].leader_epoch) for tp in wanted}


def points_of(
    spans: Iterable[OffsetRange],
    topic_ids: Mapping[TopicPartition, str],
    positions: Mapping[TopicPartition, int] = NO_POSITIONS,
    leader_epochs: Mapping[TopicPartition, int] = NO_POSITIONS,
) -> dict[TopicPartition, dict[int, int]]:
    """Return partition → leader epoch → the highest offset of ``spans`` and ``positions`` that was chosen under this leader.

    Spans of a topic with another id than in ``topic_ids`` are omitted: the leaders of the new topic never led them.
    """
    found: dict[TopicPartition, dict[int, int]] = {}
    ends = [
        (span.tp, span.until_offset, span.leader_epoch)
        for span in spans
        if not _is_another(span.topic_id, topic_ids.get(span.tp, ""))
    ]
    ends += [(tp, offset, leader_epochs.get(tp, -1)) for tp, offset in positions.items()]
    for tp, offset, epoch in ends:
        if epoch >= 0:
            known = found.setdefault(tp, {})
            known[epoch] = max(offset, known.get(epoch, 0))
    return found


def compared(
    admin: KafkaAdmin,
    held: Mapping[TopicPartition, Held],
    topic_ids: Mapping[TopicPartition, str],
    points: Mapping[TopicPartition, Mapping[int, int]],
    led: LeaderEnds | None = None,
) -> dict[TopicPartition, Held]:
    """Return ``held`` with the cuts that Kafka's logs have below ``points``, a result of :func:`points_of`.

    ``topic_ids``: of the topics under which the points were chosen. While a leader leads, its log is not cut back, so Kafka is
    asked only about points under other leaders. ``led``: what they reported. Raises UnreachableError.
    """
    left = {
        tp: {epoch: offset for epoch, offset in own.items() if epoch != held[tp].leader_epoch}
        for tp, own in points.items()
        if tp in held and not _is_another(topic_ids.get(tp, ""), held[tp].topic_id)
    }
    led = led or LeaderEnds()
    cuts: dict[TopicPartition, dict[int, int]] = {}
    while left := {tp: own for tp, own in left.items() if own}:  # one point of a partition at a time
        asked = {tp: led.point(tp, offset, epoch) for tp, own in left.items() for epoch, offset in [own.popitem()]}
        with listed_partitions():
            found = admin.cuts(asked)
        for tp, cut in found.items():
            cuts.setdefault(tp, {})[asked[tp].leader_epoch] = max(cut, held[tp].begin)
    return {tp: replace(own, cuts=cuts[tp]) if tp in cuts else own for tp, own in held.items()}


def lost_of(span: OffsetRange, held: Mapping[TopicPartition, Held]) -> list[OffsetRange]:
    """Return the parts of ``span`` that Kafka does not hold, in order."""
    found = held.get(span.tp)
    if found is None or _is_another(span.topic_id, found.topic_id):
        return [span] if span.size else []
    end = max(found.begin, found.end_of(span.leader_epoch))
    return without([span], [OffsetRange(span.topic, span.partition, found.begin, end)])


def losses_at_positions(
    positions: Mapping[TopicPartition, int],
    topic_ids: Mapping[TopicPartition, str],
    held: Mapping[TopicPartition, Held],
    kept: Kept = NOTHING_KEPT,
    leader_epochs: Mapping[TopicPartition, int] = NO_POSITIONS,
    incarnations: Mapping[TopicPartition, int] = NO_POSITIONS,
) -> list[Loss]:
    """Return what the next batches cannot read.

    ``positions``, ``topic_ids``: of the stream's partitions, the ids as they were when the partitions began.
    ``leader_epochs``: those under which the positions were chosen, as far as they are known. ``incarnations``: the numbers of
    those that the positions are in, 1 if one is omitted. ``kept``: what the intake has; the stream reads that first, and
    offsets before it are a gap. While the intake has records of a partition that was deleted or created again, no loss of a
    whole partition is returned, because it would end the stream before it read them.
    """
    losses, rest = [], False
    for tp, position in sorted(positions.items()):
        found, incarnation = held.get(tp), incarnations.get(tp, 1)
        loss = _of_position(tp, position, incarnation, topic_ids.get(tp, ""), leader_epochs.get(tp, -1), found)
        if loss is None:
            continue
        begin = next((begin for begin, until in kept.get(tp, ()) if until > position), None)
        if begin is None:
            losses.append(loss)
        elif begin > position:
            label = label_of(OffsetRange(tp.topic, tp.partition, position, begin), incarnation)
            message = f"{label}: Kafka dropped it before it was in a batch, and the intake's WAL begins at {begin}"
            losses.append(Loss("gap", label, message, goes_on_at=begin))
        else:
            rest = rest or loss.kind in WHOLE
    return [loss for loss in losses if not (rest and loss.kind in WHOLE)]


def _of_position(
    tp: TopicPartition, position: int, incarnation: int, topic_id: str, leader_epoch: int, found: Held | None
) -> Loss | None:
    if found is None:
        return Loss("gone", str(tp), f"partition {tp}, which the stream reads at {position}, no longer exists")
    if _is_another(topic_id, found.topic_id):
        message = f"{tp}: topic {tp.topic} had the id {topic_id}, and was created again with {found.topic_id}"
        return Loss("created-again", str(tp), message, goes_on_at=found.begin, topic_id=found.topic_id)
    end = found.end_of(leader_epoch)
    if end < position:
        message = f"{tp}: the stream is at offset {position}, and Kafka's log ends at {found.end}: it was cut back"
        if end < found.end:
            message += f" to {end}, and has other records from there on"
        return Loss("cut-back", str(tp), message, goes_on_at=end, topic_id=found.topic_id)
    if position < found.begin:
        label = label_of(OffsetRange(tp.topic, tp.partition, position, found.begin), incarnation)
        message = f"{label}: Kafka dropped it before it was in a batch, and begins at {found.begin}"
        return Loss("gap", label, message, goes_on_at=found.begin)
    return None


def lacked_by_kafka(
    positions: Mapping[TopicPartition, int], topic_ids: Mapping[TopicPartition, str], losses: Iterable[Loss]
) -> dict[TopicPartition, OffsetRange]:
    """Return what Kafka lacks of each partition with ``losses`` of :func:`losses_at_positions`.

    The range begins at the stream's position. It ends where Kafka continues, or at ``OFFSET_MAX``. A log that was cut
    back lacks nothing.
    """
    found = {}
    for loss in losses:
        if loss.kind == "cut-back":
            continue
        tp = parse_label(loss.label)[0].tp if loss.kind == "gap" else _partition(loss.label)
        until = loss.goes_on_at if loss.kind == "gap" else OFFSET_MAX
        found[tp] = OffsetRange(tp.topic, tp.partition, positions[tp], until, topic_ids.get(tp, ""))
    return found


def ends_through(
    positions: Mapping[TopicPartition, int], lacks: Mapping[TopicPartition, OffsetRange], kept: Kept
) -> dict[TopicPartition, int]:
    """Return for each partition in ``lacks`` the offset up to which batches can read from the intake.

    ``lacks``: the ranges from the stream's position on that Kafka lacks. ``kept``: the parts of them that the intake has. The
    offset is that of the first gap in these parts. A partition is omitted if the intake has all of its range.
    """
    ends = {}
    for tp, span in lacks.items():
        reached = positions.get(tp, span.until_offset)
        for begin, until in kept.get(tp, ()):
            if begin <= reached < until:
                reached = until
        if reached < span.until_offset:
            ends[tp] = reached
    return ends


def losses_of_batch(
    batch_id: int,
    spans: Iterable[tuple[OffsetRange, int]],
    held: Mapping[TopicPartition, Held],
    also_lost: Callable[[list[OffsetRange]], list[OffsetRange]] = list,
) -> list[Loss]:
    """Return what the batch cannot read of ``spans``, each with its incarnation.

    ``also_lost``: returns those of the ranges that Kafka lacks that the intake lacks too.
    """
    lost = [(part, incarnation) for span, incarnation in spans for part in also_lost(lost_of(span, held))]
    found = {label_of(part, incarnation): part for part, incarnation in lost}  # a window may contain a range twice
    return [
        Loss("batch", label, f"{label} of batch {batch_id}: Kafka {_held_text(part, held)}", batch_id)
        for label, part in found.items()
    ]


def losses_of_state(
    state: State,
    held: Mapping[TopicPartition, Held],
    also_lost: Callable[[list[OffsetRange]], list[OffsetRange]] = list,
    kept: Kept = NOTHING_KEPT,
) -> list[Loss]:
    """Return the losses of all batches that have yet to run, and of what comes after them."""
    waiting: list[tuple[Batch | ReplayedBatch, bool]] = [(batch, True) for batch in state.replaying.values()]
    waiting += [(batch, False) for batch in state.unfinished()]
    of_batches = [
        losses_of_batch(batch.batch_id, _left(state, batch, replay), held, also_lost) for batch, replay in waiting
    ]
    at_positions = losses_at_positions(
        positions(state), topic_ids(state), held, kept, leader_epochs(state), incarnations(state)
    )
    return [*chain.from_iterable(of_batches), *at_positions]


def points_of_state(state: State) -> dict[TopicPartition, dict[int, int]]:
    """Return the points of all batches that have yet to run, and of the positions, as :func:`points_of`."""
    waiting: list[tuple[Batch | ReplayedBatch, bool]] = [(batch, True) for batch in state.replaying.values()]
    waiting += [(batch, False) for batch in state.unfinished()]
    spans = (span for batch, replay in waiting for span, _ in _left(state, batch, replay))
    return points_of(spans, partitions_of(state), positions(state), leader_epochs(state))


def _left(state: State, batch: Batch | ReplayedBatch, replay: bool) -> list[tuple[OffsetRange, int]]:
    """Return what the job of ``batch`` may read, each range with its incarnation: those of its window and its own, without
    accepted losses."""
    before = [
        pair
        for one in window(state, batch, replay)
        for pair in without_lost(with_incarnations(one.spans, one.incarnations), one.lost)
    ]
    return without_lost([*before, *with_incarnations(batch.spans, batch.incarnations)], batch.lost)


def partitions_of(state: State) -> dict[TopicPartition, str]:
    """Return all partitions that the stream reads, or has yet to read, with the ids of their topics."""
    waiting: chain[Batch | ReplayedBatch] = chain(
        state.replaying.values(), state.replay_window.values(), state.batches.values()
    )
    return {**{span.tp: span.topic_id for batch in waiting for span in batch.spans}, **topic_ids(state)}


def positions(state: State) -> dict[TopicPartition, int]:
    """Return where the next batch begins."""
    return {_partition(key): offset for key, offset in state.next_offsets.items()}


def topic_ids(state: State) -> dict[TopicPartition, str]:
    """Return the topic id of each partition, as it was when the partition began; "" if the broker did not know one."""
    found = {}
    for key in state.next_offsets:
        tp, partition = _partition(key), state.partitions.get(key)  # None if an older release began it
        found[tp] = partition.incarnation.topic_id if partition is not None else state.topic_ids.get(tp.topic, "")
    return found


def leader_epochs(state: State) -> dict[TopicPartition, int]:
    """Return the leader epoch of each position; partitions for which it is not known are omitted."""
    known = {_partition(key): state.partitions.get(key) for key in state.next_offsets}
    return {tp: part.leader_epoch for tp, part in known.items() if part is not None and part.leader_epoch >= 0}


def incarnations(state: State) -> dict[TopicPartition, int]:
    """Return the number of the incarnation that each position is in."""
    known = {_partition(key): state.partitions.get(key) for key in state.next_offsets}
    return {tp: part.incarnation.number if part is not None else 1 for tp, part in known.items()}


def _partition(key: str) -> TopicPartition:
    topic, _, number = key.rpartition("/")
    return TopicPartition(topic, int(number))


def journal_losses(ask: Callable[[Request], object], losses: Iterable[Loss], time_ms: int, cause: str) -> None:
    """Journal ``losses``, one after the other.

    ``ask``: the decision loop's. After a kill in between, the rest is found again.
    """
    for loss in losses:
        if loss.kind == "batch":
            ask(AcceptLossRequest(batch_id=loss.batch_id, ranges=(loss.label,), cause=cause))
        elif loss.kind == "gap":
            ask(SkipSpans((parse_label(loss.label)[0],), time_ms, f"out-of-range, {cause}"))
        else:
            topic = loss.label.rpartition("/")[0]
            again = {loss.label: loss.goes_on_at} if loss.goes_on_at >= 0 else {}
            ask(
                EndSpans(
                    (loss.label,), time_ms, f"{loss.kind}, {cause}", again, {topic: loss.topic_id} if again else {}
                )
            )


def losses_error(losses: Collection[Loss], advice: str) -> ForebayError:
    """Return the error that ends a stream which must not continue without ``losses``."""
    message = "; ".join(loss.message for loss in losses)
    kinds = {loss.kind for loss in losses}
    kind = UnknownTopicError if kinds == {"gone"} else OutOfRangeError if kinds == {"gap"} else RangeNotHeldError
    return kind(f"{message}; {advice}")


def _is_another(before: str, now: str) -> bool:
    return bool(before and now and before != now)


def _held_text(part: OffsetRange, held: Mapping[TopicPartition, Held]) -> str:
    found = held.get(part.tp)
    if found is None:
        return "no longer has the partition"
    if _is_another(part.topic_id, found.topic_id):
        return "has another topic of that name"
    cut = found.end_of(part.leader_epoch)
    if cut < found.end and cut < part.until_offset:
        return f"holds offsets {found.begin} to {found.end}, and cut its log back to {cut} since the batch was made"
    return f"holds offsets {found.begin} to {found.end}"
