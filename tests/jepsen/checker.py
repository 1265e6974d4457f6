"""Checks the folder of a finished run. Shares no code with Forebay: it reads Kafka, the job's files and printed text. One module,
because a person reads it as one proof, and copies it beside a run.

``python checker.py FOLDER`` prints the findings and a summary, and exits with 1 if there is a finding. Files in the folder:

- ``run.json``: bootstrap servers, topics with their number of partitions, consumer group, partitions with an unclean election,
  hosts of Spark's tasks (none if batches run in the driver)
- ``acked.tsv``: topic, partition, offset, value of each record that Kafka acknowledged to the producer
- ``out/*.run``: one file for each run of a batch: a header in JSON, then topic, partition, offset and value of each row
- ``seen.jsonl``: what the drivers' status showed during the run
- ``audit.json``, ``batches.json``, ``journal.json``: what ``forebay audit``, ``forebay journal batches --all`` and ``forebay
  journal inspect`` printed with ``--json``
- ``ends.json``: name, exit code and cause of each process of this code that ended by itself
"""

from __future__ import annotations

import gc
import itertools
import json
import multiprocessing
import os
import re
import sys
import threading
import time
from array import array
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from operator import methodcaller
from pathlib import Path
from typing import Any

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

#: a finding of each rule is printed in full this many times; the others are only counted
_SHOWN = 5
#: findings of one partition; more are not looked for
_FINDINGS_MAX = 1000
#: memory that a record takes while its partition is checked
_BYTES_PER_RECORD = 120
_READ_SECONDS = 60.0
#: exit code after which a supervisor leaves a service down
_WRONG_SETTINGS = 2

Place = tuple[str, int]
Incarnation = tuple[str, int, int]  # topic, partition, number


@dataclass(frozen=True)
class Lines:
    """The lines of a file after the first ``skipped`` ones. Each loop reads the file again, because the lines of a long run do
    not fit into memory."""

    path: Path
    skipped: int = 0

    def __iter__(self) -> Iterator[str]:
        with self.path.open() as file:
            yield from itertools.islice(file, self.skipped, None)


def rows_of(place: Place, lines: Iterable[str]) -> Iterator[tuple[int, str]]:
    """Return offset and value of each line of ``place``. A line has topic, partition, offset and value."""
    start = f"{place[0]}\t{place[1]}\t"
    for line in filter(methodcaller("startswith", start), lines):
        offset, value = line[len(start) :].removesuffix("\n").split("\t")
        yield int(offset), value


class Log(Mapping[int, str]):
    """The records of a partition by offset, as columns. They are added in the order of their offsets."""

    __slots__ = ("_offsets", "_values")

    def __init__(self, records: Mapping[int, str] | None = None) -> None:
        self._offsets, self._values = array("q"), list[str]()
        for offset, value in (records or {}).items():
            self.append(offset, value)

    def append(self, offset: int, value: str) -> None:
        if self._offsets and offset <= self._offsets[-1]:
            raise ValueError(f"offset {offset} after {self._offsets[-1]}")
        self._offsets.append(offset)
        self._values.append(value)

    def __len__(self) -> int:
        return len(self._offsets)

    def __iter__(self) -> Iterator[int]:
        return iter(self._offsets)

    def __getitem__(self, offset: int) -> str:
        number = self.number(offset)
        if number is None:
            raise KeyError(offset)
        return self._values[number]

    def number(self, offset: int) -> int | None:
        """Return the number of a record among all, from 0; None without a record at this offset."""
        number = bisect_left(self._offsets, offset)
        return number if number < len(self._offsets) and self._offsets[number] == offset else None

    def has_from(self, number: int, rows: CompletedRows) -> bool:
        """Whether the records from the one of this number on are ``rows``."""
        until = number + len(rows.offsets)
        return self._offsets[number:until] == rows.offsets and self._values[number:until] == rows.values


@dataclass(frozen=True)
class Finding:
    """One violation. ``rule``: its short name."""

    rule: str
    text: str


