"""Losses of a direct stream: they are found with their exact range, and the stream continues only after a decision (INV-5)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from deploy.main import main
from direct.checkpoint.checkpoint import Checkpoint
from direct.checkpoint.leadership import lead
from direct.checkpoint.losses import (
    Held,
    Loss,
    held_by_kafka,
    journal_losses,
    losses_at_positions,
    losses_error,
    losses_of_batch,
    losses_of_state,
    lost_of,
)
from direct.rdd.locations import PreferConsistent
from direct.rdd.tasks import TaskReading
from direct.stream.batch import DirectRows
from direct.stream.strategies import Assign, Subscribe
from direct.stream.stream import DirectStream
from driver.background.cleaner import Cleaner
from driver.batches.job.batch import Batch
from driver.batches.job.work import BatchWork
from driver.batches.local_engine import letters_of
from driver.batches.tasks.decoding import Decoder
from driver.decisions.replay import RewindTo, plan
from driver.journal import history
from driver.journal.events import SpansAllocated, SpansBegun, SpansSkipped
from driver.journal.leadership.lease import LeaseHeld
from driver.journal.state import BrokenInvariant, State
from driver.journal.transitions import apply
from driver.tracker.requests import AllocateSpans, BeginSpans, EndSpans, SkipSpans
from forebay.kafka.client.admin import KafkaAdmin
from forebay.kafka.consume.range_reader import Reading, read_range
from forebay.kafka.consume.spans import OffsetRange, is_inside, parse_span, without
from forebay.kafka.embedded.broker import KafkaBroker
from forebay.kafka.options.access import KafkaAccess
from forebay.messages import AcceptLossRequest
from forebay.model.errors import (
    OutOfRangeError,
    RangeNotHeldError,
    RefusedError,
    UnknownTopicError,
    UnreachableError,
    UsageError,
)
from forebay.model.values import TopicPartition, numbered
from forebay.process.clock import SystemClock
from forebay.settings.schema import DeadLetterSettings
from recovery import audit
from recovery.audit import report
from tests.support.again import produce
from tests.support.columns import column_values
from tests.support.direct_runs import Runs
from tests.support.kafka import PATIENCE_SECONDS
from tests.support.reads import ReadBy
from wal import dead_letters
from wal.storage import MemoryStorage, open_storage

TP = TopicPartition("t", 0)
BATCH = numbered(1, 1)
_CONFIG = """
stream = "flights"
[kafka]
topics = ["t"]
"bootstrap.servers" = "{broker}"
[wal]
url = "file://{folder}/wal"
[driver]
url = "http://127.0.0.1:1"
journal = "file://{folder}/journal"
job = "jobs:process"
[agent]
url = "http://127.0.0.1:2"
blocks = "{folder}/blocks"
"""


# ---- decisions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("held", "lost"),
    [
        (Held("id", 0, 100), []),
        (Held("id", 10, 20), []),
        (Held("id", 12, 100), [(10, 12)]),
        (Held("id", 0, 15), [(15, 20)]),
        (Held("id", 12, 15), [(10, 12), (15, 20)]),
        (Held("id", 50, 100), [(10, 20)]),
        (Held("other", 0, 100), [(10, 20)]),
        (Held("id", 15, 12), [(10, 15), (15, 20)]),  # cut back between the two questions
        (Held("", 0, 100), []),  # a broker that can't tell
        (None, [(10, 20)]),
    ],
)
def test_lost_parts_of_a_range_are_exact(held: Held | None, lost: list[tuple[int, int]]) -> None:
    span = OffsetRange("t", 0, 10, 20, "id")
    found = lost_of(span, {} if held is None else {TP: held})
    assert [(part.from_offset, part.until_offset) for part in found] == lost
    rest = without([span], map(str, found))
    assert sum(part.size for part in (*found, *rest)) == span.size
    assert [loss.label for loss in losses_of_batch(7, [span], {} if held is None else {TP: held})] == list(
        map(str, found)
    )


@pytest.mark.parametrize(
    ("held", "kind", "label", "goes_on_at"),
    [
        (Held("id", 0, 10), None, "", -1),
        (Held("id", 10, 10), None, "", -1),
        (Held("id", 15, 40), "gap", "t/0[10, 15)", 15),
        (Held("id", 0, 7), "cut-back", "t/0", 7),
        (Held("other", 3, 40), "created-again", "t/0", 3),
        (None, "gone", "t/0", -1),
    ],
)
def test_losses_at_a_position_are_classified(held: Held | None, kind: str | None, label: str, goes_on_at: int) -> None:
    found = losses_at_positions({TP: 10}, {TP: "id"}, {} if held is None else {TP: held})
    assert [(loss.kind, loss.label, loss.goes_on_at) for loss in found] == ([(kind, label, goes_on_at)] if kind else [])


def test_topic_without_a_known_id_counts_as_unchanged() -> None:
    assert losses_at_positions({TP: 10}, {TP: ""}, {TP: Held("id", 0, 20)}) == []
    assert (
        lost_of(OffsetRange("t", 0, 10, 20), {TP: Held("id", 0, 20)}) == lost_of(OffsetRange("t", 0, 10, 10), {}) == []
    )


class Brokers:
    """As ``KafkaAdmin``, of brokers that tell these ids, and hold offsets 3 to 9 of every partition but those ``gone``."""

    def __init__(self, topic_id: str, gone: bool = False) -> None:
        self._id = topic_id
        self._gone = gone

    def topic_ids(self, topics: Collection[str]) -> dict[str, str]:
        return dict.fromkeys(topics, self._id)

    def places(self, wanted: Mapping[TopicPartition, str]) -> dict[TopicPartition, int]:
        if self._gone:
            raise UnknownTopicError("partition t/0 was deleted")
        return {tp: 3 if place == "earliest" else 9 for tp, place in wanted.items()}


@pytest.mark.parametrize(
    ("now", "before", "there", "held"),
    [
        ("id", "id", True, "id"),
        ("other", "id", True, "other"),
        ("id", "id", False, "id"),  # it has no leader at the moment
        ("id", "", False, "id"),
        ("other", "id", False, None),  # another topic, which has no such partition
        ("", "id", False, None),
        ("", "", False, None),
        ("", "", True, ""),  # a broker that can't tell
    ],
)
def test_partition_counts_as_deleted_only_if_brokers_do_not_know_it(
    now: str, before: str, there: bool, held: str | None
) -> None:
    """INV-5: metadata may omit a partition without a leader."""
    found: Any = held_by_kafka(Brokers(now), {TP: before}, {TP} if there else set())  # type: ignore[arg-type]
    assert found == ({} if held is None else {TP: Held(held, 3, 9)})


def test_unknown_answer_of_brokers_is_asked_again() -> None:
    """INV-5: the topic may be another one with that name, or about to be deleted."""
    with pytest.raises(UnreachableError, match="no broker returns the id of topic t, which had one before"):
        held_by_kafka(Brokers(""), {TP: "id"}, {TP})  # type: ignore[arg-type]
    with pytest.raises(UnreachableError, match="t/0 was deleted"):
        held_by_kafka(Brokers("id", gone=True), {TP: "id"}, {TP})  # type: ignore[arg-type]


def test_accepted_loss_of_a_batch_is_not_reported_again() -> None:
    state = begun()
    apply(state, SpansAllocated(BATCH, 1, 3, (OffsetRange("t", 0, 10, 20, "id"),)))
    assert [loss.label for loss in losses_of_state(state, {TP: Held("id", 15, 40)})] == ["t/0[10, 15)"]
    state.batches[BATCH].lost = ("t/0[10, 15)",)
    assert losses_of_state(state, {TP: Held("id", 15, 40)}) == []
    assert [loss.label for loss in losses_of_state(state, {TP: Held("id", 17, 40)})] == ["t/0[15, 17)"]


def test_accepted_losses_become_requests_by_kind() -> None:
    asked: list[Any] = []
    whole, gap = (
        losses_at_positions({TP: 10}, {TP: "id"}, held)[0]
        for held in ({TP: Held("new", 3, 9)}, {TP: Held("id", 15, 40)})
    )
    journal_losses(asked.append, [Loss("batch", "t/0[5, 8)", "", 7), gap, whole, Loss("gone", "u/1", "")], 99, "ann")
    assert asked == [
        AcceptLossRequest(batch_id=7, ranges=("t/0[5, 8)",), cause="ann"),
        SkipSpans((OffsetRange("t", 0, 10, 15),), 99, "out-of-range, ann"),
        EndSpans(("t/0",), 99, "created-again, ann", {"t/0": 3}, {"t": "new"}),
        EndSpans(("u/1",), 99, "gone, ann", {}, {}),
    ]


@pytest.mark.parametrize(
    ("kinds", "error"),
    [
        (("gone", "gone"), UnknownTopicError),
        (("gap",), OutOfRangeError),
        (("gap", "gone"), RangeNotHeldError),
        (("batch",), RangeNotHeldError),
    ],
)
def test_error_class_of_losses_depends_on_their_kinds(kinds: tuple[Any, ...], error: type[Exception]) -> None:
    found = losses_error([Loss(kind, "t/0", f"words of {kind}") for kind in kinds], "do this")
    assert type(found) is error
    assert str(found) == f"{'; '.join(f'words of {kind}' for kind in kinds)}; do this"


def test_label_of_a_range_is_parsed_and_other_text_is_refused() -> None:
    span = OffsetRange("a.b-c_d", 3, 5, 9)
    assert parse_span(str(span)) == parse_span("a.b-c_d/3[5,9)") == span
    assert is_inside("t/0[5, 9)", [OffsetRange("t", 0, 0, 7), OffsetRange("t", 0, 7, 20)])
    assert not is_inside("t/0[5, 21)", [OffsetRange("t", 0, 0, 20)]) and not is_inside(
        "t/1[5, 9)", [OffsetRange("t", 0, 0, 20)]
    )
    assert not is_inside("t/0[5, 5)", [OffsetRange("t", 0, 0, 20)])
    for text in ("t/0", "t/0[5, 9]", "t/0[9, 5)", "../t/0[1, 2)", "t/0[1, 2) life 2"):
        with pytest.raises(UsageError):
            parse_span(text)


# ---- the journal -----------------------------------------------------------------------------------------------------


def begun() -> State:
    state = State(stream="s", timeline=1)
    apply(state, SpansBegun({"t/0": 10}, {"t": "id"}, 1, "given"))
    return state


def test_gap_must_begin_at_the_end_of_the_last_range() -> None:
    """INV-2."""
    state = begun()
    with pytest.raises(BrokenInvariant, match="does not begin where"):
        apply(state, SpansSkipped((OffsetRange("t", 0, 11, 15),), 2, "out-of-range"))
    apply(state, SpansSkipped((OffsetRange("t", 0, 10, 15),), 2, "out-of-range"))
    apply(state, SpansAllocated(BATCH, 1, 3, (OffsetRange("t", 0, 15, 20),)))
    assert state.next_offsets == {"t/0": 20}
    found = report(state, ())
    assert found.clean and [(g.from_offset, g.until_offset) for g in found.incarnations[0].gaps] == [(10, 15)]


def test_audit_finds_an_offset_in_two_batches_or_in_none() -> None:
    """INV-2, INV-3: from the ranges alone, without relying on earlier checks."""
    state = begun()
    for number in (1, 2, 3):
        apply(
            state, SpansAllocated(numbered(1, number), number, 3, (OffsetRange("t", 0, 10 * number, 10 * number + 10),))
        )
    assert report(state, ()).clean
    state.batches[numbered(1, 2)].spans = (OffsetRange("t", 0, 15, 25),)
    found = report(state, ()).findings
    assert [(f.kind, f.from_offset, f.until_offset) for f in found] == [("duplicate", 15, 20), ("missing", 25, 30)]


def test_checkpoint_of_an_older_release_continues() -> None:
    state = State(stream="s", timeline=1, created=True, next_offsets={"t/0": 10}, topic_ids={"t": "id"})
    apply(state, SpansAllocated(BATCH, 1, 3, (OffsetRange("t", 0, 10, 20),)))
    found = report(state, ())
    assert found.clean and (found.incarnations[0].start, found.incarnations[0].until) == (10, 20)
    assert state.is_direct


# ---- with Kafka ------------------------------------------------------------------------------------------------------


def drop(options: dict[str, str], tp: TopicPartition, before: int) -> None:
    with KafkaAdmin(options) as admin:
        admin.delete_records({tp: before})


@pytest.mark.kafka
@pytest.mark.parametrize("on_vanished", ["stop", "record"])
def test_offsets_deleted_before_a_batch_had_them_end_the_stream_or_become_a_gap(
    runs: Runs, tps: list[TopicPartition], on_vanished: str
) -> None:
    one = tps[0]
    drop(dict(runs.options), one, 12)
    strategy = Assign([one], {one: 5})
    if on_vanished == "stop":
        stream = runs.start(strategy)
        with pytest.raises(OutOfRangeError, match=rf"{one}\[5, 12\).*forebay direct accept-loss"):
            stream.await_termination(PATIENCE_SECONDS)
        return
    runs.stop(runs.start(strategy, on_vanished="record", job=None))
    runs.start(strategy, on_vanished="record")
    runs.await_records(18)
    assert runs.once(one) == (12, 30)
    incarnation = Checkpoint(runs.checkpoint.as_uri(), "s").audit().incarnations[0]
    assert [(g.from_offset, g.until_offset, g.cause) for g in incarnation.gaps] == [
        (5, 12, 'out-of-range, by on_vanished = "record"')
    ]


class Reader:
    """A job that reads what it is given from Kafka, after ``before`` for the first batch."""

    def __init__(self, runs: Runs, before: object) -> None:
        self.access = KafkaAccess(dict(runs.options), "g", 5.0)
        self.runs = runs
        self.before = before
        self.read: list[tuple[int, list[int]]] = []

    def __call__(self, work: Batch) -> None:
        before, self.before = self.before, None
        if before is not None:
            before()  # type: ignore[operator]
        rows = [
            offset
            for span in work.spans  # type: ignore[attr-defined]
            for rows in read_range(self.access, span, Reading(keep=False))
            for offset in column_values(rows, "offset")
        ]
        self.read.append((work.batch_id, rows))  # type: ignore[attr-defined]
        self.runs.job(work)


@pytest.mark.kafka
def test_batch_continues_without_a_deleted_topic_with_on_vanished_record(
    runs: Runs, tps: list[TopicPartition], kafka_broker: KafkaBroker
) -> None:
    """INV-5: the journal has the loss and the end of the partitions. INV-3: the batch keeps its id."""
    other = TopicPartition(f"{tps[0].topic}-other", 0)
    kafka_broker.create_topic(other.topic, 1)
    produce(runs.options, other, 4)
    waited = threading.Event()

    def delete() -> None:
        with KafkaAdmin(runs.options) as admin:
            admin.delete_topic(tps[0].topic)
            while tps[0].topic in admin.topics():
                waited.wait(0.05)

    reader = Reader(runs, delete)
    stream = runs.start(Subscribe([tps[0].topic, other.topic]), reader, on_vanished="record", max_failures=1)
    runs.await_records(4)
    produce(runs.options, other, 2)
    runs.await_records(6)
    assert [rows for _, rows in reader.read] == [[0, 1, 2, 3], [4, 5]]
    while stream.offsets != {other: 6}:
        waited.wait(0.05)
    runs.stop(stream)
    found = Checkpoint(runs.checkpoint.as_uri(), "s").audit()
    assert found.clean
    assert {loss.label for loss in found.losses} == {f"{tps[0]}[0, 30)", f"{tps[1]}[0, 10)"}
    assert {loss.batch_id for loss in found.losses} == {reader.read[0][0]}


@pytest.mark.kafka
def test_batch_continues_with_the_rest_after_an_accepted_loss(
    runs: Runs, tps: list[TopicPartition], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """INV-5: nothing continues before that, and exactly the lost ranges are accepted. INV-3: the rerun has the same id."""
    one = tps[0]
    url, kafka = runs.checkpoint.as_uri(), ("--broker", runs.options["bootstrap.servers"])

    def forebay(*arguments: str) -> int:
        return main(["direct", *arguments])

    first = Reader(runs, lambda: drop(dict(runs.options), one, 20))
    stream = runs.start(Subscribe([one.topic]), first)
    with pytest.raises(RangeNotHeldError, match=rf"{one}\[0, 20\) of batch.*holds offsets 20 to 30"):
        stream.await_termination(PATIENCE_SECONDS)
    capsys.readouterr()

    assert forebay("accept-loss", url, "s", *kafka, "--json") == 1
    shown = json.loads(capsys.readouterr().out)
    assert [(loss["kind"], loss["label"]) for loss in shown] == [("batch", f"{one}[0, 20)")]
    for wrong in (f"{one}[0, 21)", f"{one}[0, 19)", f"{tps[1]}[0, 10)"):
        assert forebay("accept-loss", url, "s", wrong, *kafka, "--yes") == 2
    assert forebay("accept-loss", url, "s", *kafka, "--yes") == 2  # a loss must be named to be accepted
    assert forebay("accept-loss", url, "s", f"{one}[0,20)", *kafka) == 1
    assert Checkpoint(url, "s").state().unfinished()[0].lost == ()
    assert forebay("accept-loss", url, "s", f"{one}[0,20)", *kafka, "--because", "retention", "--yes") == 0
    assert "continues without" in capsys.readouterr().err
    assert forebay("accept-loss", url, "s", *kafka) == 0

    second = Reader(runs, None)
    stream = runs.start(Subscribe([one.topic]), second)
    runs.await_records(20)
    with pytest.raises(LeaseHeld):
        Checkpoint(url, "s", runs.options).accept_losses([f"{one}[0, 20)"], "")
    assert second.read == [(shown[0]["batch_id"], [*range(20, 30), *range(10)])]
    runs.stop(stream)

    capsys.readouterr()
    assert forebay("audit", url, "s", "--json") == 0
    audited = json.loads(capsys.readouterr().out)
    assert audited["findings"] == [] and [loss["label"] for loss in audited["losses"]] == [f"{one}[0, 20)"]
    assert audited["losses"][0]["cause"].endswith("retention")
    assert forebay("status", url, "s", "--json") == 0
    status = json.loads(capsys.readouterr().out)
    assert status["standing"] == "stopped"
    assert [(p["position"], p["completed"], p["read"]) for p in status["partitions"]] == [
        (30, 30, True),
        (10, 10, True),
    ]
    assert forebay("batches", url, "s", "--json") == 0
    assert [(b["state"], b["lost"]) for b in json.loads(capsys.readouterr().out)] == [("completed", [f"{one}[0, 20)"])]
    produce(runs.options, one, 3)
    config = tmp_path / "forebay.toml"
    config.write_text(_CONFIG.format(folder=tmp_path, broker=runs.options["bootstrap.servers"]))
    assert forebay("lag", url, "s", "--config", str(config), "--max-records", "2", "--json") == 1
    assert json.loads(capsys.readouterr().out)["processed"]["records"] == 3
    assert forebay("replay", url, "s", *kafka, "--to-batch", "1", "--yes") == 0
    third = Reader(runs, None)
    runs.start(Subscribe([one.topic]), third)
    runs.await_records(43)
    assert third.read == [
        second.read[0],
        (third.read[1][0], [30, 31, 32]),
    ]  # what the first run had, and then what came


@pytest.mark.kafka
def test_accepted_recreation_of_a_topic_begins_a_new_incarnation(
    runs: Runs, tps: list[TopicPartition], kafka_broker: KafkaBroker, tmp_path: Path
) -> None:
    """INV-2: its offsets mean other records. The audit, dead letters and replays keep incarnations apart."""
    runs.stop(_until(runs, Subscribe([tps[0].topic]), 40))
    waited = threading.Event()
    with KafkaAdmin(runs.options) as admin:
        admin.delete_topic(tps[0].topic)
        while tps[0].topic in admin.topics():
            waited.wait(0.05)
        admin.create_topic(tps[0].topic, 1)
    produce(runs.options, tps[0], 7)
    checkpoint = Checkpoint(runs.checkpoint.as_uri(), "s", runs.options)
    assert [(loss.kind, loss.label) for loss in checkpoint.losses()] == [
        ("created-again", str(tps[0])),
        ("gone", str(tps[1])),
    ]
    checkpoint.accept_losses(map(str, tps), "ann")
    runs.works.clear()
    runs.stop(_until(runs, Subscribe([tps[0].topic]), 7))
    assert runs.once(tps[0]) == (0, 7)
    found = checkpoint.audit()
    assert found.clean
    assert [
        (incarnation.topic, incarnation.partition, incarnation.number, incarnation.start, incarnation.until)
        for incarnation in found.incarnations
    ] == [
        (tps[0].topic, 0, 1, 0, 30),
        (tps[0].topic, 0, 2, 0, 7),
        (tps[0].topic, 1, 1, 0, 10),
    ]
    checkpoint.replay(runs.works[0].batch_id, 0, "ann")
    runs.stop(_until(runs, Subscribe([tps[0].topic]), 14))
    assert [(work.replay > 0, _incarnations_of_dead_letters(runs, work, tmp_path)) for work in runs.works] == [
        (False, [2] * 7),
        (True, [2] * 7),
    ]


def _incarnations_of_dead_letters(runs: Runs, work: BatchWork, folder: Path) -> list[int]:
    def fail(record: object) -> None:
        raise ValueError("no record is taken")

    url = (folder / f"letters-{work.key}").as_uri()
    letters = partial(
        letters_of, letters=DeadLetterSettings(url=url, max_fraction=1.0), storage={}, options=runs.options
    )
    how = TaskReading(KafkaAccess(dict(runs.options), "g", 5.0), Reading(keep=False))
    rows = DirectRows(None, work, how=how, strategy=PreferConsistent(), letters_of=letters)  # type: ignore[arg-type]
    assert list(rows.read_decoded(Decoder(fail, pa.schema([("a", pa.int64())])))) == []
    (path,) = (path for path in open_storage(url).list("s") if path.endswith(".parquet"))
    return column_values(dead_letters.read(open_storage(url), path), "life")


def _until(runs: Runs, strategy: Subscribe, records: int) -> DirectStream:
    stream = runs.start(strategy)
    runs.await_records(records)
    return stream


# ---- kills and other ends --------------------------------------------------------------------------------------------

_ACCEPT = """
import os, sys
from pathlib import Path
from tests.direct.checkpoint.test_losses import accepted_in
while True:
    child = os.fork()
    if not child:
        accepted_in(Path(sys.argv[1]))
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code != -9:
        sys.exit(code)
