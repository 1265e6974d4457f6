"""``forebay offsets export|import``: positions as a file, and committed offsets in Kafka set from it or from the journal."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
import msgspec

from deploy.console.invocation import FINE, Invocation, changing_options, example, pass_invocation, shared_options
from forebay.model.errors import ForebayError, RefusedError, UnreachableError, UsageError
from forebay.model.values import TopicPartition
from forebay.model.wire import WIRE_NAMES
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    from rich.console import Group

    from driver.journal.state import State

#: the newest format of the file that this release writes and reads
FORMAT = 1
#: larger files are no export of ours
FILE_BYTES_MAX = 256_000_000
#: partitions that one refusal names; how many more there are it counts
UNHELD_SHOWN = 5

Use = Literal["completed", "position"]


class ExportedIncarnation(msgspec.Struct, frozen=True, rename={**WIRE_NAMES, "number": "life"}):
    """Offsets ``[start, end)`` of one life; ``end`` is None while it lasts."""

    number: int
    topic_id: str
    start: int
    end: int | None
    cause: str


class ExportedPartition(msgspec.Struct, frozen=True, rename=WIRE_NAMES):
    """``position``: the next offset to take in. ``completed``: up to here all batches are completed. ``committed``: what the
    stream's group has committed in Kafka; None if nothing, or Kafka did not answer."""

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
    """The file. ``events``: how many of the journal's events it is made of."""

    format: int
    stream: str
    timeline: int
    events: int
    exported_ms: int
    group: str
    completed_group: str
    partitions: tuple[ExportedPartition, ...]


def exported(state: State, settings: Settings, committed: Mapping[TopicPartition, int], now_ms: int) -> ExportedOffsets:
    """The journal's positions as a file holds them."""
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
    """Raises UsageError that names the file and what is wrong with it."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise UsageError(
                f"{path}: is larger than {FILE_BYTES_MAX} bytes: no file that `forebay offsets export` wrote"
            )
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: can't be read: {error.strerror}") from None
    try:
        version = msgspec.json.decode(data, type=_Format).format
        if version > FORMAT:
            raise UsageError(f"{path}: has format {version}, this release reads up to {FORMAT}: use a newer release")
        found = msgspec.json.decode(data, type=ExportedOffsets)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path}: is no file that `forebay offsets export` wrote: {error}") from None
    for p in found.partitions:
        if p.partition < 0 or p.incarnation < 1 or not 0 <= p.completed <= p.position < 1 << 63:
            raise UsageError(
                f"{path}: {p.tp}: life {p.incarnation}, completed {p.completed}, position {p.position} can't be"
            )
    if len({p.tp for p in found.partitions}) != len(found.partitions):
        raise UsageError(f"{path}: names a partition twice")
    return found


class Commit(msgspec.Struct, frozen=True):
    """An offset to commit for a group in Kafka; ``group`` "": where a new stream would begin. ``metadata`` "" but for the
    stream's own groups, at whose offsets nobody begins to read."""

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
    """What an import sets: the stream's two groups, or ``group`` alone.

    Raises RefusedError where that would say of the stream's own groups what its journal does not hold (INV-1), UsageError
    for a stream that is not created.
    """
    if group is not None and group not in (settings.group, settings.completed_group):
        return [Commit(group, p.topic, p.partition, p.offset(use), -1, "") for p in offsets.partitions]
    if state is None:
        raise UsageError(
            f"there is no journal of stream {settings.stream!r} yet: let it begin at these offsets by kafka.starting_offsets "
            "(shown without --yes), or name another group with --group"
        )
    wanted = []
    for p in offsets.partitions:
        known = state.partition(p.tp)
        if known is None:
            raise RefusedError(f"{p.tp} is no partition of stream {state.stream!r}", "not-found")
        if p.incarnation != known.incarnation.number or p.topic_id != known.incarnation.topic_id:
            raise RefusedError(
                f"{p.tp}: the file is of life {p.incarnation}, the journal is at life {known.incarnation.number}: "
                "an offset means another record there",
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
                        f"{p.tp}: {offset} lies beyond the {what} position {limit} of the journal: group {name} would claim "
                        "what was never taken in (INV-1)",
                        "conflict",
                    )
                epoch = known.leader_epoch if offset == known.position else -1
                wanted.append(Commit(name, p.topic, p.partition, offset, epoch, metadata))
    return wanted


