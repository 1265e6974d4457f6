"""Chooses the offsets of the next batch of a direct stream.

Determines where new partitions begin, which offsets each partition gained, and which offsets Kafka lost.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import msgspec

from direct.checkpoint.losses import (
    NOTHING_KEPT,
    Held,
    Kept,
    Loss,
    compared,
    ends_through,
    held_by_kafka,
    journal_losses,
    lacked_by_kafka,
    listed_partitions,
    losses_at_positions,
    losses_error,
    losses_of_batch,
    points_of,
)
from direct.intake.coverage import KeptByIntake
from direct.stream.commits import DirectCommits
from direct.stream.reads import ReadProgress, ReadUnfinishedSpans
from direct.stream.settings import StreamSettings
from direct.stream.strategies import ConsumerStrategy, absent, find_partitions
from driver.batches.job.work import BatchWork
from driver.decision_loop.loop import DriverLoop
from driver.tracker.requests import AllocateSpans, BeginSpans
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.client.log_cuts import LeaderEnds, LogPoint
from forebay.kafka.client.starting import Known, StartPosition, begin
from forebay.kafka.consume.planning import limit_by_rates, spans, split_ranges
from forebay.kafka.consume.spans import OffsetRange, with_incarnations, without_lost
from forebay.kafka.options.safe import SafeOptions
from forebay.model.errors import RangeNotHeldError, UnreachableError, UsageError
from forebay.model.values import TopicPartition
from forebay.process.clock import Clock

log = logging.getLogger(__name__)


class BatchPlanner:
    """Plans the batches of one direct stream: asks Kafka what partitions gained, and journals new partitions and losses."""

    def __init__(
        self,
        *,
        safe: SafeOptions,
        strategy: ConsumerStrategy,
        settings: StreamSettings,
        timeout_seconds: float,
        commits: DirectCommits,
        clock: Clock,
        admin: KafkaAdmin,
        loop: DriverLoop,
        kept: KeptByIntake | None,
    ) -> None:
        """``timeout_seconds``: how long a broker may leave a request unanswered. ``kept``: the intake that the stream reads
        through, None for none."""
        self._safe = safe
        self._strategy = strategy
        self._settings = settings
        self._timeout = timeout_seconds
        self._commits = commits
        self._clock = clock
        self._admin = admin
        self._loop = loop
        self._kept = kept
        #: Kafka's end offsets when the last batch was planned; replaced, never changed
        self.ends: Mapping[TopicPartition, int] = {}
        self._unreachable = ""  # the last warning about Kafka or the intake's driver
        self._led = LeaderEnds()
        #: leader epoch and position at the last comparison
        self._compared: Mapping[TopicPartition, tuple[int, int]] = {}

    def begin(self) -> None:
        """Log where known partitions continue, and journal where new ones begin.

        Raises UnreachableError if the checkpoint is new, because nothing else says where its partitions begin; what
        Kafka has lost as :func:`direct.checkpoint.losses.losses_error`; UsageError for offsets of partitions that the
        stream does not read.
        """
        known = self._loop.ask(ReadProgress()).positions
        self._log_positions(begin(self._admin, known, Known(known, self._strategy.offsets, {}), self._safe.reset))
        try:
            self._follow(self._clock.wall_ms())
        except UnreachableError as error:
            if not self._loop.ask(ReadProgress()).begun:
                raise
            self._warn_unreachable(error)

    def plan(self, time_ms: int) -> AllocateSpans | None:
        """Return the request for the next batch; None if Kafka has gained nothing and the stream has no empty batches, or if
        Kafka or the intake's driver is unavailable.

        Commits the offsets of jobs first. Called only by the batch timer.
        """
        self._commits.send(self._admin, lambda: self._loop.ask(ReadUnfinishedSpans()))
        try:
            found = self._gained(time_ms)
        except UnreachableError as error:
            self._warn_unreachable(error)
            self.ends = {}  # what Kafka has gained since is not known
            return None
        self._unreachable = ""
        return found

    def _warn_unreachable(self, error: UnreachableError) -> None:
        if str(error) != self._unreachable:  # every interval repeats it
            log.warning("no batch is made for now: %s", error)
        self._unreachable = str(error)

    def _gained(self, time_ms: int) -> AllocateSpans | None:
        settings = self._settings
        held, lacks, kept = self._follow(time_ms)
        progress = self._loop.ask(ReadProgress())
        begins, ids, learned = progress.positions, progress.topic_ids, progress.learned
        through = {tp: end for tp, end in ends_through(begins, lacks, kept).items() if tp in begins}
        new = begins.keys() - held.keys() - through.keys()
        with listed_partitions():
            points = {
                **self._admin.log_ends(new),
                **{tp: LogPoint(held[tp].end, held[tp].leader_epoch) for tp in begins.keys() & held.keys()},
            }
        ends = {**{tp: point.offset for tp, point in points.items()}, **through}
        self.ends = ends
        rate = 0.0
        if settings.backpressure:
            rate = learned.rate if learned is not None else settings.initial_rate
        until = limit_by_rates(begins, ends, settings.rates, rate, settings.interval_seconds)
        found = [
            msgspec.structs.replace(span, topic_id=ids[span.tp], leader_epoch=_epoch_below(points.get(span.tp), span))
            for span in spans(begins, until)
        ]
        parts = split_ranges(found, settings.min_partitions)
        return AllocateSpans(tuple(parts), time_ms) if parts or settings.empty_batches else None

    def _follow(self, time_ms: int) -> tuple[dict[TopicPartition, Held], dict[TopicPartition, OffsetRange], Kept]:
        """Begin new partitions, and end the stream or journal the losses if neither Kafka nor the intake holds what
        comes next.

        Returns, of the partitions that continue, what Kafka holds, what it lacks, and what the intake has of that.
        """
        progress = self._loop.ask(ReadProgress())
        known, ids, known_before = progress.positions, progress.topic_ids, progress.begun
        epochs, numbers = progress.leader_epochs, progress.incarnations
        there = find_partitions(self._admin, self._strategy)
        held = held_by_kafka(self._admin, ids, there)
        for tp, found in held.items():
            self._led.see(tp, found.topic_id, found.end, found.leader_epoch)
        points = points_of((), ids, self._not_compared(held, known, epochs), epochs)
        held = compared(self._admin, held, ids, points, self._led)
        losses = losses_at_positions(known, ids, held, leader_epochs=epochs, incarnations=numbers)
        lacks, kept = lacked_by_kafka(known, ids, losses), NOTHING_KEPT
        if self._kept is not None and lacks:
            kept = {tp: self._kept.kept(span) for tp, span in lacks.items()}
            losses = losses_at_positions(known, ids, held, kept, epochs, numbers)
        self._handle_losses(losses, time_ms)
        self._compared = {tp: (held[tp].leader_epoch, known[tp]) for tp in known.keys() & held.keys()}
        # a deleted partition that exists again begins as a new one; others with a loss continue
        gone = {loss.label for loss in losses if loss.kind == "gone"}
        new = {tp for tp in there - known.keys() if str(tp) not in gone}
        if not known_before or new:
            self._begin_partitions(new, known if known_before else None, ids, time_ms)
        return held, lacks, kept

    def _not_compared(
        self,
        held: Mapping[TopicPartition, Held],
        known: Mapping[TopicPartition, int],
        epochs: Mapping[TopicPartition, int],
    ) -> dict[TopicPartition, int]:
        """Return the positions that were not compared with the log of the present leader yet."""
        return {
            tp: offset
            for tp, offset in known.items()
            if tp in held and self._compared.get(tp) != (held[tp].leader_epoch, offset)
        }

    def _begin_partitions(
        self,
        new: set[TopicPartition],
        checkpoint: dict[TopicPartition, int] | None,
        known_ids: Mapping[TopicPartition, str],
        time_ms: int,
    ) -> None:
        """Journal where the partitions ``new`` begin. ``checkpoint``: the known positions, None in a new checkpoint.
        ``known_ids``: the ids of the topics that the stream reads already.

        Raises UnreachableError, also if a broker does not know one of them, or if a topic is created again meanwhile.
        """
        admin, given, topics = self._admin, self._strategy.offsets, {tp.topic for tp in new}
        if checkpoint is None:
            self._check_names(new)
        ids = admin.listed_topic_ids(topics)
        with listed_partitions():
            committed = self._committed(new - given.keys()) if self._safe.group and checkpoint is None else {}
            known = Known(checkpoint=checkpoint, given=given, committed=committed, group=self._safe.group)
            begun = begin(admin, new, known, self._safe.reset)
        again = admin.listed_topic_ids(topics)
        # a broker that knows no controller returns no ids for a while
        if again != ids or (any(known_ids.values()) and not all(ids.values())):
            names = ", ".join(sorted(topics))
            raise UnreachableError(f"topics {names} changed meanwhile, or a broker does not return their ids yet")
        self._log_positions(begun)
        causes = "; ".join(sorted({position.why for position in begun.values()}))
        offsets = {str(tp): position.offset for tp, position in begun.items()}
        self._loop.ask(BeginSpans(offsets, ids, time_ms, causes))

    def _committed(self, partitions: set[TopicPartition]) -> dict[TopicPartition, int]:
        """Return the offsets that the group has committed, or where Kafka cut the log back below them since.

        A commit without a leader epoch is not compared. A cut with no record from there to the commit loses nothing: a newer
        leader wrote markers of transactions. Raises RangeNotHeldError for another cut, unless the stream continues after losses.
        """
        group = self._safe.group
        commits = self._admin.committed(group, partitions)
        points = {tp: LogPoint(at.offset, at.leader_epoch) for tp, at in commits.items() if at.leader_epoch >= 0}
        found = {tp: at.offset for tp, at in commits.items()}
        cuts = self._admin.cuts(points)
        next_records = self._admin.next_records(cuts) if cuts else {}
        for tp, cut in sorted(cuts.items()):
            if next_records.get(tp, cut) >= found[tp]:
                continue
            message = f"{tp}: group {group} committed offset {found[tp]}, and Kafka's log was cut back to {cut} since"
            if self._settings.on_vanished == "stop":
                raise RangeNotHeldError(
                    f'{message}; commit or give the offset at which the stream is to begin, or set on_vanished = "record", with '
                    f"which it begins at {cut}"
                )
            log.error("%s; the stream begins there", message)
            found[tp] = cut
        return found

    def _log_positions(self, begun: Mapping[TopicPartition, StartPosition]) -> None:
        for tp, position in begun.items():
            log.info("%s begins at offset %d: %s", tp, position.offset, position.why)

    def _check_names(self, there: set[TopicPartition]) -> None:
        """Check the topics and partitions that the strategy of a new stream names; log those that Kafka does not have yet.

        Raises UsageError for offsets of partitions that the stream does not read.
        """
        for name in absent(self._strategy, there):
            log.warning("Kafka has no %s; it is read from its beginning when it is created", name)
        unread = sorted(str(tp) for tp in self._strategy.offsets.keys() - there)
        if unread:
            raise UsageError(
                f"offsets are given for {', '.join(unread)}, which Kafka does not have or the stream does not read; remove them"
            )

    def journal_lost(self, work: BatchWork) -> bool:
        """Journal what Kafka has lost of the failed batch ``work``; return whether something is lost.

        Uses a client of its own, because the batch timer uses the other one at the same time. Raises what Kafka has
        lost if the stream must not continue without it.
        """
        asked = [pair for one in (*work.past, work) for pair in with_incarnations(one.spans, one.incarnations)]
        if not asked:
            return False
        partitions = {span.tp: span.topic_id for span, _ in asked}
        try:
            with KafkaAdmin(
                self._safe.options, timeout_seconds=self._timeout, client_id="forebay-direct-losses"
            ) as admin:
                left = without_lost(asked, work.lost)
                held = held_by_kafka(admin, partitions, admin.partitions({tp.topic for tp in partitions}))
                held = compared(admin, held, partitions, points_of((span for span, _ in left), partitions), self._led)
            losses = losses_of_batch(work.batch_id, left, held, self._also_lost)
        except UnreachableError as error:
            log.warning(
                "batch %d failed, and it is unknown whether Kafka still holds its records: %s", work.batch_id, error
            )
            return False
        self._handle_losses(losses, self._clock.wall_ms())
        return bool(losses)

    def _also_lost(self, lost: list[OffsetRange]) -> list[OffsetRange]:
        return self._kept.lost(lost) if self._kept is not None else lost

    def _handle_losses(self, losses: Sequence[Loss], time_ms: int) -> None:
        """End the stream, or journal ``losses`` and continue, as ``on_vanished`` says."""
        if not losses:
            return
        settings = self._settings
        if settings.on_vanished == "stop":
            command = f"forebay direct accept-loss {settings.checkpoint} {settings.name}"
            command += f" --broker {self._safe.options.get('bootstrap.servers', '')}"
            if settings.tracker is not None:
                url = settings.tracker if isinstance(settings.tracker, str) else settings.tracker.url
                command += f" --tracker {url}"
            raise losses_error(
                losses,
                f'to continue without these records, run `{command}`, which lists them, or set on_vanished = "record"',
            )
        for loss in losses:
            log.error("%s; the stream continues without it", loss.message)
        journal_losses(self._loop.ask, losses, time_ms, 'by on_vanished = "record"')


def _epoch_below(end: LogPoint | None, span: OffsetRange) -> int:
    """Return the leader epoch under which ``span`` is chosen; -1 if it reaches beyond the ``end`` that the leader reported."""
    return end.leader_epoch if end is not None and span.until_offset <= end.offset else -1
