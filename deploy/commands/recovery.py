"""``forebay recover``: journal, WAL, history, local copies and Kafka laid side by side; one plan, and its execution."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import socket
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import click

from deploy.commands.replay import MomentType, replay
from deploy.commands.status import TIMEOUT_SECONDS, ask
from deploy.console.invocation import (
    FINE,
    FOUND,
    Invocation,
    because_option,
    changing_options,
    example,
    pass_invocation,
    person,
    shared_options,
)
from forebay.messages import AcceptLossRequest, OperatorAnswer, TrackedBatch
from forebay.model.errors import CorruptionError, ForebayError, NewerVersionError, RefusedError, UsageError
from forebay.model.values import TIMELINE_SHIFT
from forebay.settings.schema import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from rich.console import Group

    from driver.journal.state import State
    from recovery.copies import CopySource, CopySources, ReadRanges
    from recovery.damaged_copies import DamagedCopiesPlan
    from recovery.examination import Examination
    from recovery.plan import BlockRecovery, CopiesView, DamagedSegment, HistoryView, KafkaView, Loss, RecoveryPlan
    from wal.storage import Storage

#: so long Kafka, an agent or the driver may take to answer at all; a plan does not wait for what is down
ANSWER_SECONDS = 3.0


class Surroundings:
    """What a plan is made of besides journal and WAL: Kafka, the agents, this host's copies. Asked once, then closed."""

    def __init__(self, settings: Settings, *, kafka: bool, agents: Sequence[tuple[str, str]] = ()) -> None:
        self._settings = settings
        self._ask_kafka = kafka
        self._named_agents = dict(agents)
        self.agents: dict[str, str] = {}
        self.silent: list[str] = []

    def find_agents(self) -> None:
        """The agents that answer: those named, this host's, and those that a driver at work knows."""
        from forebay.http.client import Client
        from forebay.security.access import Access
        from wal.reading import this_host

        urls = {self._settings.agent.host or this_host(): self._settings.agent.url}
        with contextlib.suppress(ForebayError):  # stopped, as it should be: then only what is named and this host's
            urls.update({agent.host: agent.url for agent in ask(self._settings, ANSWER_SECONDS).agents})
        for host, url in {**urls, **self._named_agents}.items():
            client = Client(url, ANSWER_SECONDS, Access.of(self._settings, "operator"))
            try:
                client.request("GET", "/v1/status")
                self.agents[host] = url
            except ForebayError as error:
                self.silent.append(f"{host}: {error}")
            finally:
                client.close()

    def kafka(self, state: State) -> KafkaView:
        from forebay.kafka.client.admin import KafkaAdmin
        from recovery.plan import KafkaFacts, KafkaView, kafka_view

        if not self._ask_kafka:
            return KafkaView("it was not to be asked")
        if self._settings.custom_source:
            return KafkaView("the stream is received from a source of its own")
        try:
            with KafkaAdmin(self._settings.kafka.options, client_id="forebay-recover") as admin:
                admin.check(ANSWER_SECONDS)
                there = admin.topics()
                wanted = [p.tp for p in state.partitions.values() if p.partition < there.get(p.topic, 0)]
                return kafka_view(
                    state,
                    self._settings.group,
                    KafkaFacts(
                        admin.committed(self._settings.group, wanted),
                        admin.watermarks(wanted),
                        admin.topic_ids({tp.topic for tp in wanted}),
                    ),
                )
        except ForebayError as error:
            return KafkaView(str(error))

    def copies(self, state: State) -> CopiesView:
        """This host's local copies, counted; nothing is read but the directory."""
        from recovery.damaged_copies import damaged_copies
        from recovery.plan import CopiesView
        from wal.blocks import BLOCK_SUFFIX
        from wal.reading import this_host

        folder = Path(self._settings.agent.blocks, state.stream)
        files = {f.removesuffix(BLOCK_SUFFIX) for f in _names(folder) if f.endswith(BLOCK_SUFFIX)}
        host = self._settings.agent.host or this_host()
        named = {b.id for b in state.blocks.values() if b.local and b.meta.host == host}
        return CopiesView(
            directory=str(folder),
            found=len(named & files),
            absent=len(named - files),
            stray=len(files - state.blocks.keys()),
            agents=tuple(sorted(self.agents)),
            silent=tuple(self.silent),
            damaged=tuple(path.name for _, path in damaged_copies(self._settings.agent.blocks, state.stream)),
        )

    def sources(
        self, examined: Examination, wal: Storage, kafka: KafkaView, read_ranges: ReadRanges | None
    ) -> CopySources:
        """Where a block can be had again, in the order in which it is looked for."""
        from forebay.security.access import Access
        from recovery.copies import CopySources, DamagedCopies, KafkaCopies, NoKafka, TierCopies, WalCopies
        from recovery.examination import topic_ids
        from wal.blocks.encryption import load_keys
        from wal.reading import ReadPlan

        assert examined.state is not None
        plan = ReadPlan(
            wal_url=self._settings.wal.url,
            storage=self._settings.storage,
            blocks_directory=self._settings.agent.blocks,
            agent_urls=self.agents,
            access=Access.of(self._settings, "operator"),
        )
        found: list[CopySource] = [
            WalCopies(wal, [copy for segment in examined.segments for copy in segment.copies]),
            TierCopies("local", plan),
            DamagedCopies(self._settings.agent.blocks),
            TierCopies("agent", plan),
        ]
        if kafka.unreachable or read_ranges is None:
            found.append(NoKafka(kafka.unreachable or "kafka.read_blocks is off"))
        else:
            ids = topic_ids(examined.state, examined.state.blocks.values())
            keys = load_keys(self._settings.wal.key_file)
            found.append(KafkaCopies(read_ranges, ids, self._settings.wal.compression, keys))
        return CopySources(found)


