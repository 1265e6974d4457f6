"""``forebay offsets export|import``: write positions to a file; set committed offsets in Kafka from it or from the journal."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from deploy.console.invocation import (
    FINE,
    NOTHING_CHANGED,
    Invocation,
    changing_options,
    example,
    pass_invocation,
    shared_options,
)
from deploy.console.progress import spinner
from forebay.model.errors import ForebayError, RefusedError, UnreachableError, UsageError
from forebay.model.values import TopicPartition
from forebay.model.wire import UNDECODABLE, WIRE_NAMES
from forebay.process.os_errors import failure
from forebay.settings.schema import Settings
from forebay.sources.kind import source_kind

if TYPE_CHECKING:
    from rich.console import Group

    from driver.journal.state import State

#: the newest format of the file that this release writes and reads
FORMAT = 1
#: maximum size of a file to import
FILE_BYTES_MAX = 256_000_000
#: maximum number of partitions that one refusal names
UNHELD_SHOWN = 5

Use = Literal["completed", "position"]


class ExportedIncarnation(msgspec.Struct, frozen=True, rename={**WIRE_NAMES, "number": "life"}):
    """Offsets ``[start, end)`` of one incarnation; ``end`` is None for the current one."""

    number: int
    topic_id: str
    start: int
    end: int | None
    cause: str


class ExportedPartition(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """The offsets of one partition.

    ``position``: next offset to take in. ``completed``: offset before which all batches are completed. ``committed``: offset
    that the stream's group has committed in Kafka; None if there is none or Kafka did not answer.
    """

    topic: str
    partition: int
    incarnation: int
    topic_id: str
    leader_epoch: int
    position: int
    completed: int
    committed: int | None
    incarnations: tuple[ExportedIncarnation, ...]

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)

    def offset(self, use: Use) -> int:
        return self.completed if use == "completed" else self.position


class ExportedOffsets(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """The file of an export. ``events``: number of journal events that the positions result from."""

    format: int
    stream: str
    timeline: int
    events: int
    exported_ms: int
    group: str
    completed_group: str
    partitions: tuple[ExportedPartition, ...]


def exported(state: State, settings: Settings, committed: Mapping[TopicPartition, int], now_ms: int) -> ExportedOffsets:
    """Return the journal's positions as the file holds them. ``committed``: committed offsets in Kafka."""
    return ExportedOffsets(
        format=FORMAT,
        stream=state.stream,
        timeline=state.timeline,
        events=state.events,
        exported_ms=now_ms,
        group=settings.group,
        completed_group=settings.completed_group,
        partitions=tuple(
            ExportedPartition(
                topic=p.topic,
                partition=p.partition,
                incarnation=p.incarnation.number,
                topic_id=p.incarnation.topic_id,
                leader_epoch=p.leader_epoch,
                position=p.position,
                completed=p.completed,
                committed=committed.get(p.tp),
                incarnations=tuple(
                    ExportedIncarnation(x.number, x.topic_id, x.start, x.end, x.cause) for x in p.incarnations
                ),
            )
            for p in sorted(state.partitions.values(), key=lambda p: (p.topic, p.partition))
        ),
    )


class _Format(msgspec.Struct, frozen=True):
    format: int