@dataclass(frozen=True)
class JobRun:
    """One run of a batch by the job: a line for each of its rows, and monotonic times of begin and end, which the hosts have in
    common. ``driver``: host and process id of the driver that ran it. ``epoch``: the driver's journal epoch. ``task_hosts``: the
    hosts of the Spark tasks that read it, as far as they named them."""

    batch_id: int
    rows: Iterable[str]
    began: float
    ended: float
    driver: str
    epoch: int
    task_hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """All that is known about a run. ``kafka``: partition → offset → value, as Kafka holds it at the end; :func:`read` leaves it
    empty, and :func:`read_partition` reads it. ``ends``: partition → end of Kafka's log. ``acked``: a line for each record that
    Kafka acknowledged. ``task_hosts``: where Spark's workers are."""

    kafka: Mapping[Place, Log]
    ends: Mapping[Place, int]
    committed: Mapping[Place, int]
    acked: Iterable[str]
    runs: tuple[JobRun, ...]
    seen: tuple[Mapping[str, Any], ...]
    audit: Mapping[str, Any]
    audit_code: int
    batches: tuple[Mapping[str, Any], ...]
    epochs: tuple[Mapping[str, Any], ...]
    unclean: frozenset[Place]
    servers: str = ""
    processes: tuple[Mapping[str, Any], ...] = ()
    task_hosts: frozenset[str] = frozenset()

    def runs_of(self) -> dict[int, list[JobRun]]:
        found: dict[int, list[JobRun]] = defaultdict(list)
        for run in self.runs:
            found[run.batch_id].append(run)
        return found

    def last_runs(self) -> dict[int, JobRun]:
        """Return batch id → the run that completed the batch, if it is completed: the last one in the newest epoch that ran it. A
        driver that ran it after another one had read that it was not completed, so no run of an older epoch completed it."""
        return {
            batch_id: max(runs, key=lambda run: (run.epoch, run.began)) for batch_id, runs in self.runs_of().items()
        }

    def incarnations(self) -> dict[Place, list[Mapping[str, Any]]]:
        """Return what the audit printed about each partition, by incarnation."""
        found: dict[Place, list[Mapping[str, Any]]] = defaultdict(list)
        for line in self.audit["lives"]:
            found[line["topic"], line["partition"]].append(line)
        for lines in found.values():
            lines.sort(key=lambda line: line["life"])
        return found


def check(evidence: Evidence) -> list[Finding]:
    """Return all violations: of the whole run by rule, then of each partition."""
    return judge(evidence, [check_partition(evidence, place) for place in evidence.ends])


def judge(e: Evidence, partitions: Sequence[PartitionResult]) -> list[Finding]:
    """Return all violations, as :func:`check`. ``partitions``: what was found in each of them."""
    rules = (
        audited, reruns, journal, never_ran, leadership, drivers, effects, shown_early, order, commits, processes, tasks,
        other_partitions,
    )  # fmt: skip
    findings = [finding for rule in rules for finding in rule(e)]
    findings += [finding for partition in partitions for finding in partition.findings]
    for what, lines, checked in (
        (
            "rows of completed batches",
            (line for _, run in _with_run(e) for line in run.rows),
            sum(p.rows for p in partitions),
        ),
        ("acknowledged lines", e.acked, sum(p.acked for p in partitions)),
    ):
        if others := sum(1 for _ in lines) - checked:
            findings.append(Finding("other partition", f"{others} {what} are of no partition of the topics"))
    return findings


def audited(e: Evidence) -> Iterator[Finding]:
    """The audit is clean, and everything in Kafka is completed."""
    if e.audit_code or e.audit["findings"]:
        yield Finding("audit", f"forebay audit exited with {e.audit_code}: {e.audit['findings']}")
    lines = e.incarnations()
    for place, end in e.ends.items():
        done = lines[place][-1]["completed_until"] if place in lines else 0
        if done < end:
            yield Finding("not completed", f"{place}: completed until {done}, and Kafka's log ends at {end}")
    done_batches = sum(batch["completed_ms"] is not None for batch in e.batches)
    if done_batches != e.audit["batches_completed"]:
        yield Finding("audit", f"audit: {e.audit['batches_completed']} batches completed; journal: {done_batches}")