def _names(folder: Path) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


def _history(storage: Storage, state: State) -> HistoryView:
    from driver.journal import history
    from recovery.plan import HistoryView, history_view

    try:
        return history_view(state, history.read(storage, state.stream))
    except (CorruptionError, NewerVersionError) as error:
        return HistoryView(0, f"the history can't be read: {error}")


# ---- the plan, and its execution -------------------------------------------------------------------------------------


def look(
    settings: Settings,
    journal_storage: Storage,
    wal_storage: Storage,
    surroundings: Surroundings,
    read_ranges: ReadRanges | None = None,
) -> RecoveryPlan:
    """Reads everything and changes nothing; fences nobody, and a driver and receivers may be at work.

    Raises UsageError if there is no journal, CorruptionError or NewerVersionError if it can't be read.
    """
    from recovery import plan as rp
    from recovery.examination import examine_beside_a_driver

    with _reading_wal(wal_storage, settings.stream) as progress:
        examined = examine_beside_a_driver(journal_storage, wal_storage, settings.stream, progress)
    state = examined.state
    assert state is not None
    surroundings.find_agents()
    kafka = surroundings.kafka(state)
    sources = surroundings.sources(examined, wal_storage, kafka, read_ranges)
    outcomes: list[BlockRecovery | Loss] = []
    broken = rp.broken_blocks(examined)
    with _reading_blocks(len(broken)) as progress:
        for block in broken:
            found, reasons = sources.find(block)
            outcomes.append(
                rp.loss_of(state, block, reasons)
                if found is None
                else rp.recovery_of(state, block, found.source, found.exact, done=False)
            )
            progress(1)
    damaged = rp.damaged_segments(examined)
    gone = {s.path for s in examined.segments if not s.bytes} | {d.path for d in damaged if not d.kept}
    lost = {o.block_id for o in outcomes if isinstance(o, rp.Loss)}
    return _plan(
        examined, False, outcomes, damaged, rp.forgettable(state, gone, lost), surroundings, journal_storage, kafka
    )


def _plan(
    examined: Examination,
    applied: bool,
    outcomes: Sequence[BlockRecovery | Loss],
    damaged: Sequence[DamagedSegment],
    forgotten: Sequence[str],
    surroundings: Surroundings,
    journal_storage: Storage,
    kafka: KafkaView,
) -> RecoveryPlan:
    from recovery import plan as rp

    assert examined.state is not None
    return rp.make_plan(
        examined,
        applied=applied,
        recoveries=[o for o in outcomes if isinstance(o, rp.BlockRecovery)],
        losses=[o for o in outcomes if isinstance(o, rp.Loss)],
        damaged=damaged,
        forgotten=forgotten,
        copies=surroundings.copies(examined.state),
        history=_history(journal_storage, examined.state),
        kafka=kafka,
    )


