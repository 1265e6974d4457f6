"""Checks the folder of a finished run. Shares no code with Forebay: it reads Kafka, the job's files and printed text. One module,
because a person reads it as one proof, and copies it beside a run.

``python checker.py FOLDER`` prints the findings and a summary, and exits with 1 if there is a finding. Files in the folder:

- ``run.json``: bootstrap servers, topics with their number of partitions, consumer group, partitions with an unclean election,
  hosts of Spark's tasks (none if batches run in the driver)
- ``acked.tsv``: topic, partition, offset, value of each record that Kafka acknowledged to the producer
- ``out/*.run``: one file for each run of a batch: a header in JSON, then partition, offset and value of each row
- ``seen.jsonl``: what the drivers' status showed during the run
- ``audit.json``, ``batches.json``, ``journal.json``: what ``forebay audit``, ``forebay journal batches --all`` and ``forebay
  journal inspect`` printed with ``--json``
- ``ends.json``: name, exit code and cause of each process of this code that ended by itself
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

#: a finding of each rule is printed in full this many times; the others are only counted
_SHOWN = 5
_READ_SECONDS = 60.0
#: exit code after which a supervisor leaves a service down
_WRONG_SETTINGS = 2

Place = tuple[str, int]
Line = tuple[str, int, int]  # topic, partition, incarnation


@dataclass(frozen=True)
class Finding:
    """One violation. ``rule``: its short name."""

    rule: str
    text: str


@dataclass(frozen=True)
class JobRun:
    """One run of a batch by the job: its rows (topic, partition, offset, value), and monotonic times of begin and end, which the
    hosts have in common. ``driver``: host and process id of the driver that ran it. ``epoch``: the driver's journal epoch.
    ``task_hosts``: the hosts of the Spark tasks that read it, as far as they named them."""

    batch_id: int
    rows: tuple[tuple[str, int, int, str], ...]
    began: float
    ended: float
    driver: str
    epoch: int
    task_hosts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Evidence:
    """All that is known about a run. ``kafka``: partition → offset → value, as Kafka holds it at the end. ``task_hosts``: where
    Spark's workers are."""

    kafka: Mapping[Place, Mapping[int, str]]
    ends: Mapping[Place, int]
    committed: Mapping[Place, int]
    acked: tuple[tuple[str, int, int, str], ...]
    runs: tuple[JobRun, ...]
    seen: tuple[Mapping[str, Any], ...]
    audit: Mapping[str, Any]
    audit_code: int
    batches: tuple[Mapping[str, Any], ...]
    epochs: tuple[Mapping[str, Any], ...]
    unclean: frozenset[Place]
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
    """Return all violations, by rule."""
    rules = (
        audited, reruns, journal, rows_of_batches, records, acknowledged,
        leadership, drivers, effects, shown_early, order, commits, processes, tasks,
    )  # fmt: skip
    return [finding for rule in rules for finding in rule(evidence)]


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
        if any(run.rows != runs[0].rows for run in runs[1:]):
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
    at: dict[Line, int] = {(line["topic"], line["partition"], line["life"]): line["start"] for line in e.audit["lives"]}
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


def rows_of_batches(e: Evidence) -> Iterator[Finding]:
    """The job saw exactly what the journal says is in the batch."""
    runs = e.runs_of()
    for batch in e.batches:
        if batch["completed_ms"] is None or batch["skipped"] or not batch["records"]:
            continue
        if batch["batch_id"] not in runs:
            yield Finding("never ran", f"batch {batch['number']} is completed, and the job never finished it")
            continue
        rows = runs[batch["batch_id"]][0].rows
        seen: Counter[tuple[str, int, int]] = Counter()
        for topic, partition, offset, _ in rows:
            for r in batch["ranges"]:
                if (r["topic"], r["partition"]) == (topic, partition) and r["from"] <= offset < r["until"]:
                    seen[topic, partition, r["from"]] += 1
                    break
            else:
                yield Finding(
                    "rows", f"batch {batch['number']} gave {topic}/{partition} {offset}, which is in no range"
                )
        for r in batch["ranges"]:
            found = seen[r["topic"], r["partition"], r["from"]]
            if found != r["records"] and not batch["lost"]:
                yield Finding("rows", f"batch {batch['number']}: {found} rows of {r['records']} in {r}")


