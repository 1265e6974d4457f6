"""``forebay install``: the files that it puts on a host, the files that it keeps, and the unit files."""

from __future__ import annotations

import configparser
import json
import os
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

from deploy.commands.setup import install as command
from deploy.commands.setup.install import Host, Step, _uninstalled
from deploy.commands.setup.installation import (
    EXAMPLE,
    ROLES,
    UNITS,
    Installation,
    Role,
    folders_outside,
    new_tokens,
    plan_installation,
    unit,
)
from deploy.main import main
from driver.decision_loop.stopping import GRACE_SECONDS
from driver.service import CLOSE_SECONDS as DRIVER_CLOSE_SECONDS
from executor_agent.main import CLOSE_SECONDS as AGENT_CLOSE_SECONDS
from executor_agent.main import STOP_MARGIN_SECONDS
from forebay.model.errors import SettingsError, StoreError, UsageError
from forebay.security import roles as security
from forebay.settings.reading.load import from_values, load
from receiver.service import CLOSE_SECONDS as RECEIVER_CLOSE_SECONDS
from tests.conftest import missing

PROGRAM = "/opt/forebay/bin/forebay"
UNIT_PATHS = {role: f"etc/systemd/system/{name}" for role, name in UNITS.items()}
#: better is less; the unit files must not be worse
EXPOSURE_MAX = 2.0


def run(prefix: Path, *arguments: str) -> int:
    return main(["install", "--prefix", str(prefix), "--program", PROGRAM, *arguments])


def tree(prefix: Path) -> dict[str, tuple[int, str]]:
    """Every path below ``prefix`` with its mode and content; of tokens only how many."""
    found = {}
    for path in sorted(prefix.rglob("*")):
        text = path.read_text() if path.is_file() else ""
        if path.name == "tokens":
            text = str(len(text.splitlines()))
        found[str(path.relative_to(prefix))] = (stat.S_IMODE(path.stat().st_mode), text)
    return found


def outcomes(prefix: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, str]:
    capsys.readouterr()
    assert run(prefix, "--json", *arguments) == 0
    return {step["what"]: step["outcome"] for step in json.loads(capsys.readouterr().out)}


# ---- the host --------------------------------------------------------------------------------------------------------


def test_install_changes_nothing_without_apply(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(tmp_path) == 0
    assert list(tmp_path.iterdir()) == []
    out, err = capsys.readouterr()
    first, *steps = out.splitlines()
    assert first == f"what would be done below {tmp_path}:"
    assert steps and all(step.startswith("would ") for step in steps)
    assert err == f"nothing was changed below {tmp_path}: add --apply to do it\n"
    assert run(tmp_path, "--apply") == 0
    first, *steps = capsys.readouterr().out.splitlines()
    assert first == f"what is done below {tmp_path}:"
    assert steps and not any(step.startswith("would ") for step in steps)


@pytest.mark.parametrize("umask", [0o000, 0o077])
def test_folders_and_secrets_are_for_the_service_alone_whatever_the_umask(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], umask: int
) -> None:
    before = os.umask(umask)
    try:
        assert run(tmp_path, "--yes") == 0
    finally:
        os.umask(before)
    found = tree(tmp_path)
    assert {found[path][0] for path in UNIT_PATHS.values()} == {0o644}
    for folder in ("etc/forebay", "var/lib/forebay"):
        assert found[folder][0] == 0o700
    for file in ("etc/forebay/forebay.toml", "etc/forebay/tokens"):
        assert found[file][0] == 0o600
    assert all(found[path][1] for path in UNIT_PATHS.values())
    assert load(tmp_path / "etc/forebay/forebay.toml", {}).security.token_file == "/etc/forebay/tokens"
    message = "".join(capsys.readouterr())
    lines = [line.split() for line in (tmp_path / "etc/forebay/tokens").read_text().splitlines() if line[0] != "#"]
    assert [role for role, _ in lines] == list(security.ROLES)
    for _, token in lines:
        assert len(token) >= 40 and token not in message
    assert len({token for _, token in lines}) == len(security.ROLES)