def apply_plan(
    settings: Settings,
    journal_storage: Storage,
    wal_storage: Storage,
    surroundings: Surroundings,
    read_ranges: ReadRanges | None = None,
) -> RecoveryPlan:
    """Leads the journal, and does all that a plan says can be done. May be killed at any step and called again.

    Raises LeaseHeld if a driver is at work, UsageError if there is no journal, TimelineFound if the WAL is another one's,
    FencedError if a driver takes over meanwhile, OutOfSpaceError, StoreError.
    """
    from driver.journal import log as journal
    from driver.journal.lease import LeaseKeeper
    from forebay.process.clock import SystemClock
    from recovery import plan as rp
    from recovery.examination import examine, journal_view, read_state
    from recovery.restoration import Restoration
    from wal.segments.writer import SegmentLimits

    stream = settings.stream
    read_state(journal_storage, stream)
    _refuse_beside_a_driver(journal_storage, stream)
    clock = SystemClock()
    owner = f"forebay recover {socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"

    def now() -> float:
        return clock.wall_ms() / 1000.0

    def new_uid() -> int:
        return secrets.randbits(64)

    with contextlib.ExitStack() as closing:
        led, state = journal.lead(
            journal_storage,
            stream,
            owner,
            clock.wall_ms(),
            now,
            new_uid,
            settings.driver.journal_segment_size,
            wal_storage,
        )
        closing.callback(led.close)
        lease = LeaseKeeper(journal_storage, stream, led.epoch, owner, "", float(settings.driver.lease_duration))
        lease.follow(lambda: led.confirmed)
        lease.start()
        closing.callback(lease.stop)
        with _reading_wal(wal_storage, stream) as progress:
            examined = examine(state, wal_storage, stream, progress=progress)
        surroundings.find_agents()
        kafka = surroundings.kafka(state)
        limits = SegmentLimits(settings.wal.segment_size, float(settings.wal.segment_age))
        restoration = Restoration(led, state, wal_storage, limits, now, new_uid)
        closing.callback(restoration.close)
        broken = rp.broken_blocks(examined)
        with _reading_blocks(len(broken)) as progress:
            sources = surroundings.sources(examined, wal_storage, kafka, read_ranges)
            outcomes = list(restoration.restore(broken, sources, progress))
            restoration.commit()
        view = journal_view(state)
        segments = {segment.path: segment for segment in examined.segments}
        damaged = [
            found if found.kept else restoration.set_aside(segments[found.path], view)
            for found in rp.damaged_segments(examined)
        ]
        gone = {s.path for s in examined.segments if not s.bytes} | {d.path for d in damaged if d.done}
        forgotten = rp.forgettable(state, gone, {o.block_id for o in outcomes if isinstance(o, rp.Loss)})
        for path in forgotten:
            restoration.forget(path)
        return _plan(examined, True, outcomes, damaged, forgotten, surroundings, journal_storage, kafka)


def _refuse_beside_a_driver(journal_storage: Storage, stream: str) -> None:
    from driver.journal.lease import LeaseHeld, wait_until_stale

    try:
        wait_until_stale(journal_storage, stream, threading.Event())
    except LeaseHeld as error:
        raise LeaseHeld(
            f"{error}. Recovery writes to the journal itself: stop `forebay driver` (or `forebay up`) with SIGTERM, then call "
            "this again; receivers may go on, and wait for the driver"
        ) from None


@contextlib.contextmanager
def _reading_wal(storage: Storage, stream: str) -> Iterator[Callable[[int], None]]:
    from deploy.console.progress import progress_bar
    from recovery.examination import total_bytes

    with progress_bar("reading the WAL", total_bytes(storage, stream)) as progress:
        yield progress


@contextlib.contextmanager
def _reading_blocks(count: int) -> Iterator[Callable[[int], None]]:
    from deploy.console.progress import progress_bar

    with progress_bar("looking for copies", count, unit_bytes=False) as progress:
        yield progress


