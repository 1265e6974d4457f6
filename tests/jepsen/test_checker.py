"""The checker finds each kind of violation when it is planted into a run that has none."""

from __future__ import annotations

import ast
import copy
import pickle
import sys
from array import array
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.jepsen import checker
from tests.jepsen.checker import Evidence, JobRun, Lines, Log, Place, rows_of

SAFE, RISKY = ("safe", 0), ("risky", 0)


def batch(number: int, *ranges: tuple[str, int, int, int], **more: Any) -> dict[str, Any]:
    """``ranges``: topic, incarnation, from, until, of partition 0."""
    return {
        "number": number, "batch_id": number, "completed_ms": 1000 * number, "skipped": "", "lost": [],
        "records": sum(until - begin for _, _, begin, until in ranges),
        "ranges": [
            {"topic": topic, "partition": 0, "life": life, "from": begin, "until": until, "records": until - begin}
            for topic, life, begin, until in ranges
        ],
        **more,
    }  # fmt: skip


def incarnation(topic: str, number: int, start: int, until: int) -> dict[str, Any]:
    return {
        "topic": topic, "partition": 0, "life": number, "start": start, "until": until, "completed_until": until,
        "gaps": [], "cause": "the log was cut back",
    }  # fmt: skip


def shown(at: float, epoch: int, driver: str, position: int) -> dict[str, Any]:
    return {"at": at, "epoch": epoch, "driver": driver, "partitions": [["safe", 0, 1, position, position]]}


def claim(epoch: int, owner: str) -> dict[str, Any]:
    return {"epoch": epoch, "owner": owner}


def row(topic: str, offset: int, value: str) -> str:
    return f"{topic}\t0\t{offset}\t{value}\n"


def rows(topic: str, begin: int, until: int, tag: str = "v") -> tuple[str, ...]:
    return tuple(row(topic, offset, f"{tag}{topic}{offset}") for offset in range(begin, until))


def log(place: Place, *lines: str) -> Log:
    return Log(dict(rows_of(place, lines)))


def run(number: int, of: Iterable[str], began: float, ended: float, driver: str, epoch: int) -> JobRun:
    return JobRun(number, of, began, ended, driver, epoch)


def good() -> Evidence:
    """Three batches over two leaders. Kafka lost [4, 6) of the risky partition after a batch had it, as the audit says. The first
    leader was suspended during batch 2, and finishes its run of it after the second one has completed the batch."""
    return Evidence(
        kafka={SAFE: log(SAFE, *rows("safe", 0, 10)),
               RISKY: log(RISKY, *rows("risky", 0, 4), *rows("risky", 4, 5, "w"))},
        ends={SAFE: 10, RISKY: 5},
        committed={SAFE: 10, RISKY: 6},
        acked=(*rows("safe", 0, 10), *rows("risky", 0, 6)),
        runs=(
            run(1, rows("safe", 0, 5), 1.0, 2.0, "d1 7", 1),
            run(2, (*rows("safe", 5, 8), *rows("risky", 0, 6)), 3.0, 9.0, "d1 7", 1),
            run(2, (*rows("safe", 5, 8), *rows("risky", 0, 6)), 5.0, 6.0, "d2 8", 2),
            run(3, (*rows("safe", 8, 10), *rows("risky", 4, 5, "w")), 7.0, 8.0, "d2 8", 2),
        ),
        seen=(shown(0.5, 1, "d1", 0), shown(2.5, 1, "d1", 5), shown(6.5, 2, "d2", 8), shown(8.5, 2, "d2", 10)),
        audit={
            "findings": [], "batches_completed": 3,
            "lives": [incarnation("safe", 1, 0, 10), incarnation("risky", 1, 0, 6), incarnation("risky", 2, 4, 5)],
        },
        audit_code=0,
        batches=(batch(1, ("safe", 1, 0, 5)), batch(2, ("safe", 1, 5, 8), ("risky", 1, 0, 6)),
                 batch(3, ("safe", 1, 8, 10), ("risky", 2, 4, 5))),
        epochs=(claim(1, "d1-7-0aef"), claim(2, "d2-8-1bc5"), claim(3, "d1-9-77d0")),
        unclean=frozenset({RISKY}),
        processes=({"name": "d1", "code": 4, "during": "pause d1", "traceback": ""},),
    )  # fmt: skip