def _completed_rows(e: Evidence) -> dict[Place, list[tuple[int, str, int]]]:
    """Return offset, value and batch of each row of each completed batch, by partition."""
    runs = e.runs_of()
    found: dict[Place, list[tuple[int, str, int]]] = defaultdict(list)
    for batch in e.batches:
        if batch["completed_ms"] is not None and batch["batch_id"] in runs:
            for topic, partition, offset, value in runs[batch["batch_id"]][0].rows:
                found[topic, partition].append((offset, value, batch["number"]))
    return found


def records(e: Evidence) -> Iterator[Finding]:
    """Each record in Kafka is in exactly one batch; what a batch has and Kafka does not is an announced loss of Kafka."""
    rows = _completed_rows(e)
    incarnations = e.incarnations()
    for place in {*e.kafka, *rows}:
        held = e.kafka.get(place, {})
        batches: dict[str, int] = {}
        before: dict[str, int] = {}
        announced = len(incarnations.get(place, ())) > 1
        for offset, value, number in rows.get(place, ()):
            if value in batches and not _is_twice_in_kafka(e, place, value, before[value], offset):
                text = f"{place} {offset}: {value} is in batches {batches[value]} and {number}"
                yield Finding("twice", text)
            batches[value], before[value] = number, offset
            if held.get(offset) != value:
                if place not in e.unclean:
                    yield Finding("strange", f"{place} {offset}: batch {number} has {value}, Kafka {held.get(offset)}")
                elif not announced:
                    text = f"{place} {offset}: Kafka lost {value} after batch {number} had it, and the audit is silent"
                    yield Finding("silent loss", text)
        gaps = [(g["from_offset"], g["until_offset"]) for line in incarnations.get(place, ()) for g in line["gaps"]]
        for offset, value in held.items():
            known = place in e.unclean and offset < incarnations[place][-1]["start"]
            if value not in batches and not known and not any(low <= offset < high for low, high in gaps):
                yield Finding("missing", f"{place} {offset}: {value} is in no completed batch")


def _is_twice_in_kafka(e: Evidence, place: Place, value: str, *offsets: int) -> bool:
    """Whether Kafka has the value at both offsets, or lost it there in an unclean election that the audit announces.

    A producer that is not idempotent sends a record again if a broker ends before its answer.
    """
    starts = [line["start"] for line in e.incarnations().get(place, ())[1:]] if place in e.unclean else []
    held = e.kafka.get(place, {})
    return len(set(offsets)) > 1 and all(
        held.get(offset) == value or any(start <= offset for start in starts) for offset in offsets
    )


def acknowledged(e: Evidence) -> Iterator[Finding]:
    """Kafka still has what it acknowledged, except where an unclean election was made."""
    for topic, partition, offset, value in e.acked:
        place = (topic, partition)
        if place not in e.unclean and e.kafka.get(place, {}).get(offset) != value:
            yield Finding(
                "lost by Kafka", f"{place} {offset}: {value} was acknowledged; this run proves nothing about it"
            )


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
    ends: dict[Line, list[int]] = defaultdict(list)
    ended: dict[Line, list[tuple[float, int]]] = defaultdict(list)
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


# ---- reading ---------------------------------------------------------------------------------------------------------


def read(folder: Path) -> Evidence:
    """Read a run's folder, and Kafka, which must be running."""
    run = json.loads((folder / "run.json").read_text())
    places = [(topic, number) for topic, count in run["topics"].items() for number in range(count)]
    kafka, committed = read_kafka(run["servers"], run["group"], places)
    audit = json.loads((folder / "audit.json").read_text())
    return Evidence(
        kafka={place: values for place, (values, _) in kafka.items()},
        ends={place: end for place, (_, end) in kafka.items()},
        committed=committed,
        acked=tuple(
            (topic, int(partition), int(offset), value)
            for topic, partition, offset, value in _table(folder / "acked.tsv")
        ),
        runs=tuple(read_run(path) for path in sorted((folder / "out").glob("*.run"))),
        seen=tuple(map(json.loads, (folder / "seen.jsonl").read_text().splitlines())),
        audit=audit,
        audit_code=run["audit_code"],
        batches=tuple(json.loads((folder / "batches.json").read_text())),
        epochs=tuple(json.loads((folder / "journal.json").read_text())["epochs"]),
        unclean=frozenset((topic, number) for topic, number in run["unclean"]),
        processes=tuple(json.loads((folder / "ends.json").read_text())),
        task_hosts=frozenset(run["task_hosts"]),
    )