def reruns(e: Evidence) -> Iterator[Finding]:
    """Each run of a batch has the same rows in the same order."""
    for batch_id, runs in e.runs_of().items():
        if any(one != other for run in runs[1:] for one, other in itertools.zip_longest(run.rows, runs[0].rows)):
            yield Finding("rerun", f"batch {batch_id} ran {len(runs)} times with different rows")


def journal(e: Evidence) -> Iterator[Finding]:
    """Numbers are dense, ids ascend, each offset is in one batch, and positions only move forward in an incarnation."""
    for earlier, later in itertools.pairwise(e.batches):
        if later["number"] != earlier["number"] + 1 or later["batch_id"] <= earlier["batch_id"]:
            yield Finding("batch order", f"batch {later['number']} ({later['batch_id']}) follows {earlier['number']}")
        if earlier["completed_ms"] is None and later["completed_ms"] is not None:
            yield Finding("batch order", f"batch {later['number']} is completed, and the one before it is not")
    gaps = {
        (line["topic"], line["partition"], line["life"]): {g["from_offset"]: g["until_offset"] for g in line["gaps"]}
        for line in e.audit["lives"]
    }
    at: dict[Incarnation, int] = {
        (line["topic"], line["partition"], line["life"]): line["start"] for line in e.audit["lives"]
    }
    for batch in e.batches:
        for r in sorted(batch["ranges"], key=lambda r: r["from"]):
            where = (r["topic"], r["partition"], r["life"])
            expected = at.get(where)
            while expected in gaps.get(where, {}):
                expected = gaps[where][expected]
            if expected != r["from"]:
                text = f"batch {batch['number']}: {where} from {r['from']}, but the batches before end at {expected}"
                yield Finding("positions", text)
            at[where] = r["until"]


def other_partitions(e: Evidence) -> Iterator[Finding]:
    """Batches and the audit have partitions of the topics alone. :func:`judge` compares the numbers of lines."""
    for batch in e.batches:
        for r in batch["ranges"]:
            if (r["topic"], r["partition"]) not in e.ends:
                yield Finding(
                    "other partition", f"batch {batch['number']} has a range of {r['topic']}/{r['partition']}"
                )
    for place in e.incarnations().keys() - e.ends.keys():
        yield Finding("other partition", f"the audit has {place}")


def never_ran(e: Evidence) -> Iterator[Finding]:
    """Each completed batch with records has a finished run."""
    runs = e.runs_of()
    for batch in e.batches:
        if _is_completed(batch) and batch["records"] and batch["batch_id"] not in runs:
            yield Finding("never ran", f"batch {batch['number']} is completed, and the job never finished it")


def leadership(e: Evidence) -> Iterator[Finding]:
    """What an older epoch showed is never ahead of what a newer one shows; in one epoch nothing moves back."""
    #: epoch, topic, partition, incarnation, name → lowest and highest value
    shown_by: dict[tuple[int, str, int, int, str], tuple[int, int]] = {}
    leaders: dict[int, str] = {}
    for shown in e.seen:
        epoch = shown["epoch"]
        if leaders.setdefault(epoch, shown["driver"]) != shown["driver"]:
            yield Finding("leadership", f"{leaders[epoch]} and {shown['driver']} lead in epoch {epoch:x}")
        for topic, partition, incarnation, position, completed in shown["partitions"]:
            for name, value in (("position", position), ("completed", completed)):
                key = (epoch, topic, partition, incarnation, name)
                low, high = shown_by.get(key, (value, value))
                if value < high:
                    yield Finding("moved back", f"{key}: {value} after {high}")
                shown_by[key] = min(low, value), max(high, value)
    by_line: dict[tuple[str, int, int, str], list[tuple[int, int, int]]] = defaultdict(list)
    for (epoch, topic, partition, incarnation, name), (low, high) in shown_by.items():
        by_line[topic, partition, incarnation, name].append((epoch, low, high))
    for where, epochs in by_line.items():
        for (old, _, high), (new, low, _) in itertools.pairwise(sorted(epochs)):
            if high > low:
                text = f"{where}: epoch {old:x} showed {high}, and the later epoch {new:x} showed {low}"
                yield Finding("leadership", text)


