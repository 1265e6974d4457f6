"""The audit: proof from journal and history that each offset taken in is in exactly one batch, or why it is not.

The audit does not rely on the checks in ``apply``. It lines up every range of every batch and of every waiting block with the
recorded gaps, from each incarnation's start to the durable position (INV-2, INV-3). It only reads, and fences no process.

Gaps, new incarnations, accepted losses and replays are no findings: each was decided. The report lists each with its cause.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain

import msgspec

from driver.journal import history
from driver.journal.history import FinishedBatch, FinishedRange
from driver.journal.log import reading as journal
from driver.journal.state import State
from driver.journal.state_parts import RepeatedBatch
from forebay.kafka.consume.planning import sizes
from forebay.model.errors import UsageError
from forebay.model.identifiers import timeline_of
from forebay.model.wire import WIRE_NAMES
from wal.storage import Storage

_NO_CAUSES: Mapping[str, str] = {}
_LABEL = re.compile(r"(.+)/(\d+)\[(\d+), (\d+)\)(?: life (\d+))?")  # as ``FinishedRange.label`` writes it
ATTESTED = -2  # as a batch id: finished, as only a snapshot copy shows
WAITING = 0  # as a batch id: in no batch yet


class Finding(msgspec.Struct, frozen=True, rename={"incarnation": "life"}):
    """Something that the audit found wrong.

    ``kind``: ``missing`` (offsets in no batch, not waiting, not a gap), ``duplicate`` (in two batches), ``beyond`` (past the
    position), ``replay`` (a replay would run the batch with other blocks or another packing than before; offsets are 0).
    """

    kind: str
    topic: str
    partition: int
    incarnation: int
    from_offset: int
    until_offset: int
    batches: tuple[int, ...]


class AuditedGap(msgspec.Struct, frozen=True):
    from_offset: int
    until_offset: int
    cause: str
    time_ms: int = 0


class AuditedLoss(msgspec.Struct, frozen=True):
    """A range that a batch ran without. ``cause``: who accepted the loss, and why; "" if an older release did not record it.

    ``skipped``: the batch was skipped. Outputs that were done before may have the range; the others do not.
    """

    label: str
    batch_id: int
    cause: str
    skipped: bool = False


class AuditedReplay(msgspec.Struct, frozen=True):
    """A replay of batches ``first_id`` to ``last_id``. ``completed``: how many of its ``batches`` are completed.
    ``completed_ms``: None while it runs."""

    replay: int
    first_id: int
    last_id: int
    batches: int
    completed: int
    begun_ms: int
    completed_ms: int | None
    cause: str
    losses: tuple[AuditedLoss, ...]


class AuditedRebuild(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """A rebuild of a lost journal, as ``timeline``.

    ``repeated``: batches that may have run before and that the job got again under new ids (id 0: the old ids are unknown),
    with their ranges. ``attested``: offsets that only a snapshot copy shows as completed.
    """

    timeline: int
    time_ms: int
    cause: str
    copy: str
    repeated: tuple[RepeatedBatch, ...]
    attested: int


class AuditedIncarnation(msgspec.Struct, frozen=True, rename={**WIRE_NAMES, "number": "life"}):
    """One incarnation of one partition: the audit of its offsets ``[start, until)``.

    ``batches``: completed and allocated ones. ``records``: in batches or waiting. ``waiting``: records in no batch yet.
    ``skipped``: offsets inside ranges at which Kafka has no record (compaction, transaction markers). ``duplicates``,
    ``missing``: numbers of offsets. ``attested``: offsets that were finished before a rebuild and whose history is lost.
    """

    topic: str
    partition: int
    number: int
    cause: str
    start: int
    until: int
    completed_until: int
    batches: int
    records: int
    waiting: int
    skipped: int
    gaps: tuple[AuditedGap, ...]
    accepted_losses: tuple[str, ...]
    duplicates: int
    missing: int
    attested: int = 0


class AuditReport(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """The result of an audit. ``clean``: whether nothing was found wrong."""

    stream: str
    timeline: int
    batches_completed: int
    batches_unfinished: int
    records_completed: int
    incarnations: tuple[AuditedIncarnation, ...]
    findings: tuple[Finding, ...]
    losses: tuple[AuditedLoss, ...] = ()
    replays: tuple[AuditedReplay, ...] = ()
    older_replays: int = 0  # ended before ``replays``; only their number is known
    rebuilds: tuple[AuditedRebuild, ...] = ()

    @property
    def clean(self) -> bool:
        return not self.findings


@dataclass(slots=True)
class _Piece:
    from_offset: int
    until_offset: int
    records: int
    batch_id: int


@dataclass(slots=True)
class _Line:
    """All ranges and gaps of one incarnation of one partition, lined up by offset."""

    pieces: list[_Piece] = field(default_factory=list)
    losses: set[str] = field(default_factory=set)


def audit(storage: Storage, stream: str) -> AuditReport:
    """Audit ``stream`` from the journal and history in ``storage``.

    Raises UsageError if there is no such journal; CorruptionError or NewerVersionError if it can't be read.
    """
    # The journal first: a running driver moves batches from the journal's state into the history, never back, and a batch in both
    # counts once. In the other order, a batch that is moved in between would be in neither.
    reading = journal.read_beside_a_writer(storage, stream)
    archived = {batch.batch_id: batch for batch in history.read(storage, stream)}
    state = reading.state
    if state is None:
        raise UsageError(f"{storage.url} holds no journal of stream {stream!r}: check stream and [driver].journal")
    newer = [b for b in archived.values() if timeline_of(b.batch_id) == state.timeline and b.number > state.batch_count]
    if newer:
        # a driver made them since the journal was read, and the state accounts for their blocks. Or the journal has lost its end,
        # and does not know them now either
        later = journal.read_beside_a_writer(storage, stream).state
        if later is not None and later.timeline == state.timeline:
            for batch in newer:
                if batch.number <= later.batch_count:
                    del archived[batch.batch_id]
    return report(state, archived.values())


def report(state: State, archived: Iterable[FinishedBatch]) -> AuditReport:
    """Return the audit of ``state`` with the finished batches of its history."""
    lines: defaultdict[tuple[str, int, int], _Line] = defaultdict(_Line)

    losses: list[AuditedLoss] = []

    def add(
        ranges: Sequence[FinishedRange],
        batch_id: int,
        lost: Sequence[str],
        causes: Mapping[str, str] = _NO_CAUSES,
        skipped: str = "",
    ) -> None:
        if skipped:
            rest = _without(ranges, lost)
            causes = {**causes, **dict.fromkeys(rest, f"the batch was skipped by {skipped}")}
            lost = (*lost, *rest)
        losses.extend(AuditedLoss(label, batch_id, causes.get(label, ""), bool(skipped)) for label in lost)
        for r in ranges:
            line = lines[r.topic, r.partition, r.incarnation]
            line.pieces.append(_Piece(r.from_offset, r.until_offset, r.records, batch_id))
            if not lost:
                continue
            incarnation = "" if r.incarnation == 1 else f" life {r.incarnation}"
            line.losses.update(
                label
                for label in lost
                if label.startswith(f"{r.topic}/{r.partition}[") and label.endswith(f"){incarnation}")
            )

    # a batch that a window contains is in both: the state's is the later one, which can have accepted losses
    in_history = {
        batch.batch_id: batch
        for batch in archived
        if batch.batch_id not in state.batches and not state.is_void(batch.batch_id, batch.number)
    }
    for batch in in_history.values():
        add(batch.ranges, batch.batch_id, batch.lost, batch.loss_causes, batch.skipped)
    for pending in state.batches.values():
        blocks = [state.blocks[block_id] for block_id in pending.block_ids]
        add(
            history.merge(
                chain(
                    (r for b in blocks for r in b.meta.ranges), history.ranges_of_spans(pending.spans_with_incarnations)
                )
            ),
            pending.batch_id,
            pending.lost,
            pending.loss_causes,
            pending.skipped,
        )
    add(history.merge(r for b in state.waiting for r in state.blocks[b].meta.ranges), WAITING, ())

    for rebuild in state.rebuilds:
        for a in rebuild.attested:
            line = lines[a.topic, a.partition, a.incarnation]
            line.pieces.append(_Piece(a.from_offset, a.until_offset, 0, ATTESTED))

    incarnations: list[AuditedIncarnation] = []
    findings: list[Finding] = []
    for partition in sorted(state.partitions.values(), key=lambda p: (p.topic, p.partition)):
        for incarnation in partition.incarnations:
            current = incarnation is partition.incarnation
            until = (
                partition.position if current else incarnation.end if incarnation.end is not None else incarnation.start
            )
            line = lines.pop((partition.topic, partition.partition, incarnation.number), _Line())
            gaps = tuple(
                AuditedGap(g.gap.from_offset, g.gap.until_offset, g.gap.cause, g.time_ms)
                for g in partition.gaps
                if g.incarnation == incarnation.number
            )
            found = list(_check(line.pieces, gaps, incarnation.start, until))
            findings += [
                Finding(kind, partition.topic, partition.partition, incarnation.number, begin, end, batches)
                for kind, begin, end, batches in found
            ]
            taken = sum(p.until_offset - p.from_offset for p in line.pieces if p.batch_id != ATTESTED)
            incarnations.append(
                AuditedIncarnation(
                    topic=partition.topic,
                    partition=partition.partition,
                    number=incarnation.number,
                    cause=incarnation.cause,
                    start=incarnation.start,
                    until=until,
                    completed_until=partition.completed if current else until,
                    batches=len({p.batch_id for p in line.pieces if p.batch_id not in (WAITING, ATTESTED)}),
                    records=sum(p.records for p in line.pieces),
                    waiting=sum(p.records for p in line.pieces if p.batch_id == WAITING),
                    skipped=taken - sum(p.records for p in line.pieces),
                    gaps=gaps,
                    accepted_losses=tuple(sorted(line.losses)),
                    duplicates=sum(e - b for kind, b, e, _ in found if kind == "duplicate"),
                    missing=sum(e - b for kind, b, e, _ in found if kind == "missing"),
                    attested=sum(p.until_offset - p.from_offset for p in line.pieces if p.batch_id == ATTESTED),
                )
            )
    for (topic, number, incarnation_number), line in lines.items():
        findings += [
            Finding("beyond", topic, number, incarnation_number, p.from_offset, p.until_offset, (p.batch_id,))
            for p in line.pieces
        ]
    findings += _changed_replays(state, in_history)
    finished_only_in_state = [b for b in state.batches.values() if b.completed_ms is not None]
    return AuditReport(
        stream=state.stream,
        timeline=state.timeline,
        batches_completed=len(in_history) + len(finished_only_in_state),
        batches_unfinished=len(state.unfinished()),
        records_completed=sum(b.records for b in in_history.values())
        + sum(state.blocks[i].meta.records for b in finished_only_in_state for i in b.block_ids)
        + sum(sizes(b.spans) for b in finished_only_in_state),
        incarnations=tuple(incarnations),
        findings=tuple(findings),
        losses=tuple(losses),
        rebuilds=tuple(
            AuditedRebuild(
                timeline=rebuild.timeline,
                time_ms=rebuild.time_ms,
                cause=rebuild.cause,
                copy=rebuild.copy,
                repeated=rebuild.repeated,
                attested=sum(a.until_offset - a.from_offset for a in rebuild.attested),
            )
            for rebuild in state.rebuilds
        ),
        replays=tuple(
            AuditedReplay(
                replay=replay.replay,
                first_id=replay.first_id,
                last_id=replay.last_id,
                batches=replay.batches,
                completed=replay.completed,
                begun_ms=replay.begun_ms,
                completed_ms=replay.completed_ms,
                cause=replay.cause,
                losses=tuple(AuditedLoss(label, 0, cause) for label, cause in sorted(replay.lost.items())),
            )
            for replay in state.replays
        ),
        older_replays=state.replays[0].replay - 1 if state.replays else 0,
    )


def _without(ranges: Iterable[FinishedRange], lost: Iterable[str]) -> list[str]:
    """Return the labels of ``ranges`` without the ranges with the labels ``lost``."""
    cuts: dict[tuple[str, int, int], list[tuple[int, int]]] = {}
    for label in lost:
        if (found := _LABEL.fullmatch(label)) is not None:
            topic, partition, first, until, incarnation = found.groups(default="1")
            cuts.setdefault((topic, int(partition), int(incarnation)), []).append((int(first), int(until)))
    left: list[str] = []
    for r in ranges:
        reached = r.from_offset
        for begin, end in sorted(cuts.get((r.topic, r.partition, r.incarnation), [])):
            if reached < min(begin, r.until_offset):
                left.append(
                    msgspec.structs.replace(r, from_offset=reached, until_offset=min(begin, r.until_offset)).label
                )
            reached = max(reached, end)
        if reached < r.until_offset:
            left.append(msgspec.structs.replace(r, from_offset=reached).label)
    return left


def _changed_replays(state: State, in_history: Mapping[int, FinishedBatch]) -> list[Finding]:
    """Return a finding for each batch whose replay differs from its first run (INV-3: same blocks, same packing)."""
    changed = []
    for batch in state.replaying.values():
        ran = in_history.get(batch.batch_id) or state.batches.get(batch.batch_id)
        if ran is None or (ran.tasks, ran.spans) != (batch.tasks, batch.spans):
            changed.append(Finding("replay", "", 0, 0, 0, 0, (batch.batch_id,)))
    return changed


def _check(
    pieces: list[_Piece], gaps: tuple[AuditedGap, ...], start: int, until: int
) -> Iterable[tuple[str, int, int, tuple[int, ...]]]:
    """Yield one (kind, from, until, batch ids) for each finding in one incarnation, in order of offsets."""
    spans = sorted(
        [(p.from_offset, p.until_offset, p.batch_id) for p in pieces]
        + [(g.from_offset, g.until_offset, -1) for g in gaps]
    )
    reached, last = start, WAITING
    for begin, end, batch_id in spans:
        if begin > reached:
            yield "missing", reached, begin, ()
        elif begin < reached:
            yield "duplicate", begin, min(end, reached), (last, batch_id)
        if end > reached:
            reached, last = end, batch_id
    if reached < until:
        yield "missing", reached, until, ()
    elif reached > until:
        yield "beyond", until, reached, (last,)