def with_run(e: Evidence, number: int, run: JobRun) -> Evidence:
    return replace(e, runs=(*e.runs[:number], run, *e.runs[number + 1 :]))


def with_batch(e: Evidence, number: int, changed: dict[str, Any]) -> Evidence:
    return replace(e, batches=(*e.batches[:number], changed, *e.batches[number + 1 :]))


def with_audit(e: Evidence, **changed: Any) -> Evidence:
    return replace(e, audit={**copy.deepcopy(dict(e.audit)), **changed})


#: rule → a run that breaks it
PLANTED: dict[str, Callable[[Evidence], Evidence]] = {
    "audit": lambda e: replace(e, audit_code=1),
    "not completed": lambda e: replace(e, ends={SAFE: 11, RISKY: 5}),
    "rerun": lambda e: with_run(e, 2, replace(e.runs[2], rows=[*e.runs[2].rows][::-1])),
    "batch order": lambda e: with_batch(e, 1, {**e.batches[1], "number": 3}),
    "positions": lambda e: with_batch(e, 2, batch(3, ("safe", 1, 7, 10), ("risky", 2, 4, 5))),
    "never ran": lambda e: replace(e, runs=e.runs[:3]),
    "rows": lambda e: with_run(e, 0, replace(e.runs[0], rows=[*e.runs[0].rows][1:])),
    "twice": lambda e: with_run(e, 3, replace(e.runs[3], rows=(*e.runs[3].rows, *rows("safe", 0, 1)))),
    "strange": lambda e: with_run(e, 0, replace(e.runs[0], rows=rows("safe", 0, 5, "x"))),
    "silent loss": lambda e: with_audit(e, lives=e.audit["lives"][:2]),
    "missing": lambda e: replace(e, kafka={**e.kafka, SAFE: Log({**e.kafka[SAFE], 10: "vsafe10"})}),
    "lost by Kafka": lambda e: replace(e, acked=(*e.acked, row("safe", 10, "vsafe10"))),
    "moved back": lambda e: replace(e, seen=(shown(7.0, 1, "d1", 8), shown(8.0, 1, "d1", 5))),
    "leadership": lambda e: replace(e, seen=(shown(2.5, 1, "d1", 9), shown(6.5, 2, "d2", 8), shown(8.5, 2, "d2", 10))),
    "driver": lambda e: with_run(e, 3, replace(e.runs[3], driver="d1 7")),
    "unknown batch": lambda e: replace(e, runs=(*e.runs, run(4, rows("safe", 8, 10), 7.5, 9.0, "d1 7", 1))),
    # the run of the second leader did not end, and that of the first one ended too late
    "outdated completion": lambda e: replace(
        e, runs=(*e.runs[:2], replace(e.runs[3], began=8.9, ended=9.9)), seen=(*e.seen[:2], shown(9.95, 2, "d2", 10))
    ),
    # both leaders went on from batch 2, which both had finished
    "epoch order": lambda e: replace(
        e, runs=(*e.runs, replace(e.runs[3], began=9.0, ended=9.9, driver="d1 7", epoch=1))
    ),
    "shown early": lambda e: replace(e, seen=(*e.seen[:3], shown(7.5, 2, "d2", 10))),
    "job order": lambda e: with_run(e, 2, replace(e.runs[2], ended=7.5)),
    "commit": lambda e: replace(e, committed={SAFE: 11}),
    "process": lambda e: replace(e, processes=({**e.processes[0], "traceback": "KeyError: 'x'"},)),
    "tasks": lambda e: replace(e, task_hosts=frozenset({"w1"})),
    "other partition": lambda e: with_run(e, 0, replace(e.runs[0], rows=(*e.runs[0].rows, row("other", 0, "x")))),
}


def test_run_without_violations_has_no_finding() -> None:
    """A rerun with the same rows, a second leader, and a loss of Kafka that the audit announces are no violations."""
    assert checker.check(good()) == []