def drivers(e: Evidence) -> Iterator[Finding]:
    """The driver that claimed an epoch, and no other one, runs batches in this epoch and shows a status of it."""
    # an owner is HOST-PID-RANDOM
    claims = {claim["epoch"]: claim["owner"].rpartition("-")[0].replace("-", " ") for claim in e.epochs}
    for (epoch, driver), count in Counter((run.epoch, run.driver) for run in e.runs).items():
        owner = claims.get(epoch, "no driver")
        if owner != driver:
            yield Finding("driver", f"{driver} ran {count} batches in epoch {epoch:x}, which {owner} claimed")
    for epoch, host in sorted({(shown["epoch"], shown["driver"]) for shown in e.seen}):
        owner = claims.get(epoch, "no driver")
        if owner.partition(" ")[0] != host:
            yield Finding("driver", f"{host} showed a status of epoch {epoch:x}, which {owner} claimed")


def effects(e: Evidence) -> Iterator[Finding]:
    """When a batch of a newer epoch has begun, no run of an older epoch completes a batch.

    A driver reads what the older epochs completed before it runs a batch, and it fences them before it reads. A fenced driver's
    job may run to its end, and its driver may begin the run of a batch that it had chosen before: these runs are no violation.
    But what they finish is not completed, so a newer epoch runs the batch. Hence:

    - The run that completed a batch ended before a run of a newer epoch began.
    - If a batch ran in an epoch, its driver knew that all earlier batches are completed, and so do the drivers of newer epochs:
      no newer epoch runs an earlier batch.
    - A run begins when its batch is durable, so the journal has the batch.
    """
    last = e.last_runs()
    known = {batch["batch_id"] for batch in e.batches}
    for batch_id in sorted(last.keys() - known):
        yield Finding(
            "unknown batch", f"batch {batch_id} ran on {last[batch_id].driver}, and the journal does not have it"
        )
    runs = e.runs_of()
    #: epoch → its first run
    firsts = {run.epoch: run for run in sorted(e.runs, key=lambda run: -run.began)}
    newest = (0, 0)  # epoch, and number of the batch that ran in it
    for batch in e.batches:
        if batch["batch_id"] not in runs:
            continue
        number, by = batch["number"], last[batch["batch_id"]]
        for later in firsts.values():
            if _is_completed(batch) and later.epoch > by.epoch and later.began < by.ended:
                text = f"batch {number}: {by.driver} ended its run in epoch {by.epoch:x} at {by.ended:.3f}; "
                text += f"{later.driver} had begun a batch in epoch {later.epoch:x} at {later.began:.3f}"
                yield Finding("outdated completion", text)
        oldest = min(run.epoch for run in runs[batch["batch_id"]])
        if oldest < newest[0]:
            text = f"batch {number} ran in epoch {oldest:x}, and the earlier batch {newest[1]} in the newer epoch {newest[0]:x}"
            yield Finding("epoch order", text)
        newest = max(newest, (by.epoch, number))


def shown_early(e: Evidence) -> Iterator[Finding]:
    """No status shows a batch as completed before the run that completed it has ended."""
    last = e.last_runs()
    #: ends of the ranges of completed batches, in order, and for each one when the run ended, and the batch
    ends: dict[Incarnation, list[int]] = defaultdict(list)
    ended: dict[Incarnation, list[tuple[float, int]]] = defaultdict(list)
    for batch in e.batches:
        if _is_completed(batch) and batch["batch_id"] in last:
            for r in sorted(batch["ranges"], key=lambda r: r["from"]):
                ends[r["topic"], r["partition"], r["life"]].append(r["until"])
                ended[r["topic"], r["partition"], r["life"]].append((last[batch["batch_id"]].ended, batch["number"]))
    for shown in e.seen:
        for topic, partition, incarnation, _, completed in shown["partitions"]:
            line = (topic, partition, incarnation)
            count = bisect_right(ends[line], completed)
            if count and (found := ended[line][count - 1])[0] > shown["at"]:
                text = f"{shown['driver']} showed {line} completed until {completed} in epoch {shown['epoch']:x} at "
                text += f"{shown['at']:.3f}, and batch {found[1]} was finished at {found[0]:.3f}"
                yield Finding("shown early", text)


