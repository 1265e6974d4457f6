"""``forebay journal``: what lies in the driver's journal, and a new one from the WAL when it is lost."""

from __future__ import annotations

import getpass
import secrets
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING

import click
import msgspec

from deploy.console.invocation import (
    FINE,
    FOUND,
    Invocation,
    changing_options,
    example,
    pass_invocation,
    prepare_job_imports,
    shared_options,
)
from forebay.model.errors import CorruptionError, ForebayError, NewerVersionError, UsageError
from forebay.model.wire import WIRE_NAMES

if TYPE_CHECKING:
    from rich.console import Group

    from driver.journal.log import Reading
    from forebay.settings.schema import Settings
    from recovery.rebuild import RebuildPlan
    from wal.storage import Storage

#: how long Kafka may take to answer a rebuild
KAFKA_SECONDS = 5.0


# ---- inspect ----------------------------------------------------------------------------------------------------------


class Epoch(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """One epoch of the journal. ``owner`` and ``claimed_ms``: by its claim. ``events``: kind → how many its segments hold;
    those before its newest snapshot are not needed any more. ``damage``: in words, each place that can't be read."""

    epoch: int
    timeline: int
    owner: str
    claimed_ms: int
    segments: int
    bytes: int
    snapshots: int
    events: dict[str, int]
    damage: tuple[str, ...]


class Copy(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """A snapshot copy beside the WAL. ``next``: number of the event after it, -1 if it can't be used: ``detail`` says why."""

    path: str
    bytes: int
    timeline: int
    next: int
    detail: str


class JournalInspection(msgspec.Struct, frozen=True):
    """``state``: what the journal says, summed up; empty if it can't be read, and ``unreadable`` says why."""

    stream: str
    timeline_of_wal: int
    epochs: tuple[Epoch, ...]
    copies: tuple[Copy, ...]
    state: dict[str, int]
    unreadable: str


def inspect_journal(journal_storage: Storage, wal_storage: Storage | None, stream: str) -> JournalInspection:
    """Reads claims, every segment with all its checksums, and the snapshot copies, if there is a WAL. Fences nobody, changes
    nothing."""
    from driver.journal import log as journal
    from driver.journal import timeline
    from recovery.rebuild import snapshot_copies
    from wal.segments.layout import parse_journal

    claims = {int(path.rpartition("/")[2], 16) for path in journal_storage.list(f"{stream}/epochs")}
    places = (parse_journal(path) for path in journal_storage.list(stream))
    epochs = sorted(claims | {place.epoch for place in places if place is not None})
    summary: dict[str, int] = {}
    unreadable = ""
    try:
        summary = _summary(journal.read_beside_a_writer(journal_storage, stream))
    except ForebayError as error:
        unreadable = str(error)
    except FileNotFoundError:
        unreadable = "its segments are deleted while they are read: try again"
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


def _epoch(storage: Storage, stream: str, epoch: int) -> Epoch:
    from driver.journal import log as journal
    from forebay.model.values import timeline_of
    from wal.segments.frame import Frame, FrameKind
    from wal.segments.scan import Damage, Newer, scan_segment

    owner, claimed_ms, size, snapshots = "", 0, 0, 0
    events: Counter[str] = Counter()
    damage: list[str] = []
    try:
        claim = msgspec.json.decode(storage.read(journal.claim_path(stream, epoch)), type=journal.Claim)
        owner, claimed_ms = claim.owner, claim.time_ms
    except (FileNotFoundError, msgspec.MsgspecError):
        damage.append("its claim is absent, or can't be read")
    paths = journal.segment_paths(storage, stream, epoch)
    for path in paths:
        try:
            size += storage.size(path)
            for item in scan_segment(storage, path):
                if isinstance(item, (Damage, Newer)):
                    words = item.reason if isinstance(item, Damage) else f"written by a newer release ({item.feature})"
                    damage.append(f"{path} at byte {item.offset}: {words}")
                elif isinstance(item, Frame) and item.header.kind == FrameKind.SNAPSHOT:
                    snapshots += 1
                elif isinstance(item, Frame) and item.header.kind == FrameKind.EVENTS:
                    events.update(_kinds(bytes(item.payload)))
        except FileNotFoundError:
            continue  # superseded meanwhile
    return Epoch(epoch, timeline_of(epoch), owner, claimed_ms, len(paths), size, snapshots, dict(events), tuple(damage))


class _Kind(msgspec.Struct):
    event: str


def _kinds(payload: bytes) -> list[str]:
    try:
        return [one.event for one in msgspec.msgpack.decode(payload, type=list[_Kind])]
    except msgspec.MsgspecError:
        return ["events that can't be decoded"]


def _copy(storage: Storage, path: str) -> Copy:
    from driver.journal import log as journal

    try:
        state = journal.snapshot_in(storage, path)
        size = storage.size(path)
    except (CorruptionError, NewerVersionError) as error:
        return Copy(path, 0, 0, -1, str(error))
    except FileNotFoundError:
        return Copy(path, 0, 0, -1, "superseded meanwhile")
    if state is None:
        return Copy(path, size, 0, -1, "not finished: its writer was killed")
    return Copy(path, size, state.timeline, state.events, "")


def _summary(found: Reading) -> dict[str, int]:
    state = found.state
    if state is None:
        return {}
    return {
        "lineage": state.timeline,
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
            + (f"the WAL belongs to lineage {found.timeline_of_wal}" if found.timeline_of_wal else "no WAL belongs to it"),
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
            "Snapshot copies beside the WAL, the newest first",
            ("copy", "bytes", "lineage", "events", "detail"),
            [(c.path, c.bytes, c.timeline or "-", c.next if c.next >= 0 else "-", c.detail or "-") for c in found.copies],
        ),
        table("What it says", ("what", "number"), list(found.state.items())),
    ]  # fmt: skip


# ---- rebuild ----------------------------------------------------------------------------------------------------------


class Position(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    topic: str
    partition: int
    incarnation: int
    position: int
    completed: int


class RebuildReport(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """``blocks``: how many the new journal names, ``taken``: of those, found in the WAL after the copy. ``not_taken``: block →
    why. ``repeated``: batches that may have run and are given to the job again. ``holes``: where frames lie that nothing leads
    to; ``missing``: ranges that wait again, and whose segment is gone."""

    done: bool
    stream: str
    timeline: int
    copy: str
    positions: tuple[Position, ...]
    blocks: int
    taken: int
    not_taken: dict[str, str]
    repeated: dict[str, tuple[str, ...]]
    holes: tuple[str, ...]
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def report_of(plan: RebuildPlan, done: bool) -> RebuildReport:
    state = plan.state
    return RebuildReport(
        done=done,
        stream=state.stream,
        timeline=state.timeline,
        copy=plan.copy_path,
        positions=tuple(
            Position(p.topic, p.partition, p.incarnation.number, p.position, p.completed)
            for p in sorted(state.partitions.values(), key=lambda p: (p.topic, p.partition))
        ),
        blocks=len(state.blocks),
        taken=len(plan.taken),
        not_taken={one.block_id: f"{', '.join(one.ranges)}: {one.reason}" for one in plan.not_taken},
        repeated={
            str(batch.batch_id) if batch.batch_id else "begun after the copy": batch.ranges
            for batch in plan.rebuild.repeated
        },
        holes=tuple(
            f"{h.topic}/{h.partition} goes on at {h.position} of life {h.incarnation}; "
            f"the WAL holds frames from {h.next_from} on, and nothing leads there"
            for h in plan.missing_offsets
        ),
        missing=plan.missing,
        notes=plan.notes,
    )


def rebuild_tables(report: RebuildReport) -> list[Group]:
    from deploy.console.table import table

    return [
        table(
            f"Lineage {report.timeline} of stream {report.stream}, from {report.copy}: {report.blocks} blocks, "
            f"{report.taken} of them found in the WAL after it",
            ("partition", "life", "position", "completed"),
            [(f"{p.topic}/{p.partition}", p.incarnation, p.position, p.completed) for p in report.positions],
        ),
        table("Batches that may run a second time", ("batch", "ranges"),
              [(batch, "\n".join(ranges)) for batch, ranges in report.repeated.items()]),
        table("Blocks that are not taken in", ("block", "why"), list(report.not_taken.items())),
    ]  # fmt: skip


def _say(invocation: Invocation, report: RebuildReport) -> None:
    for note in report.notes:
        invocation.say(f"forebay: {note}")
    for hole in report.holes:
        invocation.say(f"forebay: {hole}; if Kafka has dropped what lies between, it is lost")
    if report.missing:
        words = (
            f"forebay: no segment holds {', '.join(report.missing)} any more, and no batch is known to have finished it"
        )
        invocation.say(f"{words}: bring back the WAL's files, or accept the loss when its batch stops")


def _topic_ids(settings: Settings, topics: Iterable[str]) -> dict[str, str]:
    if settings.custom_source:
        from driver.background.upstream import upstream_of

        return upstream_of(settings).topic_ids(topics)
    from forebay.kafka.client.admin import KafkaAdmin

    with KafkaAdmin(
        settings.kafka.options, timeout_seconds=KAFKA_SECONDS, client_id="forebay-journal-rebuild"
    ) as admin:
        return admin.topic_ids(topics)


def _rebuild(settings: Settings, yes: bool, even_if_intact: bool) -> RebuildPlan:
    from driver.journal import timeline
    from driver.journal.lease import wait_until_stale
    from recovery import rebuild
    from wal.storage import open_storage

    journal_storage = open_storage(settings.driver.journal, settings.storage)
    wal_storage = open_storage(settings.wal.url, settings.storage)
    if yes:
        wait_until_stale(journal_storage, settings.stream, threading.Event())
    marked = timeline.newest_marker(wal_storage, settings.stream)
    if not marked:
        raise UsageError(
            f"{wal_storage.url} was never the WAL of stream {settings.stream!r}: there is no journal to rebuild; check "
            "stream and wal.url"
        )
    copy, _, _ = rebuild.newest_copy(wal_storage, settings.stream)
    if not even_if_intact:
        rebuild.refuse_intact(journal_storage, wal_storage, settings.stream, copy)
    owner = f"forebay journal rebuild by {getpass.getuser()} on {socket.gethostname()}"
    wall_ms = int(time.time() * 1000)
    if not yes:
        evidence = rebuild.read_evidence(journal_storage, wal_storage, settings.stream, partial(_topic_ids, settings))
        return rebuild.rebuilt(evidence, marked + 1, wall_ms, owner)
    return rebuild.rebuild(
        journal_storage,
        wal_storage,
        settings.stream,
        partial(_topic_ids, settings),
        f"{owner} ({secrets.token_hex(4)})",
        wall_ms,
        time.time,
        lambda: secrets.randbits(64),
        settings.driver.journal_segment_size,
    )


@click.group(short_help="Look at the driver's journal; rebuild a lost one.", epilog=example("forebay journal inspect"))
@shared_options
def journal() -> None:
    """Look at the driver's journal; rebuild a lost one."""


@journal.command(
    "inspect",
    short_help="Show epochs, snapshots, events and copies.",
    epilog=example("forebay journal inspect", "forebay journal inspect --json | jq .state"),
)
@shared_options
@pass_invocation
def inspect(invocation: Invocation) -> int:
    """Read the journal and its snapshot copies beside the WAL, verify every checksum, and show what is in them.

    Changes nothing, fences nobody; a driver may be at work. Exits with 1 if a byte of the journal is not what was written.
    """
    from wal.storage import open_storage

    settings = invocation.settings()
    journal_storage = open_storage(settings.driver.journal, settings.storage)
    wal_storage = open_storage(settings.wal.url, settings.storage) if settings.has_wal else None
    found = inspect_journal(journal_storage, wal_storage, settings.stream)
    invocation.write(found, lambda: inspection_tables(found))
    damage = [f"epoch {epoch.epoch:x}: {words}" for epoch in found.epochs for words in epoch.damage]
    if found.unreadable:
        damage.append(f"the journal can't be read: {found.unreadable}")
    elif not found.state and found.timeline_of_wal:
        damage.append(
            f"{journal_storage.url} holds no journal of stream {found.stream!r}, but the WAL belongs to one: it was lost, or "
            "driver.journal points elsewhere; `forebay journal rebuild` shows what could be made of the WAL"
        )
    for words in damage:
        invocation.say(f"forebay: {words}")
    return FOUND if damage else FINE


@journal.command(
    "rebuild",
    short_help="Make a new journal from the WAL.",
    epilog=example("forebay journal rebuild", "forebay journal rebuild --yes"),
)
@click.option("--even-if-intact", is_flag=True, help="Though the journal can be read: it is an old copy, say.")
@changing_options
@shared_options
@pass_invocation
def rebuild_command(invocation: Invocation, even_if_intact: bool, yes: bool) -> int:
    """Make a new journal from the newest snapshot copy beside the WAL and the blocks that were written after it.

    Without --yes, shows what the new journal would say: positions, blocks taken in and not, and the batches that may run a
    second time. It begins a new lineage: what is left of the old journal, driver and receivers is fenced; start them again.
    It may be killed and run again. Refused beside a driver at work, without a copy, and while the journal is whole.
    """
    settings = invocation.settings()
    if settings.custom_source:
        prepare_job_imports(invocation.config_path)
    plan = _rebuild(settings, yes, even_if_intact)
    report = report_of(plan, yes)
    invocation.write(report, lambda: rebuild_tables(report))
    _say(invocation, report)
    done = f"the journal was rebuilt as lineage {report.timeline}: start the driver and the receivers"
    invocation.say(done if yes else "nothing was changed: say --yes to do it")
    return FOUND if report.holes or report.missing else FINE