@pytest.mark.parametrize("rule", PLANTED)
def test_planted_violation_is_found(rule: str) -> None:
    assert rule in {finding.rule for finding in checker.check(PLANTED[rule](good()))}


@pytest.mark.parametrize("missing", [False, True])
def test_overlapping_ranges_of_two_incarnations_in_one_batch_are_counted_together(missing: bool) -> None:
    """Kafka cut its log back while the batch was not allocated yet."""
    e = with_batch(good(), 1, batch(2, ("safe", 1, 5, 8), ("risky", 1, 0, 6), ("risky", 2, 4, 5)))
    e = with_batch(e, 2, batch(3, ("safe", 1, 8, 10)))
    both = (*e.runs[1].rows, *rows("risky", 4, 5, "w"))
    for number in (1, 2):
        e = with_run(e, number, replace(e.runs[number], rows=both[missing:]))
    e = with_run(e, 3, replace(e.runs[3], rows=rows("safe", 8, 10)))
    assert {finding.rule for finding in checker.check(e)} == ({"rows", "missing"} if missing else set())


def test_process_that_no_supervisor_would_start_again_is_found() -> None:
    """Its settings were right a moment before."""
    e = good()
    ended = [replace(e, processes=({**e.processes[0], "code": code},)) for code in (1, 2, 3)]
    assert [[finding.rule for finding in checker.check(one)] for one in ended] == [[], ["process"], []]


@pytest.mark.parametrize(("ran", "finds"), [(("w1", "w2"), False), (("w1",), True), (("w1", "w2", "d1"), True)])
def test_tasks_run_on_each_host_of_a_spark_worker_and_nowhere_else(ran: tuple[str, ...], finds: bool) -> None:
    e = replace(good(), task_hosts=frozenset({"w1", "w2"}))
    e = with_run(with_run(e, 0, replace(e.runs[0], task_hosts=ran[:1])), 1, replace(e.runs[1], task_hosts=ran[1:]))
    assert [finding.rule for finding in checker.check(e)] == ["tasks"] * finds


def test_two_drivers_that_lead_in_one_epoch_are_found() -> None:
    seen = (shown(2.5, 1, "d1", 5), shown(2.5, 1, "d2", 5))
    assert [finding.rule for finding in checker.check(replace(good(), seen=seen))] == ["leadership", "driver"]


def test_each_violation_of_leadership_is_found_by_its_rule_alone() -> None:
    """No other rule would notice what the rules about effects find, except the order of jobs."""
    for rule in ("driver", "unknown batch", "epoch order", "shown early"):
        assert {finding.rule for finding in checker.check(PLANTED[rule](good()))} == {rule}
    assert {finding.rule for finding in checker.check(PLANTED["outdated completion"](good()))} == {
        "outdated completion", "job order"
    }  # fmt: skip


def test_fenced_driver_may_begin_the_batch_that_it_had_chosen() -> None:
    """It was suspended before its job began: by then the next driver has completed the batch, and has begun the next one."""
    e = good()
    late = replace(e.runs[1], began=7.5)
    assert checker.check(with_run(e, 1, late)) == []


def test_driver_that_is_killed_in_a_batch_leaves_it_to_the_next_one() -> None:
    """Its run has no file. The epoch before it may have finished the batch too, without completing it."""
    e = good()
    third = replace(e.runs[2], began=6.5, ended=6.8, driver="d1 9", epoch=3)
    assert checker.check(replace(
        e, runs=(*e.runs[:2], third, replace(e.runs[3], driver="d1 9", epoch=3)),
        seen=(*e.seen[:2], shown(6.9, 3, "d1", 8), shown(8.5, 3, "d1", 10)),
    )) == []  # fmt: skip


def test_records_of_a_new_incarnation_are_all_in_a_batch() -> None:
    """After an unclean election, records from the start of the new incarnation on must be taken in."""
    e = good()
    held = {**e.kafka, RISKY: Log({**e.kafka[RISKY], 5: "wrisky5"})}
    assert {finding.rule for finding in checker.check(replace(e, kafka=held))} == {"missing"}


