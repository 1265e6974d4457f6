"""``forebay journal``: inspect the driver's journal, or rebuild a lost one from the WAL."""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec

from deploy.commands.recovery.journal_batches import batches_command
from deploy.console.invocation import (
    FINDINGS,
    FINE,
    NOTHING_CHANGED,
    Invocation,
    changing_options,
    example,
    pass_invocation,
    person,
    prepare_job_imports,
    shared_options,
)
from deploy.console.ownership import refuse_as_root
from deploy.console.progress import spinner
from forebay.model.errors import CorruptionError, ForebayError, NewerVersionError, StoreError, UsageError
from forebay.model.wire import UNDECODABLE, WIRE_NAMES
from forebay.sources.kind import source_kind

if TYPE_CHECKING:
    from rich.console import Group

    from driver.journal.log.reading import StoredJournal
    from forebay.settings.schema import Settings
    from recovery.rebuild import RebuildPlan
    from wal.storage import Storage

#: maximum time for an answer of Kafka during a rebuild
KAFKA_SECONDS = 5.0


# ---- inspect ----------------------------------------------------------------------------------------------------------


class EpochContent(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """The content of one epoch of the journal.

    ``owner`` and ``claimed_ms``: from its claim. ``events``: kind → number of events in its segments, including those before
    its newest snapshot, which are no longer needed. ``damage``: one sentence for each place that can't be read.
    """

    epoch: int
    timeline: int
    owner: str
    claimed_ms: int
    segments: int
    bytes: int
    snapshots: int
    events: dict[str, int]
    damage: tuple[str, ...]


class SnapshotCopy(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """A snapshot copy beside the WAL.

    ``next``: number of the first event after it; -1 if the copy can't be used, for the reason in ``detail``.
    """

    path: str
    bytes: int
    timeline: int
    next: int
    detail: str


class JournalInspection(msgspec.Struct, frozen=True, rename={"timeline_of_wal": "lineage_of_wal"}):
    """The content of a journal. ``state``: counts from its state; empty if the journal is absent, or ``unreadable`` says why."""

    stream: str
    timeline_of_wal: int
    epochs: tuple[EpochContent, ...]
    copies: tuple[SnapshotCopy, ...]
    state: dict[str, int]
    unreadable: str


def inspect_journal(journal_storage: Storage, wal_storage: Storage | None, stream: str) -> JournalInspection:
    """Read the claims, all segments with their checksums, and the snapshot copies. Changes nothing and fences no process.

    ``wal_storage``: None for a stream without a WAL, which has no snapshot copies.
    """
    from driver.journal.files import listed_claims
    from driver.journal.leadership import timeline
    from driver.journal.log import reading as journal
    from recovery.rebuild import snapshot_copies
    from wal.segments.layout import parse_journal

    claims = listed_claims(journal_storage, stream)
    places = (parse_journal(path) for path in journal_storage.list(stream))
    epochs = sorted(claims | {place.epoch for place in places if place is not None})
    summary: dict[str, int] = {}
    unreadable = ""
    try:
        summary = _summary(journal.read_beside_a_writer(journal_storage, stream))
    except ForebayError as error:
        unreadable = str(error)
    except FileNotFoundError:
        unreadable = "its segments were deleted during the read: try again"
    return JournalInspection(
        stream=stream,
        timeline_of_wal=timeline.newest_marker(wal_storage, stream) if wal_storage is not None else 0,
        epochs=tuple(_epoch(journal_storage, stream, epoch) for epoch in epochs),
        copies=tuple(_copy(wal_storage, path) for path in snapshot_copies(wal_storage, stream))
        if wal_storage is not None
        else (),
        state=summary,
        unreadable=unreadable,
    )


def _epoch(storage: Storage, stream: str, epoch: int) -> EpochContent:
    from driver.journal import claims
    from driver.journal.files import claim_path, segment_paths
    from forebay.model.identifiers import timeline_of
    from wal.segments.frame import Frame, FrameKind
    from wal.segments.scan import Damage, Newer, scan_segment

    owner, claimed_ms, size, snapshots = "", 0, 0, 0
    events: Counter[str] = Counter()
    damage: list[str] = []
    try:
        claim = claims.decode(storage.read(claim_path(stream, epoch)), claim_path(stream, epoch))
        owner, claimed_ms = claim.owner, claim.time_ms
    except FileNotFoundError:
        damage.append("its claim is absent")
    except (CorruptionError, StoreError) as error:
        damage.append(str(error))
    paths = segment_paths(storage, stream, epoch)
    for path in paths:
        try:
            size += storage.size(path)
            for item in scan_segment(storage, path):
                if isinstance(item, (Damage, Newer)):
                    reason = item.reason if isinstance(item, Damage) else f"written by a newer release ({item.feature})"
                    damage.append(f"{path} at byte {item.offset}: {reason}")
                elif isinstance(item, Frame) and item.header.kind == FrameKind.SNAPSHOT:
                    snapshots += 1
                elif isinstance(item, Frame) and item.header.kind == FrameKind.EVENTS:
                    events.update(_kinds(bytes(item.payload)))
        except FileNotFoundError:
            continue  # superseded meanwhile
        except StoreError as error:  # of this segment: the others are shown
            damage.append(str(error))
    return EpochContent(
        epoch=epoch,
        timeline=timeline_of(epoch),
        owner=owner,
        claimed_ms=claimed_ms,
        segments=len(paths),
        bytes=size,
        snapshots=snapshots,
        events=dict(events),
        damage=tuple(damage),
    )


class _Kind(msgspec.Struct):
    event: str


def _kinds(payload: bytes) -> list[str]:
    try:
        return [one.event for one in msgspec.msgpack.decode(payload, type=list[_Kind])]
    except UNDECODABLE:
        return ["group of events that can't be decoded"]


def _copy(storage: Storage, path: str) -> SnapshotCopy:
    from driver.journal.log import reading as journal

    try:
        state = journal.snapshot_in(storage, path)
        size = storage.size(path)
    except (CorruptionError, NewerVersionError, StoreError) as error:
        return SnapshotCopy(path, 0, 0, -1, str(error))
    except FileNotFoundError:
        return SnapshotCopy(path, 0, 0, -1, "replaced by a newer copy meanwhile")
    if state is None:
        return SnapshotCopy(path, size, 0, -1, "incomplete: its writer was killed")
    return SnapshotCopy(path, size, state.timeline, state.events, "")


def _summary(found: StoredJournal) -> dict[str, int]:
    state = found.state
    if state is None:
        return {}
    return {
        "lineage": state.timeline,  # a key of the JSON document
        "events": state.events,
        "events after the snapshot": found.events_after_snapshot,
        "partitions": len(state.partitions),
        "receivers": len(state.receivers),
        "blocks": len(state.blocks),
        "blocks waiting": len(state.waiting),
        "blocks released": len(state.released),
        "batches allocated": state.batch_count,
        "batches completed": state.batches_completed,
        "batches unfinished": len(state.unfinished()),
        "clean-ups open": len(state.cleanups),
        "rebuilds": len(state.rebuilds),
    }


def inspection_tables(found: JournalInspection) -> list[Group]:
    from deploy.console.table import table

    return [
        table(
            f"Journal of stream {found.stream}; "
            + (f"the WAL belongs to timeline {found.timeline_of_wal}" if found.timeline_of_wal else "no WAL belongs to it"),
            ("epoch", "claimed by", "segments", "bytes", "snapshots", "events"),
            [
                (
                    f"{e.epoch:x}", e.owner or "-", e.segments, e.bytes, e.snapshots,
                    ", ".join(f"{count} {kind}" for kind, count in sorted(e.events.items())) or "-",
                )
                for e in found.epochs
            ],
        ),
        table(
            "Snapshot copies beside the WAL, newest first",
            ("copy", "bytes", "timeline", "events", "detail"),
            [(c.path, c.bytes, c.timeline or "-", c.next if c.next >= 0 else "-", c.detail or "-") for c in found.copies],
        ),
        table("State", ("what", "number"), list(found.state.items())),
    ]  # fmt: skip


# ---- rebuild ----------------------------------------------------------------------------------------------------------


class RebuiltPosition(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """How far a partition is according to the rebuilt journal."""

    topic: str
    partition: int
    incarnation: int
    position: int
    completed: int


class RebuildReport(msgspec.Struct, frozen=True, rename={**WIRE_NAMES, "missing_offsets": "holes"}):
    """The result of a rebuild; without ``--apply``, the result that it would have.

    ``blocks``: number of blocks in the new journal; ``taken``: those of them found in the WAL after the snapshot copy.
    ``not_taken``: block → reason. ``repeated``: batch → ranges that run again, though the batch may have run before.
    ``missing_offsets``: places where offsets are missing before later frames of the WAL. ``missing``: ranges that wait for a
    batch again, but whose segment no longer exists.
    """

    done: bool
    stream: str
    timeline: int
    copy: str
    positions: tuple[RebuiltPosition, ...]
    blocks: int
    taken: int
    not_taken: dict[str, str]
    repeated: dict[str, tuple[str, ...]]
    missing_offsets: tuple[str, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def report_of(plan: RebuildPlan, done: bool) -> RebuildReport:
    """Return the report of a rebuild. ``done``: whether the new journal was written."""
    state = plan.state
    return RebuildReport(
        done=done,
        stream=state.stream,
        timeline=state.timeline,
        copy=plan.copy_path,
        positions=tuple(
            RebuiltPosition(p.topic, p.partition, p.incarnation.number, p.position, p.completed)
            for p in sorted(state.partitions.values(), key=lambda p: (p.topic, p.partition))
        ),
        blocks=len(state.blocks),
        taken=len(plan.taken),
        not_taken={one.block_id: f"{', '.join(one.ranges)}: {one.reason}" for one in plan.not_taken},
        repeated={
            str(batch.batch_id) if batch.batch_id else "started after the snapshot copy, id unknown": batch.ranges
            for batch in plan.rebuild.repeated
        },
        missing_offsets=tuple(
            f"{h.topic}/{h.partition} continues at {h.position} (incarnation {h.incarnation}), but the next frame in the WAL "
            f"begins at {h.next_from}"
            for h in plan.missing_offsets
        ),
        missing=plan.missing,
        notes=plan.notes,
    )


def rebuild_tables(report: RebuildReport) -> list[Group]:
    from deploy.console.table import table

    return [
        table(
            f"Timeline {report.timeline} of stream {report.stream}, from {report.copy}: {report.blocks} blocks, "
            f"{report.taken} of them found in the WAL after the copy",
            ("partition", "incarnation", "position", "completed"),
            [(f"{p.topic}/{p.partition}", p.incarnation, p.position, p.completed) for p in report.positions],
        ),
        table("Batches that run again and may have run before", ("batch", "ranges"),
              [(batch, "\n".join(ranges)) for batch, ranges in report.repeated.items()]),
        table("Blocks in the WAL that are not taken in", ("block", "why"), list(report.not_taken.items())),
    ]  # fmt: skip


def _say(invocation: Invocation, report: RebuildReport) -> None:
    for note in report.notes:
        invocation.say(f"forebay: {note}")
    for place in report.missing_offsets:
        invocation.say(f"forebay: {place}; the offsets in between are lost if Kafka has dropped them")
    if report.missing:
        invocation.say(
            f"forebay: no segment holds {', '.join(report.missing)}, and no batch is known to have completed it: restore the "
            "WAL's files, or accept the loss when its batch stops"
        )


def _topic_ids(settings: Settings, topics: Iterable[str]) -> dict[str, str]:
    kind = source_kind(settings)
    if not kind.has_groups:
        return kind.upstream().topic_ids(topics)
    from forebay.kafka.client.admin import KafkaAdmin

    with KafkaAdmin(
        settings.kafka.options, timeout_seconds=KAFKA_SECONDS, client_id="forebay-journal-rebuild"
    ) as admin:
        return admin.topic_ids(topics)


def _rebuild(settings: Settings, yes: bool, even_if_intact: bool) -> RebuildPlan:
    from driver.journal.leadership import timeline
    from driver.journal.leadership.lease import wait_until_stale
    from recovery import rebuild
    from wal.storage import open_storage

    journal_storage = open_storage(settings.driver.journal, settings.storage)
    wal_storage = open_storage(settings.wal.url, settings.storage)
    if yes:
        refuse_as_root(settings.stream, settings.driver.journal, settings.wal.url)
        wait_until_stale(journal_storage, settings.stream, threading.Event())
    marked = timeline.newest_marker(wal_storage, settings.stream)
    if not marked:
        raise UsageError(
            f"cannot rebuild a journal: {wal_storage.url} was never the WAL of stream {settings.stream!r}; check stream and "
            "wal.url"
        )
    copy, _, _ = rebuild.newest_copy(wal_storage, settings.stream)
    if not even_if_intact:
        rebuild.refuse_intact(journal_storage, wal_storage, settings.stream, copy)
    owner = f"forebay journal rebuild by {person()}"
    wall_ms = int(time.time() * 1000)
    if not yes:
        evidence = rebuild.read_evidence(journal_storage, wal_storage, settings.stream, partial(_topic_ids, settings))
        return rebuild.rebuilt(evidence, marked + 1, wall_ms, owner)
    return rebuild.rebuild(
        journal_storage,
        wal_storage,
        stream=settings.stream,
        topic_ids=partial(_topic_ids, settings),
        owner=f"{owner} ({secrets.token_hex(4)})",
        wall_ms=wall_ms,
        now=time.time,
        new_uid=lambda: secrets.randbits(64),
        segment_bytes=settings.driver.journal_segment_size,
    )


@click.group(epilog=example("forebay journal inspect"))
@shared_options
def journal() -> None:
    """Inspect the driver's journal, or rebuild a lost one from the WAL."""


journal.add_command(batches_command)


@journal.command(
    "inspect",
    short_help="Show the journal's epochs, snapshots, events and copies.",
    epilog=example("forebay journal inspect", "forebay journal inspect --json | jq .state"),
)
@shared_options
@pass_invocation
def inspect(invocation: Invocation) -> int:
    """Show the content of the journal and of its snapshot copies beside the WAL, and verify every checksum.

    Changes nothing and fences no process; the driver may be running. Exits with 1 if the journal is damaged or lost.
    """
    from wal.storage import open_storage

    settings = invocation.settings()
    journal_storage = open_storage(settings.driver.journal, settings.storage)
    wal_storage = open_storage(settings.wal.url, settings.storage) if settings.has_wal else None
    with spinner("reading the journal"):
        found = inspect_journal(journal_storage, wal_storage, settings.stream)
    invocation.write(found, lambda: inspection_tables(found))
    damage = [f"epoch {epoch.epoch:x}: {reason}" for epoch in found.epochs for reason in epoch.damage]
    if found.unreadable:
        damage.append(f"cannot read the journal: {found.unreadable}")
    elif not found.state and found.timeline_of_wal:
        damage.append(
            f"{journal_storage.url} holds no journal of stream {found.stream!r}, but the WAL belongs to one: the journal was "
            "lost, or driver.journal points elsewhere; `forebay journal rebuild` shows what can be rebuilt from the WAL"
        )
    for reason in damage:
        invocation.say(f"forebay: {reason}")
    return FINDINGS if damage else FINE


@journal.command(
    "rebuild",
    short_help="Rebuild a lost journal from the WAL.",
    epilog=example("forebay journal rebuild", "forebay journal rebuild --apply"),
)
@click.option(
    "--even-if-intact", is_flag=True, help="Replace a journal that can be read, for example because it is an old copy."
)
@changing_options
@shared_options
@pass_invocation
def rebuild_command(invocation: Invocation, even_if_intact: bool, yes: bool) -> int:
    """Rebuild the journal from the newest snapshot copy beside the WAL and the blocks that were written after the copy.

    Without --apply, the command only shows the new journal: positions, blocks taken in and not taken in, and batches that
    may run a second time. With --apply it writes the journal and begins a new timeline, which fences the old journal, driver
    and receivers; start them again. If it is killed, repeat it.

    Use it when the journal is lost. It refuses while a driver is running, without a snapshot copy, and while the journal is
    intact.
    """
    settings = invocation.settings()
    if source_kind(settings).runs_user_code:
        prepare_job_imports(invocation.config_path)
    with spinner("reading the WAL"):
        plan = _rebuild(settings, yes, even_if_intact)
    report = report_of(plan, yes)
    invocation.write(report, lambda: rebuild_tables(report))
    _say(invocation, report)
    done = f"the journal was rebuilt as timeline {report.timeline}: start the driver and the receivers"
    invocation.say(done if yes else NOTHING_CHANGED)
    return FINDINGS if report.missing_offsets or report.missing else FINE