def test_a_second_call_changes_nothing_and_an_upgrade_writes_the_units_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--yes") == 0
    configuration = tmp_path / "etc/forebay/forebay.toml"
    configuration.write_text(configuration.read_text().replace('stream = "orders"', 'stream = "flights"'))
    before = tree(tmp_path)
    again = outcomes(tmp_path, capsys, "--yes")
    assert set(again.values()) <= {"as it is", "kept", "run", "left"} and tree(tmp_path) == before
    (tmp_path / UNIT_PATHS["driver"]).write_text("[Service]\nExecStart=/of/an/older/release\n")
    upgraded = outcomes(tmp_path, capsys, "--yes")
    assert [what for what, outcome in upgraded.items() if outcome == "replaced"] == [f"/{UNIT_PATHS['driver']}"]
    assert tree(tmp_path) == before


def test_folders_that_others_could_read_are_closed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc/forebay").mkdir(parents=True)
    (tmp_path / "etc/forebay").chmod(0o755)
    assert outcomes(tmp_path, capsys, "--yes")["/etc/forebay"] == "replaced"
    assert stat.S_IMODE((tmp_path / "etc/forebay").stat().st_mode) == 0o700


def test_a_host_gets_the_units_of_its_roles_and_no_tokens_of_another_hosts_driver(tmp_path: Path) -> None:
    assert run(tmp_path, "--role", "agent", "--role", "receiver", "--yes") == 0
    assert not (tmp_path / UNIT_PATHS["driver"]).exists()
    assert (tmp_path / UNIT_PATHS["agent"]).exists() and (tmp_path / UNIT_PATHS["receiver"]).exists()
    assert all(line.startswith("#") for line in (tmp_path / "etc/forebay/tokens").read_text().splitlines())


def test_configuration_and_tokens_may_be_given(tmp_path: Path) -> None:
    given, tokens = tmp_path / "given.toml", tmp_path / "given-tokens"
    given.write_text(EXAMPLE.read_text().replace("file:///var/lib/forebay/wal", "file:///data/wal"))
    tokens.write_text("agent 0123456789abcdef\n")
    host = tmp_path / "host"
    assert run(host, "--configuration", str(given), "--tokens", str(tokens), "--yes") == 0
    assert (host / "etc/forebay/forebay.toml").read_text() == given.read_text()
    assert (host / "etc/forebay/tokens").read_text() == tokens.read_text()
    assert stat.S_IMODE((host / "etc/forebay/tokens").stat().st_mode) == 0o600
    for path in UNIT_PATHS.values():
        assert "\nReadWritePaths=-/data/wal\n" in (host / path).read_text()
    assert (host / "data/wal").is_dir()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it has no token"),
        (b"oops\n", "4 characters"),
        (b"redaer 0123456789abcdef-secret\n", "line 1: begins with no role"),
        ("operator 0123456789abcdef-secr\u00e9t\n".encode(), "not ASCII text"),
    ],
)
def test_tokens_that_services_could_not_read_are_refused_before_anything_is_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, message: str
) -> None:
    given, host = tmp_path / "given", tmp_path / "host"
    given.write_bytes(content)
    assert run(host, "--tokens", str(given), "--yes") == SettingsError.exit_code
    said = capsys.readouterr().err
    assert message in said and str(given) in said and "Traceback" not in said and "0123456789" not in said
    assert not host.exists()


