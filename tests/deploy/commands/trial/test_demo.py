"""The demo: its parts, and a whole run with a mock broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from deploy.commands.trial.demo_check import TOPIC, Expected, differences
from deploy.commands.trial.demo_parts import write_project
from deploy.commands.trial.demo_run import due_kills
from deploy.examples.flights import jobs
from deploy.main import main
from forebay.settings.reading.load import load
from recovery.audit import AuditedGap, AuditedIncarnation, AuditReport, Finding

ROOT = Path(__file__).parents[4]


@pytest.mark.parametrize("path", sorted((ROOT / "deploy" / "examples").rglob("*.toml")), ids=lambda path: path.name)
def test_every_example_of_a_configuration_can_be_loaded(path: Path) -> None:
    assert load(path, {}).driver.job == "jobs:process"


def test_the_example_with_every_key_names_every_default() -> None:
    """What the example shows as a default is the default."""
    from forebay.settings.schema import KafkaSettings, ReceiverSettings, WalSettings

    shown = load(ROOT / "deploy/examples/one-machine.toml", {})
    assert shown.wal == WalSettings(url=shown.wal.url)
    assert shown.kafka == KafkaSettings(topics=shown.kafka.topics, options=shown.kafka.options)
    assert shown.receiver == ReceiverSettings(count=2)


def test_configuration_of_the_demo_is_valid(tmp_path: Path) -> None:
    settings = load(write_project(tmp_path, "127.0.0.1:9"), {})
    assert settings.kafka.topics == (TOPIC,)
    assert (tmp_path / "jobs.py").read_text() == Path(jobs.__file__).read_text()


def test_the_results_of_a_batch_replace_those_of_an_earlier_run(tmp_path: Path) -> None:
    jobs.write(tmp_path, 1, {"AA": [3, 2, 10.0]})
    jobs.write(tmp_path, 2, {"AA": [1, 1, 5.0], "B6": [1, 0, 0.0]})
    jobs.write(tmp_path, 1, {"AA": [3, 2, 10.0]})
    assert jobs.totals(tmp_path) == {"AA": (4, 3, 15.0), "B6": (1, 0, 0.0)}


@pytest.mark.parametrize(
    ("taken_in", "done", "due"),
    [
        (0, 0, []),
        (19, 0, []),
        (20, 0, ["receiver-1"]),
        (49, 1, []),
        (50, 1, ["driver"]),
        (100, 0, ["receiver-1", "driver"]),
        (100, 2, []),
    ],
)
def test_kills_are_due_at_their_shares(taken_in: int, done: int, due: list[str]) -> None:
    assert due_kills(taken_in, 100, done) == due


def test_the_expected_sums_are_taken_from_the_records_themselves() -> None:
    expected = Expected()
    records = [
        (None, b'{"carrier":"AA","arr_delay":-5.0}'),
        (b"k", b'{"carrier":"AA","arr_delay":null,"x":1}'),
        (b"k", b'{"carrier":"B6","arr_delay":2}'),
    ]
    assert list(expected.counting(records)) == records
    assert expected.sums == {"AA": (2, 1, -5.0), "B6": (1, 1, 2.0)}


def report(*findings: Finding, **changes: Any) -> AuditReport:
    incarnation: dict[str, Any] = {
        "topic": TOPIC, "partition": 0, "number": 1, "cause": "", "start": 0, "until": 3, "completed_until": 3,
        "batches": 1, "records": 3, "waiting": 0, "skipped": 0, "gaps": (), "accepted_losses": (), "duplicates": 0,
        "missing": 0,
    }  # fmt: skip
    return AuditReport(
        stream="flights",
        timeline=1,
        batches_completed=1,
        batches_unfinished=0,
        records_completed=3,
        incarnations=(AuditedIncarnation(**{**incarnation, **changes}),),
        findings=findings,
    )


SUMS = {"AA": (3, 2, 10.0)}


@pytest.mark.parametrize(
    ("found", "audited", "loaded", "part"),
    [
        ({"AA": (2, 2, 10.0)}, report(), {0: 3}, "carrier AA"),
        ({"AA": (3, 2, 10.5)}, report(), {0: 3}, "carrier AA"),
        ({}, report(), {0: 3}, "carrier AA"),
        ({**SUMS, "XX": (1, 1, 1.0)}, report(), {0: 3}, "carrier XX"),
        (SUMS, report(), {0: 4}, "flights/0: loaded up to 4, completed up to [3]"),
        (SUMS, report(), {0: 3, 1: 1}, "flights/1: loaded up to 1, completed up to []"),
        (
            SUMS,
            report(Finding("missing", "flights", 0, 1, 1, 2, ())),
            {0: 3},
            "flights/0[1, 2) life 1 is in no batch",
        ),
        (SUMS, report(gaps=(AuditedGap(1, 2, "x"),)), {0: 3}, "1 gaps"),
        (SUMS, report(waiting=1), {0: 3}, "1 records in no batch yet"),
    ],
)
def test_every_difference_is_found(found: Any, audited: AuditReport, loaded: dict[int, int], part: str) -> None:
    assert differences(SUMS, SUMS, report(), {0: 3}) == []
    (message,) = differences(SUMS, found, audited, loaded)
    assert part in message


def test_a_folder_that_holds_something_is_not_taken(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert main(["demo", "--keep", str(tmp_path)]) == 2
    assert "is not empty" in capsys.readouterr().err


def test_the_broker_command_prints_its_address_and_ends_with_0_at_sigterm() -> None:
    command = [sys.executable, "-m", "deploy.main", "broker", "--kind", "mock", "--topic", "flights:4"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        host, _, port = process.stdout.readline().strip().partition(":")
        process.terminate()
        assert process.wait(90) == 0
    assert host == "127.0.0.1"
    assert port.isdigit()


def test_the_mock_broker_refuses_topics_that_it_can_not_make(capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-m", "deploy.main", "broker", "--kind", "mock", "--topic", "flights:3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr


@pytest.mark.spark
@pytest.mark.timeout(800)  # under a minute alone; the machine may be busy with other tests
def test_the_whole_demo_ends_with_a_clean_audit_and_the_right_table(tmp_path: Path) -> None:
    """INV-1 to INV-3, INV-5: a receiver and the driver are killed while data flows, and each record counts once."""
    folder = tmp_path / "demo"
    command = [sys.executable, "-m", "deploy.main", "demo", "--json", "--keep", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=750, check=False)
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout)
    assert outcome["records"] == 336_776
    assert outcome["differences"] == []
    assert outcome["kills"] == ["receiver-1", "driver"]
    assert done.stderr.count("was killed by SIGKILL") == 2
    assert sum(incarnation["records"] for incarnation in outcome["audit"]["lives"]) == 336_776
    assert {(incarnation["duplicates"], incarnation["missing"]) for incarnation in outcome["audit"]["lives"]} == {
        (0, 0)
    }
