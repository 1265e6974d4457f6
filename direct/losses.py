"""What of a direct stream Kafka no longer holds, and the requests that journal it. Decided on values, from what brokers said."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Literal, TypeAlias

import msgspec

from driver.decisions.batch_order import window
from driver.journal.events import ReplayedBatch
from driver.journal.state import Batch, State
from driver.tracker.requests import EndSpans, Request, SkipSpans
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.spans import Span, parse_span, without
from forebay.messages import AcceptLossRequest
from forebay.model.errors import ForebayError, OutOfRangeError, RangeNotHeldError, UnknownTopicError, UnreachableError
from forebay.model.values import TopicPartition


@dataclass(frozen=True, slots=True)
class Held:
    """What Kafka holds of a partition: offsets ``[begin, end)`` for a consumer with the stream's parameters, of the topic with
    ``topic_id`` ("" where the broker can't tell)."""

    topic_id: str
    begin: int
    end: int


#: of each partition what an intake's WAL holds of what Kafka lacks: offsets from and until, in order
Kept: TypeAlias = Mapping[TopicPartition, Sequence[tuple[int, int]]]
NOTHING: Kept = {}
#: kinds of losses of a whole partition, of which the intake may have more
WHOLE = ("gone", "created-again")
#: beyond every offset that can be written
OFFSET_MAX = 10**18 - 1


class Loss(msgspec.Struct, frozen=True):
    """``label``: how a person names it: ``t/0[0, 500)``, or ``t/0`` where the partition is no longer what it was.

    ``kind``: ``batch`` (offsets that batch ``batch_id`` has yet to read), ``gap`` (offsets between the stream's position and the
    first that Kafka holds), ``gone``, ``created-again`` and ``cut-back`` (of the whole partition). ``goes_on_at``: where the
    partition goes on, -1: nowhere; ``topic_id`` is its topic's then.
    """

    kind: Literal["batch", "gap", "gone", "created-again", "cut-back"]
    label: str
    words: str
    batch_id: int = 0
    goes_on_at: int = -1
    topic_id: str = ""


def look(
    admin: KafkaAdmin, partitions: Mapping[TopicPartition, str], there: Collection[TopicPartition]
) -> dict[TopicPartition, Held]:
    """What Kafka holds of ``partitions``, without those that are gone. Each comes with the id that its topic had ("": unknown).
    ``there``: those that brokers were just seen to have.

    Raises UnreachableError, also while nobody leads a partition.
    """
    ids = admin.topic_ids({tp.topic for tp in partitions})
    unsaid = sorted({tp.topic for tp, before in partitions.items() if before and tp in there and not ids[tp.topic]})
    if unsaid:  # it may be another one of that name
        raise UnreachableError(f"no broker tells the id of topic {', '.join(unsaid)} now, which had one")
    # metadata leave out what is merely without a leader: only a broker that does not know the topic counts, or knows another one
    wanted = [
        tp for tp, before in partitions.items() if tp in there or (ids[tp.topic] and before in ("", ids[tp.topic]))
    ]
    try:
        begins = admin.places(dict.fromkeys(wanted, "earliest"))
        ends = admin.places(dict.fromkeys(wanted, "latest"))
    except UnknownTopicError as error:  # it is being deleted: the next look tells
        raise UnreachableError(str(error)) from None
    return {tp: Held(ids[tp.topic], begins[tp], ends[tp]) for tp in wanted}


def lost_of(span: Span, held: Mapping[TopicPartition, Held]) -> list[Span]:
    """The parts of ``span`` that Kafka does not hold, in order."""
    found = held.get(span.tp)
    if found is None or _is_another(span.topic_id, found.topic_id):
        return [span] if span.size else []
    return without([span], [f"{span.tp}[{found.begin}, {max(found.begin, found.end)})"])


def of_positions(
    positions: Mapping[TopicPartition, int],
    topic_ids: Mapping[TopicPartition, str],
    held: Mapping[TopicPartition, Held],
    kept: Kept = NOTHING,
) -> list[Loss]:
    """What the next batches can't read: a stream at ``positions``, with ``topic_ids`` as they were when its partitions began.
    What is ``kept`` is read first, from where it begins; what lies before it is a gap. As long as that is of a partition which
    is no longer what it was, none of these is told: to end the stream would keep the rest from being read."""
    losses, rest = [], False
    for tp, position in sorted(positions.items()):
        found = held.get(tp)
        loss = _of_position(tp, position, topic_ids.get(tp, ""), found)
        if loss is None:
            continue
        begin = next((begin for begin, until in kept.get(tp, ()) if until > position), None)
        if begin is None:
            losses.append(loss)
        elif begin > position:
            label = str(Span(tp.topic, tp.partition, position, begin))
            words = f"{label}: Kafka dropped it before it was in a batch, and the intake's WAL begins at {begin}"
            losses.append(Loss("gap", label, words, goes_on_at=begin))
        else:
            rest = rest or loss.kind in WHOLE
    return [loss for loss in losses if not (rest and loss.kind in WHOLE)]


def _of_position(tp: TopicPartition, position: int, topic_id: str, found: Held | None) -> Loss | None:
    if found is None:
        return Loss("gone", str(tp), f"partition {tp}, which the stream reads at {position}, is gone")
    if _is_another(topic_id, found.topic_id):
        words = f"{tp}: topic {tp.topic} had the id {topic_id}, and was created again with {found.topic_id}"
        return Loss("created-again", str(tp), words, goes_on_at=found.begin, topic_id=found.topic_id)
    if found.end < position:
        words = f"{tp}: the stream is at offset {position}, and Kafka's log ends at {found.end}: it was cut back"
        return Loss("cut-back", str(tp), words, goes_on_at=found.end, topic_id=found.topic_id)
    if position < found.begin:
        label = str(Span(tp.topic, tp.partition, position, found.begin))
        words = f"{label}: Kafka dropped it before it was in a batch, and begins at {found.begin}"
        return Loss("gap", label, words, goes_on_at=found.begin)
    return None


def lacking(
    positions: Mapping[TopicPartition, int], topic_ids: Mapping[TopicPartition, str], losses: Iterable[Loss]
) -> dict[TopicPartition, Span]:
    """Of each partition that :func:`of_positions` found ``losses`` of what Kafka lacks, from its position on: up to where Kafka
    goes on, or without an end. A log that was cut back lacks nothing."""
    found = {}
    for loss in losses:
        if loss.kind == "cut-back":
            continue
        tp = parse_span(loss.label).tp if loss.kind == "gap" else _partition(loss.label)
        until = loss.goes_on_at if loss.kind == "gap" else OFFSET_MAX
        found[tp] = Span(tp.topic, tp.partition, positions[tp], until, topic_ids.get(tp, ""))
    return found


def ends_through(
    positions: Mapping[TopicPartition, int], lacks: Mapping[TopicPartition, Span], kept: Kept
) -> dict[TopicPartition, int]:
    """Of partitions that Kafka ``lacks`` how far batches reach before there is something else to decide: where what is ``kept``
    has a hole, or ends. Left out is one that Kafka then goes on with."""
    ends = {}
    for tp, span in lacks.items():
        reached = positions.get(tp, span.until_offset)
        for begin, until in kept.get(tp, ()):
            if begin <= reached < until:
                reached = until
        if reached < span.until_offset:
            ends[tp] = reached
    return ends


def of_batch(
    batch_id: int,
    spans: Iterable[Span],
    held: Mapping[TopicPartition, Held],
    also_lost: Callable[[list[Span]], list[Span]] = list,
) -> list[Loss]:
    """What the batch, which has yet to read ``spans``, can't. ``also_lost``: which of what Kafka lacks the intake lacks too."""
    lost = [part for span in spans for part in lost_of(span, held)]
    found = {str(part): part for part in also_lost(lost)}  # of a window one may come twice
    return [
        Loss("batch", label, f"{label} of batch {batch_id}: Kafka {_held_words(part, held)}", batch_id)
        for label, part in found.items()
    ]


def of_state(
    state: State,
    held: Mapping[TopicPartition, Held],
    also_lost: Callable[[list[Span]], list[Span]] = list,
    kept: Kept = NOTHING,
) -> list[Loss]:
    """Of all batches that have yet to run, and of what comes after them."""
    waiting: list[tuple[Batch | ReplayedBatch, bool]] = [(batch, True) for batch in state.replaying.values()]
    waiting += [(batch, False) for batch in state.unfinished()]
    of_batches = [
        of_batch(batch.batch_id, without(spans_with_window(state, batch, replay), batch.lost), held, also_lost)
        for batch, replay in waiting
    ]
    return [*chain.from_iterable(of_batches), *of_positions(positions(state), topic_ids(state), held, kept)]


def spans_with_window(state: State, batch: Batch | ReplayedBatch, replay: bool) -> list[Span]:
    """What the job of ``batch`` may read: its spans, and those that a window reaches back to."""
    before = [span for one in window(state, batch, replay) for span in without(one.spans, one.lost)]
    return [*before, *batch.spans]


def partitions_of(state: State) -> dict[TopicPartition, str]:
    """All that the stream reads, or has yet to, each with the id of its topic."""
    waiting: chain[Batch | ReplayedBatch] = chain(
        state.replaying.values(), state.replay_window.values(), state.batches.values()
    )
    return {**{span.tp: span.topic_id for batch in waiting for span in batch.spans}, **topic_ids(state)}


def positions(state: State) -> dict[TopicPartition, int]:
    """Where the next batch begins."""
    return {_partition(key): offset for key, offset in state.next_offsets.items()}


def topic_ids(state: State) -> dict[TopicPartition, str]:
    """Of each partition that is read the id of its topic, as it was when it began; "" where the broker could not tell."""
    found = {}
    for key in state.next_offsets:
        tp, partition = _partition(key), state.partitions.get(key)  # none where an older release began it
        found[tp] = partition.incarnation.topic_id if partition is not None else state.topic_ids.get(tp.topic, "")
    return found


def _partition(key: str) -> TopicPartition:
    topic, _, number = key.rpartition("/")
    return TopicPartition(topic, int(number))


def accept(ask: Callable[[Request], Any], losses: Iterable[Loss], time_ms: int, cause: str) -> None:
    """Journals ``losses``, one after the other; ``ask`` is the deciding thread's. A kill in between leaves the rest to be found
    again."""
    for loss in losses:
        if loss.kind == "batch":
            ask(AcceptLossRequest(batch_id=loss.batch_id, ranges=(loss.label,), cause=cause))
        elif loss.kind == "gap":
            ask(SkipSpans((parse_span(loss.label),), time_ms, f"out-of-range, {cause}"))
        else:
            topic = loss.label.rpartition("/")[0]
            again = {loss.label: loss.goes_on_at} if loss.goes_on_at >= 0 else {}
            ask(
                EndSpans(
                    (loss.label,), time_ms, f"{loss.kind}, {cause}", again, {topic: loss.topic_id} if again else {}
                )
            )


def error_of(losses: Collection[Loss], advice: str) -> ForebayError:
    """What ends a stream that may not go on without them."""
    words = "; ".join(loss.words for loss in losses)
    kinds = {loss.kind for loss in losses}
    kind = UnknownTopicError if kinds == {"gone"} else OutOfRangeError if kinds == {"gap"} else RangeNotHeldError
    return kind(f"{words}; {advice}")


def _is_another(before: str, now: str) -> bool:
    return bool(before and now and before != now)


def _held_words(part: Span, held: Mapping[TopicPartition, Held]) -> str:
    found = held.get(part.tp)
    if found is None:
        return "has the partition no more"
    if _is_another(part.topic_id, found.topic_id):
        return "has another topic of that name"
    return f"holds offsets {found.begin} to {found.end}"