def unheld(
    wanted: Iterable[Commit], counts: Mapping[str, int], watermarks: Mapping[TopicPartition, tuple[int, int]]
) -> list[str]:
    """In words each offset that Kafka does not hold, in order. ``counts``: topic → its number of partitions;
    ``watermarks``: (first offset held, next offset to be written) of those that exist.

    The stream's own groups may lie below the first: what they say was taken in stays in the WAL longer than in Kafka.
    """
    words = []
    for commit in wanted:
        whose = f"offset {commit.offset}" + (f" for group {commit.group}" if commit.group else "")
        count = counts.get(commit.topic)
        if count is None:
            words.append(f"{commit.tp}: {whose}, and Kafka has no topic {commit.topic}")
        elif commit.partition >= count:
            words.append(f"{commit.tp}: {whose}, and Kafka's topic {commit.topic} has {count} partitions, from 0 on")
        else:
            low, high = watermarks[commit.tp]
            if commit.offset > high:
                words.append(f"{commit.tp}: {whose} lies beyond the end of what Kafka holds, {low} to {high}")
            elif commit.offset < low and not commit.metadata:
                words.append(f"{commit.tp}: {whose} lies before the beginning of what Kafka holds, {low} to {high}")
    return words


def starting_offsets(offsets: ExportedOffsets, use: Use) -> str:
    """The lines of forebay.toml with which a stream that is not created yet begins there."""
    pairs = ", ".join(f'"{p.tp}" = {p.offset(use)}' for p in offsets.partitions)
    return f"[kafka]\nstarting_offsets = {{ {pairs} }}\n"


def _journal(settings: Settings) -> State | None:
    from driver.journal import log as journal
    from wal.storage import open_storage

    storage = open_storage(settings.driver.journal, settings.storage)
    return journal.read_beside_a_writer(storage, settings.stream).state