def test_record_that_kafka_itself_has_twice_is_in_two_places() -> None:
    """The producer is not idempotent: it repeats a request whose broker ended before its answer."""
    e = good()
    again = replace(e.runs[3], rows=(*e.runs[3].rows, row("safe", 10, "vsafe9")))
    held = {**e.kafka, SAFE: Log({**e.kafka[SAFE], 10: "vsafe9"})}
    assert "twice" not in {finding.rule for finding in checker.check(replace(with_run(e, 3, again), kafka=held))}
    assert "twice" in {finding.rule for finding in checker.check(with_run(e, 3, again))}


def test_record_that_kafka_had_twice_and_lost_is_in_two_places() -> None:
    """Both copies are at or above the start of the new incarnation, so the audit announces their loss."""
    e = good()
    assert "twice" not in {finding.rule for finding in checker.check(with_copy(e, 4, 5))}
    silent = with_audit(with_copy(e, 4, 5), lives=e.audit["lives"][:2])
    assert "twice" in {finding.rule for finding in checker.check(silent)}


def with_copy(e: Evidence, first: int, second: int) -> Evidence:
    """In the risky partition, the value at offset ``first`` is also at ``second``."""
    copy = row("risky", second, f"vrisky{first}")
    changed = [copy if line.startswith(f"risky\t0\t{second}\t") else line for line in e.runs[1].rows]
    return with_run(with_run(e, 1, replace(e.runs[1], rows=changed)), 2, replace(e.runs[2], rows=changed))


def test_every_rule_has_a_planted_violation() -> None:
    tree = ast.parse(Path(checker.__file__).read_text())
    rules = {
        call.args[0].value
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id == "Finding"
        and isinstance(call.args[0], ast.Constant)
    }
    assert rules == PLANTED.keys()


def test_checker_imports_nothing_of_the_product() -> None:
    tree = ast.parse(Path(checker.__file__).read_text())
    names = {
        name.split(".")[0]
        for node in ast.walk(tree)
        for name in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
    }
    assert names <= {*sys.stdlib_module_names, "confluent_kafka"}
    # nor by a name that is computed, nor by a command
    assert not names & {"importlib", "pkgutil", "runpy", "subprocess"}
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not called & {"__import__", "eval", "exec"}


def test_files_of_a_run_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "1.run"
    path.write_text(
        '{"id": 7, "rerun": false, "driver": "d1 12", "epoch": 3, "began": 1.5, "ended": 2.5, "task_hosts": ["w1"]}\n'
        "safe\t0\t3\tv3\n"
    )
    run = checker.read_run(path)
    assert run == JobRun(7, Lines(path, 1), 1.5, 2.5, "d1 12", 3, ("w1",))
    assert [list(run.rows) for _ in range(2)] == [["safe\t0\t3\tv3\n"]] * 2


def of_partition_1(e: Evidence) -> Evidence:
    """Batch 1 also has records of the second partition of the topic."""
    lines = [line.replace("safe\t0\t", "safe\t1\t") for line in rows("safe", 0, 3, "second")]
    place = ("safe", 1)
    one = batch(1, ("safe", 1, 0, 5))
    second = {"topic": "safe", "partition": 1, "life": 1, "from": 0, "until": 3, "records": 3}
    e = with_batch(e, 0, {**one, "ranges": [*one["ranges"], second], "records": 8})
    e = with_run(e, 0, replace(e.runs[0], rows=(*e.runs[0].rows, *lines)))
    lives = [*e.audit["lives"], {**incarnation("safe", 1, 0, 3), "partition": 1}]
    return replace(
        with_audit(e, lives=lives), kafka={**e.kafka, place: log(place, *lines)}, ends={**e.ends, place: 3},
        acked=(*e.acked, *lines),
    )  # fmt: skip