def _table(path: Path) -> Iterator[list[str]]:
    with path.open() as file:
        for line in file:
            yield line.rstrip("\n").split("\t")


def read_run(path: Path) -> JobRun:
    with path.open() as file:
        head = json.loads(file.readline())
        rows = []
        for line in file:
            topic, partition, offset, value = line.rstrip("\n").split("\t")
            rows.append((topic, int(partition), int(offset), value))
    hosts = tuple(head["task_hosts"])
    return JobRun(head["id"], tuple(rows), head["began"], head["ended"], head["driver"], head["epoch"], hosts)


def read_kafka(
    servers: str, group: str, places: Iterable[Place]
) -> tuple[dict[Place, tuple[dict[int, str], int]], dict[Place, int]]:
    """Return each partition's records with its end, and what the group committed."""
    from confluent_kafka import Consumer, KafkaError, TopicPartition

    wanted = list(places)
    consumer = Consumer({
        "bootstrap.servers": servers, "group.id": group, "enable.auto.commit": False, "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
    })  # fmt: skip
    try:
        marks = {
            place: consumer.get_watermark_offsets(TopicPartition(*place), timeout=_READ_SECONDS) for place in wanted
        }
        done = consumer.committed([TopicPartition(*place) for place in wanted], timeout=_READ_SECONDS)
        committed = {(tp.topic, tp.partition): tp.offset for tp in done if tp.offset >= 0}
        found: dict[Place, tuple[dict[int, str], int]] = {place: ({}, high) for place, (_, high) in marks.items()}
        consumer.assign([TopicPartition(*place, low) for place, (low, _) in marks.items()])
        waiting = set(wanted)
        deadline = time.monotonic() + _READ_SECONDS
        while waiting:
            messages = consumer.consume(10_000, 0.2)  # it waits until there are as many
            if messages:
                deadline = time.monotonic() + _READ_SECONDS
            elif time.monotonic() > deadline:
                raise SystemExit(f"Kafka returned nothing of {sorted(waiting)} for {_READ_SECONDS:g} s")
            for message in messages:
                place = (message.topic() or "", message.partition() or 0)
                error = message.error()
                if error is None:
                    found[place][0][message.offset() or 0] = (message.value() or b"").decode()
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(place)
                else:
                    raise SystemExit(f"Kafka returned an error for {place}: {error}")
    finally:
        consumer.close()
    return found, committed


def describe(evidence: Evidence, findings: list[Finding]) -> str:
    """Return the summary: what was checked, then the findings."""
    lost = sum(evidence.kafka.get((t, p), {}).get(offset) != value for t, p, offset, value in evidence.acked)
    lines = [
        f"{sum(map(len, evidence.kafka.values()))} records in Kafka, {len(evidence.acked)} acknowledged"
        + (f" ({lost} lost by Kafka in unclean elections)" if lost else ""),
        f"{len(evidence.batches)} batches in {len(evidence.runs)} finished runs, {len(evidence.epochs)} journal epochs, "
        f"{len({shown['epoch'] for shown in evidence.seen})} leaders seen in {len(evidence.seen)} looks at the status",
    ]
    if evidence.task_hosts:
        counts_of = Counter(host for run in evidence.runs for host in run.task_hosts)
        lines.append("finished runs with tasks on " + ", ".join(f"{h}: {n}" for h, n in sorted(counts_of.items())))
    for line in evidence.audit["lives"]:
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
    evidence = read(Path(arguments[0]))
    findings = check(evidence)
    text = describe(evidence, findings)
    print(text)
    (Path(arguments[0]) / "checked.txt").write_text(text + "\n")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