def _is_completed(batch: Mapping[str, Any]) -> bool:
    """Whether the batch is completed by a run of the job."""
    return batch["completed_ms"] is not None and not batch["skipped"]


def order(e: Evidence) -> Iterator[Finding]:
    """No run of a batch begins before the run that completed the batch before it has ended."""
    runs, last = e.runs_of(), e.last_runs()
    finished = 0.0
    for batch in e.batches:
        mine = runs.get(batch["batch_id"], ())
        if not mine:
            continue
        if min(run.began for run in mine) < finished:
            yield Finding("job order", f"batch {batch['number']} began before the one before it was finished")
        finished = last[batch["batch_id"]].ended


def commits(e: Evidence) -> Iterator[Finding]:
    """Nothing is committed to Kafka beyond the journal's position."""
    lines = e.incarnations()
    for place, offset in e.committed.items():
        until = lines[place][-1]["until"] if place in lines else 0
        if (
            offset > until and len(lines[place]) == 1
        ):  # what an older incarnation committed may be beyond a log cut back
            yield Finding("commit", f"{place}: committed {offset}, and the journal's position is {until}")


def processes(e: Evidence) -> Iterator[Finding]:
    """A process that ends by itself was replaced by another one (exit code 4), or says what failed without a traceback, and a
    supervisor starts it again: the settings of the run are right, so no process says that they are wrong (exit code 2)."""
    for end in e.processes:
        if end["traceback"] or end["code"] == _WRONG_SETTINGS:
            text = f"{end['name']} ended with {end['code']} after {end['during']}: {end['traceback'] or 'see its log'}"
            yield Finding("process", text)


def tasks(e: Evidence) -> Iterator[Finding]:
    """If Spark's workers have hosts of their own, tasks ran on each of them, and nowhere else."""
    ran = {host for run in e.runs for host in run.task_hosts}
    if ran != e.task_hosts:
        yield Finding("tasks", f"tasks ran on {sorted(ran)}, and Spark's workers are on {sorted(e.task_hosts)}")


# ---- rules of a partition --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PartitionResult:
    """What was found in a partition, and numbers of records: those that Kafka holds, acknowledged ones, acknowledged ones that
    Kafka no longer holds, and rows of completed batches."""

    findings: list[Finding]
    held: int
    acked: int
    lost: int
    rows: int


@dataclass(frozen=True)
class CompletedRows:
    """Rows of one partition in a completed batch."""

    batch: Mapping[str, Any]
    offsets: array[int]
    values: list[str]


def _with_run(e: Evidence) -> Iterator[tuple[Mapping[str, Any], JobRun]]:
    """Yield each completed or skipped batch that the job finished, with its first run. :func:`reruns` compares its other runs."""
    runs = e.runs_of()
    for batch in e.batches:
        if batch["completed_ms"] is not None and batch["batch_id"] in runs:
            yield batch, runs[batch["batch_id"]][0]


def completed_rows(e: Evidence, place: Place) -> Iterator[CompletedRows]:
    for batch, run in _with_run(e):
        rows = list(rows_of(place, run.rows))
        yield CompletedRows(batch, array("q", [offset for offset, _ in rows]), [value for _, value in rows])


def check_partition(e: Evidence, place: Place) -> PartitionResult:
    """Apply the rules of a partition."""
    held, findings, number, is_kafkas = e.kafka[place], list[Finding](), 0, True

    def keep(found: Iterable[Finding]) -> None:
        findings.extend(itertools.islice(found, _FINDINGS_MAX - len(findings)))

    for rows in completed_rows(e, place):
        keep(rows_of_batch(place, rows))
        is_kafkas = is_kafkas and held.has_from(number, rows)
        number += len(rows.offsets)
    if not is_kafkas or number != len(held):  # otherwise the batches have exactly Kafka's records, in order
        keep(records(e, place))
    acked = lost = 0
    for offset, value in rows_of(place, e.acked):
        acked += 1
        if held.get(offset) != value:
            lost += 1
            if place not in e.unclean:
                text = f"{place} {offset}: {value} was acknowledged; this run proves nothing about it"
                keep([Finding("lost by Kafka", text)])
    return PartitionResult(findings, len(held), acked, lost, number)