def test_partitions_of_a_topic_are_checked_apart() -> None:
    e = of_partition_1(good())
    assert checker.check(e) == []
    lines = [*e.runs[0].rows]
    assert {finding.rule for finding in checker.check(with_run(e, 0, replace(e.runs[0], rows=lines[:-1])))} == {
        "rows", "missing"
    }  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        lambda e: replace(e, acked=(*e.acked, row("other", 0, "x"))),
        lambda e: replace(e, acked=(*e.acked, "saf\n")),
        lambda e: with_batch(e, 0, batch(1, ("safe", 1, 0, 5), ("other", 1, 0, 0))),
        lambda e: with_audit(e, lives=[*e.audit["lives"], incarnation("other", 1, 0, 0)]),
    ],
    ids=["acknowledged", "half a line", "range", "audit"],
)
def test_partition_outside_the_topics_is_found(change: Callable[[Evidence], Evidence]) -> None:
    assert [finding.rule for finding in checker.check(change(good()))][-1:] == ["other partition"]


@pytest.mark.parametrize("run_number", [1, 2, 3])
@pytest.mark.parametrize(
    "change", [lambda lines: lines[:-1], lambda lines: (*lines, lines[-1]), lambda lines: lines[::-1]]
)
def test_each_run_of_a_batch_is_compared(run_number: int, change: Callable[[Any], Any]) -> None:
    """Also with a run that is longer or shorter. Batch 2 ran three times."""
    e = good()
    e = replace(e, runs=(*e.runs[:3], e.runs[2], e.runs[3]))
    assert checker.check(e) == []
    changed = with_run(e, run_number, replace(e.runs[run_number], rows=change(tuple(e.runs[run_number].rows))))
    assert "rerun" in {finding.rule for finding in checker.check(changed)}


def test_row_that_a_batch_has_twice_is_found() -> None:
    e = with_runs(good(), 3, lambda lines: (lines[0], *lines))
    assert {finding.rule for finding in checker.check(e)} == {"rows", "twice"}


def test_gap_that_the_audit_names_excuses_its_records_alone() -> None:
    """Records of a gap are in no batch, and the next batch begins after it."""
    e = with_batch(good(), 2, batch(3, ("safe", 1, 9, 10), ("risky", 2, 4, 5)))
    e = with_runs(e, 3, lambda lines: lines[1:])
    lives = [{**e.audit["lives"][0], "gaps": [{"from_offset": 8, "until_offset": 9}]}, *e.audit["lives"][1:]]
    assert checker.check(with_audit(e, lives=lives)) == []
    assert {finding.rule for finding in checker.check(e)} == {"positions", "missing"}


def test_lost_rows_of_a_batch_are_missing_in_kafka_terms_alone() -> None:
    """The journal says that they are lost; Kafka still has them, so they are missing."""
    e = with_runs(good(), 3, lambda lines: lines[1:])
    assert {finding.rule for finding in checker.check(e)} == {"rows", "missing"}
    e = with_batch(e, 2, {**e.batches[2], "lost": ["safe/0[8, 9)"]})
    assert {finding.rule for finding in checker.check(e)} == {"missing"}


def test_skipped_batch_needs_no_run() -> None:
    e = good()
    e = with_batch(replace(e, runs=e.runs[:3]), 2, {**e.batches[2], "skipped": "on purpose"})
    assert {finding.rule for finding in checker.check(e)} == {"missing"}


def with_runs(e: Evidence, number: int, change: Callable[[tuple[str, ...]], Iterable[str]]) -> Evidence:
    return with_run(e, number, replace(e.runs[number], rows=change(tuple(e.runs[number].rows))))


def test_second_cut_that_the_audit_does_not_show_is_found() -> None:
    """Kafka lost offset 3 after the incarnation that begins at 4: batch 2 has the lost record, and no batch has the new one."""
    e = good()
    held = log(RISKY, *rows("risky", 0, 3), row("risky", 3, "new"), *rows("risky", 4, 5, "w"))
    assert {finding.rule for finding in checker.check(replace(e, kafka={**e.kafka, RISKY: held}))} == {
        "silent loss",
        "missing",
    }


def test_loss_in_the_newest_incarnation_is_not_announced_by_its_own_start() -> None:
    """Kafka lost offset 4 a second time: batch 3 has it in the incarnation that begins there."""
    e = good()
    held = log(RISKY, *rows("risky", 0, 4), row("risky", 4, "new"))
    found = {finding.rule for finding in checker.check(replace(e, kafka={**e.kafka, RISKY: held}))}
    assert found == {"silent loss", "missing"}