def read_file(path: Path) -> ExportedOffsets:
    """Read an export from ``path``. Raises UsageError with the file and its fault."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(
                f"{path}: is larger than {FILE_BYTES_MAX} bytes: not a file that `forebay offsets export` wrote"
            )
        data = path.read_bytes()
    except OSError as error:
        raise failure(f"{path}: can't be read", error, kind=UsageError) from None
    try:
        version = msgspec.json.decode(data, type=_Format).format
        if version > FORMAT:
            raise UsageError(
                f"{path}: has format {version}; this release reads formats up to {FORMAT}: use a newer release"
            )
        found = msgspec.json.decode(data, type=ExportedOffsets)
    except UNDECODABLE as error:
        raise UsageError(f"{path}: is not a file that `forebay offsets export` wrote: {error}") from None
    for p in found.partitions:
        if p.partition < 0 or p.incarnation < 1 or not 0 <= p.completed <= p.position < 1 << 63:
            raise UsageError(
                f"{path}: {p.tp}: incarnation {p.incarnation}, completed {p.completed}, position {p.position} is impossible: "
                "export the offsets again"
            )
    if len({p.tp for p in found.partitions}) != len(found.partitions):
        raise UsageError(f"{path}: names a partition twice: export the offsets again")
    return found


class Commit(msgspec.Struct, frozen=True):
    """An offset to commit for a group in Kafka.

    ``group``: "" for the offset where a new stream would begin. ``metadata``: "" for any other group than the stream's own
    two. No consumer begins to read at the offsets of the stream's own groups.
    """

    group: str
    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str

    @property
    def tp(self) -> TopicPartition:
        return TopicPartition(self.topic, self.partition)


def commits(
    offsets: ExportedOffsets, state: State | None, settings: Settings, group: str | None, use: Use
) -> list[Commit]:
    """Return the commits of an import: for the stream's own two groups, or only for ``group``.

    Raises RefusedError if a commit of the stream's own groups would exceed the journal's positions (INV-1), UsageError if the
    stream is not created.
    """
    if group is not None and group not in (settings.group, settings.completed_group):
        return [Commit(group, p.topic, p.partition, p.offset(use), -1, "") for p in offsets.partitions]
    if state is None:
        raise UsageError(
            f"there is no journal of stream {settings.stream!r} yet: set kafka.starting_offsets to begin at these offsets "
            "(shown without --apply), or name another group with --group"
        )
    wanted = []
    for p in offsets.partitions:
        known = state.partition(p.tp)
        if known is None:
            raise RefusedError(f"{p.tp} is no partition of stream {state.stream!r}", "not-found")
        if p.incarnation != known.incarnation.number or p.topic_id != known.incarnation.topic_id:
            own = known.incarnation
            raise RefusedError(
                f"{p.tp}: the file's offsets are of incarnation {p.incarnation} (topic id {p.topic_id or 'unknown'}), the "
                f"journal has incarnation {own.number} (topic id {own.topic_id or 'unknown'}). The topic was created again or "
                "set back, so the same offsets name other records: export the offsets again",
                "conflict",
            )
        metadata = f"forebay:{state.timeline}:{known.incarnation.number}"
        for name, offset, limit in (
            (settings.group, p.position, known.position),
            (settings.completed_group, p.completed, known.completed),
        ):
            if group in (None, name):
                if offset > limit:
                    what = "durable" if name == settings.group else "completed"
                    raise RefusedError(
                        f"{p.tp}: {offset} is beyond the {what} position {limit} of the journal: group {name} would claim "
                        "records that were never taken in (INV-1)",
                        "conflict",
                    )
                epoch = known.leader_epoch if offset == known.position else -1
                wanted.append(Commit(name, p.topic, p.partition, offset, epoch, metadata))
    return wanted


def unheld(
    wanted: Iterable[Commit], counts: Mapping[str, int], watermarks: Mapping[TopicPartition, tuple[int, int]]
) -> list[str]:
    """Return one sentence for each offset that Kafka does not hold, in order.

    ``counts``: topic → its number of partitions. ``watermarks``: partition → (first offset held, next offset to be written).
    Offsets of the stream's own groups may be below the first offset held, because the WAL keeps records longer than Kafka.
    """
    reasons = []
    for commit in wanted:
        whose = f"offset {commit.offset}" + (f" for group {commit.group}" if commit.group else "")
        count = counts.get(commit.topic)
        if count is None:
            reasons.append(f"{commit.tp}: {whose}, and Kafka has no topic {commit.topic}")
        elif commit.partition >= count:
            reasons.append(f"{commit.tp}: {whose}, and Kafka's topic {commit.topic} has {count} partitions, from 0 on")
        else:
            low, high = watermarks[commit.tp]
            if commit.offset > high:
                reasons.append(f"{commit.tp}: {whose} is beyond the end of what Kafka holds, {low} to {high}")
            elif commit.offset < low and not commit.metadata:
                reasons.append(f"{commit.tp}: {whose} is before the beginning of what Kafka holds, {low} to {high}")
    return reasons


def starting_offsets(offsets: ExportedOffsets, use: Use) -> str:
    """Return the lines of forebay.toml with which a new stream begins at these offsets."""
    pairs = ", ".join(f'"{p.tp}" = {p.offset(use)}' for p in offsets.partitions)
    return f"[kafka]\nstarting_offsets = {{ {pairs} }}\n"


def _journal(settings: Settings) -> State | None:
    from driver.journal.log import reading as journal
    from wal.storage import open_storage

    storage = open_storage(settings.driver.journal, settings.storage)
    with spinner("reading the journal"):
        return journal.read_beside_a_writer(storage, settings.stream).state


@click.command(
    "export",
    short_help="Write the positions of all partitions as JSON.",
    epilog=example("forebay offsets export --file offsets.json", "forebay offsets export | jq .partitions"),
)
@click.option(
    "--file",
    "path",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write, replaced as a whole [default: stdout].",
)
@shared_options
@pass_invocation
def export_offsets(invocation: Invocation, path: Path | None) -> int:
    """Write the offsets of each partition as JSON: incarnations, position, completed position, committed offset in Kafka.

    Only reads the journal. If Kafka does not answer, the committed offsets are left out, with a message. Use it before a
    migration, or to start another consumer where this stream is (see `forebay offsets import`).
    """
    settings = invocation.settings()
    state = _journal(settings)
    if state is None or not state.created:
        raise UsageError(
            f"{settings.driver.journal} holds no journal of stream {settings.stream!r} with partitions yet"
        )
    from forebay.kafka.client.admin import KafkaAdmin

    committed: dict[TopicPartition, int] = {}
    try:
        if source_kind(settings).has_groups:
            with KafkaAdmin(settings.kafka.options) as admin:
                found = admin.committed(settings.group, [p.tp for p in state.partitions.values()])
                committed = {tp: commit.offset for tp, commit in found.items()}
    except UnreachableError as error:
        invocation.say(f"forebay: the file has no committed offsets: {error}")
    document = exported(state, settings, committed, int(time.time() * 1000))
    text = msgspec.json.format(msgspec.json.encode(document), indent=2).decode()
    if path is None:
        click.echo(text)
        return FINE
    beside = path.with_name(f"{path.name}.new")
    try:
        with beside.open("w", encoding="utf-8") as file:
            file.write(f"{text}\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        raise failure(f"{path}: can't be written", error, kind=UsageError) from None
    invocation.say(f"wrote {path}: {len(document.partitions)} partitions of stream {document.stream}")
    return FINE


@click.command(
    "import",
    short_help="Set committed offsets in Kafka, from a file or the journal.",
    epilog=example(
        "forebay offsets import offsets.json", "forebay offsets import --apply",
        "forebay offsets import offsets.json --group another-consumer --apply",
    ),
)  # fmt: skip
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--group", metavar="GROUP", help="Consumer group to set [default: the stream's two groups].")
@click.option("--use", type=click.Choice(["completed", "position"]), default="completed", show_default=True,
              help="Offsets at which another group, or a new stream, begins.")  # fmt: skip
@click.option("--force", is_flag=True, help="Set offsets also if Kafka does not hold them or does not answer.")
@changing_options
@shared_options
@pass_invocation
def import_offsets(
    invocation: Invocation, path: Path | None, group: str | None, use: Use, force: bool, yes: bool
) -> int:
    """Set the committed offsets of consumer groups in Kafka, from FILE or from the journal. The journal is never changed.

    By default the stream's own groups get the positions and the completed positions, never beyond the journal. With --group,
    another consumer continues where this stream is. For a stream that is not created yet, the command prints the lines of
    forebay.toml with which the stream begins at these offsets.

    The group must have no members. Offsets that Kafka does not hold are refused; for the stream's own groups, only offsets
    beyond the end of Kafka's log are.
    """
    settings = invocation.settings()
    if not source_kind(settings).has_groups:
        raise UsageError(f"receiver.source = {settings.receiver.source!r}: the stream has no consumer groups to set")
    state = _journal(settings)
    if state is not None and not state.created:
        state = None
    if path is not None:
        offsets = read_file(path)
    elif state is not None:
        offsets = exported(state, settings, {}, 0)
    else:
        raise UsageError(f"there is no journal of stream {settings.stream!r}: name a FILE of `forebay offsets export`")
    if state is None and group is None and not yes:
        lines = starting_offsets(offsets, use)
        beginnings = [Commit("", p.topic, p.partition, p.offset(use), -1, "") for p in offsets.partitions]
        try:
            _check_with_kafka(invocation, settings, offsets, beginnings, force)
        except UnreachableError as error:
            invocation.say(f"forebay: the offsets were not compared with Kafka: {error}")
        invocation.write({"done": False, "starting_offsets": lines})
        if not invocation.json:
            click.echo(lines, nl=False)
        invocation.say(
            "the stream is not created yet: with these lines in forebay.toml it begins at these offsets; nothing was changed"
        )
        return FINE
    wanted = commits(offsets, state, settings, group, use)
    try:
        _check_with_kafka(invocation, settings, offsets, wanted, force)
    except UnreachableError as error:
        if not force:
            raise
        invocation.say(f"forebay: the offsets were not compared with Kafka: {error}")
    if yes:
        from forebay.kafka.client.admin import Committed, KafkaAdmin

        with spinner("setting offsets"), KafkaAdmin(settings.kafka.options) as admin:
            for name in dict.fromkeys(commit.group for commit in wanted):
                points = {c.tp: Committed(c.offset, c.leader_epoch, c.metadata) for c in wanted if c.group == name}
                failed = admin.publish(name, points)
                if failed:
                    reasons = "; ".join(f"{tp}: {error}" for tp, error in sorted(failed.items()))
                    raise ForebayError(
                        f"cannot set the offsets of group {name}: {reasons}; stop its members, then repeat this command"
                    )
    invocation.write({"done": yes, "commits": wanted}, lambda: [_table(wanted)])
    groups = ", ".join(dict.fromkeys(commit.group for commit in wanted))
    invocation.say(
        f"set {len(wanted)} offsets of {groups}" if yes else f"would set {len(wanted)} offsets of {groups}; {NOTHING_CHANGED}"
    )  # fmt: skip
    return FINE


def _check_with_kafka(
    invocation: Invocation, settings: Settings, offsets: ExportedOffsets, wanted: Sequence[Commit], force: bool
) -> None:
    """Compare the offsets with Kafka.

    Raises RefusedError if a topic was created again since the export or, without ``force``, if Kafka does not hold an offset;
    UnreachableError.
    """
    from forebay.kafka.client.admin import KafkaAdmin

    with spinner("comparing with Kafka"), KafkaAdmin(settings.kafka.options) as admin:
        _refuse_other_records(offsets, admin.topic_ids({p.topic for p in offsets.partitions}))
        counts = admin.topics()
        there = dict.fromkeys(c.tp for c in wanted if c.partition < counts.get(c.topic, 0))
        reasons = unheld(wanted, counts, admin.watermarks(there))
    if reasons and not force:
        more = f"; and {len(reasons) - UNHELD_SHOWN} more" if len(reasons) > UNHELD_SHOWN else ""
        raise RefusedError(
            f"{'; '.join(reasons[:UNHELD_SHOWN])}{more}. Nothing was changed; --force sets them anyway", "conflict"
        )
    for sentence in reasons:
        invocation.say(f"forebay: ignored because of --force: {sentence}")


def _refuse_other_records(offsets: ExportedOffsets, topic_ids: Mapping[str, str]) -> None:
    for p in offsets.partitions:
        now = topic_ids.get(p.topic, "")
        if p.topic_id and now and now != p.topic_id:
            raise RefusedError(
                f"{p.topic} was deleted and created again since the export: its offsets mean other records (topic id {now}, "
                f"was {p.topic_id})",
                "conflict",
            )


def _table(wanted: list[Commit]) -> Group:
    from deploy.console.table import table

    return table(
        "Committed offsets in Kafka",
        ("group", "partition", "offset", "metadata"),
        [(c.group, str(c.tp), c.offset, c.metadata or "-") for c in wanted],
    )
