"""What a poll returns of the records and events of librdkafka: for each partition its next records, its end or its fault."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np
from confluent_kafka import KafkaError

from forebay.kafka.client.client_errors import ClientErrors
from forebay.kafka.client.log_cuts import LogPoint, end_reported, is_truncation
from forebay.kafka.consume.assignment import Assignment, StartedPartition
from forebay.kafka.consume.messages import FAULTS
from forebay.kafka.native.received import Event, Received, Records
from forebay.model.arrow_columns import number_view, value_slots
from forebay.model.columns import Columns, EndOfPartition, PartitionFault
from forebay.model.errors import ForebayError
from forebay.model.values import TopicPartition

Polled = Columns | EndOfPartition | PartitionFault

#: how often a gap at a start may change between reads before the partition has a fault
CONFIRMATIONS_MAX = 8


class Selection:
    """Compares what librdkafka returned with the positions of the started partitions, and moves these positions.

    For the polling thread. ``errors``: forgets errors of brokers when records or an end have arrived. ``failed``: called with
    each error that concerns no position, and its topic. ``next_record``: returns the offset of the first record at or after an
    offset, or the log's end; None if no broker does. ``cuts``: returns the logs that were cut back below points, as
    ``KafkaAdmin.cuts``; None if no broker answers.
    """

    def __init__(
        self,
        assignment: Assignment,
        *,
        errors: ClientErrors,
        failed: Callable[[KafkaError, str], None],
        next_record: Callable[[TopicPartition, int], int | None],
        cuts: Callable[[Mapping[TopicPartition, LogPoint]], Mapping[TopicPartition, int] | None],
    ) -> None:
        self._assignment = assignment
        self._started = assignment.partitions
        self._client_errors = errors
        self._failed = failed
        self._next_record = next_record
        self._cuts = cuts
        self._unbelieved: set[TopicPartition] = set()

    def take(self, received: Sequence[Received], stopped: Collection[TopicPartition]) -> list[Polled]:
        """Return what the poll returns of ``received``. Stop the partitions with a fault.

        ``stopped``: partitions for which nothing is returned.
        """
        ends: dict[TopicPartition, int] = {}
        faults: dict[TopicPartition, tuple[str, str]] = {}
        polled: list[Polled] = []
        # what was read before librdkafka compared the start's position with the leader's log; it is read again
        early = {tp for tp, started in self._started.items() if not started.compared}
        stopped = set(stopped)  # a lower leader epoch just now stops a partition too
        cuts = self._cut_by_newer_leaders(received, stopped | early)
        for item in received:
            if isinstance(item, Event):
                self._take_event(item, ends, faults)
            elif item.tp not in stopped and item.tp not in faults and item.tp not in self._unbelieved | early:
                columns = self._columns(item) if item.tp not in cuts else self._cut(item, cuts[item.tp])
                polled += [columns] if columns is not None else []
                if isinstance(columns, PartitionFault):
                    stopped.add(item.tp)
        for tp, end in ends.items():
            reading = self._started.get(tp)
            if (
                reading is None
                or tp in stopped
                or tp in faults
                or tp in self._unbelieved | early
                or end < reading.position
            ):
                continue  # also if records beyond this end were returned
            if self._confirms(reading, end):
                reading.position = end
                self._client_errors.forget()
                polled.append(EndOfPartition(tp, reading.start.generation, end))
        for tp, (kind, detail) in faults.items():
            if tp in self._started and tp not in stopped:
                reported = end_reported(detail) if kind == "truncated" else None
                if reported is not None and self._has_no_record_from(reported, tp):
                    self._started[tp].leader_epoch = -1
                    self._unbelieved.add(tp)
                    continue
                end = -1 if reported is None else reported
                polled.append(PartitionFault(tp, self._started[tp].start.generation, kind, detail, end))
        for tp in self._unbelieved:
            if self._started[tp].reads > CONFIRMATIONS_MAX and tp not in faults:
                detail = f"reads from offset {self._started[tp].start.offset} begin at a different record each time"
                polled.append(PartitionFault(tp, self._started[tp].start.generation, "out-of-range", detail))
        for returned in polled:
            if isinstance(returned, PartitionFault):
                self._assignment.stop(returned.tp)
        self._read_again()
        return polled

    def _cut_by_newer_leaders(
        self, received: Sequence[Received], omitted: Collection[TopicPartition]
    ) -> Mapping[TopicPartition, int]:
        """Return the partitions with records of a newer leader whose log has no records of the last record's leader epoch.

        The leader before the last one leads again then. librdkafka compares only the end of the epoch, which may fit.
        """
        points = {}
        for item in received:
            started = self._started.get(item.tp)
            if isinstance(item, Event) or started is None or item.tp in omitted or started.position == 0:
                continue
            if 0 <= started.leader_epoch < item.leader_epoch:
                points[item.tp] = LogPoint(0, started.leader_epoch, since=started.position - 1)
        found = self._cuts(points) if points else {}
        if found is None:
            self._unbelieved |= points.keys()
        return found or {}

    def _cut(self, records: Records, end: int) -> PartitionFault:
        started = self._started[records.tp]
        detail = (
            f"the last record before {started.position} was of leader epoch {started.leader_epoch}; the log, which leader epoch "
            f"{records.leader_epoch} continues, has no records of that epoch"
        )
        return PartitionFault(records.tp, started.start.generation, "truncated", detail, end)

    def _has_no_record_from(self, cut: int, tp: TopicPartition) -> bool:
        """Return whether the log has no record from ``cut`` to the position: markers of transactions moved the position past the
        end of its leader epoch, or what replaced the records there has no record either. So none is missed by reading on.
        """
        position = self._started[tp].position
        following = self._next_record(tp, cut) if cut < position else None
        return following is not None and following >= position

    def _read_again(self) -> None:
        """Read again the partitions whose start began with a gap: the records could be those of an older position."""
        again = [tp for tp in self._unbelieved if tp in self._started]
        self._unbelieved.clear()
        self._assignment.read_again(again)

    def _confirms(self, reading: StartedPartition, offset: int) -> bool:
        """Return whether ``offset``, the first record or the end after a start, may be returned.

        It may if it leaves no gap, or if two reads in a row found the same gap.
        """
        if not reading.unconfirmed:
            return True
        if offset in (reading.start.offset, reading.first_seen):
            reading.unconfirmed = False
            return True
        reading.first_seen = offset
        reading.reads += 1
        self._unbelieved.add(reading.start.tp)
        return False

    def _take_event(
        self, event: Event, ends: dict[TopicPartition, int], faults: dict[TopicPartition, tuple[str, str]]
    ) -> None:
        error = event.error
        code = error.code()
        if error.fatal():
            self._failed(error, event.tp.topic)
        elif code == KafkaError._PARTITION_EOF:
            ends[event.tp] = event.offset
        elif code in FAULTS and event.tp in self._started:
            text = error.str()
            kind = "truncated" if is_truncation(text) else FAULTS[code]
            faults.setdefault(event.tp, (kind, text))
        else:
            self._failed(error, event.tp.topic)

    def _columns(self, records: Records) -> Columns | PartitionFault | None:
        """Return those of ``records`` that are next; None if there are none."""
        tp, batch = records.tp, records.batch
        reading = self._started.get(tp)
        if reading is None:
            return None  # of an earlier assignment
        offsets = number_view(batch.column(2), np.int64)
        if len(offsets) > 1 and not (np.diff(offsets) > 0).all():
            raise ForebayError(f"Kafka client: offsets of {tp} out of order after {reading.position}")
        begin = int(np.searchsorted(offsets, reading.position))
        if begin == len(offsets) or not self._confirms(reading, int(offsets[begin])):
            return None
        last = int(offsets[-1])
        if 0 <= records.leader_epoch < reading.leader_epoch:
            detail = f"leader epoch {records.leader_epoch} at offset {last} after {reading.leader_epoch}"
            return PartitionFault(tp, reading.start.generation, "truncated", detail)
        reading.position = last + 1
        reading.leader_epoch = max(records.leader_epoch, reading.leader_epoch)
        self._client_errors.forget()
        ends = [value_slots(column)[begin:] for column in batch.columns[:2]]
        return Columns(
            tp=tp, generation=reading.start.generation, first_offset=int(offsets[begin]), last_offset=last,
            rows=len(offsets) - begin, bytes=sum(int(slots[-1]) - int(slots[0]) for slots in ends),
            max_timestamp_ms=int(number_view(batch.column(3), np.int64)[begin:].max()), leader_epoch=records.leader_epoch,
            batch=batch.slice(begin),
        )  # fmt: skip