def rows_of_batch(place: Place, rows: CompletedRows) -> Iterator[Finding]:
    """The job saw exactly what the journal says is in the batch."""
    batch, offsets = rows.batch, sorted(rows.offsets)
    if batch["skipped"] or not batch["records"]:
        return
    spans, until = _spans(place, batch["ranges"]), -sys.maxsize
    for low, high, count in spans:
        yield from _in_no_range(place, batch, offsets, until, low)
        seen, until = bisect_left(offsets, high) - bisect_left(offsets, low), high
        if seen != count and not batch["lost"]:
            yield Finding("rows", f"batch {batch['number']}: {seen} rows of {count} in {place} [{low}, {high})")
    yield from _in_no_range(place, batch, offsets, until, sys.maxsize)


def _in_no_range(place: Place, batch: Mapping[str, Any], offsets: list[int], low: int, high: int) -> Iterator[Finding]:
    """Return a finding for each of the offsets in [low, high)."""
    for offset in offsets[bisect_left(offsets, low) : bisect_left(offsets, high)]:
        yield Finding("rows", f"batch {batch['number']} gave {place} {offset}, which is in no range")


def _place(range_: Mapping[str, Any]) -> Place:
    return range_["topic"], range_["partition"]


def _spans(place: Place, ranges: Iterable[Mapping[str, Any]]) -> list[tuple[int, int, int]]:
    """Return from, until and number of records of the ranges of ``place``, in order. Overlapping ones of two incarnations are
    one, because a row does not name its incarnation."""
    spans: list[tuple[int, int, int]] = []
    for r in sorted((r for r in ranges if _place(r) == place), key=lambda r: r["from"]):
        if spans and r["from"] < spans[-1][1]:
            low, until, count = spans.pop()
            spans.append((low, max(until, r["until"]), count + r["records"]))
        else:
            spans.append((r["from"], r["until"], r["records"]))
    return spans


def records(e: Evidence, place: Place) -> Iterator[Finding]:
    """Each record in Kafka is in exactly one batch; what a batch has and Kafka does not is an announced loss of Kafka."""
    held = e.kafka[place]
    taken = bytearray(len(held))  # 1: a batch has this record of Kafka
    odd: dict[str, list[tuple[int, Mapping[str, Any]]]] = {}  # values of the other rows → all rows with them
    for rows in completed_rows(e, place):
        for offset, value in zip(rows.offsets, rows.values, strict=True):
            number = held.number(offset)
            if number is None or taken[number] or held[offset] != value:
                odd[value] = []
            else:
                taken[number] = 1
    for rows in completed_rows(e, place) if odd else ():
        for offset, value in zip(rows.offsets, rows.values, strict=True):
            if value in odd:
                odd[value].append((offset, rows.batch))
    for value, found in odd.items():
        for (first, earlier), (offset, later) in itertools.pairwise(found):
            if not _is_twice_in_kafka(e, place, value, first, offset):
                text = f"{place} {offset}: {value} is in batches {earlier['number']} and {later['number']}"
                yield Finding("twice", text)
        for offset, batch in found:
            if held.get(offset) == value:
                continue
            if place not in e.unclean:
                yield Finding(
                    "strange", f"{place} {offset}: batch {batch['number']} has {value}, Kafka {held.get(offset)}"
                )
            elif not _is_announced(e, place, offset, batch):
                text = f"{place} {offset}: Kafka lost {value} after batch {batch['number']} had it, and the audit is silent"
                yield Finding("silent loss", text)
    incarnations = e.incarnations().get(place, [])
    gaps = [(g["from_offset"], g["until_offset"]) for line in incarnations for g in line["gaps"]]
    # Kafka may have other records below the start of such an incarnation
    unknown = max((n["start"] for p, n in itertools.pairwise(incarnations) if _is_cut_somewhere(p, n)), default=0)
    for number, (offset, value) in enumerate(held.items()):
        is_known = (place in e.unclean and offset < unknown) or any(low <= offset < high for low, high in gaps)
        if not taken[number] and not is_known:
            yield Finding("missing", f"{place} {offset}: {value} is in no completed batch")