def test_a_folder_of_any_name_is_one_word_of_a_unit(tmp_path: Path) -> None:
    """As systemd reads it: quotes, its own specifiers and escapes."""
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze is not here: apt-get install systemd")
    names = ("/data/my wal", "/data/100%", "/data/it's", '/data/"quoted"', "/data/back\\slash")
    text = unit("agent", writable=names)
    for word in (
        '"-/data/my wal"', "-/data/100%%", "\"-/data/it's\"", '"-/data/\\"quoted\\""', '"-/data/back\\\\slash"',
    ):  # fmt: skip
        assert f"\nReadWritePaths={word}\n" in text
    (tmp_path / "forebay-agent.service").write_text(text.replace(PROGRAM, "/bin/true"))
    verified = subprocess.run(
        ["systemd-analyze", "--no-pager", "verify", str(tmp_path / "forebay-agent.service")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "ReadWritePaths" not in verified.stderr, verified.stderr
    with pytest.raises(SettingsError, match="unprintable characters"):
        unit("agent", writable=["/data/two\nlines"])


def test_folders_in_the_services_own_are_not_named_again() -> None:
    assert folders_outside(load(EXAMPLE, {})) == []


def test_folders_of_a_configuration_with_one_data_folder_are_writable_for_the_services() -> None:
    short = {"stream": "flights", "kafka": {"topics": ["t"], "bootstrap.servers": "b:1"}}
    assert folders_outside(from_values({**short, "data": "/var/lib/forebay"})) == []
    outside = ["/srv/f/wal", "/srv/f/journal", "/srv/f/blocks"]
    assert folders_outside(from_values({**short, "data": "/srv/f"})) == outside


def test_a_configuration_that_this_release_cant_read_stops_it_before_anything_is_changed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--yes") == 0
    (tmp_path / "etc/forebay/forebay.toml").write_text("stream = 1\n")
    (tmp_path / UNIT_PATHS["driver"]).write_text("an older release's")
    before = tree(tmp_path)
    capsys.readouterr()
    assert run(tmp_path, "--yes") == SettingsError.exit_code
    assert "forebay.toml" in capsys.readouterr().err
    assert tree(tmp_path) == before
    assert run(tmp_path, "--uninstall", "--yes") == 0  # which needs no configuration


def test_uninstalling_keeps_what_people_and_services_wrote_and_says_where(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path, "--yes") == 0
    (tmp_path / "var/lib/forebay/wal").mkdir()
    done = outcomes(tmp_path, capsys, "--uninstall", "--yes")
    assert done["/var/lib/forebay"] == done["/etc/forebay"] == "kept"
    left = [path for path in tree(tmp_path) if "forebay/" in path]
    assert left == ["etc/forebay/forebay.toml", "etc/forebay/tokens", "var/lib/forebay/wal"]
    assert not list((tmp_path / "etc/systemd/system").iterdir())
    assert outcomes(tmp_path, capsys, "--uninstall", "--yes").keys() == {"/etc/forebay", "/var/lib/forebay"}


def test_uninstalling_one_role_leaves_the_others_what_they_need(tmp_path: Path) -> None:
    assert run(tmp_path, "--yes") == 0
    assert run(tmp_path, "--role", "receiver", "--uninstall", "--yes") == 0
    assert not (tmp_path / UNIT_PATHS["receiver"]).exists()
    assert (tmp_path / "etc/sysusers.d/forebay.conf").exists() and (tmp_path / UNIT_PATHS["driver"]).exists()


def test_uninstalling_asks_systemd_only_for_units_that_are_there(tmp_path: Path) -> None:
    """It refuses a call that names another one: on a host with one role, or after an uninstall that was cut off."""
    asked: list[tuple[str, ...]] = []

    class Booted(Host):
        def run(self, *command: str) -> Step:
            asked.append(command)
            return Step("run", " ".join(command))

    assert run(tmp_path, "--role", "receiver", "--role", "agent", "--yes") == 0
    wanted = plan_installation(ROLES, PROGRAM, load(EXAMPLE, {}), "", "")
    assert list(_uninstalled(Booted(tmp_path, True), wanted, ROLES, True))
    assert asked == [
        ("systemctl", "disable", "forebay-agent.service", "forebay-receiver@.service"),
        ("systemctl", "stop", "forebay-receiver@*.service"),
        ("systemctl", "stop", "forebay-agent.service"),
        ("systemctl", "daemon-reload"),
    ]


def test_interrupted_installation_is_completed_by_the_next(tmp_path: Path) -> None:
    def made(tokens: str = "operator 0123456789abcdef\n") -> Installation:
        return plan_installation(ROLES, PROGRAM, load(EXAMPLE, {}), EXAMPLE.read_text(), tokens)

    whole = tmp_path / "whole"
    steps = len(list(Host(whole, True).put(made())))
    for cut in range(steps):
        prefix = tmp_path / str(cut)
        cut_off = Host(prefix, True).put(made())
        for _ in range(cut):
            next(cut_off)
        next_unit = next((path for path in UNIT_PATHS.values() if not (prefix / path).exists()), None)
        if next_unit is not None:  # killed within a step
            half_written = (prefix / next_unit).with_name(f".{Path(next_unit).name}.new")
            half_written.parent.mkdir(parents=True, exist_ok=True)
            half_written.write_text("[Unit]\nDescr")
        list(Host(prefix, True).put(made()))
        assert tree(prefix) == tree(whole), cut


def test_unwritable_place_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "etc").write_text("a file, where a folder would have to be")
    assert run(tmp_path, "--yes") == StoreError.exit_code
    output = capsys.readouterr().err
    assert str(tmp_path / "etc") in output and "Traceback" not in output


@pytest.mark.parametrize("program", ["forebay", "/opt/my forebay/bin/forebay", "/opt/%i/forebay"])
def test_a_program_that_a_unit_cant_name_is_refused(tmp_path: Path, program: str) -> None:
    assert main(["install", "--prefix", str(tmp_path), "--program", program, "--yes"]) == UsageError.exit_code
    assert list(tmp_path.iterdir()) == []


def test_a_program_that_the_services_cant_see_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    for name in ("forebay", "python"):
        (tmp_path / "bin" / name).touch()
    monkeypatch.setattr(command, "_HIDDEN", (str(tmp_path),))
    with pytest.raises(UsageError, match="can't see"):
        command._require_visible(str(tmp_path / "bin" / "forebay"))
    monkeypatch.setattr(command, "_HIDDEN", ("/elsewhere",))
    command._require_visible(str(tmp_path / "bin" / "forebay"))


def test_only_root_changes_the_system(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    monkeypatch.setattr(Host, "put", lambda *_: pytest.fail("it went on"))
    assert main(["install", "--yes"]) == UsageError.exit_code
    assert "--prefix" in capsys.readouterr().err


def test_tokens_differ_at_each_call() -> None:
    assert new_tokens(ROLES) != new_tokens(ROLES)


# ---- the units -------------------------------------------------------------------------------------------------------


def directives(role: Role) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(unit(role))
    return parser["Service"]


@pytest.mark.parametrize("role", ROLES)
def test_failure_that_a_restart_can_not_fix_is_not_restarted(role: Role) -> None:
    """INV-4: a fenced service stays down."""
    service = directives(role)
    assert service["RestartPreventExitStatus"].split() == ["2", "4"]
    assert service["Restart"] == "on-failure" and service["Type"] == "notify"


def seconds(text: str) -> float:
    return sum(float(part[:-3]) * 60 if part.endswith("min") else float(part[:-1]) for part in text.split())


def test_a_stop_has_the_time_that_the_defaults_give_it() -> None:
    settings = load(EXAMPLE, {})
    needed = {
        "driver": settings.driver.stop_timeout + GRACE_SECONDS + DRIVER_CLOSE_SECONDS,
        "agent": settings.receiver.drain_timeout + STOP_MARGIN_SECONDS + AGENT_CLOSE_SECONDS,
        "receiver": settings.receiver.drain_timeout + RECEIVER_CLOSE_SECONDS,
    }
    for role in ROLES:
        assert seconds(directives(role)["TimeoutStopSec"]) > needed[role], role


@pytest.mark.parametrize("role", ROLES)
def test_systemd_takes_the_unit_and_calls_it_safe(role: Role, tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        missing("systemd-analyze is not here: apt-get install systemd")
    assert run(tmp_path, "--yes") == 0
    program = tmp_path / PROGRAM.lstrip("/")
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    shutil.copytree("/usr/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    name = UNITS[role].replace("@.", "@1.")
    verified = analyze(tmp_path, "verify", name)
    assert (verified.returncode, verified.stderr) == (0, ""), verified.stderr
    judged = analyze(tmp_path, "security", "--offline=true", f"--threshold={EXPOSURE_MAX * 10:.0f}", name)
    assert judged.returncode == 0, judged.stdout[-2000:]


def analyze(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", f"--root={root}", *arguments], capture_output=True, text=True, check=False
    )