def tables(plan: RecoveryPlan) -> list[Group]:
    from deploy.console.table import table

    made = [
        table(
            f"Stream {plan.stream}, lineage {plan.timeline}: {plan.segments} segments",
            ("decision", "places"),
            sorted(plan.counts.items()),
        ),
        table(
            "Places that are not as the journal says",
            ("segment", "offset", "until", "decision", "block", "ranges", "why"),
            [
                (p.path, p.offset, p.until, p.decision, p.block_id or "-", "\n".join(p.ranges) or "-", p.words)
                for p in plan.places
            ],
        ),
    ]
    if plan.recoveries:
        made.append(
            table(
                "Blocks written anew" if plan.applied else "Blocks that --apply writes anew",
                ("block", "ranges", "batch", "from"),
                [
                    (
                        r.block_id,
                        "\n".join(r.ranges),
                        r.batch_id or "-",
                        r.source if r.exact else f"{r.source}, encoded anew",
                    )
                    for r in plan.recoveries
                ],
            )
        )
    if plan.losses:
        made.append(
            table(
                "Lost",
                ("block", "ranges", "batch", "why"),
                [(x.block_id, "\n".join(x.ranges), x.batch_id or "-", "\n".join(x.reasons)) for x in plan.losses],
            )
        )
    if plan.damaged:
        made.append(
            table(
                "Damaged segments",
                ("segment", "set aside as" if plan.applied else "to be set aside as", "stays because"),
                [(d.path, d.aside or "-", d.kept or "-") for d in plan.damaged],
            )
        )
    if plan.kafka.unreachable:
        made.append(table("Kafka", ("what", "why"), [("not asked", plan.kafka.unreachable)]))
    else:
        made.append(
            table(
                "Kafka",
                ("partition", "life", "position", "committed", "first held", "end"),
                [
                    (f"{p.topic}/{p.partition}", p.incarnation, p.position, p.committed, p.low, p.high)
                    for p in plan.kafka.partitions
                ],
            )
        )
    copies = plan.copies
    made.append(
        table(
            "Copies and history",
            ("what", "found"),
            [
                (copies.directory, f"{copies.found} copies, {copies.absent} not there, {copies.stray} not named"),
                *(("damaged copy, set aside there", name) for name in copies.damaged),
                ("agents that answered", ", ".join(copies.agents) or "none"),
                *(("agent that did not", words) for words in copies.silent),
                ("finished batches in the history", plan.history.batches),
            ],
        )
    )
    return made


# ---- accepting a loss ------------------------------------------------------------------------------------------------

_RANGE = re.compile(
    r"(?P<tp>[A-Za-z0-9._-]+/[0-9]+)\[\s*(?P<from>[0-9]+)\s*,\s*(?P<until>[0-9]+)\s*\)(?P<life>\s+life\s+[1-9][0-9]*)?"
)