def _is_announced(e: Evidence, place: Place, offset: int, batch: Mapping[str, Any]) -> bool:
    """Whether the audit has an incarnation that begins at or below a row that Kafka has lost, after the row's own incarnation."""
    lives = [r["life"] for r in batch["ranges"] if _place(r) == place and r["from"] <= offset < r["until"]]
    return any(
        later["life"] > min(lives, default=0) and (later["start"] <= offset or _is_cut_somewhere(earlier, later))
        for earlier, later in itertools.pairwise(e.incarnations().get(place, []))
    )


def _is_cut_somewhere(earlier: Mapping[str, Any], later: Mapping[str, Any]) -> bool:
    """Whether an incarnation may have begun because the leader before the last one led again. It is unknown then from which
    offset on the log has other records, and the incarnation begins at the last record before the position."""
    return bool(later["start"] == earlier["until"] - 1)


def _is_twice_in_kafka(e: Evidence, place: Place, value: str, *offsets: int) -> bool:
    """Whether Kafka has the value at both offsets, or lost it there in an unclean election that the audit announces.

    A producer that is not idempotent sends a record again if a broker ends before its answer.
    """
    starts = [line["start"] for line in e.incarnations().get(place, ())[1:]] if place in e.unclean else []
    held = e.kafka[place]
    return len(set(offsets)) > 1 and all(
        held.get(offset) == value or any(start <= offset for start in starts) for offset in offsets
    )


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(folder: Path) -> Evidence:
    """Read a run's folder, and ends and commits of Kafka, which must be running; not its records."""
    run = json.loads((folder / "run.json").read_text())
    places = [(topic, number) for topic, count in run["topics"].items() for number in range(count)]
    ends, committed = read_positions(run["servers"], run["group"], places)
    audit = json.loads((folder / "audit.json").read_text())
    return Evidence(
        kafka={},
        ends=ends,
        committed=committed,
        acked=Lines(folder / "acked.tsv"),
        runs=tuple(read_run(path) for path in sorted((folder / "out").glob("*.run"))),
        seen=tuple(map(json.loads, (folder / "seen.jsonl").read_text().splitlines())),
        audit=audit,
        audit_code=run["audit_code"],
        batches=tuple(json.loads((folder / "batches.json").read_text())),
        epochs=tuple(json.loads((folder / "journal.json").read_text())["epochs"]),
        unclean=frozenset((topic, number) for topic, number in run["unclean"]),
        servers=run["servers"],
        processes=tuple(json.loads((folder / "ends.json").read_text())),
        task_hosts=frozenset(run["task_hosts"]),
    )


def read_run(path: Path) -> JobRun:
    with path.open() as file:
        head = json.loads(file.readline())
    hosts = tuple(head["task_hosts"])
    return JobRun(head["id"], Lines(path, 1), head["began"], head["ended"], head["driver"], head["epoch"], hosts)


def read_positions(servers: str, group: str, places: Iterable[Place]) -> tuple[dict[Place, int], dict[Place, int]]:
    """Return the end of each partition, and what the group committed."""
    partitions = [TopicPartition(*place) for place in places]
    with _consumer(servers, group) as consumer:
        ends = {(tp.topic, tp.partition): consumer.get_watermark_offsets(tp, _READ_SECONDS)[1] for tp in partitions}
        done = consumer.committed(partitions, timeout=_READ_SECONDS)
    return ends, {(tp.topic, tp.partition): tp.offset for tp in done if tp.offset >= 0}