def test_cut_at_an_unknown_offset_is_announced_by_an_incarnation_at_the_last_record() -> None:
    """The leader before the last one led again: the log has other records from any offset below the position on."""
    e = good()
    held = log(
        RISKY,
        *rows("risky", 0, 2),
        row("risky", 2, "old2"),
        row("risky", 3, "old3"),
        row("risky", 4, "old4"),
        *rows("risky", 5, 6, "w"),
    )
    e = replace(e, kafka={**e.kafka, RISKY: held}, ends={**e.ends, RISKY: 6})
    e = with_batch(e, 2, batch(3, ("safe", 1, 8, 10), ("risky", 2, 5, 6)))
    e = with_runs(e, 3, lambda lines: (*lines[:2], *rows("risky", 5, 6, "w")))
    announced = with_audit(e, lives=[*e.audit["lives"][:2], incarnation("risky", 2, 5, 6)])
    assert checker.check(announced) == []
    silent = with_audit(
        announced,
        lives=[*e.audit["lives"][:1], {**incarnation("risky", 1, 0, 6), "until": 7}, incarnation("risky", 2, 5, 6)],
    )
    assert {finding.rule for finding in checker.check(silent)} == {"silent loss", "missing"}


def test_findings_of_a_partition_are_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checker, "_FINDINGS_MAX", 3)
    assert len(checker.check_partition(PLANTED["strange"](good()), SAFE).findings) == 3


def test_numbers_of_a_partition_are_those_of_its_records() -> None:
    """Kafka lost two of the acknowledged records of the risky partition."""
    found = checker.check_partition(good(), RISKY)
    assert (found.held, found.acked, found.lost, found.rows) == (5, 6, 2, 7)


def test_evidence_and_results_can_be_sent_to_other_processes() -> None:
    e = replace(good(), acked=Lines(Path("acked.tsv")))
    assert pickle.loads(pickle.dumps(e)) == e
    assert pickle.loads(pickle.dumps(checker.check_partition(good(), SAFE))) == checker.check_partition(good(), SAFE)


@pytest.mark.parametrize("offset", [0, 4, 8])
def test_row_beside_the_ranges_of_its_batch_is_found(offset: int) -> None:
    """Before, between and after them."""
    e = with_batch(good(), 0, batch(1, ("safe", 1, 1, 4), ("safe", 1, 5, 8)))
    e = with_run(
        e, 0, replace(e.runs[0], rows=(*rows("safe", 1, 4), *rows("safe", 5, 8), *rows("safe", offset, offset + 1)))
    )
    found = [finding.text for finding in checker.check(e) if finding.rule == "rows"]
    assert found == [f"batch 1 gave {SAFE} {offset}, which is in no range"]


def test_rows_of_a_partition_are_those_of_its_lines() -> None:
    lines = ["a\t1\t5\té\n", "a\t11\t6\tx\n", "b\t1\t3\ty\n", "a\t1\t2\t\n"]
    assert list(rows_of(("a", 1), lines)) == [(5, "é"), (2, "")]


def test_log_holds_what_was_added() -> None:
    log = Log({3: "é", 7: "", 8: "x"})
    assert dict(log) == {3: "é", 7: "", 8: "x"}
    assert [log.get(offset) for offset in (2, 4, 9)] == [None] * 3
    with pytest.raises(ValueError, match="offset 8 after 8"):
        log.append(8, "y")


@pytest.mark.parametrize(
    ("offsets", "values", "are"),
    [([7, 8], ["", "x"], True), ([], [], True), ([7], [""], True), ([7, 8], ["", "y"], False), ([7, 9], ["", "x"], False),
     ([7, 8, 9], ["", "x", "y"], False), ([8], ["x"], False)],
)  # fmt: skip
def test_rows_are_the_next_ones_of_the_log(offsets: list[int], values: list[str], are: bool) -> None:
    rows = checker.CompletedRows({}, array("q", offsets), values)
    assert Log({3: "é", 7: "", 8: "x"}).has_from(1, rows) == are