"""
_LEAD = """
import sys, threading
from direct.checkpoint.leadership import lead
from forebay.process.clock import SystemClock
from wal.storage import open_storage
with lead(open_storage(sys.argv[1]), "s", 1, SystemClock(), print):
    print("led", flush=True)
    threading.Event().wait()
"""
LOSSES = [
    Loss("batch", "t/0[10, 12)", "", BATCH),
    Loss("gap", "t/0[20, 25)", "", goes_on_at=25),
    Loss("created-again", "u/0", "", goes_on_at=0, topic_id="new"),
]


def accepted_in(folder: Path) -> None:
    """Accepts what is left of LOSSES, as a person does."""
    with lead(open_storage(folder.as_uri()), "s", 1, SystemClock(), lambda _: None) as led:
        journal_losses(led.loop.ask, _left(led.state), 5, "accepted by ann")


def _left(state: State) -> list[Loss]:
    left = [] if state.batches[BATCH].lost else LOSSES[:1]
    left += LOSSES[1:2] if state.next_offsets["t/0"] == 20 else []
    return left + (LOSSES[2:] if state.partitions["u/0"].incarnation.number == 1 else [])


def test_kill_while_losses_are_accepted_leaves_each_journalled_or_not(tmp_path: Path) -> None:
    """INV-7: durable ones are there once; the rest is found again."""
    storage = open_storage(tmp_path.as_uri())
    with lead(storage, "s", 1, SystemClock(), lambda _: None) as led:
        led.loop.ask(BeginSpans({"t/0": 10, "u/0": 3}, {"t": "id", "u": "old"}, 1, "given"))
        led.loop.ask(AllocateSpans((OffsetRange("t", 0, 10, 20, "id"), OffsetRange("u", 0, 3, 9, "old")), 2))
    places = [
        f"journal.{place}:{kind}"
        for kind in ("LossAccepted", "SpansSkipped", "SpansEnded")
        for place in ("before-write", "after-sync")
    ]
    (tmp_path / "hits").mkdir()
    environment = {
        **os.environ,
        "FOREBAY_FAILPOINTS": ",".join(f"{place}=kill" for place in places),
        "FOREBAY_FAILPOINT_DIR": str(tmp_path / "hits"),
    }
    done = subprocess.run(
        [sys.executable, "-c", _ACCEPT, str(tmp_path)],
        env=environment, capture_output=True, text=True, timeout=4 * PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "hits").iterdir())) == len(places)
    state = Checkpoint(tmp_path.as_uri(), "s").state()
    assert state.batches[BATCH].lost == ("t/0[10, 12)",)
    assert state.next_offsets == {"t/0": 25, "u/0": 0}
    found = audit.audit(storage, "s")
    assert found.clean
    assert [
        (incarnation.topic, incarnation.number, incarnation.start, incarnation.until)
        for incarnation in found.incarnations
    ] == [
        ("t", 1, 10, 25),
        ("u", 1, 3, 9),
        ("u", 2, 0, 0),
    ]


def test_lease_shows_whether_a_stream_runs(tmp_path: Path) -> None:
    storage = open_storage(tmp_path.as_uri())
    checkpoint = Checkpoint(tmp_path.as_uri(), "s")
    with pytest.raises(UsageError, match="has no checkpoint of a direct stream named 's'"):
        checkpoint.state()
    with lead(storage, "s", 1, SystemClock(), lambda _: None):
        assert checkpoint.lease()[0] == "running"
    assert checkpoint.lease() == ("stopped", None)
    with subprocess.Popen(
        [sys.executable, "-c", _LEAD, tmp_path.as_uri()], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        led = child.stdout.readline()
        child.kill()
    assert led == b"led\n"
    assert checkpoint.lease()[0] == "ended"


def test_audit_proves_finished_batches_after_they_moved_to_the_history() -> None:
    """INV-3: the state forgets them only when the history durably has them."""
    storage = MemoryStorage("direct-history")
    clock = SystemClock()
    from driver.tracker.requests import Complete

    with lead(storage, "s", 2, clock, lambda _: None) as led:
        led.loop.ask(BeginSpans({"t/0": 0}, {"t": "id"}, 1, "given"))
        for begin in (0, 10):
            batch_id = led.loop.ask(AllocateSpans((OffsetRange("t", 0, begin, begin + 10, "id"),), 2))
            assert batch_id is not None
            led.loop.ask(Complete(batch_id, 3, 1))
        writer = history.HistoryWriter(
            storage, "s", led.epoch, segment_bytes=1_000_000, now=lambda: 0.0, new_uid=lambda: 1
        )
        cleaner = Cleaner(
            led.loop, None, history_writer=writer, stream="s", clock=clock, pause_seconds=3600.0, failed=lambda _: None
        )
        cleaner.look()
        assert led.loop.ask(ReadBy(lambda state: (dict(state.batches), state.archived_number))) == ({}, 2)
        writer.close()
        state = led.loop.ask(ReadBy(lambda state: state))
        with pytest.raises(RefusedError, match="no completed batch is batch 99: the newest one has number 2"):
            plan(state, (), RewindTo(batch=99))
    assert [batch.spans for batch in history.read(storage, "s")] == [
        (OffsetRange("t", 0, 0, 10, "id"),),
        (OffsetRange("t", 0, 10, 20, "id"),),
    ]
    found = audit.audit(storage, "s")
    assert found.clean and (found.batches_completed, found.records_completed) == (2, 20)