def read_log(servers: str, place: Place) -> Log:
    """Return what Kafka holds of a partition."""
    found = Log()
    with _consumer(servers, "checker") as consumer:
        consumer.assign([TopicPartition(*place, OFFSET_BEGINNING)])
        deadline = time.monotonic() + _READ_SECONDS
        while True:
            messages = consumer.consume(10_000, 0.2)  # it waits until there are as many, or for 0.2 s
            if messages:
                deadline = time.monotonic() + _READ_SECONDS
            elif time.monotonic() > deadline:
                raise SystemExit(f"Kafka returned nothing of {place} for {_READ_SECONDS:g} s")
            for message in messages:
                error = message.error()
                if error is None:
                    found.append(message.offset() or 0, (message.value() or b"").decode())
                elif error.code() == KafkaError._PARTITION_EOF:
                    return found
                else:
                    raise SystemExit(f"Kafka returned an error for {place}: {error}")


@contextmanager
def _consumer(servers: str, group: str) -> Iterator[Consumer]:
    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    try:
        yield consumer
    finally:
        consumer.close()


def read_partition(evidence: Evidence, place: Place) -> PartitionResult:
    """Read a partition from Kafka, and apply its rules."""
    gc.disable()  # nothing here is cyclic, and each collection would traverse all records
    return check_partition(replace(evidence, kafka={place: read_log(evidence.servers, place)}), place)


def read_partitions(evidence: Evidence) -> list[PartitionResult]:
    """Apply :func:`read_partition` to all partitions, in as many processes as processors and memory allow."""
    needed = _BYTES_PER_RECORD * max(evidence.ends.values(), default=0) + 1
    available = re.search(r"MemAvailable: *(\d+) kB", Path("/proc/meminfo").read_text())
    count = min(os.cpu_count() or 1, max(1, int(available[1]) * 1024 // needed if available else 1))
    # a fork would have the client of this process without its threads
    spawning = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(count, spawning, initializer=_end_with_parent) as pool:
        small = replace(evidence, seen=(), processes=(), epochs=())
        try:
            return list(pool.map(partial(read_partition, small), evidence.ends))
        except BrokenProcessPool:
            raise SystemExit(f"a process was killed, probably for lack of memory: it needs {needed >> 20} MB") from None


def _end_with_parent() -> None:
    """End this process when its parent ends, which would otherwise wait for work for ever."""

    def watch() -> None:
        parent = multiprocessing.parent_process()
        assert parent is not None
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def describe(e: Evidence, partitions: Sequence[PartitionResult], findings: list[Finding]) -> str:
    """Return the summary: what was checked, then the findings."""
    held, acked, lost = (
        sum(p.held for p in partitions),
        sum(p.acked for p in partitions),
        sum(p.lost for p in partitions),
    )
    lines = [
        f"{held} records in Kafka, {acked} acknowledged"
        + (f" ({lost} lost by Kafka in unclean elections)" if lost else ""),
        f"{len(e.batches)} batches in {len(e.runs)} finished runs, {len(e.epochs)} journal epochs, "
        f"{len({shown['epoch'] for shown in e.seen})} leaders seen in {len(e.seen)} looks at the status",
    ]
    if e.task_hosts:
        counts_of = Counter(host for run in e.runs for host in run.task_hosts)
        lines.append("finished runs with tasks on " + ", ".join(f"{h}: {n}" for h, n in sorted(counts_of.items())))
    for line in e.audit["lives"]:
        if line["life"] > 1 or line["gaps"]:
            where = f"{line['topic']}/{line['partition']}"
            lines.append(f"announced: {where} life {line['life']} at {line['start']}: {line['cause']} {line['gaps']}")
    counts = Counter(finding.rule for finding in findings)
    for rule, count in counts.items():
        lines.append(f"FINDING {rule}: {count}")
        lines += [f"    {finding.text}" for finding in findings if finding.rule == rule][:_SHOWN]
    lines.append("no finding" if not findings else f"{len(findings)} findings")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    evidence = read(folder)
    partitions = read_partitions(evidence)
    findings = judge(evidence, partitions)
    text = describe(evidence, partitions, findings)
    print(text)
    (folder / "checked.txt").write_text(text + "\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