@click.command(
    "export",
    short_help="Write positions and lives as JSON.",
    epilog=example("forebay offsets export --file offsets.json", "forebay offsets export | jq .partitions"),
)
@click.option("--file", "path", metavar="FILE", type=click.Path(path_type=Path, dir_okay=False), help="Write it there.")
@shared_options
@pass_invocation
def export_offsets(invocation: Invocation, path: Path | None) -> int:
    """Write for each partition its lives, the position, what is completed, and what the group has committed in Kafka.

    Reads the journal and fences nobody. Without Kafka the committed offsets are left out, and it is said.
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
        if not settings.custom_source:
            with KafkaAdmin(settings.kafka.options) as admin:
                found = admin.committed(settings.group, [p.tp for p in state.partitions.values()])
                committed = {tp: commit.offset for tp, commit in found.items()}
    except UnreachableError as error:
        invocation.say(f"forebay: committed offsets are left out: {error}")
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
        raise UsageError(f"{path}: can't be written: {error.strerror}") from None
    invocation.say(f"{path}: {len(document.partitions)} partitions of stream {document.stream}")
    return FINE


@click.command(
    "import",
    short_help="Set committed offsets in Kafka.",
    epilog=example(
        "forebay offsets import offsets.json", "forebay offsets import --yes",
        "forebay offsets import offsets.json --group another-consumer --yes",
    ),
)  # fmt: skip
@click.argument("path", metavar="[FILE]", required=False, type=click.Path(path_type=Path, dir_okay=False))
@click.option("--group", metavar="GROUP", help="Set this group alone [default: the stream's two groups].")
@click.option("--use", type=click.Choice(["completed", "position"]), default="completed", show_default=True,
              help="Which offsets another group, or a new stream, begins at.")  # fmt: skip
@click.option("--force", is_flag=True, help="Also offsets that Kafka does not hold, or can't be asked for.")
@changing_options
@shared_options
@pass_invocation
def import_offsets(
    invocation: Invocation, path: Path | None, group: str | None, use: Use, force: bool, yes: bool
) -> int:
    """Set what consumer groups have committed in Kafka, from FILE or else from the journal; never the journal itself.

    The stream's own groups get the positions and the completed positions, and nothing beyond what the journal holds. With
    --group another consumer goes on where this stream is. For a stream that is not created yet, the lines of forebay.toml are
    printed with which it begins at these offsets. A group that is set must have no members, and an offset that Kafka does not
    hold is refused; of the stream's own groups only one beyond its end.
    """
    settings = invocation.settings()
    if settings.custom_source:
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
            invocation.say(f"forebay: not compared with what Kafka holds: {error}")
        invocation.write({"done": False, "starting_offsets": lines})
        if not invocation.json:
            click.echo(lines, nl=False)
        invocation.say(
            "the stream is not created yet: with these lines in forebay.toml it begins there; nothing was changed"
        )
        return FINE
    wanted = commits(offsets, state, settings, group, use)
    try:
        _check_with_kafka(invocation, settings, offsets, wanted, force)
    except UnreachableError as error:
        if not force:
            raise
        invocation.say(f"forebay: not compared with what Kafka holds: {error}")
    if yes:
        from forebay.kafka.client.admin import Committed, KafkaAdmin

        with KafkaAdmin(settings.kafka.options) as admin:
            for name in dict.fromkeys(commit.group for commit in wanted):
                points = {c.tp: Committed(c.offset, c.leader_epoch, c.metadata) for c in wanted if c.group == name}
                failed = admin.publish(name, points)
                if failed:
                    words = "; ".join(f"{tp}: {error}" for tp, error in sorted(failed.items()))
                    raise ForebayError(f"group {name}: {words}; stop its members, then say it again")
    invocation.write({"done": yes, "commits": wanted}, lambda: [_table(wanted)])
    groups = ", ".join(dict.fromkeys(commit.group for commit in wanted))
    invocation.say(
        f"{groups}: {len(wanted)} offsets set" if yes else f"would set {len(wanted)} offsets of {groups}; nothing was "
        "changed: say --yes to do it"
    )  # fmt: skip
    return FINE


def _check_with_kafka(
    invocation: Invocation, settings: Settings, offsets: ExportedOffsets, wanted: Sequence[Commit], force: bool
) -> None:
    """Raises RefusedError for offsets that mean other records by now and, without ``force``, for those that Kafka does not
    hold; UnreachableError."""
    from forebay.kafka.client.admin import KafkaAdmin

    with KafkaAdmin(settings.kafka.options) as admin:
        _refuse_other_records(offsets, admin.topic_ids({p.topic for p in offsets.partitions}))
        counts = admin.topics()
        there = dict.fromkeys(c.tp for c in wanted if c.partition < counts.get(c.topic, 0))
        words = unheld(wanted, counts, admin.watermarks(there))
    if words and not force:
        more = f"; and {len(words) - UNHELD_SHOWN} more" if len(words) > UNHELD_SHOWN else ""
        raise RefusedError(
            f"{'; '.join(words[:UNHELD_SHOWN])}{more}. Nothing was changed; --force passes over this", "conflict"
        )
    for sentence in words:
        invocation.say(f"forebay: passed over: {sentence}")


def _refuse_other_records(offsets: ExportedOffsets, topic_ids: Mapping[str, str]) -> None:
    for p in offsets.partitions:
        now = topic_ids.get(p.topic, "")
        if p.topic_id and now and now != p.topic_id:
            raise RefusedError(
                f"{p.topic} was deleted and created again since: its offsets mean other records (topic id {now}, was "
                f"{p.topic_id})",
                "conflict",
            )


def _table(wanted: list[Commit]) -> Group:
    from deploy.console.table import table

    return table(
        "Committed offsets in Kafka",
        ("group", "partition", "offset", "metadata"),
        [(c.group, str(c.tp), c.offset, c.metadata or "-") for c in wanted],
    )