def range_label(text: str) -> str:
    """``flights/0[10,20)`` as the journal writes it. Raises UsageError for anything else."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is no range: write 'TOPIC/PARTITION[FROM, UNTIL)' as `forebay recover` shows it")
    incarnation = " ".join((match["life"] or "").split())
    return f"{match['tp']}[{match['from']}, {match['until']})" + (f" {incarnation}" if incarnation else "")


def find_batch(batches: Sequence[TrackedBatch], named: int) -> TrackedBatch:
    """The unfinished batch with that id, or that number in its sequence. Raises RefusedError if there is none."""
    for batch in batches:
        if batch.state != "completed" and named in (batch.batch_id, batch.number):
            return batch
    what = "id" if named >= 1 << TIMELINE_SHIFT else "number or id"
    raise RefusedError(f"no unfinished batch has the {what} {named}: `forebay status` shows them", "not-found")


def accept_loss(
    invocation: Invocation, settings: Settings, named: int, labels: tuple[str, ...], because: str, yes: bool
) -> int:
    batch = find_batch(ask(settings).batches, named)
    ranges = ", ".join(labels) or "no range (the driver names those it could leave out)"
    if not yes:
        words = (
            f"would let batch {batch.batch_id} (number {batch.number}, {batch.state}) go on without {ranges}; "
            "nothing was changed: say --yes to do it"
        )
        invocation.write({"done": False, "message": words})
        invocation.say(words)
        return FINE
    from forebay.http.driver_client import DriverClient

    client = DriverClient.of(settings, TIMEOUT_SECONDS)
    try:
        request = AcceptLossRequest(batch_id=batch.batch_id, ranges=labels, cause=person(because))
        answer = client.post("/v1/operator/accept-loss", request, OperatorAnswer)
    finally:
        client.close()
    invocation.write({"done": True, "message": answer.message})
    invocation.say(answer.message)
    return FINE


@click.command(
    short_help="Compare journal, WAL, copies and Kafka; mend; accept a loss.",
    epilog=example(
        "forebay recover", "forebay recover --apply", "forebay recover --accept-loss 12 'flights/0[1200, 1800)' --yes"
    ),
)
@click.option("--no-kafka", is_flag=True, help="Don't ask Kafka.")
@click.option(
    "--agent", "agents", metavar="HOST=URL", multiple=True, help="Where that host's agent answers; may be repeated."
)
@click.option(
    "--accept-loss", "batch", metavar="BATCH", type=click.IntRange(min=1), help="Let it go on without the RANGEs."
)
@click.argument("ranges", metavar="[RANGE]...", nargs=-1)
@click.option(
    "--to-batch", metavar="BATCH", type=click.IntRange(min=1), help="Run this completed batch and all later ones again."
)
@click.option(
    "--to-time", metavar="TIME", type=MomentType(), help="The same, from the first batch at or after TIME on."
)
@because_option
@changing_options
@shared_options
@pass_invocation
def recover(
    invocation: Invocation,
    no_kafka: bool,
    agents: tuple[str, ...],
    batch: int | None,
    ranges: tuple[str, ...],
    to_batch: int | None,
    to_time: int | None,
    because: str,
    yes: bool,
) -> int:
    """Lay journal, WAL, history, local copies and Kafka side by side and print one plan: what is whole, torn, damaged,
    orphaned or missing, with exact ranges, and from where it can be had again.

    Without --apply it changes nothing, fences nobody, and may be run beside a driver at work. With it, and with the driver
    stopped, blocks are written anew and damaged segments set aside; it may be killed and called again. Exits with 1 if
    something waits for --apply or for a person. With --accept-loss and --apply, the loss of the RANGEs of a batch that can't
    be read is journalled, and the batch goes on without them.

    Without a WAL it names the damaged copies that this host's agent set aside; --apply makes those whole again whose records
    the journal proves, and the driver may be at work.

    With --to-batch or --to-time the stream is rewound: what would run again is shown, with its ranges; with --apply the driver
    runs it again from the WAL, marked as a replay, before any other batch. Exits with 1 if the WAL no longer holds all of it.
    """
    settings = invocation.settings()
    if [batch, to_batch, to_time].count(None) < 2:
        raise click.UsageError("--accept-loss, --to-batch and --to-time exclude each other")
    if batch is not None:
        return accept_loss(invocation, settings, batch, tuple(map(range_label, ranges)), because, yes)
    if (to_batch is not None or to_time is not None) and not ranges:
        return replay(invocation, settings, to_batch or 0, to_time or 0, because, yes)
    if ranges:
        raise click.UsageError("RANGE goes with --accept-loss BATCH")
    if not settings.has_wal:
        return recover_copies(invocation, settings, yes)
    from recovery.plan import sentences
    from wal.storage import open_storage

    surroundings = Surroundings(settings, kafka=not no_kafka, agents=[agent_option(text) for text in agents])
    execute = apply_plan if yes else look
    plan = execute(
        settings,
        open_storage(settings.driver.journal, settings.storage),
        open_storage(settings.wal.url, settings.storage),
        surroundings,
        _range_reader(settings),
    )
    invocation.write(plan, lambda: tables(plan))
    for words in sentences(plan):
        invocation.say(f"forebay: {words}")
    return FOUND if plan.open else FINE


def recover_copies(invocation: Invocation, settings: Settings, yes: bool) -> int:
    """Of a stream without a WAL: this host's damaged copies."""
    from recovery import damaged_copies
    from wal.storage import open_storage

    execute = damaged_copies.repair_copies if yes else damaged_copies.plan_copies
    plan = execute(settings, open_storage(settings.driver.journal, settings.storage))
    invocation.write(plan, lambda: _tables_of_copies(plan))
    for words in damaged_copies.sentences(plan):
        invocation.say(f"forebay: {words}")
    return FOUND if plan.open else FINE


def _tables_of_copies(plan: DamagedCopiesPlan) -> list[Group]:
    from deploy.console.table import table

    return [
        table(
            f"Damaged copies in {plan.directory}",
            ("file", "block", "ranges", "finding"),
            [(Path(c.path).name, c.block_id, "\n".join(c.ranges) or "-", c.finding) for c in plan.damaged],
        )
    ]


def agent_option(text: str) -> tuple[str, str]:
    """``h1=http://10.0.0.1:7081`` → host and url. Raises UsageError."""
    host, separator, url = text.partition("=")
    if not host or not separator or not url.startswith(("http://", "https://")):
        raise UsageError(f"--agent {text!r}: write HOST=URL, as in h1=http://10.0.0.1:7081")
    return host, url


def _range_reader(settings: Settings) -> ReadRanges | None:
    from forebay.kafka.client.access import KafkaAccess

    access = KafkaAccess.of(settings)
    if access is None:
        return None
    from forebay.kafka.consume.ranges import read_ranges

    return lambda wanted, headers: read_ranges(access, wanted, headers)
