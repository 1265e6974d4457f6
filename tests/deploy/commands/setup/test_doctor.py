"""``forebay doctor`` and ``forebay config show``: findings, their next steps, and exit codes."""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.commands.setup import validation
from deploy.commands.setup.doctor import brokers, machine, services, stores
from deploy.commands.setup.doctor.findings import PROBLEMS
from deploy.main import main
from forebay import messages as m
from forebay.client import Client
from forebay.process.clock import ManualClock
from forebay.settings.reading.load import load
from wal.storage import open_storage


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("PYTHONPATH", "")
    monkeypatch.delitem(sys.modules, "jobs", raising=False)
    monkeypatch.setattr(validation, "BROKER_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(brokers, "BROKER_TIMEOUT_SECONDS", 2.0)
    monkeypatch.setattr(services, "_ANSWER_SECONDS", 1.0)
    monkeypatch.setattr(stores, "LARGE_BYTES", 100_000)


def diagnosed(project: Any, capsys: pytest.CaptureFixture[str]) -> tuple[int, dict[str, dict[str, str]]]:
    code = main(["--config", str(project.config), "--json", "doctor"])
    found = json.loads(capsys.readouterr().out)
    for finding in found:
        assert finding["outcome"] not in PROBLEMS or finding["step"], finding
    return code, {finding["name"]: finding for finding in found}


def test_a_machine_without_problems_is_exit_code_0_and_is_left_as_it_was(
    project: Any, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "BROKER_TIMEOUT_SECONDS", 10.0)
    before = sorted(path for path in project.folder.rglob("*") if "__pycache__" not in path.parts)
    code, found = diagnosed(project, capsys)
    assert code == 0, found
    assert sorted(path for path in project.folder.rglob("*") if "__pycache__" not in path.parts) == before
    for name in ("python", "packages", "open files", "configuration", "job", "broker", "topics", "broker 1"):
        assert found[name]["outcome"] == "fine", found[name]
    for name in ("wal: sync", "wal: create-if-absent", "wal: space", "driver: port", "agent: port", "locality"):
        assert found[name]["outcome"] in ("fine", "note"), found[name]
    assert found["driver"]["outcome"] == "note" and "forebay up" in found["driver"]["step"]
    assert "java" not in found  # the jobs of this configuration need none


def test_a_wrong_configuration_is_found_and_the_machine_is_still_checked(
    project: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    project.replace('engine = "local"', 'engine = "locla"')
    code, found = diagnosed(project, capsys)
    assert code == 1
    assert "did you mean" in found["configuration"]["detail"]
    assert found["packages"]["outcome"] == "fine"
    assert "wal: sync" not in found


def test_without_a_configuration_the_machine_is_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("FOREBAY_CONFIG", raising=False)
    if Path("/etc/forebay/forebay.toml").exists():
        pytest.skip("this machine has a configuration of its own")
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "fine        machine · python" in out
    assert "wrong       configuration" in out and "no configuration" in out


def test_an_unreachable_broker_is_a_problem_with_its_next_step_in_the_text(
    project: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--config", str(project.config), "doctor"]) == 1
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("unreachable kafka · broker: ")]
    assert lines[at + 1].startswith("            → start the broker")
    assert shown.err.splitlines()[-1].endswith("1 problems, 1 notes")
    assert "\x1b" not in shown.out


def test_another_program_on_a_port_is_a_problem(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        project.replace('"http://127.0.0.1:2"', f'"http://127.0.0.1:{taken.getsockname()[1]}"')
        taken.settimeout(10.0)
        code, found = diagnosed(project, capsys)
    assert code == 1
    assert found["agent: port"]["outcome"] == "wrong"
    assert "another program" in found["agent: port"]["detail"]


def test_ports_of_other_machines_are_left_to_them(project: Any, capsys: pytest.CaptureFixture[str]) -> None:
    project.replace('"http://127.0.0.1:2"', '"http://192.0.2.1:7081"')
    _, found = diagnosed(project, capsys)
    assert found["agent: port"]["outcome"] == "note" and "another machine" in found["agent: port"]["detail"]


def test_a_running_driver_with_another_clock_and_a_problem_is_found(
    project: Any, make_status: Callable[..., m.StatusAnswer], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    problem = m.Problem(kind="job", cause="batch 7 failed", command="forebay batch retry 7")
    overview = m.OverviewAnswer(
        time_ms=clock.wall_ms() - 60_000, stream="flights", release="0.1.0", state="running", problems=(problem,),
        problem_count=1,
    )  # fmt: skip
    status = make_status(tiers={"local": 1, "agent": 9})

    class Stubbed(Client):
        def overview(self) -> m.OverviewAnswer:
            return overview

        def status(self) -> m.StatusAnswer:
            return status

    monkeypatch.setattr(services, "observer", lambda *_, **__: Stubbed("http://127.0.0.1:1"))
    found = {one.name: one for one in services.check_services(load(project.config), clock)}
    assert found["driver: clock"].outcome == "wrong"
    assert found["driver: clock"].detail == "the driver's clock is 60.0 s behind this machine's"
    assert found["driver"].outcome == "wrong" and "batch 7 failed" in found["driver"].detail
    assert found["locality"].outcome == "note" and "10 % of 10 ranges" in found["locality"].detail
    assert "agent.host" in found["locality"].step


def test_a_token_file_without_an_observers_token_is_a_problem(project: Any, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("agent a-token-of-an-agent\n")
    project.config.write_text(project.config.read_text() + f'[security]\ntoken_file = "{tokens}"\n')
    found = {one.name: one for one in services.check_services(load(project.config), ManualClock())}
    assert found["driver"].outcome == "wrong" and "forebay token new operator" in found["driver"].detail
    tokens.write_text("reader a-token-of-a-reader\n")
    (driver,) = [one for one in services.check_services(load(project.config), ManualClock()) if one.name == "driver"]
    assert driver.outcome == "note", "a reader's token is enough, and no driver runs"


def test_the_time_of_a_remote_store_is_measured_and_its_objects_are_deleted(project: Any) -> None:
    project.replace(f"file://{project.folder}/wal", "memory://doctor?objects")
    found = {one.name: one for one in stores.check_stores(load(project.config), ManualClock())}
    assert found["wal: latency"].outcome == "fine" and "create-if-absent holds" in found["wal: latency"].detail
    assert open_storage("memory://doctor?objects").list("") == []


def test_a_full_disk_a_slow_disk_and_a_store_without_exclusive_creation_are_found(
    project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    project.replace("[wal]", '[wal]\nreserve = "900TB"')
    project.replace("[agent]", '[agent]\nquota = "900TB"')
    settings = load(project.config)
    clock = ManualClock()
    sync = os.fdatasync

    def slow(descriptor: int) -> None:
        sync(descriptor)
        clock.advance(0.2)

    monkeypatch.setattr(os, "fdatasync", slow)
    monkeypatch.setattr(os, "link", shutil.copyfile)
    found = {one.name: one for one in stores.check_stores(settings, clock)}
    assert found["wal: space"].outcome == "wrong" and "wal.reserve" in found["wal: space"].step
    assert found["blocks: space"].outcome == "note" and "agent.quota" in found["blocks: space"].step
    assert found["wal: sync"].outcome == "note" and "200.0 ms" in found["wal: sync"].detail
    assert found["wal: create-if-absent"].outcome == "wrong"
    assert "journal: sync" not in found  # on the same disk


@pytest.mark.parametrize(
    ("installed", "bounds", "fine"),
    [
        ("4.3.0", ">=4.0,<4.4", True), ("4.4", ">=4.0,<4.4", False), ("3.9", ">=4.0", False), ("4", ">=4.0.0", True),
        ("2.13.10", ">=2.13.2", True), ("2.2.3+cpu", ">=2.2,<3", True), ("3.0.0rc1", "<3", False), ("1.2", "", True),
        ("1.2", "!=1.2.0", False), ("1.2", "==1.2", True), ("1.3", "<=1.2.9", False), ("1.3", ">1.3", False),
    ],
)  # fmt: skip
def test_releases_are_compared_with_their_bounds(installed: str, bounds: str, fine: bool) -> None:
    assert machine.fits(installed, bounds) is fine


def test_a_missing_package_and_one_of_a_wrong_release_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = ["no-such-package>=1", "msgspec<0.1", "rich>=13", "never; extra == 'x'"]
    monkeypatch.setattr(machine, "requires", lambda _: wanted)
    found = list(machine.check_packages())
    assert [one.outcome for one in found] == ["wrong", "wrong"]
    assert [one.step for one in found] == ["pip install 'no-such-package>=1'", "pip install 'msgspec<0.1'"]
    monkeypatch.setattr(machine, "requires", lambda _: wanted[2:])
    assert [one.outcome for one in machine.check_packages()] == ["fine"]


def test_config_show_prints_values_and_origins(
    project: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOREBAY__DRIVER__BATCH_INTERVAL", "3s")
    assert main(["--config", str(project.config), "config", "show", "--json", "driver.batch_interval"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert (shown["value"], shown["origin"]) == ("3s", "FOREBAY__DRIVER__BATCH_INTERVAL")
    assert main(["--config", str(project.config), "config", "show", "driver", "--set"]) == 0
    text = capsys.readouterr().out
    assert "driver.engine" in text and str(project.config) in text and "stop_timeout" not in text
    assert main(["--config", str(project.config), "config", "show", "driver.batch_intervall"]) == 2
    assert "did you mean driver.batch_interval?" in capsys.readouterr().err
